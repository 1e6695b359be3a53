"""Bars as SVG: one panel for each measure, each with its own scale."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 760
LEFT = 190
RIGHT = 90
BAR = 20
HEAD = 34
GAP = 18
OURS, THEIRS, FLOOR = "#c2410c", "#64748b", "#cbd5e1"

STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #334155; }
.title { font-weight: 600; }
@media (prefers-color-scheme: dark) { text { fill: #cbd5e1; } }
"""


def chart(panels: Mapping[str, Sequence[tuple[str, float, str]]]) -> str:
    """Draw panels of bars: name, length, and what is written at its end."""
    body: list[str] = []
    top = 10
    for title, bars in panels.items():
        body.append(f'<text class="title" x="10" y="{top + 16}">{escape(title)}</text>')
        top += HEAD - 8
        longest = max(length for _, length, _ in bars)
        for name, length, label in bars:
            width = max(1.0, length / longest * (WIDTH - LEFT - RIGHT))
            color = OURS if name.startswith("midcall") else FLOOR if name == "floor" else THEIRS
            middle = top + BAR - 6
            body.append(f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>')
            body.append(
                f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 4}" rx="2" fill="{color}"/>'
            )
            body.append(f'<text x="{LEFT + width + 6:.1f}" y="{middle}">{escape(label)}</text>')
            top += BAR
        top += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>", ""])

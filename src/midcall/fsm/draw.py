"""Machines as drawings: DOT for Graphviz, Mermaid, and SVG where Graphviz is there."""

import functools
import importlib.util
import json
import subprocess

from midcall.errors import MidcallError
from midcall.fsm.definition import END, START, Machine

_DOT = ("dot", "-Tsvg")
_STYLE = '  rankdir=TB; node [fontname="sans-serif" fontsize=11]; edge [fontname="sans-serif" fontsize=10];'
_SHAPES = {"model": "box", "llm": "box", "ask": "house", "parallel": "component", "machine": "box3d"}

SECONDS = 20.0
"""How long a drawing may take."""


class NoGraphviz(MidcallError):
    """Nothing here can draw."""

    code = "no_graphviz"


def to_dot(machine: Machine) -> str:
    """The machine in the language of Graphviz."""
    nodes = {START: "shape=circle", END: "shape=doublecircle"}
    for one in machine.states:
        label = _quoted(f"{one.id}\n({one.action})")
        tip = f" tooltip={_quoted(one.description)}" if one.description else ""
        nodes[one.id] = f"shape={_SHAPES.get(one.action, 'ellipse')} label={label}{tip}"
    lines = [f"digraph {_quoted(machine.id)} {{", _STYLE]
    lines += [f"  {_quoted(name)} [{drawn}];" for name, drawn in nodes.items()]
    for way in machine.transitions:
        drawn = f"label={_quoted(way.label)}" + (" style=dashed" if way.omit else "")
        lines.append(f"  {_quoted(way.id[0])} -> {_quoted(way.id[1])} [{drawn}];")
    return "\n".join([*lines, "}", ""])


def to_mermaid(machine: Machine) -> str:
    """The machine as a diagram of Mermaid."""
    names = {START: "[*]", END: "[*]"} | {state.id: f"s{n}" for n, state in enumerate(machine.states)}
    lines = [f"  state {json.dumps(f'{one.id} ({one.action})')} as {names[one.id]}" for one in machine.states]
    for way in machine.transitions:
        label = " ".join(way.label.replace(":", " ").replace(";", " ").split())
        lines.append(f"  {names[way.id[0]]} --> {names[way.id[1]]}" + (f": {label}" if label else ""))
    return "\n".join(["stateDiagram-v2", *lines, ""])


def to_svg(machine: Machine) -> str:
    """The machine as a picture. Raises `NoGraphviz`."""
    return _drawn(to_dot(machine))


FORMS = {
    "dot": (to_dot, "text/vnd.graphviz"),
    "mmd": (to_mermaid, "text/plain"),
    "svg": (to_svg, "image/svg+xml"),
}
"""What machines can be drawn as, and what that is called on the web."""


@functools.lru_cache(maxsize=100)
def _drawn(dot: str) -> str:
    try:
        if importlib.util.find_spec("pygraphviz") is not None:
            import pygraphviz  # noqa: PLC0415  an extra

            return str(pygraphviz.AGraph(string=dot).draw(format="svg", prog="dot").decode())
        ran = subprocess.run(_DOT, input=dot.encode(), capture_output=True, timeout=SECONDS, check=True)  # noqa: S603
        return ran.stdout.decode()
    except FileNotFoundError:
        raise NoGraphviz("To draw, `pip install 'midcall[graphviz]'`, or install the program dot") from None
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
        raise NoGraphviz(f"Graphviz cannot draw this: {error}") from None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")
    return f'"{escaped}"'

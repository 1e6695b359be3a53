"""Machines as drawings: DOT for Graphviz, Mermaid, and SVG where Graphviz is there."""

import json
import shutil
import subprocess

from midcall.errors import MidcallError
from midcall.fsm.definition import END, START, Machine

_SHAPES = {"model": "box", "llm": "box", "ask": "house", "parallel": "component", "machine": "box3d"}

SECONDS = 20.0
"""How long a drawing may take."""


class NoGraphviz(MidcallError):
    """Nothing here can draw."""

    code = "no_graphviz"


def to_dot(machine: Machine, lit: str | None = None) -> str:
    """The machine in the language of Graphviz; the state `lit` stands out."""
    lines = [
        f"digraph {_quoted(machine.id)} {{",
        "  rankdir=TB;",
        '  node [fontname="sans-serif" fontsize=11];',
    ]
    lines.append('  edge [fontname="sans-serif" fontsize=10];')
    for state, shape in ((START, "circle"), (END, "doublecircle")):
        lines += [f"  {_quoted(state)} [shape={shape}{_lit(state, lit)}];"]
    for one in machine.states:
        shape = _SHAPES.get(one.action, "ellipse")
        label = _quoted(f"{one.id}\n({one.action})")
        tip = f" tooltip={_quoted(one.description)}" if one.description else ""
        lines.append(f"  {_quoted(one.id)} [shape={shape} label={label}{tip}{_lit(one.id, lit)}];")
    for way in machine.transitions:
        begin, end = way.id
        style = " style=dashed" if way.omit else ""
        lines.append(f"  {_quoted(begin)} -> {_quoted(end)} [label={_quoted(way.label)}{style}];")
    return "\n".join([*lines, "}", ""])


def to_mermaid(machine: Machine) -> str:
    """The machine as a diagram of Mermaid."""
    names = {START: "[*]", END: "[*]"} | {state.id: f"s{n}" for n, state in enumerate(machine.states)}
    lines = ["stateDiagram-v2"]
    lines += [
        f"  state {json.dumps(f'{one.id} ({one.action})')} as {names[one.id]}" for one in machine.states
    ]
    for way in machine.transitions:
        label = " ".join(way.label.replace(":", " ").replace(";", " ").split())
        lines.append(f"  {names[way.id[0]]} --> {names[way.id[1]]}" + (f": {label}" if label else ""))
    return "\n".join([*lines, ""])


def to_svg(machine: Machine, lit: str | None = None) -> str:
    """The machine as a picture. Raises `NoGraphviz`."""
    drawn: dict[str | None, str] = machine.__dict__.setdefault("drawn", {})
    if lit not in drawn:
        drawn[lit] = _drawn(to_dot(machine, lit))
    return drawn[lit]


def _drawn(dot: str) -> str:
    try:
        import pygraphviz  # noqa: PLC0415  an extra
    except ImportError:
        return _drawn_by_program(dot)
    try:
        return str(pygraphviz.AGraph(string=dot).draw(format="svg", prog="dot").decode())
    except (OSError, ValueError, RuntimeError) as error:
        raise NoGraphviz(f"Graphviz cannot draw this: {error}") from None


def _drawn_by_program(dot: str) -> str:
    program = shutil.which("dot")
    if program is None:
        raise NoGraphviz("To draw, `pip install midcall[graphviz]`, or install the program dot")
    try:
        ran = subprocess.run(  # noqa: S603  our own text, for a program that was found
            [program, "-Tsvg"], input=dot.encode(), capture_output=True, timeout=SECONDS, check=True
        )
    except subprocess.SubprocessError as error:
        raise NoGraphviz(f"dot cannot draw this: {error}") from None
    return ran.stdout.decode()


def _lit(state: str, lit: str | None) -> str:
    return ' style=filled fillcolor="#ffd54a"' if state == lit else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")
    return f'"{escaped}"'

"""The table of `move-from-fastmcp.md` counts the lines that there are."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (`.*?): .*? \| ([\d, ]+) \| ([\d, ]+) \|")


def tools(path: str) -> dict[str, int]:
    """How many lines each tool of a file has, with its decorator, without its docstring."""
    found = {}
    for one in ast.parse((ROOT / path).read_text()).body:
        if isinstance(one, ast.AsyncFunctionDef) and one.decorator_list:
            docstring, last = one.body[0], one.end_lineno
            assert docstring.end_lineno is not None
            assert last is not None
            found[one.name] = last - one.decorator_list[0].lineno - (docstring.end_lineno - docstring.lineno)
    return found


def test_the_lines_of_both_are_those_of_the_table() -> None:
    ours, theirs = tools("examples/twenty.py"), tools("compliance/clients/twenty_fastmcp.py")
    modern = theirs.pop("delete_modern")
    assert (len(ours), theirs.keys()) == (20, ours.keys())
    text = (ROOT / "docs/how-to/move-from-fastmcp.md").read_text().partition("side by side")[2]
    told: dict[str, tuple[str, str]] = {}
    for names, fastmcp, midcall in ROW.findall(text):
        told |= dict.fromkeys(re.findall(r"`(\w+)`", names), (fastmcp, midcall))
    assert told == {
        name: (f"{theirs[name]}, {modern}" if name == "delete" else f"{theirs[name]}", f"{ours[name]}")
        for name in ours
    }

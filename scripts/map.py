"""Writes the map of rooms and files into CONTRIBUTING.md, from the first sentences of modules: `make map`."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "midcall"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map: made by `make map` -->\n", "<!-- end of the map -->\n"


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if not docstring:
        raise SystemExit(f"{path.relative_to(ROOT)} does not say what it is for")
    return re.split(r"(?<=\.) (?=[A-Z(`])", " ".join(docstring.split("\n\n")[0].split()))[0].rstrip(".:")


def table() -> str:
    """Every room with its files, one line each."""
    rooms = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        rooms[path.parent.relative_to(SOURCE).as_posix()].append(path)
    lines = []
    for room, paths in rooms.items():
        name = "the core" if room == "." else f"`{room}/`"
        (about,) = [sentence(path) for path in paths if path.name == "__init__.py"]
        lines += [f"| **{name}** | **{about}** |", "|---|---|"]
        lines += [f"| `{path.name}` | {sentence(path)} |" for path in paths if path.name != "__init__.py"]
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """The page with the map as it is now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())

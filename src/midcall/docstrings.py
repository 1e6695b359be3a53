"""Docstrings: the description of a method and of each parameter.

Reads the three common styles: Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx
(`:param name:`). Anything that is not understood stays part of the description.
"""

import inspect
import re
from typing import NamedTuple

_GOOGLE_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|See Also):\s*$"
)
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
_SPHINX_ENTRY = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")
_SPHINX_FIELD = re.compile(r"^:(param|type|returns?|rtype|raises?|yields?)\b")
_NUMPY_SECTIONS = frozenset((
    "Parameters", "Other Parameters", "Returns", "Yields", "Receives", "Raises", "Warns", "Warnings",
    "See Also", "Notes", "References", "Examples", "Attributes", "Methods",
))  # fmt: skip
_PARAMETER_SECTIONS = frozenset(("Args", "Arguments", "Parameters", "Other Parameters", "Params"))


class Description(NamedTuple):
    """What a docstring says: the text before its sections, and one text for each parameter."""

    text: str
    parameters: dict[str, str]


def read_docstring(doc: str | None) -> Description:
    """Split a docstring into description and parameters."""
    lines = inspect.cleandoc(doc or "").split("\n")
    text: list[str] = []
    parameters: dict[str, str] = {}
    place = 0
    while place < len(lines):
        line = lines[place]
        google = _GOOGLE_SECTION.match(line)
        underlined = line in _NUMPY_SECTIONS and _is_underlined(lines, place)
        if google or underlined:
            start = place + (2 if underlined else 1)
            place = _section_end(lines, start, numpy=bool(underlined))
            name = google[1] if google else line.strip()
            if name in _PARAMETER_SECTIONS:
                entry = _NUMPY_ENTRY if underlined else _GOOGLE_ENTRY
                parameters.update(_entries(lines[start:place], entry))
            continue
        if _SPHINX_FIELD.match(line):
            end = _field_end(lines, place)
            field = _SPHINX_ENTRY.match(line)
            if field:
                parameters[field[1]] = _joined([field[2], *lines[place + 1 : end]])
            place = end
            continue
        text.append(line)
        place += 1
    return Description("\n".join(text).strip(), parameters)


def _section_end(lines: list[str], start: int, *, numpy: bool) -> int:
    """Google sections are indented; NumPy sections run to the next underlined heading."""
    for place in range(start, len(lines)):
        line = lines[place]
        if numpy and _is_underlined(lines, place):
            return place
        if not numpy and line.strip() and not line.startswith((" ", "\t")):
            return place
    return len(lines)


def _is_underlined(lines: list[str], place: int) -> bool:
    return place + 1 < len(lines) and re.match(r"^-{3,}\s*$", lines[place + 1]) is not None


def _field_end(lines: list[str], start: int) -> int:
    for place in range(start + 1, len(lines)):
        if not lines[place].startswith((" ", "\t")):
            return place
    return len(lines)


def _entries(lines: list[str], entry: re.Pattern[str]) -> dict[str, str]:
    """Entries start at the smallest indent; deeper lines go on with the entry above."""
    found: dict[str, list[str]] = {}
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    base = min(indents, default=0)
    current: list[str] | None = None
    for line in lines:
        if not line.strip():
            continue
        if len(line) - len(line.lstrip()) == base:
            match = entry.match(line.strip())
            current = found.setdefault(match[1], []) if match else None
            if match and current is not None and match.lastindex == 2:
                current.append(match[2])
        elif current is not None:
            current.append(line)
    return {name: _joined(texts) for name, texts in found.items() if _joined(texts)}


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())

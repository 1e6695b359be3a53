"""Templates of URIs, and whether a URI fits one. A URI is a stranger's, so that nothing here ever goes back:
each text of a template is looked for once, from where the one before it was found.
"""

import re

_NAME = re.compile(r"\{(\w+)\}")
_EXPRESSION = re.compile(r"\{[^{}]*\}")


class Parts:
    """A template of this hub: `notes://{folder}/{name}`. A part has no slash, and is not empty.

    Where a URI can be parted in several ways, the first part is as long as can be, then the second.
    """

    __slots__ = ("_segments", "names")

    def __init__(self, template: str) -> None:
        self.names = _NAME.findall(template)
        # As no part has a slash, each slash of a URI is one of the template.
        self._segments = [_NAME.split(segment)[::2] for segment in template.split("/")]

    def match(self, uri: str) -> dict[str, str] | None:
        """The parts of the URI by their names, if it fits."""
        segments = uri.split("/")
        if len(segments) != len(self._segments):
            return None
        values: list[str] = []
        for texts, segment in zip(self._segments, segments, strict=True):
            found = _between(texts, segment)
            if found is None:
                return None
            values += found
        parts = dict(zip(self.names, values, strict=True))
        agree = all(parts[name] == value for name, value in zip(self.names, values, strict=True))
        return parts if agree else None  # a name may stand twice


def _between(texts: list[str], segment: str) -> list[str] | None:
    """What stands between these texts; each as far back as it is found, from the last one on."""
    first, *others = texts
    if not others:
        return [] if segment == first else None
    start, end = len(first), len(segment) - len(others[-1])
    if not segment.startswith(first) or not segment.endswith(others[-1]):
        return None
    values = []
    for text in reversed(others[:-1]):
        at = segment.rfind(text, start + 1, max(start, end - 1))
        if at < 0:
            return None
        values.append(segment[at + len(text) : end])
        end = at
    if end <= start:
        return None
    values.append(segment[start:end])
    return values[::-1]


class AnyText:
    """A template of another server, as RFC 6570 has them, which only has to lead there: any text fits, also
    none, where it has an expression."""

    __slots__ = ("_texts",)

    def __init__(self, template: str) -> None:
        self._texts = _EXPRESSION.split(template)

    def match(self, uri: str) -> bool:
        """Whether the URI fits."""
        first, *others = self._texts
        if not others:
            return uri == first
        *middle, last = others
        at = len(first)
        if not uri.startswith(first) or not uri.endswith(last):
            return False
        for text in middle:
            found = uri.find(text, at)
            if found < 0:
                return False
            at = found + len(text)
        return at + len(last) <= len(uri)

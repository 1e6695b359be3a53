"""Text of others, as a terminal or a log shows it: without characters that act instead of being read."""

import re

_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but newline and tab, and those that turn the direction of writing."""


def printable(text: str) -> str:
    """The text with such characters written as in JSON, `\\u001b`: what was JSON is the same JSON."""
    return _ACTS.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))

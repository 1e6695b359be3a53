"""Text of others, as a terminal or a log shows it: without characters that act or hide."""

import json

_KEPT = frozenset("\n\t\u200c\u200d")
"""Those that many languages and emoji need between letters are kept, beside newline and tab."""


def printable(text: str) -> str:
    """The text with such characters written as in JSON, `\\u001b`: what was JSON is the same JSON."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in _KEPT else json.dumps(letter)[1:-1]
        for letter in text.replace("\r\n", "\n")
    )

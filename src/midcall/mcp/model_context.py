"""Model context: data that a question brings along for whoever shows it, in both places where it may travel.

In the requested schema, under `x-model-context`; and below the message, after a marker, for clients that give
their user interface only what they know of a schema.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

KEY = "x-model-context"
OLD_KEY = "x-elicit-context"
"""Read, never written."""

MARKER = "\n\n--x-model-context: application/json\n"


def with_context(message: str, schema: dict[str, Any], context: Any) -> tuple[str, dict[str, Any]]:
    """Message and schema that carry the context; as they were if there is none."""
    if not context:
        return message, schema
    return f"{message}{MARKER}{msgspec.json.encode(context).decode()}", {**schema, KEY: context}


def read_context(message: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The context of a question: from its schema, else from below its last marker, else nothing."""
    for key in (KEY, OLD_KEY):
        found = (schema or {}).get(key)
        if isinstance(found, dict):
            return found
    _, marker, text = message.rpartition(MARKER.lstrip("\n"))
    if not marker:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def without_context(message: str) -> str:
    """What of a message is meant for a person."""
    text, marker, _ = message.rpartition(MARKER)
    return text if marker else message

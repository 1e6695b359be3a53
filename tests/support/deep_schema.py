"""A small JSON Schema that becomes large when it is read."""

from typing import Any


def tower(levels: int, **more: Any) -> dict[str, Any]:
    """Each level names the next one twice: there are 2^levels ways down."""
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, **more} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "integer"}}}

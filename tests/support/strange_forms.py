"""A form as `strange_server` asks it: with more in it than MCP has words for."""

ODD_FORM = {
    "type": "object",
    "title": "Order",
    "properties": {
        "size": {"type": "string", "pattern": "^[SML]$", "x-hint": "one letter"},
        "count": {"type": "integer", "minimum": 1, "default": 2},
    },
    "required": ["size"],
    "x-layout": "wide",
}

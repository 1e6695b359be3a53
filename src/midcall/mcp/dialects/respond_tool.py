"""Questions as log notifications, answered by a tool: for legacy callers without elicitation.

The question goes out as `notifications/message` of the logger `plexus.bidir`, whatever the log level;
the client answers by calling the tool `_plexus_respond`. Its model and its folders, if it declares
them, are asked for by requests as ever (see `attached`).
"""

from typing import Any

from midcall.items import Request
from midcall.questions import question_to_wire

TOOL = "_plexus_respond"
LOGGER = "plexus.bidir"

DEFINITION: dict[str, Any] = {
    "name": TOOL,
    "description": "Respond to a Plexus interactive request",
    "inputSchema": {
        "type": "object",
        "properties": {
            "request_id": {"type": "string", "description": "The id of the question, from its notification"},
            "payload": {"description": "The answer: true, text, a choice, or any JSON value"},
        },
        "required": ["request_id", "payload"],
    },
}


def notice(asked: Request) -> dict[str, Any]:
    """The parameters of the notification that asks this."""
    question = question_to_wire(asked.request_type)
    data: dict[str, Any] = {"type": "request", "request_id": asked.request_id, "request_type": question}
    if asked.timeout_ms is not None:
        data["timeout_ms"] = asked.timeout_ms
    return {"level": "info", "logger": LOGGER, "data": data}

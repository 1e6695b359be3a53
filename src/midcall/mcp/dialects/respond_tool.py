"""Questions as log notifications, answered by a tool: for legacy callers without elicitation.

The question goes out as `notifications/message` of the logger `plexus.bidir`, whatever the log level;
the client answers by calling the tool `_plexus_respond`. Its model and its folders, if it declares
them, are asked for by requests as ever (see `attached`).

An operator may keep the tool for clients that declare it, or for none. Over HTTP their people can answer all
the same: there the question has a link, of which the notification, the progress and the result tell.
"""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from midcall.items import Request
from midcall.questions import question_to_wire

if TYPE_CHECKING:
    from midcall.mcp.request import Caller

TOOL = "_plexus_respond"
LOGGER = "plexus.bidir"

Offered: TypeAlias = Literal["always", "declared", "never"]
"""To whom of those who need it: to all, to those that declare `experimental["plexus.bidir"]`, or to none."""

DEFINITION: dict[str, Any] = {
    "name": TOOL,
    "description": (
        "Respond to a Plexus interactive request. For programs, not for models: a client program calls it "
        "with what its user has answered. A model must not answer in the user's place, and does not know "
        "the request_id, which comes in a notification alone."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "request_id": {"type": "string", "description": "The id of the question, from its notification"},
            "payload": {"description": "The answer: true, text, a choice, or any JSON value"},
        },
        "required": ["request_id", "payload"],
    },
}


def is_offered(offered: Offered, caller: "Caller") -> bool:
    """Whether a client has the tool."""
    if caller.modern or caller.elicits or offered == "never":
        return False
    declared = caller.capabilities.experimental
    return offered == "always" or (isinstance(declared, dict) and LOGGER in declared)


def notice(asked: Request, *, responds: bool) -> dict[str, Any]:
    """The parameters of the notification that asks this; without the tool, it only tells where to answer."""
    if not responds:
        return {"level": "info", "logger": LOGGER, "data": {"type": "link", "message": waiting_at(asked)}}
    question = question_to_wire(asked.request_type)
    data: dict[str, Any] = {"type": "request", "request_id": asked.request_id, "request_type": question}
    if asked.timeout_ms is not None:
        data["timeout_ms"] = asked.timeout_ms
    if asked.link is not None:
        data["link"] = asked.link
    return {"level": "info", "logger": LOGGER, "data": data}


def waiting_at(asked: Request) -> str:
    """What a person is told while a question waits."""
    message = " ".join(asked.request_type.message.split())
    return f"{message} Answer at {asked.link}"


def unanswered(link: str | None, *, responds: bool) -> str:
    """Why nobody has answered, and what to do."""
    why = "This client cannot show questions"
    if link is not None:
        calls = f"{link.partition('/q/')[0]}/calls"
        return (
            f"{why}, and nobody answered at {link} in time. Open {calls}, call the tool again, and answer "
            "there; or use a client that supports elicitation."
        )
    by_tool = f", or a program that answers by the tool {TOOL}" if responds else ""
    return f"{why}. Use one that supports elicitation{by_tool}."

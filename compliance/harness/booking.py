"""The booking of the demo: made in the server's chat, and what a client must have seen who made it over MCP.

The chat says which data each question brings along. A client must have been shown the same, in the schema and
below the message, and be able to do without both: the text alone names each flight with its price, and each
taken seat. Knows nothing of midcall but the wire.
"""

import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REQUEST = "Book a flight from Paris to Rome"
FIELDS = ["flightId", "row seat"]
SAMPLED = "all is well"
SECONDS = 60


class BookingError(Exception):
    """The chat did not ask and answer as it should."""


@dataclass(frozen=True)
class Booking:
    """What the chat showed: the text and the context of each question."""

    texts: tuple[str, ...]
    contexts: tuple[Mapping[str, Any], ...]
    hidden: str = ""
    """The place that the client under test does not let its person see."""


def book_in_chat(url: str) -> Booking:
    """Book the cheapest flight and any free seat in the chat at this URL, and return what was shown."""
    body: dict[str, Any] = {"message": REQUEST}
    asked: list[dict[str, Any]] = []
    while True:
        events = _post(url, body)
        questions = [event for event in events if event["type"] == "plugin_elicit_request"]
        if not questions:
            break
        (question,) = questions
        asked.append(question)
        if len(asked) > len(FIELDS) or not question.get("context"):
            raise BookingError(f"the chat asked {question['message']!r} with {question.get('context')!r}")
        response = {key: question[key] for key in ("sessionId", "callId", "elicitId")}
        response["result"] = {"action": "accept", "content": _picked(question["context"])}
        body = {"conversationId": events[0]["conversationId"], "pluginElicitResponses": [response]}
    tickets = [event["structured"] for event in events if event["type"] == "tool_result"]
    if len(asked) != len(FIELDS) or len(tickets) != 1 or not _is_number(tickets[0]["ticketNumber"]):
        raise BookingError(f"the chat asked {len(asked)} times and gave {tickets}")
    return Booking(tuple(one["message"] for one in asked), tuple(one["context"] for one in asked))


def fault(saw: Mapping[str, Any], chat: Booking, tip: str) -> str:
    """What is wrong with the booking that a client saw, or nothing."""
    if saw["asked"] != FIELDS:
        return f"asked for {saw['asked']}, not {FIELDS}"
    for number, (shown, text, context) in enumerate(
        zip(saw["shown"], chat.texts, chat.contexts, strict=True), 1
    ):
        for place in ("inSchema", "inMessage"):
            expected = None if place == chat.hidden else context
            if shown[place] != expected:
                return f"question {number}: the context {place} is {shown[place]!r}, not {expected!r}"
        if shown["text"] != text:
            return f"question {number}: the text is {shown['text']!r}, in the chat {text!r}"
        missing = [word for word in _words(context) if word not in text]
        if missing:
            return f"question {number}: the text alone does not say {missing}"
    flight, seat = (shown["answer"] for shown in saw["shown"])
    ticket = dict(saw["ticket"] or {})
    if not _is_number(ticket.pop("ticketNumber", None)):
        return f"no ticket: {saw['ticket']!r}"
    (chosen,) = (one for one in chat.contexts[0]["flights"] if one["id"] == flight["flightId"])
    booked = {
        "flight": chosen,
        "seat": f"{seat['row']}{seat['seat']}",
        "price": chosen["price"],
        "tip": tip,
    }
    return "" if ticket == booked else f"the ticket is {ticket!r}, not {booked!r}"


def _words(context: Mapping[str, Any]) -> Sequence[str]:
    """What a person must be able to read who sees no context."""
    if "flights" in context:
        return [word for flight in context["flights"] for word in (flight["id"], f"${flight['price']}")]
    return [context["flight"]["number"], *context["seatMap"]["taken"]]


def _picked(context: Mapping[str, Any]) -> dict[str, Any]:
    if "flights" in context:
        return {"flightId": min(context["flights"], key=lambda flight: flight["price"])["id"]}
    seats = context["seatMap"]
    free = {f"{row}{seat}": (row, seat) for row in range(1, seats["rows"] + 1) for seat in seats["columns"]}
    row, seat = next(place for name, place in free.items() if name not in seats["taken"])
    return {"row": row, "seat": seat}


def _is_number(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("TK[0-9A-F]{8}", text) is not None


def _post(url: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return [json.loads(line)["event"] for line in response]
    except OSError as error:
        raise BookingError(f"{url} does not answer: {error}") from error

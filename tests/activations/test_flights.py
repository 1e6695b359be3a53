"""The flights of the demo, booked over MCP and in the chat of one server: both are shown the same data."""

from typing import Any, Literal

import pytest

from chatting import Person, kinds, only
from driving import drive
from midcall import Request, connect
from midcall.activations.flights import COLUMNS, ROWS, Flight, search, taken_seats
from midcall.questions import Form, Sample
from peers import http_server

ROUTE = {"origin": "Paris", "destination": "Rome"}
FLIGHTS = search(**ROUTE)
CHEAPEST = min(FLIGHTS, key=lambda flight: flight.price)
SEAT = next(
    (row, column)
    for row in range(1, ROWS + 1)
    for column in COLUMNS
    if f"{row}{column}" not in taken_seats(CHEAPEST)
)


def wire(flight: Flight) -> dict[str, Any]:
    """A flight as both wires have it."""
    return {name: getattr(flight, name) for name in Flight.__struct_fields__}


CONTEXTS = [
    {"flights": [wire(flight) for flight in FLIGHTS]},
    {
        "seatMap": {"rows": ROWS, "columns": list(COLUMNS), "taken": taken_seats(CHEAPEST)},
        "flight": wire(CHEAPEST),
    },
]


def answer_for(schema: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """What somebody answers who knows of a question only what it shows."""
    if schema["properties"].keys() == {"flightId"}:
        return {"flightId": min(context["flights"], key=lambda flight: flight["price"])["id"]}
    assert schema["properties"].keys() == {"row", "seat"}
    seats = context["seatMap"]
    return next(
        {"row": row, "seat": column}
        for row in range(1, seats["rows"] + 1)
        for column in seats["columns"]
        if f"{row}{column}" not in seats["taken"]
    )


def assert_booked(ticket: dict[str, Any], tip: str) -> None:
    assert ticket.pop("ticketNumber").startswith("TK")
    seat = "{}{}".format(*SEAT)
    assert ticket == {"flight": wire(CHEAPEST), "seat": seat, "price": CHEAPEST.price, "tip": tip}


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_booking_shows_the_same_context_over_mcp_and_in_the_chat(era: Literal["legacy", "modern"]) -> None:
    shown: list[Form] = []
    sampled: list[Sample] = []

    def answer(request: Request) -> Any:
        question = request.request_type
        assert isinstance(question, Form)
        shown.append(question)
        return answer_for(question.schema, question.context)

    def sample(question: Sample) -> str:
        sampled.append(question)
        return "Bring a hat."

    async def over_mcp(port: int) -> None:
        url = f"http://127.0.0.1:{port}/mcp"
        async with connect(url, answer=answer, sample=sample, era=era) as client:
            result = await client.call("flights.book_flight", ROUTE)
        assert_booked(result.structured, "Bring a hat.")
        assert ["Rome" in question.message for question in sampled] == [True]

    async def in_the_chat(port: int) -> list[dict[str, Any]]:
        person = Person(port)
        events = await person.say("Book a flight from {origin} to {destination}".format(**ROUTE))
        asked = []
        while "plugin_elicit_request" in kinds(events):
            question = only(events, "plugin_elicit_request")
            asked.append(question)
            events = await person.answer(question, **answer_for(question["schema"], question["context"]))
        ticket = only(events, "tool_result")["structured"]
        assert ticket["tip"]
        assert_booked(ticket, ticket["tip"])
        return asked

    async def main() -> None:
        async with http_server("midcall.activations.demo:hub", options=["--journal", "memory"]) as url:
            port = int(url.removesuffix("/ws").rpartition(":")[2])
            await over_mcp(port)
            asked = await in_the_chat(port)
        assert [question["context"] for question in asked] == CONTEXTS
        assert [question["schema"]["x-model-context"] for question in asked] == CONTEXTS
        assert [question.context for question in shown] == CONTEXTS
        assert [question.message for question in shown] == [question["message"] for question in asked]

        flights, seats = (
            question.message for question in shown
        )  # enough for a client that shows nothing else
        assert all(f"${flight.price} | id {flight.id}" in flights for flight in FLIGHTS)
        assert f"(taken: {', '.join(taken_seats(CHEAPEST))})" in seats

    drive(main(), 100)

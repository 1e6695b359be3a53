"""Flights: the demo of a tool that asks with more than a form: flights as cards, seats as a map.

The tool itself is plain: it asks two typed questions, a model for a tip, and books in a step. How the
questions are shown in the chat is the plugin below; over MCP and in a terminal the same questions are forms,
with the flights in their message.
"""

import hashlib
import json
import random
from typing import Any

from msgspec import Struct

from midcall.ask import Ask
from midcall.decorators import method
from midcall.errors import AskError, NotSupported
from midcall.questions import Question

ROWS = 8
COLUMNS = ("A", "B", "C", "D", "E", "F")
AIRLINES = ("SkyHigh", "CloudAir", "Meridian", "Northwind")


class Flight(Struct, frozen=True, rename="camel"):
    """A flight that can be booked."""

    id: str
    airline: str
    number: str
    departure: str
    arrival: str
    price: int
    currency: str = "USD"
    stops: int = 0


class FlightChoice(Struct, frozen=True, rename="camel"):
    """Which flight."""

    flight_id: str


class SeatChoice(Struct, frozen=True):
    """Which seat."""

    row: int
    seat: str


class FlightTicket(Struct, frozen=True, rename="camel"):
    """What was booked."""

    ticket_number: str
    flight: Flight
    seat: str
    price: int
    tip: str = ""


pick_flight = Question("pickFlight", FlightChoice)
pick_seat = Question("pickSeat", SeatChoice)


class Flights:
    """Find and book flights (made up ones)."""

    @method(elicits=[pick_flight, pick_seat], title="Book a flight")
    async def book_flight(self, origin: str, destination: str, ask: Ask) -> FlightTicket:
        """Book a flight for the person, who picks the flight and the seat.

        Args:
            origin: The city to fly from.
            destination: The city to fly to.
        """
        ask.progress("Searching flights", 10)
        flights = search(origin, destination)
        flight = await _picked_flight(ask, origin, destination, flights)
        ask.progress("Looking up seats", 50)
        seat = await _picked_seat(ask, flight)
        ask.progress("Booking", 80)
        number = await ask.step(_issue, flight.id, seat)
        return FlightTicket(number, flight, seat, flight.price, await _tip(ask, destination))


async def _picked_flight(ask: Ask, origin: str, destination: str, flights: list[Flight]) -> Flight:
    lines = "\n".join(
        f"{n}. {f.airline} {f.number} | {f.departure}-{f.arrival} | ${f.price} | id {f.id}"
        for n, f in enumerate(flights, 1)
    )
    message = f"Pick your flight from {origin} to {destination}:\n\n{lines}"
    note = ""
    while True:
        choice = await ask(pick_flight, note + message, flights=flights)
        for flight in flights:
            if flight.id == choice.flight_id:
                return flight
        note = f"There is no flight {choice.flight_id}. "


async def _picked_seat(ask: Ask, flight: Flight) -> str:
    taken = taken_seats(flight)
    seat_map = {"rows": ROWS, "columns": COLUMNS, "taken": taken}
    message = f"Pick your seat on {flight.airline} {flight.number}, rows 1 to {ROWS}, seats A to F"
    note = ""
    while True:
        choice = await ask(
            pick_seat, f"{note}{message} (taken: {', '.join(taken)})", seatMap=seat_map, flight=flight
        )
        seat = f"{choice.row}{choice.seat.upper()}"
        if seat in taken:
            note = f"Seat {seat} is taken. "
        elif 1 <= choice.row <= ROWS and choice.seat.upper() in COLUMNS:
            return seat
        else:
            note = f"There is no seat {seat}. "


async def _tip(ask: Ask, destination: str) -> str:
    """A tip by a model, if the caller has one; a ticket is a ticket without it."""
    try:
        said = await ask.sample(
            f"One short travel tip for somebody who lands in {destination}.", max_tokens=100
        )
    except (NotSupported, AskError):
        return ""
    return said.text


def search(origin: str, destination: str) -> list[Flight]:
    """Flights between two cities: made up, and the same ones each time."""
    chance = random.Random(f"{origin.lower()}-{destination.lower()}")  # noqa: S311  a demo's fantasy
    found = []
    for airline in chance.sample(AIRLINES, 3):
        hour, minute = chance.randint(6, 18), chance.choice((0, 15, 30, 45))
        length = chance.randint(90, 420)
        end = hour * 60 + minute + length
        code = f"{airline[:2].upper()}-{chance.randint(100, 999)}"
        found.append(
            Flight(
                id=code.lower(),
                airline=airline,
                number=code,
                departure=f"{hour:02}:{minute:02}",
                arrival=f"{end // 60 % 24:02}:{end % 60:02}",
                price=chance.randint(12, 60) * 10 - 1,
                stops=int(length > 300),
            )
        )
    return sorted(found, key=lambda flight: flight.departure)


def taken_seats(flight: Flight) -> list[str]:
    """The seats of a flight that others have."""
    chance = random.Random(flight.id)  # noqa: S311  as above
    seats = [f"{row}{column}" for row in range(1, ROWS + 1) for column in COLUMNS]
    return sorted(chance.sample(seats, len(seats) // 3), key=lambda seat: (int(seat[:-1]), seat[-1]))


def _issue(flight_id: str, seat: str) -> str:
    """Issue a ticket."""
    return "TK" + hashlib.sha256(f"{flight_id}{seat}{random.random()}".encode()).hexdigest()[:8].upper()  # noqa: S311


def told(result: str) -> str:
    """What the scripted model says of a ticket."""
    ticket: dict[str, Any] = json.loads(result)
    flight = ticket["flight"]
    tip = f"\n\n> {ticket['tip']}" if ticket.get("tip") else ""
    return (
        f"Your flight is booked.\n\n"
        f"- **{flight['airline']} {flight['number']}**, {flight['departure']} to {flight['arrival']}\n"
        f"- Seat **{ticket['seat']}**\n"
        f"- Price **${ticket['price']}**\n"
        f"- Ticket **{ticket['ticketNumber']}**{tip}"
    )

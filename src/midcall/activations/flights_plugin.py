"""How the chat shows the questions of the demo `activations.flights`, and the script that calls it."""

from typing import Any

from midcall.activations.flights import Flights, pick_flight, pick_seat, told
from midcall.chat.plugins import Plugin, PluginContext, PluginQuestion
from midcall.models.scripted import Rule


async def _show_flights(question: PluginQuestion, ctx: PluginContext) -> Any:
    message = question.message.partition("\n")[0].rstrip(":")
    return await ctx.render("FlightList", flights=question.context["flights"], message=message)


async def _show_seats(question: PluginQuestion, ctx: PluginContext) -> Any:
    message = question.message.partition(" (taken")[0]
    return await ctx.render("SeatPicker", seatMap=question.context["seatMap"], message=message)


def flights_plugin() -> Plugin:
    """The plugin of the flights."""
    return Plugin(Flights.book_flight).on(pick_flight, _show_flights).on(pick_seat, _show_seats)


_CITY = r"[\w.'-]+?(?: +[\w.'-]+?){0,3}?"  # of a few words: the rest of a long text is not tried

RULES = (
    Rule(
        pattern=rf"\bfrom\s+(?P<origin>{_CITY})\s+to\s+(?P<destination>{_CITY})\s*(?:[.?!,]|please|$)",
        tool="book_flight",
        saying="Let me look for flights. ",
        tell=told,
    ),
    Rule(
        pattern=rf"\b(?:fly|flight|travel)\s+to\s+(?P<destination>{_CITY})\s*(?:[.?!,]|please|$)",
        tool="book_flight",
        saying="Let me look for flights. ",
        defaults={"origin": "New York"},
        tell=told,
    ),
    Rule(
        pattern=r"\b(?:flight|fly|book)\b",
        tool="book_flight",
        saying="Let me look for flights. ",
        defaults={"origin": "New York", "destination": "Los Angeles"},
        tell=told,
    ),
)

SUGGESTIONS = ("Book a flight from New York to Los Angeles", "I want to fly to Lisbon")

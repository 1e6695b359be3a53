"""The hub of the demo: the examples, and a chat in which flights are booked.

`midcall serve midcall.activations.demo:hub` serves it. The chat is answered by a script unless a model is
named.
"""

from typing import Any

from midcall.activations.echo import Echo
from midcall.activations.flights import Flights, pick_flight, pick_seat, told
from midcall.activations.health import Health
from midcall.activations.interactive import Interactive
from midcall.chat import ChatEngine
from midcall.chat.plugins import Plugin, PluginContext, PluginQuestion
from midcall.hub import Hub
from midcall.models.scripted import Rule, Scripted


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


PACE = 0.02
"""Seconds that each word of the script takes, so that it is seen to stream."""

_TIP = "The train into town is usually faster than a taxi. (This tip comes from a script.)"

_RULES = (
    *RULES,
    Rule(pattern=r"\b(?:wizard|project)\b", tool="wizard", saying="Let me set up a project with you. "),
    Rule(pattern=r"^(?:say|echo)\s+(?P<message>.+)", tool="once", saying=""),
)
_OTHERWISE = (
    "I am a **script**, not a model: I only know a few phrases. Try *Book a flight from New York to "
    "Los Angeles*, or *Set up a project*. To talk to a real model, start the server with `--model`, for "
    "instance `--model ollama:llama3.2`."
)


def hub() -> Hub:
    """A new hub with everything in it."""
    made = Hub("demo", description="Tools that stop in the middle and ask")
    for activation in (Flights(), Interactive(), Echo(), Health()):
        made.register(activation)
    ChatEngine(
        made,
        Scripted(_RULES, otherwise=_OTHERWISE, sampled=_TIP, pace=PACE, name="demo script"),
        plugins=[flights_plugin()],
        suggestions=(*SUGGESTIONS, "Set up a project"),
    )
    return made

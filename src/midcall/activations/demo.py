"""The hub of the demo: the examples, and a chat in which flights are booked.

`midcall serve midcall.activations.demo:hub` serves it. The chat is answered by a script unless a model is
named.
"""

from midcall.activations.echo import Echo
from midcall.activations.flights import Flights
from midcall.activations.flights_plugin import RULES, SUGGESTIONS, flights_plugin
from midcall.activations.health import Health
from midcall.activations.interactive import Interactive
from midcall.chat import ChatEngine
from midcall.hub import Hub
from midcall.models.scripted import Rule, Scripted

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

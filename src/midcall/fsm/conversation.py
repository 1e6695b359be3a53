"""What a model is told of a run, and what it says to it: the trail as a conversation, and one event back."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from midcall.fsm.definition import Event, Transition
from midcall.fsm.run import BadOutput, Moment, TrailEntry
from midcall.items import to_json
from midcall.models.base import Message, ModelRequest

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


def conversation(
    moment: Moment, ways: Sequence[Transition], max_tokens: int | None, temperature: float | None
) -> ModelRequest:
    """What a model is asked in a state: to choose among `ways`; without any, to say something."""
    machine, state = moment.machine, moment.state
    system = [machine.description, *machine.prompts, state.description, *state.prompts]
    if ways:
        system.append(
            "Answer with one JSON object and nothing else: the event that you choose, one of these."
        )
        system += [_described(way) for way in ways]
    messages: list[Message] = []
    for entry in moment.trail:
        if not _is_omitted(moment, entry):
            messages += _told(entry, is_own=entry.begin == state.id)
    return ModelRequest(
        tuple(messages),
        system="\n\n".join(part for part in system if part),
        max_tokens=max_tokens,
        temperature=temperature,
        schema=machine.event_schema(*ways) if ways else None,
    )


def _described(way: Transition) -> str:
    words = [f'"id": {to_json(list(way.id)).decode()}', way.label, way.description, *way.prompts]
    return "- " + ". ".join(word.rstrip(".") for word in words if word)


def _is_omitted(moment: Moment, entry: TrailEntry) -> bool:
    ways = moment.machine.ways_from(entry.begin)
    return any(way.omit and way.id == (entry.begin, entry.end) for way in ways)


def _told(entry: TrailEntry, *, is_own: bool) -> list[Message]:
    said = entry.event if isinstance(entry.event, str) else to_json(entry.event).decode()
    told = [Message("assistant" if is_own else "user", said)]
    if entry.error is not None:
        told.append(Message("user", entry.error))
    return told


def read_event(text: str) -> Event:
    """The event that a model has said. Raises `BadOutput`."""
    try:
        found = read_json(text)
    except ValueError as error:
        raise BadOutput(f"This is no JSON object: {error}", text) from None
    if not isinstance(found, dict):
        raise BadOutput("This is no JSON object", text)
    return found


def read_json(text: str) -> Any:
    """The value in what a model said, which may have put it in a fence, or words around it.

    Raises `ValueError`.
    """
    fenced = _FENCED.search(text)
    begin, end = text.find("{"), text.rfind("}")
    error: Exception = ValueError("nothing was said")
    for part in (text, fenced[1] if fenced else "", text[begin : end + 1] if begin >= 0 else ""):
        if part.strip():
            try:
                return msgspec.json.decode(part)
            except (msgspec.DecodeError, RecursionError) as wrong:
                error = wrong
    raise ValueError(str(error))

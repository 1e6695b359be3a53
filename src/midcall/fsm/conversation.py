"""What a model is told of a run, and what it says to it: the trail as a conversation, and one event back."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from midcall.client.toolbox import request_schema
from midcall.fsm.definition import Event, StateConfig, Transition
from midcall.fsm.run import BadOutput, Moment, TrailEntry
from midcall.items import to_json
from midcall.json_schema import inlined, joined
from midcall.models.base import Message, ModelRequest
from midcall.questions import json_in


def conversation(
    moment: Moment,
    ways: Sequence[Transition],
    tools: Mapping[str, Sequence[Mapping[str, Any]]],
    config: StateConfig,
) -> ModelRequest:
    """What a model is asked in a state: to choose among `ways`; without any, to say something.

    `tools` are those that may be called in states that the ways lead to, as MCP lists tools.
    """
    machine, state = moment.machine, moment.state
    system = [machine.description, *machine.prompts, state.description, *state.prompts]
    if ways:
        system.append(
            "Answer with one JSON object and nothing else: the event that you choose, one of these."
        )
        system += [_described(way, machine.event_schema(way)) for way in ways]
    for listed in tools.values():
        system.append("These tools can be called, with the JSON Schema of their arguments.")
        system += [f"- {one['name']}: {one['description']} {_json(one['inputSchema'])}" for one in listed]
    omitted = {way.id for way in machine.transitions if way.omit}
    seen = [entry for entry in moment.run.trail if (entry.begin, entry.end) not in omitted]
    calls = {way.id[1]: _calls(machine.fields(way), tools.get(way.id[1])) for way in ways}
    return ModelRequest(
        tuple(message for entry in seen for message in _told(entry, is_own=entry.begin == state.id)),
        system="\n\n".join(part for part in system if part),
        max_tokens=config.get("max_tokens"),
        temperature=config.get("temperature"),
        schema=machine.event_schema(*ways, fields=calls) if ways else None,
    )


def _calls(fields: dict[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The fields of an event, with what calls of these tools look like if there are any."""
    if not tools:
        return fields
    (fields, call), defined = joined([inlined(fields), request_schema(tools, with_id=True)])
    properties = fields.get("properties", {})
    declared = properties.get("tool_calls", {})  # what the machine says of them counts too, as how many
    calls = {"minItems": 1, **declared, "type": "array", "items": call}
    required = [*(name for name in fields.get("required", ()) if name != "tool_calls"), "tool_calls"]
    fields |= {"properties": {**properties, "tool_calls": calls}, "required": required}
    return {**fields, "$defs": defined} if defined else fields


def _described(way: Transition, schema: dict[str, Any]) -> str:
    words = [f'"id": {_json(list(way.id))}', way.label, way.description, *way.prompts, _json(schema)]
    return "- " + ". ".join(word.rstrip(".") for word in words if word)


def _told(entry: TrailEntry, *, is_own: bool) -> list[Message]:
    said = entry.event if isinstance(entry.event, str) else _json(entry.event)
    told = [Message("assistant" if is_own else "user", said)]
    return told if entry.error is None else [*told, Message("user", entry.error)]


def _json(value: Any) -> str:
    return to_json(value).decode()


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
    try:
        return msgspec.json.decode(json_in(text))
    except (msgspec.DecodeError, RecursionError) as error:
        begin, end = text.find("{"), text.rfind("}")
        if 0 <= begin < end and text[begin : end + 1] != text:
            return read_json(text[begin : end + 1])
        raise ValueError(str(error)) from None

"""Questions as MCP asks them, and answers as MCP gives them.

A question becomes the parameters of `elicitation/create`, `sampling/createMessage` or `roots/list`;
the client's result becomes an answer in the canonical form. The same pair serves a request that the
server sends and an input request that it returns. A client goes the other way.

*Model context*, which elicitation lacks, is data that a question brings along for whoever shows it. What a
form of MCP can ask for is in `forms`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from midcall.errors import RemoteError, UnknownQuestion, WrongAnswer
from midcall.journal.contract import CallRecord
from midcall.journal.state import Waiting, asked_of, for_caller
from midcall.json_schema import Schema
from midcall.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from midcall.mcp.forms import (
    CONTEXT_KEY,
    OLD_CONTEXT_KEY,
    FormRound,
    NotFlat,
    flat_form,
    form_rounds,
    from_form,
    from_rounds,
    whole_form,
)
from midcall.questions import (
    SCHEMA,
    Answer,
    AnyQuestion,
    Confirm,
    Confirmed,
    Custom,
    CustomAnswer,
    Form,
    Option,
    Prompt,
    Refusal,
    Roots,
    Sample,
    Select,
    Selected,
    Text,
    Url,
    check_address,
    read_answer,
)
from midcall.replay import question_id

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"

PART = "/"
"""What stands between the key of a question and the path of one of its rounds."""

QUESTION_KEY = "dev.midcall/key"
"""Under which the metadata of a request to a legacy client say the question's key."""

URL_REQUIRED = -32042
"""The error of a legacy server that wants pages to be visited before the same request is sent again."""


def inexpressible(question: AnyQuestion, *, nested: bool = False, tools: bool = True) -> str | None:
    """Why this question cannot be asked by MCP, or nothing if it can.

    `nested` is of a client that shows any form, `tools` of one whose model may be given tools.
    """
    if isinstance(question, Sample) and "tools" in question.options and not tools:
        return "The model of this client cannot be given tools"
    if isinstance(question, Custom | Form) and not nested:
        return unaskable(question.schema or {})
    return None


def unaskable(schema: Schema) -> str | None:
    """Why an MCP form cannot ask for a value of this schema, not even in rounds; or nothing if it can."""
    try:
        form_rounds(schema, "")
    except NotFlat as reason:
        return f"An MCP form cannot ask for {reason}: it has text, numbers, yes or no, and choices"
    return None


def rounds_for(question: AnyQuestion, note: str = "") -> dict[str, tuple[str, dict[str, Any]]]:
    """The requests that ask this of a client with flat forms only, by path: several for a nested form."""
    if isinstance(question, Custom | Form) and getattr(question, "exact", None) is None:
        with contextlib.suppress(NotFlat):  # of a call that was imported
            rounds = form_rounds(question.schema or {}, question.message)
            if [*rounds] != [""]:
                return dict(_nested_rounds(question, rounds, note))
    return {"": request_for(question, note)}


def _nested_rounds(
    question: Custom | Form, rounds: Mapping[str, FormRound], note: str
) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    for number, (path, one) in enumerate(rounds.items()):
        text = f"{question.message} ({one.about})" if one.about else question.message
        message, schema = with_context(text, one.schema, None if number else question.context)
        yield path, (ELICIT, {"mode": "form", "message": note + message, "requestedSchema": schema})


def together(question: AnyQuestion, results: Mapping[str, Any]) -> Any:
    """The results of all rounds of a question, by path, as one: to refuse one of them is to refuse all."""
    if [*results] == [""]:
        return results[""]
    for one in results.values():
        if not isinstance(one, dict) or one.get("action") != "accept":
            return one
    contents = {path: one.get("content", {}) for path, one in results.items()}
    schema = question.schema if isinstance(question, Custom | Form) else None
    return {"action": "accept", "content": from_rounds(schema or {}, contents)}


def names_for(question: AnyQuestion, key: str) -> dict[str, str]:
    """The keys under which the rounds of a question are answered, by path."""
    return {path: f"{key}{PART}{path}" if path else key for path in rounds_for(question)}


def response_for(question: AnyQuestion, key: str, responses: Mapping[str, Any]) -> Any:
    """What of the responses, by key, is for this question, or nothing. Raises `WrongAnswer`."""
    if not any(name.startswith(f"{key}{PART}") for name in responses):
        return responses.get(key)
    parts = {path: responses[name] for path, name in names_for(question, key).items() if name in responses}
    if not parts.keys() - {""}:
        return responses.get(key)
    decoded = {path: msgspec.json.decode(one) if isinstance(one, Raw) else one for path, one in parts.items()}
    return together(question, decoded)


def request_for(question: AnyQuestion, note: str = "") -> tuple[str, dict[str, Any]]:
    """The method and the parameters that ask this. `note` says why it is asked again.

    A form that is not flat goes out as it is: only to clients that can show it.
    """
    match question:
        case Sample():
            return SAMPLE, _sampling(question)
        case Roots():
            return ROOTS, {}
        case Url(message, url):
            return ELICIT, {"mode": "url", "message": note + message, "url": url}
        case Form(schema=schema, exact=str(message)):
            return ELICIT, {"mode": "form", "message": note + message, "requestedSchema": schema}
        case _:
            context = question.context if isinstance(question, Custom | Form) else None
            message, schema = with_context(question.message, _requested_schema(question), context)
            return ELICIT, {"mode": "form", "message": note + message, "requestedSchema": schema}


def answer_from(question: AnyQuestion, result: Any) -> Any:
    """The answer that a client's result stands for, in a form that the question reads.

    Raises `WrongAnswer` for what is no such result.
    """
    if not isinstance(result, dict):
        raise WrongAnswer("an object")
    action, content = result.get("action"), result.get("content", {})
    if action == "decline":
        return "Declined"
    if action == "cancel":
        return "Cancelled"
    if isinstance(question, Sample):
        return {"Custom": result}
    if isinstance(question, Roots):
        return {"Custom": result.get("roots")}
    if action != "accept":
        raise WrongAnswer("an action: accept, decline or cancel")
    if isinstance(question, Custom) or (isinstance(question, Form) and question.exact is None):
        return {"Custom": from_form(question.schema or {}, content)}
    if not isinstance(content, dict) and not isinstance(question, Url):
        raise WrongAnswer("the content of the form, as an object")
    match question:
        case Confirm():
            return {"Confirmed": content.get("confirmed")}
        case Prompt():
            return {"Text": content.get("text")}
        case Select(multi_select=True):
            return {"Selected": content.get("choices")}
        case Select():
            return {"Selected": [content.get("choice")]}
        case Url():
            return {"Confirmed": True}
        case _:
            return {"Custom": content}


_ACTIONS = ("accept", "decline", "cancel")


def read_any_answer(question: AnyQuestion, given: Any) -> Answer:
    """An answer in any accepted form, or the result of an elicitation. Raises `WrongAnswer`."""
    if isinstance(given, dict) and given.get("action") in _ACTIONS:
        given = answer_from(question, given)
    answer = read_answer(question, given)
    if isinstance(answer, CustomAnswer) and isinstance(question, Form | Custom) and question.schema:
        from midcall.json_schema import compiled  # noqa: PLC0415  slow to import: only when needed

        try:
            fault = compiled(question.schema).fault(answer.value)
        except ValueError as error:  # a call that was imported may ask for anything
            fault = str(error)
        if fault is not None:
            raise WrongAnswer(f"a value that fits the schema ({fault})")
    return answer


def _requested_schema(question: AnyQuestion) -> dict[str, Any]:
    match question:
        case Confirm(message, default):
            field: dict[str, Any] = {"type": "boolean", "title": message}
            return _object("confirmed", field, default)
        case Prompt(message, default, placeholder):
            field = {"type": "string", "title": message}
            if placeholder is not None:
                field["description"] = placeholder
            return _object("text", field, default)
        case Select(message, options, multi_select):
            titled = [{"const": option.value, "title": _title(option)} for option in options]
            if multi_select:
                return _object(
                    "choices", {"type": "array", "title": message, "items": {"anyOf": titled}}, None
                )
            return _object("choice", {"type": "string", "title": message, "oneOf": titled}, None)
        case Form() | Custom():
            schema = question.schema or {}
            try:
                return flat_form(schema, question.message)
            except NotFlat:
                return whole_form(schema, question.message)
    raise AssertionError("the other kinds are not elicited")


def _object(name: str, field: dict[str, Any], default: Any) -> dict[str, Any]:
    if default is not None:
        field["default"] = default
    return {"type": "object", "properties": {name: field}, "required": [name]}


def _title(option: Any) -> str:
    return option.label if option.description is None else f"{option.label}: {option.description}"


def _sampling(question: Sample) -> dict[str, Any]:
    params: dict[str, Any] = {
        **question.options,
        "messages": [
            {**message, "content": {"type": "text", "text": message["content"]}}
            if isinstance(message.get("content"), str)
            else message
            for message in question.messages
        ],
        "maxTokens": question.max_tokens or 1024,
    }
    if question.system is not None:
        params["systemPrompt"] = question.system
    if question.temperature is not None:
        params["temperature"] = question.temperature
    return params


# --- the other way: what a client is asked, and answers ---------------------------------------------


def read_question(method: Any, params: Any, *, exact: bool = False) -> AnyQuestion:
    """The question that a request asks, which can be asked. Raises `RemoteError`.

    `exact` keeps a form as it came, for somebody who is to pass it on.
    """
    if method not in (ELICIT, SAMPLE, ROOTS):
        raise RemoteError(f"Method not found: {method}", rpc_code=METHOD_NOT_FOUND)
    params = params or {}
    try:
        question = question_from(method, params)
        if exact:
            question = _as_it_is(method, params, question)
        check_question(question)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"The question cannot be read: {error or type(error).__name__}"
        raise RemoteError(text, rpc_code=INVALID_PARAMS) from None
    return question


def _as_it_is(method: str, params: dict[str, Any], question: AnyQuestion) -> AnyQuestion:
    """A question that asks just this: a form as the server has it, unless it says no more than the kind."""
    if method != ELICIT or isinstance(question, Url):
        return question
    schema = params.get("requestedSchema")
    if not isinstance(schema, dict):
        raise TypeError("requestedSchema is missing")
    if not isinstance(question, Form):
        _, again = request_for(question)
        if again["requestedSchema"] == schema and again["message"] == params.get("message"):
            return question
    context = question.context if isinstance(question, Form) else {}
    return Form(question.message, schema, context, exact=str(params.get("message", "")))


def question_from(method: str, params: dict[str, Any]) -> AnyQuestion:
    """The question that a request asks, as far as the request tells: a typed one is a form."""
    if method == SAMPLE:
        return Sample(
            tuple(params.get("messages", ())),
            params.get("systemPrompt"),
            params.get("maxTokens"),
            params.get("temperature"),
            {key: value for key, value in params.items() if key not in _SAMPLE} | _kept_meta(params),
        )
    if method == ROOTS:
        return Roots()
    message = params.get("message", "")
    if params.get("mode") == "url":
        return Url(message, params.get("url", ""))
    schema = params.get("requestedSchema", {})
    context, message = read_context(message, schema), without_context(message)
    if context:
        return Form(message, schema, context)
    fields: list[tuple[str, dict[str, Any]]] = list(schema.get("properties", {}).items())
    match fields:
        case [("confirmed", field)] if field.get("type") == "boolean":
            return Confirm(message, field.get("default"))
        case [("text", field)] if field.get("type") == "string" and field.keys() <= _PROMPT:
            return Prompt(message, field.get("default"), field.get("description"))
        case [("choice", {"oneOf": titled})]:
            return Select(message, _titled(titled))
        case [("choices", {"items": {"anyOf": titled}})]:
            return Select(message, _titled(titled), multi_select=True)
    return Form(message, schema)


_PROMPT = frozenset(("type", "title", "description", "default"))
_SAMPLE = frozenset(("messages", "systemPrompt", "maxTokens", "temperature", "_meta"))


def _kept_meta(params: dict[str, Any]) -> dict[str, Any]:
    """What of the metadata belongs to the question, and not to the request."""
    meta = params.get("_meta")
    return {"_meta": {SCHEMA: meta[SCHEMA]}} if isinstance(meta, dict) and SCHEMA in meta else {}


def _titled(titled: list[dict[str, str]]) -> tuple[Option, ...]:
    return tuple(Option(one["const"], one.get("title", one["const"])) for one in titled)


def result_for(question: AnyQuestion, answer: Answer) -> dict[str, Any]:
    """The result by which a client gives this answer."""
    match answer, question:
        case Refusal(how), _:
            return {"action": "decline" if how == "Declined" else "cancel"}
        case Confirmed(value), _:
            return _accepted({"confirmed": value})
        case Text(value), _:
            return _accepted({"text": value})
        case Selected(values), Select(multi_select=True):
            return _accepted({"choices": list(values)})
        case Selected(values), _:
            return _accepted({"choice": values[0]})
        case CustomAnswer({"text": str(text), **said}), Sample():
            content = {"type": "text", "text": text}
            result = {"role": "assistant", "content": content, "model": said.get("model") or "unknown"}
            return result | ({"stopReason": said["stop_reason"]} if said.get("stop_reason") else {})
        case CustomAnswer(dict(value)), Sample():
            return value
        case CustomAnswer(value), Roots():
            return {"roots": value}
        case CustomAnswer(), Url():
            return {"action": "accept"}
        case CustomAnswer(value), _:
            return _accepted(value)
    raise AssertionError("an answer is one of these")


def _accepted(content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def check_question(question: AnyQuestion) -> None:
    """Raise `ValueError` for what nobody is asked: a form whose answer could not be checked, and to open
    something else than a web page."""
    match question:
        case Form(_, schema):
            from midcall.json_schema import compiled  # noqa: PLC0415  slow to import: only when needed

            compiled(schema)
        case Url(_, url):
            check_address(url)


def asked_key(params: Any) -> str | None:
    """The key of a question that a legacy server asks, if it says that."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    key = meta.get(QUESTION_KEY) if isinstance(meta, dict) else None
    return key if isinstance(key, str) else None


def read_reply(question: AnyQuestion, payload: Any) -> Answer:
    """The answer in what somebody gave. Raises `WrongAnswer`, saying what was expected.

    What a person leaves out of a form is what the form proposes; null is as good as left out, unless it fits.
    """
    answer = read_answer(question, payload)
    if not isinstance(question, Form) or not isinstance(answer, CustomAnswer):
        return answer
    if not isinstance(answer.value, dict):
        raise WrongAnswer("the fields of the form, as an object")
    filled = {**_proposed(question), **answer.value}
    if _fault(question, filled) is not None:
        filled = {name: value for name, value in filled.items() if value is not None}
    reason = _fault(question, filled)
    if reason is not None:
        raise WrongAnswer(f"what fits the form ({reason})")
    return CustomAnswer(filled)


def _proposed(question: Form) -> dict[str, Any]:
    properties = question.schema.get("properties")
    return {
        name: field["default"]
        for name, field in (properties if isinstance(properties, dict) else {}).items()
        if isinstance(field, dict) and "default" in field
    }


def _fault(question: Form, value: dict[str, Any]) -> str | None:
    from midcall.json_schema import compiled  # noqa: PLC0415  as above

    try:
        return compiled(question.schema).fault(value)
    except ValueError as error:  # not of JSON, or too much
        return str(error)


# --- the questions of a durable call, and its answers ----------------------------------------------


WAITS_FOR = "dev.midcall/waitsFor"
"""Under which the metadata of a result say for whom else a call waits: `to`, `message` and perhaps `link`."""

NO_NOTES: Mapping[str, str] = MappingProxyType({})


def input_requests(
    asked: Mapping[str, Waiting], nested: Callable[[], bool], notes: Mapping[str, str] = NO_NOTES
) -> dict[str, Any]:
    """Open questions of a call, as a client is asked them; `notes` say what its answers should be.

    All rounds of a nested form are there at once, unless the client shows `nested` ones.
    """
    requests = {}
    for key, one in asked.items():
        expected = notes.get(key) or one.note
        note = f"(Not understood: expected {expected})\n" if expected else ""
        for path, (method, params) in _asked_as(one.question, note, nested).items():
            name = f"{key}{PART}{path}" if path else key
            requests[name] = {"method": method, "params": params}
    return requests


def _asked_as(
    question: AnyQuestion, note: str, nested: Callable[[], bool]
) -> dict[str, tuple[str, dict[str, Any]]]:
    is_form = isinstance(question, Custom | Form)
    return {"": request_for(question, note)} if not is_form or nested() else rounds_for(question, note)


class Given:
    """Answers of somebody who has come back, as far as they can be read."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        """By the ids of their questions: another one may have the same key soon."""
        self.notes: dict[str, str] = {}
        """What was expected in place of the others, by key."""

    def is_for(self, record: CallRecord) -> bool:
        """Whether they are for a question that a call asks."""
        asked = asked_of(record).questions.values()
        return any(question_id(record.id, one.place) in self.answers for one in asked)

    def read(
        self,
        key: str,
        request_id: str,
        question: AnyQuestion,
        responses: Mapping[str, Any],
        check: Callable[[Any], object],
    ) -> None:
        """Take what of the responses is for a question, if something is."""
        try:
            response = response_for(question, key, responses)
            if response is None:
                return
            given = msgspec.json.decode(response) if isinstance(response, Raw) else response
            payload = answer_from(question, given)
            check(payload)
        except WrongAnswer as error:
            self.notes[key] = error.expected
        except (msgspec.DecodeError, RecursionError, UnknownQuestion):
            pass
        else:
            self.answers[request_id] = payload


async def read_answers(
    durable: "DurableCalls",
    call_id: str,
    responses: Mapping[str, Any],
    places: Mapping[str, str] | None = None,
) -> Given:
    """What of the responses, by key, answers a question that is open, and what is wrong with the others.

    With `places`, only questions count that are asked there: another one may have the same key by now.
    """
    given = Given()
    if not responses:
        return given
    live = durable.live.get(call_id)
    keys = {name for key in responses for name in (key, key.partition(PART)[0])}
    if live is not None and live.call is not None and live.open.keys() & keys:
        for key, asked in live.open.items():
            if asked.to is None and (places is None or places.get(key) == asked.place):
                check = partial(live.call.check_answer, asked.request_id)
                given.read(key, asked.request_id, asked.request_type, responses, check)
        return given
    found = await durable.journal.load(call_id)
    if found is not None and found[0].questions:
        for key, one in for_caller(asked_of(found[0]).questions).items():
            if places is None or places.get(key) == one.place:
                fits = partial(read_any_answer, one.question)
                given.read(key, question_id(call_id, one.place), one.question, responses, fits)
    return given


# --- model context --------------------------------------------------------------------------------------
#
# It travels in both places where a client may find it: in the requested schema, under `x-model-context`; and
# below the message, after a marker, for clients that give their user interface only known schemas.

CONTEXT_MARKER = "\n\n--x-model-context: application/json\n"


def with_context(message: str, schema: dict[str, Any], context: Any) -> tuple[str, dict[str, Any]]:
    """Message and schema that carry the context; as they were if there is none."""
    if not context:
        return message, schema
    return f"{message}{CONTEXT_MARKER}{msgspec.json.encode(context).decode()}", {
        **schema,
        CONTEXT_KEY: context,
    }


def read_context(message: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The context of a question: from its schema, else from below its last marker, else nothing."""
    for key in (CONTEXT_KEY, OLD_CONTEXT_KEY):
        found = (schema or {}).get(key)
        if isinstance(found, dict):
            return found
    _, marker, text = message.rpartition(CONTEXT_MARKER.lstrip("\n"))
    if not marker:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def without_context(message: str) -> str:
    """What of a message is meant for a person."""
    text, marker, _ = message.rpartition(CONTEXT_MARKER)
    return text if marker else message

"""Questions as MCP asks them, and answers as MCP gives them.

A question becomes the parameters of `elicitation/create`, `sampling/createMessage` or `roots/list`;
the client's result becomes an answer in the canonical form. The same pair serves a request that the
server sends and an input request that it returns. For somebody who answers in the client's place, there
is also the way back: from the request to a question, and from an answer to the client's result.
"""

from typing import Any

from midcall.errors import WrongAnswer
from midcall.mcp.flat_forms import NotFlat, flat_form, from_form, whole_form
from midcall.mcp.model_context import read_context, with_context, without_context
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
    read_answer,
)

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"

QUESTION_KEY = "dev.midcall/key"
"""Under which the metadata of a request to a legacy client say the question's key."""

URL_REQUIRED = -32042
"""The error of a legacy server that wants pages to be visited before the same request is sent again."""


def inexpressible(question: AnyQuestion) -> str | None:
    """Why MCP has no form for this question, or nothing if it has one."""
    if isinstance(question, Custom | Form):
        try:
            flat_form(question.schema or {}, question.message)
        except NotFlat as reason:
            return f"An MCP form cannot ask for {reason}: it has text, numbers, yes or no, and choices"
    return None


def wants_tools(question: AnyQuestion) -> bool:
    """Whether it is for a model that is given tools, which a client must have declared."""
    return isinstance(question, Sample) and "tools" in question.options


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
            return Select(message, _options(titled))
        case [("choices", {"items": {"anyOf": titled}})]:
            return Select(message, _options(titled), multi_select=True)
    return Form(message, schema)


_PROMPT = frozenset(("type", "title", "description", "default"))
_SAMPLE = frozenset(("messages", "systemPrompt", "maxTokens", "temperature", "_meta"))


def _kept_meta(params: dict[str, Any]) -> dict[str, Any]:
    """What of the metadata belongs to the question, and not to the request."""
    meta = params.get("_meta")
    return {"_meta": {SCHEMA: meta[SCHEMA]}} if isinstance(meta, dict) and SCHEMA in meta else {}


def _options(titled: list[dict[str, str]]) -> tuple[Option, ...]:
    return tuple(Option(one["const"], one.get("title", one["const"])) for one in titled)


def result_for(question: AnyQuestion, answer: Answer, *, model: str = "administrator") -> dict[str, Any]:
    """The result by which a client would give this answer.

    `model` is who spoke, if the answer does not say.
    """
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
            result = {"role": "assistant", "content": content, "model": said.get("model") or model}
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

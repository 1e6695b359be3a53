"""Answering: who answers for a client when a server asks, in either era.

A person (`answer`), a model (`sample`) and the folders that the client works in (`roots`). A legacy server
sends its questions as requests, a modern one returns them as input requests: both are the same pairs of
method and parameters, and are answered here. The handlers meet the `Request`s of midcall, as those of a hub
do.
"""

import inspect
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from midcall import jsonrpc
from midcall.errors import Cancelled, Declined, NotSupported, RemoteError, WrongAnswer
from midcall.invocation import Answerer
from midcall.items import Metadata, Request, to_builtins
from midcall.mcp.elicitation import ELICIT, QUESTION_KEY, ROOTS, SAMPLE, read_context, without_context
from midcall.mcp.request import TASKS
from midcall.questions import (
    CANCELLED,
    DECLINED,
    SCHEMA,
    Answer,
    AnyQuestion,
    Confirm,
    Confirmed,
    CustomAnswer,
    Form,
    Option,
    Prompt,
    Refusal,
    Root,
    Roots,
    Sample,
    Select,
    Selected,
    Text,
    Url,
    check_address,
    read_answer,
)

Sampler: TypeAlias = Callable[[Sample], Any]
"""Asks a model, plain or async: gets the `Sample`, gives a text, a `Sampled`, or MCP's own result."""

Folders: TypeAlias = Sequence[str | os.PathLike[str] | Root] | Callable[[], Any]
"""The folders that a client works in:

paths or `file://` URIs, or a function, plain or async, that gives them.
"""

Asker: TypeAlias = Callable[[Request], Awaitable[Any]]
"""Shows a question to whoever reads the items of its call, and gives what is answered there."""

_HERE = Metadata((), "", 0)


class Answering:
    """The handlers of one client."""

    def __init__(
        self,
        answer: Answerer | None = None,
        sample: Sampler | None = None,
        roots: Folders | None = None,
        *,
        by_hand: bool = False,
    ) -> None:
        self.answer = answer
        self._sample = sample
        self._roots = roots
        self.by_hand = by_hand
        """Whether questions may come as items, to be answered by hand."""

    def capabilities(self, *, modern: bool) -> dict[str, Any]:
        """What is declared to a server."""
        declared: dict[str, Any] = {}
        if self.answer is not None or self.by_hand:
            declared["elicitation"] = {"form": {}, "url": {}}
        if self._sample is not None:
            declared["sampling"] = {"tools": {}, "context": {}}
        if self._roots is not None:
            declared["roots"] = {} if modern else {"listChanged": True}
        if modern:
            declared["extensions"] = {TASKS: {}}
        return declared

    async def asked(
        self, method: str, params: Any, asker: Asker | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """The result for a request of the server.

        `asker` is of the call that the question belongs to; without one, or for what a call is not asked,
        the client's own handlers answer. `key` is the name by which the server asks. Raises `RemoteError`
        for what nobody here can answer.
        """
        if method not in (ELICIT, SAMPLE, ROOTS):
            raise RemoteError(f"Method not found: {method}", rpc_code=jsonrpc.METHOD_NOT_FOUND)
        question = _question(method, params)
        try:
            payload = await self._payload(question, asker, key or asked_key(params))
        except Declined:
            return {"action": "decline"} if method == ELICIT else _refused(method)
        except Cancelled:
            return {"action": "cancel"} if method == ELICIT else _refused(method)
        except NotSupported as error:
            raise RemoteError(str(error), rpc_code=jsonrpc.INVALID_PARAMS) from None
        try:
            given = read_reply(question, payload)
        except WrongAnswer as error:
            raise RemoteError(f"Nobody gave an answer: {error}", rpc_code=jsonrpc.INTERNAL_ERROR) from None
        if given in (DECLINED, CANCELLED) and method != ELICIT:
            return _refused(method)
        return result_for(question, given)

    async def _payload(self, question: AnyQuestion, asker: Asker | None, key: str | None) -> Any:
        match question:
            case Sample() if self._sample is not None:
                return await _settled(self._sample(question))
            case Roots() if self._roots is not None:
                found = await _settled(self._roots() if callable(self._roots) else self._roots)
                return CustomAnswer([to_builtins(_root(one)) for one in found])
            case Sample() | Roots() if asker is None:
                raise NotSupported(f"This client has no {question.kind} to give")
        request = Request(_HERE, str(uuid.uuid4()), question, key=key)
        if asker is not None:
            return await asker(request)
        if self.answer is None:
            raise NotSupported
        return await _settled(self.answer(request))


def _question(method: str, params: Any) -> AnyQuestion:
    try:
        question = question_from(method, params or {})
        check_question(question)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"The question cannot be read: {error}"
        raise RemoteError(text, rpc_code=jsonrpc.INVALID_PARAMS) from None
    return question


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


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _refused(method: str) -> dict[str, Any]:
    raise RemoteError(f"The user refused {method}", rpc_code=-1)


def _root(folder: Any) -> Root:
    if isinstance(folder, Root):
        return folder
    if isinstance(folder, str) and "://" in folder:
        return Root(folder)
    path = Path(folder).resolve()
    return Root(path.as_uri(), path.name or None)


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

"""What a mounted server asks, put to whoever has made the call, and the answers as the server takes them.

A form that is another server's goes out untouched. Decline and cancel stay what they are: what they mean is
for the server to say.
"""

import asyncio
from collections.abc import Container, Mapping
from typing import Any

from msgspec import Struct

from midcall import jsonrpc, steps
from midcall.ask import Asking
from midcall.call import Call
from midcall.client.answering import asked_key, check_question, question_from, read_reply, result_for
from midcall.client.mount_clients import PassingOn
from midcall.client.mount_talk import Talk
from midcall.errors import (
    AskError,
    Cancelled,
    Declined,
    NotSupported,
    RemoteError,
    TimedOut,
    ToolError,
    TransportLost,
)
from midcall.limits import MAX_KEY
from midcall.mcp.elicitation import ELICIT, ROOTS, SAMPLE, request_for
from midcall.questions import AnyQuestion, Form, Refusal, Url
from midcall.replay import Trace

REJECTED = -1
"""What a server is told whose model or folders somebody has refused, as the specification has it."""

_METHODS = frozenset((ELICIT, SAMPLE, ROOTS))

_AGAIN = 0.05
"""Seconds until a question is withdrawn that is about to be asked."""


class Answers(Struct):
    """What came of a round."""

    results: dict[str, Any]
    refused: dict[str, RemoteError] = {}
    """What could not be answered, for a server that waits."""

    @property
    def all_accepted(self) -> bool:
        return all(one.get("action") == "accept" for one in self.results.values())

    def give(self, talk: Talk) -> None:
        """Answer a server that waits."""
        for key, result in self.results.items():
            talk.answer(key, result)
        for key, error in self.refused.items():
            talk.refuse(key, error)


class Round:
    """Several questions that are asked at once."""

    def __init__(self, call: Call, answering: PassingOn, asked: Mapping[str, Any], trace: Trace) -> None:
        self._call = call
        self._answering = answering
        self._asked = asked
        self._trace = trace
        self._open: dict[str, Passing] = {}

    async def ask(self, *, live: bool, server: str) -> Answers:
        """Ask them all. What cannot be answered is told to a server that waits, else it ends the call."""
        if len(self._asked) == 1:
            given = {key: await self._ask(key, one, live=live) for key, one in self._asked.items()}
        else:
            async with asyncio.TaskGroup() as group:
                asking = {
                    key: group.create_task(self._ask(key, one, live=live)) for key, one in self._asked.items()
                }
            given = {key: task.result() for key, task in asking.items()}
        results = {key: one for key, one in given.items() if not isinstance(one, RemoteError)}
        refused = {key: one for key, one in given.items() if isinstance(one, RemoteError)}
        if refused and not live:
            why = next(iter(refused.values()))
            raise ToolError(f"{server} asked something that has no answer: {why}", code="not_supported")
        return Answers(results, refused)

    async def _ask(self, key: str, asked: Any, *, live: bool) -> dict[str, Any] | RemoteError:
        try:
            method, question = _read(key, asked)
            key_there = asked_key(asked.get("params")) or (None if live else key)
            if self._answering.answers(method):
                return await self._answer_here(method, asked.get("params") or {})
            passing = Passing(self._call, question, method, key_there)
            self._open[key] = passing
            (result,) = await self._call.ask((passing,))
        except RemoteError as error:
            return error
        except NotSupported as error:
            code = jsonrpc.INVALID_PARAMS if method == ELICIT else jsonrpc.METHOD_NOT_FOUND
            return RemoteError(str(error), rpc_code=code)
        except Declined:
            return RemoteError(f"The user refused {method}", rpc_code=REJECTED)
        except (Cancelled, TimedOut, TransportLost) as error:
            if method == ELICIT:
                return {"action": "cancel"}
            return RemoteError(str(error), rpc_code=REJECTED)
        except AskError as error:
            return RemoteError(str(error), rpc_code=jsonrpc.INTERNAL_ERROR)
        else:
            return result  # type: ignore[no-any-return]
        finally:
            self._open.pop(key, None)

    async def _answer_here(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A model or folders of the mount's own."""

        async def answer() -> Any:
            return await self._answering.asked(method, params)

        answer.__qualname__ = method
        found: dict[str, Any] = await steps.run(self._trace, answer, (), {}, retry_safe=True)
        return found

    def withdraw_all_but(self, wanted: Container[str]) -> None:
        """The server does not wait for the others any more."""
        for key, passing in list(self._open.items()):
            if key in wanted:
                continue
            if not self._call.cancel_question(passing.request_id, "The server withdrew the question"):
                asyncio.get_running_loop().call_later(_AGAIN, self.withdraw_all_but, wanted)
                return


class Passing(Asking[dict[str, Any]]):
    """A question that is passed on; its value is the result that the server gets."""

    __slots__ = ("_method",)

    def __init__(self, call: Call, question: AnyQuestion, method: str, key: str | None) -> None:
        super().__init__(call, question, dict, call.time_limit, "normal", key)
        self._method = method

    def read(self, payload: Any) -> dict[str, Any]:
        answer = read_reply(self.question, payload)
        if isinstance(answer, Refusal) and self._method != ELICIT:
            raise (Declined if answer.how == "Declined" else Cancelled)(f"{self._method} was refused")
        return result_for(self.question, answer)


def _read(key: str, asked: Any) -> tuple[str, AnyQuestion]:
    """The method of a request, and the question that it asks. Raises `RemoteError`."""
    if len(key) > MAX_KEY:
        text = f"The key of a question has {MAX_KEY} characters at most"
        raise RemoteError(text, rpc_code=jsonrpc.INVALID_PARAMS)
    method = asked.get("method") if isinstance(asked, dict) else None
    if method not in _METHODS:
        raise RemoteError(f"Method not found: {method}", rpc_code=jsonrpc.METHOD_NOT_FOUND)
    params = asked.get("params") or {}
    try:
        question = _as_it_is(method, params, question_from(method, params))
        check_question(question)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"Invalid params: {error or type(error).__name__}"
        raise RemoteError(text, rpc_code=jsonrpc.INVALID_PARAMS) from None
    return method, question


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

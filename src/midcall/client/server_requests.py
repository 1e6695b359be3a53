"""The requests of a server, answered by its client, in either era. No more at once than a sane server sends.

A person (`answer`), a model (`sample`) and the folders that the client works in (`roots`) answer. A legacy
server sends its questions as requests, a modern one returns them as input requests: both are the same pairs
of method and parameters, and are answered by `Answering`. The handlers meet the `Request`s of midcall, as
those of a hub do. `ServerRequests` are those that are under way.
"""

import asyncio
import inspect
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from midcall import jsonrpc
from midcall.errors import Cancelled, Declined, MidcallError, NotSupported, RemoteError, WrongAnswer
from midcall.invocation import Answerer
from midcall.items import Metadata, Request, to_builtins, to_json
from midcall.jsonrpc import Envelope, Id
from midcall.mcp.elicitation import (
    ELICIT,
    asked_key,
    read_question,
    read_reply,
    result_for,
)
from midcall.mcp.request import TASKS
from midcall.questions import (
    CANCELLED,
    DECLINED,
    AnyQuestion,
    CustomAnswer,
    Root,
    Roots,
    Sample,
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
        question = read_question(method, params)
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


log = logging.getLogger("midcall.client")

MAX_SERVING = 100
"""How many requests of a server are answered at once; what comes on top is refused."""

Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a request: its method and parameters."""


class ServerRequests:
    """What a server wants of its client at the moment."""

    def __init__(self, respond: Callable[[bytes], None]) -> None:
        self._respond = respond
        self._tasks: dict[Id, asyncio.Task[None]] = {}
        self._withdrawn: set[Id] = set()

    def start(self, message: Envelope, answer: Answer) -> None:
        """Answer a request, in a task of its own."""
        id: Any = message.id
        if message.method == "ping":
            self._respond(jsonrpc.response(id, b"{}"))
        elif id in self._tasks:
            self._refuse(id, jsonrpc.INVALID_REQUEST, "There is a request with this id already")
        elif len(self._tasks) >= MAX_SERVING:
            self._refuse(id, jsonrpc.INTERNAL_ERROR, "Too many requests at once")
        else:
            task = asyncio.get_running_loop().create_task(self._answer(message, answer))
            self._tasks[id] = task
            task.add_done_callback(lambda _: self._forget(id))

    def withdraw(self, id: Any) -> None:
        """The server does not want this answered any more."""
        task = self._tasks.get(id) if isinstance(id, str | int | float) else None
        if task is not None:
            self._withdrawn.add(id)
            task.cancel()

    async def close(self) -> None:
        """Stop answering."""
        tasks = [task for task in self._tasks.values() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, id: Id) -> None:
        self._tasks.pop(id, None)
        self._withdrawn.discard(id)

    def _refuse(self, id: Id, code: int, why: str) -> None:
        self._respond(jsonrpc.error_response(id, code, why))

    async def _answer(self, message: Envelope, answer: Answer) -> None:
        id: Any = message.id
        try:
            params = _read(message)
            self._respond(jsonrpc.response(id, to_json(await answer(str(message.method), params))))
        except RemoteError as error:
            self._respond(jsonrpc.error_response(id, error.rpc_code, str(error), error.rpc_data))
        except MidcallError as error:
            self._respond(jsonrpc.error_for(id, error))
        except asyncio.CancelledError:
            if id not in self._withdrawn:
                self._refuse(id, jsonrpc.INTERNAL_ERROR, "The call that this belongs to is over")
            raise
        except Exception as error:
            log.exception("%s of the server could not be answered", message.method)
            self._refuse(id, jsonrpc.INTERNAL_ERROR, str(error) or "Internal error")


def _read(message: Envelope) -> dict[str, Any]:
    try:
        params = msgspec.json.decode(message.params) if bytes(message.params) else {}
    except (ValueError, RecursionError):
        params = None
    if not isinstance(params, dict):
        raise RemoteError("The parameters are not an object", rpc_code=jsonrpc.INVALID_PARAMS)
    return params

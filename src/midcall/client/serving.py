"""Serving: the requests of a server, answered by its client. No more at once than a sane server sends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from midcall import jsonrpc
from midcall.errors import MidcallError, RemoteError
from midcall.items import to_json
from midcall.jsonrpc import Envelope, Id

log = logging.getLogger("midcall.client")

MAX_SERVING = 100
"""How many requests of a server are answered at once; what comes on top is refused."""

Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a request: its method and parameters."""


class Serving:
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
        raise RemoteError("The parameters are no object", rpc_code=jsonrpc.INVALID_PARAMS)
    return params

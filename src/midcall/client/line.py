"""The way from an invocation to a call of an MCP server:

progress, log and questions as items, then the result.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from midcall.client.answering import read_reply
from midcall.client.calling import Calling, Handle, Outcome, Owner
from midcall.client.results import tool_result
from midcall.client.wire import About
from midcall.errors import MidcallError, UnknownQuestion
from midcall.invocation import Line
from midcall.items import Data, Done, Error, Log, Metadata, Progress, Request, RequestCancelled, to_json
from midcall.outlet import Outlet
from midcall.questions import AnyQuestion

MAX_BEHIND = 10_000
"""How much progress and log is kept for a reader that is behind; what comes on top is left out."""


class ToolLine(Line):
    """A line to one call of a tool. With `asks`, its questions come as items; `silence` and `handle` are as
    in `Calling`, and `meta` goes into `_meta`."""

    def __init__(
        self,
        owner: Owner,
        about: About,
        params: bytes,
        *,
        asks: bool,
        silence: float | None,
        meta: Mapping[str, Any] | None,
        handle: Handle | None,
    ) -> None:
        self._name = about.name
        self._owner = owner
        self._calling = Calling(
            owner,
            about,
            params,
            self._done,
            asker=self._ask if asks else None,
            report=self._report,
            silence=silence,
            meta=to_json(dict(meta))[1:-1] if meta else b"",
            handle=handle,
        )
        self._open: dict[str, tuple[AnyQuestion, asyncio.Future[Any]]] = {}
        self._outlet: Outlet | None = None
        self._failure: MidcallError | None = None
        self._behind = 0

    async def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        try:
            self._calling.start(await self._owner.session())
        except MidcallError as error:
            self._done(error)

    async def streaming(self) -> bool:
        return False

    async def answer(self, request_id: str, payload: Any) -> None:
        question, waiting = self._open.get(request_id, (None, None))
        if question is None or waiting is None or waiting.done():
            raise UnknownQuestion(request_id)
        waiting.set_result(read_reply(question, payload))

    async def close(self, reason: str) -> None:
        if self._calling.running:
            self._calling.kept = False
            self._calling.cancel(reason)
            self._put_end(Error(self._here(), reason, "aborted"))

    async def leave(self) -> None:
        self._outlet = None
        self._calling.cancel("The caller is gone")

    @property
    def call_id(self) -> str:
        return ""

    @property
    def handle(self) -> Handle | None:
        self._calling.kept = True
        return self._calling.handle

    @property
    def failure(self) -> MidcallError | None:
        return self._failure

    # --- what the server says ----------------------------------------------------------------

    def _done(self, outcome: Outcome) -> None:
        try:
            if isinstance(outcome, MidcallError):
                raise outcome
            self._put(Data(self._here(), self._name, tool_result(outcome)))
        except MidcallError as error:
            self._failure = error
            self._put_end(Error(self._here(), str(error), error.code, error.recoverable))
        else:
            self._put_end()

    def _report(self, method: str, params: dict[str, Any]) -> None:
        if self._outlet is None or not self._outlet.full:
            self._behind = 0
        else:
            self._behind += 1
            if self._behind > MAX_BEHIND:
                return
        if method == "notifications/message":
            data = params.get("data")
            text = data if isinstance(data, str) else ""
            level = str(params.get("level", "info"))
            self._put(Log(self._here(), level, text, None if isinstance(data, str) else data))
            return
        percentage, message = read_progress(params)
        self._put(Progress(self._here(), message, percentage))

    async def _ask(self, request: Request) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = (request.request_type, waiting)
        self._put(request)
        try:
            return await waiting
        except asyncio.CancelledError:
            self._withdraw(request.request_id, "The server withdrew the question")
            raise
        finally:
            self._open.pop(request.request_id, None)

    def _withdraw(self, request_id: str, why: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._put(RequestCancelled(self._here(), request_id, why))

    def _put(self, item: Any) -> None:
        if self._outlet is not None:
            self._outlet.put(item)

    def _put_end(self, error: Error | None = None) -> None:
        for request_id in list(self._open):
            self._withdraw(request_id, "The call has ended")
        if error is not None:
            self._put(error)
        self._put(Done(self._here()))

    def _here(self) -> Metadata:
        return Metadata((self._name,), "", int(time.time()))


def read_progress(params: dict[str, Any]) -> tuple[float | None, str]:
    """Percentage, if it can be told, and text of a progress notification."""
    progress, total = params.get("progress"), params.get("total")
    percentage = None
    if isinstance(progress, int | float) and isinstance(total, int | float) and total > 0:
        percentage = min(100.0, max(0.0, 100.0 * progress / total))
    message = params.get("message")
    return percentage, message if isinstance(message, str) else ""

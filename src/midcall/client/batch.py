"""Batches: several tools called at once or one after the other, with one deadline for all."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midcall.client.results import batch_result
from midcall.client.session import ClientSession
from midcall.client.tool_call import ClientCall, Outcome, tool_params

Make = Callable[[str, Any, bytes, Callable[[Outcome], None]], ClientCall]
"""Makes a call of a tool: its name, its arguments, both as parameters, and who gets the outcome."""

OnResult = Callable[[dict[str, Any]], None]


class ToolBatch:
    """The calls of one batch. Raises `ValueError` for what is none: then nothing is sent."""

    def __init__(
        self,
        calls: Sequence[Mapping[str, Any]],
        make: Make,
        *,
        limit: int,
        on_result: OnResult | None = None,
    ) -> None:
        if limit < 1:
            raise ValueError(f"The limit is how many calls run at once: {limit} is none")
        self._calls = [_checked(call) for call in calls]
        ids = set()
        for id, *_ in self._calls:
            if id in ids:
                raise ValueError(f"Two calls have the id {id}")
            ids.add(id)
        self._make = make
        self._limit = limit
        self._on_result = on_result
        self._results: list[dict[str, Any] | None] = [None] * len(calls)
        self._running: dict[int, ClientCall] = {}
        self._next = 0
        self._missing = len(calls)
        self._session: ClientSession | None = None
        self._fault: Exception | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, session: ClientSession, timeout: float | None, *, array: bool = False) -> None:
        """Run them all; what is not there in time is given up. Raises what `on_result` raises."""
        if not self._calls:
            return
        self._session = session
        if array:
            self._start_array(session)
        else:
            self._fill()
        try:
            await asyncio.wait((self._ended,), timeout=timeout)
        finally:
            self._give_up("Nobody waits for it any more")
        if self._fault is not None:
            raise self._fault

    def results(self, error: str) -> list[dict[str, Any]]:
        """What came of each, in the order of the calls; `error` is for those that did not end."""
        return [
            {"call_id": id, "success": False, "error": error} if found is None else found
            for (id, *_), found in zip(self._calls, self._results, strict=True)
        ]

    def _fill(self) -> None:
        while (
            self._session is not None and self._next < len(self._calls) and len(self._running) < self._limit
        ):
            number = self._next
            self._next += 1
            call = self._running[number] = self._make_one(number)
            call.start(self._session)

    def _start_array(self, session: ClientSession) -> None:
        self._next = len(self._calls)
        self._running = {number: self._make_one(number) for number in range(self._next)}
        calls = list(self._running.values())
        exchanges = [call.started() for call in calls]
        requests = [(exchange, call.params) for exchange, call in zip(exchanges, calls, strict=True)]
        for exchange, id in zip(exchanges, session.start_batch(requests, calls[0].about), strict=False):
            exchange.sent(session, id)

    def _make_one(self, number: int) -> ClientCall:
        _, name, arguments, params = self._calls[number]
        return self._make(name, arguments, params, lambda outcome: self._take(number, outcome))

    def _take(self, number: int, outcome: Outcome) -> None:
        result = batch_result(self._calls[number][0], outcome)
        self._results[number] = result
        self._running.pop(number, None)
        self._missing -= 1
        if self._on_result is not None and self._fault is None:
            try:
                self._on_result(result)
            except Exception as fault:  # noqa: BLE001  it is the caller's, and is raised there
                self._fault = fault
        if self._missing == 0 or self._fault is not None:
            if not self._ended.done():
                self._ended.set_result(None)
        elif self._next < len(self._calls):
            self._fill()

    def _give_up(self, reason: str) -> None:
        self._next = len(self._calls)
        running, self._running = self._running, {}
        for call in running.values():
            call.cancel(reason)


def _checked(call: Any) -> tuple[str, str, Any, bytes]:
    """Id, name, arguments, and the latter two as parameters."""
    if not isinstance(call, Mapping):
        raise ValueError(f"A call is an object: {call!r}")  # noqa: TRY004  a value among others
    id, name, arguments = call.get("id"), call.get("name"), call.get("arguments")
    if not isinstance(id, str) or not id or not isinstance(name, str) or not name:
        raise ValueError(f"A call has an id and the name of a tool, both text: {dict(call)!r}")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ValueError(f"The arguments of call {id} are no object: {arguments!r}")
    try:
        return id, name, arguments, tool_params(name, arguments)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"The arguments of call {id} cannot be sent as JSON: {error}") from None

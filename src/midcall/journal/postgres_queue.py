"""What is asked for while something like it is under way goes together, in one statement.

So the busier it gets, the more is done with one round trip and one wait for the disk. Knows no database.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from midcall.errors import JournalError
from midcall.journal.postgres_reach import Unreachable

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")

log = logging.getLogger("midcall.journal")

MOST = 128
"""How many go together."""

MOST_BYTES = 4 * 1024 * 1024


class _Item(Generic[Ask, Answer]):
    __slots__ = ("answer", "ask", "key", "sent", "size")

    def __init__(self, key: str, ask: Ask, size: int, answer: "asyncio.Future[Answer]") -> None:
        self.key = key
        self.ask = ask
        self.size = size
        self.answer = answer
        self.sent = False


class Queue(Generic[Ask, Answer]):
    """One kind of thing to ask for. `send` gives an answer or an error for each, or raises for all."""

    def __init__(self, send: "Callable[[Sequence[Ask]], Awaitable[Sequence[Answer | JournalError]]]") -> None:
        self._send = send
        self._items: deque[_Item[Ask, Answer]] = deque()
        self._filled = asyncio.Event()
        self._ended = False

    async def ask(
        self,
        key: str,
        ask: Ask,
        size: int = 0,
        undo: Callable[[Answer], Awaitable[None]] | None = None,
    ) -> Answer:
        """Have it done; of those with the same key, one at a time, in their order.

        With `undo`, what is cancelled when it was sent already is waited for, and undone.
        """
        if self._ended:
            raise _closed()
        item: _Item[Ask, Answer] = _Item(key, ask, size, asyncio.get_running_loop().create_future())
        self._items.append(item)
        self._filled.set()
        if undo is None:
            return await item.answer
        try:
            return await asyncio.shield(item.answer)
        except asyncio.CancelledError:
            if not item.sent:
                item.answer.cancel()
                raise
            await _patiently(_undo(item.answer, undo))
            raise

    async def run(self) -> None:
        """Send what is asked for, until this is cancelled."""
        try:
            while True:
                await self._filled.wait()
                batch = self._take()
                if batch:
                    await self._work(batch)
        finally:
            self._ended = True
            for item in self._items:
                _tell(item, _closed())
            self._items.clear()

    def _take(self) -> list[_Item[Ask, Answer]]:
        batch: dict[str, _Item[Ask, Answer]] = {}
        later: list[_Item[Ask, Answer]] = []
        size = 0
        while self._items and len(batch) < MOST and size < MOST_BYTES:
            item = self._items.popleft()
            if item.answer.done():
                continue
            if item.key in batch:
                later.append(item)
            else:
                batch[item.key] = item
                size += item.size
        self._items.extendleft(reversed(later))
        if not self._items:
            self._filled.clear()
        return [batch[key] for key in sorted(batch)]

    async def _work(self, batch: list[_Item[Ask, Answer]]) -> None:
        for item in batch:
            item.sent = True
        try:
            answers = await self._send([item.ask for item in batch])
        except Unreachable as error:
            for item in batch:
                _tell(item, Unreachable(str(error), maybe=error.maybe))
        except JournalError as error:
            if len(batch) == 1:
                _tell(batch[0], error)
            else:  # one of them cannot be done, and keeps the others from it
                await asyncio.gather(*(self._work([item]) for item in batch))
        except asyncio.CancelledError:
            for item in batch:
                _tell(item, _closed())
            raise
        except Exception:
            log.exception("what was asked of PostgreSQL failed inside midcall")
            for item in batch:
                _tell(item, JournalError("Internal error"))
        else:
            for item, answer in zip(batch, answers, strict=True):
                _tell(item, answer)


def _closed() -> JournalError:
    return JournalError("The connection to PostgreSQL is closed")


def _tell(item: _Item[Ask, Answer], answer: Answer | JournalError) -> None:
    if item.answer.done():
        return
    if isinstance(answer, JournalError):
        item.answer.set_exception(answer)
        item.answer.exception()  # who asked may be gone
    else:
        item.answer.set_result(answer)


async def _undo(answer: "asyncio.Future[Answer]", undo: Callable[[Answer], Awaitable[None]]) -> None:
    with contextlib.suppress(JournalError):
        await undo(await answer)


async def _patiently(work: Awaitable[None]) -> None:
    """Wait for it, however often this is cancelled: who asks is about to be cancelled anyway."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)

"""Runs: one turn's events as numbered lines, read by whoever asks for them, again if need be.

A run does not depend on the request that began it: a reader that lost its line comes back with the number of
the last line that it has, to this process or to another one, and gets those after it, each once.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from midcall.chat.conversation import ConversationState, Event, Failure, load
from midcall.errors import Conflict, JournalError
from midcall.journal.contract import Conversations, RunRecord
from midcall.logs import Trouble
from midcall.models.base import Message

log = logging.getLogger("midcall.chat")

T = TypeVar("T")

WRITE_EVERY = 0.2
"""Seconds between two times that new lines are written down."""

ALIVE_EVERY = 1.0
"""Seconds between two signs of life of a run that says nothing, and at most between two tries to write."""

DEAD_AFTER = 5.0
"""Seconds without a sign of life after which a run is taken to have died with its worker."""

POLL = 0.25
"""Seconds between two looks at a run of another process."""

PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds after which a conversation is read again that could not be read; then its messages are left out."""


LOST = Failure("The server was restarted while it answered", "run_lost", recoverable=True)
"""How a run ends whose worker is dead."""


class RunLine(msgspec.Struct, frozen=True):
    """One line of a run."""

    lsn: int
    event: Event


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RunLine).decode

STATE = b'"type":"conversation_state"'
"""What a line has that tells how the conversation stands; others may have it in their data."""


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end, also if whoever waits for it is cancelled: then it is known to be done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is not None:
            log.warning("nobody waited for what failed: %s", task.exception())
        raise


class Run:
    """A turn under way, and its lines."""

    def __init__(
        self,
        id: str,
        conversation_id: str,
        principal: str | None,
        store: Conversations,
        trouble: Trouble,
        closing: Callable[[], bool] = lambda: False,
    ) -> None:
        """`trouble` is told if lines cannot be written; `closing`, whether the process is about to end."""
        self.id = id
        self.conversation_id = conversation_id
        self.principal = principal
        self._store = store
        self._trouble = trouble
        self._closing = closing
        self._lines: list[bytes] = []
        self._written = 0
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._begun = False
        self._stopped = False
        self._uncut = False
        self.task: asyncio.Task[None] | None = None

    @property
    def lsn(self) -> int:
        """The number of the last line."""
        return len(self._lines)

    @property
    def ended(self) -> bool:
        """Whether there will be no more lines."""
        return self._over.is_set()

    def emit(self, event: Event) -> None:
        """Tell an event to whoever reads. After the end there is nothing to tell: a tool may run on."""
        if self.ended:
            return
        self._lines.append(_encode(RunLine(len(self._lines) + 1, event)))
        self._wake()

    async def lines(self, after: int = 0) -> AsyncIterator[bytes]:
        """The lines after a number, as they come; ends with the run."""
        async for new in self.batches(after):
            for line in new:
                yield line

    async def batches(self, after: int = 0) -> AsyncIterator[Sequence[bytes]]:
        """As `lines`, all that there are at a time. A reader may say that it has more than there are."""
        after = max(after, 0)
        while not self.ended or after < len(self._lines):
            if after >= len(self._lines):
                await self._changed.wait()
                continue
            new = self._lines[after:]
            after += len(new)
            yield await _filled(new, self._store, self.principal, self._closing)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def begin(self, turn: Coroutine[Any, Any, None]) -> None:
        """Run the turn in a task of its own; its lines are written down as they come."""
        self.task = asyncio.get_running_loop().create_task(self._run(turn))

    def stop(self) -> None:
        """Cut the turn off. Once is enough: it has to tidy up, and is not to be cut off in that."""
        if self._stopped or self.ended:
            return
        self._stopped = True
        if self._begun and not self._uncut and self.task is not None:
            self.task.cancel()

    @contextlib.contextmanager
    def uncut(self) -> Iterator[None]:
        """What the turn does in here is done to its end before it is cut off: it is known to be done."""
        self._uncut, stopped = True, self._stopped
        try:
            yield
        finally:
            self._uncut = False
        if self._stopped and not stopped:
            raise asyncio.CancelledError

    async def _run(self, turn: Coroutine[Any, Any, None]) -> None:
        writer = asyncio.create_task(self._write())
        self._begun = True
        try:
            if self._stopped and self.task is not None:
                self.task.cancel()  # before it began, it would not have known
            await turn
        finally:
            self._over.set()
            self._wake()
            await writer

    async def _write(self) -> None:
        """Write new lines down, for readers at other processes, and at last that it has ended."""
        idle, ended = 0.0, False
        while not ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_EVERY):
                    await self._over.wait()
            idle += WRITE_EVERY
            if self.ended or self._written < len(self._lines) or idle >= ALIVE_EVERY:
                idle = 0.0
                ended = await self._flush()

    async def _flush(self) -> bool:
        """Write what there is, as soon as the store can; gives whether that was all."""
        pause = WRITE_EVERY
        while True:
            first, new, ended = self._written + 1, self._lines[self._written :], self.ended
            try:
                to_stop = await self._store.append(self.id, first, new, ended=ended)
            except Conflict:
                log.warning("a run was taken for dead, as it could not be written for a while")
                return True
            except JournalError as error:
                self._trouble.begins(error)
                if self._closing():
                    return True
                await asyncio.sleep(pause)
                pause = min(2 * pause, ALIVE_EVERY)
            else:
                break
        self._trouble.ends()
        self._written += len(new)
        if to_stop:  # whoever asked for it is at another process
            self.stop()
        return ended


class FarRun:
    """A run of another process, read from the store."""

    def __init__(
        self, state: RunRecord, store: Conversations, closing: Callable[[], bool] = lambda: False
    ) -> None:
        """`closing` says whether the process is about to end."""
        self.id = state.id
        self.conversation_id = state.conversation_id
        self.principal = state.principal
        self._store = store
        self._closing = closing

    async def lines(self, after: int = 0) -> AsyncIterator[bytes]:
        """The lines after a number, as they are written down; ends with the run, or when its worker is dead.

        Lines that a worker told just before it died may not be written down. Whoever has them is told its end
        after them. While the store cannot be read, more is waited for.
        """
        async for new in self.batches(after):
            for line in new:
                yield line

    async def batches(self, after: int = 0) -> AsyncIterator[Sequence[bytes]]:
        """As `lines`, all that there are at a time."""
        after, pause, over = max(after, 0), POLL, False
        while not over:
            try:
                new, over = await self._look(after)
            except JournalError:
                if self._closing():
                    return
                pause = min(2 * pause, DEAD_AFTER)
            else:
                pause = POLL
                if new:
                    yield await _filled(new, self._store, self.principal, self._closing)
                after += len(new)
            if not over:
                await asyncio.sleep(pause)

    async def _look(self, after: int) -> tuple[Sequence[bytes], bool]:
        """The lines after a number, and whether these are the last."""
        state = await self._store.run(self.id)
        new = list(await self._store.lines(self.id, after))
        if state is None:
            return new, True
        if state.ended:
            end = after + len(new)
            if new[-1:] != [_lost(end)] and await self._was_buried(state.lines):
                new.append(_lost(end + 1))
            return new, True
        if state.now - state.seen > DEAD_AFTER:
            await self._bury(state.lines)
        return new, False

    async def _bury(self, lines: int) -> None:
        """Its worker is dead: say so in a last line, once."""
        with contextlib.suppress(Conflict):
            await self._store.append(self.id, lines + 1, (_lost(lines + 1),), ended=True)

    async def _was_buried(self, lines: int) -> bool:
        return list(await self._store.lines(self.id, lines - 1)) == [_lost(lines)]


async def _filled(
    lines: Sequence[bytes], store: Conversations, principal: str | None, closing: Callable[[], bool]
) -> Sequence[bytes]:
    """Lines as they are told: with the messages of the conversation, where these are not kept in the line."""
    if not any(STATE in line for line in lines):
        return lines
    return [
        await _with_messages(line, store, principal, closing) if STATE in line else line for line in lines
    ]


async def _with_messages(
    line: bytes, store: Conversations, principal: str | None, closing: Callable[[], bool]
) -> bytes:
    read = _decode(line)
    event = read.event
    if not isinstance(event, ConversationState) or not event.message_count:
        return line
    messages: list[Message] = []
    for pause in PAUSES:
        try:
            conversation = await load(store, event.conversation_id, principal)
        except JournalError:
            if closing():
                break
            await asyncio.sleep(pause)
        else:
            # Messages are only added; of a conversation that was deleted since, there are none.
            messages = [] if conversation is None else conversation.messages[: event.message_count]
            break
    state = msgspec.structs.replace(event, messages=messages, message_count=0)
    return _encode(RunLine(read.lsn, state))


def _lost(lsn: int) -> bytes:
    """The last line of a run whose worker is dead."""
    return _encode(RunLine(lsn, LOST))

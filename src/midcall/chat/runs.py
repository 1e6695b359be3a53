"""Runs: one turn's events as numbered lines, read by whoever asks for them, again if need be.

A run does not depend on the request that began it: a reader that lost its line comes back with the number of
the last line that it has, to this process or to another one, and gets those after it, each once.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from midcall.chat.conversation import ConversationState, Event, Failure, load
from midcall.errors import Conflict, JournalError
from midcall.journal.contract import Conversations, RunEnd, RunRecord
from midcall.logs import Trouble
from midcall.models.base import Message

log = logging.getLogger("midcall.chat")

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

JUST_NOW = 0.1
"""Seconds in which a conversation need not be read that was written here: whoever waited for it is told."""

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


class RunReader:
    """A run, for whoever reads it. `closing` says whether the process is about to end."""

    def __init__(
        self,
        id: str,
        conversation_id: str,
        principal: str | None,
        store: Conversations,
        closing: Callable[[], bool],
    ) -> None:
        self.id = id
        self.conversation_id = conversation_id
        self.principal = principal
        self._store = store
        self._closing = closing

    async def lines(self, after: int = 0) -> AsyncIterator[bytes]:
        """The lines after a number, as they come; ends with the run."""
        async for new in self.batches(after):
            for line in new:
                yield line

    async def batches(self, after: int = 0) -> AsyncIterator[Sequence[bytes]]:
        """As `lines`, all that there are at a time, with what is not kept in them."""
        async for new in self._batches(max(after, 0)):
            yield [await self._with_messages(line) if STATE in line else line for line in new]

    def _batches(self, after: int) -> AsyncIterator[Sequence[bytes]]:
        raise NotImplementedError

    async def _with_messages(self, line: bytes) -> bytes:
        """A line as it is told: with the messages of the conversation, which are not kept in it."""
        read = _decode(line)
        event = read.event
        if not isinstance(event, ConversationState) or not event.message_count:
            return line
        told = msgspec.structs.replace(event, message_count=0)
        # They are only added.
        told.messages.extend((await self._messages())[: event.message_count])
        return _encode(RunLine(read.lsn, told))

    async def _messages(self) -> Sequence[Message]:
        """What was said in the conversation; nothing if it was deleted since, or cannot be read for long."""
        for pause in PAUSES:
            try:
                conversation = await load(self._store, self.conversation_id, self.principal)
            except JournalError:
                if self._closing():
                    break
                await asyncio.sleep(pause)
            else:
                return () if conversation is None else conversation.messages
        return ()


class Run(RunReader):
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
        """`trouble` is told if lines cannot be written."""
        super().__init__(id, conversation_id, principal, store, closing)
        self._trouble = trouble
        self._lines: list[bytes] = []
        self._written = 0
        self._changed = asyncio.Event()
        self._hushed = False
        self._over = asyncio.Event()
        self._ending = False
        """Whether all lines are made, and the last of them being written."""
        self._kept = False
        """Whether nothing more is to be written."""
        self._just_saved: Sequence[Message] = ()
        self._saved_at = -JUST_NOW
        self._begun = False
        self._stopped = False
        self._uncut = 0
        self._writes_from: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
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
        if not self.ended and not self._ending:
            self._lines.append(_encode(RunLine(self.lsn + 1, event)))
            if not self._hushed:
                self.wake()

    def hush(self) -> None:
        """Wake nobody for what is told from now on, before `wake`: more is about to come."""
        self._hushed = True

    def wake(self) -> None:
        """Have readers read what there is."""
        self._hushed = False
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _messages(self) -> Sequence[Message]:
        if asyncio.get_running_loop().time() < self._saved_at + JUST_NOW:
            return self._just_saved
        return await super()._messages()

    async def end(
        self,
        events: Sequence[Event],
        write: Callable[[RunEnd], Coroutine[Any, Any, bool]],
        messages: Sequence[Message] = (),
    ) -> None:
        """Tell the last events as soon as `write` has written them with the conversation, which has these
        messages then. If it raises, nothing is told."""
        last = [_encode(RunLine(number, event)) for number, event in enumerate(events, self.lsn + 1)]
        first = self._written + 1
        self._ending = True
        try:
            written = await write(RunEnd(self.id, first, [*self._lines[self._written :], *last]))
        finally:
            self._ending = False
        self._lines += last
        self.wake()
        self._just_saved, self._saved_at = messages, asyncio.get_running_loop().time()
        if written:
            self._written = self.lsn
            self._kept = True
        self._over.set()

    async def _batches(self, after: int) -> AsyncIterator[Sequence[bytes]]:
        """A reader may say that it has more lines than there are."""
        while not self.ended or after < self.lsn:
            if after >= self.lsn:
                await self._changed.wait()
                continue
            new = self._lines[after:]
            after += len(new)
            yield new

    def begin(self, turn: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the turn in a task of its own; its lines are written down as they come."""
        self.task = asyncio.create_task(self._run(turn))
        return self.task

    def abandon(self) -> None:
        """The turn was refused: nobody is told anything."""
        self._kept = True

    def stop(self) -> None:
        """Cut the turn off. Once is enough: it has to tidy up, and is not to be cut off in that."""
        if not (self._stopped or self.ended or self._ending):
            self._stopped = True
            if self._begun and self.task is not None and not self._uncut:
                self.task.cancel()

    @contextlib.contextmanager
    def not_cut_off(self) -> Iterator[None]:
        """For the turn: do something to its end. It is cut off after that, if meanwhile it was to be."""
        stopped = self._stopped
        self._uncut += 1
        try:
            yield
        finally:
            self._uncut -= 1
        if self._stopped and not stopped and not self._uncut:
            raise asyncio.CancelledError

    async def _run(self, turn: Coroutine[Any, Any, None]) -> None:
        self._begun = True
        try:
            if self._stopped and self.task is not None:
                self.task.cancel()  # before it began, it would not have known
            await turn
        finally:
            self._over.set()
            self.wake()
            if self._writes_from is not None:
                self._writes_from.cancel()
            await (self._writer or self._write())

    def is_kept(self) -> None:
        """The store knows the run: from now on its lines can be written there."""
        if not self.ended:
            loop = asyncio.get_running_loop()
            self._writes_from = loop.call_later(WRITE_EVERY, self._begin_to_write)

    def _begin_to_write(self) -> None:
        self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write new lines down, for readers at other processes, and at last that it has ended."""
        idle = 0.0
        while not self._kept:
            if self.ended or self._written < self.lsn or idle >= ALIVE_EVERY:
                idle = 0.0
                await self._flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_EVERY):
                    await self._over.wait()
            idle += WRITE_EVERY

    async def _flush(self) -> None:
        """Write what there is, as soon as the store can."""
        pause = WRITE_EVERY
        while True:
            first, new, ended = self._written + 1, self._lines[self._written :], self.ended
            try:
                to_stop = await self._store.append(self.id, first, new, ended=ended)
            except Conflict:
                log.warning("a run was taken for dead, as it could not be written for a while")
                self._kept = True
                return
            except JournalError as error:
                self._trouble.begins(error)
                if self._closing():
                    self._kept = True
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, ALIVE_EVERY)
            else:
                break
        self._trouble.ends()
        self._written = max(self._written, first - 1 + len(new))
        self._kept = self._kept or ended
        if to_stop:  # whoever asked for it is at another process
            self.stop()


class FarRun(RunReader):
    """A run of another process, read from the store.

    It ends also when its worker is dead. Lines that were told just before that may not be written down:
    whoever has them is told its end after them. While the store cannot be read, more is waited for.
    """

    def __init__(
        self, state: RunRecord, store: Conversations, closing: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(state.id, state.conversation_id, state.principal, store, closing)

    async def _batches(self, after: int) -> AsyncIterator[Sequence[bytes]]:
        pause, over = POLL, False
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
                    yield new
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
            with contextlib.suppress(Conflict):  # its worker is dead: say so in a last line, once
                await self._store.append(self.id, state.lines + 1, (_lost(state.lines + 1),), ended=True)
        return new, False

    async def _was_buried(self, lines: int) -> bool:
        return list(await self._store.lines(self.id, lines - 1)) == [_lost(lines)]


def _lost(lsn: int) -> bytes:
    """The last line of a run whose worker is dead."""
    return _encode(RunLine(lsn, LOST))

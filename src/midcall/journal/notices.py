"""Notices: people are told of questions that wait for them, by webhook and e-mail.

Which notices are due is in the journal: they are written together with the question, so that none is lost,
and each is taken by one worker at a time (`Journal.take_notices`). Whoever has taken one sees whether its
question is still open, tells it, and writes that down. If the receiver cannot be reached, the notice is due
again after a pause that doubles; if the worker dies, after its lease. So a receiver that has answered is told
once, unless the worker dies, or the journal is away, in the moment between its answer and the note of it:
then it gets the same notice, by the same id, once more.

Nothing is looked for unless there are channels. This module knows no HTTP and no SMTP (see `midcall.notify`).
"""

import asyncio
import base64
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

from msgspec import Struct

from midcall import metrics
from midcall.errors import JournalError, MidcallError
from midcall.journal.contract import CallRecord, Notice
from midcall.journal.dialect import PAUSES
from midcall.journal.kept_questions import method_of
from midcall.journal.state import Waiting, asked_of
from midcall.logs import Trouble
from midcall.questions import PERSON_KINDS
from midcall.replay import Entry

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls

log = logging.getLogger("midcall.notify")

DAY = 24 * 3600.0
"""Seconds for which it is tried to tell a notice, if nothing else is said."""

FIRST_PAUSE = 2.0
LONGEST_PAUSE = 600.0
LONGEST_WISH = 3600.0
"""The longest pause that a receiver may ask for."""

AT_ONCE = 8
"""How many notices a worker tells at the same time by each channel: one that hangs holds up no other."""

MARGIN = 5.0
"""Seconds that a worker has beyond the patience of a channel, before others take its notices."""

MAX_MESSAGE = 500
MAX_ARGUMENTS = 2000
"""How many characters are told of a question's message, and of a call's arguments."""

Show: TypeAlias = Literal["link", "message", "arguments"]
"""What a notice says of a question: only where it is, also its message, or also the arguments of its call."""


class NotTold(MidcallError):
    """A notice could not be told. The words are for the log, and without any secret."""

    code = "not_told"

    def __init__(self, message: str, *, pause: float | None = None, final: bool = False) -> None:
        """`pause` is after how many seconds the receiver wants it again; `final` if it never does."""
        super().__init__(message)
        self.pause = pause
        self.final = final


class QuestionNotice(Struct, frozen=True, kw_only=True):
    """What people are told of a question. Texts are without control characters, and not long."""

    id: str
    """The same, however often it is told; unlike that of any other notice."""
    method: str
    kind: str
    caller: str | None
    """Who has made the call, where that is known."""
    to: str | None
    """Who is asked: a principal, or `scope:` and a scope; nothing where nobody is known."""
    since: float
    until: float | None
    """When it is too late for an answer."""
    link: str | None
    message: str | None = None
    arguments: str | None = None


class NoticeChannel(Protocol):
    """A way to tell people."""

    kind: str
    """`webhook` or `email`."""
    where: str
    """Where it leads, as far as the log may say."""
    patience: float
    """How many seconds it may take."""

    def targets(self, to: str | None) -> Sequence[str]:
        """Whom to tell what is asked of somebody: one notice each."""

    async def tell(self, notice: QuestionNotice, target: str) -> None:
        """Tell one of them. Raises `NotTold`."""

    async def close(self) -> None:
        """Let go of connections."""


class Notify:
    """Who is told of which questions, and what: `hub.asgi(notify=Notify(...))`."""

    def __init__(
        self,
        *channels: NoticeChannel,
        after: float | None = None,
        show: Show = "message",
        give_up: float = DAY,
    ) -> None:
        """Questions for somebody else than the caller (`to=`) are told at once.

        With `after`, so are all others that wait for longer than so many seconds. `show` is what is said of a
        question. What cannot be told for `give_up` seconds is not tried any more. Raises `ValueError`.
        """
        if not channels:
            raise ValueError("Notify needs a channel, as Webhook(...) or Email(...)")
        if after is not None and not 0 <= after < float("inf"):
            raise ValueError("Notify: `after` is a number of seconds, from 0 on")
        if show not in get_args(Show):
            raise ValueError(f"Notify: `show` is one of {', '.join(get_args(Show))}")
        self.after = after
        self.show: Show = show
        self.give_up = give_up
        self.channels: dict[str, NoticeChannel] = {}
        """By names that are the same in every process with the same channels."""
        for channel in channels:
            number = 1 + sum(channel.kind == other.kind for other in self.channels.values())
            self.channels[channel.kind if number == 1 else f"{channel.kind}-{number}"] = channel


class Notices:
    """The notices of a hub's questions, in this process."""

    def __init__(self, durable: "DurableCalls", notify: Notify) -> None:
        self._durable = durable
        self._notify = notify
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._telling: dict[str, set[asyncio.Task[None]]] = {name: set() for name in notify.channels}
        """What is being told, by the names of the channels."""
        self._trouble = {
            name: Trouble(log, f"tell of questions by {one.kind} ({one.where})")
            for name, one in notify.channels.items()
        }
        self._journal_trouble = Trouble(log, "look for notices in the journal")

    # --- which there are ---------------------------------------------------------------------

    def of(self, record: CallRecord, questions: Iterable[Waiting]) -> list[Notice]:
        """What is to be written down with questions of a call."""
        now = time.time()
        return [
            Notice(id, record.id, max(now, due))
            for one in questions
            if (due := self._due(one)) is not None
            for id, _ in self._ids(record, one)
        ]

    def _due(self, one: Waiting) -> float | None:
        """When to tell of a question, if at all."""
        if one.to is not None:
            return one.since
        if self._notify.after is None or one.question.kind not in PERSON_KINDS:
            return None
        return one.since + self._notify.after

    def _ids(self, record: CallRecord, one: Waiting) -> list[tuple[str, str]]:
        """The notices of a question: an id, which begins with the channel's name, and who is told by it."""
        to = one.to or record.principal
        return [
            (f"{name}:{_digest(record.id, one.place, name, target)}", target)
            for name, channel in self._notify.channels.items()
            for target in channel.targets(to)
        ]

    def _find(self, record: CallRecord, entries: Sequence[Entry], id: str) -> tuple[Waiting, str] | None:
        """The question that a notice is about, and whom to tell; nothing if it is not open any more."""
        if record.status not in ("waiting", "running"):
            return None
        states = {entry.key: entry.state for entry in entries}
        now = time.time()
        for one in asked_of(record).questions.values():
            late = now > (record.expires if one.until is None else min(one.until, record.expires))
            if late or states.get(one.place) != "begun":
                continue
            for found, target in self._ids(record, one):
                if found == id:
                    return one, target
        return None

    def _said(self, notice: Notice, record: CallRecord, one: Waiting) -> QuestionNotice:
        show, to = self._notify.show, one.to or record.principal
        arguments = record.arguments.decode(errors="replace")
        return QuestionNotice(
            id=f"msg_{notice.id.rpartition(':')[2]}",
            method=plain(method_of(record), MAX_MESSAGE),
            kind=one.question.kind,
            caller=None if record.principal is None else plain(record.principal, MAX_MESSAGE),
            to=None if to is None else plain(to, MAX_MESSAGE),
            since=one.since,
            until=one.until,
            link=self._durable.links.url(record, one),
            message=None if show == "link" else plain(one.question.message, MAX_MESSAGE),
            arguments=plain(arguments, MAX_ARGUMENTS) if show == "arguments" else None,
        )

    # --- life --------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def stop(self, patience: float) -> None:
        """Stop; what is being told may be told to the end, if that does not take long."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            telling = [task for tasks in self._telling.values() for task in tasks]
            if telling:
                _, late = await asyncio.wait(telling, timeout=patience)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late)
        for channel in self._notify.channels.values():
            await channel.close()

    def wake(self) -> None:
        """There may be something to tell."""
        self._wanted.set()

    async def _look(self) -> None:
        """Take what is due, whenever there may be something, as much as can be told at once."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                for name in self._notify.channels:
                    await self._take(name)
            except JournalError as error:
                self._journal_trouble.begins(error)
            except Exception:
                log.exception("notices failed inside midcall, and go on")
            else:
                self._journal_trouble.ends()

    async def _take(self, name: str) -> None:
        """Take what is due of a channel, as much as it can tell at once."""
        loop, telling = asyncio.get_running_loop(), self._telling[name]
        patience = self._notify.channels[name].patience
        while room := AT_ONCE - len(telling):
            begun = loop.time()
            taken = await self._durable.journal.take_notices(name, room, patience + MARGIN)
            for notice in taken:
                task = loop.create_task(self._deliver(notice, name, begun + MARGIN))
                telling.add(task)
                task.add_done_callback(partial(self._told, telling))
            if len(taken) < room:
                break

    def _told(self, telling: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        if len(telling) == AT_ONCE:
            self.wake()  # there may be more
        telling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a notice failed inside midcall, and is tried again", exc_info=error)

    # --- telling one -------------------------------------------------------------------------

    async def _deliver(self, notice: Notice, name: str, latest: float) -> None:
        """Tell one notice, if there is still need to, and write down what came of it.

        To begin later than `latest` might be to tell it while another worker does.
        """
        channel = self._notify.channels[name]
        with contextlib.suppress(JournalError):  # else it is due again after its lease
            found = await self._durable.journal.load(notice.call_id)
            question = None if found is None else self._find(*found, notice.id)
            if found is None or question is None:
                await self._done(notice)
                return
            if asyncio.get_running_loop().time() > latest:
                return
            one, target = question
            try:
                async with asyncio.timeout(channel.patience):
                    await channel.tell(self._said(notice, found[0], one), target)
            except (NotTold, TimeoutError) as error:
                why = error if isinstance(error, NotTold) else NotTold("it took too long")
                await self._failed(notice, name, found[0], one, why)
            except Exception:
                await self._failed(notice, name, found[0], one, NotTold("an error inside midcall"))
                raise
            else:
                metrics.notice(channel.kind, "told")
                self._trouble[name].ends()
                await self._done(notice)

    async def _done(self, notice: Notice) -> None:
        """Write down that a notice is told, or need not be: if the journal is away, a bit later."""
        for pause in PAUSES:
            try:
                await self._durable.journal.notice_told(notice.id)
            except JournalError:
                await asyncio.sleep(pause)
            else:
                return

    async def _failed(
        self, notice: Notice, name: str, record: CallRecord, one: Waiting, error: NotTold
    ) -> None:
        channel = self._notify.channels[name]
        since = self._due(one)
        if error.final or (since is not None and time.time() - since > self._notify.give_up):
            metrics.notice(channel.kind, "given_up")
            log.warning(
                "gave up telling of a question by %s (%s): %s",
                channel.kind,
                channel.where,
                error,
                extra={"call": record.id, "method": record.name},
            )
            await self._done(notice)
            return
        metrics.notice(channel.kind, "failed")
        self._trouble[name].begins(error)
        await self._durable.journal.postpone_notice(notice.id, _pause(notice.tries, error.pause))


def _pause(tries: int, wished: float | None) -> float:
    """How long to wait after so many tries."""
    longest = min(FIRST_PAUSE * (1 << min(tries - 1, 20)), LONGEST_PAUSE)
    own = longest * random.uniform(0.5, 1.0)  # noqa: S311  jitter, no secret
    return max(own, min(wished or 0.0, LONGEST_WISH))


def _digest(*parts: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256("\0".join(parts).encode()).digest()[:24]).decode()


_JOINERS = "\u200c\u200d"
"""What many languages and emoji need between letters."""


def plain(text: str, most: int) -> str:
    """Text of others on one line, without what acts or hides, and not longer than that."""
    line = "".join(c for c in " ".join(text.split()) if c.isprintable() or c in _JOINERS)
    return line if len(line) <= most else f"{line[: most - 3]}..."

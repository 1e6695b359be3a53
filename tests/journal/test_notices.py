"""Notices within one process: what is told, tried again, given up and left to others."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from driving import drive
from midcall import Ask, Hub
from midcall.errors import JournalError
from midcall.journal import notices
from midcall.journal.contract import Notice
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.notices import LONGEST_PAUSE, LONGEST_WISH, Notify, NotTold, QuestionNotice, plain
from midcall.notify import Webhook
from midcall.principal import Principal
from midcall.questions import PERSON_KINDS
from receivers import SECRET


class Fake:
    """A channel that does as it is told."""

    kind = "webhook"
    where = "fake.example"
    patience = 5.0

    def __init__(self, *targets: str) -> None:
        self.told: list[tuple[str, QuestionNotice]] = []
        self.fails: list[BaseException] = []
        self.closed = 0
        self.holds: asyncio.Event | None = None
        self._targets = targets or ("",)

    def targets(self, to: str | None) -> Sequence[str]:
        return self._targets

    async def tell(self, notice: QuestionNotice, target: str) -> None:
        self.told.append((target, notice))
        if self.holds is not None:
            await self.holds.wait()
        if self.fails:
            raise self.fails.pop(0)

    async def close(self) -> None:
        self.closed += 1


class Scene:
    """A hub with a journal in memory, and a channel."""

    def __init__(self, *channels: Fake, **options: Any) -> None:
        self.hub = Hub()
        self.hub.method("ask_bob")(ask_bob)
        self.hub.method("ask_caller")(ask_caller)
        self.journal = MemoryJournal()
        url = "https://tools.example.com"
        self.durable = DurableCalls(
            self.hub, self.journal, public_url=url, notify=Notify(*channels, **options)
        )
        self.hub.durable = self.durable

    async def asks(self) -> str:
        return await self.durable.subscriptions.start("ask_bob", b"{}", PERSON_KINDS, None)

    async def due(self) -> None:
        """Have everything be due that is not told."""
        for some in self.journal._use().notices.values():
            for id, one in some.items():
                if one is not None:
                    some[id] = Notice(one.id, one.call_id, 0.0, one.tries)
        assert self.durable.notices is not None
        self.durable.notices.wake()

    def left(self) -> list[Notice]:
        """What is not told yet."""
        return [n for some in self.journal._use().notices.values() for n in some.values() if n is not None]


async def ask_bob(ask: Ask) -> bool:
    return await ask.confirm("Deploy?", to="bob", key="sure")


async def ask_caller(ask: Ask) -> bool:
    return await ask.confirm("Sure?")


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scene()

    drive(main())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_each_target_is_told_once_under_its_own_id() -> None:
    async def scene() -> None:
        fake, other = Fake("a", "b"), Fake()
        it = Scene(fake, other)
        await it.asks()
        await until(lambda: not it.left() and it.journal._use().notices)
        assert sorted(target for target, _ in fake.told) == ["a", "b"]
        assert len({notice.id for _, notice in (*fake.told, *other.told)}) == 3
        told = fake.told[0][1]
        assert (told.method, told.to, told.message, told.caller) == ("ask_bob", "bob", "Deploy?", None)
        assert told.link is not None
        assert told.link.startswith("https://tools.example.com/q/")
        await it.hub.close()
        assert (fake.closed, other.closed) == (1, 1)

    play(scene)


def test_what_fails_is_tried_again_until_its_time_is_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        fake = Fake()
        it = Scene(fake)
        fake.fails = [NotTold("HTTP 503"), TimeoutError(), ZeroDivisionError(), NotTold("HTTP 503", pause=50)]
        await it.asks()
        for tries in range(1, 5):
            await until(lambda: len(fake.told) == tries)  # noqa: B023
            await until(
                lambda: it.durable.notices is not None and not any(it.durable.notices._telling.values())
            )
            if tries == 4:
                assert it.left()[0].due > time.time() + 40
            await it.due()
        await until(lambda: not it.left())
        assert len(fake.told) == 5
        assert len({notice.id for _, notice in fake.told}) == 1
        await it.hub.close()

    with caplog.at_level(logging.WARNING, "midcall.notify"):
        play(scene)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "cannot tell of questions by webhook (fake.example), and tries again: HTTP 503"
    assert any("a notice failed inside midcall" in one for one in said)
    assert "can tell of questions by webhook (fake.example) again" in said[-1]


def test_it_is_given_up_after_a_while_or_at_once_if_that_is_final(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        fake = Fake()
        it = Scene(fake, give_up=0.0)
        fake.fails = [NotTold("HTTP 503")]
        await it.asks()
        await until(lambda: fake.told and not it.left())
        await it.hub.close()

    with caplog.at_level(logging.WARNING, "midcall.notify"):
        play(scene)
    assert caplog.records[-1].getMessage() == (
        "gave up telling of a question by webhook (fake.example): HTTP 503"
    )


def test_a_journal_that_is_away_for_a_moment_makes_nobody_be_told_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        fake = Fake()
        it = Scene(fake)
        troubles = {"take_notices": 1, "notice_told": 2}
        for name in list(troubles):
            real = getattr(it.journal, name)

            async def unsteady(*args: Any, name: str = name, real: Any = real) -> Any:
                troubles[name] -= 1
                if troubles[name] >= 0:
                    raise JournalError("away")
                return await real(*args)

            monkeypatch.setattr(it.journal, name, unsteady)
        await it.asks()
        await until(lambda: troubles["take_notices"] < 1)
        assert it.durable.notices is not None
        it.durable.notices.wake()
        await until(lambda: fake.told and not it.left())
        assert len(fake.told) == 1
        await it.hub.close()

    with caplog.at_level(logging.WARNING, "midcall.notify"):
        play(scene)
    assert "cannot look for notices in the journal" in caplog.records[0].getMessage()


def test_a_notice_for_a_channel_that_only_another_worker_has_is_left_to_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        fake = Fake()
        it = Scene(fake)
        await it.durable.open()
        assert it.durable.notices is not None
        of = it.durable.notices.of

        def renamed(*args: Any) -> list[Notice]:
            return [*of(*args), *(Notice(f"other{n.id}", n.call_id, n.due) for n in of(*args))]

        monkeypatch.setattr(it.durable.notices, "of", renamed)
        await it.asks()
        await until(lambda: fake.told and len(it.left()) == 1)
        (left,) = it.left()
        assert left.id.startswith("otherwebhook:")
        assert left.tries == 0
        await it.hub.close()

    play(scene)


def test_a_channel_that_hangs_does_not_hold_up_another() -> None:
    async def scene() -> None:
        hangs, works = Fake(), Fake()
        hangs.holds = asyncio.Event()
        it = Scene(hangs, works)
        for _ in range(2 * notices.AT_ONCE):
            await it.asks()
        await until(lambda: len(works.told) == 2 * notices.AT_ONCE)
        assert len(hangs.told) == notices.AT_ONCE
        hangs.holds.set()
        await it.hub.close()

    play(scene)


def test_who_was_held_up_for_too_long_leaves_a_notice_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        fake = Fake()
        it = Scene(fake)
        monkeypatch.setattr(notices, "MARGIN", -1.0)  # as if the journal had taken so long
        await it.asks()
        await until(lambda: it.left() and it.left()[0].tries == 1)
        await until(lambda: it.durable.notices is not None and not any(it.durable.notices._telling.values()))
        assert fake.told == []
        monkeypatch.undo()
        await it.due()
        await until(lambda: fake.told and not it.left())
        assert len(fake.told) == 1
        await it.hub.close()

    play(scene)


def test_the_name_of_a_caller_is_one_short_line_too() -> None:
    async def scene() -> None:
        fake = Fake()
        it = Scene(fake, after=0)
        name = "eve\r\nBcc: x@example.com\u202e" + "x" * 1000
        await it.durable.subscriptions.start("ask_caller", b"{}", PERSON_KINDS, Principal(name))
        await until(lambda: fake.told)
        told = fake.told[0][1]
        assert told.caller == told.to == plain(name, notices.MAX_MESSAGE)
        await it.hub.close()

    play(scene)


def test_more_than_can_be_told_at_once_is_told_one_after_the_other() -> None:
    async def scene() -> None:
        fake = Fake()
        fake.holds = asyncio.Event()
        it = Scene(fake)
        for _ in range(20):
            await it.asks()
        await until(lambda: len(fake.told) == notices.AT_ONCE)
        await asyncio.sleep(0)
        assert len(fake.told) == notices.AT_ONCE
        fake.holds.set()
        await until(lambda: not it.left())
        assert len(fake.told) == 20
        await it.hub.close()

    play(scene)


def test_a_server_that_stops_does_not_wait_for_a_receiver_that_hangs() -> None:
    async def scene() -> None:
        fake = Fake()
        fake.holds = asyncio.Event()
        it = Scene(fake)
        await it.asks()
        await until(lambda: fake.told)
        await it.hub.close()
        assert fake.closed == 1

    play(scene)


def test_who_is_notified_is_said_before_the_journal_is_opened() -> None:
    async def scene() -> None:
        it = Scene(Fake())
        await it.durable.open()
        with pytest.raises(RuntimeError, match="before the hub is opened"):
            it.durable.notify_by(Notify(Webhook("https://x.example", secret=SECRET)))
        await it.hub.close()

    play(scene)


def test_pauses_double_up_to_a_bound_and_a_receiver_may_ask_for_more_but_not_for_ever() -> None:
    for tries, longest in ((1, 2.0), (2, 4.0), (5, 32.0), (30, LONGEST_PAUSE), (10_000, LONGEST_PAUSE)):
        for _ in range(20):
            assert longest / 2 <= notices._pause(tries, None) <= longest
    assert notices._pause(1, 100.0) == 100.0
    assert notices._pause(1, 1e9) == LONGEST_WISH

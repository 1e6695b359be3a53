"""Workers are killed at every point of a call or a chat, and it ends right all the same.

What "right" means is in `crash.calls` and `crash.chats`. Of a call: the answers are those that were given, each step was done once, or was
reported as interrupted, or (if it may be repeated) was repeated with the same key; what was seen stays as it
was, the last request sent again gets the same outcome, and nothing is left running. `python -m soak` goes on
where this ends.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import postgres_server
from crash.app import VARIANTS
from crash.calls import CallSchedule, call_schedule
from crash.chats import ChatSchedule, Plan, chat_schedule
from crash.pool import Pool
from crash.stage import Report, Schedule, Stage, Wrong

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

POINTS = 40
"""Every variant has more points than this; if not, the ticks are broken."""

wizards = pytest.mark.parametrize("variant", VARIANTS)
keys = pytest.mark.parametrize("keyed", [False, True], ids=["anew", "keyed"])


MEMORY = Path("/dev/shm")
"""A disk that need not be waited for, where there is one: only processes die here. `soak` uses a real one."""


@pytest.fixture(scope="module")
def on_sqlite() -> Iterator[Pool]:
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="midcall-crash-", dir=place) as folder,
        Pool("sqlite", Path(folder)) as pool,
    ):
        yield pool


@pytest.fixture(scope="module")
def on_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool("postgres", tmp_path_factory.mktemp("postgres"), postgres_server.shared()) as pool:
        yield pool


def played(pool: Pool, schedules: Sequence[Schedule]) -> list[Report]:
    reports = []
    for _, report in pool.play(schedules):
        if isinstance(report, Wrong):
            raise report
        reports.append(report)
    return reports


@wizards
def test_without_a_crash_nothing_is_interrupted_and_nobody_is_asked_twice(
    on_sqlite: Pool, variant: str
) -> None:
    calm = CallSchedule(variant=variant)
    schedules = [
        calm,
        CallSchedule(variant=variant, forgetful=True),
        CallSchedule(variant=variant, keyed=True, partly=True, breaks=("leave", "leave", "leave")),
        CallSchedule(variant=variant, forgetful=True, breaks=("leave", "leave", "leave")),
    ]
    for report in played(on_sqlite, schedules):
        assert (report.crashes, report.again, report.interrupted) == (0, 0, 0)


@keys
@wizards
def test_a_worker_may_die_at_any_point(on_sqlite: Pool, variant: str, keyed: bool) -> None:
    reports = list(on_sqlite.every_point(CallSchedule(variant=variant, keyed=keyed)))
    assert len(reports) > POINTS
    assert any(report.interrupted for report in reports), "a step that was cut off is reported"


@wizards
def test_a_worker_may_die_at_any_point_while_its_coroutines_are_dropped(
    on_sqlite: Pool, variant: str
) -> None:
    schedules = [CallSchedule(variant=variant, deaths=(n,), forgetful=True) for n in range(1, 60, 4)]
    played(on_sqlite, schedules)


@wizards
def test_a_worker_may_die_while_a_person_thinks(on_sqlite: Pool, variant: str) -> None:
    for report in played(on_sqlite, [CallSchedule(variant=variant, breaks=("kill", "kill", "kill"))]):
        assert report.crashes == 2 if variant == "round" else 3


@wizards
def test_on_postgresql_another_worker_goes_on(on_postgres: Pool, variant: str) -> None:
    """A sample of the points: each variant has others."""
    first = VARIANTS.index(variant) + 1
    schedules = [
        CallSchedule(variant=variant, keyed=n % 2 == 0, deaths=(n,), workers=2)
        for n in range(first, 60, len(VARIANTS) + 1)
    ]
    assert any(report.crashes for report in played(on_postgres, schedules))


@pytest.mark.parametrize("seeds", [range(n, n + 20) for n in range(0, 100, 20)], ids=str)
def test_whatever_crashes_the_call_ends_right(on_sqlite: Pool, seeds: range) -> None:
    played(on_sqlite, [call_schedule(seed) for seed in seeds])


def test_whatever_crashes_the_call_ends_right_on_postgresql(on_postgres: Pool) -> None:
    played(on_postgres, [call_schedule(seed) for seed in range(1000, 1025)])


# --- chats ------------------------------------------------------------------------------------

TALK: tuple[Plan, ...] = ((("line",),), ())
"""A conversation with one tool that asks three times, and something that is said afterwards."""

everything = ChatSchedule(
    talks=((((("given_up", "hurried", "stream"),)), (("beside",), ("raced",))), TALK), ignores=True
)


@pytest.mark.parametrize(
    "schedule",
    [
        everything,
        replace(everything, forgetful=True, partly=True),
        replace(everything, agui=1.0),
        replace(everything, drops=0.2, workers=2, roams=True),
        replace(everything, breaks=("leave", "leave", "leave", "leave")),
        replace(everything, stops=0.05, aborts=0.2, instead=0.2),
    ],
    ids=["plain", "forgetful", "agui", "drops", "leaves", "ends"],
)
def test_without_a_crash_a_conversation_is_what_the_person_saw(
    on_sqlite: Pool, schedule: ChatSchedule
) -> None:
    for report in played(on_sqlite, [replace(schedule, seed=seed) for seed in range(3)]):
        assert report.crashes == 0


def test_a_worker_may_die_at_any_point_of_a_conversation(on_sqlite: Pool) -> None:
    reports = list(on_sqlite.every_point(ChatSchedule(talks=(TALK,)), step=2))
    assert len(reports) > POINTS
    assert any(report.interrupted for report in reports), "a step that was cut off is reported"


def test_a_worker_may_die_while_the_person_of_a_conversation_thinks(on_sqlite: Pool) -> None:
    (report,) = played(on_sqlite, [ChatSchedule(talks=(TALK,), breaks=("stay", *("kill",) * 4))])
    assert report.crashes == 4


@pytest.mark.parametrize("seeds", [range(n, n + 20) for n in range(0, 60, 20)], ids=str)
def test_whatever_crashes_the_conversation_ends_right(on_sqlite: Pool, seeds: range) -> None:
    played(on_sqlite, [chat_schedule(seed) for seed in seeds])


def test_whatever_crashes_the_conversation_ends_right_on_postgresql(on_postgres: Pool) -> None:
    played(on_postgres, [chat_schedule(seed) for seed in range(1000, 1020)])


# --- given up ---------------------------------------------------------------------------------


def test_a_call_that_brings_down_each_worker_is_given_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    stage = Stage("sqlite", tmp_path_factory.mktemp("poison"))
    try:
        with pytest.raises(Wrong, match="it brought down each worker that ran it"):
            stage.play(CallSchedule(variant="deadly"))
    finally:
        stage.close()

"""What functions, methods and tools of a run may do to it: fail, and nothing worse."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT, assert_nothing_left, drive
from midcall import Ask, Hub, connect, method
from midcall.fsm import MachineBuilder, Moment
from midcall.fsm.actions import MOST_TEXT
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite.journal import SqliteJournal
from midcall.mount.within import MOST_COLLECTED
from spoken import Spoken

ENDED = "It called sys.exit(2)"


class Tools:
    namespace = "tools"

    def __init__(self) -> None:
        self.closed = False
        self.done: list[str] = []

    @method
    async def leave(self) -> str:
        """Ends the process, as argparse does."""
        sys.exit(2)

    @method
    def leave_plainly(self) -> str:
        """The same, in a thread."""
        sys.exit(2)

    @method
    def run_dry(self) -> int:
        """Takes the first of nothing."""
        return next(iter([]))  # type: ignore[no-any-return]

    @method
    async def cancel_itself(self) -> str:
        """Waits for a task that was cancelled."""
        task = asyncio.create_task(asyncio.sleep(LIMIT))
        task.cancel()
        await task
        return "never"

    @method
    async def count(self) -> AsyncIterator[str]:
        """Gives without end, and never waits."""
        try:
            while True:
                yield "x" * 10
        finally:
            self.closed = True

    @method
    async def flood(self) -> AsyncIterator[str]:
        """Gives much."""
        try:
            while True:
                yield "x" * 1024 * 1024
        finally:
            self.closed = True

    @method
    async def note(self) -> str:
        """Has an effect."""
        self.done.append("note")
        return "noted"


def calling(name: str, **options: Any) -> MachineBuilder:
    return MachineBuilder("m").method("s", name, **options).to("start", "s").to("s", "end")


def trail_of(built: MachineBuilder, given: Any = None, *, source: object = None, **options: Any) -> list[Any]:
    async def main() -> Any:
        hub = Hub().register(source or Tools()).register_machine(built)
        trail = await hub.call("machines.m", given or {}, **options)
        await assert_nothing_left(hub)
        return trail

    return drive(main())  # type: ignore[no-any-return]


def leaves(event: Any) -> Any:
    sys.exit(2)


async def leaves_later(event: Any) -> Any:
    await asyncio.sleep(0)
    sys.exit(2)


@pytest.mark.parametrize("make", [
    lambda: calling("tools.leave"),
    lambda: calling("tools.leave_plainly"),
    lambda: MachineBuilder("m").function("s", leaves).to("start", "s").to("s", "end"),
    lambda: MachineBuilder("m").function("s", leaves_later).to("start", "s").to("s", "end"),
])  # fmt: skip
def test_code_that_ends_the_process_fails_its_state(make: Callable[[], MachineBuilder]) -> None:
    event = trail_of(make())[-1].event
    assert (event["reason"], event["message"]) == ("action-failed", ENDED)


def test_code_that_ends_the_process_fails_its_branch_alone() -> None:
    branches: dict[str, Any] = {
        name: {"action": "method", "config": {"method": f"tools.{name}"}}
        for name in ("leave", "leave_plainly", "note")
    }
    built = MachineBuilder("m").parallel("s", branches).to("start", "s").to("s", "end")
    results = trail_of(built)[-1].event["results"]
    assert [results[name]["status"] for name in branches] == ["error", "error", "success"]
    assert results["leave"]["error"] == ENDED


@pytest.mark.parametrize("parallel", [False, True])
def test_a_tool_that_ends_the_process_or_cancels_itself_fails_alone(parallel: bool) -> None:
    names = ["leave", "cancel_itself", "run_dry", "note"]
    built = MachineBuilder("m").tools("s", "tools.*", parallel=parallel).to("start", "s").to("s", "end")
    given = {"tool_calls": [{"id": name, "name": f"tools.{name}"} for name in names]}
    results = trail_of(built, given)[-1].event["tool_results"]
    assert [one["success"] for one in results] == [False, False, False, True]
    assert [one.get("error") for one in results[:3]] == [
        ENDED,
        "It was cancelled by its own code",
        "The function raised StopIteration",
    ]


def test_a_run_that_is_aborted_while_a_tool_waits_is_aborted() -> None:
    async def main() -> Any:
        begun = asyncio.Event()

        async def waits(event: Any) -> Any:
            begun.set()
            await asyncio.sleep(LIMIT)

        built = MachineBuilder("m").function("s", waits, failure_to="end").to("start", "s").to("s", "end")
        hub = Hub().register_machine(built)
        call = hub.call("machines.m", {})
        reading = asyncio.ensure_future(call)
        await begun.wait()
        (running,) = hub.calls
        running.abort("enough")
        with pytest.raises(Exception, match="enough"):
            await reading
        await assert_nothing_left(hub)

    drive(main())


def test_a_plain_function_that_raises_stop_iteration_fails_its_state() -> None:
    built = MachineBuilder("m").function("s", lambda event: next(iter(()))).to("start", "s").to("s", "end")
    event = trail_of(built)[-1].event
    assert (event["reason"], event["message"]) == ("action-failed", "The function raised StopIteration")


def test_a_stream_without_end_is_stopped_by_the_time_limit_of_its_state() -> None:
    for seconds in (0.1, 1.0, 10.0):  # it has to begin meanwhile
        tools = Tools()
        event = trail_of(calling("tools.count", timeout=seconds), source=tools)[-1].event
        assert event["reason"] == "timeout"
        if tools.closed:
            break
    assert tools.closed


def test_a_stream_that_is_too_much_to_be_collected_fails_and_is_closed() -> None:
    tools = Tools()
    event = trail_of(calling("tools.flood"), source=tools)[-1].event
    assert event["reason"] == "action-failed"
    assert event["message"] == f"tools.flood returned more than {MOST_COLLECTED // 1024**2} MB"
    assert tools.closed


def test_a_function_cannot_change_the_trail() -> None:
    async def changes(event: Any, moment: Moment) -> Any:
        event["list"].append("event")
        moment.event["list"].append("moment")
        moment.trail[0].event["list"].append("trail")
        return {"seen": len(event["list"])}

    built = MachineBuilder("m").function("s", changes).to("start", "s").to("s", "end")
    first, last = trail_of(built, {"list": ["own"]})
    assert first.event["list"] == ["own"]
    assert last.event["seen"] == 3


class Cancelling(Spoken):
    """A model whose own code is cancelled."""

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        raise asyncio.CancelledError
        yield


def test_a_model_or_a_branch_that_cancels_itself_fails_alone() -> None:
    async def cancels(event: Any) -> Any:
        raise asyncio.CancelledError

    branch = {"action": "function", "config": {"function": "f"}}
    built = MachineBuilder("m").parallel("s", {"a": branch}).to("start", "s").to("s", "end")

    async def main() -> Any:
        asking = MachineBuilder("asking").model("s").to("start", "s").to("s", "end")
        hub = Hub().register_machine(built, functions={"f": cancels})
        hub.register_machine(asking, model=Cancelling("never said"))
        return [(await hub.call(f"machines.{name}", {}))[-1].event for name in ("m", "asking")]

    branched, asked = drive(main())
    assert branched["results"]["a"]["status"] == "error"
    assert asked["reason"] == "action-failed"


def test_words_that_json_cannot_carry_are_told_without_them() -> None:
    def fails(event: Any) -> Any:
        raise ValueError("no file \udcff")

    built = MachineBuilder("m").function("s", fails).to("start", "s").to("s", "end")
    assert trail_of(built)[-1].event["message"] == "no file ?"

    async def main() -> Any:
        asking = MachineBuilder("m").model("s").to("start", "s").to("s", "end")
        hub = Hub().register_machine(asking, model=Spoken("\ud800"))
        return (await hub.call("machines.m", {}))[-1].event

    assert drive(main())["reason"] == "max-retries-exceeded"


def test_a_model_that_does_not_stop_is_stopped() -> None:
    built = MachineBuilder("m").model("s").to("start", "s").to("s", "end")

    async def main() -> Any:
        hub = Hub().register_machine(built, model=Spoken("x" * (MOST_TEXT + 1)))
        return (await hub.call("machines.m", {}))[-1].event

    event = drive(main())
    assert (event["reason"], len(event["message"]) < 100) == ("llm-fatal-error", True)


def test_a_trail_that_grows_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midcall.fsm.run.MOST_BYTES", 10_000)
    built = MachineBuilder("m").function("s", lambda _: {"id": ["s", "s"], "text": "x" * 1000})
    event = trail_of(built.to("start", "s").to("s", "s").to("s", "end"))[-1].event
    assert event["reason"] == "too-many-transitions"
    assert event["message"].startswith("After 11 transitions, with 1")


class Guarded:
    namespace = "later"

    def __init__(self) -> None:
        self.done: list[str] = []

    @method(scopes=["later:use"])
    async def use(self) -> str:
        """Comes later, and needs a scope."""
        self.done.append("use")
        return "used"


def test_a_run_that_is_gone_on_with_has_the_scopes_that_it_began_with(tmp_path: Path) -> None:
    guarded = Guarded()
    built = (
        MachineBuilder("m").ask("one", "one?").tools("s", "later.*")
        .function("calls", lambda _: {"tool_calls": [{"id": "1", "name": "later.use"}]})
        .to("start", "one").to("one", "calls").to("calls", "s").to("s", "end")
    )  # fmt: skip

    async def main() -> Any:
        hub = Hub().register_machine(built)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"), replay_check=True)
        await hub.open()

        def answer(request: Any) -> bool:
            hub.register(guarded)
            return True

        try:
            async with connect(hub, answer=answer) as client:
                return (await client.call("machines.m", {})).structured
        finally:
            await hub.close()

    (result,) = drive(main())["tool_results"]
    assert not result["success"]
    assert "later:use" in result["error"]
    assert guarded.done == []


class Outside:
    """The same outside of machines."""

    namespace = "outside"

    @method
    def run_dry(self) -> int:
        """Takes the first of nothing."""
        return next(iter([]))  # type: ignore[no-any-return]

    @method
    async def step(self, ask: Ask, leave: bool) -> str:
        """A step that does it."""
        return await ask.step(sys.exit if leave else next, 2 if leave else iter(()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("run_dry", {}, "The function raised StopIteration"),
        ("step", {"leave": False}, "The function raised StopIteration"),
        ("step", {"leave": True}, ENDED),
    ],
)
def test_methods_outside_of_machines_fail_in_the_same_way(name: str, given: Any, told: str) -> None:
    async def main() -> None:
        hub = Hub().register(Outside())
        with pytest.raises(Exception) as failed:
            await hub.call(f"outside.{name}", given)
        assert str(failed.value) == told
        await assert_nothing_left(hub)

    drive(main())


@pytest.mark.parametrize("action", ["machine", "method", "tools"])
def test_a_machine_within_goes_on_if_what_comes_later_needs_scopes(tmp_path: Path, action: str) -> None:
    guarded = Guarded()
    call = [{"id": "1", "name": "later.use"}]
    inner = (
        MachineBuilder("inner").ask("one", "one?").tools("s", "later.*", "machines.*")
        .function("calls", lambda _: {"tool_calls": call})
        .to("start", "one").to("one", "calls").to("calls", "s").to("s", "end")
    )  # fmt: skip
    outer = MachineBuilder("m")
    if action == "tools":
        outer.tools("s", "machines.inner").function("f", lambda event: event["tool_results"][0])
    else:
        outer.state("s", action, {action: "inner" if action == "machine" else "machines.inner"})
        outer.function("f", lambda event: event)
    outer.to("start", "s").to("s", "f").to("f", "end")

    async def main() -> Any:
        hub = Hub().register_machine(inner).register_machine(outer)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"), replay_check=True)
        await hub.open()

        def answer(request: Any) -> bool:
            hub.register(guarded)
            return True

        try:
            async with connect(hub, answer=answer) as client:
                given = {"tool_calls": [{"id": "0", "name": "machines.inner"}]} if action == "tools" else {}
                return str((await client.call("machines.m", given)).structured)
        finally:
            await hub.close()

    told = drive(main())
    assert "bail_out" not in told
    assert "Not allowed to call later.use: it needs the scope later:use" in told
    assert guarded.done == []

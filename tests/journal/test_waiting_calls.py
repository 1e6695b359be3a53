"""What a waiting call owes to whoever looks at it: the questions that are open now, on every wire.

Questions time out, are withdrawn and are asked in branches, while others answer, come late or come twice.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from driving import drive, turns
from midcall import Ask, Hub, TimedOut, method
from midcall.errors import Cancelled, Fenced, JournalError
from midcall.journal.admin import Admin
from midcall.journal.contract import Entry, Journal
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.mcp import CALL_KINDS
from waiting_peers import Peer, Worker, messages, text


class Tools:
    """Tools that wait in every way."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        """Lets branches and replays go on that wait for it."""
        self.trail: list[str] = []

    @method
    async def impatient(self, ask: Ask) -> str:
        """Ask again at once after a time-out."""
        try:
            return await ask.prompt("Quick?", timeout=0.05)
        except TimedOut:
            return await ask.prompt("Again?")

    @method
    async def raced(self, ask: Ask) -> str:
        """Give up waiting by the means of asyncio."""
        try:
            return await asyncio.wait_for(ask.prompt("Quick?"), 0.05)
        except TimeoutError:
            return await ask.prompt("Again?")

    @method
    async def fickle(self, ask: Ask) -> str:
        """Withdraw a question."""
        first = ask.prompt("Quick?")
        waiting = asyncio.ensure_future(_wait_for(first))
        await asyncio.sleep(0.05)
        ask.cancel_question(first, "never mind")
        with pytest.raises(Cancelled):
            await waiting
        return await ask.prompt("Again?")

    @method
    async def branches(self, ask: Ask) -> str:
        """Ask A at once, and B beside it when the time has come."""

        async def late() -> str:
            await self.go_on.wait()
            return await ask.prompt("B?", key="b")

        return " ".join(await asyncio.gather(_wait_for(ask.prompt("A?", key="a")), late()))

    @method
    async def reporting(self, ask: Ask) -> str:
        """Ask, and say how far it is beside that when the time has come."""

        async def work() -> None:
            ask.progress("begun", 10)
            await self.go_on.wait()
            ask.progress("half", 50)
            ask.progress("nearly", 90)
            self.trail.append("works")

        answer, _ = await asyncio.gather(_wait_for(ask.prompt("A?", key="a")), work())
        return answer

    @method
    async def fading(self, ask: Ask) -> str:
        """Ask A and B; B is given up when the time has come."""

        async def shortly() -> str:
            asking = asyncio.ensure_future(_wait_for(ask.prompt("B?", key="b")))
            await self.go_on.wait()
            asking.cancel()
            return "no B"

        return " ".join(await asyncio.gather(_wait_for(ask.prompt("A?", key="a")), shortly()))

    @method
    async def twice(self, ask: Ask) -> str:
        """Two questions, one after the other."""
        return f"{await ask.prompt('First?', key='a')} {await ask.prompt('Second?', key='b')}"

    @method
    async def slow_again(self, ask: Ask) -> str:
        """A call that takes its time before it comes to its question again."""
        if self.trail:
            await self.go_on.wait()
        self.trail.append("began")
        return await ask.prompt("Name?", key="name")

    @method
    async def stream(self, ask: Ask) -> AsyncIterator[str]:
        """An element after each answer."""
        yield f"one {await ask.prompt('First?')}"
        yield f"two {await ask.prompt('Second?')}"

    @method
    async def busy(self, ask: Ask) -> str:
        """Ask, and then work until it is told to end."""
        name = await ask.prompt("Name?", key="name")
        self.trail.append("works")
        await self.go_on.wait()
        return name

    @method(long_running=True)
    async def long(self, ask: Ask) -> str:
        """A task that asks."""
        return await ask.prompt("Name?", key="name")

    @method(long_running=True)
    async def long_branches(self, ask: Ask) -> str:
        """The same as `branches`, as a task."""
        return await self.branches(ask)

    @method(long_running=True)
    async def long_impatient(self, ask: Ask) -> str:
        """The same as `impatient`, as a task."""
        return await self.impatient(ask)

    @method(long_running=True)
    async def long_slow(self, ask: Ask) -> str:
        """The same as `slow_again`, as a task."""
        return await self.slow_again(ask)

    @method(long_running=True)
    async def long_work(self, ask: Ask) -> str:
        """A task that works until it is told to end."""
        self.trail.append("works")
        try:
            await self.go_on.wait()
        finally:
            await asyncio.sleep(0.05)
            self.trail.append("cleaned up")
        return "worked"


async def _wait_for(asking: Awaitable[str]) -> str:
    return await asking


class Workshop:
    """Workers on one journal, each with its own tools."""

    def __init__(self, new_journal: Callable[[], Journal]) -> None:
        self.new_journal = new_journal
        self.stack = AsyncExitStack()

    async def worker(self, **options: Any) -> tuple[Worker, Tools]:
        tools = Tools()
        worker = Worker(Hub("workshop").register(tools), self.new_journal(), **options)
        await self.stack.enter_async_context(worker)
        return worker, tools


@pytest.fixture(params=["memory", "sqlite"])
def workshop(request: pytest.FixtureRequest, tmp_path: Path) -> Workshop:
    if request.param == "sqlite":
        return Workshop(lambda: SqliteJournal(tmp_path / "journal.db"))
    first = MemoryJournal()
    return Workshop(lambda: MemoryJournal(shared=first))


def run(workshop: Workshop, test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with workshop.stack:
            await test()

    drive(main())


async def until_asked(peer: Peer, tool: str, asked: dict[str, Any], *wanted: str) -> dict[str, Any]:
    """Come back without an answer until these questions are asked."""
    while messages(asked) != sorted(wanted):
        assert asked["resultType"] == "input_required", asked
        await asyncio.sleep(0.01)
        asked = await peer.tool(tool, asked["requestState"])
    return asked


async def until_task(peer: Peer, task: str, *wanted: str) -> dict[str, Any]:
    """Look at a task until it asks this."""
    while messages(shown := await peer.task(task)) != sorted(wanted):
        await asyncio.sleep(0.01)
    return shown


# --- a question ends, and another one is asked at once ------------------------------------------------


@pytest.mark.parametrize("tool", ["tools.impatient", "tools.raced", "tools.fickle"])
def test_a_question_asked_right_after_another_one_has_ended_reaches_the_client(
    workshop: Workshop, tool: str
) -> None:
    async def main() -> None:
        worker, _ = await workshop.worker()
        peer = worker.peer()
        asked = await until_asked(peer, tool, await peer.tool(tool), "Again?")
        (key,) = asked["inputRequests"]
        assert text(await peer.tool(tool, asked["requestState"], answers={key: "yes"})) == "yes"

    run(workshop, main)


def test_a_task_that_asks_again_after_a_time_out_shows_the_new_question(workshop: Workshop) -> None:
    async def main() -> None:
        worker, _ = await workshop.worker()
        peer = worker.peer()
        task = await peer.start_task("tools.long_impatient")
        shown = await until_task(peer, task, "Again?")
        (key,) = shown["inputRequests"]
        await peer.update(task, {key: "yes"})
        while (shown := await peer.task(task))["status"] != "completed":
            await asyncio.sleep(0.01)
        assert text(shown["result"]) == "yes"

    run(workshop, main)


@pytest.mark.parametrize("tool", ["tools.impatient", "tools.raced", "tools.fickle"])
def test_a_durable_subscriber_hears_of_the_end_of_one_question_and_of_the_next(
    workshop: Workshop, tool: str
) -> None:
    async def main() -> None:
        worker, _ = await workshop.worker()
        peer = worker.peer()
        call_id = await peer.subscribe(tool)
        await peer.until(lambda: "Again?" in peer.open(call_id))
        assert list(peer.open(call_id)) == ["Again?"]
        assert await peer.respond(call_id, peer.open(call_id)["Again?"], "yes") == {"success": True}
        await peer.until(lambda: peer.of(call_id, "done"))
        assert [item["content"] for item in peer.of(call_id, "data")] == ["yes"]

    run(workshop, main)


@pytest.mark.parametrize("tool", ["tools.impatient", "tools.raced", "tools.fickle"])
def test_a_call_whose_coroutine_is_dropped_at_every_question_does_the_same(
    workshop: Workshop, tool: str
) -> None:
    async def main() -> None:
        worker, _ = await workshop.worker(replay_check=True)
        peer = worker.peer()
        asked = await peer.tool(tool)
        while messages(asked) != ["Again?"]:
            await worker.durable.sweeper.look()
            asked = await peer.tool(tool, asked["requestState"])
            if messages(asked) == ["Quick?"] and tool != "tools.impatient":
                return  # nobody runs it any more, so nothing gives the question up: that is a fresh start
        (key,) = asked["inputRequests"]
        assert text(await peer.tool(tool, asked["requestState"], answers={key: "yes"})) == "yes"

    run(workshop, main)


# --- branches -----------------------------------------------------------------------------------------


def test_whoever_looks_sees_the_questions_of_all_branches_that_are_open_now(workshop: Workshop) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker()
        peer = worker.peer()
        operations = Admin(
            worker.journal, CALL_KINDS, durable=worker.mcp.resumption.durable, calls=worker.hub.calls
        )

        async def open_now() -> list[str]:
            (call,) = (await operations.list())["calls"]
            return sorted(one["message"] for one in call["questions"])

        asked = await peer.tool("tools.branches")
        assert messages(asked) == ["A?"]
        tools.go_on.set()
        asked = await until_asked(peer, "tools.branches", asked, "A?", "B?")
        assert await open_now() == ["A?", "B?"]
        asked = await peer.tool("tools.branches", asked["requestState"], answers={"a": "1"})
        assert messages(asked) == ["B?"]
        assert await open_now() == ["B?"]
        assert text(await peer.tool("tools.branches", asked["requestState"], answers={"b": "2"})) == "1 2"

    run(workshop, main)


def test_who_comes_back_hears_how_far_the_call_has_come_meanwhile(workshop: Workshop) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker()
        peer = worker.peer()
        asked = await peer.tool("tools.reporting", progress="first")
        tools.go_on.set()
        while not tools.trail:
            await asyncio.sleep(0)
        result = await peer.tool(
            "tools.reporting", asked["requestState"], answers={"a": "1"}, progress="second"
        )
        assert text(result) == "1"
        assert peer.progress == [("first", 10), ("second", 50), ("second", 90)]

    run(workshop, main)


def test_a_task_shows_the_questions_of_all_branches(workshop: Workshop) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker()
        peer = worker.peer()
        task = await peer.start_task("tools.long_branches")
        await until_task(peer, task, "A?")
        tools.go_on.set()
        await until_task(peer, task, "A?", "B?")
        await peer.update(task, {"b": "2"})
        assert messages(await peer.task(task)) == ["A?"]
        await peer.update(task, {"a": "1"})
        while (shown := await peer.task(task))["status"] != "completed":
            await asyncio.sleep(0.01)
        assert text(shown["result"]) == "1 2"

    run(workshop, main)


def test_a_durable_subscriber_is_asked_by_each_branch_once(workshop: Workshop) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker()
        peer = worker.peer()
        call_id = await peer.subscribe("tools.branches")
        await peer.until(lambda: peer.open(call_id))
        tools.go_on.set()
        await peer.until(lambda: len(peer.open(call_id)) == 2)
        await peer.respond(call_id, peer.open(call_id)["A?"], "1")
        await peer.respond(call_id, peer.open(call_id)["B?"], "2")
        await peer.until(lambda: peer.of(call_id, "done"))
        assert peer.asked(call_id) == ["A?", "B?"], "neither is sent twice"
        assert [item["content"] for item in peer.of(call_id, "data")] == ["1 2"]

    run(workshop, main)


def test_a_question_that_a_branch_has_given_up_is_not_asked_any_more(workshop: Workshop) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker()
        peer = worker.peer()
        asked = await peer.tool("tools.fading")
        assert messages(asked) == ["A?", "B?"]
        tools.go_on.set()
        asked = await until_asked(peer, "tools.fading", asked, "A?")
        late = await peer.tool("tools.fading", asked["requestState"], answers={"b": "late"})
        assert messages(late) == ["A?"]
        assert text(await peer.tool("tools.fading", asked["requestState"], answers={"a": "1"})) == "1 no B"

    run(workshop, main)


# --- late and repeated states -------------------------------------------------------------------------


def test_an_older_state_and_the_idempotency_key_bring_how_the_call_stands_now(workshop: Workshop) -> None:
    async def main() -> None:
        worker, _ = await workshop.worker()
        peer = worker.peer()
        first = await peer.tool("tools.twice", key="k")
        second = await peer.tool("tools.twice", first["requestState"], answers={"a": "1"})
        assert messages(second) == ["Second?"]
        assert await peer.tool("tools.twice", key="k") == second
        assert await peer.tool("tools.twice", first["requestState"], answers={"a": "other"}) == second
        mistaken = {"a": "other", "b": "early"}
        assert await peer.tool("tools.twice", first["requestState"], answers=mistaken) == second, (
            "nobody who had seen the first question only can answer the second"
        )
        end = await peer.tool("tools.twice", second["requestState"], answers={"b": "2"})
        assert text(end) == "1 2"
        for again in (first, second):
            assert await peer.tool("tools.twice", again["requestState"], answers={"a": "x", "b": "y"}) == end
        assert await peer.tool("tools.twice", key="k") == end

    run(workshop, main)


def test_an_older_state_still_answers_a_question_that_was_asked_with_it_and_is_open(
    workshop: Workshop,
) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker()
        peer = worker.peer()
        tools.go_on.set()
        asked = await until_asked(peer, "tools.branches", await peer.tool("tools.branches"), "A?", "B?")
        left = await peer.tool("tools.branches", asked["requestState"], answers={"a": "1"})
        assert messages(left) == ["B?"]
        assert text(await peer.tool("tools.branches", asked["requestState"], answers={"b": "2"})) == "1 2"

    run(workshop, main)


# --- two who follow -----------------------------------------------------------------------------------


def test_two_connections_follow_a_call_and_either_may_answer(workshop: Workshop) -> None:
    async def main() -> None:
        worker, _ = await workshop.worker()
        one, two = worker.peer(), worker.peer()
        call_id = await one.subscribe("tools.stream")
        await one.until(lambda: one.open(call_id))
        assert await two.request("plexus_attach", {"call": call_id}) == call_id
        await two.until(lambda: two.open(call_id))
        assert one.open(call_id) == two.open(call_id)
        await one.respond(call_id, one.open(call_id)["First?"], "a")
        await two.until(lambda: "Second?" in two.open(call_id))
        assert list(two.open(call_id)) == ["Second?"], "what the other one has answered is closed here"
        await two.respond(call_id, two.open(call_id)["Second?"], "b")
        for peer in (one, two):
            await peer.until(lambda peer=peer: peer.of(call_id, "done"))
            assert [(item["number"], item["content"]) for item in peer.of(call_id, "data")] == [
                (1, "one a"),
                (2, "two b"),
            ]
            assert len(peer.of(call_id, "done")) == 1

    run(workshop, main)


def test_who_follows_a_call_that_moves_to_another_worker_is_told(workshop: Workshop) -> None:
    async def main() -> None:
        (here, _), (there, _) = await workshop.worker(), await workshop.worker()
        one, two = here.peer(), there.peer()
        call_id = await one.subscribe("tools.stream")
        await one.until(lambda: one.open(call_id))
        assert await two.request("plexus_attach", {"call": call_id}) == call_id
        await one.until(lambda: one.of(call_id, "done"))
        (error,) = one.of(call_id, "error")
        assert (error["code"], error["recoverable"]) == ("attached_elsewhere", True)
        await two.until(lambda: two.open(call_id))
        await two.respond(call_id, two.open(call_id)["First?"], "a")
        await two.until(lambda: "Second?" in two.open(call_id))
        assert await one.request("plexus_attach", {"call": call_id, "after": 0}) == call_id
        await one.until(lambda: "Second?" in one.open(call_id))
        await one.respond(call_id, one.open(call_id)["Second?"], "b")
        await one.until(lambda: len(one.of(call_id, "done")) == 2)
        assert [item["content"] for item in one.of(call_id, "data")] == ["one a", "two b"]

    run(workshop, main)


# --- acknowledged when it is written ------------------------------------------------------------------


def answered_entry(entries: list[Entry]) -> Entry:
    """The latest entry of the only question."""
    return [entry for entry in entries if entry.fingerprint.startswith("prompt")][-1]


def test_an_answer_is_in_the_journal_when_it_is_acknowledged_however_long_the_call_takes_to_come_to_it(
    workshop: Workshop,
) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker(parked_calls=0)
        peer = worker.peer()
        task = await peer.start_task("tools.long_slow")
        await until_task(peer, task, "Name?")
        await peer.update(task, {"name": "Ada"})
        record, entries = await worker.loaded(task)
        assert (answered_entry(entries).state, answered_entry(entries).value) == ("given", b'{"Text":"Ada"}')
        assert record.status == "running"
        await peer.update(task, {"name": "too late"})  # as with any other key that is not open
        tools.go_on.set()
        while (shown := await peer.task(task))["status"] != "completed":
            await asyncio.sleep(0.01)
        assert text(shown["result"]) == "Ada"

    run(workshop, main)


def test_an_answer_over_a_websocket_waits_for_the_journal_and_not_for_the_call(workshop: Workshop) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker(parked_calls=0)
        peer = worker.peer()
        call_id = await peer.subscribe("tools.slow_again")
        await peer.until(lambda: peer.open(call_id))
        assert await peer.respond(call_id, peer.open(call_id)["Name?"], "Ada") == {"success": True}
        _, entries = await worker.loaded(call_id)
        assert answered_entry(entries).value == b'"Ada"'
        refused = await peer.respond(call_id, peer.open(call_id)["Name?"], "Bob")
        assert refused["message"].startswith("Unknown request ID"), refused
        tools.go_on.set()
        await peer.until(lambda: peer.of(call_id, "done"))
        assert [item["content"] for item in peer.of(call_id, "data")] == ["Ada"]

    run(workshop, main)


class Slow(SqliteJournal):
    """A journal that can be made to stand still before it writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes = asyncio.Event()
        self.writes.set()
        self.held = 0

    async def _pass(self) -> None:
        self.held += not self.writes.is_set()
        await self.writes.wait()

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        await self._pass()
        return await super().create(*args, **kwargs)

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        await self._pass()
        return await super().claim(*args, **kwargs)

    async def append(self, *args: Any, **kwargs: Any) -> None:
        await self._pass()
        await super().append(*args, **kwargs)

    async def settle(self, *args: Any, **kwargs: Any) -> None:
        await self._pass()
        await super().settle(*args, **kwargs)


def test_nothing_that_an_answer_led_to_leaves_before_the_answer_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Slow(tmp_path / "journal.db")
        async with Worker(Hub("workshop").register(Tools()), journal) as worker:
            peer = worker.peer()
            call_id = await peer.subscribe("tools.stream")
            await peer.until(lambda: peer.open(call_id))
            journal.writes.clear()
            answering = peer.send("plexus_respond", [call_id, peer.open(call_id)["First?"], "a"])
            while not journal.held:
                await asyncio.sleep(0)
            await turns()
            assert not answering.done()
            assert peer.of(call_id, "data") == []
            journal.writes.set()
            assert (await answering)["result"] == {"success": True}
            await peer.until(lambda: peer.of(call_id, "data"))

    drive(main())


def test_the_id_of_a_durable_call_is_told_once_the_call_is_in_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Slow(tmp_path / "journal.db")
        async with Worker(Hub("workshop").register(Tools()), journal) as worker:
            peer = worker.peer()
            journal.writes.clear()
            subscribing = peer.send("plexus_subscribe", {"method": "tools.stream", "durable": True})
            while not journal.held:
                await asyncio.sleep(0)
            await turns()
            assert not subscribing.done()
            journal.writes.set()
            await worker.record((await subscribing)["result"])

    drive(main())


def test_a_worker_that_was_taken_over_takes_no_answer_that_is_nowhere(workshop: Workshop) -> None:
    async def main() -> None:
        (frozen, _), (other, _) = await workshop.worker(), await workshop.worker()
        peer, elsewhere = frozen.peer(), other.peer()
        task = await peer.start_task("tools.long")
        await until_task(peer, task, "Name?")
        await elsewhere.update(task, {"name": "first"})
        await peer.update(task, {"name": "second"})
        while (shown := await peer.task(task))["status"] != "completed":
            await asyncio.sleep(0.01)
        assert text(shown["result"]) == "first"

        call_id = await peer.subscribe("tools.twice")
        await peer.until(lambda: peer.open(call_id))
        (request_id,) = peer.open(call_id).values()
        assert await other.durable.answer(call_id, {request_id: "first"})
        refused = await peer.respond(call_id, request_id, "second")
        assert refused["message"].startswith("Unknown request ID"), refused

    run(workshop, main)


def test_a_cancelled_task_is_in_the_journal_as_such_when_that_is_acknowledged(workshop: Workshop) -> None:
    async def main() -> None:
        worker, tools = await workshop.worker()
        peer = worker.peer()
        task = await peer.start_task("tools.long_work")
        while not tools.trail:
            await asyncio.sleep(0.01)
        await peer.cancel(task)
        assert (await worker.record(task)).status == "aborted"
        assert tools.trail == ["works", "cleaned up"]

    run(workshop, main)


# --- attaching in any moment --------------------------------------------------------------------------


def test_attaching_in_the_moment_in_which_a_segment_ends_is_no_error(workshop: Workshop) -> None:
    async def main() -> None:
        (here, tools), (there, _) = await workshop.worker(), await workshop.worker()
        one, two = here.peer(), there.peer()
        call_id = await one.subscribe("tools.busy")
        await one.until(lambda: one.open(call_id))
        await one.respond(call_id, one.open(call_id)["Name?"], "Ada")
        while not tools.trail:
            await asyncio.sleep(0.01)
        claim = there.journal.claim

        async def late_claim(*args: Any, **kwargs: Any) -> Any:
            """The segment ends between the look at the call and the claim."""
            if not tools.go_on.is_set():
                tools.go_on.set()
                await one.until(lambda: one.of(call_id, "done"))
            return await claim(*args, **kwargs)

        there.journal.claim = late_claim  # type: ignore[method-assign]
        assert await two.request("plexus_attach", {"call": call_id}) == call_id
        await two.until(lambda: two.of(call_id, "done"))
        assert two.of(call_id, "error") == []
        assert [item["content"] for item in two.of(call_id, "data")] == ["Ada"]

    run(workshop, main)


# --- a journal in trouble -----------------------------------------------------------------------------


def test_a_durable_call_that_the_journal_refused_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        async with Worker(Hub("workshop").register(Tools()), journal) as worker:
            peer = worker.peer()
            create = journal.create

            async def refuse(*args: Any, **kwargs: Any) -> Any:
                raise JournalError("The disk is full")

            journal.create = refuse  # type: ignore[method-assign]
            refused = await peer.request("plexus_subscribe", {"method": "tools.stream", "durable": True})
            assert refused["data"]["code"] == "journal_error", refused
            keyed = await peer.tool("tools.twice", key="k")
            assert keyed["data"]["code"] == "journal_error", keyed
            await turns()
            assert list(worker.durable.live) == []
            assert len(worker.hub.calls) == 0
            journal.create = create  # type: ignore[method-assign]
            assert messages(await peer.tool("tools.twice", key="k")) == ["First?"]

    drive(main())


# --- code that changes, workers that die --------------------------------------------------------------


class Changed:
    """What `Tools.long` was changed to."""

    @method(long_running=True)
    async def long(self, ask: Ask) -> str:
        """Ask something else."""
        return await ask.prompt("Address?", key="address")


def test_a_task_that_met_changed_code_goes_on_when_the_code_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        def journal() -> SqliteJournal:
            return SqliteJournal(tmp_path / "journal.db")

        async with Worker(Hub("workshop").register(Tools()), journal()) as worker:
            peer = worker.peer()
            task = await peer.start_task("tools.long")
            await until_task(peer, task, "Name?")
        async with Worker(Hub("workshop").register(Changed(), namespace="tools"), journal()) as worker:
            peer = worker.peer()
            await peer.update(task, {"name": "Ada"})
            while (await worker.record(task)).status != "diverged":
                await asyncio.sleep(0.01)
            for _ in range(3):
                assert (await peer.task(task))["status"] == "working"
        async with Worker(Hub("workshop").register(Tools()), journal()) as worker:
            peer = worker.peer()
            while (shown := await peer.task(task))["status"] != "completed":
                await asyncio.sleep(0.01)
            assert text(shown["result"]) == "Ada", "the answer that was acknowledged is not lost"

    drive(main())


def test_whoever_asks_for_a_task_takes_it_over_from_a_worker_that_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        origin = MemoryJournal()
        tools = Tools()
        dying, left = MemoryJournal(shared=origin), MemoryJournal(shared=origin)
        async with (
            Worker(Hub("workshop").register(tools), dying) as worker,
            Worker(Hub("workshop").register(Tools()), left, looks_after=False) as other,
        ):
            peer = worker.peer()
            task = await peer.start_task("tools.long_slow")
            await until_task(peer, task, "Name?")
            await peer.update(task, {"name": "Ada"})
            dying.die()
            elsewhere = other.peer()
            while (shown := await elsewhere.task(task))["status"] != "completed":
                await asyncio.sleep(0.01)
            assert text(shown["result"]) == "Ada"
            with pytest.raises(Fenced):
                await dying.append(task, 1, [])

    drive(main())


def test_a_request_that_waits_for_a_worker_takes_the_call_over_when_that_dies() -> None:
    async def main() -> None:
        origin = MemoryJournal()
        tools = Tools()
        dying, left = MemoryJournal(shared=origin), MemoryJournal(shared=origin)
        other_tools = Tools()
        other_tools.go_on.set()
        async with (
            Worker(Hub("workshop").register(tools), dying) as worker,
            Worker(Hub("workshop").register(other_tools), left, looks_after=False) as other,
        ):
            peer, elsewhere = worker.peer(), other.peer()
            asked = await peer.tool("tools.busy")
            peer.send("tools/call", peer.params("tools.busy", asked["requestState"], {"name": "Ada"}))
            while not tools.trail:
                await asyncio.sleep(0.01)
            coming_back = elsewhere.send(
                "tools/call", peer.params("tools.busy", asked["requestState"], {"name": "x"})
            )
            await turns()
            assert not coming_back.done(), "its worker is at work"
            dying.die()
            assert text((await coming_back)["result"]) == "Ada"
            assert other_tools.trail == ["works"]

    drive(main())


@pytest.mark.parametrize("way", ["retry", "task", "websocket"])
def test_a_call_that_has_ended_is_freed_without_the_collector(way: str, workshop: Workshop) -> None:
    """What leads back to itself is found only by the collector, which holds up all other calls for that."""

    async def one(peer: Peer) -> None:
        if way == "retry":
            asked = await peer.tool("tools.twice")
            asked = await peer.tool("tools.twice", asked["requestState"], answers={"a": "A"})
            assert text(await peer.tool("tools.twice", asked["requestState"], answers={"b": "B"})) == "A B"
        elif way == "task":
            task = await peer.start_task("tools.long")
            await until_task(peer, task, "Name?")
            await peer.update(task, {"name": "Ada"})
            while (await peer.task(task))["status"] != "completed":
                await asyncio.sleep(0.01)
        else:
            call_id = await peer.subscribe("tools.twice")
            for message in ("First?", "Second?"):
                await peer.until(lambda wanted=message: wanted in peer.open(call_id))
                await peer.respond(call_id, peer.open(call_id)[message], "A")
            await peer.until(lambda: peer.of(call_id, "done"))

    async def main() -> None:
        worker, _ = await workshop.worker()
        peer = worker.peer()
        await one(peer)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await one(peer)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert [one for one in gc.garbage if type(one).__module__.startswith("midcall")] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    run(workshop, main)

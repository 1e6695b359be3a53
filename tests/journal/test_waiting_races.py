"""What may happen to a waiting call while it is being written down: nothing is lost, done twice, or hangs."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel, field_validator

from driving import drive, turns, until
from midcall import Ask, Hub, TimedOut, method
from midcall.errors import JournalError
from midcall.journal import durable, sweeper
from midcall.journal.contract import Entry, Gone, Parking
from midcall.journal.dialect import Detached
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.journal.state import answers_for, asked_of
from midcall.mcp.dialects.input_required import InputRequired
from midcall.replay import question_id
from waiting_peers import TASKS, Peer, Worker, messages, responses, text


class Gated(MemoryJournal):
    """A journal that can be made to stand still, or to fail, in one thing."""

    def __init__(self, shared: MemoryJournal | None = None) -> None:
        super().__init__(shared)
        self._gates: dict[str, asyncio.Event] = {}
        self.refuses: set[str] = set()
        self.refused: set[str] = set()
        self.fails: set[str] = set()
        """What is held and goes wrong, once."""
        self.held: set[str] = set()
        self.parked_with: list[bytes] = []

    def hold(self, name: str) -> None:
        self._gates[name] = asyncio.Event()
        self.held.discard(name)

    def let_go(self, name: str) -> None:
        self._gates.pop(name).set()

    async def reached(self, name: str) -> None:
        while name not in self.held:
            await asyncio.sleep(0)

    async def _pass(self, name: str) -> None:
        if name in self.refuses:
            self.refused.add(name)
            raise JournalError("The disk is full")
        if name in self._gates:
            self.held.add(name)
            await self._gates[name].wait()
            if name in self.fails:
                self.fails.discard(name)
                raise JournalError("The disk is full")

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        await self._pass("create")
        return await super().create(*args, **kwargs)

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        await self._pass("claim")
        return await super().claim(*args, **kwargs)

    async def append(self, *args: Any, **kwargs: Any) -> None:
        await self._pass("append")
        await super().append(*args, **kwargs)

    async def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Any = (),
    ) -> None:
        await self._pass("settle")
        self.parked_with.append(parking.questions)
        await super().settle(call_id, fence, segment, outcome, parking, entries)

    async def release(self, *args: Any, **kwargs: Any) -> None:
        await self._pass("release")
        await super().release(*args, **kwargs)


class Tools:
    """Tools that ask."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.ran = 0

    @method
    async def pair(self, ask: Ask) -> str:
        """Ask two things at once, and work after each answer."""

        async def one(key: str) -> str:
            answer = await ask.prompt(f"{key}?", key=key)
            await self.go_on.wait()
            return answer

        return " ".join(await asyncio.gather(one("a"), one("b")))

    @method(long_running=True)
    async def long_pair(self, ask: Ask) -> str:
        """The same as a task."""
        return await self.pair(ask)

    @method
    async def slow_again(self, ask: Ask) -> str:
        """A call that takes its time when it is run again."""
        self.ran += 1
        if self.ran > 1:
            await self.go_on.wait()
        return f"{await ask.prompt('Name?', key='name')} {await ask.prompt('Next?', key='next')}"

    @method(long_running=True)
    async def long_slow(self, ask: Ask) -> str:
        """The same as a task."""
        return await self.slow_again(ask)

    @method(long_running=True)
    async def long(self, ask: Ask) -> str:
        """A task that asks three things."""
        return " ".join([await ask.prompt(f"{key}?", key=key) for key in ("a", "b", "c")])

    @method
    async def stream(self, ask: Ask) -> str:
        """Ask three things."""
        return await self.long(ask)

    @method(long_running=True)
    async def late(self, ask: Ask) -> str:
        """Work on when nobody answers."""
        try:
            return await ask.prompt("Quick?", timeout=0.05)
        except TimedOut:
            await asyncio.sleep(0.1)
            return "late"

    @method
    async def again(self, ask: Ask) -> str:
        """Ask again when nobody answers."""
        try:
            return await ask.prompt("Quick?", timeout=0.05)
        except TimedOut:
            return await ask.prompt("Again?")

    @method
    async def background(self, ask: Ask) -> str:
        """Become a task, and end soon."""
        ask.background()
        if self.ran:
            await self.go_on.wait()
        return "done"


def workshop(journal: Any, tools: Any = None, **options: Any) -> Worker:
    return Worker(Hub("workshop").register(tools or Tools(), namespace="tools"), journal, **options)


async def until_task(peer: Peer, task: str, *wanted: str) -> None:
    while messages(await peer.task(task)) != sorted(wanted):
        await asyncio.sleep(0.01)


async def outcome(peer: Peer, task: str) -> str:
    while (shown := await peer.task(task))["status"] != "completed":
        assert shown["status"] == "working", shown
        await asyncio.sleep(0.01)
    return text(shown["result"])


def latest(entries: list[Entry], place: str) -> Entry:
    return [entry for entry in entries if entry.key == place][-1]


# --- requests -----------------------------------------------------------------------------------------


def test_two_requests_that_answer_one_question_each_are_both_answered() -> None:
    async def main() -> None:
        tools = Tools()
        async with workshop(MemoryJournal(), tools) as worker:
            peer = worker.peer()
            asked = await peer.tool("tools.pair")
            assert messages(asked) == ["a?", "b?"]
            both = [
                peer.send("tools/call", peer.params("tools.pair", asked["requestState"], {key: key.upper()}))
                for key in ("a", "b")
            ]
            await turns()
            tools.go_on.set()
            assert [text((await one)["result"]) for one in both] == ["A B", "A B"]

    drive(main())


def test_a_request_that_is_sent_twice_is_answered_twice_however_slow_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(durable, "LOOK", 0.02)

    async def main() -> None:
        journal = Gated()
        async with workshop(journal) as worker:
            peer = worker.peer()
            asked = await peer.tool("tools.stream")
            params = peer.params("tools.stream", asked["requestState"], {"a": "A"})
            journal.hold("claim")
            both = [peer.send("tools/call", params) for _ in range(2)]
            await journal.reached("claim")
            await asyncio.sleep(0.1)
            assert not any(one.done() for one in both)
            journal.let_go("claim")
            assert [messages((await one)["result"]) for one in both] == [["b?"], ["b?"]]

    drive(main())


def test_who_waits_for_another_workers_call_as_this_one_stops_is_sent_there_whatever_it_is_doing() -> None:
    async def main() -> None:
        shared, tools = MemoryJournal(), Tools()
        stopped = Gated(shared)
        async with workshop(Gated(shared), tools) as first, workshop(stopped) as second:
            state = (await first.peer().tool("tools.pair"))["requestState"]
            peer = first.peer()
            running = peer.send("tools/call", peer.params("tools.pair", state, {"a": "A", "b": "B"}))
            while (await first.only()).status != "running":
                await asyncio.sleep(0)
            stopped.hold("claim")  # it looks whether the other worker is gone, and the journal is slow
            waiting = second.peer().send("tools/call", peer.params("tools.pair", state))
            await stopped.reached("claim")
            await second.hub.close(grace=0)
            told = (await waiting)["result"]
            assert told["resultType"] == "input_required"
            assert messages(told) == []
            tools.go_on.set()
            assert text(await peer.tool("tools.pair", told["requestState"])) == "A B"
            assert text((await running)["result"]) == "A B"

    drive(main())


@pytest.mark.parametrize("how", ["retry", "task", "websocket"])
def test_an_answer_takes_the_place_of_one_that_could_not_be_written(how: str) -> None:
    """And is acknowledged only when it has: not because another one was about to be taken."""

    async def main() -> None:
        journal = Gated()
        async with workshop(journal) as worker:
            peer = worker.peer()
            if how == "task":
                call_id = await peer.start_task("tools.long")
                await until_task(peer, call_id, "a?")
                made = {"taskId": call_id, "_meta": TASKS}
                sent = [("tasks/update", {**made, "inputResponses": responses({"a": said})}) for said in "12"]
            elif how == "retry":
                asked = await peer.tool("tools.stream")
                call_id = asked["_meta"]["dev.midcall/callId"]
                sent = [
                    ("tools/call", peer.params("tools.stream", asked["requestState"], {"a": said}))
                    for said in "12"
                ]
            else:
                call_id = await peer.subscribe("tools.stream")
                await peer.until(lambda: peer.open(call_id))
                question = peer.open(call_id)["a?"]
                sent = [("plexus_respond", [call_id, question, said]) for said in "12"]
            journal.hold("claim")
            one = peer.send(*sent[0])
            await journal.reached("claim")
            two = peer.send(*sent[1])
            await turns()
            assert not two.done()
            journal.fails.add("claim")
            journal.let_go("claim")
            assert "error" in await one
            assert "result" in await two
            _, entries = await worker.loaded(call_id)
            assert latest(entries, "1").value in (b'"2"', b'{"Text":"2"}')

    drive(main())


@pytest.mark.parametrize("far", [False, True], ids=["here", "run again"])
@pytest.mark.parametrize("how", ["retry", "task"])
def test_of_answers_that_come_together_each_counts_that_is_still_asked_for(how: str, far: bool) -> None:
    """Another request answers one of two questions; this one both, in the same moment."""

    async def main() -> None:
        journal, tools = Gated(), Tools()
        tools.go_on.set()
        async with workshop(journal, tools) as worker:
            peer = worker.peer()
            if how == "task":
                call_id = await peer.start_task("tools.long_pair")
                await until_task(peer, call_id, "a?", "b?")
            else:
                asked = await peer.tool("tools.pair")
                call_id = asked["_meta"]["dev.midcall/callId"]
            if far:
                for dialect in list(worker.durable.live):
                    dialect.discard()
            journal.hold("claim")
            sent = []
            for answers in ({"a": "1"}, {"a": "2", "b": "2"}):
                if how == "task":
                    params = {"taskId": call_id, "inputResponses": responses(answers), "_meta": TASKS}
                    sent.append(peer.send("tasks/update", params))
                else:
                    sent.append(
                        peer.send("tools/call", peer.params("tools.pair", asked["requestState"], answers))
                    )
                await journal.reached("claim")
                await turns()
            journal.let_go("claim")
            assert all("result" in one for one in await asyncio.gather(*sent))
            if how == "task":
                assert await outcome(peer, call_id) == "1 2"
            else:
                assert text((await sent[1])["result"]) == "1 2"

    drive(main())


class Odd:
    """A tool whose question cannot be written down."""

    @method
    async def tool(self, ask: Ask) -> str:
        """Ask under a key that JSON cannot carry."""
        return await ask.prompt("Name?", key="\ud800")


def test_a_request_whose_question_cannot_be_written_down_is_answered() -> None:
    async def main() -> None:
        async with workshop(MemoryJournal(), Odd()) as worker:
            refused = await worker.peer().tool("tools.tool")
            assert refused["code"] == -32603, refused
            assert list(worker.durable.live) == []

    drive(main())


def test_a_call_that_ends_as_it_becomes_a_task_is_a_task_that_has_ended() -> None:
    async def main() -> None:
        tools = Tools()
        journal = Gated()
        params = {"name": "tools.background", "arguments": {}, "_meta": TASKS}
        async with workshop(journal, tools) as worker:
            peer = worker.peer()
            began = await peer.request("tools/call", params)
            assert await outcome(peer, began["taskId"]) == "done"
            tools.ran = 1
            journal.hold("create")
            beginning = peer.send("tools/call", params)
            await journal.reached("create")
            tools.go_on.set()
            await turns()
            journal.let_go("create")
            assert await outcome(peer, (await beginning)["result"]["taskId"]) == "done"

    drive(main())


def test_a_task_that_was_about_to_ask_is_cancelled_when_that_is_in_the_journal() -> None:
    async def main() -> None:
        journal = Gated()
        async with workshop(journal) as worker:
            peer = worker.peer()
            task = await peer.start_task("tools.long")
            await until_task(peer, task, "a?")
            journal.hold("settle")
            await peer.update(task, {"a": "1"})
            await journal.reached("settle")
            journal.hold("claim")
            aborting = asyncio.ensure_future(worker.durable.abort(task, "enough", b"{}"))
            await turns()
            journal.let_go("settle")
            await turns()
            assert not aborting.done()
            journal.let_go("claim")
            assert await aborting
            assert (await worker.record(task)).status == "aborted"

    drive(main())


# --- answers ------------------------------------------------------------------------------------------


async def run_again(worker: Worker, call_id: str) -> Detached:
    """Have a call whose coroutine was dropped run again."""
    front = await worker.durable.claim(call_id, (await worker.record(call_id)).segment)
    assert isinstance(front, Detached)
    worker.durable.resume(front)
    return front


def test_a_call_is_not_parked_with_a_question_whose_answer_is_just_being_written() -> None:
    async def main() -> None:
        journal = Gated()
        async with workshop(journal, parked_calls=0) as worker:
            peer = worker.peer()
            task = await peer.start_task("tools.long")
            await until_task(peer, task, "a?")
            front = await run_again(worker, task)
            while not front.open:
                await asyncio.sleep(0)
            journal.parked_with.clear()
            journal.hold("append")
            answering = asyncio.ensure_future(
                worker.durable.answer(task, {front.open["a"].request_id: {"Text": "1"}})
            )
            await journal.reached("append")
            await turns()
            journal.let_go("append")
            await answering
            await until_task(peer, task, "b?")
            assert not [parked for parked in journal.parked_with if b'"a?"' in parked]

    drive(main())


def test_an_answer_stays_the_last_word_though_the_replay_came_to_its_question_meanwhile() -> None:
    async def main() -> None:
        journal, tools = Gated(), Tools()
        async with workshop(journal, tools, parked_calls=0) as worker:
            peer = worker.peer()
            call_id = await peer.subscribe("tools.slow_again")
            await peer.until(lambda: peer.open(call_id))
            await run_again(worker, call_id)
            await turns()
            journal.hold("append")
            answering = peer.send("plexus_respond", [call_id, peer.open(call_id)["Name?"], "Ada"])
            await journal.reached("append")
            tools.go_on.set()
            await turns()
            journal.let_go("append")
            assert (await answering)["result"] == {"success": True}
            await peer.until(lambda: "Next?" in peer.asked(call_id))
            _, entries = await worker.loaded(call_id)
            assert (latest(entries, "1").state, latest(entries, "1").value) == ("given", b'"Ada"')

    drive(main())


def test_of_two_answers_to_a_call_that_is_run_again_one_is_taken() -> None:
    async def main() -> None:
        journal = Gated()
        async with workshop(journal, parked_calls=0) as worker:
            peer = worker.peer()
            call_id = await peer.subscribe("tools.slow_again")
            await peer.until(lambda: peer.open(call_id))
            await run_again(worker, call_id)
            await turns()
            journal.hold("append")
            answer = [call_id, peer.open(call_id)["Name?"]]
            one, two = (peer.send("plexus_respond", [*answer, said]) for said in ("yes", "no"))
            await journal.reached("append")
            await turns()
            journal.let_go("append")
            assert (await one)["result"] == {"success": True}
            assert (await two)["error"]["message"].startswith("Unknown request ID")
            _, entries = await worker.loaded(call_id)
            assert [entry.value for entry in entries if entry.state == "given"] == [b'"yes"']

    drive(main())


def test_an_answer_that_a_worker_acknowledged_before_it_died_is_not_replaced_where_the_call_was_parked() -> (
    None
):
    async def main() -> None:
        first, slow, here = MemoryJournal(), Tools(), Tools()
        dying = MemoryJournal(first)
        slow.ran = 1
        here.go_on.set()
        async with (
            workshop(first, here, looks_after=False) as worker,
            workshop(dying, slow, looks_after=False) as other,
        ):
            peer, elsewhere = worker.peer(), other.peer()
            task = await peer.start_task("tools.long_slow")
            await until_task(peer, task, "Name?")
            await elsewhere.update(task, {"name": "first"})
            dying.die()
            await peer.update(task, {"name": "second"})
            await until_task(peer, task, "Next?")
            await peer.update(task, {"next": "x"})
            assert await outcome(peer, task) == "first x"

    drive(main())


def test_a_waiting_call_goes_on_whose_answer_was_written_by_a_claim_that_was_taken_back(
    tmp_path: Any,
) -> None:
    async def main() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        async with workshop(journal, parked_calls=0) as worker:
            peer = worker.peer()
            task = await peer.start_task("tools.long")
            for key, then in (("a", "b"), ("b", "c")):
                await until_task(peer, task, f"{key}?")
                record, entries = await worker.loaded(task)
                asked = question_id(task, asked_of(record).questions[key].place)
                given = answers_for(record, entries, {asked: {"Text": key}})
                claim = await journal.claim(task, record.segment, given)
                await journal._unclaim(task, claim.call.fence, "waiting")  # type: ignore[union-attr]
                if key == "a":
                    await peer.update(task, {key: "something else"})
                await until_task(peer, task, f"{then}?")
            await peer.update(task, {"c": "c"})
            assert await outcome(peer, task) == "a b c"

    drive(main())


class Name(BaseModel):
    """A name that is taken once somebody has looked at it."""

    name: str

    @field_validator("name")
    @classmethod
    def is_free(cls, name: str) -> str:
        if name in SEEN:
            raise ValueError("it is taken")
        SEEN.append(name)
        return name


SEEN: list[str] = []


class Registry:
    """A tool whose validator sees the same answer otherwise the next time."""

    @method
    async def join(self, ask: Ask) -> str:
        """Ask for a name."""
        return (await ask.form(Name)).name


def test_an_answer_is_read_once() -> None:
    async def main() -> None:
        SEEN.clear()
        async with workshop(MemoryJournal(), Registry()) as worker:
            peer = worker.peer()
            call_id = await peer.subscribe("tools.join")
            await peer.until(lambda: peer.of(call_id, "request"))
            request_id = peer.of(call_id, "request")[0]["request_id"]
            assert await peer.respond(call_id, request_id, {"name": "Ada"}) == {"success": True}
            await peer.until(lambda: peer.of(call_id, "done"))
            assert [item["content"] for item in peer.of(call_id, "data")] == ["Ada"]

    drive(main())


# --- calls that nobody would run ----------------------------------------------------------------------


def test_a_call_that_is_evicted_while_it_goes_on_alone_is_run_again() -> None:
    async def main() -> None:
        journal = Gated()
        async with workshop(journal) as worker:
            peer = worker.peer()
            journal.hold("claim")
            task = await peer.start_task("tools.late")
            await journal.reached("claim")  # nobody has answered in time
            looking = asyncio.ensure_future(worker.durable.sweeper.look())
            await turns()
            journal.let_go("claim")
            await looking
            assert await outcome(peer, task) == "late"

    drive(main())


class Changed:
    """What `Tools.slow_again` was changed to."""

    @method
    async def slow_again(self, ask: Ask) -> str:
        """Ask something else."""
        return await ask.prompt("Address?", key="name")


class Demanding:
    """The same with an argument."""

    @method
    async def slow_again(self, ask: Ask, size: int) -> str:
        """Ask the same."""
        return await ask.prompt("Name?", key="name")


@pytest.mark.parametrize("tools", [Changed, Demanding])
def test_a_call_that_does_not_fit_is_let_go_of_once_the_journal_is_back(tools: Any) -> None:
    async def main() -> None:
        first = MemoryJournal()
        journal = Gated(first)
        async with workshop(first) as worker, workshop(journal, tools()) as other:
            asked = await worker.peer().tool("tools.slow_again")
            journal.refuses.add("release")
            peer = other.peer()
            params = peer.params("tools.slow_again", asked["requestState"], {"name": "x"})
            coming_back = peer.send("tools/call", params)
            await until(lambda: journal.refused)
            journal.refuses.clear()
            await coming_back
            while (await other.only()).status != "diverged":
                await asyncio.sleep(0.01)
            assert list(other.durable.live) == []

    drive(main())


def test_whoever_attaches_to_a_call_that_does_not_fit_is_told_each_time() -> None:
    async def main() -> None:
        first = MemoryJournal()
        async with workshop(first) as worker, workshop(MemoryJournal(first), Demanding()) as other:
            peer, elsewhere = worker.peer(), other.peer()
            call_id = await peer.subscribe("tools.slow_again")
            await peer.until(lambda: peer.open(call_id))
            for _ in range(2):
                refused = await elsewhere.request("plexus_attach", {"call": call_id})
                assert refused["data"]["status"] == "diverged", refused

    drive(main())


# --- who follows --------------------------------------------------------------------------------------


def test_who_follows_an_evicted_call_hears_what_another_worker_does_with_it() -> None:
    async def main() -> None:
        first = MemoryJournal()
        async with (
            workshop(first, parked_calls=0, looks_after=False) as worker,
            workshop(MemoryJournal(first)) as other,
        ):
            peer = worker.peer()
            call_id = await peer.subscribe("tools.again")
            await peer.until(lambda: peer.open(call_id))
            await asyncio.sleep(0.1)
            await other.durable.sweeper.look()
            await peer.until(lambda: "Again?" in peer.open(call_id))
            assert list(peer.open(call_id)) == ["Again?"]

    drive(main())


def test_who_follows_a_call_that_is_lost_while_it_is_taken_back_hears_what_comes_then() -> None:
    async def main() -> None:
        first = MemoryJournal()
        here = MemoryJournal(first)
        posting, may_post = asyncio.Event(), asyncio.Event()
        post = here.post

        async def slow_post(*args: Any) -> bool:
            posting.set()
            await may_post.wait()
            return await post(*args)

        here.post = slow_post  # type: ignore[method-assign]
        async with workshop(here, looks_after=False) as worker, workshop(first, looks_after=False) as other:
            peer = worker.peer()
            call_id = await peer.subscribe("tools.stream")
            await peer.until(lambda: peer.open(call_id))
            assert await other.durable.answer(call_id, {peer.open(call_id)["a?"]: "1"})
            await posting.wait()
            await peer.until(lambda: "b?" in peer.open(call_id))
            assert await other.durable.answer(call_id, {peer.open(call_id)["b?"]: "2"})
            await turns()
            may_post.set()
            await peer.until(lambda: "c?" in peer.open(call_id))

    drive(main())


# --- what should not happen ---------------------------------------------------------------------------


def test_the_sweeper_goes_on_whatever_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "SWEEP", 0.001)

    class Strange(MemoryJournal):
        looks = 0

        async def due(self, limit: int = 100) -> Any:
            self.looks += 1
            if self.looks < 5:
                raise TypeError("nobody has thought of that")
            return await super().due(limit)

        async def sweep(self, limit: int = 1000) -> int:
            swept.set()
            return await super().sweep(limit)

    swept = asyncio.Event()

    async def main() -> None:
        async with workshop(journal := Strange()):
            await swept.wait()
            assert journal.looks == 5

    drive(main())


def test_a_call_that_cannot_be_made_again_does_not_stay_claimed() -> None:
    async def main() -> None:
        async with workshop(first := MemoryJournal()) as worker:
            peer = worker.peer()
            task = await peer.start_task("tools.long")
            while not messages(await peer.task(task)):
                await asyncio.sleep(0.01)
            kinds = worker.durable.kinds
            kept = dict(kinds)
            kinds["mcp"] = lambda record: 1 / 0  # type: ignore[assignment]
            worker.durable.let_go()  # nothing is parked here any more
            assert await worker.durable.claim(task, 1) == Gone("diverged")
            assert (await worker.record(task)).status == "diverged"
            kinds |= kept
            assert isinstance(await worker.durable.claim(task, 1), Detached)
        assert first is worker.durable.journal

    drive(main())


def test_whoever_waits_for_a_call_that_is_taken_from_this_worker_and_comes_back_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Detached] = []
    monkeypatch.setattr(InputRequired, "released", lambda self: told.append(self))  # noqa: PLW0108  bound

    class Waits:
        @method(long_running=True)
        async def work(self, ask: Ask) -> str:
            await asyncio.sleep(60)
            return await ask.prompt("Name?")

    async def main() -> None:
        async with workshop(journal := MemoryJournal(), Waits()) as worker:
            task = await worker.peer().start_task("tools.work")
            live, record = worker.durable.live.get(task), await worker.record(task)
            # Another worker took this one for dead, went on with the call, and died itself.
            journal._memory.calls[task].call = replace(record, fence=record.fence + 1, owner="nobody")
            claimed = await worker.durable.claim(task, record.segment)
            assert isinstance(claimed, Detached)
            assert claimed is not live
            assert told == [live]
            worker.durable.resume(claimed)
            assert await worker.durable.abort(task, "enough", b"{}")

    drive(main())

"""Whatever clients and workers do, in whatever order: no step twice, no answer lost, all observers agree.

Several workers share a journal; hypothesis makes up what happens to a handful of calls: answers, wrong ones,
duplicates, cancels, aborts, time that passes, workers that stall at any gate (see `crash.inside`), count as
gone, come back late, leave or die. After each rule the history is checked; in the end everybody who is left
must be able to bring each call to its end.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from crash.inside import LIMIT, QUESTIONS, WAIT, Fleet, Sent, Worker
from journal_contract import Store
from journal_model import MemoryStore
from midcall.journal import durable, sweeper
from midcall.journal.contract import ENDED, MOST_CLAIMS, Journal
from midcall.mcp import resume
from midcall.mcp.request import McpError
from midcall.mcp.results import encode_outcome
from sqlite_store import SqliteStore

WORKERS = (10_000, 1, 0)
"""How many coroutines each keeps in memory: all of them, the last one, none."""
MOST_CALLS = 4
GIVEN_UP = "it brought down each worker that ran it"
UNKNOWN = "Invalid or expired requestState"

Picked = TypeVar("Picked")
any_of = st.integers(0, 11)
hurry = st.booleans()
gates = st.integers(0, 11)


def pick(those: list[Picked], number: int) -> Picked | None:
    """One of those, or None if there is none.

    What there is to act on depends on how fast the machine is. A rule that finds nothing does nothing: as a
    precondition, that would make the same example another one when hypothesis tries it again.
    """
    return those[number % len(those)] if those else None


class Told:
    """A call, as its client knows it. The depth of a request is the segment that it is about."""

    def __init__(self, run: str, key: str | None) -> None:
        self.run = run
        self.key = key
        self.params: dict[str, Any] = {"name": "wizard.run", "arguments": {"run": run}}
        self.sent: list[tuple[int, Sent]] = []
        """The requests, each with how far the call was known to be when it was sent."""
        self.stage = 0
        """How far the call is known to be: which question it asks; at last, that it has ended."""
        self.outcome: Any = None
        """What it came to."""
        self.state: tuple[str, str] | None = None
        """The latest question: the state to come back with, its key."""
        self.answers: dict[int, set[str]] = {n: set() for n in range(QUESTIONS)}
        self.stopped = False
        """Whether somebody may have ended it before its time."""

    def history(self) -> str:
        """The latest requests, for whoever looks for what went wrong."""
        lines = [
            f"{stage} {sent.params.get('inputResponses')} -> {sent.response}" for stage, sent in self.sent
        ]
        return "\n".join([self.run, *lines[-6:]])


class Workers(RuleBasedStateMachine):
    """The machine. A subclass says what the store is."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Told] = []
        self.deaths = self.losses = 0
        self.passed = 0.0
        self.refused = False
        self.unseen: list[Any] = []
        self.patches = [
            mock.patch.object(sweeper, "SWEEP", 1e6),
            mock.patch.object(durable, "WRITING", 0.02),
            mock.patch.object(resume, "PATIENCE", 0.05),
            mock.patch.object(time, "time", self._time),
        ]
        self._real_time = time.time
        for patch in self.patches:
            patch.start()
        self.runner = asyncio.Runner()
        self.runner.get_loop().set_exception_handler(lambda _, context: self.unseen.append(context))
        self.fleet = Fleet(self.store())
        for parked_calls in WORKERS:
            self._run(self.fleet.start(parked_calls))

    def store(self) -> Store:
        raise NotImplementedError

    def _time(self) -> float:
        return self._real_time() + self.passed

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    # --- who acts ----------------------------------------------------------------------------

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.fleet.workers if worker.alive]

    def worker(self, number: int) -> Worker:
        """Any that can be reached: it may stand still."""
        return self.alive[number % len(self.alive)]

    def asking(self) -> list[Told]:
        return [call for call in self.calls if call.state is not None]

    async def settle(self, hurried: bool = False) -> None:
        if hurried:
            for _ in range(4):
                await asyncio.sleep(0)
        else:
            await self.fleet.quiet()

    # --- what clients do ---------------------------------------------------------------------

    @precondition(lambda self: len(self.calls) < MOST_CALLS)
    @rule(at=any_of, keyed=st.booleans())
    def start(self, at: int, keyed: bool) -> None:
        run = f"call-{len(self.calls)}"
        call = Told(run, run if keyed else None)
        self.calls.append(call)
        self.send(call, self.worker(at), call.params)
        self.go()

    @rule(
        which=any_of,
        at=any_of,
        what=st.sampled_from(["right", "right", "right", "wrong", "refuse"]),
        hurried=hurry,
    )
    def answer(self, which: int, at: int, what: str, hurried: bool) -> None:
        if call := pick(self.asking(), which):
            self.send_answer(call, self.worker(at), what)
            self.go(hurried)

    @rule(which=any_of, first=any_of, second=any_of)
    def answer_twice_at_once(self, which: int, first: int, second: int) -> None:
        if call := pick(self.asking(), which):
            self.send_answer(call, self.worker(first), "right")
            self.send_answer(call, self.worker(second), "right")
            self.go()

    @precondition(lambda self: any(call.sent for call in self.calls))
    @rule(which=any_of, request=any_of, at=any_of, hurried=hurry)
    def send_again(self, which: int, request: int, at: int, hurried: bool) -> None:
        calls = [call for call in self.calls if call.sent]
        call = calls[which % len(calls)]
        _, sent = call.sent[request % len(call.sent)]
        if "requestState" in sent.params or call.key is not None:
            self.send(call, self.worker(at), sent.params)
            self.go(hurried)

    @precondition(lambda self: self.calls)
    @rule(which=any_of, request=any_of, at=any_of)
    def stop(self, which: int, request: int, at: int) -> None:
        """A client cancels its request; if none is under way, somebody else aborts the call."""
        call = self.calls[which % len(self.calls)]
        if which < MOST_CALLS:  # not too often
            call.stopped = True
            waiting = [sent for _, sent in call.sent if sent.open]
            if waiting:
                sent = waiting[request % len(waiting)]
                sent.worker.cancel(sent)
            else:
                self._run(self._abort(self.worker(at), call))
            self.go()

    async def _abort(self, worker: Worker, call: Told) -> None:
        for record in (await worker.journal.journal.list()).calls:
            if json.loads(record.arguments)["run"] == call.run:
                outcome = encode_outcome(McpError(-32603, "aborted"))
                worker.durable.spawn(_silent(worker.durable.abort(record.id, "aborted", outcome)))

    # --- what happens to workers -------------------------------------------------------------

    @rule(at=any_of, after=gates)
    def stall(self, at: int, after: int) -> None:
        self.worker(at).gate.stall(after)

    @rule(which=any_of, at=any_of, after=gates)
    def stall_with_an_answer(self, which: int, at: int, after: int) -> None:
        if call := pick(self.asking(), which):
            worker = self.worker(at)
            worker.gate.stall(after)
            self.send_answer(call, worker, "right")
            self.go()

    @rule(at=any_of)
    def lose(self, at: int) -> None:
        """One that stands still counts as gone."""
        if worker := pick([one for one in self.alive if one.gate.stalled and not one.lost], at):
            self.losses += 1
            self._run(self.fleet.lose(worker))
            self.go()

    @rule(at=any_of)
    def come_back(self, at: int) -> None:
        if worker := pick([one for one in self.alive if not one.well], at):
            self._run(self.fleet.come_back(worker))
            self.go()

    @rule(at=any_of)
    def die(self, at: int) -> None:
        """One that stands still is killed there; another one takes its place."""
        if worker := pick([one for one in self.alive if one.gate.stalled], at):
            self.deaths += 1
            self._run(self.replace(worker))
            self.go()

    @precondition(lambda self: self.calls)
    @rule(at=any_of)
    def leave(self, at: int) -> None:
        """One is told to end."""
        worker = self.worker(at)
        if worker.well and worker.gate.left is None:
            self._run(worker.hub.close(grace=2.0))  # what runs comes to its end
            self._run(self.replace(worker))
            self.go()

    async def replace(self, worker: Worker) -> None:
        await self.fleet.die(worker)
        await self.fleet.start(worker.parked_calls)

    @rule(at=any_of)
    def look(self, at: int) -> None:
        """A worker looks for calls that nobody looks after."""
        self._run(self._look(self.worker(at)))
        self.go()

    async def _look(self, worker: Worker) -> None:
        worker.durable.spawn(worker.durable.sweeper.look())

    @rule(seconds=st.sampled_from([1.0, LIMIT + 1, LIMIT + 1, LIMIT + 1, WAIT + 1]))
    def later(self, seconds: float) -> None:
        self.passed += seconds

    # --- the history -------------------------------------------------------------------------

    def send(self, call: Told, worker: Worker, params: dict[str, Any]) -> None:
        async def send() -> None:
            call.sent.append((call.stage, worker.send(params, call.key)))

        self._run(send())

    def send_answer(self, call: Told, worker: Worker, what: str) -> None:
        assert call.state is not None
        state, key = call.state
        text = f"{what} {len(call.sent)}"
        response: Any = {"action": "accept", "content": {"text": text}}
        if what == "wrong":
            response["content"]["text"] = 1
        elif what == "refuse":
            self.refused = True
            response = {"action": "decline"}
        else:
            call.answers[call.stage].add(text)
        params = {**call.params, "requestState": state, "inputResponses": {key: response}}
        self.send(call, worker, params)

    def go(self, hurried: bool = False) -> None:
        self._run(self.settle(hurried))
        self.observe()

    def observe(self) -> None:
        """Whoever comes is told how the call stands, never how it stood before; nothing was done twice."""
        for call in self.calls:
            for stage, sent in call.sent:
                if sent.response is not None and not sent.dropped:
                    self.hear(call, stage, sent.response)
        assert all(times == 1 for times in self.fleet.ledger.done.values()), self.fleet.ledger.done
        assert self.unseen == []

    def hear(self, call: Told, stage: int, response: dict[str, Any]) -> None:
        if "error" in response and response["error"]["message"] == UNKNOWN:
            assert call.stopped or self.passed, f"{call.run} is gone: {response}"
            return
        if "error" in response and GIVEN_UP in response["error"]["message"]:
            assert self.deaths + self.losses >= MOST_CLAIMS
            call.stopped = True
            return
        outcome = response.get("result", response.get("error"))
        if "requestState" in outcome and "inputRequests" not in outcome:
            if call.state is None and call.outcome is None:
                call.state = (outcome["requestState"], "question-2")
            return  # it is to come back
        if "inputRequests" not in outcome:
            call.outcome = call.outcome or outcome
            assert outcome == call.outcome, f"{call.run}: one is told {outcome}, another {call.outcome}"
            call.stage, call.state = QUESTIONS, None
            self.check_end(call, outcome)
            return
        ((key, request),) = outcome["inputRequests"].items()
        asked = int(request["params"]["message"].splitlines()[-1])
        assert asked >= stage, f"{call.run}: {asked} is asked again, though the call was at {stage}"
        if asked >= call.stage:
            call.stage, call.state = asked, (outcome["requestState"], key)

    def check_end(self, call: Told, outcome: dict[str, Any]) -> None:
        if "code" in outcome or outcome.get("isError"):
            assert call.stopped, f"{call.run} failed: {outcome}"
            return
        said = json.loads(outcome["content"][0]["text"])
        assert len(said) == 2 * QUESTIONS + 1
        for number, did in enumerate(said[::2]):
            times = self.fleet.ledger.done[call.run, number]
            if did == "interrupted":
                assert self.deaths or self.losses
            else:
                assert (did, times) == (f"did {call.run} {number}", 1)
        for number, answer in enumerate(said[1::2]):
            if answer == "silence":
                assert self.passed
            elif answer == "refused":
                assert self.refused
            else:
                assert answer in call.answers[number], f"{call.run}: nobody said {answer}"

    # --- the end -----------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self._run(self.bring_to_an_end())
        finally:
            self._run(self.fleet.close())
            self.runner.close()
            for patch in self.patches:
                patch.stop()

    async def bring_to_an_end(self) -> None:
        """Those who are left can go on with every call; nothing runs for ever, and nobody waits for ever."""
        for worker in self.alive:
            await self.fleet.come_back(worker)
        for _ in range(200):
            for worker in self.alive:
                await worker.durable.sweeper.look()
                await self.settle()
            self.observe()
            records = (await self.alive[0].journal.journal.list()).calls
            states = {json.loads(record.arguments)["run"]: record.status for record in records}
            going = [call for call in self.calls if self.go_on_with(call, states.get(call.run))]
            waits = any(sent.open for call in self.calls for _, sent in call.sent)
            if not going and not waits and "running" not in states.values():
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError(f"still going: {states}, {[call.history() for call in going]}")
        assert set(states.values()) <= ENDED | {"waiting"}, states

    def go_on_with(self, call: Told, status: str | None) -> bool:
        """Do what a client would who wants the result; false if there is nothing to be done."""
        if status is None or status in ENDED - {"completed"} or call.outcome is not None:
            return False
        if any(sent.open for _, sent in call.sent):
            return True
        if call.state is None and call.key is None:
            return False  # the first request was lost, and nobody can know of the call
        worker = self.alive[0]
        if call.state is not None:
            state, key = call.state
            call.answers[call.stage].add("at last")
            response = {"action": "accept", "content": {"text": "at last"}}
            params = {**call.params, "requestState": state, "inputResponses": {key: response}}
            call.sent.append((call.stage, worker.send(params)))
        else:
            call.sent.append((0, worker.send(call.params, call.key)))
        return True


async def _silent(work: Coroutine[Any, Any, Any]) -> None:
    await work


class Memory(MemoryStore):
    async def thaw(self, worker: Journal) -> None:
        await worker.open()


class Sqlite(SqliteStore):
    async def thaw(self, worker: Journal) -> None:
        worker._next_beat = 0.0  # type: ignore[attr-defined]
        worker._sign.beat()  # type: ignore[attr-defined]


class InMemory(Workers):
    def store(self) -> Store:
        return Memory()


class InSqlite(Workers):
    def store(self) -> Store:
        self._folder = tempfile.TemporaryDirectory()
        return Sqlite(Path(self._folder.name) / "journal.db")

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


class Often(settings):
    """Examples as they are made up: what depends on the speed of the machine cannot be made smaller."""

    def __init__(self, examples: int, steps: int) -> None:
        super().__init__(
            max_examples=examples,
            stateful_step_count=steps,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )


TestInMemory = InMemory.TestCase
TestInMemory.settings = Often(examples=150, steps=36)
TestInSqlite = InSqlite.TestCase
TestInSqlite.settings = Often(examples=80, steps=36)

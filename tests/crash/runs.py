"""Runs: one call of the wizard under a schedule of crashes, and what must be true of it afterwards.

The client does what a real one would: it answers what it is asked; when its worker dies it sends the same
request again, to another one. A first request that got no answer is sent again under the same idempotency
key, or else begins anew (under another name, so that the two are told apart). Beside it, older requests come
again, and two who only look see what is open.
"""

import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, to_builtins

from crash.app import INTERRUPTED, PAY, SHORT, SILENCE, STEPS, VARIANTS
from crash.person import KEY, Line, Stuck
from crash.zygote import Zygote

Backend = Literal["sqlite", "postgres", "dbos"]
Break = Literal["stay", "kill", "leave"]

EARLY = "Early?"
"""The question that nobody need answer."""
CHOICES: dict[str, Any] = {
    EARLY: {"text": "here"},
    "Name?": {"text": "Ada"},
    "Size?": {"choice": "medium"},
    "Sure?": {"confirmed": True},
}
ANSWERS = ["Ada", "medium", True]
IGNORED = 20
"""How often a client comes back without an answer before it answers that question after all."""
ROUNDS = 3
PATIENCE = 20.0
"""Seconds after which a call that should wait, or should have ended, is hung."""
TICKS = 66
"""How many ticks a run has at most, about."""


class Schedule(Struct, frozen=True, kw_only=True):
    """What happens in a run."""

    variant: str
    deaths: tuple[int, ...] = ()
    """The tick at which each worker dies, in the order in which they are started; the others live."""
    keyed: bool = False
    """Whether the first request has an idempotency key."""
    workers: int = 1
    """How many live at a time."""
    roams: bool = False
    """Whether each request goes to any of the workers; else all go to one until it dies."""
    twice: bool = False
    """Whether each request that may be repeated is sent to two workers at once."""
    partly: bool = False
    """Whether of several questions one is answered first."""
    forgetful: bool = False
    """Whether parked coroutines are dropped at once."""
    ignores: bool = False
    """Whether the question that nobody need answer is not answered, as long as there is another way."""
    repeats: float = 0.0
    """How likely it is, after each outcome, that an older request is sent again."""
    looks: float = 0.0
    """How likely it is, after each outcome, that two others look at the call."""
    breaks: tuple[Break, ...] = ()
    """What becomes of the worker that has asked, while nobody has answered yet."""
    seed: int = 0

    def __str__(self) -> str:
        said = {name: value for name, value in to_builtins(self).items() if value}
        return ", ".join(f"{name}={value}" for name, value in said.items())


def schedule_of(seed: int) -> Schedule:
    """Any schedule, always the same for the same seed."""
    chance = random.Random(seed)
    variant = chance.choice(VARIANTS)
    workers = chance.choice((1, 1, 2, 3))
    return Schedule(
        variant=variant,
        deaths=tuple(chance.randint(1, TICKS) for _ in range(chance.choice((1, 2, 2, 3, 3, 4)))),
        keyed=chance.random() < 0.5,
        workers=workers,
        roams=workers > 1 and chance.random() < 0.7,
        twice=workers > 1 and chance.random() < 0.4,
        partly=chance.random() < 0.3,
        forgetful=chance.random() < 0.3,
        breaks=tuple(chance.choice(("stay", "stay", "kill", "leave")) for _ in range(ROUNDS)),
        ignores=chance.random() < 0.6,
        repeats=chance.choice((0.0, 0.0, 0.5)),
        looks=chance.choice((0.0, 0.0, 0.5)),
        seed=seed,
    )


class Report(Struct):
    """What a run came to."""

    crashes: int = 0
    again: int = 0
    """How often a question was asked again that had been answered."""
    interrupted: int = 0
    ticks: int = 0


class Wrong(AssertionError):
    """A run that did not end right."""


class Hung(Wrong):
    """A call neither waits nor has ended, though nothing runs; or a worker lives, and does not answer."""


class Stage:
    """Where runs are played: a zygote, and the places of their journals."""

    def __init__(self, backend: Backend, folder: Path, place: str = "") -> None:
        self.backend: Backend = backend
        self.folder = folder
        self._place = place
        self._zygote = Zygote(backend)
        self._runs = 0

    def play(self, schedule: Schedule) -> Report:
        """Play a run. Raises `Wrong`, with all that happened."""
        self._runs += 1
        name = f"run-{self._runs}"
        folder = self.folder / name
        folder.mkdir()
        run = Run(self, schedule, name, folder)
        try:
            run.play()
            run.check()
        except Exception as error:
            log = run.log.read_text() if run.log.exists() else ""
            trail = "\n  ".join(run.trail)
            verdict = Hung if isinstance(error, Hung | Stuck) else Wrong
            raise verdict(f"{error}\n  {schedule}\n  {trail}\n{log}") from error
        finally:
            run.close()
        shutil.rmtree(folder)
        return run.report

    def start(self, folder: Path, deadly: int | None, *, forgetful: bool) -> Line:
        place = self._place or str(folder / "journal.db")
        pid, to, of = self._zygote.start(
            backend=self.backend,
            place=place,
            deadly=deadly,
            forgetful=forgetful,
            log=str(folder / "log"),
        )
        return Line(pid, to, of)

    def close(self) -> None:
        self._zygote.close()


class Run:
    """One call, from its first request to its last."""

    def __init__(self, stage: Stage, schedule: Schedule, name: str, folder: Path) -> None:
        self.report = Report()
        self.trail: list[str] = []
        self.log = folder / "log"
        self._ledger = folder / "ledger"
        self._stage = stage
        self._schedule = schedule
        self._began = time.monotonic()
        self._name = f"{stage.folder.name} {name}"
        self._folder = folder
        self._chance = random.Random(schedule.seed)
        self._deaths = list(schedule.deaths)
        self._breaks = list(schedule.breaks)
        self._workers: list[Line] = []
        self._attempt = 0
        self._asked: dict[str, str] = {}
        self._answered: set[str] = set()
        self._params: dict[str, Any] = {}
        self._meta: dict[str, Any] = {}
        self._outcome: dict[str, Any] = {}
        self._sent: list[dict[str, Any]] = []
        """The requests that can be repeated."""
        self._over: set[str] = set()
        """What is asked no more: it was answered, and the next outcome has come."""
        self._ignored = 0

    def play(self) -> None:
        outcome = self._begin()
        while outcome["resultType"] == "input_required":
            self._over |= self._answered - _asked_in(outcome)
            self._maybe_repeat()
            self._maybe_look()
            self._maybe_break()
            self._params |= {
                "requestState": outcome["requestState"],
                "inputResponses": self._answers(outcome.get("inputRequests", {})),
            }
            if not self._params["inputResponses"]:
                time.sleep(SHORT / 10)  # it comes back without an answer
            while (told := self._send()) is None:
                pass
            outcome = told
        self._outcome = outcome

    def _begin(self) -> dict[str, Any]:
        while True:
            if not self._attempt or not self._schedule.keyed:
                self._attempt += 1
                self._asked.clear()
                self._answered.clear()
                self._over.clear()
                self._sent.clear()
            self._meta = {KEY: self._run} if self._schedule.keyed else {}
            arguments = {"run": self._run, "ledger": str(self._ledger)}
            self._params = {"name": f"wizard.{self._schedule.variant}", "arguments": arguments}
            told = self._send()
            if told is not None:
                return told

    @property
    def _run(self) -> str:
        return f"{self._name} try {self._attempt}"

    def _note(self, what: str) -> None:
        self.trail.append(f"{time.monotonic() - self._began:8.3f} {what}")

    # --- the client --------------------------------------------------------------------------

    def _answers(self, requests: dict[str, Any]) -> dict[str, Any]:
        answers = {}
        for key, request in requests.items():
            message = request["params"]["message"]
            what = message.partition(" ")[0]
            if self._asked.setdefault(what, message) != message:
                raise Wrong(f"asked {message}, and before {self._asked[what]}")
            self.report.again += what in self._answered
            if what in self._over:
                raise Wrong(f"asked {message} again, though it was answered")
            if what == EARLY and self._schedule.ignores and self._ignored < IGNORED:
                self._ignored += 1
                continue
            answers[key] = {"action": "accept", "content": CHOICES[what]}
        if self._schedule.partly and len(answers) > 1:
            one = self._chance.choice(sorted(answers))
            answers = {one: answers[one]}
        self._answered |= {requests[key]["params"]["message"].partition(" ")[0] for key in answers}
        return answers

    def _send(self) -> dict[str, Any] | None:
        """The outcome of the present request, or nothing if every worker that had it has died."""
        repeatable = "requestState" in self._params or self._schedule.keyed
        if repeatable:
            self._sent.append(self._params)
        copies = 2 if self._schedule.twice and repeatable else 1
        lines = [self._worker()]
        if copies > 1:
            lines.append(self._chance.choice(self._workers))
        sent = [(line, line.send("tools/call", self._params, **self._meta)) for line in lines]
        told = []
        for line, id in sent:
            self._note(f"{line.pid} <- {_short(self._params)}")
            response = line.receive(id)
            self._note(f"{line.pid} -> {'died' if response is None else _short(response)}")
            if response is not None:
                if "error" in response:
                    raise Wrong(f"an error: {response['error']}")
                told.append(response["result"])
        if any(one != told[0] and _asked_in(one) == _asked_in(told[0]) for one in told):
            raise Wrong("the same request sent twice got different outcomes")
        return told[-1] if told else None  # a branch may have asked, or given up, between the two

    def _maybe_repeat(self) -> None:
        """Send an older request again: what comes is how the call stands now."""
        if self._sent and self._chance.random() < self._schedule.repeats:
            line, params = self._worker(), self._chance.choice(self._sent)
            response = line.receive(line.send("tools/call", params, **self._meta))
            self._note(f"{line.pid} late <- {_short(params)} -> {response and _short(response)}")
            if response is not None:
                if "error" in response:
                    raise Wrong(f"an error: {response['error']}")
                self._check_asked(_asked_in(response["result"]))

    def _maybe_look(self) -> None:
        """Two others look, at any of the workers."""
        if self._chance.random() < self._schedule.looks:
            for _ in range(2):
                self._worker()
                line = self._chance.choice(self._workers)
                for call in line.tool("admin.look", run=self._run) or ():
                    self._note(f"{line.pid} shows {call}")
                    self._check_asked({message.partition(" ")[0] for message in call["asks"]})

    def _check_asked(self, asked: set[str]) -> None:
        if asked & self._over:
            raise Wrong(f"{asked & self._over} is still asked, though it was answered")

    # --- workers -----------------------------------------------------------------------------

    def _worker(self) -> Line:
        """Whoever gets the next request; as many live as should."""
        self._count_crashes()
        while len(self._workers) < self._schedule.workers:
            deadly = self._deaths.pop(0) if self._deaths else None
            line = self._stage.start(self._folder, deadly, forgetful=self._schedule.forgetful)
            self._note(f"{line.pid} starts, to die at {deadly}")
            self._workers.append(line)
        return self._chance.choice(self._workers) if self._schedule.roams else self._workers[0]

    def _count_crashes(self) -> None:
        living = [line for line in self._workers if line.alive]
        self.report.crashes += len(self._workers) - len(living)
        self._workers = living

    def _maybe_break(self) -> None:
        self._count_crashes()
        how: Break = self._breaks.pop(0) if self._breaks else "stay"
        if how != "stay" and self._workers:
            line = self._workers[0]
            self._note(f"{line.pid} is to {how}")
            if how == "kill":
                line.kill()
            elif line.leave():
                self._workers.remove(line)  # which is no crash
            else:
                self._note(f"{line.pid} dies on its way")

    def _calm(self) -> list[Line]:
        """All workers that live, none of which dies any more."""
        while True:
            self._worker()
            ticks = [line.tool("admin.calm") for line in self._workers]
            if None not in ticks:
                self.report.ticks = max(ticks)
                return self._workers
            self._note("a worker dies at the end")

    def close(self) -> None:
        for line in self._workers:
            line.kill()

    # --- what must be true -------------------------------------------------------------------

    def check(self) -> None:
        made = self._check_result()
        self._check_ledger(made)
        ledger = self._lines()
        for line in self._calm():
            response = line.receive(line.send("tools/call", self._params, **self._meta))
            if response is None or response.get("result") != self._outcome:
                raise Wrong(f"the last request again got {response}, before {self._outcome}")
        if self._lines() != ledger:
            raise Wrong("the last request again ran something")
        self._check_journal()
        self._count_crashes()
        self.report.interrupted = list(made.values()).count(INTERRUPTED)
        shared = self._schedule.workers > 1  # a step beside a question, which another worker goes on from
        if self.report.interrupted and not self.report.crashes and not shared:
            raise Wrong("a step was interrupted, and nothing had crashed")
        if self.log.exists() and "Traceback" in self.log.read_text():
            raise Wrong("a worker has lost an error")

    def _check_result(self) -> dict[str, str]:
        """Everything that was answered and seen is in the result. Gives what steps have made."""
        if self._outcome.get("isError"):
            raise Wrong(f"the call failed: {self._outcome}")
        result = json.loads(self._outcome["content"][0]["text"])
        if self._schedule.variant == "stream":
            if [item["item"] for item in result] != [1, 2, 3, 4, 5]:
                raise Wrong(f"the items are {result}")
            result = {
                "answers": [item["answer"] for item in result if "answer" in item],
                "made": result[-1]["made"],
                "seen": [*result[0]["seen"], result[-1]["late"]],
            }
        early = result.get("early", SILENCE)
        if early != SILENCE and (early != CHOICES[EARLY]["text"] or EARLY not in self._answered):
            raise Wrong(f"nobody said {early}")
        if result["answers"] != ANSWERS:
            raise Wrong(f"the answers are {result['answers']}")
        *values, late = result["seen"]
        if (f"Name? {values}", f"Sure? {late}") != (self._asked["Name?"], self._asked["Sure?"]):
            raise Wrong(f"{result['seen']} has changed since {self._asked}")
        if sorted(result["made"]) != sorted(STEPS):
            raise Wrong(f"the steps are {result['made']}")
        made: dict[str, str] = result["made"]
        return made

    def _check_ledger(self, made: dict[str, str]) -> None:
        done = [line for line in self._lines() if line["run"] == self._run]
        for step in STEPS:
            effects = [line["made"] for line in done if line["step"] == step]
            if step == PAY:
                known = {(line["key"], line["token"]) for line in done if line["step"] == PAY}
                if made[step] not in effects or len(known) != 1:
                    raise Wrong(f"the step that may be repeated was done as {known}, and gave {made[step]}")
            elif len(effects) > 1:
                raise Wrong(f"the step {step} was done {len(effects)} times")
            elif made[step] != INTERRUPTED and effects != [made[step]]:
                raise Wrong(f"the step {step} gave {made[step]}, but did {effects}")
        before = Counter((line["run"], line["step"]) for line in self._lines() if line["run"] != self._run)
        if any(step != "open" or times > 1 for (_, step), times in before.items()):
            raise Wrong(f"calls that nobody knew of went on: {before}")

    def _check_journal(self) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            calls = self._workers[0].tool("admin.calls")
            mine = [call for call in calls if str(call["run"]).startswith(f"{self._name} try ")]
            running = [call for call in mine if call["status"] == "running"]
            if not running:
                break
            if time.monotonic() > end:
                raise Hung(f"nothing runs, but in the journal is {running}")
            time.sleep(SHORT)  # a question of an earlier try may time out just now
        for call in mine:
            wanted = "completed" if call["run"] == self._run else "waiting"
            if call["status"] != wanted:
                raise Wrong(f"in the journal is {call}, which should be {wanted}")
        if [call["run"] for call in mine].count(self._run) != 1:
            raise Wrong(f"in the journal are {mine}")

    def _lines(self) -> list[dict[str, Any]]:
        if not self._ledger.exists():
            return []
        return [json.loads(line) for line in self._ledger.read_text().splitlines()]


def _asked_in(outcome: dict[str, Any]) -> set[str]:
    """Which questions an outcome asks."""
    requests = outcome.get("inputRequests", {}).values()
    return {request["params"]["message"].partition(" ")[0] for request in requests}


def _short(message: dict[str, Any]) -> str:
    message = message.get("result", message)
    left = {k: v for k, v in message.items() if k not in ("requestState", "_meta", "arguments", "jsonrpc")}
    return json.dumps(left)[:400]

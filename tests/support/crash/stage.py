"""Stage: where schedules are played, and what those of calls (`calls`) and of chats (`chats`) share.

That is workers which die when they should, a ledger in which each effect stands once, and a verdict.
"""

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, to_builtins

from crash.app import INTERRUPTED, PAY, SHORT, SILENCE, STEPS
from crash.person import Line, Stuck
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
PATIENCE = 100.0
"""Seconds after which a call that should wait, or should have ended, is hung."""


class Schedule(Struct, frozen=True, kw_only=True):
    """What happens to workers in a run."""

    deaths: tuple[int, ...] = ()
    """The tick at which each worker dies, in the order in which they are started; the others live."""
    workers: int = 1
    """How many live at a time."""
    roams: bool = False
    """Whether each request goes to any of the workers; else all go to one until it dies."""
    partly: bool = False
    """Whether of several questions one is answered first."""
    forgetful: bool = False
    """Whether parked coroutines are dropped at once."""
    ignores: bool = False
    """Whether the question that nobody need answer is not answered, as long as there is another way."""
    breaks: tuple[Break, ...] = ()
    """What becomes of the worker that has asked, while nobody has answered yet."""
    seed: int = 0

    def __str__(self) -> str:
        said = {name: value for name, value in to_builtins(self).items() if value}
        return ", ".join(f"{name}={value}" for name, value in said.items())

    def run(self, stage: "Stage", name: str, folder: Path) -> "Run":
        """A run of this schedule."""
        raise NotImplementedError


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
        run = schedule.run(self, name, folder)
        try:
            run.play()
            run.check()
            run.check_log()
        except Exception as error:
            log = run.log.read_text() if run.log.exists() else ""
            trail = "\n  ".join(run.trail)
            verdict = Hung if isinstance(error, Hung | Stuck) else Wrong
            raise verdict(f"{error}\n  {schedule}\n  {trail}\n{log}") from error
        finally:
            run.close()
        shutil.rmtree(folder)
        return run.report

    def start(self, folder: Path, deadly: int | None, *, forgetful: bool, chat: bool) -> Line:
        return self._zygote.start(
            chat=chat,
            backend=self.backend,
            place=self._place or str(folder / "journal.db"),
            deadly=deadly,
            forgetful=forgetful,
            log=str(folder / "log"),
        )

    def close(self) -> None:
        self._zygote.close()


class Run:
    """One run of a schedule, from its first request to its last."""

    chat = False
    """Whether workers serve their chat too."""

    def __init__(self, stage: Stage, schedule: Schedule, name: str, folder: Path) -> None:
        self.report = Report()
        self.trail: list[str] = []
        self.log = folder / "log"
        self.name = f"{stage.folder.name} {name}"
        self.ledger = folder / "ledger"
        self.chance = random.Random(schedule.seed)
        self.workers: list[Line] = []
        self._stage = stage
        self._plan = schedule
        self._began = time.monotonic()
        self._folder = folder
        self._deaths = list(schedule.deaths)
        self._breaks = list(schedule.breaks)

    def play(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raise `Wrong` unless all is as it must be in the end."""
        raise NotImplementedError

    def note(self, what: str) -> None:
        self.trail.append(f"{time.monotonic() - self._began:8.3f} {what}")

    # --- workers -----------------------------------------------------------------------------

    def worker(self) -> Line:
        """Whoever gets the next request; as many live as should."""
        self.count_crashes()
        while len(self.workers) < self._plan.workers:
            deadly = self._deaths.pop(0) if self._deaths else None
            line = self._stage.start(self._folder, deadly, forgetful=self._plan.forgetful, chat=self.chat)
            self.note(f"{line.pid} starts, to die at {deadly}")
            self.workers.append(line)
        return self.chance.choice(self.workers) if self._plan.roams else self.workers[0]

    def count_crashes(self) -> None:
        living = [line for line in self.workers if line.alive]
        self.report.crashes += len(self.workers) - len(living)
        self.workers = living

    def maybe_break(self) -> None:
        self.count_crashes()
        how: Break = self._breaks.pop(0) if self._breaks else "stay"
        if how != "stay" and self.workers:
            line = self.workers[0]
            self.note(f"{line.pid} is to {how}")
            if how == "kill":
                line.kill()
            elif line.leave():
                self.workers.remove(line)  # which is no crash
            else:
                self.note(f"{line.pid} dies on its way")

    def calm(self) -> list[Line]:
        """All workers that live, none of which dies any more."""
        while True:
            self.worker()
            ticks = [line.tool("admin.calm") for line in self.workers]
            if None not in ticks:
                self.report.ticks = max(ticks)
                return self.workers
            self.note("a worker dies at the end")

    def close(self) -> None:
        for line in self.workers:
            line.kill()

    # --- what must be true -------------------------------------------------------------------

    def effects(self) -> list[dict[str, Any]]:
        """What steps have done."""
        if not self.ledger.exists():
            return []
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]

    def settled_calls(self) -> list[dict[str, Any]]:
        """The calls of this run in the journal, none of which runs."""
        end = time.monotonic() + PATIENCE
        while True:
            calls = self.workers[0].tool("admin.calls")
            mine = [call for call in calls if str(call["run"]).startswith(f"{self.name} ")]
            running = [call for call in mine if call["status"] == "running"]
            if not running:
                return mine
            if time.monotonic() > end:
                raise Hung(f"nothing runs, but in the journal is {running}")
            time.sleep(SHORT)  # a question that nobody waits for may time out just now

    def check_log(self) -> None:
        if self.log.exists() and "Traceback" in self.log.read_text():
            raise Wrong("a worker has lost an error")

    def check_steps(self, run: str, made: dict[str, str]) -> None:
        """Each step of a call was done once, or reported as interrupted, or may be repeated."""
        if sorted(made) != sorted(STEPS):
            raise Wrong(f"the steps are {made}")
        self.check_effects(run)
        done = [line for line in self.effects() if line["run"] == run]
        for step in STEPS:
            effects = [line["made"] for line in done if line["step"] == step]
            known = (
                made[step] in effects if step == PAY else made[step] == INTERRUPTED or effects == [made[step]]
            )
            if not known:
                raise Wrong(f"the step {step} of {run} gave {made[step]}, but did {effects}")
        self.report.interrupted += list(made.values()).count(INTERRUPTED)
        shared = self._plan.workers > 1  # a step beside a question, which another worker goes on from
        if self.report.interrupted and not self.report.crashes and not shared:
            raise Wrong("a step was interrupted, and nothing had crashed")

    def check_effects(self, run: str) -> None:
        """No step of a call was done twice, except under the same key the one that may be."""
        done = [line for line in self.effects() if line["run"] == run]
        for step in STEPS:
            mine = [line for line in done if line["step"] == step]
            if step == PAY and len({(line["key"], line["token"]) for line in mine}) > 1:
                raise Wrong(f"the step that may be repeated was done as {mine}")
            if step != PAY and len(mine) > 1:
                raise Wrong(f"the step {step} of {run} was done {len(mine)} times")


def what_of(message: str) -> str:
    """Which question a message asks."""
    return message.partition(" ")[0]


def made_by(result: Any, asked: dict[str, str], answered: set[str]) -> dict[str, str]:
    """What the steps of a wizard have made, by its result, which has all that was answered and seen.

    `asked` has the messages by their first word, `answered` those words of which an answer was given.
    """
    if isinstance(result, list):
        if [item["item"] for item in result] != [1, 2, 3, 4, 5]:
            raise Wrong(f"the items are {result}")
        result = {
            "answers": [item["answer"] for item in result if "answer" in item],
            "made": result[-1]["made"],
            "seen": [*result[0]["seen"], result[-1]["late"]],
        }
    early = result.get("early", SILENCE)
    if early != SILENCE and (early != CHOICES[EARLY]["text"] or EARLY not in answered):
        raise Wrong(f"nobody said {early}")
    if result["answers"] != ANSWERS:
        raise Wrong(f"the answers are {result['answers']}")
    *values, late = result["seen"]
    if (f"Name? {values}", f"Sure? {late}") != (asked["Name?"], asked["Sure?"]):
        raise Wrong(f"{result['seen']} has changed since {asked}")
    made: dict[str, str] = result["made"]
    return made

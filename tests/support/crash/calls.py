"""Calls: one call of the wizard under a schedule of crashes, and what must be true of it afterwards.

The client does what a real one would: it answers what it is asked; when its worker dies it sends the same
request again, to another one. A first request that got no answer is sent again under the same idempotency
key, or else begins anew (under another name, so that the two are told apart). Beside it, older requests come
again, and two who only look see what is open.
"""

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from crash.app import SHORT, VARIANTS
from crash.person import KEY
from crash.stage import CHOICES, EARLY, IGNORED, Run, Schedule, Stage, Wrong, made_by, what_of

ROUNDS = 3
TICKS = 66
"""How many ticks a run has at most, about."""


class CallSchedule(Schedule, frozen=True, kw_only=True):
    """What happens in a run."""

    variant: str
    keyed: bool = False
    """Whether the first request has an idempotency key."""
    twice: bool = False
    """Whether each request that may be repeated is sent to two workers at once."""
    repeats: float = 0.0
    """How likely it is, after each outcome, that an older request is sent again."""
    looks: float = 0.0
    """How likely it is, after each outcome, that two others look at the call."""

    def run(self, stage: Stage, name: str, folder: Path) -> "CallRun":
        return CallRun(stage, self, name, folder)


def call_schedule(seed: int) -> CallSchedule:
    """Any schedule, always the same for the same seed."""
    chance = random.Random(seed)
    variant = chance.choice(VARIANTS)
    workers = chance.choice((1, 1, 2, 3))
    return CallSchedule(
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


class CallRun(Run):
    """One call, from its first request to its last."""

    def __init__(self, stage: Stage, schedule: CallSchedule, name: str, folder: Path) -> None:
        super().__init__(stage, schedule, name, folder)
        self._schedule = schedule
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
            self.maybe_break()
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
            arguments = {"run": self._run, "ledger": str(self.ledger)}
            variant = self._schedule.variant
            name = "machines.wizard" if variant == "machine" else f"wizard.{variant}"
            self._params = {"name": name, "arguments": arguments}
            told = self._send()
            if told is not None:
                return told

    @property
    def _run(self) -> str:
        return f"{self.name} try {self._attempt}"

    # --- the client --------------------------------------------------------------------------

    def _answers(self, requests: dict[str, Any]) -> dict[str, Any]:
        answers = {}
        for key, request in requests.items():
            message = request["params"]["message"]
            what = what_of(message)
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
            one = self.chance.choice(sorted(answers))
            answers = {one: answers[one]}
        self._answered |= {what_of(requests[key]["params"]["message"]) for key in answers}
        return answers

    def _send(self) -> dict[str, Any] | None:
        """The outcome of the present request, or nothing if every worker that had it has died."""
        repeatable = "requestState" in self._params or self._schedule.keyed
        if repeatable:
            self._sent.append(self._params)
        copies = 2 if self._schedule.twice and repeatable else 1
        lines = [self.worker()]
        if copies > 1:
            lines.append(self.chance.choice(self.workers))
        sent = [(line, line.send("tools/call", self._params, **self._meta)) for line in lines]
        told = []
        for line, id in sent:
            self.note(f"{line.pid} <- {_short(self._params)}")
            response = line.receive(id)
            self.note(f"{line.pid} -> {'died' if response is None else _short(response)}")
            if response is not None:
                if "error" in response:
                    raise Wrong(f"an error: {response['error']}")
                told.append(response["result"])
        if any(one != told[0] and _asked_in(one) == _asked_in(told[0]) for one in told):
            raise Wrong("the same request sent twice got different outcomes")
        return told[-1] if told else None  # a branch may have asked, or given up, between the two

    def _maybe_repeat(self) -> None:
        """Send an older request again: what comes is how the call stands now."""
        if self._sent and self.chance.random() < self._schedule.repeats:
            line, params = self.worker(), self.chance.choice(self._sent)
            response = line.receive(line.send("tools/call", params, **self._meta))
            self.note(f"{line.pid} late <- {_short(params)} -> {response and _short(response)}")
            if response is not None:
                if "error" in response:
                    raise Wrong(f"an error: {response['error']}")
                self._check_asked(_asked_in(response["result"]))

    def _maybe_look(self) -> None:
        """Two others look, at any of the workers."""
        if self.chance.random() < self._schedule.looks:
            for _ in range(2):
                self.worker()
                line = self.chance.choice(self.workers)
                for call in line.tool("admin.look", run=self._run) or ():
                    self.note(f"{line.pid} shows {call}")
                    self._check_asked({what_of(message) for message in call["asks"]})

    def _check_asked(self, asked: set[str]) -> None:
        if asked & self._over:
            raise Wrong(f"{asked & self._over} is still asked, though it was answered")

    # --- what must be true -------------------------------------------------------------------

    def check(self) -> None:
        ledger = self.effects()
        for line in self.calm():
            response = line.receive(line.send("tools/call", self._params, **self._meta))
            if response is None or response.get("result") != self._outcome:
                raise Wrong(f"the last request again got {response}, before {self._outcome}")
        if self.effects() != ledger:
            raise Wrong("the last request again ran something")
        if self._outcome.get("isError"):
            raise Wrong(f"the call failed: {self._outcome}")
        result = json.loads(self._outcome["content"][0]["text"])
        self.check_steps(self._run, made_by(result, self._asked, self._answered))
        before = Counter((line["run"], line["step"]) for line in ledger if line["run"] != self._run)
        if any(step != "open" or times > 1 for (_, step), times in before.items()):
            raise Wrong(f"calls that nobody knew of went on: {before}")
        self._check_journal()

    def _check_journal(self) -> None:
        mine = self.settled_calls()
        for call in mine:
            wanted = "completed" if call["run"] == self._run else "waiting"
            if call["status"] != wanted:
                raise Wrong(f"in the journal is {call}, which should be {wanted}")
        if [call["run"] for call in mine].count(self._run) != 1:
            raise Wrong(f"in the journal are {mine}")


def _asked_in(outcome: dict[str, Any]) -> set[str]:
    """Which questions an outcome asks."""
    requests = outcome.get("inputRequests", {}).values()
    return {what_of(request["params"]["message"]) for request in requests}


def _short(message: dict[str, Any]) -> str:
    message = message.get("result", message)
    left = {k: v for k, v in message.items() if k not in ("requestState", "_meta", "arguments", "jsonrpc")}
    return json.dumps(left)[:400]

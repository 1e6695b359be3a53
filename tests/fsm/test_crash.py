"""Workers are killed at the points of a machine's run, and its answers come to others: it ends right, and no model,
tool or person is asked twice for what it has given.

The machine (`crash.machine`) has every action. What "right" means of its steps and its questions is in
`crash.calls`; `journal/test_crash.py` plays it at every point, and `python -m soak` goes on where these end.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

import postgres_server
from crash.calls import CallRun, CallSchedule
from crash.machine import MODEL
from crash.pool import Pool
from crash.stage import Stage, Wrong

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

POINTS = 10


class MachineSchedule(CallSchedule, frozen=True, kw_only=True):
    """A run of the machine."""

    variant: str = "machine"

    def run(self, stage: Stage, name: str, folder: Path) -> "MachineCall":
        return MachineCall(stage, self, name, folder)


class MachineCall(CallRun):
    """Looks at the calls of the model too: it is asked again only if the worker died that was asking it."""

    def check(self) -> None:
        super().check()
        asked = Counter(line["step"] for line in self.effects() if line["run"] == self._run)
        again = {step: times for step, times in asked.items() if step.startswith(MODEL) and times > 1}
        if sum(again.values()) - len(again) > self.report.crashes:
            raise Wrong(f"the model was asked {again}, with {self.report.crashes} crashes")
        if len([step for step in asked if step.startswith(MODEL)]) != 2:
            raise Wrong(f"the model was asked {asked}")


@pytest.mark.parametrize(("backend", "step"), [("sqlite", 7), ("postgres", 3)])
def test_a_machine_ends_right_wherever_a_worker_dies_and_whoever_gets_the_answer(
    tmp_path: Path, backend: str, step: int
) -> None:
    url = postgres_server.shared() if backend == "postgres" else ""
    with Pool(backend, tmp_path, url) as pool:  # type: ignore[arg-type]
        calm = MachineSchedule(workers=2, roams=True, forgetful=True)
        away = MachineSchedule(workers=2, breaks=("kill", "kill", "kill"))
        for schedule, report in pool.play([calm, away]):
            if isinstance(report, Wrong):
                raise report
            crashes = len(schedule.breaks)
            assert (report.crashes, report.again, report.interrupted) == (crashes, 0, 0)
        reports = list(pool.every_point(MachineSchedule(workers=2, keyed=True), step=step))
    assert len(reports) > POINTS
    assert any(report.interrupted for report in reports), "a tool that was cut off is reported"

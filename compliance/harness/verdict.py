"""Judges results: what is allowed, what is not, and the table of both."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.suites import Check, Result

STATUSES = {"SUCCESS": "pass", "FAILURE": "fail", "WARNING": "warn", "SKIPPED": "skip", "INFO": "info"}
EXCUSABLE = ("WARNING", "SKIPPED")


class AllowListError(Exception):
    """The allow list is not as it should be."""


@dataclass(frozen=True)
class Allowed:
    """A WARNING or SKIPPED that is known, and why that is right. Names may have wildcards."""

    status: str
    scenario: str
    check: str
    reason: str
    suite: str = "*"

    def excuses(self, result: Result, check: Check) -> bool:
        """Whether this entry is about that check."""
        return (
            check.status == self.status
            and fnmatchcase(result.scenario, self.scenario)
            and fnmatchcase(check.id, self.check)
            and fnmatchcase(result.suite, self.suite)
        )


@dataclass(frozen=True)
class Verdict:
    """What came out, all suites together."""

    unexcused: list[tuple[Result, Check]]
    excused: list[tuple[Result, Check, Allowed]]
    stale: list[Allowed]

    @property
    def passed(self) -> bool:
        """Whether nothing stands against this server."""
        return not self.unexcused


def read_allow_list(path: Path) -> list[Allowed]:
    """Read the allow list, and refuse an entry that has no reason or excuses a failure."""
    try:
        entries = [Allowed(**entry) for entry in tomllib.loads(path.read_text()).get("allowed", [])]
    except (OSError, TypeError, ValueError) as error:
        raise AllowListError(f"{path}: {error}") from error
    for entry in entries:
        if entry.status not in EXCUSABLE or not entry.reason.strip():
            raise AllowListError(f"{path}: {entry.scenario}: only a WARNING or SKIPPED, with a reason")
    return entries


def judge(results: Iterable[Result], allow_list: Sequence[Allowed]) -> Verdict:
    """Sort what is not a success into excused and not excused."""
    unexcused: list[tuple[Result, Check]] = []
    excused: list[tuple[Result, Check, Allowed]] = []
    for result in results:
        for check in result.checks:
            if check.status in ("SUCCESS", "INFO"):
                continue
            entry = next((entry for entry in allow_list if entry.excuses(result, check)), None)
            if entry is None:
                unexcused.append((result, check))
            else:
                excused.append((result, check, entry))
    used = {entry for _, _, entry in excused}
    return Verdict(unexcused, excused, [entry for entry in allow_list if entry not in used])


def summary(results: Sequence[Result], verdict: Verdict, *, complete: bool) -> str:
    """What is allowed and why, what is not, and one line for all; stale entries if the run was complete."""
    lines = []
    if verdict.excused:
        lines += ["", "Allowed:"]
    for entry, number in Counter(entry for _, _, entry in verdict.excused).items():
        lines.append(f"  {number} x {entry.status} {entry.scenario}: {entry.check}\n    {entry.reason}")
    if verdict.unexcused:
        lines += ["", "Not allowed:"]
    for result, check in verdict.unexcused:
        lines.append(f"  {check.status} {result.suite} {result.scenario}: {check.id}\n    {check.text}")
    if complete and verdict.stale:
        lines += ["", "No longer needed in the allow list:"]
        lines += [f"  {entry.status} {entry.scenario}: {entry.check}" for entry in verdict.stale]
    checks = sum(len(result.checks) for result in results)
    outcome = "passed" if verdict.passed else f"{len(verdict.unexcused)} not allowed"
    return "\n".join([*lines, "", f"{len(results)} scenarios, {checks} checks: {outcome}"])


def table(results: Sequence[Result]) -> str:
    """A line for each scenario, and one for each suite; zeros are left blank."""
    width = max(len(name) for result in results for name in (result.suite, result.scenario))
    lines = []
    for suite in dict.fromkeys(result.suite for result in results):
        members = [result for result in results if result.suite == suite]
        lines += ["", _row(suite, width, STATUSES.values()), "-" * (width + 7 * len(STATUSES))]
        for result in members:
            lines.append(_row(result.scenario, width, [result.count(status) or "" for status in STATUSES]))
        totals = [sum(result.count(status) for result in members) for status in STATUSES]
        lines.append(_row(f"{len(members)} scenarios", width, totals))
    return "\n".join(lines)


def _row(first: str, width: int, rest: Iterable[object]) -> str:
    return (f"{first:<{width}}" + "".join(f"{cell!s:>7}" for cell in rest)).rstrip()

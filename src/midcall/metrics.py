"""Metrics: what a monitor reads of this process, in the text format of Prometheus.

Counts are plain integers that belong to the process, like the calls of all its hubs. Only calls that ask
count anything; what can be looked up is looked up when somebody reads. Knows no hub, no journal and no HTTP.
"""

import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct, field

from midcall.questions import KINDS, PERSON_KINDS

MINUTE, HOUR, DAY = 60, 3600, 24 * 3600

THINKING = (
    1, 2, 5, 10, 20, 30,
    MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE,
    HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
    DAY, 2 * DAY, 4 * DAY, 7 * DAY,
)  # fmt: skip
"""Seconds, as people take them."""

WRITING = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds, as a journal takes them."""

Ending: TypeAlias = Literal["answered", "declined", "cancelled", "timed_out", "failed", "withdrawn"]
"""How a question ends. `failed`: the client could not ask it. `withdrawn`: by the tool, or with its call."""

ENDINGS: tuple[Ending, ...] = ("answered", "declined", "cancelled", "timed_out", "failed", "withdrawn")


REFUSALS = (
    "too_many_calls",
    "rate_limited",
    "too_many_subscriptions",
    "too_many_connections",
    "too_many_conversations",
    "journal_full",
)


class Histogram(Struct):
    """How often a value was at most so much."""

    bounds: tuple[float, ...]
    counts: list[int]
    sum: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Histogram":
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: "Histogram") -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


def _none() -> dict[str, int]:
    return defaultdict(int)


class Counts(Struct):
    """What has happened in this process."""

    asked: dict[str, int] = field(default_factory=_none)
    """Questions, by kind."""
    ended: dict[str, int] = field(default_factory=_none)
    """Questions, by their `Ending`."""
    thinking: Histogram = field(default_factory=lambda: Histogram.empty(THINKING))
    """How long people took to answer, also if they took it over several lives of the process."""
    segments: dict[str, int] = field(default_factory=_none)
    """Segments of calls in the journal: `run`, `rebuilt`, `taken_over`, `fenced`."""
    diverged: int = 0
    refused: dict[str, int] = field(default_factory=_none)
    """What callers were refused because they had or did too much, by the code of the error."""
    journal: dict[str, Histogram] = {}
    """How long the operations of the journal took, if that is measured."""
    journal_errors: dict[str, int] = field(default_factory=_none)

    def add(self, other: "Counts") -> None:
        """Count also what has happened in another process."""
        for mine, theirs in (
            (self.asked, other.asked),
            (self.ended, other.ended),
            (self.segments, other.segments),
            (self.refused, other.refused),
            (self.journal_errors, other.journal_errors),
        ):
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + number
        self.diverged += other.diverged
        self.thinking.add(other.thinking)
        for name, times in other.journal.items():
            self.journal.setdefault(name, Histogram.empty(times.bounds)).add(times)


counts = Counts()


def question_asked(kind: str) -> None:
    """A question waits that did not wait before."""
    counts.asked[kind] += 1


def question_ended(kind: str, ending: Ending, since: float) -> None:
    """A question waits no longer; `since` is the time at which it was asked."""
    counts.ended[ending] += 1
    if ending in ("answered", "declined", "cancelled") and kind in PERSON_KINDS and since:
        seconds = max(0.0, time.time() - since)
        counts.thinking.observe(seconds)
        if "opentelemetry.metrics" in sys.modules:
            from midcall.telemetry import record_answer  # noqa: PLC0415  slow to import, and seldom needed

            record_answer(seconds, THINKING, kind, ending)


# --- the text format --------------------------------------------------------------------------


class Family(NamedTuple):
    """Figures of one name."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Iterable[tuple[Mapping[str, str], "float | Histogram"]]


def single(name: str, type: Literal["counter", "gauge"], help: str, value: float) -> Family:
    """One figure without labels."""
    return Family(name, type, help, [({}, value)])


def by_label(
    name: str, type: Literal["counter", "gauge"], help: str, label: str, values: Mapping[str, float]
) -> Family:
    """A figure for each value of a label."""
    return Family(name, type, help, [({label: one}, value) for one, value in values.items()])


def histogram(name: str, help: str, label: str, values: Mapping[str, Histogram]) -> Family:
    """A histogram for each value of a label; with the label "" just one."""
    return Family(name, "histogram", help, [({label: o} if label else {}, h) for o, h in values.items()])


def families_of(counts: Counts) -> list[Family]:
    """What was counted, here or in several processes."""
    return [
        by_label(
            "midcall_questions_asked_total",
            "counter",
            "Questions that were asked.",
            "kind",
            {kind: counts.asked.get(kind, 0) for kind in sorted(KINDS)},
        ),
        by_label(
            "midcall_questions_ended_total",
            "counter",
            "Questions that wait no longer, and why.",
            "outcome",
            {ending: counts.ended.get(ending, 0) for ending in ENDINGS},
        ),
        histogram("midcall_answer_seconds", "How long people took to answer.", "", {"": counts.thinking}),
        *(
            single(f"midcall_segments_{name}_total", "counter", help, counts.segments.get(name, 0))
            for name, help in _SEGMENTS.items()
        ),
        single(
            "midcall_calls_diverged_total",
            "counter",
            "Calls that stand still because their code has changed.",
            counts.diverged,
        ),
        by_label(
            "midcall_refused_total",
            "counter",
            "What callers were refused because they had or did too much.",
            "reason",
            {reason: counts.refused.get(reason, 0) for reason in REFUSALS},
        ),
        histogram(
            "midcall_journal_seconds",
            "How long operations of the journal took.",
            "operation",
            {name: times for name, times in counts.journal.items() if any(times.counts)},
        ),
        by_label(
            "midcall_journal_errors_total",
            "counter",
            "Operations of the journal that failed.",
            "operation",
            counts.journal_errors,
        ),
    ]


_SEGMENTS = {
    "run": "Segments of calls that were run and written to the journal.",
    "rebuilt": "Segments for which a call was run again from its journal.",
    "taken_over": "Segments that were taken over from a worker that is gone.",
    "fenced": "Writes that were refused because another worker had taken over.",
}


def render(families: Iterable[Family]) -> str:
    """The text that a monitor reads."""
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.type}")
        for labels, value in family.samples:
            if isinstance(value, Histogram):
                lines += _histogram(family.name, labels, value)
            else:
                lines.append(f"{family.name}{_labels(labels)} {_number(value)}")
    return "\n".join((*lines, ""))


def _histogram(name: str, labels: Mapping[str, str], value: Histogram) -> Iterable[str]:
    total = 0
    for bound, count in zip((*value.bounds, None), value.counts, strict=True):
        total += count
        until = "+Inf" if bound is None else _number(bound)
        yield f"{name}_bucket{_labels({**labels, 'le': until})} {total}"
    yield f"{name}_sum{_labels(labels)} {_number(value.sum)}"
    yield f"{name}_count{_labels(labels)} {total}"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))

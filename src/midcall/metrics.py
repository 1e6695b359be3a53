"""Metrics: what a monitor reads of this process, kept by `prometheus_client` (extra: `midcall[metrics]`).

They belong to the process, like the calls of all its hubs. Nothing is kept before somebody wants it (`keep`),
and only calls that ask count anything. Where several processes serve one address, they have the figures in
files of one folder, so that each of them can tell those of all. Knows no hub, no journal and no HTTP.
"""

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias

from midcall.questions import KINDS, PERSON_KINDS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

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


NEEDS = "metrics need `pip install 'midcall[metrics]'`"

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder of the figures, in the environment of processes that serve together."""


class Metrics:
    """The figures of this process, or of all that serve together."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # noqa: PLC0415  an extra
        from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415

        self._all = own = CollectorRegistry()
        if FOLDER in os.environ:
            self._all = CollectorRegistry()
            MultiProcessCollector(self._all)  # type: ignore[no-untyped-call]

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(name, help, registry=own, multiprocess_mode="livesum")

        self.active = gauge("midcall_calls_active", "Calls that run, or wait in memory.")
        self.open = gauge("midcall_questions_open", "Open questions of those.")
        self.parked = gauge("midcall_calls_parked", "Those of them that are in the journal, and wait.")
        self.asked = Counter("midcall_questions_asked", "Questions that were asked.", ["kind"], registry=own)
        self.ended = Counter(
            "midcall_questions_ended", "Questions that wait no longer, and why.", ["outcome"], registry=own
        )
        self.thinking = Histogram(
            "midcall_answer_seconds", "How long people took to answer.", buckets=THINKING, registry=own
        )
        """Also if they took it over several lives of the process."""
        self.segments = {
            name: Counter(f"midcall_segments_{name}", help, registry=own) for name, help in _SEGMENTS.items()
        }
        self.diverged = Counter(
            "midcall_calls_diverged", "Calls that stand still because their code has changed.", registry=own
        )
        self.refused = Counter(
            "midcall_refused",
            "What callers were refused because they had or did too much.",
            ["reason"],
            registry=own,
        )
        self.journal = Histogram(
            "midcall_journal_seconds",
            "How long operations of the journal took.",
            ["operation"],
            buckets=WRITING,
            registry=own,
        )
        self.journal_errors = Counter(
            "midcall_journal_errors", "Operations of the journal that failed.", ["operation"], registry=own
        )
        self.notices = Counter(
            "midcall_notices", "Tries to tell people of questions.", ["channel", "outcome"], registry=own
        )
        for counter, labels in ((self.asked, sorted(KINDS)), (self.ended, ENDINGS), (self.refused, REFUSALS)):
            for label in labels:
                counter.labels(label)  # what has not happened yet is told too

    def text(self, more: "Iterable[Metric]" = ()) -> bytes:
        """What a monitor reads; `more` is what was looked up for it."""
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

        looked_up = CollectorRegistry()
        looked_up.register(_Found(list(more)))
        return generate_latest(looked_up) + generate_latest(self._all)


class _Found:
    """What was looked up, as `prometheus_client` wants it."""

    def __init__(self, families: "list[Metric]") -> None:
        self._families = families

    def collect(self) -> "Iterable[Metric]":
        return self._families


_SEGMENTS = {
    "run": "Segments of calls that were run and written to the journal.",
    "rebuilt": "Segments for which a call was run again from its journal.",
    "taken_over": "Segments that were taken over from a worker that is gone.",
    "fenced": "Writes that were refused because another worker had taken over.",
}

_metrics: Metrics | None = None


def keep() -> Metrics:
    """Have figures kept from now on; gives them. Raises `ValueError` if what keeps them is not installed."""
    global _metrics  # noqa: PLW0603  they are the process's
    if _metrics is None:
        try:
            _metrics = Metrics()
        except ImportError as error:
            raise ValueError(f"{error}: {NEEDS}") from None
    return _metrics


def forget_process(pid: int) -> None:
    """One of the processes that serve together has ended: what it has counted stays, what it had does not."""
    if FOLDER in os.environ:
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415

        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def question_asked(kind: str) -> None:
    """A question waits that did not wait before."""
    if _metrics is not None:
        _metrics.asked.labels(kind).inc()


def question_ended(kind: str, ending: Ending, since: float) -> None:
    """A question waits no longer; `since` is the time at which it was asked."""
    if _metrics is not None:
        _metrics.ended.labels(ending).inc()
    if ending in ("answered", "declined", "cancelled") and kind in PERSON_KINDS and since:
        seconds = max(0.0, time.time() - since)
        if _metrics is not None:
            _metrics.thinking.observe(seconds)
        if "opentelemetry.metrics" in sys.modules:
            from midcall.telemetry import record_answer  # noqa: PLC0415  slow to import, and seldom needed

            record_answer(seconds, THINKING, kind, ending)


def segment(what: Literal["run", "rebuilt", "taken_over", "fenced"]) -> None:
    """Something happened to a segment of a call in the journal."""
    if _metrics is not None:
        _metrics.segments[what].inc()


def diverged() -> None:
    """A call stands still because its code has changed."""
    if _metrics is not None:
        _metrics.diverged.inc()


def refused(code: str) -> None:
    """A caller was refused something because it had or did too much; `code` is that of the error."""
    if _metrics is not None:
        _metrics.refused.labels(code).inc()


def notice(channel: str, outcome: Literal["told", "failed", "given_up"]) -> None:
    """It was tried to tell somebody of a question."""
    if _metrics is not None:
        _metrics.notices.labels(channel, outcome).inc()

"""Telemetry: the span of a request, and how long people take, where OpenTelemetry is set up.

Only imported by whoever has seen that the process uses OpenTelemetry, which is slow to import; without a
tracer provider nothing is traced. This module knows spans, and nothing of what they are for.

A call may outlive the request that started it: it asks, the request is answered, and another one comes
back with the answer. Each request has a span of its own. What the tool sees as the current span is one
and the same object, which always stands for the span of the latest request.
"""

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

from opentelemetry import context, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from midcall.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram

LOOK_AGAIN = 1.0
"""Seconds between two looks for a tracer provider, which may be set up at any time."""

CARRIED = ("traceparent", "tracestate", "baggage")
"""What carries a caller's context, in the formats of W3C, whatever the process uses elsewhere."""

MAX_CARRIED = 8192
"""Of each of them, in characters, as W3C has it."""

_PARENT = TraceContextTextMapPropagator()
_PROPAGATOR = CompositePropagator([_PARENT, W3CBaggagePropagator()])

_NONE: Mapping[str, str] = {}

_found: Tracer | None = None
_next_look = 0.0


def tracer() -> Tracer | None:
    """The tracer of midcall; nothing while the process has no tracer provider."""
    global _found, _next_look  # noqa: PLW0603  found once, for the whole process
    if _found is None and time.monotonic() >= _next_look:
        _next_look = time.monotonic() + LOOK_AGAIN
        provider = trace.get_tracer_provider()
        if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            _found = provider.get_tracer("midcall", __version__)
    return _found


def carrier() -> dict[str, str]:
    """The present context, for a request that is about to be sent."""
    carried: dict[str, str] = {}
    _PROPAGATOR.inject(carried)
    return carried


class RequestSpan:
    """The span of one request, from its arrival to its answer."""

    __slots__ = ("_context", "_current", "_open", "_span")

    def __init__(
        self, tracer: Tracer, name: str, attributes: Mapping[str, str], carrier: Mapping[str, Any]
    ) -> None:
        """`carrier` has the caller's context, if it sent one; what is no context is ignored."""
        given = {key: carrier.get(key) for key in CARRIED}
        carried = {key: value for key, value in given.items() if _is_short(value)}
        ambient = trace.get_current_span().get_span_context()
        parent = _PROPAGATOR.extract(carried, Context())
        links = []
        if not trace.get_current_span(parent).get_span_context().is_valid:
            parent = _PROPAGATOR.extract(carried, context.get_current())  # the transport's span, if any
        elif ambient.is_valid:
            links.append(trace.Link(ambient))
        self._span = tracer.start_span(name, parent, SpanKind.SERVER, attributes, links)
        self._current = _Current(self._span)
        self._context = trace.set_span_in_context(self._current, parent)
        self._open = True

    @contextmanager
    def current(self) -> Iterator[None]:
        """What begins in here has this span for its current one."""
        token = context.attach(self._context)
        try:
            yield
        finally:
            context.detach(token)

    @property
    def traceparent(self) -> str:
        """Names this span to others, as W3C has it."""
        carrier: dict[str, str] = {}
        _PARENT.inject(carrier, trace.set_span_in_context(self._span, Context()))
        return carrier.get("traceparent", "")

    def link(self, before: str) -> None:
        """It comes back for what another request began, perhaps elsewhere: the `traceparent` of that one."""
        found = trace.get_current_span(_PARENT.extract({"traceparent": before}, Context())).get_span_context()
        if found.is_valid:
            self._span.add_link(found)

    def take_over(self, before: "RequestSpan | None") -> None:
        """What the other one began goes on in this one."""
        if before is not None:
            self._current = before._current
            self._current.stands_for = self._span

    def end(
        self, error: str | None = None, description: str | None = None, more: Mapping[str, str] = _NONE
    ) -> None:
        """The request is answered: well, or with a kind of error. Only the first end counts."""
        if not self._open:
            return
        self._open = False
        if error is not None:
            self._span.set_attributes({"error.type": error, **more})
            self._span.set_status(Status(StatusCode.ERROR, description))
        self._span.end()


def _is_short(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_CARRIED


class _Current(Span):
    """Stands for the span of the latest request of a call."""

    def __init__(self, span: Span) -> None:
        self.stands_for = span

    def end(self, end_time: int | None = None) -> None:
        """It ends with its request."""

    def get_span_context(self) -> SpanContext:
        return self.stands_for.get_span_context()

    def set_attributes(self, attributes: Any) -> None:
        self.stands_for.set_attributes(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self.stands_for.set_attribute(key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self.stands_for.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        self.stands_for.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        self.stands_for.update_name(name)

    def is_recording(self) -> bool:
        return self.stands_for.is_recording()

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.stands_for.set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        self.stands_for.record_exception(exception, attributes, timestamp, escaped)


def record_answer(seconds: float, bounds: Sequence[float], kind: str, outcome: str) -> None:
    """A person took so long for a question; does nothing while the process has no meter provider."""
    attributes = {"midcall.question.kind": kind, "midcall.question.outcome": outcome}
    _thinking(tuple(bounds)).record(seconds, attributes)


@functools.cache
def _thinking(bounds: Sequence[float]) -> "Histogram":
    from opentelemetry import metrics  # noqa: PLC0415  who only traces does without

    return metrics.get_meter("midcall", __version__).create_histogram(
        "midcall.answer.duration",
        unit="s",
        description="How long people took to answer.",
        explicit_bucket_boundaries_advisory=bounds,
    )

"""A hub in a process that uses OpenTelemetry, which tells by a tool of its own what was traced."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from midcall import Ask, Hub, ProtocolError, ToolError, completion, method, prompt, resource

exporter = InMemorySpanExporter()
tracer = trace.get_tracer("app")


def set_up() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def hex_of(context: Any) -> dict[str, str]:
    return {"trace": f"{context.trace_id:032x}", "span": f"{context.span_id:016x}"}


def shown(span: ReadableSpan) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": span.kind.name,
        **hex_of(span.get_span_context()),
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [hex_of(link.context)["span"] for link in span.links],
        "attributes": dict(span.attributes or {}),
        "status": span.status.status_code.name,
        "description": span.status.description,
        "events": [event.name for event in span.events],
        "scope": span.instrumentation_scope.name if span.instrumentation_scope else None,
    }


def mark(name: str) -> None:
    """What instrumented code does: a span of its own, and a word on the current one."""
    with tracer.start_as_current_span(name):
        pass
    trace.get_current_span().add_event(name)


class Tools:
    """What is traced."""

    @method
    async def look(self) -> dict[str, Any]:
        """Tell what the current span is."""
        mark("inside")
        span = trace.get_current_span()
        span.set_attribute("app.seen", True)
        return {**hex_of(span.get_span_context()), "baggage": dict(baggage.get_all())}

    @method
    def look_in_a_thread(self) -> dict[str, Any]:
        """Tell what the current span is, in a worker thread."""
        return hex_of(trace.get_current_span().get_span_context())

    @method
    async def stream(self) -> AsyncIterator[str]:
        """Give two things."""
        for word in ("one", "two"):
            await asyncio.sleep(0.01)
            mark(word)
            yield word

    @method
    async def fail(self, how: str) -> str:
        """Fail."""
        if how == "protocol":
            raise ProtocolError("Not today")
        if how == "unsendable":
            return object()  # type: ignore[return-value]
        raise ToolError("It broke")

    @method
    async def slow(self, seconds: float) -> str:
        """Take a while."""
        await asyncio.sleep(seconds)
        return "slept"

    @method
    async def hang(self) -> None:
        """Begin, and never end."""
        mark("begun")
        await asyncio.Event().wait()

    @method
    async def wizard(self, ask: Ask) -> str:
        """Ask twice, with work before, between and after."""
        mark("before")
        first = await ask.prompt("First?")
        mark("between")
        second = await ask.prompt("Second?")
        mark("after")
        return f"{first} {second}"

    @method(long_running=True)
    async def job(self) -> str:
        """Work on after the request is answered."""
        await asyncio.sleep(0.05)
        mark("worked")
        return "done"

    @method
    async def spans(self) -> list[dict[str, Any]]:
        """What was traced since the last time, without this very tool."""
        found = [shown(span) for span in exporter.get_finished_spans()]
        exporter.clear()
        return [span for span in found if not span["name"].startswith("tools/call tools.spans")]

    @method
    async def set_up(self) -> str:
        """Set up OpenTelemetry, if that was not done at the start."""
        set_up()
        return "set up"

    @resource("trace://{name}")
    async def read(self, name: str) -> str:
        """Read something."""
        mark("reading")
        return name

    @prompt
    async def greet(self, name: str) -> str:
        """Greet somebody."""
        return f"Greet {name}"

    @completion("greet", "name")
    async def names(self, value: str) -> list[str]:
        """Suggest names."""
        return [value]


def make_hub() -> Hub:
    """A hub in a process that has set up OpenTelemetry before."""
    set_up()
    return Hub().register(Tools())


def late() -> Hub:
    """A hub in a process that uses OpenTelemetry, but has not set it up yet."""
    return Hub().register(Tools())

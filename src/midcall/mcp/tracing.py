"""Tracing: a span for each request that starts a call or goes on with one.

Named and described as OpenTelemetry's conventions for MCP say. Only imported if the process uses
OpenTelemetry (see `telemetry`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from midcall import jsonrpc, telemetry
from midcall.errors import MidcallError
from midcall.mcp import messages
from midcall.mcp.catalog import Catalog, Tool
from midcall.mcp.exchange import Exchange, McpError


class Tools(Protocol):
    """What finds a tool by its name."""

    def tool(self, name: str) -> Tool | None: ...


class Server(Protocol):
    """What knows which tools and prompts there are."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def running(self) -> Tools: ...


class TracedExchange(Exchange, frozen=True):
    """A request whose span ends with its answer."""

    def result(self, result: dict[str, Any]) -> None:
        super().result(result)  # or else an error, which has ended the span
        if self.span is not None:
            self.span.end("tool_error" if result.get("isError") else None)

    def error(self, error: McpError) -> None:
        if self.span is not None:
            _fail(self.span, error.code, error.message)
        super().error(error)

    def close(self) -> None:
        if self.span is not None:
            self.span.end("cancelled")
        super().close()


@contextmanager
def traced(server: Server, method: str, exchange: Exchange, params: Any) -> Iterator[Exchange]:
    """The same request with a span, which is the current one in here; without a tracer, as it is."""
    tracer = telemetry.tracer()
    if tracer is None:
        yield exchange
        return
    name = f"{method} {_target(server, method, params)}".rstrip()
    carrier = {key: getattr(exchange.meta, key) for key in telemetry.CARRIED}
    span = telemetry.RequestSpan(tracer, name, _attributes(method, exchange, params), carrier)
    fields = {field: getattr(exchange, field) for field in exchange.__struct_fields__}
    try:
        with span.current():
            yield TracedExchange(**{**fields, "span": span})
    except McpError as error:
        _fail(span, error.code, error.message)
        raise
    except MidcallError as error:
        _fail(span, jsonrpc.code_for(error), str(error))
        raise
    except Exception:
        _fail(span, jsonrpc.INTERNAL_ERROR, "Internal error")
        raise


def _fail(span: telemetry.RequestSpan, code: int, message: str) -> None:
    span.end(str(code), message, {"rpc.response.status_code": str(code)})


def _target(server: Server, method: str, params: Any) -> str:
    """The tool or the prompt, if there is one: what clients make up is not to be the name of a span."""
    if method == "tools/call":
        tool = server.running.tool(params.name)
        return "" if tool is None else tool.found.name
    return params.name if method == "prompts/get" and params.name in server.catalog.prompts else ""


def _attributes(method: str, exchange: Exchange, params: Any) -> dict[str, str]:
    attributes = {"mcp.method.name": method, "mcp.protocol.version": exchange.caller.revision}
    if exchange.id is not None:
        attributes["jsonrpc.request.id"] = str(exchange.id)
    match params:
        case messages.Named(name=name) if method == "tools/call":
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        case messages.Named(name=name) | messages.Complete(ref=messages.Reference("ref/prompt", name)):
            attributes["gen_ai.prompt.name"] = name
        case messages.Located(uri=uri) | messages.Complete(ref=messages.Reference(uri=uri)):
            attributes["mcp.resource.uri"] = uri
    return attributes

"""Machines over HTTP: a list, definitions and drawings, one request for a run, and OpenAPI of all that."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from midcall.chat.ndjson import principal_of, read_body
from midcall.errors import InvalidArguments, MidcallError, NotAllowed, TooManyCalls
from midcall.fsm import draw
from midcall.fsm.serve import MachineMethod
from midcall.hub import Hub
from midcall.principal import check_scopes
from midcall.version import __version__

_FORMS = {
    "dot": (draw.to_dot, "text/vnd.graphviz"),
    "mmd": (draw.to_mermaid, "text/plain"),
    "svg": (draw.to_svg, "image/svg+xml"),
}
_STATUS = {NotAllowed: 403, TooManyCalls: 429, draw.NoGraphviz: 501}


class NoMachine(MidcallError):
    """There is none of this name."""

    code = "not_found"


class MachinePart:
    """The machines of a hub as a part of its ASGI application (see `transports.http.Part`)."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def routes(self) -> list[Route]:
        return [
            Route("/fsm", _MachinePage(self._list), methods=["GET"]),
            Route("/fsm/openapi.json", _MachinePage(self._openapi), methods=["GET"]),
            Route("/fsm/{id}", _MachinePage(self._show), methods=["GET"]),
            Route("/fsm/{id}/graph.{form}", _MachinePage(self._draw), methods=["GET"]),
            Route("/fsm/{id}/run", _MachinePage(self._run), methods=["POST"]),
        ]

    async def open(self) -> None:
        """The hub does."""

    def stop(self) -> None:
        """The hub does."""

    async def close(self) -> None:
        """The hub does."""

    def _machines(self) -> dict[str, tuple[str, MachineMethod]]:
        found = [(path, one) for path, one in self._hub.methods() if isinstance(one, MachineMethod)]
        return {method.name: (path, method) for path, method in found}

    def _find(self, request: Request) -> tuple[str, MachineMethod]:
        """A machine that whoever asks may run, and its path. Raises `NoMachine` or `NotAllowed`."""
        name: str = request.path_params["id"]
        found = self._machines().get(name)
        if found is None:
            raise NoMachine(f"FSM not found: {name[:100]}")
        check_scopes(found[0], found[1].extras, principal_of(request))
        return found

    async def _list(self, request: Request) -> Response:
        machines = [one.registered.machine for _, one in self._machines().values()]
        return _json({"machines": [{"id": one.id, "description": one.description} for one in machines]})

    async def _show(self, request: Request) -> Response:
        return _json(self._find(request)[1].registered.machine)

    async def _draw(self, request: Request) -> Response:
        form = _FORMS.get(request.path_params["form"])
        machine = self._find(request)[1].registered.machine
        if form is None:
            raise NoMachine(f"A machine is drawn as {', '.join(_FORMS)}")
        to_text, media_type = form
        return Response(await asyncio.to_thread(to_text, machine), media_type=media_type)

    async def _run(self, request: Request) -> Response:
        path, _ = self._find(request)
        principal = principal_of(request)
        name = None if principal is None else principal.name
        body = await read_body(request)
        try:
            given = msgspec.json.decode(body or b"{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidArguments(path, [{"path": "", "message": str(error)}]) from None
        self._hub.calls.admit(name)
        trail = await _while_connected(request, self._hub.call(path, given, principal=name))
        if trail is None:
            return Response(status_code=499)  # nobody reads it
        event = trail[-1].event
        late = event.get("bail_out") and event["reason"] == "timeout"
        return _json({"event": event, "trail": trail}, 504 if late else 200)

    async def _openapi(self, request: Request) -> Response:
        paths: dict[str, Any] = {}
        for method in (method for _, method in self._machines().values()):
            registered, name = method.registered, method.name
            output = {
                "type": "object",
                "properties": {"event": registered.output_schema, "trail": {"type": "array"}},
            }
            paths[f"/fsm/{name}/run"] = {
                "post": {
                    "operationId": name,
                    "summary": method.description or name,
                    "requestBody": {"required": True, "content": _content(registered.input_schema)},
                    "responses": {
                        "200": {"description": "It has ended", "content": _content(output)},
                        "400": {"description": "Input validation failed"},
                        "404": {"description": "There is no such machine"},
                        "504": {"description": "It took too long", "content": _content(output)},
                    },
                }
            }
        info = {"title": f"State machines of {self._hub.name}", "version": __version__}
        return _json({"openapi": "3.1.0", "info": info, "paths": paths})


async def _while_connected(request: Request, work: Awaitable[Any]) -> Any:
    """What is worked for; nothing if whoever waits for it goes away: then it ends too."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if left := not working.done():
            working.cancel()
            await asyncio.wait((working,))
    return None if left else working.result()


class _MachinePage:
    """Says why a request is not taken, if the handler raises that."""

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._handler(Request(scope, receive))
        except InvalidArguments as error:
            response = _json({"error": "Input validation failed", "details": error.errors}, 400)
        except MidcallError as error:
            status = 404 if isinstance(error, NoMachine) else _STATUS.get(type(error), 400)
            response = _json({"error": str(error)}, status)
        await response(scope, receive, send)


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")

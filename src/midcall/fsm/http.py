"""Machines over HTTP: a list, definitions and drawings, runs, and OpenAPI of all that.

    POST /fsm/{id}/run           what a run came to (200, or 504 if it took too long), or 202 and where it is
    GET  /fsm/{id}/runs/{call}   the same of a run that is under way
    POST /fsm/{id}/runs/{call}   the same after {"answers": {key: answer}}

A run is a durable call: it outlives its request, and the process. Who has started it can answer what it asks,
whenever and through whichever worker; to others it does not exist. It can be followed by `plexus_attach` too.
"""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midcall.chat.ndjson import NotJson, json_response, principal_of, read_body
from midcall.errors import InvalidArguments, MidcallError, TooManyCalls, UnknownCall
from midcall.fsm import draw
from midcall.fsm.serve import MachineMethod, machines_of
from midcall.hub import Hub
from midcall.journal.admin import Admin
from midcall.journal.dialect import Detached
from midcall.journal.durable import PATIENCE, durable_calls
from midcall.limits import check_keys
from midcall.mcp import CALL_KINDS
from midcall.principal import check_scopes, missing_scopes
from midcall.questions import PERSON_KINDS
from midcall.transports.admin import CallAnswers, read_json, status_of
from midcall.transports.http import AppPart
from midcall.version import __version__

LONGEST = 600.0
"""How many seconds a request waits for what a run comes to, if it prefers so."""

_INERT = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*(\d{1,9})\s*(?:$|[,;])", re.IGNORECASE)


class NoMachine(MidcallError):
    """There is none of this name."""

    code = "not_found"


_STATUS = {NoMachine: 404, NotJson: 415, TooManyCalls: 429, draw.NoGraphviz: 501}
_ENDED_AS = {"failed": 500, "diverged": 409}


class MachinePart(AppPart):
    """The machines of a hub as a part of its ASGI application."""

    pages = ("machines",)

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @functools.cached_property
    def _admin(self) -> Admin:
        durable = durable_calls(self._hub)
        return Admin(durable.journal, CALL_KINDS, durable=durable, calls=self._hub.calls, patience=0)

    def routes(self) -> list[Route]:
        return [
            _page("/fsm", self._list),
            _page("/fsm/openapi.json", self._openapi),
            _page("/fsm/{id}", self._show),
            _page("/fsm/{id}/graph.{form}", self._draw),
            _page("/fsm/{id}/run", self._run, "POST"),
            _page("/fsm/{id}/runs/{call}", self._go_on, "GET", "POST"),
        ]

    def _allowed(self, request: Request) -> Iterator[tuple[str, str, MachineMethod]]:
        """Those that whoever asks may run: the id of each, and its path."""
        for name, (path, method) in machines_of(self._hub).items():
            if not missing_scopes(method.extras, principal_of(request)):
                yield name, path, method

    def _find(self, request: Request) -> tuple[str, MachineMethod]:
        """A machine that whoever asks may run, and its path. Raises `NoMachine` or `NotAllowed`."""
        name: str = request.path_params["id"]
        found = machines_of(self._hub).get(name)
        if found is None:
            raise NoMachine(f"FSM not found: {name[:100]}")
        check_scopes(found[0], found[1].extras, principal_of(request))
        return found

    async def _list(self, request: Request) -> Response:
        allowed = self._allowed(request)
        listed = [{"id": id, "description": one.description, "method": path} for id, path, one in allowed]
        return json_response({"machines": listed})

    async def _show(self, request: Request) -> Response:
        return json_response(self._find(request)[1].machine)

    async def _draw(self, request: Request) -> Response:
        _, method = self._find(request)
        if request.path_params["form"] not in draw.FORMS:
            raise NoMachine(f"A machine is drawn as {', '.join(draw.FORMS)}")
        to_text, media_type = draw.FORMS[request.path_params["form"]]
        drawn = await asyncio.to_thread(to_text, method.machine)
        return Response(drawn, media_type=media_type, headers=_INERT)

    async def _run(self, request: Request) -> Response:
        path, _ = self._find(request)
        principal, key = principal_of(request), request.headers.get("idempotency-key")
        check_keys([key or ""])
        body = await read_body(request)
        self._hub.calls.admit(None if principal is None else principal.name)
        subscriptions = durable_calls(self._hub).subscriptions
        call = await subscriptions.start(path, body, PERSON_KINDS, principal, idempotency_key=key)
        return await self._told(request, call)

    async def _go_on(self, request: Request) -> Response:
        path, _ = self._find(request)
        call: str = request.path_params["call"]
        check_keys([call])
        durable = durable_calls(self._hub)
        record = await durable.subscriptions.find(call, principal_of(request))
        if record.name != path:
            raise UnknownCall(call)
        if request.method == "POST":
            given = await read_json(request, CallAnswers)
            await self._admin.answer(call, given.answers, lambda record, one: one.to is None)
        elif record.status == "diverged" and isinstance(again := await durable.take_up(record), Detached):
            durable.resume(again)  # its definition may be back; if not, it is known then what has changed
        return await self._told(request, call)

    async def _told(self, request: Request, call: str) -> Response:
        """What a run came to; or what it asks, or that it still runs, and where that is told."""
        preferred = request.headers.get("prefer", "")
        at_once, wait = "respond-async" in preferred.lower(), _WAIT.search(preferred)
        patience = 0.0 if at_once else PATIENCE if wait is None else min(float(wait[1]), LONGEST)
        run = await self._admin.settled(call, values=True, patience=patience)
        status, outcome = run["status"], run.get("outcome") or {}
        told = {"call": call, "status": status}
        if at_once or status in ("running", "waiting"):
            here = f"{request.scope.get('root_path', '')}/fsm/{request.path_params['id']}/runs/{call}"
            told |= {"questions": run["questions"], "run": here}
            return json_response(told, 202, {"location": here})
        if status != "completed":
            why = outcome.get("error", {}).get("message", f"The run is {status}")
            return json_response({"error": why, **told}, _ENDED_AS.get(status, 410))
        trail = outcome["contents"]
        event = trail[-1]["event"]
        late = event.get("bail_out") and event["reason"] == "timeout"
        return json_response({"event": event, "trail": trail, "call": call}, 504 if late else 200)

    async def _openapi(self, request: Request) -> Response:
        paths, schemas = dict[str, Any](), dict(_SCHEMAS)
        for name, _, method in self._allowed(request):
            given, event = f"{name}.input", f"{name}.event"
            for part, schema in ((given, method.params), (event, method.output), ("Entry", method.returns)):
                schemas[part] = _component(part, schema)
            ended = _object(event=_ref(event), trail={"type": "array", "items": _ref("Entry")}, call=_TEXT)
            answers = {
                "200": _content(ended, description="It has ended"),
                "202": _content(_ref("Run"), description="It waits for answers, or still runs"),
                "400": _content(_ref("Error"), description="Input validation failed"),
                "404": _content(_ref("Error"), description="There is no such machine, or run"),
                "504": _content(ended, description="It took too long"),
            }
            look = {"operationId": f"{name}.run", "summary": "What has become of a run", "responses": answers}
            answer = {**look, "operationId": f"{name}.answer", "summary": "Answer a run"}
            run = {**look, "operationId": name, "summary": method.description or name, "parameters": _KEY}
            paths[f"/fsm/{name}/run"] = {"post": {**run, "requestBody": _content(_ref(given))}}
            answer["requestBody"] = _content(_ref("Answers"))
            paths[f"/fsm/{name}/runs/{{call}}"] = {"parameters": _CALL, "get": look, "post": answer}
        info = {"title": f"State machines of {self._hub.name}", "version": __version__}
        whole = {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}
        return json_response(whole)


def _page(path: str, handler: Callable[[Request], Awaitable[Response]], *verbs: str) -> Route:
    """A page that says why a request is not taken, if the handler raises that."""

    async def page(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidArguments as error:
            return json_response({"error": "Input validation failed", "details": error.errors}, 400)
        except MidcallError as error:
            return json_response({"error": str(error)}, _STATUS.get(type(error)) or status_of(error, 400))

    return Route(path, page, methods=verbs or ["GET"])


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


_TEXT = {"type": "string"}
_KEY = [{"name": "Idempotency-Key", "in": "header", "schema": _TEXT}]
_CALL = [{"name": "call", "in": "path", "required": True, "schema": _TEXT}]
_QUESTION = _object(key=_TEXT, kind=_TEXT, message=_TEXT, question=_object())
_SCHEMAS: dict[str, Any] = {
    "Answers": {**_object(answers=_object()), "required": ["answers"]},
    "Error": _object(error=_TEXT, details={"type": "array"}),
    "Run": _object(call=_TEXT, status=_TEXT, questions={"type": "array", "items": _QUESTION}, run=_TEXT),
}


def _component(name: str, schema: Any) -> Any:
    """A schema where a document has it under this name: what it defines is there too."""
    there = f'"#/components/schemas/{name}/$defs/'.encode()
    return msgspec.json.decode(msgspec.json.encode(schema).replace(b'"#/$defs/', there))


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schema: dict[str, Any], **more: str) -> dict[str, Any]:
    return {**more, "content": {"application/json": {"schema": schema}}}

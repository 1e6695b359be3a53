"""Restricted: pages for administrators, who have a scope for them, or sit at the machine itself.

With authentication a key or token with a scope is needed: `midcall:admin`, or another one. Without it they
are for programs of this machine, and a request counts as one of theirs only if it cannot be anything else;
others find nothing (404).
"""

from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from midcall.principal import Principal
from midcall.transports.auth import Authenticator, Unauthorized, authorization_of
from midcall.transports.security import is_loopback

SCOPE = "midcall:admin"

_PASSED_ON = frozenset((b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"))


class Restricted:
    """An application for those who have a scope; without `auth`, for programs of this machine.

    It finds the `Principal` in `scope["midcall.principal"]`, or nothing for a program of this machine.
    """

    def __init__(self, app: ASGIApp, auth: Authenticator | None, *, scope: str = SCOPE) -> None:
        self._app = app
        self._auth = auth
        self._scope = scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # there is none here
            return
        if self._auth is None:
            if is_local(scope):
                await self._app(scope, receive, send)
            else:
                await send_json(send, 404, error_body("not_found", "Not found"))
            return
        try:
            principal = await self._auth.authenticate(authorization_of(scope["headers"]))
            if self._scope not in principal.scopes:
                raise self._auth.refusal([self._scope])
        except Unauthorized as refusal:
            code = {403: "insufficient_scope", 503: "unavailable"}.get(refusal.status, "unauthorized")
            challenge = refusal.www_authenticate
            headers = [] if challenge is None else [(b"www-authenticate", challenge.encode("latin-1"))]
            await send_json(send, refusal.status, error_body(code, refusal.message), headers)
            return
        await self._app({**scope, "midcall.principal": principal}, receive, send)


def name_of(principal: Principal | None) -> str:
    """What the log calls an administrator."""
    return "somebody at this machine" if principal is None else principal.name


def is_local(scope: Scope) -> bool:
    """Whether a request comes from a program of this machine: not by a proxy, and from no foreign page."""
    peers = (scope.get("client"), scope.get("server"))
    if not all(peer and is_loopback(str(peer[0])) for peer in peers):
        return False
    for name, value in scope["headers"]:
        if name in _PASSED_ON:
            return False
        if name in (b"host", b"origin") and not _is_loopback_name(value.decode("latin-1")):
            return False
    return True


def _is_loopback_name(text: str) -> bool:
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


def error_body(code: str, message: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is told of an error."""
    return {"error": {"code": code, "message": message, **({"data": data} if data else {})}}


async def send_json(
    send: Send, status: int, body: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Answer a request with JSON."""
    encoded = msgspec.json.encode(body)
    described = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(encoded)),
        *(headers or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": described})
    await send({"type": "http.response.body", "body": encoded})

"""Sending a response that is all there. Plain ASGI, unless the server can do better.

Two messages through a server's general `send` cost as much as a plain call does here: a server that offers it
takes the whole response at once (see `one_write`).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from starlette.types import Scope, Send

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]

RESPOND = "midcall.respond"
"""An extension of ASGI: a function `(scope, status, headers, body)` that sends a whole response.

It gives false if that cannot be done now. Whoever changes responses on their way out takes it from the scope.
"""

Respond: TypeAlias = Callable[[Scope, int, Fields, bytes], bool]


async def send_whole(scope: Scope, send: Send, status: int, headers: Fields, body: bytes) -> None:
    """Send a response; the length of its body is added to the headers."""
    fields = (*headers, (b"content-length", b"%d" % len(body)))
    respond: Respond | None = scope.get("extensions", {}).get(RESPOND)
    if respond is not None and respond(scope, status, fields, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": list(fields)})
    await send({"type": "http.response.body", "body": body})


def without_respond(scope: Scope) -> Scope:
    """The scope of a request whose response is changed on its way out."""
    extensions = scope.get("extensions", {})
    if RESPOND not in extensions:
        return scope
    return {**scope, "extensions": {name: value for name, value in extensions.items() if name != RESPOND}}

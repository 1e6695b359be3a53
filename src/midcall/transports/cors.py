"""CORS: what lets a web page of another origin call the server, and read its responses.

Which origins are let in is decided by `security.Gate`; this module only says so in the headers that a
browser looks for. Programs send no `Origin`, and get none of it.
"""

import re
from collections.abc import Iterable

from starlette.types import Message, Send

ANYBODY = b"*"

HEADERS = (
    "accept",
    "authorization",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
)
"""What a page may send. `mcp-param-*` comes on top, by whatever names it asks for."""

EXPOSED = b"mcp-session-id, www-authenticate"
"""What a page may read beside the body."""

MAX_AGE = 7200
"""Seconds for which a browser may remember the answer; more than this most of them do not take."""

_PARAMETER = re.compile(r"mcp-param-[a-z0-9-]{1,100}")
_MOST_PARAMETERS = 100


def is_preflight(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a browser asks beforehand what a page may send."""
    return method == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in headers)


async def answer_preflight(send: Send, headers: Iterable[tuple[bytes, bytes]], origin: bytes) -> None:
    """Tell a browser what pages of this origin may send. It needs no token: a browser sends none here."""
    asked = ",".join(v.decode("latin-1") for name, v in headers if name == b"access-control-request-headers")
    wanted = dict.fromkeys(name.strip().lower() for name in asked.split(","))
    parameters = [name for name in wanted if _PARAMETER.fullmatch(name)][:_MOST_PARAMETERS]
    said = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"POST, GET, DELETE, OPTIONS"),
        (b"access-control-allow-headers", ", ".join((*HEADERS, *parameters)).encode()),
        (b"access-control-max-age", b"%d" % MAX_AGE),
        (b"vary", b"Origin, Access-Control-Request-Headers"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": said})
    await send({"type": "http.response.body", "body": b""})


def readable_by(origin: bytes, send: Send) -> Send:
    """A `send` whose response pages of this origin may read."""
    readable = (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"Origin"),
    )

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *readable]}
        await send(message)

    return send_readable

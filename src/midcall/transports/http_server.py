"""A server for the hub's ASGI application: uvicorn, made for calls that wait.

It stops in the order that waiting calls need: what waits is told, what runs may end within its time, then the
connections close. A request that was sent on an open connection is answered. It may stand among several that
share their sockets.
"""

import asyncio
import copy
import logging
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from midcall.hub import Hub
from midcall.logs import hide_links, is_no_frame
from midcall.plexus.protocol import MAX_MESSAGE
from midcall.transports.auth import Authenticator
from midcall.transports.connection_limits import DEFAULTS, Limits
from midcall.transports.http import Application, AppPart, asgi_app
from midcall.transports.security import is_loopback, refuse_public_bind

if TYPE_CHECKING:
    from midcall.transports.uvicorn_protocol import Connections

if sys.platform != "win32":
    import resource

FRAME_LIMIT = 4 * MAX_MESSAGE
"""Frames up to this size are read, so that one over MAX_MESSAGE can be answered with an error; one
beyond ends its connection."""

TESTED = ((0, 53), (0, 54))
"""The first and the last version of uvicorn that `uvicorn_protocol` was tested with."""

GRACE = 5.0
"""Seconds that calls may run on when the server is told to stop."""

WRITING = 2
"""Seconds for the last responses to be read."""

OWN_FILES = 100
"""Files that a process has to be able to open beside its connections."""

log = logging.getLogger("midcall.http")


def server(
    hub: Hub,
    host: str = "127.0.0.1",
    port: int = 8000,
    log_level: str = "info",
    *,
    auth: Authenticator | None = None,
    hosts: Sequence[str] = (),
    allow_public: bool = False,
    sse: bool = False,
    grace: float = GRACE,
    label: str = "",
    is_ready: Callable[[], None] = lambda: None,
    admin: bool = False,
    metrics: bool = False,
    rate_limit: float | None = None,
    parts: Sequence[AppPart] = (),
    web_modules: Sequence[str | Path] = (),
    own_log: bool = True,
    limits: Limits = DEFAULTS,
) -> uvicorn.Server:
    """A server that is ready to `serve`; its log goes to standard error, with a label if there are several.

    Told to stop, it lets calls run on for up to `grace` seconds, and answers the others that it is closing.
    For as long it serves those who are connected, unless they are idle.

    `is_ready` is called when it serves. With `own_log=False` it is logged as the process has set it up.
    `admin`, `metrics` and `rate_limit` are as for `asgi_app`. `limits` is what each peer may take; there are
    no more connections than the process may open files, less some for itself.

    Raises `ValueError` for an address that others can reach, unless there is `auth` or `allow_public`.
    """
    fault = refuse_public_bind(host, auth is not None, allow_public)
    if fault is not None:
        raise ValueError(fault)
    if admin and auth is None and not is_loopback(host):
        raise ValueError("Without authentication, calls are administered on a loopback address only")
    names = [*hosts, *names_of(host)]
    app = asgi_app(
        hub,
        auth=auth,
        hosts=names,
        sse=sse,
        admin=admin,
        metrics=metrics,
        rate_limit=rate_limit,
        parts=parts,
        web_modules=web_modules,
    )
    logging.getLogger("uvicorn.error").addFilter(is_no_frame)
    logging.getLogger("uvicorn.access").addFilter(hide_links)
    limits = msgspec.structs.replace(limits, connections=_most_connections(limits.connections))
    connections = _connections(limits)
    return _Server(
        app,
        hub,
        connections,
        grace,
        is_ready,
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level=log_level,
            log_config=_log_to_stderr(f"{label}: " if label else "") if own_log else None,
            access_log=log_level in ("trace", "debug", "info"),  # else each line is made and thrown away
            proxy_headers=False,  # nothing here depends on what a proxy says of the client
            ws_max_size=FRAME_LIMIT,
            ws_per_message_deflate=False,  # costs 64 kB a peer, and hides a slow reader from us
            timeout_graceful_shutdown=2 * WRITING,  # never reached: see `_Server`
            **(_plain_options(limits) if connections is None else connections.options),
        ),
    )


def _connections(limits: Limits) -> "Connections | None":
    """What serves connections; nothing if uvicorn is to do that as it comes."""
    major, minor, *_ = uvicorn.__version__.split(".")
    if not (minor.isdecimal() and TESTED[0] <= (int(major), int(minor)) <= TESTED[1]):
        log.warning(
            "midcall was not tested with uvicorn %s: its own HTTP is used, with no limits for slow clients",
            uvicorn.__version__,
        )
        return None
    from midcall.transports.uvicorn_protocol import Connections  # noqa: PLC0415  may not be there in others

    return Connections(limits)


def _plain_options(limits: Limits) -> dict[str, Any]:
    """What uvicorn is told that serves as it comes: only how many connections there are is bounded."""

    class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Closes a connection that is one too many, and one that says nothing."""

        def __init__(self, *args: Any, server_state: Any, **options: Any) -> None:
            super().__init__(*args, server_state=server_state, **options)
            self._others = server_state.connections
            self._silence: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self._others) >= limits.connections:
                transport.abort()
                return
            self._silence = asyncio.get_running_loop().call_later(limits.head_time, transport.abort)
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            if self._silence is not None:
                self._silence.cancel()
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._silence is not None:
                self._silence.cancel()
                super().connection_lost(exc)

    return {"ws": "websockets-sansio", "http": BoundedProtocol}


class _Server(uvicorn.Server):
    """A server that knows of calls: told to stop, it waits for them, and not for idle streams.

    uvicorn alone waits for whoever is connected, and then cancels what serves them, with a traceback
    each. Here the calls end first, in good order; then nothing is left to wait for but the writing.
    """

    def __init__(
        self,
        app: Application,
        hub: Hub,
        connections: "Connections | None",
        grace: float,
        is_ready: Callable[[], None],
        config: uvicorn.Config,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._is_ready = is_ready
        self._app = app
        self._hub = hub
        self._calls = hub.calls
        self._grace = grace

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the process is told to stop.

        Raises `JournalError` if the hub has a journal that cannot be opened.
        """
        await self._hub.open()  # not before there is somebody who can go on with the calls in its journal
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except asyncio.CancelledError:  # told to stop, just before it listens for that itself
            if self._connections is not None:
                await self._connections.end_startup(self)
            raise
        if self.started:
            self._is_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        connections = self._connections
        if connections is not None:
            await connections.leave(self, sockets or [])
        else:
            for listener in (*self.servers, *(sockets or ())):
                listener.close()
        self._app.stop_listening()
        await self._finish_calls()
        self._app.close()
        if connections is None:
            await super().shutdown(sockets)
            return
        hanging_up = asyncio.get_running_loop().call_later(WRITING, connections.hang_up, self)
        await super().shutdown(sockets)
        hanging_up.cancel()

    async def _finish_calls(self) -> None:
        """Let what runs come to its end, and then end it; what waits and is kept is let go at once.

        Meanwhile a client may send one more request on a connection that it holds open, as it cannot know.
        Its response says that it is the last one. Idle connections are closed when they always are.
        """
        if self._hub.durable is not None:
            self._hub.durable.let_go()
            await asyncio.sleep(0)
        end = time.monotonic() + self._grace
        while (len(self._calls) or self._in_use()) and time.monotonic() < end and not self.force_exit:
            tasks = [call.task for call in self._calls if call.task is not None]
            await (asyncio.wait(tasks, timeout=0.1) if tasks else asyncio.sleep(0.05))
        if len(self._calls):
            log.warning("Calls that are stopped, as the server is closing: %d", len(self._calls))
        await self._hub.close()
        await asyncio.sleep(0.05)  # what they said last is on its way to WebSockets

    def _in_use(self) -> bool:
        return self._connections is not None and self._connections.in_use(self)


def _most_connections(wanted: int) -> int:
    """So many, or as many as there are files for, with some left for journals, threads and children."""
    if sys.platform == "win32":
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, max(files - OWN_FILES, 1))


def names_of(host: str) -> list[str]:
    """The name that a server is bound to, as a client writes it; all addresses are no name."""
    return [] if host in ("", "0.0.0.0", "::") else [f"[{host}]" if ":" in host else host]  # noqa: S104


def _log_to_stderr(label: str) -> dict[str, Any]:
    config = copy.deepcopy(LOGGING_CONFIG)
    for formatter in config["formatters"].values():
        formatter["fmt"] = formatter["fmt"].replace("%(levelprefix)s ", f"%(levelprefix)s {label}")
    for handler in config["handlers"].values():
        handler["stream"] = "ext://sys.stderr"
    return config

"""A server for the hub's ASGI application: uvicorn, made for calls that wait.

It stops in the order that waiting calls need: what waits is told, what runs may end within its time, then the
connections close. A request that was sent on an open connection is answered. It may stand among several that
share their sockets.
"""

import asyncio
import copy
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.lifespan.on import LifespanOn

from midcall.connection import MAX_MESSAGE
from midcall.hub import Hub
from midcall.logs import is_no_frame
from midcall.transports.auth import Authenticator
from midcall.transports.connection_limits import DEFAULTS, Limits
from midcall.transports.http import Application, Part, asgi_app
from midcall.transports.http_protocol import OneWrite, Together
from midcall.transports.security import is_loopback, refuse_public_bind
from midcall.transports.websocket_peer import WebSocketPeer

if sys.platform != "win32":
    import resource

FRAME_LIMIT = 4 * MAX_MESSAGE
"""Frames up to this size are read, so that one over MAX_MESSAGE can be answered with an error; one
beyond ends its connection."""

GRACE = 5.0
"""Seconds that calls may run on when the server is told to stop."""

WRITING = 2
"""Seconds for the last responses to be read."""

OWN_FILES = 100
"""Files that a process has to be able to open beside its connections."""

log = logging.getLogger("midcall.http")


class SharedPlace(Protocol):
    """Where a server stands among several that share their sockets; as a text, what its log calls it."""

    def listeners(self) -> list[socket.socket]:
        """The sockets to serve on."""

    def is_ready(self) -> None:
        """It serves from now on."""


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
    place: SharedPlace | None = None,
    admin: bool = False,
    metrics: bool = False,
    rate_limit: float | None = None,
    parts: Sequence[Part] = (),
    web_modules: Sequence[str | Path] = (),
    own_log: bool = True,
    limits: Limits = DEFAULTS,
) -> uvicorn.Server:
    """A server that is ready to `serve`; its log goes to standard error, with its place among others.

    Told to stop, it lets calls run on for up to `grace` seconds, and answers the others that it is closing.
    For as long it serves those who are connected, unless they are idle.

    With `own_log=False` it is logged as the process has set it up. `admin`, `metrics` and `rate_limit`
    are as for `asgi_app`. `limits` is what each peer may take; there are no more connections than the process
    may open files, less some for itself.

    Raises `ValueError` for an address that others can reach, unless there is `auth` or `allow_public`.
    """
    fault = refuse_public_bind(host, auth is not None, allow_public)
    if fault is not None:
        raise ValueError(fault)
    if admin and auth is None and not is_loopback(host):
        raise ValueError("Without authentication, calls are administered on a loopback address only")
    names = [*hosts, *_names_of(host)]
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
    together = Together(msgspec.structs.replace(limits, connections=_most_connections(limits.connections)))
    return _Server(
        app,
        hub,
        together,
        grace,
        place,
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level=log_level,
            log_config=_log_to_stderr("" if place is None else f"{place}: ") if own_log else None,
            access_log=log_level in ("trace", "debug", "info"),  # else each line is made and thrown away
            proxy_headers=False,  # nothing here depends on what a proxy says of the client
            http=cast("type[asyncio.Protocol]", functools.partial(OneWrite, together=together)),
            ws=WebSocketPeer,
            ws_max_size=FRAME_LIMIT,
            ws_per_message_deflate=False,  # costs 64 kB a peer, and hides a slow reader from us
            timeout_graceful_shutdown=2 * WRITING,  # never reached: see `_Server`
        ),
    )


class _Server(uvicorn.Server):
    """A server that knows of calls: told to stop, it waits for them, and not for idle streams.

    uvicorn alone waits for whoever is connected, and then cancels what serves them, with a traceback
    each. Here the calls end first, in good order; then nothing is left to wait for but the writing.
    """

    def __init__(
        self,
        app: Application,
        hub: Hub,
        together: Together,
        grace: float,
        place: SharedPlace | None,
        config: uvicorn.Config,
    ) -> None:
        super().__init__(config)
        self.server_state.tasks = together.requests.waiting
        self._together = together
        self._place = place
        self._app = app
        self._hub = hub
        self._calls = hub.calls
        self._grace = grace

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the process is told to stop; without `sockets`, on those of its place if it has one.

        Raises `JournalError` if the hub has a journal that cannot be opened.
        """
        if sockets is None and self._place is not None:
            sockets = self._place.listeners()
        await self._hub.open()  # not before there is somebody who can go on with the calls in its journal
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except asyncio.CancelledError:  # told to stop, just before it listens for that itself
            if isinstance(self.lifespan, LifespanOn):
                await self.lifespan.startup_event.wait()
                await self.lifespan.shutdown()
            raise
        if self._place is not None and self.started:
            self._place.is_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._together.leaving = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, OneWrite):
                connection.leave()
        await self._stop_accepting(sockets or [])
        self._app.stop_listening()
        await self._finish_calls()
        self._app.close()
        hanging_up = asyncio.get_running_loop().call_later(WRITING, self._hang_up)
        await super().shutdown(sockets)
        hanging_up.cancel()

    async def _stop_accepting(self, sockets: Sequence[socket.socket]) -> None:
        """Close the listeners. Who has connected already, perhaps with a request, is taken in before."""
        listeners = [one for server in self.servers for one in server.sockets]
        waiting = [socket.socket(fileno=os.dup(one.fileno())) for one in listeners]
        for server in self.servers:
            server.close()
        for one in sockets:
            one.close()
        for _ in range(2):
            await asyncio.sleep(0)  # uvloop closes them in the next turn
        loop = asyncio.get_running_loop()
        accepted: list[socket.socket] = []
        for listener in waiting:
            with listener, suppress(OSError):
                listener.setblocking(False)
                while True:
                    accepted.append(listener.accept()[0])
        for one in accepted:
            await loop.connect_accepted_socket(self._connection, one)

    def _connection(self) -> asyncio.Protocol:
        """What serves a connection, made as uvicorn makes it."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

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
        """Whether there are connections on which a request may come. Who has pressed Ctrl-C does not wait."""
        return signal.SIGINT not in self._captured_signals and any(
            isinstance(one, OneWrite) and one.in_use for one in self.server_state.connections
        )

    def _hang_up(self) -> None:
        """Whoever has not read its response by now never will."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _most_connections(wanted: int) -> int:
    """So many, or as many as there are files for, with some left for journals, threads and children."""
    if sys.platform == "win32":
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, max(files - OWN_FILES, 1))


def _names_of(host: str) -> list[str]:
    """The name that a server is bound to, as a client writes it; all addresses are no name."""
    return [] if host in ("", "0.0.0.0", "::") else [f"[{host}]" if ":" in host else host]  # noqa: S104


def _log_to_stderr(label: str) -> dict[str, Any]:
    config = copy.deepcopy(LOGGING_CONFIG)
    for formatter in config["formatters"].values():
        formatter["fmt"] = formatter["fmt"].replace("%(levelprefix)s ", f"%(levelprefix)s {label}")
    for handler in config["handlers"].values():
        handler["stream"] = "ext://sys.stderr"
    return config

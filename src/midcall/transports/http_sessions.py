"""The sessions of legacy clients over HTTP: found by id, owned by a principal, ended when idle."""

import itertools
import secrets
import time

from midcall.mcp.dialects.base import Dialect
from midcall.mcp.extension import McpExtension
from midcall.mcp.legacy import Session
from midcall.transports.sse import EventStream

IDLE = 30 * 60.0
"""Seconds without a request after which a session ends, unless something runs in it."""

LIMIT = 10_000
"""How many sessions there may be."""

KEPT_STREAMS = 64
"""How many streams of a session can be resumed."""


class HttpSession:
    """A legacy session, and its streams."""

    def __init__(self, principal: str | None) -> None:
        self.id = secrets.token_urlsafe(24)
        self.principal = principal
        self.used = time.monotonic()
        self._streams: dict[str, EventStream] = {}
        self._numbers = itertools.count(1)
        self._own = EventStream("0")  # for what belongs to no request
        self.session = Session(self._own.put, principal)

    def new_stream(self) -> EventStream:
        """A stream for the response to a request."""
        stream = EventStream(str(next(self._numbers)))
        self._streams[str(stream.id)] = stream
        if len(self._streams) > KEPT_STREAMS:
            ended = next((id for id, one in self._streams.items() if one.ended), None)
            if ended is not None:
                del self._streams[ended]
        return stream

    def resume(self, last_event_id: str | None) -> tuple[EventStream | None, int]:
        """The stream to go on with, and from which place; without an id, the session's own."""
        if last_event_id is None:
            return self._own, self._own.end
        stream_id, _, number = last_event_id.rpartition("-")
        stream = self._own if stream_id == "0" else self._streams.get(stream_id)
        if stream is None or not number.isdecimal():
            return None, 0
        return stream, int(number) + 1

    def close(self) -> None:
        """End all that runs for this client."""
        for dialect in list(self.session.running.values()):
            if isinstance(dialect, Dialect):
                dialect.let_go()
                if dialect.call is not None:
                    dialect.call.abort("The session has ended")
        self.session.running.clear()
        for stream in (self._own, *self._streams.values()):
            stream.close()


class HttpSessions:
    """All sessions of one endpoint."""

    def __init__(self, extension: McpExtension) -> None:
        self._extension = extension
        self._sessions: dict[str, HttpSession] = {}

    def create(self, principal: str | None) -> HttpSession:
        """A new session; the longest idle one makes room if there are too many."""
        self._sweep()
        found = HttpSession(principal)
        self._sessions[found.id] = found
        return found

    def get(self, session_id: str, principal: str | None) -> HttpSession | None:
        """A session of this principal; to anybody else it does not exist."""
        found = self._sessions.get(session_id)
        if found is None or found.principal != principal:
            return None
        found.used = time.monotonic()
        self._sessions[session_id] = self._sessions.pop(session_id)  # the last one used stands last
        return found

    def end(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        session.close()

    def _sweep(self) -> None:
        oldest = time.monotonic() - IDLE
        for session in list(itertools.islice(self._sessions.values(), 16)):  # the longest idle stand first
            if (session.used < oldest and not session.session.running) or len(self._sessions) >= LIMIT:
                self.end(session)

"""The sessions of legacy clients over HTTP: found by id, owned by a principal, ended when idle."""

import itertools
import secrets
import time

from midcall.calls import Owned
from midcall.jsonrpc import BatchReply, Id
from midcall.mcp.calls import PlainCall
from midcall.mcp.request import Session
from midcall.mcp.server import McpExtension
from midcall.principal import Principal
from midcall.transports.responses import EventStream, HttpLine

IDLE = 30 * 60.0
"""Seconds without a request after which a session ends, unless something runs in it."""

LIMIT = 10_000
"""How many sessions there may be; of a caller with a name, a tenth."""

SWEEP = 16
"""How many sessions are looked at when a new one comes."""

KEPT_STREAMS = 16
"""How many streams of a session can be resumed after their end."""


class HttpSession:
    """A legacy session, and its streams."""

    def __init__(self, principal: Principal | None, home: str = "") -> None:
        self.id = f"{home}.{secrets.token_urlsafe(24)}" if home else secrets.token_urlsafe(24)
        self.owner = None if principal is None else principal.name
        self.used = time.monotonic()
        self._streams: dict[str, EventStream] = {}
        self._numbers = itertools.count(1)
        self._own = EventStream("0")  # for what belongs to no request
        self.session = Session(self._tell, principal)

    def _tell(self, message: bytes) -> None:
        """Send what belongs to no request; a client that has never listened does not hear of it."""
        if self._own.begun:
            self._own.put(message)

    def new_stream(self) -> EventStream:
        """A stream for what is said before a response: it can be resumed."""
        stream = EventStream(str(next(self._numbers)))
        stream.prime()
        self._streams[str(stream.id)] = stream
        if len(self._streams) > KEPT_STREAMS:
            ended = [id for id, one in self._streams.items() if one.ended]
            for id in ended[:-KEPT_STREAMS]:
                del self._streams[id]
        return stream

    @property
    def busy(self) -> bool:
        """Whether something runs for this client, or it listens."""
        return bool(self.session.running) or self._own.read

    def resume(self, last_event_id: str | None) -> tuple[EventStream | None, int]:
        """The stream to go on with, and from which place; without an id, the session's own."""
        if last_event_id is None:
            return self._own, self._own.end
        stream_id, _, number = last_event_id.rpartition("-")
        stream = self._own if stream_id == "0" else self._streams.get(stream_id)
        if stream is None or not number.isdecimal() or len(number) > 18 or int(number) >= stream.end:
            return None, 0
        if stream.ended and int(number) + 1 < stream.first:
            return None, 0  # what follows is kept no longer
        return stream, int(number) + 1

    def stop_listening(self) -> None:
        """End the stream for what belongs to no request."""
        self._own.close()

    def close(self) -> None:
        """End its streams."""
        for stream in (self._own, *self._streams.values()):
            stream.close()


class SessionLine(HttpLine):
    """The line of a legacy POST: what is said before the response can be resumed."""

    __slots__ = ("_found", "_id")

    def __init__(self, found: HttpSession, id: Id) -> None:
        super().__init__()
        self._found = found
        self._id = id

    def new_stream(self) -> EventStream:
        return self._found.new_stream()

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self._found.session.ended(self._id, self)
        super().respond(message, status=status)

    def run(self, call: PlainCall) -> None:
        call.start()


class BatchLine:
    """The line of one member of a batch."""

    __slots__ = ("_id", "_line", "_reply", "_session")

    def __init__(self, line: SessionLine, reply: BatchReply, session: Session, id: Id) -> None:
        self._line = line
        self._reply = reply
        self._session = session
        self._id = id

    @property
    def full(self) -> bool:
        return self._line.full

    def send(self, message: bytes) -> None:
        self._line.send(message)

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self._session.ended(self._id, self)
        self._reply(message)

    def close(self) -> None:
        if self._reply.skip() and self._line.response is None:
            self._line.close()

    async def drain(self) -> None:
        await self._line.drain()

    def run(self, call: PlainCall) -> None:
        call.start()


class HttpSessions:
    """All sessions of one endpoint."""

    def __init__(self, extension: McpExtension) -> None:
        self._extension = extension
        self.home = ""
        """The name of this worker, if there are others that may get requests of its sessions."""
        self._sessions: dict[str, HttpSession] = {}  # the last one used stands last
        self._owned: Owned[HttpSession] = Owned()

    def create(self, principal: Principal | None) -> HttpSession:
        """A new session; if there are too many, one of this caller, or of whoever has most, ends."""
        self._end_idle()
        found = HttpSession(principal, self.home)
        for session in self._owned.make_room(found.owner, LIMIT, lambda session: session.busy):
            self.end(session)
        self._used(found)
        return found

    def get(self, session_id: str, principal: Principal | None) -> HttpSession | None:
        """A session of this principal; to anybody else it does not exist."""
        found = self._sessions.get(session_id)
        if found is None or found.owner != (None if principal is None else principal.name):
            return None
        found.session.principal = principal
        found.used = time.monotonic()
        self._used(found)
        return found

    def _used(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        self._sessions[session.id] = session
        self._owned.use(session.owner, session.id, session)

    def end(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        self._owned.remove(session.owner, session.id)
        self._extension.gone(session.session, "The session has ended")
        session.close()

    def stop_listening(self) -> None:
        """End the streams that would stay open for ever; what runs may still be answered."""
        for session in self._sessions.values():
            session.stop_listening()

    def _end_idle(self) -> None:
        """End some of those that nobody has used for long."""
        oldest = time.monotonic() - IDLE
        for session in list(itertools.islice(self._sessions.values(), SWEEP)):  # the longest idle stand first
            if session.busy:
                self._sessions[session.id] = self._sessions.pop(session.id)
            elif session.used < oldest:
                self.end(session)

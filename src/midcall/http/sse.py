"""Server-sent events, read from bytes as they come. No I/O, and nothing of what the events mean.

As in the WHATWG HTML standard, section "Server-sent events". What ends before its empty line is no event.
"""

from msgspec import Struct

from midcall.errors import MidcallError

MAX_EVENT = 16 * 1024 * 1024
"""The largest event, in bytes as they are sent."""

MAX_DIGITS = 16

MARK = b"\xef\xbb\xbf"
"""The byte order mark with which a stream may begin."""


class EventTooLarge(MidcallError):
    """An event is larger than the limit; the stream cannot be read on."""

    code = "event_too_large"


class Event(Struct, frozen=True, gc=False):
    """One event."""

    data: bytes
    event: str = "message"
    id: str = ""
    """The last id that the stream gave, with this event or before: what `Last-Event-ID` is to say."""


class EventReader:
    """Takes a stream apart."""

    __slots__ = (
        "_data",
        "_event",
        "_id",
        "_large",
        "_limit",
        "_partial",
        "_size",
        "_skip_lf",
        "_start",
        "id",
        "retry",
    )

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.id = ""
        """The last id, also if it came with no event."""
        self.retry: int | None = None
        """After how many milliseconds the server wants a lost stream to be opened again, if it said so."""
        self._limit = limit
        self._start: bytes | None = b""
        """The first bytes of the stream, while they may become a byte order mark."""
        self._partial: list[bytes] = []
        """The beginning of a line that has not ended: in pieces, so that a long one is joined only once."""
        self._skip_lf = False
        """Whether the last line ended with CR: a LF right after it is part of its end."""
        self._data: list[bytes] = []
        self._event = ""
        self._id = ""
        self._size = 0
        """Bytes of all lines since the last event, and of the one that has not ended."""
        self._large = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. Raises `EventTooLarge`, after all events before that one."""
        if self._start is not None:
            data = self._without_mark(data)
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == 10:
                data = data[1:]
        events: list[Event] = []
        if data and not self._large:
            lines = data.splitlines()  # of bytes: at LF, CR and CRLF, and nothing else
            last = data[-1]
            self._skip_lf = last == 13
            rest = b"" if last in (10, 13) else lines.pop()
            if lines and self._partial:
                before = b"".join(self._partial)
                self._partial.clear()
                self._size -= len(before)
                lines[0] = before + lines[0]
            for line in lines:
                if line:
                    self._size += len(line)
                    if self._size > self._limit:
                        break
                    if line.startswith(b"data: "):  # nearly all of them
                        self._data.append(line[6:])
                    else:
                        self._field(line)
                else:
                    self._end_event(events)
            if rest:
                self._partial.append(rest)
                self._size += len(rest)
            self._large = self._size > self._limit
        if self._large and not events:
            self._partial, self._data = [], []
            raise EventTooLarge(f"The server sent an event of more than {self._limit} bytes")
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) < MAX_DIGITS:
            self.retry = int(value)

    def _end_event(self, events: list[Event]) -> None:
        self.id = self._id
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(Event(data, self._event or "message", self._id))
            self._data.clear()
        self._event = ""
        self._size = 0

    def _without_mark(self, data: bytes) -> bytes:
        data = (self._start or b"") + data
        if len(data) < len(MARK) and MARK.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(MARK)

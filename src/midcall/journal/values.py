"""How a journal keeps what it must not read: as it is, or sealed.

The first byte says which. A sealed value is bound to its place: one that was moved to another call, or to
another column, does not open. A journal that is sealed takes nothing that is not, so that whoever can write
to it, but has no key, cannot say what was called or answered. `plain_too` takes both, to bring what was plain
before into a sealed journal.
"""

from collections.abc import Iterable, Sequence

from msgspec import msgpack

from midcall.errors import JournalError
from midcall.journal.contract import ConversationRecord
from midcall.journal.seal import BadSeal, KeyRing

_encode = msgpack.Encoder().encode
_decode_lines = msgpack.Decoder(list[bytes]).decode

_PLAIN, _SEALED = b"\0", b"\1"

NOTHING = _PLAIN
"""What `b""` is, unsealed: there is nothing to hide, and nothing to be said by it."""


class Values:
    """Closes what is written, and opens what is read."""

    def __init__(self, ring: KeyRing | None, *, plain_too: bool = False) -> None:
        self._ring = ring
        self._plain_too = plain_too or ring is None

    def close(self, data: bytes, what: str, whose: str) -> bytes:
        if self._ring is None:
            return _PLAIN + data
        return _SEALED + self._ring.seal_bytes(data, f"{what} {whose}".encode())

    def open(self, data: bytes, what: str, whose: str) -> bytes:
        if data[:1] == _PLAIN:
            if data != NOTHING:
                self.check(data, f"The {what} of {whose}")
            return data[1:]
        if self._ring is None:
            raise JournalError("The journal is encrypted: give the keys that it was written with")
        try:
            return self._ring.open_bytes(data[1:], f"{what} {whose}".encode())
        except BadSeal:
            raise JournalError(
                f"The {what} of {whose} cannot be decrypted: a key is missing, or the journal was changed"
            ) from None

    def check(self, data: bytes, name: str) -> None:
        """Raise `JournalError` if this is plain, and must not be."""
        if data[:1] == _PLAIN and not self._plain_too:
            error = JournalError(
                f"{name} is not encrypted, but the journal is to be: export it without --encrypt-journal, and"
                " import it with --encrypt-journal into a new one"
            )
            error.recoverable = False
            raise error


class ConversationValues:
    """Closes what is written of conversations and runs, and opens what is read, the same for every store."""

    def __init__(self, values: Values) -> None:
        self._close = values.close
        self._open = values.open
        self.check = values.check

    def close(self, record: ConversationRecord) -> tuple[bytes, bytes]:
        """The title and the body of a conversation."""
        whose = _whose(record.id, record.principal)
        return self._close(record.title.encode(), "title", whose), self._close(record.body, "body", whose)

    def record(
        self,
        id: str,
        principal: str | None,
        version: int,
        updated: float,
        waiting: bool,
        run: str | None,
        title: bytes,
        body: bytes = NOTHING,
    ) -> ConversationRecord:
        whose = _whose(id, principal)
        return ConversationRecord(
            id=id,
            principal=principal,
            version=version,
            updated=updated,
            waiting=bool(waiting),
            run=run,
            title=self._open(title, "title", whose).decode(),
            body=self._open(body, "body", whose),
        )

    def close_lines(self, run: str, first: int, lines: Sequence[bytes]) -> bytes:
        """Lines of a run, of which the first has this number."""
        return self._close(_encode(lines), "lines", f"{run} {first}")

    def open_lines(self, run: str, rows: Iterable[tuple[int, bytes]], after: int) -> list[bytes]:
        """The lines of a run after a number, of rows that may begin before it."""
        found: list[bytes] = []
        for first, closed in rows:
            lines = _decode_lines(self._open(closed, "lines", f"{run} {first}"))
            found += lines[max(after + 1 - first, 0) :]
        return found


def _whose(id: str, principal: str | None) -> str:
    """Others may have a conversation with the same id."""
    return f"the conversation {id} of {principal!r}"

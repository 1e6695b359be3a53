"""How a journal keeps what it must not read: as it is, or sealed.

The first byte says which. A sealed value is bound to its place: one that was moved to another call, or to
another column, does not open. A journal that is sealed takes nothing that is not, so that whoever can write
to it, but has no key, cannot say what was called or answered. `plain_too` takes both, to bring what was plain
before into a sealed journal.
"""

from midcall.errors import JournalError
from midcall.journal.seal import BadSeal, KeyRing

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

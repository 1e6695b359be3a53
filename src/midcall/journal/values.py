"""How a journal keeps what it must not read: as it is, or sealed.

The first byte says which, so that a journal can be sealed from now on, and what is older is still read. A
sealed value is bound to its place: one that was moved to another call, or to another column, does not open.
"""

from midcall.errors import JournalError
from midcall.journal.seal import BadSeal, KeyRing

_PLAIN, _SEALED = b"\0", b"\1"

NOTHING = _PLAIN
"""What `b""` is, unsealed: there is nothing to hide."""


class Values:
    """Closes what is written, and opens what is read."""

    def __init__(self, ring: KeyRing | None) -> None:
        self._ring = ring

    def close(self, data: bytes, what: str, whose: str) -> bytes:
        if self._ring is None:
            return _PLAIN + data
        return _SEALED + self._ring.seal_bytes(data, f"{what} {whose}".encode())

    def open(self, data: bytes, what: str, whose: str) -> bytes:
        if data[:1] == _PLAIN:
            return data[1:]
        if self._ring is None:
            raise JournalError("The journal is encrypted: give the keys that it was written with")
        try:
            return self._ring.open_bytes(data[1:], f"{what} {whose}".encode())
        except BadSeal:
            raise JournalError(
                f"The {what} of {whose} cannot be decrypted: a key is missing, or the journal was changed"
            ) from None

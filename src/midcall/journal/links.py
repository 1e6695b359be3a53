"""Links: an address for each open question of a durable call, where whoever it is meant for answers it.

A link is sealed: nobody can guess one, and any worker of the journal can read it. It says which question it
leads to, and until when. All else is in the journal: once that question is answered, withdrawn or timed out,
the link leads nowhere. It proves nothing about who has it: with authentication, it is of no use to others.
"""

import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from midcall.journal.contract import CallRecord
from midcall.journal.seal import BadSeal
from midcall.journal.state import Waiting
from midcall.limits import MAX_KEY

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls

_ABOUT = b"question link"


class QuestionLink(Struct, frozen=True, array_like=True):
    """What is sealed into a link."""

    call_id: str
    place: str
    """Where in the call the question is asked: there is none other, ever."""
    expires: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(QuestionLink).decode

NOWHERE = QuestionLink("-", "", 0)


class Links:
    """The links to what durable calls ask."""

    def __init__(self, durable: "DurableCalls", base: str | None = None) -> None:
        self._durable = durable
        self.base = base
        """Where people reach this server, as in `https://tools.example.com`; nothing if it is not known."""

    def path(self, record: CallRecord, one: Waiting) -> str:
        """The address of a question, below that of the server. The journal must be open."""
        if self._durable.keys is None:
            raise RuntimeError("The journal is not open")
        expires = record.expires if one.until is None else min(one.until, record.expires)
        link = QuestionLink(record.id, one.place, int(expires) + 1)
        return f"/q/{self._durable.keys.seal(_encode(link), _ABOUT)}"

    def url(self, record: CallRecord, one: Waiting) -> str | None:
        """The whole address of a question."""
        return None if self.base is None else f"{self.base.rstrip('/')}{self.path(record, one)}"

    def read(self, token: str) -> QuestionLink:
        """What a link leads to; `NOWHERE` if it is none, or its time is up."""
        if self._durable.keys is None or len(token) > MAX_KEY:
            return NOWHERE
        try:
            link = _decode(self._durable.keys.open(token, _ABOUT))
        except (BadSeal, msgspec.DecodeError):
            return NOWHERE
        return NOWHERE if link.expires < time.time() else link

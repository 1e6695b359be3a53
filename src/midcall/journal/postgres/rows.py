"""Calls as rows of PostgreSQL, and back: the columns are in the order of the statements in `sql`.

Values are closed and opened here; what is in them is nobody's business.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import msgpack

from midcall.journal.contract import Addition, CallRecord, Entry, Notice, Settlement
from midcall.journal.seal import Values

_encode = msgpack.Encoder().encode
_decode_entries = msgpack.Decoder(list[Entry]).decode
_decode_body = msgpack.Decoder(tuple[bytes, bytes]).decode

STATUS, SEGMENT, FENCE, OWNER = 6, 7, 10, 11
APPENDS, ENTRIES, ALIVE, OUTCOME = range(16, 20)
"""What comes after a record in what a claim gives."""
LOADED = 16
"""The entries, in what is loaded."""


class Rows:
    """Makes rows of records, and records of rows."""

    def __init__(self, values: Values) -> None:
        self._close = values.close
        self._open = values.open

    def call(
        self,
        call: CallRecord,
        owner: int | None,
        entries: Sequence[Entry],
        outcome: bytes | None,
        updated: float | None = None,
    ) -> tuple[Any, ...]:
        close, key = self._close, call.idempotency_key
        return (
            call.id,
            call.name,
            call.principal,
            key,
            None if key is None else digest(call.principal, key),
            call.created,
            call.expires,
            call.status,
            call.segment,
            call.wake,
            close(call.questions, "questions", call.id),
            call.fence,
            owner,
            call.claims,
            call.addressed,
            updated,
            close(_encode((call.arguments, call.context)), "body", call.id),
            self.close_entries(entries, call.id),
            None if outcome is None else close(outcome, "outcome", call.id),
        )

    def settlement(self, settlement: Settlement) -> tuple[Any, ...]:
        call_id, parking = settlement.call_id, settlement.parking
        return (
            call_id,
            settlement.fence,
            settlement.segment,
            parking.status,
            parking.wake,
            self._close(parking.questions, "questions", call_id),
            parking.expires,
            self._close(settlement.outcome, "outcome", call_id),
            self.close_entries(settlement.entries, call_id),
            parking.held,
            parking.addressed,
        )

    def addition(self, addition: Addition) -> tuple[Any, ...]:
        call_id, parking = addition.call_id, addition.parking
        row = (call_id, addition.fence, self.close_entries(addition.entries, call_id))
        if parking is None:
            return (*row, False, None, None, None, False, False)
        questions = self._close(parking.questions, "questions", call_id)
        return (*row, True, parking.wake, questions, parking.expires, parking.held, parking.addressed)

    def close_outcome(self, outcome: bytes, call_id: str) -> bytes:
        return self._close(outcome, "outcome", call_id)

    def open_outcome(self, closed: bytes, call_id: str) -> bytes:
        return self._open(closed, "outcome", call_id)

    def record(self, row: Any) -> CallRecord:
        call_id = row[0]
        arguments, context = _decode_body(self._open(row[13], "body", call_id))
        return CallRecord(
            id=call_id,
            name=row[1],
            arguments=arguments,
            context=context,
            principal=row[2],
            idempotency_key=row[3],
            created=row[4],
            expires=row[5],
            updated=row[14],
            status=row[STATUS],
            segment=row[SEGMENT],
            wake=row[8],
            questions=self._open(row[9], "questions", call_id),
            fence=row[FENCE],
            owner=row[OWNER],
            claims=row[12],
            addressed=row[15],
        )

    def close_entries(self, entries: Sequence[Entry], call_id: str) -> bytes | None:
        return self._close(_encode(entries), "entries", call_id) if entries else None

    def open_entries(self, parts: Sequence[bytes], call_id: str) -> tuple[Entry, ...]:
        return tuple(
            entry for part in parts for entry in _decode_entries(self._open(part, "entries", call_id))
        )


def notice_columns(notices: Iterable[Notice]) -> tuple[Sequence[Any], ...]:
    """The columns of notices, for a statement that writes what they are about."""
    rows = [(one.id, one.call_id, one.due, one.tries) for one in notices]
    return tuple(zip(*rows, strict=True)) if rows else ((), (), (), ())


def digest(principal: str | None, idempotency_key: str) -> bytes:
    """What a call is found by that was started with a key: neither part of it has a largest size."""
    return hashlib.sha256(_encode((principal, idempotency_key))).digest()

"""Bounds: what a journal in memory gives up when it has too much.

The principal who has most loses the call that it has not come back to for longest: nobody can push out what
others wait for, or what theirs came to.
"""

from midcall.journal.contract import ENDED, CallRecord

CALLS = 10_000
"""How many calls may wait, and how many ended ones are kept."""

WAITING_BYTES = 256 * 1024 * 1024
"""How large calls that wait may be, all together."""

BYTES = 64 * 1024 * 1024
"""How large ended calls may be, all together."""


class Bounds:
    """Which calls there are, in the order in which they were last used."""

    __slots__ = ("_active", "_ended")

    def __init__(self) -> None:
        self._active = _Calls()
        self._ended = _Calls()

    def used(self, call: CallRecord, size: int) -> None:
        """A call has changed, and has this size now."""
        self.forgotten(call)
        (self._ended if call.status in ENDED else self._active).add(call, size)

    def forgotten(self, call: CallRecord) -> None:
        """A call is not kept any more."""
        self._active.remove(call)
        self._ended.remove(call)

    def too_many(self, used: CallRecord) -> str | None:
        """The id of a call to be forgotten, if there is one; never of the one that was just used."""
        return self._active.too_many(WAITING_BYTES, used) or self._ended.too_many(BYTES, used)


class _Calls:
    """The sizes of calls, by principal and id."""

    __slots__ = ("_by_principal", "_bytes", "_count")

    def __init__(self) -> None:
        self._by_principal: dict[str | None, dict[str, int]] = {}
        self._count = 0
        self._bytes = 0

    def add(self, call: CallRecord, size: int) -> None:
        self._by_principal.setdefault(call.principal, {})[call.id] = size
        self._count += 1
        self._bytes += size

    def remove(self, call: CallRecord) -> None:
        own = self._by_principal.get(call.principal, {})
        if call.id in own:
            self._bytes -= own.pop(call.id)
            self._count -= 1
            if not own:
                del self._by_principal[call.principal]

    def too_many(self, most_bytes: int, used: CallRecord) -> str | None:
        """The longest unused call of whoever has most, if there are too many or they are too large."""
        most: dict[str, int] = {}
        if self._count > CALLS:
            most = max(self._by_principal.values(), key=len)
        elif self._bytes > most_bytes:
            most = max(self._by_principal.values(), key=_size)
        return next((call_id for call_id in most if call_id != used.id), None)


def _size(calls: dict[str, int]) -> int:
    return sum(calls.values())

"""Shares: how much of a limit one caller may take, so that no caller takes what the others need.

A limit is for all callers of a server together. A caller with a name may take a tenth of it. Callers without
one cannot be told apart: they count as one, and may take all of it. Knows no call and no protocol.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Generic, NamedTuple, TypeVar

from midcall.errors import RateLimited
from midcall.metrics import counts

T = TypeVar("T")

RATE = 1_000.0
"""Calls a second that a caller with a name may start."""

UNNAMED_RATE = 50_000.0
"""Calls a second that all callers without a name may start together."""

AT_ONCE = 10.0
"""How many seconds' worth of calls may come at once."""


def share_of(limit: int) -> int:
    """What a caller with a name may take of a limit."""
    return limit // 10 or 1


class Shares:
    """How much of something is taken, by all callers and by each that has a name."""

    __slots__ = ("_named", "total")

    def __init__(self) -> None:
        self.total = 0
        self._named: dict[str, int] = {}

    def is_full(self, principal: str | None, limit: int, more: int = 1) -> bool:
        """Whether a caller may not take so much more."""
        if self.total + more > limit:
            return True
        return principal is not None and self._named.get(principal, 0) + more > share_of(limit)

    def take(self, principal: str | None, amount: int = 1) -> None:
        self.total += amount
        if principal is not None:
            self._named[principal] = self._named.get(principal, 0) + amount

    def give_back(self, principal: str | None, amount: int = 1) -> None:
        self.total -= amount
        if principal is not None:
            left = self._named.get(principal, 0) - amount
            if left:
                self._named[principal] = left
            else:
                self._named.pop(principal, None)


class Owned(Generic[T]):
    """Things by owner and id, each owner's in the order in which they were last used."""

    __slots__ = ("_by_owner", "_count")

    def __init__(self) -> None:
        self._by_owner: dict[str | None, dict[str, T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (thing for own in self._by_owner.values() for thing in own.values())

    def get(self, owner: str | None, id: str) -> T | None:
        return self._by_owner.get(owner, {}).get(id)

    def of(self, owner: str | None) -> Collection[T]:
        """What an owner has, the longest unused first."""
        return self._by_owner.get(owner, {}).values()

    def use(self, owner: str | None, id: str, thing: T) -> None:
        """Add a thing, or note that it was used."""
        self.remove(owner, id)
        self._by_owner.setdefault(owner, {})[id] = thing
        self._count += 1

    def remove(self, owner: str | None, id: str) -> None:
        """Forget a thing, if it is there."""
        own = self._by_owner.get(owner, {})
        if id in own:
            del own[id]
            self._count -= 1
            if not own:
                del self._by_owner[owner]

    def make_room(
        self, owner: str | None, limit: int, is_busy: Callable[[T], bool] = lambda _: False
    ) -> list[T]:
        """Forget what is in the way of one more thing of this owner, and give it back.

        That is what was unused for longest: of the owner itself if it has its share, else of whoever has
        most. What is busy is the last to go.
        """
        gone: list[T] = []
        while True:
            if owner is not None and len(self._by_owner.get(owner, ())) >= share_of(limit):
                loser: str | None = owner
            elif self._count >= limit:
                loser = max(self._by_owner, key=lambda one: len(self._by_owner[one]))
            else:
                return gone
            things = self._by_owner[loser]
            id = next((id for id, thing in things.items() if not is_busy(thing)), next(iter(things)))
            gone.append(things[id])
            self.remove(loser, id)


class RateLimit:
    """How many calls a second each caller may start; `AT_ONCE` seconds' worth of them may come together.

    Without a rate, a caller with a name may start `RATE`, and all others together `UNNAMED_RATE`. A rate of 0
    is no limit. (A bucket of tokens for each caller, of which only the moment is kept at which it is full.)
    """

    __slots__ = ("_clock", "_full_at", "_named", "_swept", "_unnamed")

    def __init__(self, rate: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._named = _Rate.of(RATE if rate is None else rate)
        self._unnamed = _Rate.of(UNNAMED_RATE if rate is None else rate)
        self._clock = clock
        self._full_at: dict[str | None, float] = {}
        self._swept = 1_000
        """At how many callers those are forgotten that have not called lately."""

    def take(self, principal: str | None) -> None:
        """A caller starts a call. Raises `RateLimited`."""
        pause, room = self._unnamed if principal is None else self._named
        now = self._clock()
        full_at = self._full_at.get(principal, now)
        if full_at < now:
            full_at = now
        elif full_at - now > room:
            counts.refused[RateLimited.code] += 1
            seconds = max(math.ceil(full_at - now - room), 1)
            raise RateLimited(f"More than {1 / pause:g} calls a second; try again in {seconds} s", seconds)
        self._full_at[principal] = full_at + pause
        if len(self._full_at) > self._swept:
            self._full_at = {who: at for who, at in self._full_at.items() if at > now}
            self._swept = max(2 * len(self._full_at), 1_000)


class _Rate(NamedTuple):
    """The time that a call takes from its caller, and how much of it may be missing before the next one."""

    pause: float
    room: float

    @classmethod
    def of(cls, rate: float) -> "_Rate":
        pause = 1 / rate if rate else 0.0
        return cls(pause, max(AT_ONCE - pause, 0.0) + pause / 1000)  # sums of floats are not exact

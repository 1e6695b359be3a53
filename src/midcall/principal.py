"""Principal: whoever a transport has found a caller to be, and what it may call.

A method says which scopes it needs (`@method(scopes=["files:write"])`); a caller has those that came
with its key or token. Transports find out who calls; this module only compares.
"""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from midcall.errors import NotAllowed


class Principal(Struct, frozen=True, eq=False):
    """A caller that has proved who it is: the same one, whenever its token was made."""

    name: str
    scopes: frozenset[str] = frozenset()
    expires: float | None = None
    """When its token does, in seconds since 1970."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Principal) and (self.name, self.scopes) == (other.name, other.scopes)

    def __hash__(self) -> int:
        return hash((self.name, self.scopes))


def time_left(principal: Principal | None) -> float | None:
    """For how many seconds the caller's token is good; nothing if it does not expire."""
    if principal is None or principal.expires is None:
        return None
    return max(0.0, principal.expires - time.time())


def missing_scopes(extras: Mapping[str, Any], principal: Principal | None) -> tuple[str, ...]:
    """The scopes that a method needs and the caller does not have, in the method's order.

    `extras` are those of the method. Without a principal nobody asked who calls (stdio, or a server
    without authentication), and nothing is missing.
    """
    needed = extras.get("scopes", ())
    if not needed or principal is None:
        return ()
    return tuple(scope for scope in needed if scope not in principal.scopes)


def check_scopes(name: str, extras: Mapping[str, Any], principal: Principal | None) -> None:
    """Raise `NotAllowed` if the caller lacks a scope of this method."""
    missing = missing_scopes(extras, principal)
    if missing:
        raise NotAllowed(name, missing, extras["scopes"])

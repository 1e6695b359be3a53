"""Principal: whoever a transport has found a caller to be, and what it may call.

A method says which scopes it needs (`@method(scopes=["files:write"])`); a caller has those that came
with its key or token. Transports find out who calls; this module only compares.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from midcall.errors import NotAllowed


class Principal(Struct, frozen=True):
    """A caller that has proved who it is."""

    name: str
    scopes: frozenset[str] = frozenset()


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

"""Principal: whoever a transport has found a caller to be, what it may call, and the request that it sent.

A method says which scopes it needs (`@method(scopes=["files:write"])`); a caller has those that came
with its key or token. Transports find out who calls; this module only compares.
"""

import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

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


class RequestInfo(Struct, frozen=True):
    """The request by which a call was made, for methods that take a parameter of this type."""

    transport: str
    """`http`, `sse`, `websocket` or `stdio`."""
    headers: Mapping[str, str] = {}
    """Their names are in lower case. Headers that may carry credentials are left out."""
    client_address: str | None = None
    """The address of whoever is connected; behind a proxy, that is the proxy."""
    protocol_revision: str | None = None
    """The revision of MCP; nothing in the hub's own protocol."""
    client_name: str | None = None
    """What an MCP client calls itself. Nobody has checked it."""


class CallSource(Struct, frozen=True):
    """Who makes a call, and by which request. A durable call keeps it."""

    principal: Principal | None = None
    request: RequestInfo | None = None

    def source(self) -> "CallSource":
        """As `Sender` has it."""
        return self


class Sender(Protocol):
    """Whatever brings a call to a hub; it is asked for the source only if that is wanted."""

    def source(self) -> CallSource:
        """Who makes the call, and by which request."""


_CREDENTIALS = re.compile(
    r"auth|cookie|token|secret|passw|credential|api-?key|session|signature|assertion|jwt"
)
"""Names of headers that are shown to no method, and written to no journal."""


def request_info(scope: Mapping[str, Any], transport: str) -> RequestInfo:
    """What the scope of an ASGI application says of a request."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if _CREDENTIALS.search(name) is None:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    client = scope.get("client")
    return RequestInfo(transport, headers, client[0] if client else None)


SCOPE = "scope:"
"""What a question begins its `to` with that is for whoever has a scope."""

MAX_ADDRESSEE = 200


def check_addressee(to: str) -> None:
    """Raise `ValueError` unless a question can be `to` this: a principal's name, or `scope:` and a scope."""
    if (
        not isinstance(to, str)
        or not to.removeprefix(SCOPE)
        or len(to) > MAX_ADDRESSEE
        or not to.isprintable()
    ):
        raise ValueError(
            f'A question is to a principal, as "alice", or to a scope, as "scope:ops", not {to!r}'
        )


def is_addressed(to: str, principal: Principal) -> bool:
    """Whether what is `to` somebody is to this principal."""
    if to.startswith(SCOPE):
        return to.removeprefix(SCOPE) in principal.scopes
    return to == principal.name


def addressee(to: str) -> str:
    """Who is meant, in words."""
    return f"somebody with the scope {to.removeprefix(SCOPE)}" if to.startswith(SCOPE) else to


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

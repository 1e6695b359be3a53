"""What is kept of a login: tokens, and the client that they were issued to. Their `repr` shows no secret."""

import time
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

SOON = 30.0
"""Seconds before its end at which a token is renewed; less for one that lives for minutes only."""

Origin: TypeAlias = Literal["given", "document", "registered"]
"""How a client came by its id: from the caller, as the URL of its metadata document, or from the server."""


class Tokens(Struct, frozen=True):
    """What an authorization server has issued for one MCP server."""

    access_token: str
    scheme: str = "Bearer"
    refresh_token: str | None = None
    issued_at: float = 0.0
    expires_at: float | None = None
    granted: tuple[str, ...] = ()
    """The scopes that it has, as far as we know."""
    requested: tuple[str, ...] = ()
    """The scopes that were asked for."""
    key: str | None = None
    """The private key that the tokens are bound to (RFC 9449), in PEM."""

    def ends_soon(self) -> bool:
        """Whether it is time to renew the access token."""
        if self.expires_at is None:
            return False
        return time.time() >= self.expires_at - min(SOON, (self.expires_at - self.issued_at) / 4)

    def __repr__(self) -> str:
        return f"Tokens(granted={self.granted}, expires_at={self.expires_at})"


class Registered(Struct, frozen=True):
    """A client, as one authorization server knows it."""

    client_id: str
    origin: Origin
    method: str = "none"
    """How it proves at the token endpoint that it is the one."""
    client_secret: str | None = None
    """Kept only if the server has issued it."""
    secret_expires_at: float = 0.0
    """Zero if it does not."""
    redirect_uri: str = ""
    scopes: tuple[str, ...] | None = None
    """The only scopes that it may ask for, if the server has said so."""

    def __repr__(self) -> str:
        return f"Registered({self.client_id!r}, {self.origin!r})"


class Grant(Struct, frozen=True):
    """What one authorization server has given us for one MCP server."""

    client: Registered | None = None
    tokens: Tokens | None = None
    resource: str | None = None
    """What the tokens are for, in the server's own words."""
    legacy: bool = False
    """It was found by the rules of 2025-03-26."""


class Kept(Struct, frozen=True):
    """All that is kept for an MCP server. Nothing of one issuer is ever shown to another."""

    issuer: str = ""
    """The authorization server that was used last."""
    grants: dict[str, Grant] = {}
    """By issuer."""
    given: dict[str, str] = {}
    """Which issuer the client ids that callers gave belong to."""

    @property
    def tokens(self) -> Tokens | None:
        """The tokens for the server."""
        grant = self.grants.get(self.issuer)
        return None if grant is None else grant.tokens

    def grant(self, issuer: str) -> Grant:
        """What this issuer has given."""
        return self.grants.get(issuer, Grant())

    def having(self, issuer: str, grant: Grant) -> "Kept":
        """The same with another grant of this issuer, which becomes the one that is used."""
        return Kept(issuer, {**self.grants, issuer: grant}, self.given)

    def bound(self, client_id: str, issuer: str) -> "Kept":
        """The same, and a client id that the caller gave belongs to this issuer."""
        return Kept(self.issuer, self.grants, {**self.given, client_id: issuer})


def to_plain(kept: Kept) -> dict[str, Any]:
    """As a store gets it, ready for JSON."""
    plain: dict[str, Any] = msgspec.to_builtins(kept)
    return plain


def from_plain(plain: dict[str, Any] | None) -> Kept:
    """From what a store has; what cannot be read counts as nothing."""
    if plain is None:
        return Kept()
    try:
        return msgspec.convert(plain, Kept)
    except msgspec.ValidationError:
        return Kept()

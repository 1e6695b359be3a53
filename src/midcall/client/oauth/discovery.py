"""Where access to an MCP server is to be had: its authorization server, and what that one can do.

The server names it in its metadata (RFC 9728), which the challenge leads to or which lies at a well-known
place; the authorization server describes itself at one of several places (RFC 8414, OpenID). A server of
2025-03-26 has no such metadata: it is its own authorization server, at its origin, with default endpoints if
it does not describe itself. Nothing here knows of tokens or clients.
"""

from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from midcall.client.oauth.challenge import Challenge
from midcall.client.oauth.exchange import Fetch, check_url, get_document, origin_of, server_of, words
from midcall.errors import LoginFailed

Document = TypeVar("Document", bound=Struct)


class ResourceMetadata(Struct, frozen=True):
    """What an MCP server says of itself (RFC 9728)."""

    resource: str
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool | None = None


class AuthorizationServer(Struct, frozen=True):
    """What an authorization server says of itself (RFC 8414, OpenID)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    token_endpoint_auth_signing_alg_values_supported: list[str] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    dpop_signing_alg_values_supported: list[str] | None = None
    legacy: bool = False
    """Found by the rules of 2025-03-26: the MCP server's own origin. Never taken from the document."""
    guessed: bool = False
    """It does not describe itself: these are the default endpoints."""


class Place(Struct, frozen=True):
    """Where a token for an MCP server comes from, and what it is for."""

    server: str
    """The MCP server, as tokens are filed."""
    issuer: AuthorizationServer
    resource: str | None = None
    """What the token is for (RFC 8707). A server of 2025-03-26 has no name for that."""
    scopes: tuple[str, ...] = ()
    """The scopes that the server says it has."""
    dpop: bool = False
    """Whether tokens must be bound to a key (RFC 9449)."""


async def find_place(url: str, challenge: Challenge, fetch: Fetch, *, prefer: Sequence[str] = ()) -> Place:
    """Find out where to get a token for a server.

    Of several authorization servers it is the first of those in `prefer`, or else the first that the server
    names. Raises `LoginFailed`.
    """
    server = server_of(url)
    metadata = await find_resource(url, challenge, fetch)
    dpop = challenge.scheme == "dpop"
    if metadata is None:
        return Place(server, await find_legacy(server, fetch), dpop=dpop)
    named = metadata.authorization_servers or []
    chosen = next((issuer for issuer in prefer if issuer in named), named[0] if named else None)
    issuer = await find_legacy(server, fetch) if chosen is None else await find_issuer(chosen, fetch, server)
    return Place(
        server,
        issuer,
        metadata.resource,
        tuple(metadata.scopes_supported or ()),
        dpop or bool(metadata.dpop_bound_access_tokens_required),
    )


# --- the MCP server -------------------------------------------------------------------------


def resource_places(url: str, challenge: Challenge) -> list[str]:
    """Where the metadata of an MCP server may be, in the order in which to look."""
    parts = urlsplit(url)
    root = f"{origin_of(url)}/.well-known/oauth-protected-resource"
    places = [challenge.resource_metadata] if challenge.resource_metadata else []
    if path := parts.path.rstrip("/"):
        places.append(root + path)
    return list(dict.fromkeys((*places, root)))


async def find_resource(url: str, challenge: Challenge, fetch: Fetch) -> ResourceMetadata | None:
    """The metadata of an MCP server, or `None` if it has none. Raises `LoginFailed` if it is of another."""
    server = server_of(url)
    for place in resource_places(url, challenge):
        document = await get_document(
            fetch, check_url(place, f"The metadata of {server}", server=server), server=server
        )
        if document is not None and "resource" in document:
            metadata = _read(document, ResourceMetadata, place, server)
            if not covers(metadata.resource, server):
                raise LoginFailed(
                    f"{place} is about {words(metadata.resource)}, not about {server}", server=server
                )
            return metadata
    return None


def covers(resource: str, server: str) -> bool:
    """Whether a server is the resource, or a part of it: the same origin, and a path that leads there."""
    parts = urlsplit(resource)
    if parts.fragment or parts.query or origin_of(resource) != origin_of(server):
        return False
    path = parts.path.rstrip("/")
    return f"{urlsplit(server).path.rstrip('/')}/".startswith(f"{path}/")


# --- the authorization server ---------------------------------------------------------------


def issuer_places(issuer: str) -> list[str]:
    """Where the metadata of an authorization server may be, in the order in which to look."""
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    places = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
    ]
    return [*places, f"{origin}{path}/.well-known/openid-configuration"] if path else places


async def find_issuer(issuer: str, fetch: Fetch, server: str) -> AuthorizationServer:
    """The authorization server of this name. Raises `LoginFailed` if it is not to be found, or is another."""
    check_url(issuer, f"The authorization server of {server}", server=server)
    found = await _describe(issuer, fetch, server)
    if found is None:
        raise LoginFailed(f"{issuer}, the authorization server of {server}, has no metadata", server=server)
    if found.issuer != issuer:
        raise LoginFailed(
            f"The metadata of {issuer} says that it is {words(found.issuer)}: refused", server=server
        )
    return found


async def find_legacy(server: str, fetch: Fetch) -> AuthorizationServer:
    """The authorization server by the rules of 2025-03-26: the origin of the MCP server."""
    origin = origin_of(server)
    check_url(origin, "A server that asks for a login", server=server)
    found = await _describe(origin, fetch, server)
    if found is None:
        return AuthorizationServer(
            origin,
            f"{origin}/token",
            f"{origin}/authorize",
            f"{origin}/register",
            legacy=True,
            guessed=True,
        )
    # Nobody has told us its name, so whatever it calls itself on its own origin is as good.
    if origin_of(found.issuer) != origin:
        raise LoginFailed(
            f"The metadata of {origin} says that it is {words(found.issuer)}: refused", server=server
        )
    return structs.replace(found, legacy=True)


async def _describe(issuer: str, fetch: Fetch, server: str) -> AuthorizationServer | None:
    for place in issuer_places(issuer):
        document = await get_document(fetch, place, server=server)
        if document is not None and "issuer" in document:
            found = _read(document, AuthorizationServer, place, server)
            for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
                if endpoint := getattr(found, name):
                    check_url(endpoint, f"The {name} of {issuer}", server=server)
            return structs.replace(found, legacy=False, guessed=False)
    return None


def _read(document: dict[str, Any], kind: type[Document], place: str, server: str) -> Document:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise LoginFailed(f"The metadata at {place} is not valid: {error}", server=server) from None

"""Where access to an MCP server is to be had: its authorization server, and what that one can do.

The server names it in its metadata (RFC 9728), which the challenge leads to or which lies at a well-known
place; the authorization server describes itself at one of several places (RFC 8414, OpenID). A server of
2025-03-26 has no such metadata: it is its own authorization server, at its origin, with default endpoints if
it does not describe itself. What a server says of a request that it refuses is read here too. Nothing here
knows of tokens or clients.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from midcall.client.oauth.fetch import Fetch, origin_of, server_of, words
from midcall.errors import LoginFailed

Document = TypeVar("Document", bound=Struct)


# --- what a refusal says: WWW-Authenticate (RFC 9110, 6750, 9728, 9449) -----------------------

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  what RFC 9110 calls a token
_GAP = re.compile(r"[\s,]*")
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+|(?=,)|$)")
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)")
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))')

SCHEMES = ("bearer", "dpop")
"""The ways to show a token that we know."""


class Challenge(Struct, frozen=True):
    """What a server says of a request that it refuses."""

    scheme: str = ""
    """In lower case; empty if the server says nothing."""
    error: str = ""
    description: str = ""
    scopes: tuple[str, ...] = ()
    resource_metadata: str = ""


def read_challenge(header: str | None) -> Challenge | None:
    """The challenge for a token; an empty one if the server says nothing; `None` if it wants something else.

    If it takes both kinds of tokens, the plain one is taken.
    """
    if header is None or not header.strip():
        return Challenge()
    found = dict(reversed(_challenges(header)))
    scheme = next((scheme for scheme in SCHEMES if scheme in found), None)
    if scheme is None:
        return None
    given = found[scheme]
    return Challenge(
        scheme,
        error=given.get("error", ""),
        description=given.get("error_description", ""),
        scopes=tuple(dict.fromkeys(given.get("scope", "").split())),
        resource_metadata=given.get("resource_metadata", ""),
    )


def _challenges(header: str) -> list[tuple[str, dict[str, str]]]:
    """The challenges of a header, each with its parameters; what cannot be read ends it."""
    challenges: list[tuple[str, dict[str, str]]] = []
    place = 0
    while True:
        gap = _GAP.match(header, place)
        place = gap.end() if gap else place
        if challenges and (parameter := _PARAMETER.match(header, place)):
            name, quoted, plain = parameter.groups()
            value = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            challenges[-1][1].setdefault(name.lower(), value)
            place = parameter.end()
        elif scheme := _SCHEME.match(header, place):
            challenges.append((scheme[1].lower(), {}))
            place = scheme.end()
            if opaque := _TOKEN68.match(header, place):
                place = opaque.end()
        else:
            return challenges


# --- where a token comes from ---------------------------------------------------------------


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


class TokenSource(Struct, frozen=True):
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


async def find_source(
    url: str, challenge: Challenge, fetch: Fetch, *, prefer: Sequence[str] = ()
) -> TokenSource:
    """Find out where to get a token for a server.

    Of several authorization servers it is the first of those in `prefer`, or else the first that the server
    names. Raises `LoginFailed`.
    """
    server = server_of(url)
    metadata = await find_resource(url, challenge, fetch)
    dpop = challenge.scheme == "dpop"
    if metadata is None:
        return TokenSource(server, await find_legacy(fetch), dpop=dpop)
    named = metadata.authorization_servers or []
    chosen = next((issuer for issuer in prefer if issuer in named), named[0] if named else None)
    issuer = await find_legacy(fetch) if chosen is None else await find_issuer(chosen, fetch)
    return TokenSource(
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
        document = await fetch.get(fetch.check(place, f"The metadata of {server}"))
        if "resource" in document:
            metadata = _read(document, ResourceMetadata, place)
            if not covers(metadata.resource, server):
                raise LoginFailed(f"{place} is about {words(metadata.resource)}, not about {server}")
            return metadata
    return None


def covers(resource: str, server: str) -> bool:
    """Whether a server is the resource, or a part of it: the same origin, and a path that leads there."""
    if origin_of(resource) != origin_of(server):
        return False
    parts = urlsplit(resource)
    if parts.fragment or parts.query:
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


async def find_issuer(issuer: str, fetch: Fetch) -> AuthorizationServer:
    """The authorization server of this name. Raises `LoginFailed` if it is not to be found, or is another."""
    fetch.check(issuer, f"The authorization server of {fetch.server}")
    found = await _describe(issuer, fetch)
    if found is None:
        raise LoginFailed(f"{issuer}, the authorization server of {fetch.server}, has no metadata")
    if found.issuer != issuer:
        raise LoginFailed(f"The metadata of {issuer} says that it is {words(found.issuer)}: refused")
    return found


async def find_legacy(fetch: Fetch) -> AuthorizationServer:
    """The authorization server by the rules of 2025-03-26: the origin of the MCP server."""
    origin = origin_of(fetch.server)
    fetch.check(origin, "A server that asks for a login")
    found = await _describe(origin, fetch)
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
        raise LoginFailed(f"The metadata of {origin} says that it is {words(found.issuer)}: refused")
    return structs.replace(found, legacy=True)


async def _describe(issuer: str, fetch: Fetch) -> AuthorizationServer | None:
    for place in issuer_places(issuer):
        document = await fetch.get(place)
        if "issuer" in document:
            found = _read(document, AuthorizationServer, place)
            for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
                if endpoint := getattr(found, name):
                    fetch.check(endpoint, f"The {name} of {issuer}")
            return structs.replace(found, legacy=False, guessed=False)
    return None


def _read(document: dict[str, Any], kind: type[Document], place: str) -> Document:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise LoginFailed(f"The metadata at {place} is not valid: {error}") from None

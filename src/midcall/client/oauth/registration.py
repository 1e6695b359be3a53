"""Which client we are for an authorization server: one that is known there, or one that gets to be.

In the order of the specification: the id that the caller has for it, the URL of the client's metadata
document if the server reads such, and registration (RFC 7591) for those that do not. What a server has issued
is of no use at another, so it is kept by issuer.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from midcall.client.oauth.discovery import Place
from midcall.client.oauth.endpoint import choose_method
from midcall.client.oauth.exchange import Fetch, is_local, send, words
from midcall.client.oauth.signing import ClientKey
from midcall.client.oauth.tokens import Registered
from midcall.errors import LoginFailed
from midcall.version import __version__

GRANTS = ("authorization_code", "refresh_token")


class Identity(Struct, frozen=True):
    """What the caller says of the client."""

    name: str = "midcall"
    client_id: str | None = None
    client_secret: str | None = None
    key: ClientKey | None = None
    document: str | None = None
    """The URL of its metadata document."""

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, {self.client_id!r})"

    def owns(self, client: Registered | None) -> bool:
        """Whether a client of before is still the one that the caller means."""
        if client is None:
            return False
        match client.origin:
            case "given":
                return client.client_id == self.client_id
            case "document":
                return self.client_id is None and client.client_id == self.document
        return self.client_id is None


async def choose_client(
    identity: Identity,
    place: Place,
    before: Registered | None,
    redirect_uri: str,
    scopes: Sequence[str],
    fetch: Fetch,
) -> Registered:
    """The client to log in as; `before` is the one that this authorization server knew last.

    Raises `LoginFailed` if the server lets nobody register and no id was given.
    """
    issuer = place.issuer
    if identity.client_id is not None:
        return given_client(identity, place)
    if identity.document is not None and issuer.client_id_metadata_document_supported:
        method = choose_method(issuer, secret=False, key=identity.key is not None)
        return Registered(identity.document, "document", method, redirect_uri=redirect_uri)
    if before is not None and _still_fits(before, redirect_uri, scopes):
        return before
    if issuer.registration_endpoint is None:
        raise LoginFailed(
            f"{issuer.issuer} does not let clients register themselves: register one, and give its client_id",
            server=place.server,
        )
    return await _register(identity, place, redirect_uri, scopes, fetch)


def given_client(identity: Identity, place: Place) -> Registered:
    """The client that the caller has registered."""
    method = choose_method(
        place.issuer, secret=identity.client_secret is not None, key=identity.key is not None
    )
    return Registered(identity.client_id or "", "given", method)


def _still_fits(client: Registered, redirect_uri: str, scopes: Sequence[str]) -> bool:
    """Whether what was registered before covers what is wanted now."""
    return (
        client.origin == "registered"
        and client.redirect_uri == redirect_uri
        and (client.scopes is None or set(scopes) <= set(client.scopes))
        and client.secret_expires_at == 0  # what has an end may be over before the login is
    )


async def _register(
    identity: Identity, place: Place, redirect_uri: str, scopes: Sequence[str], fetch: Fetch
) -> Registered:
    issuer, url = place.issuer, place.issuer.registration_endpoint or ""
    accepted = issuer.token_endpoint_auth_methods_supported
    if accepted is None and not issuer.guessed:
        accepted = ["client_secret_basic"]  # the default of RFC 8414
    # A program on a person's machine can keep no secret, so it asks for none where it need not.
    wanted = "none" if accepted is None or "none" in accepted else choose_method(issuer, secret=True)
    document = {
        "client_name": identity.name,
        "redirect_uris": [redirect_uri],
        "application_type": "web" if _is_web(redirect_uri) else "native",
        "grant_types": list(GRANTS),
        "response_types": ["code"],
        "token_endpoint_auth_method": wanted,
        "software_id": "midcall",
        "software_version": __version__,
    }
    if scopes:
        document["scope"] = " ".join(scopes)
    headers = (("content-type", "application/json"), ("accept", "application/json"))
    answered = await send(fetch, "POST", url, headers, msgspec.json.encode(document), server=place.server)
    if not answered.ok or answered.document is None or "client_id" not in answered.document:
        raise LoginFailed(_refusal(place, answered.status, answered.document or {}), server=place.server)
    return _read(answered.document, place, wanted, redirect_uri)


def _read(document: dict[str, Any], place: Place, wanted: str, redirect_uri: str) -> Registered:
    client_id, secret = document["client_id"], document.get("client_secret") or None
    method = document.get("token_endpoint_auth_method")
    if not isinstance(client_id, str) or not isinstance(secret, str | None):
        raise LoginFailed(
            f"{place.issuer.issuer} registered a client without a usable id", server=place.server
        )
    if method is None and secret is None:
        method = "none"
    elif method is None:  # the server does not say; it has issued a secret, so it may want it
        method = choose_method(place.issuer, secret=True)
    if method not in ("none", "client_secret_basic", "client_secret_post"):
        raise LoginFailed(
            f"{place.issuer.issuer} registered the client for {words(method)}, not for {wanted}",
            server=place.server,
        )
    ends = document.get("client_secret_expires_at")
    allowed = document.get("scope")
    return Registered(
        client_id,
        "registered",
        method,
        secret,
        float(ends) if isinstance(ends, int | float) else 0.0,
        redirect_uri,
        tuple(allowed.split()) if isinstance(allowed, str) else None,
    )


def _is_web(redirect_uri: str) -> bool:
    return redirect_uri.startswith("https://") and not is_local(redirect_uri)


def _refusal(place: Place, status: int, document: dict[str, Any]) -> str:
    if place.issuer.guessed:
        return (
            f"{place.server} wants a login, but names no authorization server, and there is none at "
            f"{place.issuer.issuer} (registering a client was answered with {status})"
        )
    said = [words(document[name]) for name in ("error", "error_description") if document.get(name)]
    return (
        f"{place.issuer.issuer} refused to register this client: {': '.join(said) or f'it answered {status}'}"
    )

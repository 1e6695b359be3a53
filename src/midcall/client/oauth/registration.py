"""Which client we are for an authorization server: one that is known there, or one that gets to be.

In the order of the specification: the id that the caller has for it, the URL of the client's metadata
document if the server reads such, and registration (RFC 7591) for those that do not. What a server has issued
is of no use at another, so it is kept by issuer. A client that has a key signs that it is the one (RFC 7523).
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from msgspec import Struct

from midcall.client.oauth.discovery import AuthorizationServer, TokenSource
from midcall.client.oauth.fetch import Fetch, JsonReply, is_local, words
from midcall.errors import LoginFailed
from midcall.version import __version__

GRANTS = ("authorization_code", "refresh_token")

LIFETIME = 300
"""Seconds for which an assertion holds."""

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

Origin: TypeAlias = Literal["given", "document", "registered"]
"""How a client came by its id: from the caller, as the URL of its metadata document, or from the server."""


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


class ClientKey:
    """The private key of a client, for `private_key_jwt`."""

    def __init__(self, pem: str | bytes, *, algorithm: str | None = None, key_id: str | None = None) -> None:
        """Take a key in PEM. Raises `ValueError` if it is none, or cannot sign in this way."""
        key = load_key(pem)
        fit = _fit(key)
        if algorithm is not None and algorithm not in fit:
            raise ValueError(f"This key cannot sign with {algorithm}, only with {', '.join(fit)}")
        self._key = key
        self._fit = (algorithm,) if algorithm else fit
        self._key_id = key_id

    def assertion(self, client_id: str, audience: str, accepted: Sequence[str] | None) -> str | None:
        """Who we are, for this authorization server only; `None` if it accepts no signature of this key."""
        algorithm = next((one for one in self._fit if accepted is None or one in accepted), None)
        if algorithm is None:
            return None
        now = int(time.time())
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "jti": secrets.token_urlsafe(16),
            "iat": now,
            "exp": now + LIFETIME,
        }
        headers = {"kid": self._key_id} if self._key_id else None
        return jwt.encode(claims, self._key, algorithm, headers=headers)

    def __repr__(self) -> str:
        return "ClientKey(...)"


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
    source: TokenSource,
    before: Registered | None,
    redirect_uri: str,
    scopes: Sequence[str],
    fetch: Fetch,
) -> Registered:
    """The client to log in as; `before` is the one that this authorization server knew last.

    Raises `LoginFailed` if the server lets nobody register and no id was given.
    """
    issuer = source.issuer
    if identity.client_id is not None:
        return given_client(identity, issuer)
    if identity.document is not None and issuer.client_id_metadata_document_supported:
        method = _method(issuer, secret=False, key=identity.key is not None)
        return Registered(identity.document, "document", method, redirect_uri=redirect_uri)
    if before is not None and _still_fits(before, redirect_uri, scopes):
        return before
    if issuer.registration_endpoint is None:
        raise LoginFailed(
            f"{issuer.issuer} does not let clients register themselves: register one, and give its client_id"
        )
    return await _register(identity, source, redirect_uri, scopes, fetch)


def given_client(identity: Identity, issuer: AuthorizationServer) -> Registered:
    """The client that the caller has registered."""
    secret, key = identity.client_secret is not None, identity.key is not None
    method = _method(issuer, secret=secret, key=key)
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
    identity: Identity, source: TokenSource, redirect_uri: str, scopes: Sequence[str], fetch: Fetch
) -> Registered:
    issuer, url = source.issuer, source.issuer.registration_endpoint or ""
    accepted = issuer.token_endpoint_auth_methods_supported
    if accepted is None and not issuer.guessed:
        accepted = ["client_secret_basic"]  # the default of RFC 8414
    # A program on a person's machine can keep no secret, so it asks for none where it need not.
    wanted = "none" if accepted is None or "none" in accepted else _method(issuer, secret=True)
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
    body = msgspec.json.encode(document)
    reply = await fetch.send("POST", url, {"content-type": "application/json"}, body)
    if not reply.ok or "client_id" not in reply.document:
        raise LoginFailed(_refusal(source, reply))
    return _read(reply.document, source.issuer, wanted, redirect_uri)


def _read(
    document: dict[str, Any], issuer: AuthorizationServer, wanted: str, redirect_uri: str
) -> Registered:
    client_id, secret = document["client_id"], document.get("client_secret") or None
    method = document.get("token_endpoint_auth_method")
    if not isinstance(client_id, str) or not isinstance(secret, str | None):
        raise LoginFailed(f"{issuer.issuer} registered a client without a usable id")
    if method is None and secret is None:
        method = "none"
    elif method is None:  # the server does not say; it has issued a secret, so it may want it
        method = _method(issuer, secret=True)
    if method not in ("none", "client_secret_basic", "client_secret_post"):
        raise LoginFailed(f"{issuer.issuer} registered the client for {words(method)}, not for {wanted}")
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


def _refusal(source: TokenSource, reply: JsonReply) -> str:
    issuer = source.issuer
    if issuer.guessed:
        return (
            f"{source.server} wants a login, but names no authorization server, and there is none at "
            f"{issuer.issuer} (registering a client was answered with {reply.status})"
        )
    said = [words(value) for name in ("error", "error_description") if (value := reply.document.get(name))]
    return (
        f"{issuer.issuer} refused to register this client: {': '.join(said) or f'it answered {reply.status}'}"
    )


def _method(issuer: AuthorizationServer, *, secret: bool, key: bool = False) -> str:
    """How a client with these credentials proves who it is; `none` if it has none."""
    accepted = issuer.token_endpoint_auth_methods_supported
    if key and (not secret or accepted is None or "private_key_jwt" in accepted):
        return "private_key_jwt"
    if not secret:
        return "none"
    ways = ("client_secret_basic", "client_secret_post", "none")
    return next((way for way in ways if accepted is None or way in accepted), "client_secret_basic")


def load_key(pem: str | bytes) -> PrivateKey:
    data = pem.encode() if isinstance(pem, str) else pem
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        raise ValueError("This is not a private key in PEM, or it has a password") from None
    if not isinstance(key, PrivateKey):
        raise ValueError("A private key must be RSA, EC or Ed25519")  # noqa: TRY004  a value from outside
    return key


def _fit(key: PrivateKey) -> tuple[str, ...]:
    """What a key can sign with, first what every server must know (RFC 7523)."""
    match key:
        case rsa.RSAPrivateKey():
            return ("RS256", "PS256")
        case ed25519.Ed25519PrivateKey():
            return ("EdDSA",)
        case _ if key.curve.name in _CURVES:
            return (_CURVES[key.curve.name],)
    raise ValueError(f"Keys on the curve {key.curve.name} cannot be used")

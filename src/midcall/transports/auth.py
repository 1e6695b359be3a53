"""Who calls: bearer tokens, as keys that were given out or as tokens of an OAuth 2.1 server.

An `Authenticator` reads the `Authorization` header and gives the `Principal`, or raises
`Unauthorized` with all that the HTTP response needs. It knows no framework, and nothing of the
request but that header. `jwks` has the keys of an OAuth server.
"""

import base64
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import jwt

from midcall.journal.files import PRIVATE
from midcall.principal import Principal, check_scopes, missing_scopes
from midcall.transports.jwks import Keys, KeysUnavailable, UnknownKey

__all__ = [
    "TOKENS_VARIABLE",
    "Authenticator",
    "OAuthResourceServer",
    "Principal",
    "StaticKeys",
    "Unauthorized",
    "authorization_in",
    "authorization_of",
    "challenge",
    "check_scopes",
    "metadata_url",
    "missing_scopes",
    "resource_metadata",
]

log = logging.getLogger("midcall.auth")

TOKENS_VARIABLE = "MIDCALL_TOKENS"

LEAST_TOKEN = 16
"""Characters that a key has at least; `secrets.token_urlsafe(32)` makes 43."""

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Signatures that are checked with a public key. With HS256 whoever can check a token can also make
one, and with `none` anybody can."""

LEEWAY = 30
"""Seconds that the clocks of two machines may differ."""

_ENTRY = re.compile(r"(?P<name>[^=:\s]+)=(?P<token>[^:\s]+)(?::(?P<scopes>\S*))?")
_SUBPROTOCOL = "bearer."
_UNQUOTABLE = re.compile(r"[^ !#-\[\]-~]")
_BEARER = re.compile(r"(?i:bearer) +(?P<token>[A-Za-z0-9._~+/-]+=*) *")


class Unauthorized(Exception):
    """The caller is refused: 401 for who it is, 403 for what it may do, 503 if that cannot be told."""

    def __init__(self, status: int, www_authenticate: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.www_authenticate = www_authenticate
        self.message = message


def authorization_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The `Authorization` header, if there is exactly one."""
    found = [value for name, value in headers if name == b"authorization"]
    return found[0].decode("latin-1") if len(found) == 1 else None


def authorization_in(scope: Mapping[str, Any]) -> str | None:
    """The same of an ASGI scope. A WebSocket of a web page can have it among its subprotocols only.

    There it is `bearer.` and the token in base64url, as a page can set no headers.
    """
    found = authorization_of(scope["headers"])
    if found is not None or scope["type"] != "websocket":
        return found
    offered = [name for name in scope.get("subprotocols", ()) if name.startswith(_SUBPROTOCOL)]
    if len(offered) != 1:
        return None
    text = offered[0].removeprefix(_SUBPROTOCOL)
    try:
        token = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return f"Bearer {token.decode('ascii')}"
    except ValueError:
        return None


class Authenticator(Protocol):
    """Tells who calls."""

    async def authenticate(self, authorization: str | None) -> Principal:
        """The caller, from the `Authorization` header. Raises `Unauthorized`."""

    def refusal(self, needed: Sequence[str]) -> Unauthorized:
        """The refusal of a caller that lacks some of the scopes that a method needs: 403."""

    def metadata(self) -> dict[str, Any] | None:
        """What clients are told of how to get a token (RFC 9728), if there is such a way."""


class StaticKeys:
    """Keys that were given out: `name=token`, with scopes `name=token:files:read,files:write`.

    Only their hashes are kept. A name may have several keys, so that they can be changed one by one.
    """

    def __init__(self, entries: str) -> None:
        self._keys: dict[bytes, Principal] = {}
        for number, line in enumerate(entries.splitlines(), 1):
            if not line.lstrip().startswith("#"):
                for entry in line.split():
                    self._add(entry, number)
        if not self._keys:
            raise ValueError("There is no key: write name=token, or name=token:scope,scope")

    @classmethod
    def from_file(cls, path: str | Path) -> "StaticKeys":
        """Keys from a file: an entry a line, `#` before a comment. Raises `ValueError` or `OSError`."""
        path = Path(path)
        PRIVATE.add(os.path.realpath(path))
        if os.name == "posix" and path.stat().st_mode & 0o077:
            log.warning("Others on this machine may read %s: chmod 600 it", path)
        try:
            return cls(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "StaticKeys | None":
        """Keys from `MIDCALL_TOKENS`, its entries parted by spaces; nothing if it is not set."""
        entries = environment.get(TOKENS_VARIABLE)
        if not entries:
            return None
        try:
            return cls(entries)
        except ValueError as error:
            raise ValueError(f"{TOKENS_VARIABLE}: {error}") from None

    def _add(self, entry: str, line: int) -> None:
        found = _ENTRY.fullmatch(entry)
        if found is None:  # the entry itself is not repeated here: it may hold a key
            raise ValueError(f"Line {line} is not name=token or name=token:scope,scope")
        name, token = found["name"], found["token"]
        if len(token) < LEAST_TOKEN:
            raise ValueError(f"The token of {name} is too short: {LEAST_TOKEN} characters at least")
        if _BEARER.fullmatch(f"Bearer {token}") is None:
            raise ValueError(
                f"The token of {name} has characters that no header takes: A-Z a-z 0-9 . _ ~ + / - only"
            )
        digest = _digest(token)
        if digest in self._keys:
            raise ValueError(f"{name} and {self._keys[digest].name} have the same token")
        scopes = frozenset(scope for scope in (found["scopes"] or "").split(",") if scope)
        self._keys[digest] = Principal(name, scopes)

    async def authenticate(self, authorization: str | None) -> Principal:
        """The owner of the key. Raises `Unauthorized`."""
        token = _bearer(authorization)
        if token is None:
            raise Unauthorized(401, challenge(), "A key is required: Authorization: Bearer ...")
        given = _digest(token)
        found = None
        for digest, principal in self._keys.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(digest, given):
                found = principal
        if found is None:
            raise Unauthorized(401, challenge(error="invalid_token"), "This key is not known")
        return found

    def refusal(self, needed: Sequence[str]) -> Unauthorized:
        """403 `insufficient_scope`."""
        return _insufficient(needed, None)

    def metadata(self) -> None:
        """There is no server to get a key from."""


class OAuthResourceServer:
    """Tokens of an OAuth 2.1 authorization server: JWTs, signed with one of its keys.

    `resource` is the URL of this server as clients know it; only tokens made for it are taken, so
    that one which was meant for another server is of no use here. `jwks` is where the keys are: an
    `https` URL, or a file. Each token must have `scopes`; methods may ask for more.
    """

    def __init__(
        self,
        *,
        issuer: str,
        resource: str,
        jwks: str | Path,
        scopes: Sequence[str] = (),
        algorithms: Sequence[str] = ALGORITHMS,
        name: str | None = None,
    ) -> None:
        parts = urlsplit(resource)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
            raise ValueError(f"{resource!r} is not the URL of a server, as https://tools.example.com/mcp")
        unsafe = [algorithm for algorithm in algorithms if algorithm not in ALGORITHMS]
        if unsafe or not algorithms:
            raise ValueError(f"Not an algorithm with a public key: {', '.join(unsafe) or '(none given)'}")
        self._issuer = issuer
        self._resource = resource
        bare = resource.rstrip("/")
        self._audiences = (bare, f"{bare}/")
        self._keys = Keys(jwks)
        self._scopes = tuple(scopes)
        self._algorithms = tuple(algorithms)
        self._name = name
        self._metadata_url = metadata_url(resource)

    async def authenticate(self, authorization: str | None) -> Principal:
        """The subject of the token. Raises `Unauthorized`."""
        token = _bearer(authorization)
        if token is None:
            raise Unauthorized(
                401,
                challenge(resource_metadata=self._metadata_url, scope=self._scopes),
                "A token is required: Authorization: Bearer ...",
            )
        claims = await self._verify(token)
        principal = Principal(_subject(claims), _scopes_of(claims), float(claims["exp"]) + LEEWAY)
        if not principal.name:
            raise self._invalid("The token names nobody")
        if not principal.scopes.issuperset(self._scopes):
            raise self.refusal(self._scopes)
        return principal

    def refusal(self, needed: Sequence[str]) -> Unauthorized:
        """403 `insufficient_scope`, with what a client needs to ask for more."""
        return _insufficient(tuple(dict.fromkeys((*self._scopes, *needed))), self._metadata_url)

    def metadata(self) -> dict[str, Any]:
        """The document that tells clients where to get a token."""
        return resource_metadata(self._resource, [self._issuer], scopes=self._scopes, name=self._name)

    async def _verify(self, token: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in self._algorithms:
                raise self._invalid("The token's signature algorithm is not accepted")
            key = await self._keys.find(header.get("kid"), algorithm)
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audiences,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except KeysUnavailable as error:
            log.error("No token can be checked: %s", error)  # noqa: TRY400  the address and the reason say all
            raise Unauthorized(503, None, "Tokens cannot be verified at the moment") from error
        except UnknownKey as error:
            raise self._invalid("The token is signed with an unknown key") from error
        except jwt.ExpiredSignatureError as error:
            raise self._invalid("The token has expired") from error
        except jwt.InvalidAudienceError as error:
            raise self._invalid("The token is for another server") from error
        except (jwt.PyJWTError, RecursionError) as error:  # the latter of old versions, if it is nested
            raise self._invalid("The token is not valid") from error
        return claims

    def _invalid(self, message: str) -> Unauthorized:
        value = challenge(
            error="invalid_token",
            description=message,
            scope=self._scopes,
            resource_metadata=self._metadata_url,
        )
        return Unauthorized(401, value, message)


# --- documents and headers ------------------------------------------------------------------


def resource_metadata(
    resource: str,
    authorization_servers: Sequence[str],
    *,
    scopes: Sequence[str] = (),
    name: str | None = None,
) -> dict[str, Any]:
    """The protected resource metadata document (RFC 9728)."""
    document: dict[str, Any] = {
        "resource": resource,
        "authorization_servers": list(authorization_servers),
        "bearer_methods_supported": ["header"],
    }
    if scopes:
        document["scopes_supported"] = list(scopes)
    if name:
        document["resource_name"] = name
    return document


def metadata_url(resource: str) -> str:
    """Where that document is: the well-known path comes between the host and the resource's own path."""
    parts = urlsplit(resource)
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{path}"


def challenge(
    *,
    error: str | None = None,
    description: str | None = None,
    scope: Sequence[str] = (),
    resource_metadata: str | None = None,
) -> str:
    """The value of a `WWW-Authenticate` header (RFC 6750, RFC 9728)."""
    given = {
        "error": error,
        "error_description": description,
        "scope": " ".join(scope),
        "resource_metadata": resource_metadata,
    }
    # What would end the quotes is left out; midcall itself never writes it.
    words = [f'{key}="{_UNQUOTABLE.sub("", value)}"' for key, value in given.items() if value]
    return f"Bearer {', '.join(words)}" if words else 'Bearer realm="midcall"'


def _insufficient(needed: Sequence[str], metadata: str | None) -> Unauthorized:
    message = f"The scope {' '.join(needed)} is needed"
    value = challenge(
        error="insufficient_scope", description=message, scope=needed, resource_metadata=metadata
    )
    return Unauthorized(403, value, message)


# --- reading --------------------------------------------------------------------------------


def _bearer(authorization: str | None) -> str | None:
    found = None if authorization is None else _BEARER.fullmatch(authorization)
    return None if found is None else found["token"]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _subject(claims: Mapping[str, Any]) -> str:
    """Who the token is for: a person, or a program that came in its own name."""
    for claim in ("sub", "client_id", "azp"):
        value = claims.get(claim)
        if isinstance(value, str) and value:
            return value
    return ""


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` as RFC 8693 has it, and `scp` as some servers write it: a text or a list."""
    scopes: set[str] = set()
    for claim in ("scope", "scp"):
        value = claims.get(claim)
        if isinstance(value, str):
            scopes.update(value.split())
        elif isinstance(value, list):
            scopes.update(scope for scope in value if isinstance(scope, str))
    return frozenset(scopes)

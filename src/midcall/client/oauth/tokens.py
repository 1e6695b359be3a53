"""Tokens: what an authorization server issues, its token endpoint, and the keys that tokens are bound to.

The requests are made by Authlib, whose functions do no I/O. (oauthlib does as much, but refuses callbacks to
`http://127.0.0.1`, which native clients have, unless a variable of the whole process turns its checks off.)
The `repr` of nothing here shows a secret.
"""

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

import jwt
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_token_request
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from msgspec import Struct

from midcall.client.oauth.discovery import AuthorizationServer
from midcall.client.oauth.fetch import Fetch, JsonReply, origin_of, server_of, words
from midcall.client.oauth.registration import ClientKey, Registered, load_key
from midcall.errors import LoginFailed

JWT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
PROOF_ALGORITHM = "ES256"

SOON = 30.0
"""Seconds before its end at which a token is renewed; less for one that lives for minutes only."""

_SHOWABLE = re.compile(r"[!-~]+")
"""What may stand in a header as a token."""


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


class TokenEndpoint:
    """One authorization server's token endpoint, for one client."""

    def __init__(
        self,
        issuer: AuthorizationServer,
        client: Registered,
        fetch: Fetch,
        *,
        secret: str | None = None,
        key: ClientKey | None = None,
        proofs: "ProofKey | None" = None,
    ) -> None:
        """With `proofs`, tokens are bound to that key."""
        self._issuer = issuer
        self._client = client
        self._fetch = fetch
        self._secret = client.client_secret or secret
        self._key = key
        self._proofs = proofs

    async def tokens(
        self,
        grant_type: str,
        parameters: Mapping[str, str | None],
        *,
        requested: Sequence[str],
        before: Tokens | None = None,
    ) -> Tokens:
        """Get tokens. `before` are those that are refreshed. Raises `LoginFailed`."""
        issued = await self.ask(grant_type, parameters)
        scheme = str(issued.get("token_type", "Bearer"))
        access_token = issued["access_token"]
        bound = self._proofs is not None and scheme.lower() == "dpop"
        if scheme.lower() not in ("bearer", "dpop") or (scheme.lower() == "dpop" and not bound):
            raise self._failure(f"issued a token of a kind that cannot be used: {words(scheme, 40)}")
        now = time.time()
        lifetime = _seconds(issued.get("expires_in"))
        refresh_token = issued.get("refresh_token")
        kept = before.refresh_token if before else None
        granted = issued.get("scope")
        had = before.granted if before else tuple(requested)
        return Tokens(
            access_token,
            "DPoP" if bound else "Bearer",
            # A server that rotates issues a new one, and the old one is over; one that does not says nothing.
            refresh_token if isinstance(refresh_token, str) and refresh_token else kept,
            now,
            None if lifetime is None else now + lifetime,
            tuple(granted.split()) if isinstance(granted, str) and granted.strip() else had,
            tuple(requested),
            self._proofs.pem if self._proofs and bound else None,
        )

    async def ask(self, grant_type: str, parameters: Mapping[str, str | None]) -> dict[str, Any]:
        """What the endpoint issues: an object with an `access_token`. Raises `LoginFailed`."""
        reply = await self._post(grant_type, parameters)
        if reply.text("error") == "use_dpop_nonce" and self._proofs is not None:
            nonce = reply.headers.get("dpop-nonce")
            if self._proofs.heard(self._issuer.token_endpoint, nonce, None):
                reply = await self._post(grant_type, parameters)
        if error := reply.text("error"):
            description = reply.text("error_description")
            raise self._failure(f"refused: {error}" + (f" ({description})" if description else ""), error)
        if not reply.ok or not reply.document:
            raise self._failure(f"answered {reply.status} without a token", recoverable=reply.status >= 500)
        token = reply.document.get("access_token")
        if not isinstance(token, str) or not _SHOWABLE.fullmatch(token):
            raise self._failure("issued no token that can be used")
        return reply.document

    async def _post(self, grant_type: str, parameters: Mapping[str, Any]) -> JsonReply:
        url = self._issuer.token_endpoint
        body = prepare_token_request(grant_type, **parameters)
        headers, body = self._authenticate({"content-type": "application/x-www-form-urlencoded"}, body)
        if self._proofs is not None:
            headers["dpop"] = self._proofs.proof("POST", url)
        return await self._fetch.send("POST", url, headers, body.encode())

    def _authenticate(self, headers: dict[str, str], body: str) -> tuple[dict[str, str], str]:
        """The request with the proof that we are the client."""
        client_id, secret, method = self._client.client_id, self._secret, self._client.method
        url = self._issuer.token_endpoint
        if method == "private_key_jwt":
            return headers, f"{body}&{self._assertion()}"
        if method == "client_secret_basic":  # RFC 6749 2.3.1: both are escaped first, which Authlib does not
            client_id, secret = quote_plus(client_id), quote_plus(secret or "")
        _, headers, body = ClientAuth(client_id, secret, method).prepare(  # type: ignore[no-untyped-call]
            "POST", url, headers, body
        )
        return headers, body

    def _assertion(self) -> str:
        accepted = self._issuer.token_endpoint_auth_signing_alg_values_supported
        made = self._key and self._key.assertion(self._client.client_id, self._issuer.issuer, accepted)
        if not made:
            raise self._failure(f"accepts no signature of the key that was given, only {accepted}")
        return f"client_assertion_type={quote_plus(JWT_ASSERTION)}&client_assertion={made}"

    def _failure(self, what: str, reason: str = "", *, recoverable: bool = False) -> LoginFailed:
        return LoginFailed(
            f"{self._issuer.token_endpoint} {what}",
            reason=reason,
            recoverable=recoverable,
        )


def _seconds(value: object) -> float | None:
    """How long a token holds; some servers write the number as text."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds < 1e10 else None


class ProofKey:
    """A key that tokens are bound to: whoever shows such a token also shows that he has the key."""

    def __init__(self, pem: str | None = None) -> None:
        """Take a key that was made before, or make a new one."""
        key = ec.generate_private_key(ec.SECP256R1()) if pem is None else load_key(pem)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("Proofs are signed with ES256")
        self._key = key
        self._public: dict[str, Any] = ECAlgorithm(ECAlgorithm.SHA256).to_jwk(key.public_key(), as_dict=True)
        self._nonces: dict[str, str] = {}

    @property
    def pem(self) -> str:
        """The private key, to be kept with the tokens."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def proof(self, verb: str, url: str, token: str | None = None) -> str:
        """A proof for one request, with the token that it shows."""
        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": verb,
            "htu": server_of(url),
            "iat": int(time.time()),
        }
        if nonce := self._nonces.get(origin_of(url)):
            claims["nonce"] = nonce
        if token is not None:
            digest = hashlib.sha256(token.encode("ascii")).digest()
            claims["ath"] = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        return jwt.encode(
            claims, self._key, PROOF_ALGORITHM, headers={"typ": "dpop+jwt", "jwk": self._public}
        )

    def heard(self, url: str, nonce: str | None, proof: str | None) -> bool:
        """A server wants this nonce in the proofs for it. True if it was not in the one that it refused."""
        if not nonce or (proof and _claims(proof).get("nonce") == nonce):
            return False
        self._nonces[origin_of(url)] = nonce
        return True

    def __repr__(self) -> str:
        return "ProofKey(...)"


def _claims(proof: str) -> dict[str, Any]:
    """The claims of a proof of our own."""
    claims: dict[str, Any] = jwt.decode(proof, options={"verify_signature": False})
    return claims

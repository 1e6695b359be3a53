"""The token endpoint of an authorization server: requests, how a client proves who it is, and responses.

The requests are made by Authlib, whose functions do no I/O. (oauthlib does as much, but refuses callbacks to
`http://127.0.0.1`, which native clients have, unless a variable of the whole process turns its checks off.)
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_token_request

from midcall.client.oauth.discovery import AuthorizationServer
from midcall.client.oauth.exchange import Answered, Fetch, send, words
from midcall.client.oauth.signing import ClientKey, ProofKey
from midcall.client.oauth.tokens import Registered, Tokens
from midcall.errors import LoginFailed

JWT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

_SHOWABLE = re.compile(r"[!-~]+")
"""What may stand in a header as a token."""


class TokenEndpoint:
    """One authorization server's token endpoint, for one client."""

    def __init__(
        self,
        issuer: AuthorizationServer,
        client: Registered,
        fetch: Fetch,
        *,
        server: str,
        secret: str | None = None,
        key: ClientKey | None = None,
        proofs: ProofKey | None = None,
    ) -> None:
        """`server` is the MCP server that tokens are wanted for; with `proofs` they are bound to that key."""
        self._issuer = issuer
        self._client = client
        self._fetch = fetch
        self._server = server
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
        answered = await self._post(grant_type, parameters)
        if _word(answered, "error") == "use_dpop_nonce" and self._told_nonce(answered):
            answered = await self._post(grant_type, parameters)
        if error := _word(answered, "error"):
            description = _word(answered, "error_description")
            raise self._failure(f"refused: {error}" + (f" ({description})" if description else ""), error)
        if not answered.ok or answered.document is None:
            raise self._failure(
                f"answered {answered.status} without a token", recoverable=answered.status >= 500
            )
        token = answered.document.get("access_token")
        if not isinstance(token, str) or not _SHOWABLE.fullmatch(token):
            raise self._failure("issued no token that can be used")
        return answered.document

    async def _post(self, grant_type: str, parameters: Mapping[str, Any]) -> Answered:
        url = self._issuer.token_endpoint
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        body = prepare_token_request(grant_type, **parameters)
        headers, body = self._authenticate(headers, body)
        if self._proofs is not None:
            headers["dpop"] = self._proofs.proof("POST", url)
        return await send(
            self._fetch, "POST", url, tuple(headers.items()), body.encode(), server=self._server
        )

    def _told_nonce(self, answered: Answered) -> bool:
        """Whether the endpoint has named a nonce for the proofs."""
        nonce = answered.headers.get("dpop-nonce")
        return self._proofs is not None and self._proofs.heard(self._issuer.token_endpoint, nonce, None)

    def _authenticate(self, headers: dict[str, str], body: str) -> tuple[dict[str, str], str]:
        """The request with the proof that we are the client."""
        client_id, secret, method = self._client.client_id, self._secret, self._client.method
        url = self._issuer.token_endpoint
        if method == "private_key_jwt":
            return headers, f"{body}&{self._assertion()}"
        if (
            method == "client_secret_basic"
        ):  # RFC 6749 2.3.1 wants both escaped first, which Authlib leaves to us
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
            server=self._server,
            reason=reason,
            recoverable=recoverable,
        )


def choose_method(issuer: AuthorizationServer, *, secret: bool, key: bool = False) -> str:
    """How a client with these credentials proves who it is; `none` if it has none."""
    accepted = issuer.token_endpoint_auth_methods_supported
    if key and (not secret or accepted is None or "private_key_jwt" in accepted):
        return "private_key_jwt"
    if not secret:
        return "none"
    ways = ("client_secret_basic", "client_secret_post", "none")
    return next((way for way in ways if accepted is None or way in accepted), "client_secret_basic")


def _word(answered: Answered, name: str) -> str:
    """A text of the response, fit to be shown."""
    value = (answered.document or {}).get(name)
    return words(value) if isinstance(value, str) else ""


def _seconds(value: object) -> float | None:
    """How long a token holds; some servers write the number as text."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds < 1e10 else None

"""One login of a person, by authorization code with PKCE: the address to visit, and what comes back. No I/O.

Whatever comes back is believed only if it carries this login's `state` and comes from the issuer that was
asked (RFC 9207); before that, not even an error in it is looked at.
"""

import hmac
import secrets
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from midcall.client.oauth.discovery import Place
from midcall.client.oauth.exchange import words
from midcall.client.oauth.tokens import Registered
from midcall.errors import LoginFailed


class Login:
    """A login that is going on."""

    def __init__(self, place: Place, client: Registered, redirect_uri: str, scopes: Sequence[str]) -> None:
        """Prepare it. Raises `LoginFailed` if this authorization server cannot be trusted with one."""
        issuer = place.issuer
        if issuer.authorization_endpoint is None:
            raise LoginFailed(f"{issuer.issuer} has no page to log in at", server=place.server)
        if not _has_pkce(place):
            raise LoginFailed(f"{issuer.issuer} does not support PKCE (S256): refused", server=place.server)
        self._place = place
        self.verifier = secrets.token_urlsafe(48)
        self.state = secrets.token_urlsafe(32)
        self.url: str = prepare_grant_uri(
            issuer.authorization_endpoint,
            client.client_id,
            "code",
            redirect_uri=redirect_uri,
            scope=" ".join(scopes) or None,
            state=self.state,
            code_challenge=create_s256_code_challenge(self.verifier),  # type: ignore[no-untyped-call]
            code_challenge_method="S256",
            resource=place.resource,
            # OpenID servers ignore a wish for refresh tokens unless the person is asked
            prompt="consent" if "offline_access" in scopes else None,
        )

    def read(self, callback: str) -> str:
        """The code in the address that the browser was sent to. Raises `LoginFailed`."""
        given = parse_qs(urlsplit(callback).query, keep_blank_values=True)
        if repeated := [name for name, values in given.items() if len(values) > 1]:
            raise self._failure(f"came back with two values of {words(repeated[0], 40)}: refused")
        said = {name: values[0] for name, values in given.items()}
        if not hmac.compare_digest(said.get("state", "").encode(), self.state.encode()):
            raise self._failure("came back with a state that is not of this login: refused")
        self._check_issuer(said.get("iss"))
        if "error" in said:
            raise self._refused(said["error"], said.get("error_description", ""))
        if not said.get("code"):
            raise self._failure("came back without a code")
        return said["code"]

    def _check_issuer(self, iss: str | None) -> None:
        """Compared letter by letter: whoever may choose what is the same may choose another server."""
        issuer = self._place.issuer
        if iss is None:
            if issuer.authorization_response_iss_parameter_supported:
                raise self._failure("came back without saying from which issuer: refused")
        elif iss != issuer.issuer:
            raise self._failure(f"came back from another issuer, {words(iss)}: refused")

    def _refused(self, error: str, description: str) -> LoginFailed:
        said = words(f"{error}: {description}" if description else error)
        if error == "access_denied":
            return self._failure(f"was declined ({said})", error)
        return self._failure(f"failed ({said})", error)

    def _failure(self, what: str, reason: str = "") -> LoginFailed:
        issuer = self._place.issuer.issuer
        return LoginFailed(
            f"The login at {issuer} {what}", server=self._place.server, reason=words(reason, 60)
        )


def _has_pkce(place: Place) -> bool:
    """A server must say that it has it. The rules of 2025-03-26 want it used, but not announced."""
    methods = place.issuer.code_challenge_methods_supported
    return place.issuer.legacy if methods is None else "S256" in methods

"""What the HTTP wire asks before a request, and after one that was refused; and the simplest answer."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from midcall.client.oauth.challenge import read_challenge
from midcall.client.oauth.exchange import Fetch, server_of, words
from midcall.errors import LoginFailed


class Auth(Protocol):
    """Gives requests what lets them in."""

    async def headers(self, url: str, fetch: Fetch, *, verb: str = "POST") -> dict[str, str]:
        """The headers for a request; none if this server has not asked for any yet. Raises `LoginFailed`."""

    async def challenged(
        self,
        url: str,
        status: int,
        www_authenticate: str | None,
        fetch: Fetch,
        *,
        sent: Mapping[str, str] | None = None,
        nonce: str | None = None,
    ) -> bool:
        """Get (more) access after a 401 or 403. True if the request is to be sent again, with new headers.

        `sent` are the headers that this request had from `headers`: by them one that was sent with an old
        token is told from one whose token is refused. `nonce` is the response's `DPoP-Nonce`. A person may be
        asked, so it can take minutes. Raises `LoginFailed`.
        """


class Token:
    """A token that somebody has given out. It is shown to every server that it is used for."""

    def __init__(self, token: str) -> None:
        if not token or not token.isascii() or any(character <= " " for character in token):
            raise ValueError("A token has no spaces, and only ASCII characters")
        self._token = token

    async def headers(self, url: str, fetch: Fetch, *, verb: str = "POST") -> dict[str, str]:
        """The token."""
        return {"Authorization": f"Bearer {self._token}"}

    async def challenged(
        self,
        url: str,
        status: int,
        www_authenticate: str | None,
        fetch: Fetch,
        *,
        sent: Mapping[str, str] | None = None,
        nonce: str | None = None,
    ) -> bool:
        """There is no other. Raises `LoginFailed` if the server does not accept this one."""
        server, challenge = server_of(url), read_challenge(www_authenticate)
        if status == 401:
            said = f": {words(challenge.description)}" if challenge and challenge.description else ""
            raise LoginFailed(f"{server} refuses the token that was given{said}", server=server)
        if status == 403 and challenge and challenge.error == "insufficient_scope":
            raise insufficient(server, challenge.scopes, "the token that was given does not have it")
        return False

    def __repr__(self) -> str:
        return "Token(...)"


def insufficient(server: str, scopes: Sequence[str], why: str) -> LoginFailed:
    """The error for a scope that is not to be had."""
    needed = words(" ".join(scopes)) or "more"
    return LoginFailed(
        f"{server} wants the scope {needed}: {why}", server=server, reason="insufficient_scope"
    )

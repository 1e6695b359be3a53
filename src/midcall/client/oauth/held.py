"""What an `Access` holds of one MCP server: the tokens in use, where they came from, and whose turn it is."""

import asyncio
import time
from typing import Literal, TypeAlias

from midcall.client.oauth.discovery import AuthorizationServer
from midcall.client.oauth.signing import ProofKey
from midcall.client.oauth.tokens import Kept, Tokens
from midcall.errors import LoginFailed

FRESH = 60.0
"""Seconds for which a token counts as just issued: a server that refuses it will refuse the next one too."""

MOST = 8
"""How many logins a server may ask for within that time: each may be for another scope."""

How: TypeAlias = Literal["kept", "renewed", "granted"]
"""How tokens were come by: from the store, by a refresh token, or by a login."""


class Held:
    """One MCP server."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.lock = asyncio.Lock()
        """Held by the one who gets access, for as long as a person takes."""
        self.loaded = False
        self.kept = Kept()
        self.how: How = "kept"
        self.turn = 0
        """How often somebody has tried to get access, with success or without."""
        self._failure: tuple[object, LoginFailed] | None = None
        """What was asked for at the last try, and how it failed."""
        self.issuers: dict[str, AuthorizationServer] = {}
        """What the authorization servers said of themselves in this run."""
        self.proofs: ProofKey | None = None
        self._since = float("-inf")
        self._logins: list[float] = []

    @property
    def tokens(self) -> Tokens | None:
        """The tokens in use."""
        return self.kept.tokens

    @property
    def authorization(self) -> str | None:
        """The header that shows them."""
        tokens = self.tokens
        return None if tokens is None else f"{tokens.scheme} {tokens.access_token}"

    @property
    def is_fresh(self) -> bool:
        """Whether they have just been issued."""
        return time.monotonic() - self._since < FRESH

    def show(self, verb: str, url: str) -> dict[str, str]:
        """The headers for a request."""
        tokens, authorization = self.tokens, self.authorization
        if tokens is None or authorization is None:
            return {}
        if self.proofs is None:
            return {"Authorization": authorization}
        return {"Authorization": authorization, "DPoP": self.proofs.proof(verb, url, tokens.access_token)}

    def take(self, kept: Kept, how: How) -> None:
        """From now on this is what we have."""
        before = self.tokens.key if self.tokens else None
        self.kept = kept
        self.how = how
        self.loaded = True
        self._since = time.monotonic() if how != "kept" else float("-inf")
        key = self.tokens.key if self.tokens else None
        if key != before:
            self.proofs = None if key is None else ProofKey(key)

    def count_login(self) -> None:
        """Another login begins. Raises `LoginFailed` if the server cannot get enough of them."""
        now = time.monotonic()
        self._logins = [moment for moment in self._logins if now - moment < FRESH]
        if len(self._logins) >= MOST:
            raise LoginFailed(f"{self.server} asks for one login after another", server=self.server)
        self._logins.append(now)

    def finished(self, asked: object, failure: LoginFailed | None) -> None:
        """Somebody has tried; those who have waited for the same need not."""
        self.turn += 1
        self._failure = None if failure is None else (asked, failure)

    def check_since(self, turn: int, asked: object) -> None:
        """Raises `LoginFailed` if the same was tried since that turn, in vain."""
        if self.turn != turn and self._failure is not None and self._failure[0] == asked:
            raise self._failure[1].again()

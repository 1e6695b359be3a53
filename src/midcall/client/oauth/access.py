"""Access to protected MCP servers: what the HTTP wire asks before a request, and after one that was refused.

`Token` is the simplest answer. `Access` keeps the tokens of each server, shows them, renews them in time, and
gets new ones when a server asks: one login at a time, whatever the number of requests that wait for it. How a
new grant is had is the business of those who inherit from it: `OAuth` asks a person, those in `machine` need
none.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, TypedDict

from msgspec import structs

from midcall.client.oauth.discovery import (
    AuthorizationServer,
    Challenge,
    TokenSource,
    find_issuer,
    find_legacy,
    find_source,
    read_challenge,
)
from midcall.client.oauth.fetch import Fetch, origin_of, server_of, words
from midcall.client.oauth.registration import Identity, Registered, given_client
from midcall.client.oauth.store import Grant, MemoryStore, SavedLogin, TokenStore, from_plain, to_plain
from midcall.client.oauth.tokens import PROOF_ALGORITHM, ProofKey, TokenEndpoint, Tokens
from midcall.errors import LoginFailed
from midcall.http.client import HttpClient

log = logging.getLogger("midcall.oauth")

OFFLINE = "offline_access"
"""The scope for refresh tokens: a matter of the authorization server, not of the MCP server."""

OVER = ("invalid_grant", "invalid_client", "unauthorized_client")
"""What a token endpoint says of a refresh token that will never work again."""

FRESH = 60.0
"""Seconds for which a token counts as just issued: a server that refuses it will refuse the next one too."""

MOST = 8
"""How many logins a server may ask for within that time: each may be for another scope."""

How: TypeAlias = Literal["kept", "renewed", "granted"]
"""How tokens were come by: from the store, by a refresh token, or by a login."""


class Auth(Protocol):
    """Gives requests what lets them in."""

    async def headers(self, url: str, http: HttpClient, *, verb: str = "POST") -> dict[str, str]:
        """The headers for a request; none if this server has not asked for any yet. Raises `LoginFailed`."""

    async def challenged(
        self,
        url: str,
        status: int,
        www_authenticate: str | None,
        http: HttpClient,
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

    async def headers(self, url: str, http: HttpClient, *, verb: str = "POST") -> dict[str, str]:
        """The token."""
        return {"Authorization": f"Bearer {self._token}"}

    async def challenged(
        self,
        url: str,
        status: int,
        www_authenticate: str | None,
        http: HttpClient,
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
            raise _insufficient(server, challenge.scopes, "the token that was given does not have it")
        return False

    def __repr__(self) -> str:
        return "Token(...)"


def _insufficient(server: str, scopes: Sequence[str], why: str) -> LoginFailed:
    """The error for a scope that is not to be had."""
    needed = words(" ".join(scopes)) or "more"
    return LoginFailed(
        f"{server} wants the scope {needed}: {why}", server=server, reason="insufficient_scope"
    )


class _ServerTokens:
    """What `Access` has of one MCP server: the tokens in use, where they came from, and whose turn it is."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.lock = asyncio.Lock()
        """Held by the one who gets access, for as long as a person takes."""
        self.loaded = False
        self.saved = SavedLogin()
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
        return self.saved.tokens

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

    def take(self, saved: SavedLogin, how: How) -> None:
        """From now on this is what we have."""
        before = self.tokens.key if self.tokens else None
        self.saved = saved
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
            raise LoginFailed(f"{self.server} asks for one login after another")
        self._logins.append(now)

    def finished(self, asked: object, failure: LoginFailed | None) -> None:
        """Somebody has tried; those who have waited for the same need not."""
        self.turn += 1
        self._failure = None if failure is None else (asked, failure)

    def check_since(self, turn: int, asked: object) -> None:
        """Raises `LoginFailed` if the same was tried since that turn, in vain."""
        if self.turn != turn and self._failure is not None and self._failure[0] == asked:
            raise self._failure[1].again()


class AccessOptions(TypedDict, total=False):
    """What every `Access` takes."""

    scopes: Sequence[str] | None
    """Asked for in addition to what the server wants."""
    issuer: str | None
    """The only authorization server that may see credentials; without it, the first that the server names."""
    allow_private: bool
    """Follow a server's metadata into networks that the server is not in, also if that is not `issuer`."""


class Access(ABC):
    """Access to any number of MCP servers."""

    asks_nobody = True
    """Whether new tokens are had without a person."""

    def __init__(
        self,
        identity: Identity,
        *,
        scopes: Sequence[str] | None = None,
        issuer: str | None = None,
        allow_private: bool = False,
        store: TokenStore | None = None,
    ) -> None:
        if isinstance(scopes, str):
            raise TypeError("scopes must be a list of strings, not a string")
        self._identity = identity
        self._scopes = tuple(scopes or ())
        self._issuer = issuer
        self._allow_private = allow_private
        self._trusted = {origin_of(issuer)} if issuer else set()
        """The origins that the caller has named."""
        self._store = store or MemoryStore()
        self._held: dict[str, _ServerTokens] = {}
        self._urls: dict[str, _ServerTokens] = {}
        """The same by the URLs of requests, as they come."""

    @abstractmethod
    async def _obtain(self, source: TokenSource, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        """Get a grant here; `before` is the last that this place has given. Raises `LoginFailed`."""

    # --- what the wire calls -----------------------------------------------------------------

    async def headers(self, url: str, http: HttpClient, *, verb: str = "POST") -> dict[str, str]:
        """The headers for a request: the token, which is renewed first if it is about to end."""
        held = self._holding(url)
        if not held.loaded or (held.tokens and held.tokens.ends_soon()):
            async with held.lock:
                await self._load(held)
                if held.tokens and held.tokens.ends_soon():
                    with _naming(held.server):
                        await self._renew(held, self._fetch(held, http))
        return held.show(verb, url)

    async def challenged(
        self,
        url: str,
        status: int,
        www_authenticate: str | None,
        http: HttpClient,
        *,
        sent: Mapping[str, str] | None = None,
        nonce: str | None = None,
    ) -> bool:
        """Get access. Of many requests that are refused at once, one does; the others wait for it."""
        challenge = read_challenge(www_authenticate)
        lacking = status == 403 and challenge is not None and challenge.error == "insufficient_scope"
        if challenge is None or not (status == 401 or lacking):
            return False
        held = self._holding(url)
        turn = held.turn
        async with held.lock:
            await self._load(held)
            if challenge.error == "use_dpop_nonce" and held.proofs:
                return held.proofs.heard(url, nonce, (sent or {}).get("DPoP"))
            held.check_since(turn, asked := (status, challenge.scopes))
            old = held.turn != turn if sent is None else sent.get("Authorization") != held.authorization
            if old and held.tokens:
                return True
            try:
                with _naming(held.server):
                    await self._get_access(held, url, challenge, self._fetch(held, http), lacking=lacking)
            except LoginFailed as error:
                held.finished(asked, error)
                raise
            held.finished(asked, None)
        return True

    async def forget(self, url: str) -> None:
        """Forget all that is kept for a server: its tokens, and who we are there."""
        held = self._holding(url)
        async with held.lock, self._store.alone(held.server):
            held.take(SavedLogin(), "kept")
            await self._store.save(held.server, None)

    def _fetch(self, held: _ServerTokens, http: HttpClient) -> Fetch:
        return Fetch(http, held.server, None if self._allow_private else self._trusted)

    # --- getting it --------------------------------------------------------------------------

    async def _get_access(
        self, held: _ServerTokens, url: str, challenge: Challenge, fetch: Fetch, *, lacking: bool
    ) -> None:
        fetch.check(held.server, "A server that asks for a login")
        if await self._others_have(held):
            return
        source = await find_source(url, challenge, fetch, prefer=self._preferred(held.saved))
        issuer = source.issuer.issuer
        held.issuers[issuer] = source.issuer
        self._check_binding(held.saved, source)
        grant = held.saved.grant(issuer)
        if not self._identity.owns(grant.client):
            grant = Grant()
        tokens = grant.tokens
        if tokens is not None and tokens is held.tokens:
            self._check_refused(held, tokens, challenge, issuer, lacking=lacking)
            covered = set(challenge.scopes) <= set(tokens.requested)
            tried = held.how == "renewed" and held.is_fresh
            if covered and not lacking and not tried:
                if await self._refresh(held, source, grant, fetch):
                    return
                grant = held.saved.grant(issuer)  # what is over is no longer in it
        held.count_login()
        log.info("Getting access to %s at %s", held.server, issuer)
        got = await self._obtain(source, grant, self._wanted(source, challenge, tokens), fetch)
        saved = held.saved.having(issuer, got)
        if self._identity.client_id is not None:
            saved = saved.bound(self._identity.client_id, issuer)
        await self._keep(held, saved, "granted")

    def _wanted(self, source: TokenSource, challenge: Challenge, before: Tokens | None) -> list[str]:
        """The scopes to ask for: what this request needs, and what was asked for before."""
        now = (*self._scopes, *challenge.scopes) or source.scopes
        scopes = list(dict.fromkeys((*(before.requested if before else ()), *now)))
        return [scope for scope in scopes if scope != OFFLINE or scope in self._scopes]

    def _check_refused(
        self, held: _ServerTokens, tokens: Tokens, challenge: Challenge, issuer: str, *, lacking: bool
    ) -> None:
        """Raises `LoginFailed` if another token would be refused as this one is."""
        server, needed = held.server, set(challenge.scopes)
        if lacking:
            if not needed:
                raise _insufficient(server, (), "it does not say which")
            if needed <= set(tokens.granted):
                raise _insufficient(
                    server, challenge.scopes, f"{issuer} has granted it, and it is refused still"
                )
            if held.how == "granted" and needed <= set(tokens.requested):
                raise _insufficient(server, challenge.scopes, f"{issuer} has not granted it")
        elif held.how == "granted" and held.is_fresh and needed <= set(tokens.requested):
            said = f": {words(challenge.description)}" if challenge.description else ""
            raise LoginFailed(f"{server} refuses the token that {issuer} has just issued{said}")

    # --- renewing ----------------------------------------------------------------------------

    async def _renew(self, held: _ServerTokens, fetch: Fetch) -> None:
        """Renew the tokens that are about to end. Without a way to do so they are dropped when they have."""
        tokens = held.tokens
        if tokens is None or await self._others_have(held):
            return
        issuer = held.saved.issuer
        grant = held.saved.grant(issuer)
        over = tokens.expires_at is not None and time.time() >= tokens.expires_at
        try:
            if tokens.refresh_token is not None:
                await self._refresh(held, await self._same_source(held, grant, fetch), grant, fetch)
            elif self.asks_nobody:
                got = await self._obtain(
                    await self._same_source(held, grant, fetch), grant, tokens.requested, fetch
                )
                await self._keep(held, held.saved.having(issuer, got), "renewed")
            elif over:
                await self._keep(held, held.saved.having(issuer, structs.replace(grant, tokens=None)), "kept")
        except LoginFailed as error:
            if over:
                raise
            log.warning("The token for %s cannot be renewed yet: %s", held.server, error)

    async def _same_source(self, held: _ServerTokens, grant: Grant, fetch: Fetch) -> TokenSource:
        """Where the tokens came from; after a restart, that is found out anew."""
        issuer, server = held.saved.issuer, held.server
        found = held.issuers.get(issuer)
        if found is None:
            found = await find_legacy(fetch) if grant.legacy else await find_issuer(issuer, fetch)
            held.issuers[issuer] = found
        return TokenSource(server, found, grant.resource, dpop=held.proofs is not None)

    async def _refresh(self, held: _ServerTokens, source: TokenSource, grant: Grant, fetch: Fetch) -> bool:
        """Exchange the refresh token for new tokens; false if there is none, or it is over."""
        tokens, client, issuer = grant.tokens, grant.client, source.issuer.issuer
        if tokens is None or tokens.refresh_token is None or client is None:
            return False
        async with self._store.alone(held.server):
            if await self._others_have(held):
                return True
            try:
                fresh = await self._endpoint(source, grant, fetch, held.proofs).tokens(
                    "refresh_token",
                    {"refresh_token": tokens.refresh_token, "resource": grant.resource},
                    requested=tokens.requested,
                    before=tokens,
                )
            except LoginFailed as error:
                if error.reason not in OVER:
                    raise
                log.info("The login to %s is over: %s", held.server, error.reason)
                known = client if error.reason == "invalid_grant" else None
                ended = structs.replace(grant, client=known, tokens=None)
                await self._keep(held, held.saved.having(issuer, ended), "kept")
                return False
            renewed = held.saved.having(issuer, structs.replace(grant, tokens=fresh))
            await self._keep(held, renewed, "renewed")
        return True

    async def _ask_for(
        self,
        source: TokenSource,
        grant_type: str,
        scopes: Sequence[str],
        fetch: Fetch,
        *,
        client: Registered | None = None,
        **parameters: str | None,
    ) -> Grant:
        """A grant from the token endpoint; without a client, for the one that the caller has registered."""
        client = client or given_client(self._identity, source.issuer)
        grant = Grant(client, None, source.resource, source.issuer.legacy)
        if self.asks_nobody:  # a person is asked for the scopes on the way
            parameters["scope"] = " ".join(scopes)
        tokens = await self._endpoint(source, grant, fetch, self._proofs(source)).tokens(
            grant_type, {**parameters, "resource": source.resource}, requested=scopes
        )
        return structs.replace(grant, tokens=tokens)

    def _endpoint(
        self, source: TokenSource, grant: Grant, fetch: Fetch, proofs: ProofKey | None
    ) -> TokenEndpoint:
        """The token endpoint, for the client of this grant."""
        if grant.client is None:
            raise LoginFailed(f"No client is known to {source.issuer.issuer}")
        given = Identity() if grant.client.origin == "registered" else self._identity
        return TokenEndpoint(
            source.issuer,
            grant.client,
            fetch,
            secret=given.client_secret,
            key=given.key,
            proofs=proofs,
        )

    def _proofs(self, source: TokenSource) -> ProofKey | None:
        """A new key to bind tokens to, if the server wants that."""
        if not source.dpop:
            return None
        accepted = source.issuer.dpop_signing_alg_values_supported
        if accepted is not None and PROOF_ALGORITHM not in accepted:
            raise LoginFailed(
                f"{source.server} wants tokens that are bound to a key, but {source.issuer.issuer} "
                f"knows none of {PROOF_ALGORITHM}"
            )
        return ProofKey()

    # --- to whom credentials belong ----------------------------------------------------------

    def _preferred(self, saved: SavedLogin) -> list[str]:
        """Which of several authorization servers to take: the one that we belong to, or were at before."""
        bound = saved.given.get(self._identity.client_id or "")
        return [issuer for issuer in (self._issuer, bound, saved.issuer) if issuer]

    def _check_binding(self, saved: SavedLogin, source: TokenSource) -> None:
        """What the caller has registered at one authorization server is shown to no other."""
        bound = self._issuer or saved.given.get(self._identity.client_id or "")
        if bound and bound != source.issuer.issuer:
            who = f"The client {self._identity.client_id}" if self._identity.client_id else "This login"
            raise LoginFailed(
                f"{who} belongs to {bound}, but {source.server} names {source.issuer.issuer}: refused"
            )

    # --- what is kept ------------------------------------------------------------------------

    def _holding(self, url: str) -> _ServerTokens:
        held = self._urls.get(url)
        if held is None:
            server = server_of(url)
            held = self._urls[url] = self._held.setdefault(server, _ServerTokens(server))
        return held

    async def _load(self, held: _ServerTokens) -> None:
        if not held.loaded:
            held.take(self._own(from_plain(await self._store.load(held.server))), "kept")

    async def _others_have(self, held: _ServerTokens) -> bool:
        """Whether another process has got other tokens in the meantime; if so, they are ours too."""
        saved = self._own(from_plain(await self._store.load(held.server)))
        if saved.tokens is None or saved.tokens == held.tokens:
            return False
        held.take(saved, "kept")
        return True

    async def _keep(self, held: _ServerTokens, saved: SavedLogin, how: How) -> None:
        held.take(saved, how)
        try:
            await self._store.save(held.server, to_plain(saved))
        except LoginFailed as error:  # good until the process ends, and there is nothing better
            log.warning("The login to %s is not kept: %s", held.server, error)

    def _own(self, saved: SavedLogin) -> SavedLogin:
        """Without tokens that were issued to another client than the caller means."""
        grant = saved.grants.get(saved.issuer)
        ours = grant is None or self._identity.owns(grant.client)
        return saved if ours else structs.replace(saved, issuer="")


@contextlib.contextmanager
def _naming(server: str) -> Iterator[None]:
    """Logins fail in many places; here the error is told which MCP server the login was for."""
    try:
        yield
    except LoginFailed as error:
        error.server = server
        raise

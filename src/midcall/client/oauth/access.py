"""Access to MCP servers: what the HTTP wire asks before a request, and after one that was refused.

`Access` keeps the tokens of each server, shows them, renews them in time, and gets new ones when a server asks: one
login at a time, whatever the number of requests that wait for it. How a new grant is had is the business of those who
inherit from it, once: `OAuth` asks a person, `machine` has those that need none.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import structs

from midcall.client.oauth.challenge import Challenge, read_challenge
from midcall.client.oauth.discovery import AuthorizationServer, Place, find_issuer, find_legacy, find_place
from midcall.client.oauth.endpoint import TokenEndpoint
from midcall.client.oauth.exchange import Fetch, check_url, server_of, words
from midcall.client.oauth.registration import Identity
from midcall.client.oauth.signing import PROOF_ALGORITHM, ProofKey
from midcall.client.oauth.store import MemoryStore, TokenStore
from midcall.client.oauth.tokens import Grant, Kept, Tokens, from_plain, to_plain
from midcall.errors import LoginFailed

log = logging.getLogger("midcall.oauth")

FRESH = 60.0
"""Seconds for which a token counts as just issued: a server that refuses it will refuse the next one too."""

MOST = 3
"""How many grants a server may ask for within that time."""

OFFLINE = "offline_access"
"""The scope by which a client asks for refresh tokens. It is a matter of the authorization server alone."""


class Auth(Protocol):
    """Gives requests what lets them in."""

    async def headers(self, url: str, fetch: Fetch, *, verb: str = "POST") -> dict[str, str]:
        """The headers for a request to this server; none if it has not asked for any yet."""

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

        `sent` are the headers that the request had from `headers`: by them, one that was sent with an old token is
        told from one whose token is refused. `nonce` is the response's `DPoP-Nonce`. Raises `LoginFailed`.
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
        challenge = read_challenge(www_authenticate)
        if status == 401:
            said = f": {words(challenge.description)}" if challenge and challenge.description else ""
            raise LoginFailed(f"{server_of(url)} refuses the token that was given{said}", server=server_of(url))
        if status == 403 and challenge and challenge.error == "insufficient_scope":
            raise _insufficient(server_of(url), challenge.scopes, "the token that was given does not have it")
        return False

    def __repr__(self) -> str:
        return "Token(...)"


class Access:
    """Access by tokens of an authorization server, for any number of MCP servers."""

    asks_nobody = False
    """Whether new tokens are had without a person."""

    def __init__(
        self, identity: Identity, *, scopes: Sequence[str] | None, issuer: str | None, store: TokenStore | None
    ) -> None:
        self._identity = identity
        self._scopes = _split(scopes)
        self._issuer = issuer
        self._store = store or MemoryStore()
        self._held: dict[str, _Held] = {}

    # --- what the wire calls -----------------------------------------------------------------

    async def headers(self, url: str, fetch: Fetch, *, verb: str = "POST") -> dict[str, str]:
        """The headers for a request: the token, which is renewed first if it is about to end."""
        server = server_of(url)
        held = self._held.get(server)
        if held is None or not held.loaded or (held.tokens and held.tokens.ends_soon()):
            held = self._holding(server)
            async with held.lock:
                await self._load(held)
                if held.tokens and held.tokens.ends_soon():
                    await self._renew(held, fetch)
        return held.show(verb, url)

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
        """Get access. Of many requests that are refused at once, one does; the others wait for what it brings."""
        challenge = read_challenge(www_authenticate)
        insufficient = status == 403 and challenge is not None and challenge.error == "insufficient_scope"
        if challenge is None or not (status == 401 or insufficient):
            return False
        held = self._holding(server_of(url))
        turn = held.turn
        async with held.lock:
            await self._load(held)
            if challenge.error == "use_dpop_nonce" and held.proofs:
                return held.proofs.heard(url, nonce)
            if held.turn != turn and held.failure is not None:
                raise held.failure.again()
            if held.tokens and sent is not None and sent.get("Authorization") != held.authorization:
                return True
            if held.tokens and sent is None and held.turn != turn:
                return True
            try:
                await self._get_access(held, url, challenge, fetch, insufficient=insufficient)
            except LoginFailed as error:
                held.finished(error)
                raise
            held.finished(None)
        return True

    async def forget(self, url: str) -> None:
        """Forget all that is kept for a server: its tokens, and who we are there."""
        held = self._holding(server_of(url))
        async with held.lock, self._store.alone(held.server):
            held.loaded = True
            held.take(Kept(), "kept")
            await self._store.save(held.server, None)

    # --- what differs ------------------------------------------------------------------------

    async def _obtain(self, place: Place, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        """Get a grant from this authorization server; `before` is the last that it gave. Raises `LoginFailed`."""
        raise NotImplementedError

    # --- getting it --------------------------------------------------------------------------

    async def _get_access(
        self, held: "_Held", url: str, challenge: Challenge, fetch: Fetch, *, insufficient: bool
    ) -> None:
        server = held.server
        check_url(url.partition("?")[0], "A server that asks for a login", server=server)
        if await self._others_have(held):
            return
        place = await find_place(url, challenge, fetch, prefer=self._preferred(held.kept))
        issuer = place.issuer.issuer
        self._check_binding(held.kept, place)
        grant = held.kept.grant(issuer)
        if not self._identity.owns(grant.client):
            grant = Grant()
        tokens = grant.tokens
        if tokens is not None and tokens is held.tokens:
            self._check_refused(held, tokens, challenge, issuer, insufficient=insufficient)
            covered = set(challenge.scopes) <= set(tokens.requested)
            if not insufficient and covered and held.how != "renewed" and tokens.refresh_token:
                if await self._refresh(held, place, grant, fetch):
                    return
        wanted = self._wanted(place, challenge, tokens)
        held.count()
        log.info("Getting access to %s at %s", server, issuer)
        got = await self._obtain(place, grant, wanted, fetch)
        kept = held.kept.having(issuer, structs.replace(got, legacy=place.issuer.legacy))
        if self._identity.client_id is not None:
            kept = kept.bound(self._identity.client_id, issuer)
        await self._keep(held, kept, "granted")

    def _wanted(self, place: Place, challenge: Challenge, before: Tokens | None) -> list[str]:
        """The scopes to ask for: what this request needs, and what was there before (RFC 6750, SEP-2350)."""
        first = (*self._scopes, *challenge.scopes) or place.scopes
        earlier = before.requested if before else ()
        scopes = dict.fromkeys((*earlier, *first))
        if OFFLINE not in self._scopes:
            scopes.pop(OFFLINE, None)
        return list(scopes)

    def _check_refused(
        self, held: "_Held", tokens: Tokens, challenge: Challenge, issuer: str, *, insufficient: bool
    ) -> None:
        """Raises `LoginFailed` if another token would be refused as this one is."""
        server, needed = held.server, set(challenge.scopes)
        if insufficient:
            if not needed:
                raise LoginFailed(f"{server} wants a scope that it does not name", server=server)
            if needed <= set(tokens.granted):
                raise _insufficient(server, challenge.scopes, f"{issuer} has granted it, but it is refused still")
            if held.how == "granted" and needed <= set(tokens.requested):
                raise _insufficient(server, challenge.scopes, f"{issuer} has not granted it")
        elif held.how == "granted" and held.is_fresh() and needed <= set(tokens.requested):
            said = f": {words(challenge.description)}" if challenge.description else ""
            raise LoginFailed(f"{server} refuses the token that {issuer} has just issued{said}", server=server)

    # --- renewing ----------------------------------------------------------------------------

    async def _renew(self, held: "_Held", fetch: Fetch) -> None:
        """Renew the tokens that are about to end; without a way to do so, they are dropped when they have."""
        tokens = held.tokens
        if tokens is None or await self._others_have(held):
            return
        issuer, grant = held.kept.issuer, held.kept.grant(held.kept.issuer)
        over = tokens.expires_at is not None and time.time() >= tokens.expires_at
        if not tokens.refresh_token and not self.asks_nobody:
            if over:
                held.drop()
            return
        try:
            place = held.place or Place(held.server, await self._find_again(held.server, issuer, grant, fetch))
            if tokens.refresh_token:
                if not await self._refresh(held, place, grant, fetch):
                    held.drop()
                return
            got = await self._obtain(place, grant, tokens.requested, fetch)
        except LoginFailed:
            if over:
                raise
            log.warning("The token for %s cannot be renewed yet; it still holds", held.server)
            return
        await self._keep(held, held.kept.having(issuer, got), "renewed")

    async def _find_again(self, server: str, issuer: str, grant: Grant, fetch: Fetch) -> AuthorizationServer:
        return await find_legacy(server, fetch) if grant.legacy else await find_issuer(issuer, fetch, server)

    async def _refresh(self, held: "_Held", place: Place, grant: Grant, fetch: Fetch) -> bool:
        """Exchange the refresh token for new tokens; false if it is over, and with it the login."""
        tokens, client = grant.tokens, grant.client
        if tokens is None or client is None:
            return False
        async with self._store.alone(held.server):
            if await self._others_have(held):
                return True
            endpoint = self._endpoint(place, grant, fetch, ProofKey(tokens.key) if tokens.key else None)
            try:
                fresh = await endpoint.tokens(
                    "refresh_token",
                    requested=tokens.requested,
                    before=tokens,
                    refresh_token=tokens.refresh_token,
                    resource=place.resource or grant.resource,
                )
            except LoginFailed as error:
                if error.reason not in ("invalid_grant", "invalid_client", "unauthorized_client"):
                    raise
                log.info("The login to %s is over: %s", held.server, error.reason)
                client = client if error.reason == "invalid_grant" else None
                over = Grant(client, None, grant.legacy, grant.resource)
                await self._keep(held, held.kept.having(place.issuer.issuer, over), "kept")
                return False
            await self._keep(
                held, held.kept.having(place.issuer.issuer, structs.replace(grant, tokens=fresh)), "renewed"
            )
        return True

    def _endpoint(self, place: Place, grant: Grant, fetch: Fetch, proofs: ProofKey | None) -> TokenEndpoint:
        if grant.client is None:
            raise LoginFailed(f"No client is known to {place.issuer.issuer}", server=place.server)
        given = self._identity if grant.client.origin != "registered" else Identity()
        return TokenEndpoint(
            place.issuer,
            grant.client,
            fetch,
            server=place.server,
            secret=given.client_secret,
            key=given.key,
            proofs=proofs,
        )

    def _proofs(self, place: Place) -> ProofKey | None:
        """A new key to bind tokens to, if the server wants that."""
        if not place.dpop:
            return None
        accepted = place.issuer.dpop_signing_alg_values_supported
        if accepted is not None and PROOF_ALGORITHM not in accepted:
            raise LoginFailed(
                f"{place.issuer.issuer} binds no tokens to keys of {PROOF_ALGORITHM}, but {place.server} wants that",
                server=place.server,
            )
        return ProofKey()

    # --- to whom credentials belong ----------------------------------------------------------

    def _preferred(self, kept: Kept) -> list[str]:
        """Which of several authorization servers to take: the one that we belong to, or were at before."""
        bound = kept.given.get(self._identity.client_id or "")
        return [issuer for issuer in (self._issuer, bound, kept.issuer) if issuer]

    def _check_binding(self, kept: Kept, place: Place) -> None:
        """What the caller has registered at one authorization server is shown to no other."""
        bound = self._issuer or kept.given.get(self._identity.client_id or "")
        if bound and bound != place.issuer.issuer:
            who = f"The client {self._identity.client_id}" if self._identity.client_id else "This login"
            raise LoginFailed(
                f"{who} belongs to {bound}, but {place.server} now names {place.issuer.issuer}: refused",
                server=place.server,
            )

    # --- what is kept ------------------------------------------------------------------------

    def _holding(self, server: str) -> "_Held":
        return self._held.setdefault(server, _Held(server))

    async def _load(self, held: "_Held") -> None:
        if not held.loaded:
            held.take(self._own(from_plain(await self._store.load(held.server))), "kept")
            held.loaded = True

    async def _others_have(self, held: "_Held") -> bool:
        """Whether another process has got new tokens in the meantime; if so, they are ours too."""
        kept = self._own(from_plain(await self._store.load(held.server)))
        if kept.tokens is None or held.tokens == kept.tokens or kept.tokens in held.seen:
            return False
        held.take(kept, "kept")
        return True

    async def _keep(self, held: "_Held", kept: Kept, how: str) -> None:
        held.take(kept, how)
        await self._store.save(held.server, to_plain(kept))

    def _own(self, kept: Kept) -> Kept:
        """Without the tokens of another client than the caller means."""
        grant = kept.grants.get(kept.issuer)
        return kept if grant is None or self._identity.owns(grant.client) else structs.replace(kept, issuer="")

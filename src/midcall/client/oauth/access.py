"""Access to MCP servers by tokens of an authorization server.

`Access` keeps the tokens of each server, shows them, renews them in time, and gets new ones when a server
asks: one login at a time, whatever the number of requests that wait for it. How a new grant is had is the
business of those who inherit from it: `OAuth` asks a person, those in `machine` need none.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from msgspec import structs

from midcall.client.oauth.auth import insufficient
from midcall.client.oauth.challenge import Challenge, read_challenge
from midcall.client.oauth.discovery import Place, find_issuer, find_legacy, find_place
from midcall.client.oauth.endpoint import TokenEndpoint
from midcall.client.oauth.exchange import Fetch, check_url, origin_of, server_of, words
from midcall.client.oauth.held import Held, How
from midcall.client.oauth.reach import Guarded
from midcall.client.oauth.registration import Identity, given_client
from midcall.client.oauth.signing import PROOF_ALGORITHM, ProofKey
from midcall.client.oauth.store import MemoryStore, TokenStore
from midcall.client.oauth.tokens import Grant, Kept, Registered, Tokens, from_plain, to_plain
from midcall.errors import LoginFailed

log = logging.getLogger("midcall.oauth")

OFFLINE = "offline_access"
"""The scope for refresh tokens: a matter of the authorization server, not of the MCP server."""

OVER = ("invalid_grant", "invalid_client", "unauthorized_client")
"""What a token endpoint says of a refresh token that will never work again."""


class Access(ABC):
    """Access to any number of MCP servers."""

    asks_nobody = False
    """Whether new tokens are had without a person."""

    def __init__(
        self,
        identity: Identity,
        *,
        scopes: Sequence[str] | None,
        issuer: str | None,
        allow_private: bool,
        store: TokenStore | None = None,
    ) -> None:
        """`allow_private` follows a server's metadata into networks that the server is not in."""
        if isinstance(scopes, str):
            raise TypeError("scopes is a list of texts, not a text")
        self._identity = identity
        self._scopes = tuple(scopes or ())
        self._issuer = issuer
        self._allow_private = allow_private
        self._trusted = {origin_of(issuer)} if issuer else set()
        """The origins that the caller has named."""
        self._store = store or MemoryStore()
        self._held: dict[str, Held] = {}
        self._urls: dict[str, Held] = {}
        """The same by the URLs of requests, as they come."""

    @abstractmethod
    async def _obtain(self, place: Place, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        """Get a grant here; `before` is the last that this place has given. Raises `LoginFailed`."""

    # --- what the wire calls -----------------------------------------------------------------

    async def headers(self, url: str, fetch: Fetch, *, verb: str = "POST") -> dict[str, str]:
        """The headers for a request: the token, which is renewed first if it is about to end."""
        held = self._holding(url)
        if not held.loaded or (held.tokens and held.tokens.ends_soon()):
            async with held.lock:
                await self._load(held)
                if held.tokens and held.tokens.ends_soon():
                    await self._renew(held, self._guarded(held, fetch))
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
                await self._get_access(held, url, challenge, self._guarded(held, fetch), lacking=lacking)
            except LoginFailed as error:
                held.finished(asked, error)
                raise
            held.finished(asked, None)
        return True

    async def forget(self, url: str) -> None:
        """Forget all that is kept for a server: its tokens, and who we are there."""
        held = self._holding(url)
        async with held.lock, self._store.alone(held.server):
            held.take(Kept(), "kept")
            await self._store.save(held.server, None)

    def _guarded(self, held: Held, fetch: Fetch) -> Fetch:
        return fetch if self._allow_private else Guarded(fetch, held.server, self._trusted)

    # --- getting it --------------------------------------------------------------------------

    async def _get_access(
        self, held: Held, url: str, challenge: Challenge, fetch: Fetch, *, lacking: bool
    ) -> None:
        check_url(held.server, "A server that asks for a login", server=held.server)
        if await self._others_have(held):
            return
        place = await find_place(url, challenge, fetch, prefer=self._preferred(held.kept))
        issuer = place.issuer.issuer
        held.issuers[issuer] = place.issuer
        self._check_binding(held.kept, place)
        grant = held.kept.grant(issuer)
        if not self._identity.owns(grant.client):
            grant = Grant()
        tokens = grant.tokens
        if tokens is not None and tokens is held.tokens:
            self._check_refused(held, tokens, challenge, issuer, lacking=lacking)
            covered = set(challenge.scopes) <= set(tokens.requested)
            tried = held.how == "renewed" and held.is_fresh
            if covered and not lacking and not tried:
                if await self._refresh(held, place, grant, fetch):
                    return
                grant = held.kept.grant(issuer)  # what is over is no longer in it
        held.count_login()
        log.info("Getting access to %s at %s", held.server, issuer)
        got = await self._obtain(place, grant, self._wanted(place, challenge, tokens), fetch)
        kept = held.kept.having(issuer, got)
        if self._identity.client_id is not None:
            kept = kept.bound(self._identity.client_id, issuer)
        await self._keep(held, kept, "granted")

    def _wanted(self, place: Place, challenge: Challenge, before: Tokens | None) -> list[str]:
        """The scopes to ask for: what this request needs, and what was asked for before."""
        now = (*self._scopes, *challenge.scopes) or place.scopes
        scopes = list(dict.fromkeys((*(before.requested if before else ()), *now)))
        return [scope for scope in scopes if scope != OFFLINE or scope in self._scopes]

    def _check_refused(
        self, held: Held, tokens: Tokens, challenge: Challenge, issuer: str, *, lacking: bool
    ) -> None:
        """Raises `LoginFailed` if another token would be refused as this one is."""
        server, needed = held.server, set(challenge.scopes)
        if lacking:
            if not needed:
                raise insufficient(server, (), "it does not say which")
            if needed <= set(tokens.granted):
                raise insufficient(
                    server, challenge.scopes, f"{issuer} has granted it, and it is refused still"
                )
            if held.how == "granted" and needed <= set(tokens.requested):
                raise insufficient(server, challenge.scopes, f"{issuer} has not granted it")
        elif held.how == "granted" and held.is_fresh and needed <= set(tokens.requested):
            said = f": {words(challenge.description)}" if challenge.description else ""
            raise LoginFailed(
                f"{server} refuses the token that {issuer} has just issued{said}", server=server
            )

    # --- renewing ----------------------------------------------------------------------------

    async def _renew(self, held: Held, fetch: Fetch) -> None:
        """Renew the tokens that are about to end. Without a way to do so they are dropped when they have."""
        tokens = held.tokens
        if tokens is None or await self._others_have(held):
            return
        issuer = held.kept.issuer
        grant = held.kept.grant(issuer)
        over = tokens.expires_at is not None and time.time() >= tokens.expires_at
        try:
            if tokens.refresh_token is not None:
                await self._refresh(held, await self._same_place(held, grant, fetch), grant, fetch)
            elif self.asks_nobody:
                got = await self._obtain(
                    await self._same_place(held, grant, fetch), grant, tokens.requested, fetch
                )
                await self._keep(held, held.kept.having(issuer, got), "renewed")
            elif over:
                await self._keep(held, held.kept.having(issuer, structs.replace(grant, tokens=None)), "kept")
        except LoginFailed as error:
            if over:
                raise
            log.warning("The token for %s cannot be renewed yet: %s", held.server, error)

    async def _same_place(self, held: Held, grant: Grant, fetch: Fetch) -> Place:
        """Where the tokens came from; after a restart, that is found out anew."""
        issuer, server = held.kept.issuer, held.server
        found = held.issuers.get(issuer)
        if found is None:
            found = (
                await find_legacy(server, fetch) if grant.legacy else await find_issuer(issuer, fetch, server)
            )
            held.issuers[issuer] = found
        return Place(server, found, grant.resource, dpop=held.proofs is not None)

    async def _refresh(self, held: Held, place: Place, grant: Grant, fetch: Fetch) -> bool:
        """Exchange the refresh token for new tokens; false if there is none, or it is over."""
        tokens, client, issuer = grant.tokens, grant.client, place.issuer.issuer
        if tokens is None or tokens.refresh_token is None or client is None:
            return False
        async with self._store.alone(held.server):
            if await self._others_have(held):
                return True
            try:
                fresh = await self._endpoint(place, grant, fetch, held.proofs).tokens(
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
                await self._keep(held, held.kept.having(issuer, ended), "kept")
                return False
            renewed = held.kept.having(issuer, structs.replace(grant, tokens=fresh))
            await self._keep(held, renewed, "renewed")
        return True

    async def _ask_for(
        self,
        place: Place,
        grant_type: str,
        scopes: Sequence[str],
        fetch: Fetch,
        *,
        client: Registered | None = None,
        **parameters: str | None,
    ) -> Grant:
        """A grant from the token endpoint; without a client, for the one that the caller has registered."""
        client = client or given_client(self._identity, place)
        grant = Grant(client, None, place.resource, place.issuer.legacy)
        tokens = await self._endpoint(place, grant, fetch, self._proofs(place)).tokens(
            grant_type, {**parameters, "resource": place.resource}, requested=scopes
        )
        return structs.replace(grant, tokens=tokens)

    def _endpoint(self, place: Place, grant: Grant, fetch: Fetch, proofs: ProofKey | None) -> TokenEndpoint:
        """The token endpoint, for the client of this grant."""
        if grant.client is None:
            raise LoginFailed(f"No client is known to {place.issuer.issuer}", server=place.server)
        given = Identity() if grant.client.origin == "registered" else self._identity
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
                f"{place.server} wants tokens that are bound to a key, but {place.issuer.issuer} "
                f"knows none of {PROOF_ALGORITHM}",
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
                f"{who} belongs to {bound}, but {place.server} names {place.issuer.issuer}: refused",
                server=place.server,
            )

    # --- what is kept ------------------------------------------------------------------------

    def _holding(self, url: str) -> Held:
        held = self._urls.get(url)
        if held is None:
            server = server_of(url)
            held = self._urls[url] = self._held.setdefault(server, Held(server))
        return held

    async def _load(self, held: Held) -> None:
        if not held.loaded:
            held.take(self._own(from_plain(await self._store.load(held.server))), "kept")

    async def _others_have(self, held: Held) -> bool:
        """Whether another process has got other tokens in the meantime; if so, they are ours too."""
        kept = self._own(from_plain(await self._store.load(held.server)))
        if kept.tokens is None or kept.tokens == held.tokens:
            return False
        held.take(kept, "kept")
        return True

    async def _keep(self, held: Held, kept: Kept, how: How) -> None:
        held.take(kept, how)
        try:
            await self._store.save(held.server, to_plain(kept))
        except LoginFailed as error:  # good until the process ends, and there is nothing better
            log.warning("The login to %s is not kept: %s", held.server, error)

    def _own(self, kept: Kept) -> Kept:
        """Without tokens that were issued to another client than the caller means."""
        grant = kept.grants.get(kept.issuer)
        return (
            kept if grant is None or self._identity.owns(grant.client) else structs.replace(kept, issuer="")
        )

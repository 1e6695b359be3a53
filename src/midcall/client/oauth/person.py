"""Access in the name of a person, who logs in once: authorization code with PKCE, and refresh tokens."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from midcall.client.oauth.access import OFFLINE, Access
from midcall.client.oauth.discovery import Place
from midcall.client.oauth.exchange import Fetch
from midcall.client.oauth.login import Login
from midcall.client.oauth.redirect import Given, Loopback, Redirect, Way
from midcall.client.oauth.registration import Identity, choose_client
from midcall.client.oauth.signing import ClientKey
from midcall.client.oauth.store import TokenStore, default_store
from midcall.client.oauth.tokens import Grant


class OAuth(Access):
    """Logs a person in, when a server asks for it: `connect(url, auth=OAuth())`.

    Nothing else needs to be given: the server says where to log in, and most let clients register themselves.
    A client that is registered already gives its `client_id`, and its secret or key; `issuer` names the only
    authorization server that these are shown to (without it, that is the first one that the server names).
    `client_metadata_url` is where the client's metadata document is, for servers that read such. `scopes` are
    asked for in addition to what the server wants. A server may not lead into a network that it is not in,
    unless to `issuer`, or with `allow_private`.

    The browser comes back to 127.0.0.1, at any free port or at the `redirect_uri` that is registered. With
    `redirect`, a function from the address to visit to the address that the browser was sent to, the caller
    sees to that. `store` is where the login is kept: the keyring, or a file.
    """

    def __init__(
        self,
        *,
        scopes: Sequence[str] | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        private_key: str | bytes | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "midcall",
        issuer: str | None = None,
        redirect: Redirect | Loopback | None = None,
        redirect_uri: str | None = None,
        allow_private: bool = False,
        store: TokenStore | None = None,
    ) -> None:
        if client_secret is not None and client_id is None:
            raise ValueError("A client_secret belongs to a client_id")
        if client_metadata_url is not None and not _can_be_id(client_metadata_url):
            raise ValueError(f"client_metadata_url must be https with a path, not {client_metadata_url}")
        key = None if private_key is None else ClientKey(private_key)
        identity = Identity(client_name, client_id, client_secret, key, client_metadata_url)
        super().__init__(
            identity,
            scopes=scopes,
            issuer=issuer,
            allow_private=allow_private,
            store=store or default_store(),
        )
        self._way: Way
        if redirect is None or isinstance(redirect, Loopback):
            self._way = redirect or Loopback(redirect_uri)
        else:
            self._way = Given(redirect, redirect_uri or "http://127.0.0.1/callback")

    async def _obtain(self, place: Place, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        """Have the person log in."""
        if scopes and OFFLINE not in scopes and OFFLINE in (place.issuer.scopes_supported or ()):
            scopes = (*scopes, OFFLINE)
        known = before.client.redirect_uri if before.client else None
        async with self._way.open(known, place.server) as visit:
            client = await choose_client(self._identity, place, before.client, visit.uri, scopes, fetch)
            login = Login(place, client, visit.uri, scopes)
            code = login.read(await visit.go(login.url, login.state))
            return await self._ask_for(
                place,
                "authorization_code",
                scopes,
                fetch,
                client=client,
                code=code,
                redirect_uri=visit.uri,
                code_verifier=login.verifier,
            )


def _can_be_id(url: str) -> bool:
    parts = urlsplit(url)
    return (
        parts.scheme == "https"
        and bool(parts.hostname)
        and parts.path not in ("", "/")
        and not parts.fragment
    )

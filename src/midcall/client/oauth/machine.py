"""Access without a person: a program in its own name, or in that of somebody who is logged in elsewhere.

`ClientCredentials` and `PrivateKeyJwt` are the extension `io.modelcontextprotocol/oauth-client-credentials`,
`EnterpriseManaged` is `io.modelcontextprotocol/enterprise-managed-authorization`, and `WorkloadIdentity` is
for those whose platform says who they are (RFC 7523). Nothing is kept: new tokens cost nobody anything. All
take `AccessOptions` too.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, Unpack

from midcall.client.oauth.access import Access, AccessOptions
from midcall.client.oauth.discovery import TokenSource, find_issuer
from midcall.client.oauth.fetch import Fetch, origin_of
from midcall.client.oauth.registration import ClientKey, Identity, given_client
from midcall.client.oauth.store import Grant
from midcall.client.oauth.tokens import TokenEndpoint
from midcall.errors import LoginFailed

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105  the name of a grant
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105  the name of a kind
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"

Assertion: TypeAlias = str | Callable[[str], Awaitable[str]]
"""A signed statement, or a function that gets one for the issuer that is named to it."""


class ClientCredentials(Access):
    """A program with an id and a secret."""

    def __init__(self, client_id: str, client_secret: str, **options: Unpack[AccessOptions]) -> None:
        super().__init__(Identity(client_id=client_id, client_secret=client_secret), **options)

    async def _obtain(self, source: TokenSource, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        return await self._ask_for(source, "client_credentials", scopes, fetch)


class PrivateKeyJwt(Access):
    """A program with an id and a private key, in PEM."""

    def __init__(
        self,
        client_id: str,
        private_key: str | bytes,
        *,
        algorithm: str | None = None,
        key_id: str | None = None,
        **options: Unpack[AccessOptions],
    ) -> None:
        key = ClientKey(private_key, algorithm=algorithm, key_id=key_id)
        super().__init__(Identity(client_id=client_id, key=key), **options)

    async def _obtain(self, source: TokenSource, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        return await self._ask_for(source, "client_credentials", scopes, fetch)


class WorkloadIdentity(Access):
    """A program whose platform vouches for it with a signed statement."""

    def __init__(self, client_id: str, assertion: Assertion, **options: Unpack[AccessOptions]) -> None:
        super().__init__(Identity(client_id=client_id), **options)
        self._assertion = assertion

    async def _obtain(self, source: TokenSource, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        assertion = await _made(self._assertion, source.issuer.issuer)
        return await self._ask_for(source, JWT_BEARER, scopes, fetch, assertion=assertion)


class EnterpriseManaged(Access):
    """In the name of a person logged in at the company's identity provider, which says what he may use.

    `id_token` is what that login has brought, or a function that gets one from the provider named to it. The
    client is known to both: to the provider at `idp_issuer` as `idp_client_id`, and to the authorization
    server of the MCP server as `client_id`.
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        id_token: Assertion,
        idp_issuer: str,
        idp_client_id: str,
        idp_client_secret: str | None = None,
        **options: Unpack[AccessOptions],
    ) -> None:
        super().__init__(Identity(client_id=client_id, client_secret=client_secret), **options)
        self._id_token = id_token
        self._idp_issuer = idp_issuer
        self._trusted.add(origin_of(idp_issuer))
        self._idp = Identity(client_id=idp_client_id, client_secret=idp_client_secret)

    async def _obtain(self, source: TokenSource, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        provider = await find_issuer(self._idp_issuer, fetch)
        client = given_client(self._idp, provider)
        endpoint = TokenEndpoint(provider, client, fetch, secret=self._idp.client_secret)
        issued = await endpoint.ask(
            TOKEN_EXCHANGE,
            {
                "requested_token_type": ID_JAG,
                "subject_token": await _made(self._id_token, self._idp_issuer),
                "subject_token_type": ID_TOKEN,
                "audience": source.issuer.issuer,
                "resource": source.resource or source.server,
                "scope": " ".join(scopes),
            },
        )
        if issued.get("issued_token_type") != ID_JAG:
            raise LoginFailed(f"{self._idp_issuer} issued something else than was asked for")
        return await self._ask_for(source, JWT_BEARER, scopes, fetch, assertion=issued["access_token"])


async def _made(assertion: Assertion, issuer: str) -> str:
    return assertion if isinstance(assertion, str) else await assertion(issuer)

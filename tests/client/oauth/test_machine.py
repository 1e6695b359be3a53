"""Access without a person: programs, companies, platforms; tokens that are bound to a key; and plain tokens."""

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from driving import drive
from midcall.client.oauth import (
    ClientCredentials,
    EnterpriseManaged,
    MemoryStore,
    OAuth,
    PrivateKeyJwt,
    Token,
    WorkloadIdentity,
)
from midcall.client.oauth.registration import ClientKey
from midcall.errors import LoginFailed
from midcall.http.client import HttpClient
from midcall.http.message import HttpUrl
from oauth_world import JWT_BEARER, TOKEN_EXCHANGE, Issuer, World, in_world, request, serving, world


def pem(key: Any) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


# --- a program with a secret ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_a_program_gets_a_token_in_its_own_name(method: str) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.metadata["token_endpoint_auth_methods_supported"] = [method]
            it.issuer.know("robot:1", client_secret="s+/=% ä", token_endpoint_auth_method=method)
            auth = ClientCredentials("robot:1", "s+/=% ä")
            assert await asyncio.gather(*(it.status(auth) for _ in range(10))) == [200] * 10
            [grant] = it.issuer.grants("client_credentials")
            assert (grant["scope"], grant["resource"]) == ("notes", it.server.url)
            assert it.issuer.logins() == it.issuer.registrations() == []

    drive(main())


@in_world
async def test_a_programs_token_is_renewed_without_a_refusal(it: World) -> None:
    it.issuer.know("robot", client_secret="s")
    it.issuer.lifetime = 1
    auth = ClientCredentials("robot", "s", scopes=["notes:write"])
    assert await it.status(auth) == 200
    await asyncio.sleep(1)
    assert await it.status(auth) == 200
    assert [grant["scope"] for grant in it.issuer.grants("client_credentials")] == ["notes:write notes"] * 2
    assert it.server.seen.count(None) == 1


@in_world
async def test_a_program_gets_more_scopes_when_a_call_needs_them(it: World) -> None:
    it.issuer.know("robot", client_secret="s")
    auth = ClientCredentials("robot", "s")
    assert await it.status(auth, "tools/call", name="notes.erase") == 200
    assert [grant["scope"] for grant in it.issuer.grants("client_credentials")] == [
        "notes",
        "notes notes:write",
    ]


@in_world
async def test_a_wrong_secret_is_tried_once(it: World) -> None:
    it.issuer.know("robot", client_secret="s")
    failure = await it.fails(ClientCredentials("robot", "wrong"))
    assert str(failure) == f"{it.issuer.issuer}/token refused: invalid_client"
    assert len(it.issuer.grants("client_credentials")) == 1


@in_world
async def test_a_secret_is_shown_to_no_second_authorization_server(it: World) -> None:
    it.issuer.know("robot", client_secret="s")
    auth = ClientCredentials("robot", "s")
    await it.request(auth)
    async with serving(Issuer) as second:
        it.server.trust(second, ["notes"])
        assert "The client robot belongs to" in str(await it.fails(auth))
        bound = ClientCredentials("robot", "s", issuer=it.issuer.issuer)
        assert "The client robot belongs to" in str(await it.fails(bound))
        assert second.grants("client_credentials") == []


# --- a program with a key -------------------------------------------------------------------


@in_world
async def test_a_program_proves_with_its_key_who_it_is(it: World) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    it.issuer.metadata["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
    it.issuer.metadata["token_endpoint_auth_signing_alg_values_supported"] = ["ES256"]
    it.issuer.know("robot", public_key=key.public_key(), token_endpoint_auth_method="private_key_jwt")
    assert await it.status(PrivateKeyJwt("robot", pem(key), key_id="k1")) == 200
    [grant] = it.issuer.grants("client_credentials")
    assert "client_id" not in grant
    said = jwt.decode(grant["client_assertion"], key.public_key(), ["ES256"], audience=it.issuer.issuer)
    assert (said["iss"], said["sub"]) == ("robot", "robot")
    assert said["exp"] - said["iat"] <= 300
    assert jwt.get_unverified_header(grant["client_assertion"])["kid"] == "k1"
    stranger = ec.generate_private_key(ec.SECP256R1())
    assert "invalid_client" in str(await it.fails(PrivateKeyJwt("robot", pem(stranger))))


@in_world
async def test_a_key_whose_signatures_the_server_does_not_know_is_not_tried(it: World) -> None:
    it.issuer.metadata["token_endpoint_auth_signing_alg_values_supported"] = ["RS256"]
    failure = await it.fails(PrivateKeyJwt("robot", pem(ec.generate_private_key(ec.SECP256R1()))))
    assert "accepts no signature of the key that was given, only ['RS256']" in str(failure)
    assert it.issuer.grants("client_credentials") == []


def _p256() -> Any:
    return ec.generate_private_key(ec.SECP256R1())


def _p384() -> Any:
    return ec.generate_private_key(ec.SECP384R1())


def _ed25519() -> Any:
    return ed25519.Ed25519PrivateKey.generate()


def _rsa() -> Any:
    return rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    ("key", "algorithm", "accepted", "used"),
    [
        (_p256, None, None, "ES256"),
        (_p384, None, ["ES384"], "ES384"),
        (_ed25519, None, None, "EdDSA"),
        (_rsa, None, None, "RS256"),
        (_rsa, None, ["PS256"], "PS256"),
        (_rsa, "PS256", None, "PS256"),
        (_rsa, "PS256", ["RS256"], None),
    ],
)
def test_a_key_signs_in_a_way_that_the_server_accepts(
    key: Callable[[], Any], algorithm: str | None, accepted: list[str] | None, used: str | None
) -> None:
    made = ClientKey(pem(key()), algorithm=algorithm).assertion("robot", "https://auth.example.com", accepted)
    assert (made and jwt.get_unverified_header(made)["alg"]) == used


def test_what_is_no_key_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="not a private key in PEM"):
        PrivateKeyJwt("robot", "secret")
    with pytest.raises(ValueError, match="cannot sign with RS256, only with ES256"):
        PrivateKeyJwt("robot", pem(ec.generate_private_key(ec.SECP256R1())), algorithm="RS256")
    with pytest.raises(ValueError, match="curve secp256k1"):
        PrivateKeyJwt("robot", pem(ec.generate_private_key(ec.SECP256K1())))


@in_world
async def test_a_person_may_log_in_with_a_client_that_has_a_key(it: World) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    document = "https://agent.example.com/client.json"
    it.issuer.metadata["client_id_metadata_document_supported"] = True
    it.issuer.metadata["token_endpoint_auth_methods_supported"] = ["none", "private_key_jwt"]
    it.issuer.know(document, public_key=key.public_key(), token_endpoint_auth_method="private_key_jwt")
    assert await it.status(it.oauth(client_metadata_url=document, private_key=pem(key))) == 200
    await it.age(3590)
    assert await it.status(it.oauth(client_metadata_url=document, private_key=pem(key))) == 200
    assert len(it.issuer.grants("refresh_token")) == 1


# --- those who are vouched for --------------------------------------------------------------


def statement(key: Any, **claims: Any) -> str:
    return jwt.encode({"exp": time.time() + 60, **claims}, key, "ES256")


@in_world
async def test_a_program_is_vouched_for_by_its_platform(it: World) -> None:
    platform = ec.generate_private_key(ec.SECP256R1())
    it.issuer.identities["https://platform.example"] = platform.public_key()
    it.issuer.know("job", token_endpoint_auth_method="none")
    asked: list[str] = []

    async def fetch(issuer: str) -> str:
        asked.append(issuer)
        return statement(
            platform, iss="https://platform.example", sub="job-7", aud=issuer, resource=it.server.url
        )

    assert await it.status(WorkloadIdentity("job", fetch)) == 200
    assert asked == [it.issuer.issuer]
    [grant] = it.issuer.grants(JWT_BEARER)
    assert (grant["scope"], grant["client_id"]) == ("notes", "job")
    stale = statement(platform, iss="https://platform.example", sub="job-7", aud="https://other.example")
    failure = await it.fails(WorkloadIdentity("job", stale))
    assert failure.reason == "invalid_grant"
    assert len(it.issuer.grants(JWT_BEARER)) == 2, "it is not tried again"


@in_world
async def test_a_company_says_who_may_use_a_server(it: World) -> None:
    async with serving(Issuer) as idp:
        login = ec.generate_private_key(ec.SECP256R1())
        idp.metadata_at = ["/.well-known/openid-configuration"]
        idp.identities["https://login.example"] = login.public_key()
        idp.know("agent-at-idp", client_secret="i", token_endpoint_auth_method="client_secret_basic")
        it.issuer.identities[idp.issuer] = idp.public_key
        it.issuer.know("agent", client_secret="a", token_endpoint_auth_method="client_secret_basic")
        auth = EnterpriseManaged(
            "agent",
            "a",
            id_token=statement(login, iss="https://login.example", sub="ada", aud="agent-at-idp"),
            idp_issuer=idp.issuer,
            idp_client_id="agent-at-idp",
            idp_client_secret="i",
        )
        assert await it.status(auth) == 200
        [exchange], [grant] = idp.grants(TOKEN_EXCHANGE), it.issuer.grants(JWT_BEARER)
        assert exchange["audience"] == it.issuer.issuer
        assert exchange["resource"] == it.server.url
        assert exchange["subject_token_type"] == "urn:ietf:params:oauth:token-type:id_token"
        assert jwt.get_unverified_header(grant["assertion"])["typ"] == "oauth-id-jag+jwt"
        assert it.issuer.logins() == idp.logins() == []
        idp.issued = lambda issued: {**issued, "issued_token_type": "urn:ietf:params:oauth:token-type:jwt"}
        again = EnterpriseManaged(
            "agent",
            "a",
            id_token=statement(login, iss="https://login.example", sub="ada", aud="agent-at-idp"),
            idp_issuer=idp.issuer,
            idp_client_id="agent-at-idp",
            idp_client_secret="i",
        )
        assert "issued something else than was asked for" in str(await it.fails(again))
        refused = EnterpriseManaged(
            "agent", "a", id_token="x.y.z", idp_issuer=f"{idp.issuer}/other", idp_client_id="agent-at-idp"
        )
        assert "has no metadata" in str(await it.fails(refused))


# --- tokens that are bound to a key ---------------------------------------------------------


class BoundIssuer(Issuer):
    """Binds tokens to keys, and wants its own nonce in the proofs."""

    nonce = "nonce-of-the-issuer"

    async def _token(self, request: Request) -> Response:
        proof = proven(request, None)
        if proof is None:
            return JSONResponse({"error": "invalid_dpop_proof"}, 400)
        if proof.get("nonce") != self.nonce:
            return JSONResponse({"error": "use_dpop_nonce"}, 400, headers={"DPoP-Nonce": self.nonce})
        answer = await super()._token(request)
        answer.body = bytes(answer.body).replace(b'"Bearer"', b'"DPoP"')
        answer.headers["content-length"] = str(len(answer.body))
        return answer


class BoundServer:
    """An MCP server that takes a token only from the one who has its key."""

    def __init__(self, url: str, issuer: Issuer) -> None:
        self.url = f"{url}/mcp"
        self.nonce: str | None = "nonce-1"
        self.proofs: list[dict[str, Any]] = []
        self.metadata = {"resource": self.url, "authorization_servers": [issuer.issuer]}

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        request = Request(scope, receive)
        if "well-known" in scope["path"]:
            answer: Response = JSONResponse(self.metadata)
        else:
            answer = self.judge(request)
        await answer(scope, receive, send)

    def judge(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not token:
            return Response(status_code=401, headers={"www-authenticate": 'DPoP algs="ES256"'})
        proof = proven(request, token)
        assert scheme == "DPoP"
        assert proof is not None
        assert proof["jti"] not in [before["jti"] for before in self.proofs]
        self.proofs.append(proof)
        if proof.get("nonce") != self.nonce:
            told = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": self.nonce or ""}
            return Response(status_code=401, headers=told)
        return JSONResponse({"result": {}})


def proven(request: Request, token: str | None) -> dict[str, Any] | None:
    """The claims of a proof, if it is one for this request and this token."""
    header = jwt.get_unverified_header(request.headers["dpop"])
    key = jwt.PyJWK(header["jwk"], "ES256")
    assert "d" not in header["jwk"]
    claims = jwt.decode(request.headers["dpop"], key, ["ES256"])
    right = (header["typ"], claims["htm"], claims["htu"]) == (
        "dpop+jwt",
        "POST",
        str(request.url).partition("?")[0],
    )
    if token is not None:
        digest = hashlib.sha256(token.encode()).digest()
        right = right and claims["ath"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return claims if right else None


def test_a_token_is_bound_to_a_key_if_the_server_wants_that() -> None:
    async def main() -> None:
        async with (
            serving(BoundIssuer) as issuer,
            serving(lambda url: BoundServer(url, issuer)) as server,
            HttpClient() as http,
        ):
            issuer.metadata["dpop_signing_alg_values_supported"] = ["ES256"]
            issuer.know("robot", client_secret="s")
            auth = ClientCredentials("robot", "s")
            for expected in (2, 3, 4):  # the first is told the nonce
                assert (await request(auth, http, f"{server.url}?a=b"))[0] == 200
                assert len(server.proofs) == expected
            server.nonce = "nonce-2"
            told = await asyncio.gather(*(request(auth, http, server.url) for _ in range(5)))
            assert [status for status, _ in told] == [200] * 5
            assert len(issuer.grants("client_credentials")) == 1
            server.nonce = None  # wants one, and tells none
            assert (await request(auth, http, server.url))[0] == 401

    drive(main())


def test_the_key_is_kept_with_the_tokens() -> None:
    async def main() -> None:
        async with (
            serving(BoundIssuer) as issuer,
            serving(lambda url: BoundServer(url, issuer)) as server,
            HttpClient() as http,
        ):
            issuer.know("ours")
            store = MemoryStore()
            options: dict[str, Any] = {"client_id": "ours", "store": store}

            async def visit(url: str) -> str:
                response = await http.request("GET", HttpUrl(url))
                await response.read()
                return response.headers.get("location") or ""

            assert (await request(OAuth(redirect=visit, **options), http, server.url))[0] == 200
            assert (await request(OAuth(redirect=visit, **options), http, server.url))[0] == 200
            assert len(issuer.logins()) == 1

    drive(main())


def test_a_server_that_wants_a_key_that_the_issuer_does_not_know_is_told_so() -> None:
    async def main() -> None:
        async with (
            serving(BoundIssuer) as issuer,
            serving(lambda url: BoundServer(url, issuer)) as server,
            HttpClient() as http,
        ):
            issuer.metadata["dpop_signing_alg_values_supported"] = ["RS256"]
            with pytest.raises(LoginFailed, match="knows none of ES256"):
                await request(ClientCredentials("robot", "s"), http, server.url)

    drive(main())


# --- plain tokens ---------------------------------------------------------------------------


@in_world
async def test_a_token_that_was_given_out_is_shown_from_the_first_request_on(it: World) -> None:
    token = it.issuer.make_token("ada", it.server.url, "notes", 60)
    auth = Token(token)
    assert await it.status(auth) == 200
    assert it.server.seen == [f"Bearer {token}"]
    assert token not in repr(auth)


@in_world
async def test_a_token_that_is_refused_or_does_not_suffice_is_a_clear_error(it: World) -> None:
    failure = await it.fails(Token(it.issuer.make_token("ada", "https://other.example", "notes", 60)))
    assert (
        str(failure) == f"{it.server.url} refuses the token that was given: The token is for another server"
    )
    failure = await it.fails(
        Token(it.issuer.make_token("ada", it.server.url, "notes", 60)), name="notes.erase"
    )
    assert (failure.reason, "notes:write" in str(failure)) == ("insufficient_scope", True)
    assert not await Token("x").challenged(it.server.url, 403, None, it.http)


@pytest.mark.parametrize("text", ["", "a b", "a\r\nb", "tökén"])
def test_what_cannot_be_a_token_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="A token has no spaces"):
        Token(text)

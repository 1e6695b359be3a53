"""What a login needs: a real authorization server, a real midcall server behind it, and a person with a browser.

The authorization server (`Issuer`) implements what clients meet: metadata, registration, the page to log in at (which
sends the browser back at once), and the token endpoint with PKCE, rotation of refresh tokens and client
authentication. A test changes what it says, or how it behaves, by its attributes.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from driving import LIMIT, drive
from midcall import Hub, method
from midcall.client.oauth import Auth, MemoryStore, OAuth
from midcall.errors import LoginFailed
from midcall.http.client import HttpClient
from midcall.http.message import HttpUrl
from midcall.transports.auth import OAuthResourceServer

META = "io.modelcontextprotocol/"
REVISION = "2026-07-28"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield  # signals are the test runner's


@contextlib.asynccontextmanager
async def serving(make: Callable[[str], Any]) -> AsyncIterator[Any]:
    """Serve, on a free port of this machine, the application that is made for its URL; gives what was made."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        made = make(f"http://127.0.0.1:{listening.getsockname()[1]}")
        config = uvicorn.Config(
            getattr(made, "app", made), log_config=None, ws="none", access_log=False, interface="asgi3"
        )
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with asyncio.timeout(LIMIT):
                while not server.started:
                    await asyncio.sleep(0.005)
            yield made
        finally:
            server.should_exit = True
            await running


class Issuer:
    """An authorization server."""

    def __init__(self, url: str, path: str = "") -> None:
        self.origin = url
        self.issuer = url + path
        self.metadata_at = [f"/.well-known/oauth-authorization-server{path}"]
        self.metadata: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{url}/authorize",
            "token_endpoint": f"{url}/token",
            "registration_endpoint": f"{url}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "authorization_response_iss_parameter_supported": True,
        }
        self.clients: dict[str, dict[str, Any]] = {}
        self.lifetime: int | None = 3600
        self.refreshing = True
        self.token_fault: tuple[int, dict[str, Any]] | None = None
        self.registration_fault: tuple[int, dict[str, Any]] | None = None
        self.answer: Callable[[dict[str, str]], dict[str, str]] = lambda said: said
        """Changes what the browser is sent back with."""
        self.secrets_matter = True
        """If not, a client that has a secret may keep it for itself."""
        self.registered: Callable[[dict[str, Any]], dict[str, Any]] = lambda client: client
        """Changes what a client is registered as."""
        self.issued: Callable[[dict[str, Any]], dict[str, Any]] = lambda issued: issued
        """Changes what the token endpoint issues."""
        self.grant_scope: Callable[[str], str] = lambda scope: scope
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """All requests: verb, path, and what they said."""
        self.identities: dict[str, Any] = {}
        """Public keys of those whose assertions are believed, by issuer."""
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh: dict[str, dict[str, Any]] = {}
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.app = Starlette(
            routes=[
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/register", self._register, methods=["POST"]),
                Route("/jwks.json", self._jwks),
                Route("/{path:path}", self._other),
            ]
        )

    # --- what tests look at ------------------------------------------------------------------

    def logins(self) -> list[dict[str, str]]:
        """What each login asked for."""
        return [said for _, path, said in self.seen if path == "/authorize"]

    def grants(self, grant_type: str) -> list[dict[str, str]]:
        """The requests to the token endpoint of one kind."""
        return [
            said for _, path, said in self.seen if path == "/token" and said.get("grant_type") == grant_type
        ]

    def registrations(self) -> list[dict[str, Any]]:
        return [said for _, path, said in self.seen if path == "/register"]

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.seen]

    def know(self, client_id: str, **about: Any) -> None:
        """Register a client by hand."""
        self.clients[client_id] = {"client_id": client_id, "redirect_uris": None, **about}

    def revoke_refresh_tokens(self) -> None:
        self._refresh.clear()

    # --- endpoints ---------------------------------------------------------------------------

    async def _other(self, request: Request) -> Response:
        self.seen.append(("GET", request.url.path, dict(request.query_params)))
        return (
            JSONResponse(self.metadata) if request.url.path in self.metadata_at else Response(status_code=404)
        )

    async def _jwks(self, request: Request) -> Response:
        public = ECAlgorithm(ECAlgorithm.SHA256).to_jwk(self._key.public_key(), as_dict=True)
        return JSONResponse({"keys": [{**public, "kid": "1", "alg": "ES256"}]})

    async def _register(self, request: Request) -> Response:
        said = await request.json()
        self.seen.append(("POST", "/register", said))
        if self.registration_fault:
            return JSONResponse(self.registration_fault[1], self.registration_fault[0])
        client = {**said, "client_id": f"client-{secrets.token_hex(4)}"}
        if said["token_endpoint_auth_method"] != "none":
            client["client_secret"] = f"s+/{secrets.token_hex(8)}="
        self.clients[client["client_id"]] = client = self.registered(client)
        return JSONResponse(client, 201)

    async def _authorize(self, request: Request) -> Response:
        said = dict(request.query_params)
        self.seen.append(("GET", "/authorize", said))
        client = self.clients.get(said.get("client_id", ""))
        if client is None or said["redirect_uri"] not in (client["redirect_uris"] or [said["redirect_uri"]]):
            return Response("unknown client or redirect URI", 400)
        assert said["response_type"] == "code" and said["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = said
        back = {"code": code, "state": said["state"], "iss": self.issuer}
        return RedirectResponse(f"{said['redirect_uri']}?{urlencode(self.answer(back), doseq=True)}", 302)

    async def _token(self, request: Request) -> Response:
        said = dict(parse_qsl((await request.body()).decode(), strict_parsing=True))
        authorization = request.headers.get("authorization", "")
        self.seen.append(("POST", "/token", {**said, "authorization": authorization, **_proof(request)}))
        if self.token_fault:
            return JSONResponse(self.token_fault[1], self.token_fault[0])
        client = self._authenticated(said, authorization)
        if client is None:
            return JSONResponse({"error": "invalid_client"}, 401)
        match said["grant_type"]:
            case "authorization_code":
                return self._for_code(said, client)
            case "refresh_token":
                return self._for_refresh(said, client)
            case "client_credentials":
                return self._issue(client["client_id"], client, said)
            case grant if grant == JWT_BEARER:
                return self._for_assertion(said, client)
            case grant if grant == TOKEN_EXCHANGE:
                return self._exchange(said, client)
        return JSONResponse({"error": "unsupported_grant_type"}, 400)

    # --- grants ------------------------------------------------------------------------------

    def _for_code(self, said: dict[str, str], client: dict[str, Any]) -> Response:
        asked = self._codes.pop(said.get("code", ""), None)
        if (
            asked is None
            or asked["client_id"] != client["client_id"]
            or asked["redirect_uri"] != said.get("redirect_uri")
            or asked.get("resource") != said.get("resource")
            or _s256(said.get("code_verifier", "")) != asked["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        return self._issue("ada", client, {**asked, **said}, refresh=self.refreshing)

    def _for_refresh(self, said: dict[str, str], client: dict[str, Any]) -> Response:
        before = self._refresh.pop(said["refresh_token"], None)  # each is good for once
        if before is None or before["client_id"] != client["client_id"]:
            return JSONResponse({"error": "invalid_grant", "error_description": "used, or unknown"}, 400)
        return self._issue("ada", client, before, refresh=True)

    def _for_assertion(self, said: dict[str, str], client: dict[str, Any]) -> Response:
        claims = self._believed(said["assertion"])
        if claims is None:
            return JSONResponse({"error": "invalid_grant", "error_description": "not believed"}, 400)
        return self._issue(claims["sub"], client, {"resource": claims.get("resource", ""), **said})

    def _exchange(self, said: dict[str, str], client: dict[str, Any]) -> Response:
        believed = self._believed(said["subject_token"], audience=client["client_id"])
        if believed is None or said["requested_token_type"] != "urn:ietf:params:oauth:token-type:id-jag":
            return JSONResponse({"error": "invalid_grant"}, 400)
        claims = {
            "iss": self.issuer,
            "sub": believed["sub"],
            "aud": said["audience"],
            "resource": said["resource"],
            "exp": time.time() + 300,
        }
        issued = jwt.encode(claims, self._key, "ES256", headers={"typ": "oauth-id-jag+jwt"})
        kind = said["requested_token_type"]
        granted = {"access_token": issued, "issued_token_type": kind, "token_type": "N_A"}
        return JSONResponse(self.issued(granted))

    def _issue(
        self, subject: str, client: dict[str, Any], asked: dict[str, str], *, refresh: bool = False
    ) -> Response:
        scope = self.grant_scope(asked.get("scope", ""))
        token = self.make_token(subject, asked.get("resource") or "unknown", scope, self.lifetime or 3600)
        issued: dict[str, Any] = {"access_token": token, "token_type": "Bearer", "scope": scope}
        if self.lifetime is not None:
            issued["expires_in"] = self.lifetime
        if refresh:
            issued["refresh_token"] = f"refresh-{secrets.token_urlsafe(16)}"
            kept = {"client_id": client["client_id"], "scope": scope, "resource": asked.get("resource", "")}
            self._refresh[issued["refresh_token"]] = kept
        return JSONResponse(self.issued(issued), headers={"cache-control": "no-store"})

    def make_token(self, subject: str, audience: str, scope: str, lifetime: float) -> str:
        """A token as this server signs them."""
        claims = {"iss": self.issuer, "sub": subject, "aud": audience, "scope": scope}
        claims |= {"exp": int(time.time() + lifetime), "jti": secrets.token_hex(8)}
        return jwt.encode(claims, self._key, "ES256", headers={"kid": "1"})

    @property
    def public_key(self) -> Any:
        return self._key.public_key()

    # --- who asks ----------------------------------------------------------------------------

    def _authenticated(self, said: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """The client, if it proves itself in the way that it is registered for."""
        if authorization.startswith("Basic "):
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            client_id, secret = (unquote_plus(part) for part in pair.split(":"))
            used = "client_secret_basic"
        elif "client_assertion" in said:
            client_id = jwt.decode(said["client_assertion"], options={"verify_signature": False})["sub"]
            secret, used = said["client_assertion"], "private_key_jwt"
        else:
            client_id, secret = said.get("client_id", ""), said.get("client_secret", "")
            used = "client_secret_post" if secret else "none"
        client = self.clients.get(client_id)
        if client is None or client.get("token_endpoint_auth_method", used) != used:
            return None
        if used == "private_key_jwt":
            try:
                jwt.decode(secret, client["public_key"], ["ES256"], audience=self.issuer, issuer=client_id)
            except jwt.PyJWTError:
                return None
            return client
        if used == "none" and not self.secrets_matter:
            return client
        return client if (client.get("client_secret") or "") == secret else None

    def _believed(self, assertion: str, audience: str | None = None) -> dict[str, Any] | None:
        said = jwt.decode(assertion, options={"verify_signature": False})
        try:
            key = self.identities[said["iss"]]
            return jwt.decode(assertion, key, ["ES256"], audience=audience or self.issuer)
        except (KeyError, jwt.PyJWTError):
            return None


class Notes:
    """Notes."""

    @method
    def read(self) -> str:
        """Read the notes."""
        return "Buy milk."

    @method(scopes=["notes:write"])
    def erase(self) -> str:
        """Erase the notes."""
        return "Erased."


class Protected:
    """A midcall server that takes the tokens of an issuer. Other applications may lie before it."""

    def __init__(self, url: str, issuer: Issuer, scopes: list[str]) -> None:
        self.url = f"{url}/mcp"
        self.seen: list[str | None] = []
        """The `Authorization` of each request to `/mcp`."""
        self.documents: dict[str, dict[str, Any]] = {}
        """What is served in the place of its own metadata, by path."""
        self.faults: dict[str, int] = {}
        """Paths that are answered with this status only."""
        self.gate: Callable[[Request], Response | None] = lambda request: None
        """May answer a request in the place of the server."""
        self.trust(issuer, scopes)

    def trust(self, issuer: Issuer, scopes: list[str]) -> None:
        """From now on, tokens of this issuer only."""
        auth = OAuthResourceServer(
            issuer=issuer.issuer, resource=self.url, jwks=f"{issuer.origin}/jwks.json", scopes=scopes
        )
        self._inner = Hub().register(Notes()).asgi(auth=auth)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            if scope["path"] in self.faults:
                await Response(status_code=self.faults[scope["path"]])(scope, receive, send)
                return
            if scope["path"] in self.documents:
                await JSONResponse(self.documents[scope["path"]])(scope, receive, send)
                return
            if scope["path"] == urlsplit(self.url).path:
                self.seen.append(request.headers.get("authorization"))
                if (answer := self.gate(request)) is not None:
                    await answer(scope, receive, send)
                    return
        await self._inner(scope, receive, send)


class Person:
    """Follows the address to log in at, as a browser would, up to where it is sent back."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self.visits: list[str] = []

    async def __call__(self, url: str) -> str:
        self.visits.append(url)
        response = await self._http.request("GET", HttpUrl(url))
        await response.read()
        location = response.headers.get("location")
        assert response.status == 302 and location is not None
        return location


async def request(
    auth: Auth, http: HttpClient, url: str, method: str = "tools/list", params: dict[str, Any] | None = None
) -> tuple[int, Any]:
    """One MCP request, sent by the rules of `Auth`; gives status and body of the response that counts."""
    about = {f"{META}protocolVersion": REVISION, f"{META}clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": about}}
    fixed = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", REVISION),
        ("mcp-method", method),
        *([("mcp-name", params["name"])] if params and "name" in params else []),
    ]
    while True:
        sent = await auth.headers(url, http)
        response = await http.request(
            "POST", HttpUrl(url), [*fixed, *sent.items()], json.dumps(message).encode()
        )
        data = await response.read()
        told = response.headers.get("www-authenticate")
        nonce = response.headers.get("dpop-nonce")
        refused = response.status in (401, 403)
        if not refused or not await auth.challenged(url, response.status, told, http, sent=sent, nonce=nonce):
            return response.status, json.loads(data) if data else None


def _s256(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _proof(request: Request) -> dict[str, str]:
    return {"dpop": request.headers["dpop"]} if "dpop" in request.headers else {}


class World:
    """All of it: an authorization server, an MCP server behind it, a person, and the client's HTTP."""

    def __init__(self, issuer: Issuer, server: Protected, http: HttpClient) -> None:
        self.issuer = issuer
        self.server = server
        self.http = http
        self.person = Person(http)
        self.store = MemoryStore()

    def oauth(self, **options: Any) -> OAuth:
        """A client of the person."""
        return OAuth(**{"redirect": self.person, "store": self.store, **options})

    async def request(self, auth: Auth, method: str = "tools/list", **params: Any) -> tuple[int, Any]:
        """One MCP request to the server."""
        return await request(auth, self.http, self.server.url, method, params)

    async def status(self, auth: Auth, method: str = "tools/list", **params: Any) -> int:
        return (await self.request(auth, method, **params))[0]

    async def fails(self, auth: Auth, **params: Any) -> LoginFailed:
        """One MCP request for which no access is to be had."""
        with pytest.raises(LoginFailed) as failure:
            await self.request(auth, "tools/call" if params else "tools/list", **params)
        return failure.value

    async def age(self, seconds: float) -> None:
        """As if what is kept for the server were older."""
        kept = await self.store.load(self.server.url)
        assert kept is not None
        tokens = kept["grants"][kept["issuer"]]["tokens"]
        tokens["issued_at"] -= seconds
        tokens["expires_at"] -= seconds
        await self.store.save(self.server.url, kept)


@contextlib.asynccontextmanager
async def world(scopes: tuple[str, ...] = ("notes",)) -> AsyncIterator[World]:
    """Each test has its own."""
    async with (
        serving(Issuer) as issuer,
        serving(lambda url: Protected(url, issuer, list(scopes))) as server,
        HttpClient() as http,
    ):
        yield World(issuer, server, http)


def in_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that gets a world."""

    async def main() -> None:
        async with world() as it:
            await test(it)

    def played() -> None:
        drive(main())

    played.__doc__ = test.__doc__
    return played

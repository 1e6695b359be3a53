"""Where access is to be had: what a refusal says, and the documents of servers of all revisions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response

from driving import drive
from midcall.client.oauth import MemoryStore, OAuth
from midcall.client.oauth.discovery import Challenge, covers, issuer_places, read_challenge, resource_places
from midcall.errors import LoginFailed
from midcall.http.client import HttpClient
from midcall.transports.auth import challenge as written
from oauth_world import Issuer, Person, World, in_world, request, serving, world

RESOURCE = "/.well-known/oauth-protected-resource"
ISSUER = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"


class Plain:
    """An MCP server that is no midcall server: it knows tokens from having seen them, and serves what it is told."""

    def __init__(self, url: str, inner: Issuer | None = None) -> None:
        self.url = url
        self.documents: dict[str, dict[str, Any]] = {}
        self.pages: dict[str, Response] = {}
        self.inner = inner

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await Starlette()(scope, receive, send)
        elif scope["path"] in self.documents:
            await JSONResponse(self.documents[scope["path"]])(scope, receive, send)
        elif scope["path"] in self.pages:
            await self.pages[scope["path"]](scope, receive, send)
        elif scope["path"] == "/mcp":
            known = any(name == b"authorization" for name, _ in scope["headers"])
            answer = JSONResponse({"result": {}}) if known else Response(status_code=401)
            await answer(scope, receive, send)
        elif self.inner is not None:
            await self.inner.app(scope, receive, send)
        else:
            await Response("not here", 404)(scope, receive, send)


# --- what a refusal says --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "read"),
    [
        (None, Challenge()),
        ("  ", Challenge()),
        ("Bearer", Challenge("bearer")),
        ("bearer realm=x", Challenge("bearer")),
        ('Bearer scope="a  b a", error=invalid_token', Challenge("bearer", "invalid_token", scopes=("a", "b"))),
        ('Bearer error_description="say \\"no\\", and = so"', Challenge("bearer", description='say "no", and = so')),
        ("Bearer resource_metadata=https://a.example/x", Challenge("bearer", resource_metadata="https://a.example/x")),
        ('Basic realm="a, Bearer scope=x", Bearer scope="y"', Challenge("bearer", scopes=("y",))),
        ('Negotiate YWJj==, Bearer scope="y"', Challenge("bearer", scopes=("y",))),
        ('Negotiate, DPoP algs="ES256", scope="z"', Challenge("dpop", scopes=("z",))),
        ('DPoP scope="z", Bearer scope="y"', Challenge("bearer", scopes=("y",))),
        ('Bearer scope = "y" , error = "e"', Challenge("bearer", "e", scopes=("y",))),
        ('Bearer scope="a", Bearer scope="b"', Challenge("bearer", scopes=("a",))),
        ('Bearer scope="open', Challenge("bearer")),
        ('Basic realm="x"', None),
        ("(nonsense)", None),
    ],
)  # fmt: skip
def test_a_challenge_is_read_as_it_is_meant(header: str | None, read: Challenge | None) -> None:
    assert read_challenge(header) == read


WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"\\'), min_size=1)


@given(
    error=WORDS, description=st.lists(WORDS).map(" ".join), scope=st.lists(WORDS, unique=True), where=WORDS
)
def test_what_a_midcall_server_says_is_what_its_client_reads(
    error: str, description: str, scope: list[str], where: str
) -> None:
    header = written(error=error, description=description, scope=scope, resource_metadata=where)
    assert read_challenge(header) == Challenge("bearer", error, description, tuple(scope), where)


@given(st.text())
def test_no_header_is_too_strange(header: str) -> None:
    read_challenge(header)


# --- where documents may be -----------------------------------------------------------------


def test_the_documents_are_looked_for_in_the_order_of_the_specification() -> None:
    assert resource_places("https://a.example/public/mcp", Challenge()) == [
        f"https://a.example{RESOURCE}/public/mcp",
        f"https://a.example{RESOURCE}",
    ]
    told = Challenge("bearer", resource_metadata="https://a.example/here")
    assert resource_places("https://a.example/mcp", told)[0] == "https://a.example/here"
    assert resource_places("https://a.example", Challenge()) == [f"https://a.example{RESOURCE}"]
    assert issuer_places("https://b.example") == [f"https://b.example{ISSUER}", f"https://b.example{OPENID}"]
    assert issuer_places("https://b.example/tenant") == [
        f"https://b.example{ISSUER}/tenant",
        f"https://b.example{OPENID}/tenant",
        f"https://b.example/tenant{OPENID}",
    ]


@pytest.mark.parametrize(
    ("resource", "fits"),
    [
        ("https://a.example/team/mcp", True),
        ("https://a.example/team/mcp/", True),
        ("https://A.example:443/team", True),
        ("https://a.example", True),
        ("https://a.example/te", False),
        ("https://a.example/team/mcp/more", False),
        ("https://a.example:444/team/mcp", False),
        ("http://a.example/team/mcp", False),
        ("https://evil.example/team/mcp", False),
        ("https://a.example/team/mcp#x", False),
        ("urn:a", False),
    ],
)
def test_a_document_is_about_this_server_or_about_what_it_is_a_part_of(resource: str, fits: bool) -> None:
    assert covers(resource, "https://a.example/team/mcp") == fits


@in_world
async def test_the_document_that_the_challenge_leads_to_is_read_first(it: World) -> None:
    document = {
        "resource": it.server.url,
        "authorization_servers": [it.issuer.issuer],
        "scopes_supported": ["told"],
    }
    it.server.documents["/custom/place.json"] = document
    where = it.server.url.replace("/mcp", "/custom/place.json")
    it.server.gate = lambda request: (
        None
        if "authorization" in request.headers
        else Response(status_code=401, headers={"www-authenticate": f'Bearer resource_metadata="{where}"'})
    )
    assert await it.status(it.oauth()) == 200
    assert [login["scope"] for login in it.issuer.logins()] == ["told", "told notes"]


@pytest.mark.parametrize("place", [f"{RESOURCE}/mcp", RESOURCE])
def test_without_that_the_document_is_found_at_its_well_known_places(place: str) -> None:
    async def main() -> None:
        async with serving(Issuer) as issuer, serving(Plain) as server, HttpClient() as http:
            server.documents[place] = {"resource": server.url, "authorization_servers": [issuer.issuer]}
            auth = OAuth(redirect=Person(http), store=MemoryStore())
            status, _ = await request(auth, http, f"{server.url}/mcp")
            assert status == 200
            [login] = issuer.logins()
            assert login["resource"] == server.url

    drive(main())


@pytest.mark.parametrize("places", [[f"{ISSUER}/tenant"], [f"{OPENID}/tenant"], [f"/tenant{OPENID}"]])
def test_an_authorization_server_with_a_path_is_found_in_all_its_places(places: list[str]) -> None:
    async def main() -> None:
        async with (
            serving(lambda url: Issuer(url, "/tenant")) as issuer,
            serving(Plain) as server,
            HttpClient() as http,
        ):
            issuer.metadata_at = places
            server.documents[RESOURCE] = {"resource": server.url, "authorization_servers": [issuer.issuer]}
            auth = OAuth(redirect=Person(http), store=MemoryStore())
            assert (await request(auth, http, f"{server.url}/mcp"))[0] == 200
            looked = [path for path in issuer.paths() if "well-known" in path]
            known = [f"{ISSUER}/tenant", f"{OPENID}/tenant", f"/tenant{OPENID}"]
            assert looked == known[: known.index(places[0]) + 1]

    drive(main())


# --- documents that are not to be believed --------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource": "https://evil.example/mcp"}, "is about https://evil.example/mcp, not about"),
        ({"resource": "http://127.0.0.1:99999/"}, "http://127.0.0.1:99999/ is not an address"),
        ({"resource": "http://[::1/"}, "is not an address"),
        ({"authorization_servers": ["http://auth.example.com"]}, "must be https, not http://auth.example.com"),
        ({"authorization_servers": ["ftp://auth.example.com"]}, "is not a URL"),
        ({"authorization_servers": ["https://user@auth.example.com"]}, "not a URL that can be used"),
        ({"authorization_servers": "https://a.example"}, "is not valid"),
        ({"scopes_supported": [1]}, "is not valid"),
        ({"authorization_servers": ["https://a.example:port"]}, "is not a URL"),
    ],
)  # fmt: skip
def test_metadata_of_a_server_that_cannot_be_trusted_is_refused(change: dict[str, Any], message: str) -> None:
    async def main() -> None:
        async with world() as it:
            good = {"resource": it.server.url, "authorization_servers": [it.issuer.issuer]}
            it.server.documents[f"{RESOURCE}/mcp"] = {**good, **change}
            assert message in str(await it.fails(it.oauth()))
            assert it.person.visits == []
            assert it.issuer.registrations() == []

    drive(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"issuer": "https://honest.example"}, "says that it is https://honest.example: refused"),
        ({"token_endpoint": "http://auth.example.com/token"}, "token_endpoint"),
        ({"registration_endpoint": "http://auth.example.com/register"}, "registration_endpoint"),
        ({"token_endpoint": None}, "is not valid"),
        ({"authorization_endpoint": None}, "has no page to log in at"),
    ],
)
def test_metadata_of_an_authorization_server_that_cannot_be_trusted_is_refused(
    change: dict[str, Any], message: str
) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.metadata.update(change)
            assert message in str(await it.fails(it.oauth()))
            assert it.person.visits == []

    drive(main())


@in_world
async def test_an_issuer_differs_by_a_slash_already(it: World) -> None:
    it.issuer.metadata["issuer"] += "/"
    assert "says that it is" in str(await it.fails(it.oauth()))


@in_world
async def test_an_authorization_server_without_metadata_is_refused(it: World) -> None:
    it.issuer.metadata_at = []
    assert "has no metadata" in str(await it.fails(it.oauth()))


def test_a_server_somewhere_else_cannot_send_us_to_this_machine() -> None:
    class Never:
        async def request(self, *args: Any, **options: Any) -> Any:
            raise AssertionError("nothing is sent")

    async def main() -> None:
        auth = OAuth(store=MemoryStore())
        challenge = 'Bearer resource_metadata="http://127.0.0.1:6379/x"'
        with pytest.raises(
            LoginFailed, match=r"on this machine .* but https://tools\.example\.com/mcp is not"
        ):
            await auth.challenged("https://tools.example.com/mcp", 401, challenge, Never(), sent={})
        with pytest.raises(LoginFailed, match=r"must be https, not http://tools\.example\.com/mcp"):
            await auth.challenged("http://tools.example.com/mcp", 401, "Bearer", Never(), sent={})

    drive(main())


@in_world
async def test_a_server_that_fails_is_named(it: World) -> None:
    it.server.documents.clear()
    gone = "http://127.0.0.1:9"
    it.server.documents[f"{RESOURCE}/mcp"] = {"resource": it.server.url, "authorization_servers": [gone]}
    failure = await it.fails(it.oauth())
    assert str(failure).startswith(f"{gone}{ISSUER} cannot be reached")
    assert failure.recoverable


@in_world
async def test_a_document_that_cannot_be_read_now_is_not_taken_for_none(it: World) -> None:
    where = it.server.url.replace("/mcp", f"{RESOURCE}/mcp")
    it.server.faults[f"{RESOURCE}/mcp"] = 503
    failure = await it.fails(it.oauth())
    assert (str(failure), failure.recoverable) == (f"{where} answers 503", True)


# --- servers of 2025-03-26 ------------------------------------------------------------------


@pytest.mark.parametrize("described", [True, False])
def test_a_server_of_2025_03_26_is_its_own_authorization_server(described: bool) -> None:
    async def main() -> None:
        async with serving(lambda url: Plain(url, Issuer(url))) as server, HttpClient() as http:
            issuer = server.inner
            if described:
                issuer.metadata["code_challenge_methods_supported"] = None
            else:
                issuer.metadata_at = []
                issuer.answer = lambda said: {"code": said["code"], "state": said["state"]}
            store = MemoryStore()
            auth = OAuth(redirect=Person(http), store=store)
            assert (await request(auth, http, f"{server.url}/mcp"))[0] == 200
            [login] = issuer.logins()
            assert login["code_challenge_method"] == "S256"
            assert "resource" not in login
            kept = await store.load(f"{server.url}/mcp")
            assert kept is not None
            tokens = kept["grants"][server.url]["tokens"]
            tokens["expires_at"] = tokens["issued_at"]
            await store.save(f"{server.url}/mcp", kept)
            restarted = OAuth(redirect=Person(http), store=store)
            assert (await request(restarted, http, f"{server.url}/mcp"))[0] == 200
            assert (len(issuer.grants("refresh_token")), len(issuer.logins())) == (1, 1)

    drive(main())


@pytest.mark.parametrize(("name", "fine"), [("/oauth", True), ("/", True), ("https://honest.example", False)])
def test_a_server_that_was_not_named_may_call_itself_what_it_likes_on_its_own_origin(
    name: str, fine: bool
) -> None:
    async def main() -> None:
        async with serving(lambda url: Plain(url, Issuer(url))) as server, HttpClient() as http:
            issuer = server.inner
            issuer.issuer = issuer.metadata["issuer"] = name if "://" in name else server.url + name
            auth = OAuth(redirect=Person(http), store=MemoryStore())
            if fine:
                assert (await request(auth, http, f"{server.url}/mcp"))[0] == 200
            else:
                with pytest.raises(LoginFailed, match=r"says that it is https://honest\.example"):
                    await request(auth, http, f"{server.url}/mcp")

    drive(main())


def test_a_server_that_wants_a_login_but_has_none_is_told_from_one_that_has() -> None:
    async def main() -> None:
        async with serving(Plain) as server, HttpClient() as http:
            auth = OAuth(redirect=Person(http), store=MemoryStore())
            with pytest.raises(LoginFailed, match="names no authorization server, and there is none at"):
                await request(auth, http, f"{server.url}/mcp")

    drive(main())


def test_a_web_page_in_the_place_of_a_document_is_no_document() -> None:
    """Many sites answer every path with a page, or lead to one."""

    async def main() -> None:
        async with serving(lambda url: Plain(url, Issuer(url))) as server, HttpClient() as http:
            server.inner.answer = lambda said: {"code": said["code"], "state": said["state"]}
            server.pages = {
                f"{RESOURCE}/mcp": RedirectResponse("/login"),
                RESOURCE: Response("<html>", media_type="text/html"),
                ISSUER: Response("[]", media_type="application/json"),
                OPENID: Response('{"hello": "world"}', media_type="application/json"),
            }
            auth = OAuth(redirect=Person(http), store=MemoryStore())
            assert (await request(auth, http, f"{server.url}/mcp"))[0] == 200
            assert len(server.inner.logins()) == 1

    drive(main())

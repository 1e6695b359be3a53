"""Logging in to a protected MCP server: a real authorization server, a real midcall server, and a person."""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.responses import Response

from driving import drive
from midcall import connect
from midcall.client.oauth import MemoryStore, OAuth
from midcall.errors import LoginFailed
from oauth_world import Issuer, World, in_world, serving, world


def without(*names: str) -> Any:
    """A callback in which these are missing."""
    return lambda said: {name: value for name, value in said.items() if name not in names}


def refusal(challenge: str, status: int = 401) -> Response:
    return Response(status_code=status, headers={"www-authenticate": challenge})


class Counted:
    """Counts the requests that were refused."""

    def __init__(self, auth: OAuth) -> None:
        self._auth = auth
        self.refused = 0

    async def headers(self, *args: Any, **options: Any) -> dict[str, str]:
        return await self._auth.headers(*args, **options)

    async def challenged(self, *args: Any, **options: Any) -> bool:
        self.refused += 1
        return await self._auth.challenged(*args, **options)


# --- a login --------------------------------------------------------------------------------


@in_world
async def test_a_server_that_asks_for_a_login_gets_one_and_the_request_goes_through(it: World) -> None:
    status, answer = await it.request(it.oauth())
    assert status == 200
    assert [tool["name"] for tool in answer["result"]["tools"]] == ["notes.read", "notes.erase"]
    [login], [exchange] = it.issuer.logins(), it.issuer.grants("authorization_code")
    assert login["scope"] == "notes"
    assert login["resource"] == exchange["resource"] == it.server.url
    assert login["code_challenge_method"] == "S256"
    assert exchange["code_verifier"] != login["code_challenge"]
    assert it.server.seen[0] is None
    assert str(it.server.seen[1]).startswith("Bearer ")


@in_world
async def test_the_next_requests_need_no_login(it: World) -> None:
    auth = it.oauth()
    assert [await it.status(auth) for _ in range(3)] == [200, 200, 200]
    assert len(it.person.visits) == 1
    assert it.server.seen.count(None) == 1


@in_world
async def test_many_requests_that_are_refused_at_once_start_one_login_only(it: World) -> None:
    auth = it.oauth()
    assert await asyncio.gather(*(it.status(auth) for _ in range(20))) == [200] * 20
    assert len(it.person.visits) == 1


@in_world
async def test_if_the_login_fails_all_who_wait_for_it_fail_with_it(it: World) -> None:
    it.issuer.answer = lambda said: {"error": "access_denied", "state": said["state"], "iss": said["iss"]}
    gate = asyncio.Event()

    async def slowly(url: str) -> str:
        await gate.wait()
        return await it.person(url)

    auth = Counted(it.oauth(redirect=slowly))
    waiting = [asyncio.create_task(it.fails(auth)) for _ in range(10)]
    while auth.refused < 10:
        await asyncio.sleep(0.005)
    gate.set()
    failures = await asyncio.gather(*waiting)
    assert {failure.reason for failure in failures} == {"access_denied"}
    assert len(it.person.visits) == 1


@in_world
async def test_who_waits_for_something_else_does_not_fail_with_it(it: World) -> None:
    auth = it.oauth()
    await it.request(auth)
    sent = await auth.headers(it.server.url, it.http)

    async def want(scope: str) -> bool:
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        return await auth.challenged(it.server.url, 403, challenge, it.http, sent=sent)

    it.issuer.answer = lambda said: (
        {"error": "access_denied", "state": said["state"], "iss": said["iss"]}
        if "gold" in it.issuer.logins()[-1]["scope"]
        else said
    )
    gold, silver = asyncio.create_task(want("gold")), asyncio.create_task(want("silver"))
    with pytest.raises(LoginFailed, match="declined"):
        await gold
    assert await silver
    assert [login["scope"] for login in it.issuer.logins()] == ["notes", "notes gold", "notes silver"]


@in_world
async def test_a_request_that_was_sent_with_an_old_token_is_just_sent_again(it: World) -> None:
    auth = it.oauth()
    before = await auth.headers(it.server.url, it.http)
    assert before == {}
    await it.request(auth)
    assert await auth.challenged(it.server.url, 401, "Bearer", it.http, sent=before)
    assert len(it.person.visits) == 1


@in_world
async def test_what_is_no_matter_of_tokens_is_left_to_the_caller(it: World) -> None:
    auth = it.oauth()
    for status, challenge in (
        (403, None),
        (403, 'Bearer error="invalid_token"'),
        (401, "Basic realm=x"),
        (500, None),
    ):
        assert not await auth.challenged(it.server.url, status, challenge, it.http, sent={})
    assert it.person.visits == []


@in_world
async def test_forgetting_a_server_means_to_log_in_again(it: World) -> None:
    auth = it.oauth()
    await it.request(auth)
    await auth.forget(it.server.url)
    assert await it.store.load(it.server.url) is None
    assert await auth.headers(it.server.url, it.http) == {}
    assert await it.status(auth) == 200
    assert len(it.person.visits) == 2


# --- by the client itself -------------------------------------------------------------------


@in_world
async def test_a_client_logs_in_when_it_connects_and_gets_more_when_a_tool_needs_it(it: World) -> None:
    async with connect(it.server.url, auth=it.oauth()) as server:
        result = await server.call("notes.read")
        assert result.content[0]["text"] == "Buy milk."
        calls = [{"id": str(number), "name": "notes.erase"} for number in range(20)]
        results = await server.call_tools(calls, parallel=True)
        assert all(result["success"] for result in results), results
    assert [login["scope"] for login in it.issuer.logins()] == ["notes", "notes notes:write"]


@in_world
async def test_a_client_that_is_not_let_in_says_why(it: World) -> None:
    it.issuer.answer = lambda said: {"error": "access_denied", "state": said["state"], "iss": said["iss"]}
    with pytest.raises(LoginFailed, match="was declined"):
        async with connect(it.server.url, auth=it.oauth()):
            pass
    with pytest.raises(LoginFailed, match="refuses the token that was given"):
        async with connect(it.server.url, auth="a-token"):
            pass
    assert len(it.person.visits) == 1


# --- what comes back from the browser is not believed at once -------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda said: {**said, "state": "another"}, "a state that is not of this login"),
        (without("state"), "a state that is not of this login"),
        (lambda said: {**said, "iss": "https://evil.example.com"}, "from another issuer, https://evil.example.com"),
        (lambda said: {**said, "iss": said["iss"] + "/"}, "from another issuer"),
        (without("iss"), "without saying from which issuer"),
        (without("code"), "without a code"),
        (lambda said: {**said, "state": [said["state"], "x"]}, "two values of state"),
        (lambda said: {**said, "code": ["a", "b"]}, "two values of code"),
    ],
)  # fmt: skip
def test_a_callback_that_does_not_belong_to_the_login_is_refused(answer: Any, message: str) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.answer = answer
            failure = await it.fails(it.oauth())
            assert message in str(failure)
            assert it.issuer.grants("authorization_code") == []

    drive(main())


@in_world
async def test_an_issuer_that_is_named_without_notice_is_compared_as_well(it: World) -> None:
    del it.issuer.metadata["authorization_response_iss_parameter_supported"]
    assert await it.status(it.oauth()) == 200
    it.issuer.answer = lambda said: {**said, "iss": "https://evil.example.com"}
    assert "another issuer" in str(await it.fails(it.oauth(store=MemoryStore())))


@in_world
async def test_an_issuer_that_never_names_itself_is_accepted(it: World) -> None:
    it.issuer.metadata["authorization_response_iss_parameter_supported"] = False
    it.issuer.answer = without("iss")
    assert await it.status(it.oauth()) == 200


@in_world
async def test_an_error_from_another_issuer_is_not_shown(it: World) -> None:
    it.issuer.answer = lambda said: {
        "error": "call-this-number",
        "error_description": "call this number",
        "state": said["state"],
        "iss": "https://evil.example.com",
    }
    assert "number" not in str(await it.fails(it.oauth()))


@in_world
async def test_a_code_of_one_server_is_not_taken_to_another(it: World) -> None:
    """The mix-up: an evil authorization server has the person log in at an honest one."""
    async with serving(Issuer) as evil:
        evil.know("known-to-both")
        it.issuer.know("known-to-both")
        evil.metadata["authorization_endpoint"] = it.issuer.metadata["authorization_endpoint"]
        it.server.documents["/.well-known/oauth-protected-resource/mcp"] = {
            "resource": it.server.url,
            "authorization_servers": [evil.issuer],
        }
        failure = await it.fails(it.oauth(client_id="known-to-both"))
        assert f"another issuer, {it.issuer.issuer}" in str(failure)
        assert evil.grants("authorization_code") == []


@in_world
async def test_a_person_who_declines_is_told_so_and_nothing_is_kept(it: World) -> None:
    it.issuer.answer = lambda said: {
        "error": "access_denied",
        "error_description": "not today",
        "state": said["state"],
        "iss": said["iss"],
    }
    failure = await it.fails(it.oauth())
    assert str(failure) == f"The login at {it.issuer.issuer} was declined (access_denied: not today)"
    assert (failure.reason, failure.server) == ("access_denied", it.server.url)
    assert await it.store.load(it.server.url) is None


@in_world
async def test_a_login_that_fails_on_the_other_side_is_told_in_its_words(it: World) -> None:
    it.issuer.answer = lambda said: {"error": "server_error", "state": said["state"], "iss": said["iss"]}
    assert str(await it.fails(it.oauth())) == f"The login at {it.issuer.issuer} failed (server_error)"


# --- what an authorization server must be able to do ----------------------------------------


@pytest.mark.parametrize("methods", [None, [], ["plain"]])
def test_a_server_without_pkce_is_refused_before_anybody_is_asked(methods: list[str] | None) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.metadata["code_challenge_methods_supported"] = methods
            failure = await it.fails(it.oauth())
            assert str(failure) == f"{it.issuer.issuer} does not support PKCE (S256): refused"
            assert it.person.visits == []

    drive(main())


@pytest.mark.parametrize(
    "endpoint", ["http://auth.example.com/authorize", "file:///etc/passwd", "javascript:alert(1)", "calc.exe", "https://"]
)  # fmt: skip
def test_no_browser_is_sent_to_what_is_no_safe_address(endpoint: str) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.metadata["authorization_endpoint"] = endpoint
            assert "authorization_endpoint" in str(await it.fails(it.oauth()))
            assert it.person.visits == []

    drive(main())


@pytest.mark.parametrize(
    ("fault", "message", "reason"),
    [
        ((400, {"error": "invalid_grant", "error_description": "too\nlate"}), "refused: invalid_grant (too late)", "invalid_grant"),
        ((401, {"error": "invalid_client"}), "refused: invalid_client", "invalid_client"),
        ((200, {"error": "server_error"}), "refused: server_error", "server_error"),
        ((503, {}), "answered 503 without a token", ""),
        ((200, {"token_type": "Bearer"}), "issued no token that can be used", ""),
        ((200, {"access_token": "a\r\nX-Evil: 1"}), "issued no token that can be used", ""),
        ((200, {"access_token": "a", "token_type": "mac"}), "issued a token of a kind that cannot be used: mac", ""),
        ((200, {"access_token": "a", "token_type": "DPoP"}), "issued a token of a kind that cannot be used: DPoP", ""),
    ],
)  # fmt: skip
def test_an_error_of_the_token_endpoint_is_told_in_one_line(fault: Any, message: str, reason: str) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.token_fault = fault
            failure = await it.fails(it.oauth())
            assert str(failure) == f"{it.issuer.issuer}/token {message}"
            assert failure.reason == reason
            it.issuer.token_fault = None
            assert await it.status(it.oauth()) == 200

    drive(main())


@in_world
async def test_a_server_that_refuses_even_a_new_token_ends_it_with_a_clear_error(it: World) -> None:
    it.server.gate = lambda request: refusal('Bearer error="invalid_token", error_description="no luck"')
    failure = await it.fails(it.oauth())
    assert (
        str(failure) == f"{it.server.url} refuses the token that {it.issuer.issuer} has just issued: no luck"
    )
    assert len(it.person.visits) == 1


@in_world
async def test_a_server_that_cannot_get_enough_of_logins_is_stopped(it: World) -> None:
    asked = iter(range(100))
    it.server.gate = lambda request: refusal(f'Bearer scope="s{next(asked)}"')
    assert "one login after another" in str(await it.fails(it.oauth()))
    assert len(it.person.visits) == 8


# --- scopes ---------------------------------------------------------------------------------


@in_world
async def test_without_a_scope_in_the_challenge_those_of_the_metadata_are_asked_for(it: World) -> None:
    it.server.gate = lambda request: None if "authorization" in request.headers else refusal("Bearer")
    await it.request(it.oauth())
    assert it.issuer.logins()[0]["scope"] == "notes"


def test_without_any_scope_none_is_asked_for() -> None:
    async def main() -> None:
        async with world(scopes=()) as it:
            assert await it.status(it.oauth()) == 200
            assert "scope" not in it.issuer.logins()[0]

    drive(main())


@in_world
async def test_scopes_of_the_caller_are_asked_for_as_well(it: World) -> None:
    await it.request(it.oauth(scopes=["notes:write", "mail"]))
    assert it.issuer.logins()[0]["scope"] == "notes:write mail notes"


@in_world
async def test_a_call_that_needs_more_gets_it_and_what_was_there_before_is_kept(it: World) -> None:
    auth = it.oauth()
    await it.request(auth)
    status, answer = await it.request(auth, "tools/call", name="notes.erase")
    assert (status, answer["result"]["content"][0]["text"]) == (200, "Erased.")
    assert [login["scope"] for login in it.issuer.logins()] == ["notes", "notes notes:write"]


@in_world
async def test_a_scope_that_is_not_granted_is_asked_for_once(it: World) -> None:
    it.issuer.grant_scope = lambda scope: "notes"
    auth = it.oauth()
    failure = await it.fails(auth, name="notes.erase")
    assert failure.reason == "insufficient_scope"
    assert "notes:write" in str(failure)
    assert f"{it.issuer.issuer} has not granted it" in str(failure)
    assert len(it.person.visits) == 2
    assert await it.status(auth) == 200


@in_world
async def test_a_scope_that_is_granted_and_refused_still_is_not_asked_for_again(it: World) -> None:
    auth = it.oauth()
    await it.request(auth)
    it.server.gate = lambda request: refusal('Bearer error="insufficient_scope", scope="notes"', 403)
    assert "refused still" in str(await it.fails(auth))
    it.server.gate = lambda request: refusal('Bearer error="insufficient_scope"', 403)
    assert "it does not say which" in str(await it.fails(auth))
    assert len(it.person.visits) == 1


@in_world
async def test_refresh_tokens_are_asked_for_where_the_authorization_server_has_a_scope_for_them(
    it: World,
) -> None:
    it.issuer.metadata["scopes_supported"] = ["notes", "offline_access"]
    auth = it.oauth()
    await it.request(auth)
    await it.request(auth, "tools/call", name="notes.erase")
    first, second = it.issuer.logins()
    assert (first["scope"], first["prompt"]) == ("notes offline_access", "consent")
    assert second["scope"] == "notes notes:write offline_access"


@in_world
async def test_refresh_tokens_are_not_asked_for_where_there_is_no_scope_for_them(it: World) -> None:
    it.issuer.metadata["scopes_supported"] = ["notes"]
    it.server.gate = lambda request: (
        None if "authorization" in request.headers else refusal('Bearer scope="notes offline_access"')
    )
    await it.request(it.oauth())
    assert it.issuer.logins()[0]["scope"] == "notes"
    assert "prompt" not in it.issuer.logins()[0]


# --- tokens that end ------------------------------------------------------------------------


@in_world
async def test_after_a_restart_the_login_is_still_there(it: World) -> None:
    await it.request(it.oauth())
    assert await it.status(it.oauth()) == 200
    assert len(it.person.visits) == 1
    assert it.server.seen.count(None) == 1


@in_world
async def test_a_token_that_is_about_to_end_is_renewed_before_the_request(it: World) -> None:
    await it.request(it.oauth())
    for renewals in (1, 2, 3):
        await it.age(3590)
        auth = it.oauth()
        assert await asyncio.gather(*(it.status(auth) for _ in range(5))) == [200] * 5
        assert len(it.issuer.grants("refresh_token")) == renewals
    used = [grant["refresh_token"] for grant in it.issuer.grants("refresh_token")]
    assert len(set(used)) == 3, "the server rotates them: each is used once"
    assert {grant["resource"] for grant in it.issuer.grants("refresh_token")} == {it.server.url}
    assert len(it.person.visits) == 1
    assert it.server.seen.count(None) == 1


@in_world
async def test_a_refresh_token_that_is_over_means_to_log_in_again(it: World) -> None:
    await it.request(it.oauth())
    await it.age(4000)
    it.issuer.revoke_refresh_tokens()
    assert await it.status(it.oauth()) == 200
    assert len(it.person.visits) == 2
    assert len(it.issuer.registrations()) == 1, "the client is still the same"


@in_world
async def test_a_token_that_has_ended_without_a_way_to_renew_it_is_not_shown_any_more(it: World) -> None:
    it.issuer.refreshing = False
    await it.request(it.oauth())
    await it.age(4000)
    auth = it.oauth()
    assert await auth.headers(it.server.url, it.http) == {}
    assert await it.status(auth) == 200
    assert len(it.person.visits) == 2


@in_world
async def test_a_token_that_is_refused_is_renewed_before_a_person_is_asked(it: World) -> None:
    await it.request(it.oauth())
    revoked = it.server.seen[-1]
    it.server.gate = lambda request: (
        refusal('Bearer error="invalid_token"') if request.headers.get("authorization") == revoked else None
    )
    assert await it.status(it.oauth()) == 200
    assert len(it.issuer.grants("refresh_token")) == 1
    assert len(it.person.visits) == 1


@in_world
async def test_if_the_renewed_token_is_refused_too_the_person_is_asked(it: World) -> None:
    await it.request(it.oauth())
    shown = {it.server.seen[-1]}

    def gate(request: Any) -> Response | None:
        shown.add(request.headers.get("authorization"))
        return refusal('Bearer error="invalid_token"') if len(shown) < 3 else None

    it.server.gate = gate
    assert await it.status(it.oauth()) == 200
    assert (len(it.issuer.grants("refresh_token")), len(it.person.visits)) == (1, 2)


@in_world
async def test_while_a_token_cannot_be_renewed_it_is_used_until_its_end(it: World) -> None:
    await it.request(it.oauth())
    await it.age(3590)
    it.issuer.token_fault = (503, {})
    assert await it.status(it.oauth()) == 200
    await it.age(20)
    failure = await it.fails(it.oauth())
    assert (str(failure), failure.recoverable) == (
        f"{it.issuer.issuer}/token answered 503 without a token",
        True,
    )
    it.issuer.token_fault = None
    assert await it.status(it.oauth()) == 200
    assert len(it.person.visits) == 1


@in_world
async def test_two_who_share_a_store_never_use_a_refresh_token_twice(it: World) -> None:
    await it.request(it.oauth())
    await it.age(3590)
    one, other = it.oauth(), it.oauth()
    assert await asyncio.gather(it.status(one), it.status(other)) == [200, 200]
    assert len(it.issuer.grants("refresh_token")) == 1
    await it.age(3590)
    assert await asyncio.gather(it.status(other), it.status(one)) == [200, 200]
    assert len(it.person.visits) == 1


@in_world
async def test_what_another_process_has_got_is_used_before_a_person_is_asked(it: World) -> None:
    late = it.oauth()
    assert await late.headers(it.server.url, it.http) == {}
    await it.request(it.oauth())
    assert await it.status(late) == 200
    assert len(it.person.visits) == 1


# --- which client ---------------------------------------------------------------------------


@in_world
async def test_a_client_registers_itself_as_a_program_on_a_persons_machine(it: World) -> None:
    await it.request(it.oauth(client_name="Ada's agent", redirect_uri="http://localhost:3000/back"))
    [said] = it.issuer.registrations()
    assert said["client_name"] == "Ada's agent"
    assert said["redirect_uris"] == ["http://localhost:3000/back"]
    assert said["application_type"] == "native"
    assert said["grant_types"] == ["authorization_code", "refresh_token"]
    assert said["token_endpoint_auth_method"] == "none"
    assert said["scope"] == "notes"


@in_world
async def test_a_client_that_comes_back_to_a_web_page_registers_as_such(it: World) -> None:
    await it.request(it.oauth(redirect_uri="https://agent.example.com/back"))
    assert it.issuer.registrations()[0]["application_type"] == "web"


@in_world
async def test_a_registration_is_used_again_as_long_as_it_fits(it: World) -> None:
    for uri, registrations in (
        ("http://127.0.0.1:1/a", 1),
        ("http://127.0.0.1:1/a", 1),
        ("http://127.0.0.1:2/a", 2),
    ):
        auth = it.oauth(redirect_uri=uri)
        it.server.gate = lambda request, seen=set(): (  # the token of before is refused
            refusal("Bearer") if not seen and not seen.add(1) else None
        )
        it.issuer.revoke_refresh_tokens()
        assert await it.status(auth) == 200
        assert len(it.issuer.registrations()) == registrations
    assert len(it.person.visits) == 3


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_a_server_that_wants_a_secret_gets_it_in_its_way(method: str) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.metadata["token_endpoint_auth_methods_supported"] = [method]
            await it.request(it.oauth())
            await it.age(3590)
            assert await it.status(it.oauth()) == 200
            for grant in it.issuer.grants("authorization_code") + it.issuer.grants("refresh_token"):
                assert ("client_secret" in grant) == (method == "client_secret_post")
                assert bool(grant["authorization"]) == (method == "client_secret_basic")

    drive(main())


@pytest.mark.parametrize(
    ("methods", "change", "used"),
    [
        (None, {}, "client_secret_basic"),
        (["none"], {"client_secret": "s"}, "none"),
        (["client_secret_post"], {"client_secret": "s"}, "client_secret_post"),
        (["client_secret_basic"], {"client_secret": "s", "client_secret_expires_at": 5}, "client_secret_basic"),
        (["none"], {"client_secret": "s", "token_endpoint_auth_method": "client_secret_post"}, "client_secret_post"),
    ],
)  # fmt: skip
def test_a_client_proves_itself_in_the_way_that_it_was_registered_for(
    methods: list[str] | None, change: dict[str, Any], used: str
) -> None:
    def registered(client: dict[str, Any]) -> dict[str, Any]:
        silent = {name: value for name, value in client.items() if name != "token_endpoint_auth_method"}
        return {**silent, **change}

    async def main() -> None:
        async with world() as it:
            it.issuer.metadata["token_endpoint_auth_methods_supported"] = methods
            it.issuer.registered = registered
            it.issuer.issued = lambda issued: {**issued, "expires_in": "soon"}
            it.issuer.secrets_matter = used != "none"
            assert await it.status(it.oauth()) == 200
            [grant] = it.issuer.grants("authorization_code")
            basic, post = bool(grant["authorization"]), "client_secret" in grant
            assert (basic, post) == (used == "client_secret_basic", used == "client_secret_post")

    drive(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client_id": 5}, "registered a client without a usable id"),
        (
            {"token_endpoint_auth_method": "tls_client_auth"},
            "registered the client for tls_client_auth, not for none",
        ),
    ],
)
def test_a_registration_that_cannot_be_used_is_refused(change: dict[str, Any], message: str) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.registered = lambda client: {**client, **change}
            assert message in str(await it.fails(it.oauth()))
            assert it.person.visits == []

    drive(main())


@in_world
async def test_a_refused_registration_is_told_in_the_servers_words(it: World) -> None:
    fault = {"error": "invalid_redirect_uri", "error_description": "only https for web clients"}
    it.issuer.registration_fault = (400, fault)
    said = "invalid_redirect_uri: only https for web clients"
    assert str(await it.fails(it.oauth())) == f"{it.issuer.issuer} refused to register this client: {said}"
    it.issuer.registration_fault = (429, {})
    assert "it answered 429" in str(await it.fails(it.oauth()))


@in_world
async def test_a_server_that_registers_nobody_wants_a_client_id(it: World) -> None:
    del it.issuer.metadata["registration_endpoint"]
    assert "register one, and give its client_id" in str(await it.fails(it.oauth()))
    it.issuer.know("ours", client_secret="s", token_endpoint_auth_method="client_secret_basic")
    assert await it.status(it.oauth(client_id="ours", client_secret="s")) == 200


@in_world
async def test_an_id_of_the_caller_comes_first_then_a_metadata_document_then_registration(it: World) -> None:
    document = "https://agent.example.com/client.json"
    it.issuer.know("ours")
    it.issuer.know(document)
    assert await it.status(it.oauth(client_metadata_url=document)) == 200
    assert len(it.issuer.registrations()) == 1, "the server does not say that it reads documents"
    it.issuer.metadata["client_id_metadata_document_supported"] = True
    assert await it.status(it.oauth(client_metadata_url=document, store=MemoryStore())) == 200
    both = it.oauth(client_metadata_url=document, client_id="ours", store=MemoryStore())
    assert await it.status(both) == 200
    assert [login["client_id"] for login in it.issuer.logins()][1:] == [document, "ours"]
    assert len(it.issuer.registrations()) == 1


@in_world
async def test_tokens_of_another_client_are_not_used(it: World) -> None:
    await it.request(it.oauth())
    it.issuer.know("ours")
    assert await it.status(it.oauth(client_id="ours")) == 200
    assert await it.status(it.oauth()) == 200
    assert len(it.person.visits) == 3


@in_world
async def test_a_client_that_the_server_has_forgotten_is_registered_anew(it: World) -> None:
    await it.request(it.oauth())
    it.issuer.clients.clear()
    await it.age(4000)
    assert await it.status(it.oauth()) == 200
    assert len(it.issuer.registrations()) == 2
    it.issuer.clients.clear()
    revoked = it.server.seen[-1]
    it.server.gate = lambda request: (
        refusal("Bearer") if request.headers.get("authorization") == revoked else None
    )
    assert await it.status(it.oauth()) == 200
    assert len(it.issuer.registrations()) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_secret": "s"}, "belongs to a client_id"),
        ({"client_metadata_url": "http://agent.example.com/client.json"}, "must be https with a path"),
        ({"client_metadata_url": "https://agent.example.com"}, "must be https with a path"),
        ({"redirect_uri": "https://agent.example.com/back"}, "not on this machine"),
        ({"private_key": "no key"}, "not a private key"),
    ],
)
def test_what_cannot_work_is_said_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OAuth(store=MemoryStore(), **options)


def test_scopes_are_a_list() -> None:
    with pytest.raises(TypeError, match="a list of strings"):
        OAuth(scopes="notes", store=MemoryStore())


# --- credentials belong to one authorization server -----------------------------------------


async def moved(it: World, to: Issuer) -> None:
    """The server trusts another authorization server from now on."""
    it.server.trust(to, ["notes"])


@in_world
async def test_when_the_authorization_server_changes_the_client_registers_there_anew(it: World) -> None:
    auth = it.oauth()
    await it.request(auth)
    async with serving(Issuer) as second:
        await moved(it, second)
        assert await it.status(auth) == 200
        [before], [after] = it.issuer.logins(), second.logins()
        assert len(second.registrations()) == 1
        assert before["client_id"] != after["client_id"]
        shown = repr(second.seen)
        for secret in (before["client_id"], it.issuer.grants("authorization_code")[0]["code"]):
            assert secret not in shown
        assert second.grants("refresh_token") == [], (
            "the refresh token of the first is not shown to the second"
        )


@in_world
async def test_an_id_of_the_caller_is_shown_to_no_other_authorization_server(it: World) -> None:
    it.issuer.know("ours", client_secret="s3cret")
    auth = it.oauth(client_id="ours", client_secret="s3cret")
    await it.request(auth)
    async with serving(Issuer) as second:
        await moved(it, second)
        for one in (auth, it.oauth(client_id="ours", client_secret="s3cret")):
            failure = await it.fails(one)
            assert (
                str(failure) == f"The client ours belongs to {it.issuer.issuer}, "
                f"but {it.server.url} names {second.issuer}: refused"
            )
        assert second.logins() == []
        assert second.grants("authorization_code") == []


@in_world
async def test_only_the_issuer_that_the_caller_names_is_used(it: World) -> None:
    assert await it.status(it.oauth(issuer=it.issuer.issuer)) == 200
    failure = await it.fails(it.oauth(issuer="https://auth.example.com", store=MemoryStore()))
    assert "This login belongs to https://auth.example.com" in str(failure)


@in_world
async def test_of_several_authorization_servers_the_one_of_before_is_used(it: World) -> None:
    async with serving(Issuer) as second:
        document = {"resource": it.server.url, "authorization_servers": [second.issuer, it.issuer.issuer]}
        it.server.documents["/.well-known/oauth-protected-resource/mcp"] = document
        it.issuer.refreshing = False
        assert await it.status(it.oauth(issuer=it.issuer.issuer)) == 200
        await it.age(4000)
        assert await it.status(it.oauth()) == 200
        assert (len(it.issuer.logins()), len(second.logins())) == (2, 0)


# --- secrets --------------------------------------------------------------------------------


def test_no_secret_is_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world() as it:
            it.issuer.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
            it.issuer.know("ours", client_secret="s3cret-of-ours")
            auths = [
                it.oauth(),
                it.oauth(client_id="ours", client_secret="s3cret-of-ours", store=MemoryStore()),
            ]
            for auth in auths:
                await it.request(auth)
            await it.age(3590)
            auths.append(it.oauth())
            await it.request(auths[-1])
            await it.request(auths[-1], "tools/call", name="notes.erase")
            await it.age(4000)
            it.issuer.revoke_refresh_tokens()
            await it.request(it.oauth())
            it.issuer.token_fault = (400, {"error": "invalid_grant"})
            failure = await it.fails(it.oauth(store=MemoryStore()))
            secrets = {"s3cret-of-ours"}
            for _, _, said in it.issuer.seen:
                for name in ("code", "code_verifier", "refresh_token", "client_secret", "state"):
                    secrets.add(said.get(name, "s3cret-of-ours"))
            secrets.update(str(shown).removeprefix("Bearer ") for shown in it.server.seen if shown)
            assert len(secrets) > 15
            kept = [held for auth in auths for held in auth._held.values()]
            shown = (
                caplog.text
                + repr(failure)
                + repr([vars(auth) for auth in auths])
                + repr([vars(one) for one in kept])
            )
            assert "Getting access to" in caplog.text
            assert [secret for secret in secrets if secret in shown] == []

    with caplog.at_level(logging.DEBUG):
        drive(main())


@in_world
async def test_a_secret_of_the_caller_is_not_kept(it: World) -> None:
    it.issuer.know("ours", client_secret="s3cret-of-ours")
    await it.request(it.oauth(client_id="ours", client_secret="s3cret-of-ours"))
    assert "s3cret-of-ours" not in repr(await it.store.load(it.server.url))


@in_world
async def test_the_address_to_log_in_at_has_nothing_secret_in_it(it: World) -> None:
    await it.request(it.oauth(redirect_uri="http://127.0.0.1:9/back"))
    [url] = it.person.visits
    said = parse_qs(urlsplit(url).query)
    verifier = it.issuer.grants("authorization_code")[0]["code_verifier"]
    assert verifier not in url
    assert sorted(said) == [
        "client_id", "code_challenge", "code_challenge_method", "redirect_uri", "resource", "response_type", "scope", "state",
    ]  # fmt: skip


def test_an_error_tells_where_and_why() -> None:
    failure = LoginFailed("no", server="https://a.example/mcp", reason="access_denied")
    assert failure.data == {"server": "https://a.example/mcp", "reason": "access_denied"}
    assert (failure.code, failure.recoverable, failure.again().data) == ("login_failed", False, failure.data)

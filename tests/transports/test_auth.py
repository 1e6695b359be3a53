"""Who calls: keys and tokens, with real keys, a real server of keys and a real midcall server."""

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import logging
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import InvalidStatus

from driving import LIMIT, drive
from mcp_peers import META
from mcp_peers import http as send_http
from mcp_peers import http_server as mcp_server
from midcall import Hub, NotAllowed, completion, connect_hub, method, prompt, resource
from midcall.principal import Principal, check_scopes, missing_scopes
from midcall.transports import jwks
from midcall.transports.auth import (
    LEEWAY,
    OAuthResourceServer,
    StaticKeys,
    Unauthorized,
    challenge,
    metadata_url,
    resource_metadata,
)
from midcall.transports.jwks import Keys, KeysUnavailable, UnknownKey
from peers import ask, command, environment, http_server

RESOURCE = "https://tools.example.com/mcp"
ALICE = "alice-0123456789abcdef"
BOB = "bob-0123456789abcdef="
WELL_KNOWN = "/.well-known/oauth-protected-resource"


def refused(auth: Any, authorization: str | None) -> Unauthorized:
    with pytest.raises(Unauthorized) as refusal:
        drive(auth.authenticate(authorization))
    return refusal.value


def let_in(auth: Any, token: str) -> Principal:
    found = drive(auth.authenticate(f"Bearer {token}"))
    assert isinstance(found, Principal)
    return found


# --- keys that were given out ---------------------------------------------------------------


@pytest.fixture
def keys() -> StaticKeys:
    return StaticKeys(f"# people\nalice={ALICE}:files:read,files:write\n\n  bob={BOB}\n")


def test_a_key_tells_who_calls_and_which_scopes_they_have(keys: StaticKeys) -> None:
    assert let_in(keys, ALICE) == Principal("alice", frozenset(("files:read", "files:write")))
    assert let_in(keys, BOB) == Principal("bob", frozenset())


def test_the_word_bearer_may_be_written_in_any_case(keys: StaticKeys) -> None:
    assert drive(keys.authenticate(f"bearer  {ALICE}")).name == "alice"


@pytest.mark.parametrize(
    "authorization", [None, "", "Basic YWxpY2U6eA==", ALICE, "Bearer", "Bearer a b", "Bearer ä"]
)
def test_without_a_key_the_caller_is_told_that_one_is_needed(
    keys: StaticKeys, authorization: str | None
) -> None:
    refusal = refused(keys, authorization)
    assert refusal.status == 401
    assert refusal.www_authenticate == 'Bearer realm="midcall"'


@pytest.mark.parametrize("token", [ALICE[:-1], ALICE + "x", ALICE.upper(), "alice", "x" * 5000])
def test_a_wrong_key_is_refused(keys: StaticKeys, token: str) -> None:
    refusal = refused(keys, f"Bearer {token}")
    assert refusal.status == 401
    assert refusal.www_authenticate == 'Bearer error="invalid_token"'
    assert token not in str(refusal)


def test_no_key_is_kept_in_memory(keys: StaticKeys) -> None:
    assert ALICE not in repr(vars(keys))
    assert hashlib.sha256(ALICE.encode()).digest() in keys._keys


def test_one_name_may_have_two_keys_so_that_they_can_be_changed() -> None:
    keys = StaticKeys("alice=first-0123456789abcdef alice=second-0123456789abcdef")
    assert let_in(keys, "first-0123456789abcdef") == let_in(keys, "second-0123456789abcdef")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("", "no key"),
        ("# nobody", "no key"),
        ("alice", "Line 1 is not name=token"),
        ("=0123456789abcdef0", "Line 1 is not name=token"),
        ("alice=short", "token of alice is too short"),
        ("alice=0123456789abcdef\u00e4", "characters that no header takes"),
        (f"alice={ALICE}\nbob={ALICE}", "bob and alice have the same token"),
    ],
)
def test_entries_that_cannot_be_keys_are_refused(entries: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StaticKeys(entries)


def test_an_error_in_an_entry_does_not_show_the_key() -> None:
    with pytest.raises(ValueError) as error:
        StaticKeys("a:lice=secret-0123456789abcdef")
    assert "secret" not in str(error.value)


def test_keys_come_from_a_file_or_from_the_environment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"alice={ALICE}\n")
    file.chmod(0o600)
    assert let_in(StaticKeys.from_file(file), ALICE).name == "alice"
    assert not caplog.records
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING, "midcall.auth"):
        StaticKeys.from_file(file)
    assert "chmod 600" in caplog.text
    found = StaticKeys.from_environment({"MIDCALL_TOKENS": f"alice={ALICE} bob={BOB}:x"})
    assert found is not None
    assert let_in(found, BOB) == Principal("bob", frozenset("x"))
    assert StaticKeys.from_environment({}) is None
    with pytest.raises(ValueError, match="MIDCALL_TOKENS: "):
        StaticKeys.from_environment({"MIDCALL_TOKENS": "alice"})


# --- scopes ---------------------------------------------------------------------------------


class Files:
    """Files."""

    @method
    def list(self) -> str:
        """List them."""
        return "all"

    @method(scopes=["files:read", "files:write"])
    def delete(self) -> str:
        """Delete them."""
        return "gone"


class Papers:
    """What can be read and filled in."""

    @resource("papers://list")
    def all(self) -> str:
        """All papers."""
        return "all"

    @resource("papers://{name}", scopes=["files:read", "files:write"])
    def paper(self, name: str) -> str:
        """One paper."""
        return f"paper {name}"

    @prompt(scopes=["files:write"])
    def summary(self, name: str) -> str:
        """Sum a paper up."""
        return f"Sum up {name}"

    @completion("papers://{name}", "name")
    def names(self, value: str) -> list[str]:
        """Their names: who may not read a paper is not told that there is one."""
        return [value]

    @completion("summary", "name", scopes=["files:read"])
    def more_names(self, value: str) -> list[str]:
        """Names again."""
        return [value]

    @prompt("review-{name}", scopes=["files:write"])
    def review(self, name: str) -> str:
        """Review a paper."""
        return f"Review {name}"

    @completion("review-{name}", "name")
    def reviewed(self, value: str) -> list[str]:
        """Names of papers."""
        return [value]


scoped_hub = Hub().register(Files()).register(Papers())


def test_a_method_tells_which_scopes_a_caller_lacks() -> None:
    hub = Hub().register(Files())
    needs = hub.resolve("files.delete").method.extras
    assert missing_scopes(needs, Principal("a")) == ("files:read", "files:write")
    assert missing_scopes(needs, Principal("a", frozenset(("files:read", "x")))) == ("files:write",)
    assert missing_scopes(needs, Principal("a", frozenset(("files:read", "files:write")))) == ()
    assert missing_scopes(needs, None) == (), "nobody asked who calls"
    assert missing_scopes(hub.resolve("files.list").method.extras, Principal("a")) == ()
    with pytest.raises(NotAllowed) as refusal:
        check_scopes("files.delete", needs, Principal("a", frozenset(("files:read",))))
    assert refusal.value.missing == ["files:write"]
    assert refusal.value.data == {"method": "files.delete", "scopes": ["files:read", "files:write"]}


def test_a_caller_that_lacks_a_scope_is_told_all_that_the_method_needs(keys: StaticKeys) -> None:
    refusal = keys.refusal(["files:read", "files:write"])
    assert refusal.status == 403
    assert refusal.www_authenticate == (
        'Bearer error="insufficient_scope", error_description="The scope files:read files:write is needed", '
        'scope="files:read files:write"'
    )


def test_a_challenge_cannot_be_broken_out_of() -> None:
    value = challenge(error="x", description='a", evil="b\r\nSet-Cookie: c\\')
    assert value == 'Bearer error="x", error_description="a, evil=bSet-Cookie: c"'


# --- an OAuth server ------------------------------------------------------------------------


class Issuer:
    """An OAuth server, as far as a resource server sees it: a URL with keys, and tokens."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.private: dict[str, Any] = {"one": rsa.generate_private_key(65537, 2048)}
        self.algorithms = {"one": "RS256"}
        self.fetched = 0
        self.broken = False

    @property
    def jwks(self) -> str:
        return f"{self.url}/jwks"

    def document(self) -> dict[str, Any]:
        return {"keys": [self.public(kid) for kid in self.private]}

    def public(self, kid: str) -> dict[str, Any]:
        kind = jwt.algorithms.get_default_algorithms()[self.algorithms[kid]]
        return {**kind.to_jwk(self.private[kid].public_key(), as_dict=True), "kid": kid, "use": "sig"}

    def token(self, *, kid: str | None = "one", key: Any = None, alg: str = "", **claims: Any) -> str:
        now = int(time.time())
        whole = {"iss": self.url, "aud": RESOURCE, "sub": "alice", "exp": now + 60, "iat": now, **claims}
        return jwt.encode(
            {name: value for name, value in whole.items() if value is not None},
            key or self.private[kid or "one"],
            alg or self.algorithms[kid or "one"],
            {} if kid is None else {"kid": kid},
        )


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.fetched += 1
            if found.broken:
                self.send_error(500)
                return
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/jwks")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found.document()).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing is said."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Issuer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def oauth(issuer: Issuer) -> OAuthResourceServer:
    return OAuthResourceServer(issuer=issuer.url, resource=RESOURCE, jwks=issuer.jwks)


def test_a_token_tells_until_when_it_is_good(issuer: Issuer, oauth: OAuthResourceServer) -> None:
    until = int(time.time()) + 60
    assert let_in(oauth, issuer.token(exp=until)).expires == until + LEEWAY, "as long as it is let in"


def test_a_token_tells_who_calls(issuer: Issuer, oauth: OAuthResourceServer) -> None:
    assert let_in(oauth, issuer.token(scope="a b")) == Principal("alice", frozenset("ab"))
    assert issuer.fetched == 1
    let_in(oauth, issuer.token())
    assert issuer.fetched == 1, "the keys are kept"


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "a b"}, "ab"),
        ({"scp": "a b"}, "ab"),
        ({"scp": ["a", "b"]}, "ab"),
        ({"scope": "a", "scp": ["b"]}, "ab"),
        ({"scope": ["a", 1]}, "a"),
        ({"scope": 7}, ""),
        ({}, ""),
    ],
)
def test_scopes_are_read_however_a_server_writes_them(
    issuer: Issuer, oauth: OAuthResourceServer, claims: dict[str, Any], scopes: str
) -> None:
    assert let_in(oauth, issuer.token(**claims)).scopes == frozenset(scopes)


def test_the_audience_may_be_one_of_several_and_may_end_in_a_slash(
    issuer: Issuer, oauth: OAuthResourceServer
) -> None:
    let_in(oauth, issuer.token(aud=["https://other.example", RESOURCE]))
    let_in(oauth, issuer.token(aud=f"{RESOURCE}/"))


def test_a_program_that_comes_in_its_own_name_is_known_by_its_client_id(
    issuer: Issuer, oauth: OAuthResourceServer
) -> None:
    assert let_in(oauth, issuer.token(sub=None, client_id="cron")).name == "cron"


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"exp": 1}, "has expired"),
        ({"exp": None}, "not valid"),
        ({"nbf": 2**33}, "not valid"),
        ({"iat": 2**33}, "not valid"),
        ({"aud": "https://other.example/mcp"}, "for another server"),
        ({"aud": ["https://tools.example.com"]}, "for another server"),
        ({"aud": None}, "not valid"),
        ({"iss": "https://evil.example"}, "not valid"),
        ({"iss": None}, "not valid"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(
    issuer: Issuer, oauth: OAuthResourceServer, claims: dict[str, Any], message: str
) -> None:
    refusal = refused(oauth, f"Bearer {issuer.token(**claims)}")
    assert refusal.status == 401
    assert message in refusal.message
    assert refusal.www_authenticate is not None
    assert refusal.www_authenticate.startswith('Bearer error="invalid_token"')
    assert f'resource_metadata="https://tools.example.com{WELL_KNOWN}/mcp"' in refusal.www_authenticate


def test_clocks_may_differ_a_little(issuer: Issuer, oauth: OAuthResourceServer) -> None:
    now = int(time.time())
    let_in(oauth, issuer.token(exp=now - 5))
    let_in(oauth, issuer.token(nbf=now + 5, iat=now + 5))
    refused(oauth, f"Bearer {issuer.token(exp=now - 60)}")


def test_a_token_signed_with_another_key_is_refused(issuer: Issuer, oauth: OAuthResourceServer) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    assert refused(oauth, f"Bearer {issuer.token(key=stranger)}").message == "The token is not valid"


def test_a_token_that_was_changed_is_refused(issuer: Issuer, oauth: OAuthResourceServer) -> None:
    head, body, signature = issuer.token().split(".")
    other = issuer.token(sub="mallory").split(".")[1]
    refused(oauth, f"Bearer {head}.{other}.{signature}")
    refused(oauth, f"Bearer {head}.{body}.")
    refused(oauth, f"Bearer {head}.{body}")
    refused(oauth, "Bearer x.y.z")


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_an_unsigned_token_is_refused(issuer: Issuer, oauth: OAuthResourceServer) -> None:
    body = issuer.token().split(".")[1]
    for alg in ("none", "None", "NONE", "", None, 7, ["RS256"]):
        refusal = refused(oauth, f"Bearer {part({'alg': alg, 'kid': 'one'})}.{body}.")
        assert refusal.status == 401


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "RS256", "kid": 7},
        {"alg": "RS256", "kid": ["one"]},
        {"alg": "RS256", "kid": "one", "crit": ["x"], "x": 1},
        {"alg": "RS256", "kid": "one", "jku": "http://127.0.0.1:1/jwks"},
        {"kid": "one"},
        ["RS256"],
        None,
    ],
)
def test_a_token_with_a_strange_header_is_refused(
    issuer: Issuer, oauth: OAuthResourceServer, header: Any
) -> None:
    _, body, signature = issuer.token().split(".")
    assert refused(oauth, f"Bearer {part(header)}.{body}.{signature}").status == 401


def test_a_token_sealed_with_the_public_key_as_if_it_were_a_secret_is_refused(
    issuer: Issuer, oauth: OAuthResourceServer
) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = issuer.private["one"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, body = part({"alg": "HS256", "kid": "one"}), issuer.token().split(".")[1]
    seal = hmac.new(pem, f"{head}.{body}".encode(), "sha256").digest()
    forged = f"{head}.{body}.{base64.urlsafe_b64encode(seal).decode().rstrip('=')}"
    assert "not accepted" in refused(oauth, f"Bearer {forged}").message


def test_a_shared_secret_among_the_keys_is_not_used(issuer: Issuer, tmp_path: Path) -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    file = tmp_path / "jwks.json"
    entry = {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(secret).decode().rstrip("=")}
    file.write_text(json.dumps({"keys": [entry]}))
    with pytest.raises(ValueError, match="Not an algorithm with a public key: HS256"):
        OAuthResourceServer(issuer=issuer.url, resource=RESOURCE, jwks=file, algorithms=["RS256", "HS256"])
    oauth = OAuthResourceServer(issuer=issuer.url, resource=RESOURCE, jwks=file)
    assert refused(oauth, f"Bearer {issuer.token(key=secret, alg='HS256', kid=None)}").status == 401


@pytest.mark.parametrize(
    ("algorithm", "make"),
    [
        ("PS256", lambda: rsa.generate_private_key(65537, 2048)),
        ("ES256", lambda: ec.generate_private_key(ec.SECP256R1())),
        ("ES384", lambda: ec.generate_private_key(ec.SECP384R1())),
        ("EdDSA", ed25519.Ed25519PrivateKey.generate),
    ],
)
def test_each_kind_of_public_key_works(
    issuer: Issuer, oauth: OAuthResourceServer, algorithm: str, make: Any
) -> None:
    issuer.private["two"], issuer.algorithms["two"] = make(), algorithm
    assert let_in(oauth, issuer.token(kid="two")).name == "alice"


def test_a_key_too_weak_to_be_trusted_is_refused(issuer: Issuer, oauth: OAuthResourceServer) -> None:
    issuer.private["one"] = rsa.generate_private_key(65537, 1024)
    with pytest.warns(match="1024 bits"):
        token = issuer.token()
    assert refused(oauth, f"Bearer {token}").status == 401


def test_a_token_without_a_key_id_is_taken_only_if_there_is_no_doubt(
    issuer: Issuer, oauth: OAuthResourceServer
) -> None:
    let_in(oauth, issuer.token(kid=None))
    issuer.private["two"], issuer.algorithms["two"] = rsa.generate_private_key(65537, 2048), "RS256"
    both = OAuthResourceServer(issuer=issuer.url, resource=RESOURCE, jwks=issuer.jwks)
    refused(both, f"Bearer {issuer.token(kid=None)}")


def test_only_some_algorithms_may_be_allowed(issuer: Issuer) -> None:
    oauth = OAuthResourceServer(issuer=issuer.url, resource=RESOURCE, jwks=issuer.jwks, algorithms=["ES256"])
    assert "not accepted" in refused(oauth, f"Bearer {issuer.token()}").message


def test_scopes_that_each_token_must_have_are_asked_for(issuer: Issuer) -> None:
    oauth = OAuthResourceServer(
        issuer=issuer.url, resource=RESOURCE, jwks=issuer.jwks, scopes=["tools"], name="Tools"
    )
    where = f'resource_metadata="https://tools.example.com{WELL_KNOWN}/mcp"'
    nobody = refused(oauth, None)
    assert (nobody.status, nobody.www_authenticate) == (401, f'Bearer scope="tools", {where}')
    lacking = refused(oauth, f"Bearer {issuer.token(scope='other')}")
    assert lacking.status == 403
    assert lacking.www_authenticate is not None
    assert 'error="insufficient_scope"' in lacking.www_authenticate
    assert 'scope="tools"' in lacking.www_authenticate
    assert where in lacking.www_authenticate
    assert let_in(oauth, issuer.token(scope="tools other")).scopes == {"tools", "other"}
    assert 'scope="tools files:write"' in str(oauth.refusal(["files:write"]).www_authenticate)
    assert oauth.metadata()["scopes_supported"] == ["tools"]
    assert oauth.metadata()["resource_name"] == "Tools"


def test_the_metadata_says_where_to_get_a_token() -> None:
    assert resource_metadata(RESOURCE, ["https://auth.example.com"]) == {
        "resource": RESOURCE,
        "authorization_servers": ["https://auth.example.com"],
        "bearer_methods_supported": ["header"],
    }
    assert metadata_url("https://a.com") == f"https://a.com{WELL_KNOWN}"
    assert metadata_url("https://a.com/") == f"https://a.com{WELL_KNOWN}"
    assert metadata_url("https://a.com:8443/x/mcp") == f"https://a.com:8443{WELL_KNOWN}/x/mcp"


@pytest.mark.parametrize("resource", ["tools.example.com", "https://a.com#b", "ftp://a.com", ""])
def test_what_is_no_url_of_a_server_cannot_be_an_audience(resource: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a server"):
        OAuthResourceServer(issuer="https://auth.example.com", resource=resource, jwks="keys.json")


# --- where the keys come from ---------------------------------------------------------------


def test_keys_are_read_again_for_a_key_that_is_not_known_but_not_too_often(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(jwks, "time", SimpleNamespace(monotonic=lambda: now))

    async def main() -> None:
        nonlocal now
        keys = Keys(issuer.jwks, pause=2.0)
        await keys.find("one", "RS256")
        issuer.private["two"], issuer.algorithms["two"] = rsa.generate_private_key(65537, 2048), "RS256"
        for n in range(20):
            with pytest.raises(UnknownKey):
                await keys.find(f"made-up-{n}", "RS256")
        assert issuer.fetched == 1, "too soon"
        now += 2.1
        assert (await keys.find("two", "RS256")).key_id == "two"
        assert issuer.fetched == 2

    drive(main())


def test_many_tokens_at_once_read_the_keys_once(issuer: Issuer) -> None:
    async def main() -> None:
        keys = Keys(issuer.jwks)
        await asyncio.gather(*(keys.find("one", "RS256") for _ in range(50)))
        assert issuer.fetched == 1

    drive(main())


def test_a_key_that_was_taken_away_is_no_longer_trusted(issuer: Issuer) -> None:
    async def main() -> None:
        keys = Keys(issuer.jwks, fresh=0.1, pause=0.05)
        await keys.find("one", "RS256")
        issuer.private = {"two": rsa.generate_private_key(65537, 2048)}
        issuer.algorithms = {"two": "RS256"}
        await asyncio.sleep(0.15)
        with pytest.raises(UnknownKey):
            await keys.find("one", "RS256")

    drive(main())


def test_old_keys_stay_while_the_server_of_keys_is_away(issuer: Issuer) -> None:
    async def main() -> None:
        keys = Keys(issuer.jwks, fresh=0.05, pause=0.01)
        await keys.find("one", "RS256")
        issuer.broken = True
        await asyncio.sleep(0.1)
        assert (await keys.find("one", "RS256")).key_id == "one"
        assert issuer.fetched == 2

    drive(main())


def test_without_keys_nobody_is_let_in_and_nobody_is_sent_for_a_new_token(issuer: Issuer) -> None:
    issuer.broken = True
    oauth = OAuthResourceServer(issuer=issuer.url, resource=RESOURCE, jwks=issuer.jwks)
    refusal = refused(oauth, f"Bearer {issuer.token()}")
    assert (refusal.status, refusal.www_authenticate) == (503, None)


def test_keys_are_not_taken_from_where_a_redirect_leads(issuer: Issuer) -> None:
    with pytest.raises(KeysUnavailable):
        drive(Keys(f"{issuer.url}/moved").find("one", "RS256"))


def test_keys_come_over_https_from_this_machine_or_from_a_file(issuer: Issuer, tmp_path: Path) -> None:
    for unsafe in ("http://auth.example.com/jwks", "file:///etc/passwd", "ftp://a.com/x"):
        with pytest.raises(ValueError, match="over https"):
            Keys(unsafe)
    Keys("https://auth.example.com/jwks")
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(issuer.document()))
    oauth = OAuthResourceServer(issuer=issuer.url, resource=RESOURCE, jwks=str(file))
    let_in(oauth, issuer.token())
    assert issuer.fetched == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"keys": 1}', '{"keys": [1]}', "[" * 100_000])
def test_what_has_no_keys_is_a_failure_and_no_crash(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(text)
    with pytest.raises(KeysUnavailable):
        drive(Keys(file).find("one", "RS256"))


# --- a real server --------------------------------------------------------------------------

PING = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}'
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


async def socket_status(url: str, headers: dict[str, str]) -> tuple[int, str | None]:
    """The status with which a WebSocket is refused, or 101."""
    try:
        async with open_socket(url, additional_headers=headers):
            return 101, None
    except InvalidStatus as refusal:
        return refusal.response.status_code, refusal.response.headers.get("WWW-Authenticate")


def test_a_server_with_keys_lets_in_only_those_who_have_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"alice={ALICE}\n")
    file.chmod(0o600)
    bearer = {"Authorization": f"Bearer {ALICE}"}

    async def main() -> None:
        async with http_server(options=("--auth-tokens", str(file))) as url:

            def look() -> None:
                status, headers, _ = ask(url, "/mcp", JSON, PING)
                assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="midcall"')
                status, headers, body = ask(url, "/mcp", JSON | {"Authorization": "Bearer wrong"}, PING)
                assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer error="invalid_token"')
                assert json.loads(body)["error"]["message"] == "This key is not known"
                assert ask(url, "/mcp", JSON | bearer, PING)[0] == 200
                assert ask(url, "/health", {})[0] == 200
                assert "Methods" not in ask(url, "/", {})[2], "names are for those who are let in"
                assert ask(url, WELL_KNOWN, {})[0] == 404

            await asyncio.to_thread(look)
            assert await socket_status(url, {}) == (401, 'Bearer realm="midcall"')
            assert await socket_status(url, {"Authorization": "Bearer wrong"}) == (
                401,
                'Bearer error="invalid_token"',
            )
            async with connect_hub(url, headers=bearer) as remote:
                assert await remote.request("plexus_hash")

    drive(main())


def tool_call(name: str, id: int = 2) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    ).encode()


def test_a_method_with_scopes_is_called_only_by_those_who_have_them(tmp_path: Path) -> None:
    """By every way in: the raw protocol and MCP on a WebSocket, and MCP over HTTP."""
    file = tmp_path / "keys.txt"
    file.write_text(f"alice={ALICE}:files:read,files:write\nbob={BOB}:files:read\n")
    file.chmod(0o600)
    alice, bob = ({"Authorization": f"Bearer {token}"} for token in (ALICE, BOB))

    async def main() -> None:
        async with http_server(f"{__file__}:scoped_hub", options=("--auth-tokens", str(file))) as url:
            async with connect_hub(url, headers=bob) as remote:
                assert await remote.call("files.list") == "all"
                for refused_call in (remote.call("files.delete"), remote.request("files_delete")):
                    with pytest.raises(NotAllowed, match="files:"):
                        await refused_call
            async with connect_hub(url, headers=alice) as remote:
                assert await remote.call("files.delete") == "gone"
            async with open_socket(url, additional_headers=bob) as socket:
                await socket.send(PING.decode())
                await socket.recv()
                await socket.send(tool_call("files.delete").decode())
                assert "Not allowed" in json.loads(await socket.recv())["error"]["message"]

            def over_http() -> None:
                for who, status in ((alice, 200), (bob, 403)):
                    _, headers, _ = ask(url, "/mcp", JSON | who, PING)
                    session = {"Mcp-Session-Id": headers["Mcp-Session-Id"]}
                    for name in ("files.delete", "files_delete"):
                        got, headers, body = ask(url, "/mcp", JSON | who | session, tool_call(name))
                        assert got == status
                        if got == 403:
                            assert (
                                headers["WWW-Authenticate"]
                                == StaticKeys(f"x={ALICE}")
                                .refusal(["files:read", "files:write"])
                                .www_authenticate
                            )
                            assert json.loads(body)["id"] == 2
                    stolen = ask(url, "/mcp", JSON | (bob if who is alice else alice) | session, PING)
                    assert stolen[0] == 404, "a session belongs to who opened it"

            await asyncio.to_thread(over_http)

    drive(main())


def test_resources_prompts_and_completions_have_scopes_too() -> None:
    def completing(kind: str, **of: str) -> dict[str, Any]:
        return {"ref": {"type": f"ref/{kind}", **of}, "argument": {"name": "name", "value": "a"}}

    both = ["files:read", "files:write"]
    needs: list[tuple[str, dict[str, Any], list[str]]] = [
        ("resources/read", {"uri": "papers://list"}, []),
        ("resources/read", {"uri": "papers://a"}, both),
        ("prompts/get", {"name": "papers.summary", "arguments": {"name": "a"}}, ["files:write"]),
        ("completion/complete", completing("resource", uri="papers://{name}"), both),
        ("completion/complete", completing("prompt", name="papers.summary"), both),
        ("completion/complete", completing("prompt", name="summary"), both),
        ("completion/complete", completing("prompt", name="papers.review-{name}"), ["files:write"]),
        ("completion/complete", completing("prompt", name="review-{name}"), ["files:write"]),
    ]
    only_old = ("resources/subscribe", {"uri": "papers://a"}, both)
    only_new = ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["papers://a"]}}, both)
    tokens = f"alice={ALICE}:files:read,files:write bob={BOB}:files:read"

    async def main() -> None:
        with mcp_server(f"{__file__}:scoped_hub", MIDCALL_TOKENS=tokens) as serving:
            for revision, more in (("2025-11-25", only_old), ("2026-07-28", only_new)):
                async with (
                    serving.client(revision, token=ALICE) as alice,
                    serving.client(revision, token=BOB) as bob,
                ):
                    for method_name, params, needed in [*needs, more]:
                        if method_name == "subscriptions/listen":
                            await alice.start(method_name, params)
                            await alice.message("notifications/subscriptions/acknowledged")
                        else:
                            await alice.result(method_name, params)
                        if not needed:
                            await bob.result(method_name, params)
                            continue
                        message = {"jsonrpc": "2.0", "id": 7, "method": method_name, "params": params}
                        if bob.modern:
                            meta = {f"{META}protocolVersion": revision, f"{META}clientCapabilities": {}}
                            message["params"] = {**params, "_meta": meta}
                        response = await send_http(
                            serving.port, "POST", bob.headers(message), json.dumps(message).encode()
                        )
                        value = StaticKeys(f"x={ALICE}").refusal(needed).www_authenticate
                        assert (response.status, response.headers["www-authenticate"]) == (403, value)
                        error = json.loads(await response.body())["error"]
                        assert error["message"].startswith("Not allowed to call ")
                        assert error["data"]["scopes"] == needed

    drive(main())


def test_a_server_with_oauth_lets_in_tokens_and_says_where_to_get_one(issuer: Issuer) -> None:
    options = ("--oauth-issuer", issuer.url, "--oauth-audience", RESOURCE, "--oauth-jwks", issuer.jwks)
    bearer = {"Authorization": f"Bearer {issuer.token()}"}
    where = f"https://tools.example.com{WELL_KNOWN}/mcp"

    async def main() -> None:
        async with http_server(options=options) as url:

            def look() -> None:
                status, headers, _ = ask(url, "/mcp", JSON, PING)
                assert (status, headers["WWW-Authenticate"]) == (401, f'Bearer resource_metadata="{where}"')
                assert ask(url, "/mcp", JSON | bearer, PING)[0] == 200
                for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp"):
                    status, headers, body = ask(url, path, {"Origin": "https://inspector.example"})
                    assert status == 200
                    assert headers["Access-Control-Allow-Origin"] == "*"
                    assert json.loads(body) == {
                        "resource": RESOURCE,
                        "authorization_servers": [issuer.url],
                        "bearer_methods_supported": ["header"],
                        "resource_name": "plexus",
                    }

            await asyncio.to_thread(look)
            assert (await socket_status(url, {}))[0] == 401
            assert (await socket_status(url, bearer))[0] == 101

    drive(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--oauth-issuer", "https://a.com"], "--oauth-issuer needs --oauth-audience and --oauth-jwks too"),
        (["--auth-tokens", "missing.txt"], "missing.txt"),
        (["--auth-tokens", "x", "--no-auth"], "--no-auth turns authentication off"),
        (
            ["--oauth-issuer", "a", "--oauth-audience", "b", "--oauth-jwks", "c", "--auth-tokens", "d"],
            "Use either --auth-tokens or --oauth-issuer",
        ),
        (
            ["--oauth-issuer", "https://a.com", "--oauth-audience", RESOURCE, "--oauth-jwks", "http://a.com"],
            "over https",
        ),
        (["--allow-host", "http://a.com/b"], "--allow-host"),
    ],
)
def test_options_that_do_not_fit_are_a_usage_error(tmp_path: Path, options: list[str], message: str) -> None:
    done = subprocess.run(
        command("serve", "lines_app:hub", *options),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr

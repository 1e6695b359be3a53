"""Who may connect: hosts, origins and addresses, at the functions and at a real server."""

import asyncio
import json
import subprocess
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from driving import LIMIT, drive
from midcall import Hub
from midcall.transports.http_server import server
from midcall.transports.security import Gate, is_loopback, refuse_public_bind
from peers import ask, command, environment, free_port, http_server

LOOPBACK = ("127.0.0.1", 8000)
LAN = ("192.168.1.5", 8000)
EVERYWHERE = ("0.0.0.0", "::", "")


def fault(
    host: str | None, origin: str | None = None, *, hosts: tuple[str, ...] = (), at: Any = LOOPBACK
) -> str | None:
    headers = [(b"accept", b"*/*")]
    if host is not None:
        headers.append((b"host", host.encode("latin-1")))
    if origin is not None:
        headers.append((b"origin", origin.encode("latin-1")))
    return Gate(hosts).check(headers, at)[0]


# --- hosts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1:9", "127.9.9.9", "[::1]:8000", "[::1]", "app.localhost:80"],
)  # fmt: skip
def test_loopback_names_are_let_in_with_any_port(host: str) -> None:
    assert fault(host) is None
    assert fault(host, at=LAN) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "evil.example@localhost",
        "evil.example/localhost",
        "localhost:port",
        "localhost:99999",
        "[::1",
        "192.168.1.5:8000",
        "0.0.0.0:8000",
        "",
        " ",
    ],
)
def test_another_name_for_this_machine_is_refused(host: str) -> None:
    """DNS rebinding: the page's own name points here."""
    said = fault(host)
    assert said is not None
    assert "Host" in said


def test_a_request_without_a_host_or_with_two_is_refused() -> None:
    assert fault(None) == "Host (none) is not one of this server's names"
    twice = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert Gate().check(twice, LOOPBACK) == ("More than one Host header", None)


def test_the_address_at_which_a_request_arrived_is_let_in() -> None:
    assert fault("192.168.1.5:8000", at=LAN) is None
    assert fault("192.168.1.6:8000", at=LAN) is not None
    assert fault("[fe80:0::1]:80", at=("fe80::1", 80)) is None
    assert fault("192.168.1.5", at=("::ffff:192.168.1.5", 80)) is None


def test_a_name_that_the_server_heard_from_the_request_is_no_address() -> None:
    assert fault("evil.example", at=("evil.example", 80)) is not None
    assert fault("evil.example", at=("/run/midcall.sock", None)) is not None


def test_configured_names_are_let_in_with_any_port_or_only_with_theirs() -> None:
    assert fault("tools.example.com", hosts=("tools.example.com",)) is None
    assert fault("Tools.Example.com.:8443", hosts=("tools.example.com",)) is None
    assert fault("sub.tools.example.com", hosts=("tools.example.com",)) is not None
    assert fault("tools.example.com:8443", hosts=("tools.example.com:8443",)) is None
    assert fault("tools.example.com", hosts=("tools.example.com:8443",)) is not None
    assert fault("whatever.example", hosts=("*",)) is None


@pytest.mark.parametrize("wrong", ["https://", "a b/c", "http://a.com/path", "a:b"])
def test_what_is_neither_a_host_nor_an_origin_cannot_be_configured(wrong: str) -> None:
    with pytest.raises(ValueError, match="neither a host"):
        Gate([wrong])


# --- origins --------------------------------------------------------------------------------


def test_a_program_sends_no_origin_and_is_let_in() -> None:
    assert fault("localhost:8000") is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("localhost:8000", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000", "http://[::1]:8000"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost"),
    ],
)
def test_pages_of_the_servers_own_origin_are_let_in(host: str, origin: str) -> None:
    assert fault(host, origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://evil.example:8000",
        "http://localhost:3000",
        "http://localhost",
        "https://localhost.evil.example:8000",
        "http://localhost:8000@evil.example",
        "http://localhost:8000/page",
        "null",
        "",
        "file://",
        "localhost:8000",
    ],
)
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    said = fault("localhost:8000", origin)
    assert said is not None
    assert "Origin" in said


def test_a_loopback_page_is_foreign_to_a_server_on_the_network() -> None:
    assert fault("192.168.1.5:8000", "http://localhost:8000", at=LAN) is not None
    assert fault("192.168.1.5:8000", "http://192.168.1.5:8000", at=LAN) is None


def test_configured_origins_are_let_in_as_they_are_written() -> None:
    hosts = ("api.example.com", "https://app.example.com")
    assert fault("api.example.com", "https://app.example.com", hosts=hosts) is None
    assert fault("api.example.com", "https://app.example.com:443", hosts=hosts) is None
    assert fault("api.example.com", "http://app.example.com", hosts=hosts) is not None
    assert fault("api.example.com", "https://app.example.com:8443", hosts=hosts) is not None
    assert fault("app.example.com", hosts=hosts) is not None, "an origin is no host"


def test_two_origins_are_refused() -> None:
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"origin", b"http://evil.example")]
    assert Gate().check(headers, LOOPBACK) == ("More than one Origin header", None)


def test_any_host_does_not_mean_any_origin() -> None:
    assert fault("x.example", "http://evil.example", hosts=("*",)) is not None


# --- addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"])
def test_a_loopback_address_needs_no_authentication(host: str) -> None:
    assert is_loopback(host)
    assert refuse_public_bind(host, has_auth=False, told_twice=False) is None


@pytest.mark.parametrize("host", [*EVERYWHERE, "192.168.1.5", "10.0.0.1", "2001:db8::1", "tools.example.com"])
def test_a_public_address_without_authentication_is_refused_unless_told_twice(host: str) -> None:
    said = refuse_public_bind(host, has_auth=False, told_twice=False)
    assert said is not None
    assert "--no-auth and --allow-public" in said
    assert refuse_public_bind(host, has_auth=True, told_twice=False) is None
    assert refuse_public_bind(host, has_auth=False, told_twice=True) is None


def test_a_server_made_in_code_is_refused_too() -> None:
    with pytest.raises(ValueError, match="without authentication"):
        server(Hub(), "0.0.0.0")
    assert server(Hub(), "0.0.0.0", allow_public=True).config.host == "0.0.0.0"


@pytest.mark.parametrize("told", [[], ["--no-auth"], ["--allow-public"]])
def test_midcall_serve_does_not_listen_on_a_public_address_when_told_once(told: list[str]) -> None:
    done = subprocess.run(
        command("serve", "lines_app:hub", "--host", "0.0.0.0", "--port", str(free_port()), *told),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert "Refused to listen on 0.0.0.0 without authentication" in done.stderr


def test_midcall_serve_listens_on_a_public_address_when_told_twice() -> None:
    async def main() -> None:
        port = free_port()
        options = ("--host", "0.0.0.0", "--no-auth", "--allow-public")
        async with http_server(port=port, options=options) as url:
            assert await asyncio.to_thread(status, url, "/", {}) == 200

    drive(main())


# --- a real server --------------------------------------------------------------------------


def status(url: str, path: str, headers: dict[str, str], body: bytes | None = None) -> int:
    return ask(url, path, headers, body)[0]


def test_a_server_refuses_foreign_hosts_and_origins_before_it_reads_anything() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    json_body = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    async def main() -> None:
        async with http_server(options=("--allow-host", "tools.example.com")) as url:

            def look() -> None:
                assert status(url, "/", {}) == 200
                for foreign in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                    assert status(url, "/", foreign) == 403
                    code, _, said = ask(url, "/mcp", {**json_body, **foreign}, body)
                    assert code == 403
                    assert "evil.example" in json.loads(said)["error"]["message"]
                    assert status(url, "/health", foreign) == 200
                assert status(url, "/", {"Host": "tools.example.com"}) == 200

            await asyncio.to_thread(look)

    drive(main())


def test_a_web_page_of_another_origin_cannot_open_a_websocket() -> None:
    async def main() -> None:
        async with http_server() as url:
            own = url.replace("ws://", "http://").removesuffix("/ws")
            async with connect(url, origin=own):  # type: ignore[arg-type]
                pass
            with pytest.raises(InvalidStatus) as refused:
                async with connect(url, origin="http://evil.example"):  # type: ignore[arg-type]
                    pass
            assert refused.value.response.status_code == 403

    drive(main())

"""The ways of the HTTP client to a server: names and addresses, TLS, proxies; and what it says if there is none."""

import asyncio
import socket
from functools import partial

import pytest

from driving import with_patience
from http_peers import (
    OK,
    STAY,
    Certificate,
    Played,
    Run,
    get,
    loops,
    make_certificate,
    playing,
    post,
    proxy,
    read_request,
    run_in,
    serving,
    socks_proxy,
    until,
    uvicorn_server,
)
from midcall.http.client import HttpClient
from midcall.http.connections import Proxies
from midcall.http.message import HttpError, HttpUrl
from peers import free_port


@pytest.fixture(params=loops(), ids=lambda factory: factory.__module__)
def drive(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine, on each kind of event loop."""
    return partial(run_in, request.param)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "server.pem")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


# --- no way --------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_named_with_the_reason(drive: Run) -> None:
    async def main() -> None:
        async with HttpClient() as client:
            url = HttpUrl(f"http://127.0.0.1:{free_port()}/mcp")
            record = await post(client, url).whole()
            assert str(record.error) == f"{url} cannot be reached: connection refused"
            assert record.error is not None
            assert record.error.sent is False
            assert record.error.recoverable

    drive(main())


def test_all_who_wait_for_a_server_that_is_not_there_hear_of_it_and_it_may_come_back(drive: Run) -> None:
    async def main() -> None:
        async with HttpClient(max_connections=3) as client:
            port = free_port()
            url = HttpUrl(f"http://127.0.0.1:{port}/")
            for record in [post(client, url) for _ in range(50)]:
                await record.whole()
                assert "connection refused" in str(record.error)
            with socket.create_server(("127.0.0.1", port)) as listener:
                record = post(client, url)
                listener.setblocking(False)
                loop = asyncio.get_running_loop()
                accepted, _ = await loop.sock_accept(listener)
                with accepted:
                    await loop.sock_recv(accepted, 65536)
                    await loop.sock_sendall(accepted, OK)
                    assert await record.text() == b"ok"

    drive(main())


def test_a_name_that_nobody_knows_is_named(drive: Run) -> None:
    async def main() -> None:
        async with HttpClient() as client:
            record = await post(client, HttpUrl("http://nowhere.invalid/mcp")).whole()
            message = "http://nowhere.invalid/mcp cannot be reached: the name nowhere.invalid is not known"
            assert str(record.error).startswith(message)
            assert record.error is not None
            assert record.error.sent is False
            long = "a" * 70 + ".test"
            record = await post(client, HttpUrl(f"http://{long}/")).whole()
            assert str(record.error).startswith(f"http://{long}/ cannot be reached: its name is not valid (")

    drive(main())


def test_a_connection_that_takes_too_long_is_given_up(drive: Run) -> None:
    async def main() -> None:
        async with playing([STAY]) as server, HttpClient(connect_timeout=0.1) as client:
            url = HttpUrl(str(server.url).replace("http:", "https:"))  # it never says hello
            record = await post(client, url).whole()
            assert str(record.error) == f"{url} cannot be reached: no connection within 0.1 seconds"
            assert record.error is not None
            assert record.error.sent is False
            await until(lambda: server.open == 0)

    drive(main())


def test_those_who_wait_do_not_try_one_after_another_what_has_failed_for_the_first(drive: Run) -> None:
    async def main() -> None:
        async with playing([STAY]) as server, HttpClient(max_connections=1, connect_timeout=0.1) as client:
            url = HttpUrl(str(server.url).replace("http:", "https:"))  # it never says hello
            for record in [post(client, url) for _ in range(20)]:
                assert "no connection within" in str((await record.whole()).error)
            assert server.connections <= 2  # one was under way before the others came

    drive(main())


def test_one_whose_time_is_up_takes_nobody_along(drive: Run) -> None:
    async def attempt(seconds: float) -> bool:
        async with (
            playing([STAY]) as server,
            HttpClient(max_connections=1, connect_timeout=seconds) as client,
        ):
            url = HttpUrl(str(server.url).replace("http:", "https:"))  # it never says hello
            both = post(client, url), post(client, url)
            with pytest.raises(HttpError, match="did not answer in time"):
                await client.request("GET", url, timeout=seconds / 10)
            ended = [record.ended.is_set() for record in both]
            for record in both:
                assert "no connection within" in str((await record.whole()).error)
            return not any(ended)

    drive(with_patience(attempt))


def test_a_server_that_speaks_first_is_no_server(drive: Run) -> None:
    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test ready\r\n")
        await reader.read()

    async def main() -> None:
        async with serving(handler) as server, HttpClient() as client:
            record = await post(client, server.url).whole()
            assert record.error is not None  # which one depends on who is faster

    drive(main())


def test_an_attempt_that_fails_fails_only_those_who_waited_for_it(drive: Run) -> None:
    """One that comes when an old attempt is about to fail gets an attempt of its own."""

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait() if played.connections == 1 else await asyncio.sleep(0)

    async def main() -> None:
        nonlocal go_on
        go_on = asyncio.Event()
        async with serving(handler) as server, HttpClient() as client:
            url = HttpUrl(str(server.url).replace("http:", "https:"))
            first = post(client, url)
            await until(lambda: server.connections == 1)
            first.task.cancel()
            second = post(client, url)
            go_on.set()
            await second.whole()
            assert server.connections == 2
            assert second.error is not None

    go_on: asyncio.Event
    drive(main())


def test_a_name_with_several_addresses_is_tried_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(host: str, port: int, *_: object) -> list[object]:
        assert host == "both.test"
        kind = socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
        return [(socket.AF_INET, *kind, (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    async def main() -> None:
        async with playing([OK, STAY]) as server, HttpClient() as client:
            monkeypatch.setattr(socket, "getaddrinfo", both)  # uvloop has a resolver of its own
            url = HttpUrl(f"http://both.test:{server.url.port}/")
            assert await get(client, url).text() == b"ok"

    run_in(asyncio.new_event_loop, main())


def test_an_ipv6_address_can_be_called(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK, STAY], host="::1") as server, HttpClient() as client:
            assert await get(client, server.url).text() == b"ok"
            assert b"Host: [::1]:%d\r\n" % server.url.port in server.requests[0]

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    drive(main())


# --- TLS -----------------------------------------------------------------------------------------


def test_https_works_as_http_does(drive: Run, certificate: Certificate) -> None:
    async def main() -> None:
        async with uvicorn_server(certificate) as server, HttpClient(tls=certificate.client()) as client:
            for number in range(3):
                assert await post(client, server.url, b"%d" % number).text() == b"%d" % number
            assert server.connections == 1
            assert await get(client, server.at("/chunked")).text() == b"0,1,2,end"
            stream = get(client, server.at("/events"))
            await stream.grew.wait()
            records = [post(client, server.at("/slow"), b"%d" % number) for number in range(50)]
            for number, record in enumerate(records):
                assert await record.text() == b"%d" % number
            assert len(await get(client, server.at("/large")).text()) == 32 * 1024 * 1024
            stream.task.cancel()

    drive(main())


def test_the_system_says_whom_to_trust(
    drive: Run, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with playing([OK, STAY], tls=certificate.server()) as server:
            async with HttpClient() as client:
                record = await post(client, server.url).whole()
                assert record.error is not None
                assert record.error.sent is False
                start = f"{server.url} cannot be reached: its certificate is not trusted (self"
                assert str(record.error).startswith(start)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
            async with HttpClient() as client:
                assert await post(client, server.url).text() == b"ok"

    drive(main())


def test_a_certificate_for_another_name_is_not_trusted(drive: Run, certificate: Certificate) -> None:
    async def main() -> None:
        async with (
            playing([OK, STAY], tls=certificate.server(), host="127.0.0.2") as server,
            HttpClient(tls=certificate.client()) as client,
        ):
            record = await post(client, server.url).whole()
            assert "its certificate is not trusted (IP address mismatch" in str(record.error)

    drive(main())


def test_plain_http_behind_https_is_named(drive: Run) -> None:
    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def main() -> None:
        async with serving(handler) as plain, HttpClient() as client:
            url = HttpUrl(str(plain.url).replace("http:", "https:"))
            record = await post(client, url).whole()
            assert str(record.error).startswith(f"{url} cannot be reached: TLS failed (")
            assert record.error is not None
            assert record.error.sent is False

    drive(main())


@pytest.mark.parametrize("proper", [True, False], ids=["a proper end", "an abrupt end"])
def test_a_body_that_ends_with_the_connection_must_end_properly(
    drive: Run, certificate: Certificate, proper: bool
) -> None:
    """Anybody on the way can cut a connection, but only the server can say in TLS that this is the end."""

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await cut.wait()
        if not proper:
            writer.transport.abort()

    async def main() -> None:
        nonlocal cut
        cut = asyncio.Event()
        async with (
            serving(handler, tls=certificate.server()) as server,
            HttpClient(tls=certificate.client()) as client,
        ):
            record = get(client, server.url)
            await record.grew.wait()
            cut.set()
            await record.whole()
            assert record.content == b"hello"
            assert (record.error is None) == proper

    cut: asyncio.Event
    drive(main())


# --- proxies -------------------------------------------------------------------------------------


def test_http_goes_through_a_proxy_with_the_whole_url(drive: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with playing([OK] * 2) as server, proxy(server.url) as way:
            monkeypatch.setenv("HTTP_PROXY", f"http://ann:s%40cret@127.0.0.1:{way.url.port}")
            async with HttpClient() as client:
                assert await post(client, HttpUrl("http://server.test:81/mcp?a=1")).text() == b"ok"
            lines = way.requests[0].split(b"\r\n")
            assert lines[0] == b"POST http://server.test:81/mcp?a=1 HTTP/1.1"
            assert b"Host: server.test:81" in lines
            assert b"Proxy-Authorization: Basic YW5uOnNAY3JldA==" in lines

    drive(main())


def test_https_goes_through_a_tunnel_that_the_proxy_cannot_look_into(
    drive: Run, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with uvicorn_server(certificate) as server, proxy(server.url) as way:
            monkeypatch.setenv("https_proxy", f"ann:secret@127.0.0.1:{way.url.port}")
            url = HttpUrl("https://server.test/mcp")
            async with HttpClient(tls=certificate.client()) as client:
                for _ in range(3):
                    assert await post(client, url, b"through").text() == b"through"
            assert len(way.requests) == 1
            assert way.requests[0].startswith(b"CONNECT server.test:443 HTTP/1.1\r\n")
            assert b"Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n" in way.requests[0]
            assert b"application/json" not in way.requests[0]

    drive(main())


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "the proxy {} refused: 407 Proxy Authentication Required",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nsurprise", "the connection was closed at once by or behind the proxy {}"),
        (b"SSH-2.0\r\n\r\n", "the proxy {} gave no valid answer"),
        (b"HTTP/1.1 200 OK\r\n", "the proxy {} gave no valid answer"),
        (b"x" * 20_000, "the proxy {} gave no valid answer"),
    ],
)
def test_a_proxy_that_does_not_help_is_named(
    drive: Run, monkeypatch: pytest.MonkeyPatch, refusal: bytes, reason: str
) -> None:
    async def main() -> None:
        async with playing([OK]) as server, proxy(server.url, refusal) as way:
            monkeypatch.setenv("ALL_PROXY", str(way.url))
            async with HttpClient() as client:
                record = await post(client, HttpUrl("https://server.test/mcp")).whole()
                why = reason.format(f"127.0.0.1:{way.url.port}")
                assert str(record.error) == f"https://server.test/mcp cannot be reached: {why}"
                assert record.error is not None
                assert record.error.sent is False

    drive(main())


def test_a_proxy_is_not_used_if_the_client_is_to_leave_the_environment_alone(
    drive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
        async with HttpClient(use_environment=False) as client:
            record = await post(client, HttpUrl("http://nowhere.invalid/")).whole()
            assert "the name nowhere.invalid is not known" in str(record.error)

    drive(main())


def test_a_proxy_of_another_kind_is_refused(drive: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:1080")
        async with HttpClient() as client:
            with pytest.raises(HttpError, match="are not supported") as caught:
                await client.request("GET", HttpUrl("http://server.test/"))
            assert caught.value.sent is False

    drive(main())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_may_be_spoken_to_over_tls(
    drive: Run, certificate: Certificate, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    async def main() -> None:
        tls = certificate if scheme == "https" else None
        async with uvicorn_server(tls) as server, proxy(server.url, tls=certificate.server()) as way:
            monkeypatch.setenv("ALL_PROXY", f"https://127.0.0.1:{way.url.port}")
            async with HttpClient(tls=certificate.client()) as client:
                url = HttpUrl(f"{scheme}://server.test/mcp")
                assert await post(client, url, b"through").text() == b"through"
            assert len(way.requests) == 1

    drive(main())


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("kind", ["socks5h", "socks4a"])
def test_a_proxy_may_speak_socks(
    drive: Run, certificate: Certificate, monkeypatch: pytest.MonkeyPatch, kind: str, scheme: str
) -> None:
    async def main() -> None:
        async with (
            uvicorn_server(certificate if scheme == "https" else None) as server,
            socks_proxy(server.url) as way,
        ):
            monkeypatch.setenv("ALL_PROXY", f"{kind}://127.0.0.1:{way.url.port}")
            async with HttpClient(tls=certificate.client()) as client:
                url = HttpUrl(f"{scheme}://server.test/mcp")
                for number in range(3):
                    assert await post(client, url, b"%d" % number).text() == b"%d" % number
            assert way.requests == [b"server.test"]
            monkeypatch.setenv("ALL_PROXY", f"{kind}://127.0.0.1:{free_port()}")
            async with HttpClient() as client:
                record = await post(client, HttpUrl("http://server.test/")).whole()
                assert "the proxy 127.0.0.1:" in str(record.error)
                assert record.error is not None
                assert record.error.sent is False

    drive(main())


@pytest.mark.parametrize(
    ("exceptions", "url", "direct"),
    [
        ("", "http://a.test/", False),
        ("", "http://localhost:8000/", True),
        ("", "http://x.localhost/", True),
        ("", "http://127.0.0.5/", True),
        ("", "http://[::1]/", True),
        ("*", "http://a.test/", True),
        ("a.test", "http://a.test/", True),
        ("A.TEST", "http://a.test./", True),
        ("a.test", "http://b.a.test/", True),
        (".a.test", "http://b.a.test/", True),
        ("*.a.test", "http://b.a.test/", True),
        ("a.test", "http://ba.test/", False),
        ("b.a.test", "http://a.test/", False),
        ("x, a.test ,y", "http://a.test/", True),
        ("a.test:8000", "http://a.test:8000/", True),
        ("a.test:8000", "http://a.test/", False),
        ("10.0.0.0/8", "http://10.1.2.3/", True),
        ("10.0.0.0/8", "http://11.1.2.3/", False),
        ("10.1.2.3", "http://10.1.2.3/", True),
        ("10.1.2.3:81", "http://10.1.2.3/", False),
        ("fd00::/8", "http://[fd00::5]/", True),
        ("[fd00::5]:81", "http://[fd00::5]:81/", True),
        ("[fd00::5]", "http://[fd00::6]/", False),
        ("10.0.0.0/8", "http://a.test/", False),
    ],
)
def test_some_hosts_need_no_proxy(exceptions: str, url: str, direct: bool) -> None:
    proxies = Proxies({"http": "proxy.test:3128"}, exceptions)
    found = proxies.find(HttpUrl(url))
    assert (found is None) == direct


def test_a_cgi_script_takes_no_proxy_from_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://evil.test:1")
    monkeypatch.setenv("REQUEST_METHOD", "GET")
    assert Proxies.of_environment().find(HttpUrl("http://a.test/")) is None


def test_each_scheme_has_a_proxy_of_its_own() -> None:
    proxies = Proxies({"http": "http://one.test:1", "all": "http://two.test:2"}, "")
    for url, expected in (("http://a.test/", "http://one.test:1"), ("https://a.test/", "http://two.test:2")):
        found = proxies.find(HttpUrl(url))
        assert found is not None
        assert found.url == expected

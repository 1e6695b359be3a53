"""The HTTP client, one exchange at a time: what is sent, and what is made of whatever comes back."""

import asyncio
import gzip
import socket
import struct
import zlib
from functools import partial

import pytest

from driving import with_patience
from http_peers import (
    OK,
    STAY,
    Played,
    Record,
    Run,
    dripping,
    get,
    loops,
    playing,
    post,
    run_in,
    serving,
    until,
)
from midcall.http import message
from midcall.http.client import HttpClient
from midcall.http.message import HttpError, HttpUrl, checked_headers


@pytest.fixture(params=loops(), ids=lambda factory: factory.__module__)
def drive(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine, on each kind of event loop."""
    return partial(run_in, request.param)


# --- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "full", "shown"),
    [
        ("http://a.test", "http://a.test/", "http://a.test/"),
        ("HTTP://A.test:80/x", "http://a.test/x", "http://a.test/x"),
        (
            "https://a.test:8443/x?k=1&l=%20#part",
            "https://a.test:8443/x?k=1&l=%20",
            "https://a.test:8443/x",
        ),
        ("http://[::1]:9/x", "http://[::1]:9/x", "http://[::1]:9/x"),
        ("http://ann:secret@a.test/x?key=secret", "http://a.test/x?key=secret", "http://a.test/x"),
        ("http://a.test/ä b?c=ü", "http://a.test/%C3%A4%20b?c=%C3%BC", "http://a.test/%C3%A4%20b"),
        ("http://bücher.test/", "http://xn--bcher-kva.test/", "http://xn--bcher-kva.test/"),
        ("http://a.test?q", "http://a.test/?q", "http://a.test/"),
    ],
)
def test_a_url_is_taken_apart(text: str, full: str, shown: str) -> None:
    url = HttpUrl(text)
    assert (url.full, str(url)) == (full, shown)
    assert shown.startswith(url.origin + "/")
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.test",
        "/x",
        "ftp://a.test/",
        "http://",
        "http:///x",
        "http://a.test:99999/",
        "http://a.test:x/",
        "http://[::1/",
        "http://a b/",
        "http://a.test/x\r\nevil: 1",
        "http://a.test/\0",
        "http://a\r\n.test/",
        "http://a.test\n",
        "http://[::1]evil/",
        "http://a.test\\/",
        "http://a.test\\.b.test/",
    ],
)
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(HttpError, match="is no") as caught:
        HttpUrl(text)
    assert caught.value.sent is False


def test_the_error_for_a_url_does_not_repeat_its_secrets() -> None:
    for text in ("http://ann:secret@a b/", "http://ann:secret@a.test:x/", "ftp://a:secret@a/?key=secret"):
        with pytest.raises(HttpError) as caught:
            HttpUrl(text)
        assert "secret" not in str(caught.value)


def test_a_reference_is_resolved_against_the_url_it_came_from() -> None:
    url = HttpUrl("http://a.test/x/y?z=1")
    assert url.join("w").full == "http://a.test/x/w"
    assert url.join("//b.test/").full == "http://b.test/"
    assert url.join("https://b.test:8/v").full == "https://b.test:8/v"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", "a\r\nevil: 1"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("x", "a\x7f"),
        ("x", "€"),
        ("x\r\nevil", "1"),
        ("x:", "1"),
        ("x y", "1"),
        ("", "1"),
        ("ü", "1"),
        ("Content-Length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Host", "b.test"),
    ],
)
def test_a_header_that_would_change_the_request_is_refused(name: str, value: str) -> None:
    with pytest.raises(HttpError, match="header") as caught:
        checked_headers([(name, value)])
    assert caught.value.sent is False


@pytest.mark.parametrize("verb", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_what_may_change_something_is_not_sent_twice_though_its_connection_is_lost(
    drive: Run, verb: str
) -> None:
    async def main() -> None:
        async with playing([b""], [OK, STAY]) as server, HttpClient() as client:
            sending = client.request(verb, server.url, body=b"" if verb in ("GET", "DELETE") else b"{}")
            if verb == "GET":
                assert await (await sending).read() == b"ok"
            else:
                with pytest.raises(HttpError, match="gave no answer") as lost:
                    await sending
                assert lost.value.sent
            assert len(server.requests) == 1 + (verb == "GET")

    drive(main())


def test_a_request_goes_out_as_it_was_meant(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK, OK, STAY]) as server, HttpClient() as client:
            url = HttpUrl(f"http://ann:s%3Acret@127.0.0.1:{server.url.port}/mcp?a=%2F")
            assert await post(client, url, b'{"a":1}').text() == b"ok"
            headers = [("X-Tab", " a\tü "), ("Authorization", "Bearer t")]
            assert await (await client.request("DELETE", url, headers)).read() == b"ok"
        host = b"host: 127.0.0.1:%d" % server.url.port
        first, second = ([*head.lower().split(b"\r\n")] for head in server.requests)
        assert first[0] == b"post /mcp?a=%2f http/1.1"
        assert sorted(first[1:-2]) == [
            b"accept-encoding: identity",
            b"authorization: basic yw5uonm6y3jldA==".lower(),
            b"content-length: 7",
            b"content-type: application/json",
            host,
        ]
        assert first[-1] == b'{"a":1}'
        assert second[0] == b"delete /mcp?a=%2f http/1.1"
        assert sorted(second[1:-2]) == [
            b"accept-encoding: identity",
            b"authorization: bearer t",
            b"content-length: 0",
            host,
            b"x-tab: a\t\xc3\xbc",
        ]

    drive(main())


def test_a_verb_that_would_be_more_than_one_is_refused(drive: Run) -> None:
    async def main() -> None:
        async with HttpClient() as client:
            for verb in ("GET /evil HTTP/1.1\r\nx:", "", "GÉT"):
                with pytest.raises(HttpError, match="not an HTTP verb"):
                    await client.request(verb, HttpUrl("http://127.0.0.1:9/"))

    drive(main())


def test_cookies_are_not_kept(drive: Run) -> None:
    async def main() -> None:
        baking = OK.replace(b"content-length", b"set-cookie: a=1; Path=/\r\ncontent-length")
        async with playing([baking, OK, STAY]) as server, HttpClient() as client:
            assert await get(client, server.url).text() == b"ok"
            assert await get(client, server.url).text() == b"ok"
            assert b"cookie" not in server.requests[1].lower()

    drive(main())


# --- what comes back -----------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PACKED = gzip.compress(b"hello world, " * 100)
WHOLE: dict[str, tuple[bytes, int, bytes]] = {
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: 1\r\n\r\nhello", 200, b"hello"),
    "no body": (b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", 202, b""),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\n\r\n", 200, b"hello"),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nX: late\r\nY: later\r\n\r\n", 200, b"hello"),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n"
        + OK.replace(b"200", b"201"),
        201,
        b"ok",
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, b""),
    "no reason": (b"HTTP/1.1 500\r\ncontent-length: 2\r\n\r\nno", 500, b"no"),
    "gzip": (
        b"HTTP/1.1 200 OK\r\ncontent-encoding: GZIP\r\ncontent-length: %d\r\n\r\n%b" % (len(PACKED), PACKED),
        200,
        b"hello world, " * 100,
    ),
}
UNTIL_CLOSED = b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhello"


@pytest.mark.parametrize("kind", WHOLE)
def test_a_response_is_the_same_in_one_piece_and_in_single_bytes(drive: Run, kind: str) -> None:
    answer, status, content = WHOLE[kind]

    async def main() -> None:
        for server in (playing([answer, STAY]), dripping(answer)):
            async with server as played, HttpClient() as client:
                record = await post(client, played.url).whole()
                assert (record.error, record.status, record.content) == (None, status, content)

    drive(main())


@pytest.mark.parametrize("kind", WHOLE)
def test_a_response_that_breaks_off_anywhere_is_an_error_and_may_have_been_meant(
    drive: Run, kind: str
) -> None:
    answer = WHOLE[kind][0]

    async def main() -> None:
        places = range(0, len(answer), 1 if len(answer) < 150 else 7)
        async with playing(*([answer[:place]] for place in places)) as server, HttpClient() as client:
            for place in places:
                record = await post(client, server.url).whole()
                assert record.error is not None, answer[:place]
                assert record.error.sent is True
                assert str(server.url) in str(record.error)
                assert "incomplete response" in str(record.error) or record.headers is None

    drive(main())


def test_a_body_without_an_end_of_its_own_ends_with_the_connection(drive: Run) -> None:
    async def main() -> None:
        async with playing([UNTIL_CLOSED]) as server, HttpClient() as client:
            assert await get(client, server.url).text() == b"hello"
            assert await get(client, server.url).text() == b"hello"
            assert server.connections == 2

    drive(main())


def test_a_body_that_is_cut_by_a_broken_connection_is_not_taken_for_whole(drive: Run) -> None:
    async def main() -> None:
        record: Record

        async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(UNTIL_CLOSED)
            await record.grew.wait()
            sock = writer.get_extra_info("socket")
            # No time to linger: a reset instead of an end.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        async with serving(handler) as server, HttpClient() as client:
            record = get(client, server.url)
            await record.whole()
            assert record.error is not None
            assert "incomplete response" in str(record.error)

    drive(main())


def test_the_response_to_head_has_no_body_whatever_it_says(drive: Run) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n"

    async def main() -> None:
        async with playing([head, OK, STAY], [OK, STAY]) as server, HttpClient() as client:
            record = await get(client, server.url, "HEAD").whole()
            assert (record.error, record.status, record.content) == (None, 200, b"")
            assert record.headers is not None
            assert record.headers.get("content-length") == "500"
            assert await get(client, server.url).text() == b"ok"

    drive(main())


def test_headers_are_found_whatever_their_case_and_kept_in_order(drive: Run) -> None:
    head = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nMCP-Session-Id:  \xe4 \r\nset-cookie: b=2\r\ncontent-length: 0\r\n\r\n"

    async def main() -> None:
        async with playing([head, STAY]) as server, HttpClient() as client:
            headers = (await get(client, server.url).whole()).headers
            assert headers is not None
            assert headers.get("mcp-session-id") == "ä"
            assert headers.get("x") is None
            assert "X" not in headers
            assert headers.get_all("Set-Cookie") == ["a=1", "b=2"]
            assert [name for name, _ in headers] == [
                "set-cookie",
                "mcp-session-id",
                "set-cookie",
                "content-length",
            ]

    drive(main())


BAD: dict[str, bytes] = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no version": b"HTTP 200 OK\r\n\r\n",
    "a wrong version": b"HTTP/7.3 200 OK\r\n\r\n",
    "HTTP/2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "a header without a name": b"HTTP/1.1 200 OK\r\n: 1\r\n\r\n",
    "a header with a space in its name": b"HTTP/1.1 200 OK\r\na b: 1\r\n\r\n",
    "a header with a nul": b"HTTP/1.1 200 OK\r\na: \0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
    "a length that is no number": b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
    "a length beside chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk without a size": CHUNKED + b"xyz\r\nok\r\n",
    "a chunk of another size": CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nPRI",
    "an unknown encoding": b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nok",
    "two encodings": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip, gzip\r\ncontent-length: 2\r\n\r\nok",
    "no gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok",
    "a large head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\ncontent-length: 2\r\n\r\nok",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"name: value\r\n" * 7000 + b"content-length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_response_is_an_error_that_says_so(drive: Run, kind: str) -> None:
    async def main() -> None:
        async with playing([BAD[kind], STAY]) as server, HttpClient() as client:
            record = await post(client, server.url).whole()
            assert record.error is not None
            assert str(record.error).startswith(f"{server.url} sent an invalid response: ")
            assert record.error.sent is True

    drive(main())


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "a header": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 5000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000),
    "interim responses": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\n", b"x: y\r\n" * 1000),
    "a trailer": (CHUNKED + b"2\r\nok\r\n0\r\nx: ", b"y" * 5000),
    "an extension of a chunk": (CHUNKED + b"2;", b"y" * 5000),
    "a reason": (b"HTTP/1.1 200 ", b"y" * 5000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_head_without_an_end_is_given_up(drive: Run, kind: str) -> None:
    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begin, again = ENDLESS[kind]
        writer.write(begin)
        while True:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(0)

    async def main() -> None:
        async with serving(handler) as server, HttpClient() as client:
            record = await post(client, server.url).whole()
            assert record.error is not None
            assert "its head is too large" in str(record.error)

    drive(main())


@pytest.mark.parametrize("wbits", [31, 15, -15], ids=["gzip", "zlib", "bare"])
@pytest.mark.parametrize("step", [1, 1000])
def test_a_compressed_body_is_decoded(drive: Run, wbits: int, step: int) -> None:
    content = b"".join(b"%d " % number for number in range(2000))
    packer = zlib.compressobj(wbits=wbits)
    packed = packer.compress(content) + packer.flush()
    coding = b"gzip" if wbits == 31 else b"deflate"
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (coding, len(packed))

    async def main() -> None:
        async with dripping(head + packed, step) as server, HttpClient() as client:
            assert await get(client, server.url).text() == content

    drive(main())


def test_small_pieces_of_a_compressed_body_hold_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "PIECE", 7)
    packed = gzip.compress(b"".join(b"data: " + b"x" * size + b"\n\n" for size in range(300)))
    decoder, reference = message.Decoder("gzip"), zlib.decompressobj(31)
    for byte in packed:
        pieces = list(decoder.pieces(bytes([byte])))
        assert b"".join(pieces) == reference.decompress(bytes([byte]))
        assert all(len(piece) <= 7 for piece in pieces)
    assert decoder.complete()


def test_gzip_files_one_after_another_are_one_body_and_one_that_breaks_off_is_none(drive: Run) -> None:
    twice = gzip.compress(b"a" * 10) + gzip.compress(b"b" * 10) + b"\0\0"
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: x-gzip\r\ncontent-length: %d\r\n\r\n%b"

    async def main() -> None:
        cut = gzip.compress(b"a" * 10)[:-3]
        async with (
            playing([head % (len(twice), twice), head % (len(cut), cut), STAY]) as server,
            HttpClient() as client,
        ):
            assert await get(client, server.url).text() == b"a" * 10 + b"b" * 10
            record = await get(client, server.url).whole()
            assert "breaks off" in str(record.error)

    drive(main())


def test_a_body_that_unfolds_to_very_much_comes_in_pieces_and_can_be_stopped(drive: Run) -> None:
    packed = gzip.compress(bytes(300 * 1024 * 1024), 1)
    answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (
        len(packed),
        packed,
    )

    async def main() -> None:
        async with playing([answer, STAY]) as server, HttpClient() as client:
            async with await client.request("GET", server.url) as response:
                pieces = [await anext(response) for _ in range(3)]
            assert sum(map(len, pieces)) < 1024 * 1024
            response = await client.request("GET", server.url)
            with pytest.raises(HttpError, match="more than 1000000 bytes"):
                await response.read(1_000_000)
            await until(lambda: server.open == 0)

    drive(main())


# --- responses as objects ------------------------------------------------------------------------


def test_a_request_gives_a_response_to_read(drive: Run) -> None:
    async def main() -> None:
        async with playing([WHOLE["chunks"][0], OK, OK, STAY]) as server, HttpClient() as client:
            response = await client.request("POST", server.url, [("x", "1")], b"body")
            assert (response.status, response.headers.get("transfer-encoding")) == (200, "chunked")
            assert await response.read() == b"hello"
            assert await response.read() == b""
            async with await client.request("GET", server.url) as response:
                assert [piece async for piece in response] == [b"ok"]
            assert await (await client.request("GET", server.url)).read(2) == b"ok"
            assert server.connections == 1
            assert b"x: 1\r\n" in server.requests[0]
            assert server.requests[0].endswith(b"\r\n\r\nbody")

    drive(main())


def test_a_response_that_is_closed_early_gives_its_connection_up(drive: Run) -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\nhello"

    async def main() -> None:
        async with playing([endless, STAY]) as server, HttpClient(max_connections=1) as client:
            async with await client.request("GET", server.url) as response:
                assert await anext(response) == b"hello"
            await client.request("GET", server.url)
            assert server.connections == 2

    drive(main())


def test_a_response_does_not_read_ahead_of_its_reader(drive: Run) -> None:
    size = 64 * 1024 * 1024
    written = 0

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(bytes(1024 * 1024))
            await writer.drain()
            written += 1024 * 1024
        await reader.read()

    async def main() -> None:
        async with serving(handler) as server, HttpClient() as client:
            response = await client.request("GET", server.url)
            before = -1
            while before != written:  # until nothing moves any more
                before = written
                await asyncio.sleep(0.2)
            assert written < size / 2
            assert len(await response.read(size)) == size

    drive(main())


def test_a_response_that_takes_too_long_is_an_error(drive: Run) -> None:
    async def attempt(seconds: float) -> bool:
        async with playing([STAY]) as silent, playing([OK[:-1], STAY]) as slow, HttpClient() as client:
            with pytest.raises(HttpError, match="did not answer in time") as caught:
                await client.request("GET", silent.url, timeout=seconds)
            try:
                response = await client.request("GET", slow.url, timeout=seconds)
            except HttpError:
                return False
            with pytest.raises(HttpError, match="did not answer in time"):
                await response.read()
            return caught.value.sent

    drive(with_patience(attempt))


def test_a_response_that_breaks_off_raises_after_what_came_of_it(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK[:-1]]) as server, HttpClient() as client:
            response = await client.request("GET", server.url)
            pieces = []
            with pytest.raises(HttpError, match="incomplete response"):
                async for piece in response:
                    pieces.append(piece)  # noqa: PERF401  what came before the error counts
            assert pieces == [b"o"]

    drive(main())


def leading_to(place: str, status: int = 302) -> bytes:
    return b"HTTP/1.1 %d Found\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % (status, place.encode())


@pytest.mark.parametrize(
    "url", ["http://me:secret/word@host:9", "http://me:sec\u2100secret@host", "http://me:secret@[::1"]
)
def test_what_is_wrong_with_an_address_is_said_without_its_password(url: str) -> None:
    with pytest.raises(HttpError, match="its host or its port is not valid") as refused:
        HttpUrl(url)
    assert "secret" not in str(refused.value)


def test_redirects_are_followed_only_if_wanted_and_credentials_stay_at_home(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK, STAY]) as other, HttpClient() as client:
            steps = [leading_to("/next", 301), leading_to(str(other.url), 308)]
            async with playing([steps[0], *steps, STAY], [steps[0], STAY], [steps[1], STAY]) as server:
                headers = [("authorization", "Bearer t"), ("accept", "a/b")]
                assert (await client.request("GET", server.url, headers)).status == 301
                response = await client.request("GET", server.url, headers, follow=True)
                assert await response.read() == b"ok"
                assert response.url == other.url
                assert b"GET /next " in server.requests[2]
                assert b"Bearer t" in server.requests[2]
                assert b"authorization" not in other.requests[0]
                assert b"accept: a/b" in other.requests[0]

    drive(main())


def test_redirects_of_a_post_to_another_scheme_or_without_an_end_are_not_followed(drive: Run) -> None:
    async def main() -> None:
        async with playing([leading_to("/")] * 9, [leading_to("/")] * 9) as server, HttpClient() as client:
            response = await client.request("POST", server.url, follow=True)
            assert response.status == 302
            with pytest.raises(HttpError, match="redirects too often"):
                await client.request("GET", server.url, follow=True)
        async with playing([leading_to("https://a.test/")]) as server, HttpClient() as client:
            with pytest.raises(HttpError, match=r"leads to https://a\.test/, which is not followed"):
                await client.request("GET", server.url, follow=True)
        async with playing([leading_to("http://a b/")]) as server, HttpClient() as client:
            with pytest.raises(HttpError, match="is not a URL"):
                await client.request("GET", server.url, follow=True)

    drive(main())

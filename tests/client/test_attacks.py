"""What a hostile or careless server can do to a client, and to those who share it."""

import asyncio
import gzip
import json
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from midcall import Hub
from midcall.client import connect, http_post, rounds, streamable
from midcall.client.targets import target_of
from midcall.content import Passed
from midcall.http.client import HttpClient
from midcall.http.message import MAX_EMPTY, Decoder, HttpUrl
from midcall.transports.jwks import Keys
from mounting import speaking_for
from peers import HERE

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "x", "version": "1"},
}


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The verb and the body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = [line.partition(":") for line in head.lower().splitlines()]
    size = next((int(value) for name, _, value in lines if name == "content-length"), 0)
    return head.split(" ")[0], await reader.readexactly(size)


def response(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def result(id: Any, result: Any) -> bytes:
    return response(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())


# --- others who share it --------------------------------------------------------------------------


@pytest.mark.parametrize("front", ["modern", "legacy"])
def test_a_log_line_of_one_caller_does_not_reach_another_one_through_a_mount(front: Any) -> None:
    async def main() -> None:
        hub = Hub("front").mount("b", [sys.executable, str(HERE / "murmuring_server.py")], era="modern")
        await hub.open()

        async def call(name: str) -> list[str]:
            seen: list[str] = []
            who = speaking_for(hub, name)
            async with connect(
                who, era=front, log_level="debug", on_log=lambda *a: seen.append(str(a))
            ) as client:
                seen += [str(item) async for item in client.call("b.t", {"who": name})]
            return seen

        _, seen_by_bob = await asyncio.gather(call("ada"), call("bob"))
        assert any("bob" in one for one in seen_by_bob)
        assert not [one for one in seen_by_bob if "secret" in one]
        await hub.close()

    drive(main())


# --- a server that keeps it waiting ---------------------------------------------------------------


def test_a_server_that_never_takes_notifications_does_not_hold_up_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable, "MAX_SENDING", 3)

    async def main() -> None:
        hears = asyncio.Semaphore(0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    verb, body = await read_request(reader)
                    message = json.loads(body or b"{}")
                    match message.get("method"):
                        case "initialize":
                            writer.write(result(message["id"], HELLO))
                        case "tools/call" if message["params"]["name"] == "slow":
                            hears.release()
                            await reader.read()
                        case "tools/call":
                            writer.write(
                                result(message["id"], {"content": [{"type": "text", "text": "fast"}]})
                            )
                        case "notifications/cancelled":
                            hears.release()
                            await reader.read()  # and says nothing
                        case _:
                            writer.write(response(b"", "202 Accepted" if verb == "POST" else "405 No"))
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with connect(f"http://127.0.0.1:{port}/mcp", era="legacy") as client:
            for _ in range(streamable.MAX_SENDING):
                slow = asyncio.ensure_future(_result(client.call("slow", {})))
                await hears.acquire()
                slow.cancel()
                await asyncio.wait((slow,))
                await hears.acquire()  # that it is cancelled
            assert (await client.call("fast", {})).text == "fast"
        server.close()
        await server.wait_closed()

    drive(main())


async def _result(call: Any) -> Any:
    return await call


@pytest.mark.parametrize(("retry", "tries"), [(0, 0), (1, 0), (0, 3)])
def test_a_stream_is_not_taken_up_again_without_a_pause(retry: int, tries: int) -> None:
    stream = object.__new__(http_post.ResumedStream)
    stream._retry = retry
    assert stream._pause(tries) >= http_post.SHORTEST_RETRY


def test_a_server_cannot_ask_any_number_of_questions_at_once() -> None:
    def asks(number: int) -> Any:
        questions = {str(n): {"method": "elicitation/create", "params": {}} for n in range(number)}
        return rounds._unfinished("input_required", {"inputRequests": questions, "requestState": "s"})

    assert len(asks(rounds.MOST_QUESTIONS)["questions"]) == rounds.MOST_QUESTIONS
    refused = asks(rounds.MOST_QUESTIONS + 1)
    assert isinstance(refused, Passed)
    assert refused.error is not None
    assert "questions at once" in refused.error.message


def test_gzip_files_without_a_content_are_not_read_for_ever() -> None:
    assert b"".join(Decoder("gzip").pieces(gzip.compress(b"") * MAX_EMPTY + gzip.compress(b"x"))) == b"x"
    with pytest.raises(zlib.error):
        list(Decoder("gzip").pieces(gzip.compress(b"") * (MAX_EMPTY + 2) + gzip.compress(b"x")))


def test_who_leaves_while_keys_are_read_does_not_end_it_for_the_others() -> None:
    async def main() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()
        reads = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal reads
            reads += 1
            await read_request(reader)
            asked.set()
            await go_on.wait()
            secret = {"kty": "oct", "kid": "a", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}
            writer.write(response(json.dumps({"keys": [secret]}).encode()))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        keys = Keys(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks")
        leaves, waits = (asyncio.ensure_future(keys._read_again()) for _ in range(2))
        await asked.wait()
        leaves.cancel()
        await asyncio.wait((leaves,))
        go_on.set()
        await waits
        assert (reads, [key["kid"] for key in keys._keys]) == (1, ["a"])
        server.close()
        await server.wait_closed()

    drive(main())


# --- credentials ----------------------------------------------------------------------------------


def test_credentials_of_a_url_stay_with_its_origin_and_are_not_shown() -> None:
    url = HttpUrl("http://ada:secret@one.test/mcp?key=secret")
    assert url.join("/other").credentials == url.credentials
    assert url.join("http://two.test/").credentials == ""
    assert url.join("https://one.test/").credentials == ""
    assert "secret" not in target_of("http://ada:secret@one.test/mcp?key=secret").label


# --- questions on streams -------------------------------------------------------------------------


def test_answers_are_sent_however_many_calls_wait_for_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(HttpClient, max_streams=2)
    monkeypatch.setattr(streamable, "HttpClient", few)
    monkeypatch.setattr(streamable, "MAX_SENDING", 3)

    async def main() -> None:
        asked: dict[str, tuple[Any, asyncio.StreamWriter]] = {}
        all_asked = asyncio.Event()

        def send(writer: asyncio.StreamWriter, **message: Any) -> None:
            writer.write(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    verb, body = await read_request(reader)
                    message = json.loads(body or b"{}")
                    match message.get("method"):
                        case "initialize":
                            writer.write(result(message["id"], HELLO))
                        case "tools/call":
                            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
                            question = f"q{message['id']}"
                            asked[question] = message["id"], writer
                            schema = {"type": "object", "properties": {}}
                            params = {"message": "Well?", "requestedSchema": schema}
                            send(writer, id=question, method="elicitation/create", params=params)
                            if len(asked) == 5:
                                all_asked.set()
                        case None if message.get("id") in asked:
                            writer.write(response(b"", "202 Accepted"))
                            id, stream = asked[message["id"]]
                            send(stream, id=id, result={"content": [{"type": "text", "text": "done"}]})
                            stream.close()
                        case _:
                            writer.write(response(b"", "202 Accepted" if verb == "POST" else "405 No"))
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        async def answer(*_: Any) -> Any:
            await all_asked.wait()  # as many streams as there may be
            return {}

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with connect(url, era="legacy", answer=answer) as client:
            results = await asyncio.gather(*(_result(client.call("t", {})) for _ in range(5)))
            assert [one.text for one in results] == ["done"] * 5
        server.close()
        await server.wait_closed()

    drive(main())


def test_a_task_that_was_made_while_its_call_was_cancelled_is_cancelled_too(tmp_path: Path) -> None:
    async def main() -> None:
        log = tmp_path / "log"
        async with connect(
            [sys.executable, str(HERE / "crossing_server.py"), str(log)], era="modern"
        ) as client:
            call = asyncio.ensure_future(_result(client.call("t", {})))
            while not (log.exists() and "tools/call" in log.read_text()):
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait((call,))
            while "tasks/cancel T1" not in log.read_text():
                await asyncio.sleep(0.01)

    drive(main())


def test_a_body_that_unfolds_to_very_much_leaves_others_their_turn() -> None:
    async def main() -> None:
        packed = gzip.compress(b"x" * 64 * 256 * 1024)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
            )
            writer.write(packed)
            await writer.drain()
            writer.close()

        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with HttpClient() as http:
            url = HttpUrl(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            reply = await http.request("GET", url)
            beside = asyncio.ensure_future(others())
            await asyncio.sleep(0.1)  # all of it has come
            before = turns
            async for _ in reply:
                pass
            assert turns - before >= 60, "one for each of the 64 pieces, or nearly"
            beside.cancel()
        server.close()
        await server.wait_closed()

    drive(main())

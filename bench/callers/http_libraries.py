"""HTTP libraries beside each other in one run: `python -m bench.callers.http_libraries`.

Small POSTs of JSON with keep-alive to a server on this machine that answers a constant, 1 and 64 at once.
What counts is the CPU that the client spends on a request. `niquests`, `httpx2`, `pycurl` and `pyreqwest`
are left out unless they are installed.
"""

import asyncio
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

Post = Callable[[], Awaitable[bytes]]

BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"once","arguments":{"text":"hello"}}}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}],"isError":false}}'
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "bench.once",
}
COUNT = 3000
ROUNDS = 3


async def midcall(url: str, stack: AsyncExitStack) -> Post:
    from midcall.http.client import HttpClient, prepare
    from midcall.http.message import HttpUrl

    client, there, headers = (
        await stack.enter_async_context(HttpClient()),
        HttpUrl(url),
        prepare([*HEADERS.items()]),
    )

    async def post() -> bytes:
        return await (await client.request("POST", there, headers, BODY, timeout=None)).read()

    return post


async def aiohttp(url: str, stack: AsyncExitStack) -> Post:
    import aiohttp

    session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))

    async def post() -> bytes:
        async with session.post(url, data=BODY, headers=HEADERS) as response:
            return await response.read()

    return post


async def niquests(url: str, stack: AsyncExitStack) -> Post:
    import niquests

    session = await stack.enter_async_context(niquests.AsyncSession(pool_maxsize=100))

    async def post() -> bytes:
        return (await session.post(url, data=BODY, headers=HEADERS)).content or b""

    return post


async def httpx2(url: str, stack: AsyncExitStack) -> Post:
    import httpx2

    client = await stack.enter_async_context(httpx2.AsyncClient())

    async def post() -> bytes:
        return (await client.post(url, content=BODY, headers=HEADERS)).content

    return post


async def pyreqwest(url: str, stack: AsyncExitStack) -> Post:
    from pyreqwest.client import ClientBuilder

    client = await stack.enter_async_context(ClientBuilder().build())

    async def post() -> bytes:
        response = await client.post(url).headers(HEADERS).body_bytes(BODY).build().send()
        return bytes(await response.bytes())

    return post


async def pycurl(url: str, stack: AsyncExitStack) -> Post:
    """It has no asyncio of its own: this is the least that is needed."""
    import pycurl

    loop, multi = asyncio.get_running_loop(), pycurl.CurlMulti()
    waiting: dict[Any, asyncio.Future[None]] = {}
    idle: list[Any] = []
    timer: list[asyncio.TimerHandle] = []

    def act(descriptor: int, mask: int) -> None:
        multi.socket_action(descriptor, mask)
        _, done, failed = multi.info_read()
        for handle in done:
            waiting.pop(handle).set_result(None)
        for handle, _, why in failed:
            waiting.pop(handle).set_exception(OSError(why))

    def watch(what: int, descriptor: int, _: Any, __: Any) -> None:
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        if what in (pycurl.POLL_IN, pycurl.POLL_INOUT):
            loop.add_reader(descriptor, act, descriptor, pycurl.CSELECT_IN)
        if what in (pycurl.POLL_OUT, pycurl.POLL_INOUT):
            loop.add_writer(descriptor, act, descriptor, pycurl.CSELECT_OUT)

    def wait(milliseconds: int) -> None:
        while timer:
            timer.pop().cancel()
        if milliseconds >= 0:
            timer.append(loop.call_later(milliseconds / 1000, act, pycurl.SOCKET_TIMEOUT, 0))

    multi.setopt(pycurl.M_SOCKETFUNCTION, watch)
    multi.setopt(pycurl.M_TIMERFUNCTION, wait)
    headers = [f"{name}: {value}" for name, value in HEADERS.items()]

    async def post() -> bytes:
        handle, pieces = idle.pop() if idle else pycurl.Curl(), []
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.POSTFIELDS, BODY)
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.WRITEFUNCTION, pieces.append)
        waiting[handle] = done = loop.create_future()
        multi.add_handle(handle)
        await done
        multi.remove_handle(handle)
        idle.append(handle)
        return b"".join(pieces)

    return post


class Constant(asyncio.Protocol):
    """Answers every request with the same."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.rest = transport, b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        if self.rest.endswith(BODY):
            self.rest = b""
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(head % len(ANSWER) + ANSWER)


def serve(listener: socket.socket) -> None:
    import uvloop

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Constant, sock=listener)
        await server.serve_forever()

    uvloop.run(main())


def measure(
    make: Callable[[str, AsyncExitStack], Awaitable[Post]], url: str, at_once: int, results: Any
) -> None:
    import uvloop

    async def many(post: Post, count: int) -> None:
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                assert await post() == ANSWER

        await asyncio.gather(*(work() for _ in range(at_once)))

    async def main() -> tuple[float, float]:
        async with AsyncExitStack() as stack:
            post = await make(url, stack)
            await many(post, 200)
            began, cpu = time.perf_counter(), time.process_time()
            await many(post, COUNT)
            return COUNT / (time.perf_counter() - began), (time.process_time() - cpu) / COUNT * 1e6

    try:
        results.put(uvloop.run(main()))
    except ImportError:
        results.put(None)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server = context.Process(target=serve, args=[listener], daemon=True)
    server.start()
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for make in (midcall, aiohttp, niquests, httpx2, pyreqwest, pycurl):
            for at_once in (1, 64):
                results = context.Queue()
                client = context.Process(target=measure, args=[make, url, at_once, results])
                client.start()
                result = results.get(timeout=120)
                client.join()
                if result is not None:
                    found.setdefault((make.__name__, at_once), []).append(result)
    for (name, at_once), figures in found.items():
        rate, cpu = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{name:10} {at_once:3} at once {rate:9,.0f}/s {cpu:8.1f} µs")
    server.terminate()


if __name__ == "__main__":
    main()

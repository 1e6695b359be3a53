"""What the tests of the HTTP client talk to: servers that play back bytes, uvicorn, and a proxy."""

import asyncio
import datetime as dt
import gc
import ipaddress
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from driving import LIMIT, assert_no_errors
from midcall.http.client import HttpClient
from midcall.http.message import Headers, HttpError, HttpUrl

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STAY = None
"""At the end of a script: leave the connection open."""

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run_in(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; no error may be lost, and no task left."""
    unseen: list[dict[str, Any]] = []

    async def watched() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        async with asyncio.timeout(LIMIT):
            result = await main
        for _ in range(2000):
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.005)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(watched())
    gc.collect()  # an open socket complains when it goes
    assert_no_errors(unseen)
    return result


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.002)


class Record:
    """What becomes of a request that is sent in a task of its own."""

    def __init__(self, client: HttpClient, verb: str, url: HttpUrl, body: bytes) -> None:
        self.status = 0
        self.headers: Headers | None = None
        self.pieces: list[bytes] = []
        self.error: HttpError | None = None
        self.began = asyncio.Event()
        self.grew = asyncio.Event()
        self.ended = asyncio.Event()
        self.task = asyncio.create_task(self._run(client, verb, url, body))

    async def _run(self, client: HttpClient, verb: str, url: HttpUrl, body: bytes) -> None:
        try:
            headers = [("content-type", "application/json")]
            async with await client.request(verb, url, headers, body, timeout=None) as response:
                self.status, self.headers = response.status, response.headers
                self.began.set()
                async for piece in response:
                    assert piece
                    self.pieces.append(piece)
                    self.grew.set()
        except HttpError as error:
            self.error = error
        self.ended.set()

    @property
    def content(self) -> bytes:
        return b"".join(self.pieces)

    async def whole(self) -> "Record":
        await self.ended.wait()
        return self

    async def text(self) -> bytes:
        """The body, which must be whole."""
        await self.ended.wait()
        assert self.error is None, self.error
        return self.content


def post(client: HttpClient, url: HttpUrl, body: bytes = b"{}", verb: str = "POST") -> Record:
    """Send a request; give what becomes of it."""
    return Record(client, verb, url, body)


def get(client: HttpClient, url: HttpUrl, verb: str = "GET") -> Record:
    return post(client, url, b"", verb)


# --- servers that play back bytes ----------------------------------------------------------------


@dataclass
class Played:
    """A server that does as it is told."""

    url: HttpUrl
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One whole request; nothing if the client has left."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return head + await reader.readexactly(int(line.partition(b":")[2]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    return head


@asynccontextmanager
async def serving(
    handler: Callable[[Played, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Played]:
    """A server with this handler, which is done with a connection when it returns."""
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        played.connections += 1
        played.open += 1
        try:
            await handler(played, reader, writer)
        except (ConnectionError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            played.open -= 1
            writer.close()
            with suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()
            tasks.discard(task)

    server = await asyncio.start_server(handle, host, 0, ssl=tls, limit=2**24)
    port = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    played = Played(HttpUrl(f"{'https' if tls else 'http'}://{shown}:{port}/mcp"))
    try:
        yield played
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks))


def playing(*scripts: Sequence[bytes | None], **options: Any) -> Any:
    """A server that answers on its n-th connection as the n-th script says, or the last one.

    Each element answers one request; after the last one the connection is closed, unless it is `STAY`.
    """

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in scripts[min(played.connections, len(scripts)) - 1]:
            if answer is STAY:
                await reader.read()
                return
            request = await read_request(reader)
            if not request:
                return
            played.requests.append(request)
            writer.write(answer)
            await writer.drain()

    return serving(handler, **options)


def dripping(answer: bytes, step: int = 1, **options: Any) -> Any:
    """A server that gives each answer in small pieces, and then closes."""

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        played.requests.append(await read_request(reader))
        for place in range(0, len(answer), step):
            writer.write(answer[place : place + step])
            await writer.drain()
            await asyncio.sleep(0)

    return serving(handler, **options)


# --- uvicorn -------------------------------------------------------------------------------------


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Echo, a stream of events that never ends, a redirect, and whatever the path says."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    kind, answer, extra = b"application/json", body, []
    match scope["path"]:
        case "/events":
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")],
                }
            )
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        case "/slow":
            await asyncio.sleep(0.01)
        case "/large":
            answer = b"x" * (32 * 1024 * 1024)
        case "/chunked":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(3):
                await send({"type": "http.response.body", "body": b"%d," % number, "more_body": True})
            await send({"type": "http.response.body", "body": b"end"})
            return
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(answer)), *extra]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@dataclass
class Uvicorn:
    url: HttpUrl
    server: uvicorn.Server

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def at(self, path: str) -> HttpUrl:
        return self.url.join(path)


@asynccontextmanager
async def uvicorn_server(certificate: "Certificate | None" = None) -> AsyncIterator[Uvicorn]:
    """Uvicorn with `app`, in this event loop."""
    files = {} if certificate is None else {"ssl_certfile": certificate.file, "ssl_keyfile": certificate.file}
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=1,
        **files,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    scheme = "http" if certificate is None else "https"
    try:
        yield Uvicorn(HttpUrl(f"{scheme}://127.0.0.1:{port}/mcp"), server)
    finally:
        server.should_exit = True
        await task


# --- TLS -----------------------------------------------------------------------------------------


@dataclass
class Certificate:
    """A certificate for 127.0.0.1, ::1, localhost and server.test, and its key."""

    file: Path

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file)
        return context

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))


def make_certificate(file: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server.test")])
    now = dt.datetime.now(dt.UTC)
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName("server.test")]
    names += [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return Certificate(file)


# --- a proxy -------------------------------------------------------------------------------------


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


def proxy(target: HttpUrl, refusal: bytes = b"", **options: Any) -> Any:
    """A proxy for which every name leads to the target; or one that refuses."""

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        played.requests.append(request)
        if refusal:
            writer.write(refusal)
            return
        inner_reader, inner_writer = await asyncio.open_connection(target.host, target.port)
        if request.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n")
        else:
            inner_writer.write(request)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    return serving(handler, **options)


def socks_proxy(target: HttpUrl) -> Any:
    """A SOCKS proxy (4a and 5) for which every name leads to the target; keeps the names."""

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"\x05":
            await reader.readexactly((await reader.readexactly(1))[0])
            writer.write(b"\x05\x00")
            await reader.readexactly(4)
            name = await reader.readexactly((await reader.readexactly(1))[0])
            await reader.readexactly(2)
            answer = b"\x05\x00\x00\x01" + bytes(6)
        else:
            await reader.readexactly(7)
            await reader.readuntil(b"\0")
            name = (await reader.readuntil(b"\0"))[:-1]
            answer = b"\x00\x5a" + bytes(6)
        played.requests.append(name)
        inner_reader, inner_writer = await asyncio.open_connection(target.host, target.port)
        writer.write(answer)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    return serving(handler)


def loops() -> list[Any]:
    """The event loops that there are here."""
    if sys.platform == "win32":
        return [asyncio.new_event_loop]
    import uvloop

    return [asyncio.new_event_loop, uvloop.new_event_loop]

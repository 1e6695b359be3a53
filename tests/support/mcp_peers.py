"""MCP clients by hand, over stdio and Streamable HTTP, to servers in processes of their own.

Every message that comes is shown to the oracle. What a client may do is the same on both transports:
start a request, wait for its response, answer the server's own requests, and look at whatever else
the server has sent.
"""

import asyncio
import base64
import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias

from driving import LIMIT, until
from mcp_oracle import MODERN, Oracle
from peers import LARGE, Said, StdioWire, close_pipes, command, environment, free_port, wait_for

META = "io.modelcontextprotocol/"
KEY = base64.b64encode(b"k" * 32).decode()
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST = "2025-11-25"
FORMS: dict[str, Any] = {"elicitation": {}}

Connect: TypeAlias = Callable[..., AbstractAsyncContextManager[Any]]
"""Opens a client: takes the revision and the capabilities that it declares."""


def mcp_environment(**more: str) -> dict[str, str]:
    return {**environment(), "MIDCALL_KEYS": KEY, **more}


class Client:
    """What a client sees of a server: its messages, in the order in which they came."""

    def __init__(self, revision: str, capabilities: dict[str, Any] | None = None) -> None:
        self.revision = revision
        self.capabilities = {} if capabilities is None else capabilities
        self.oracle = Oracle(revision)
        self.inbox: list[Any] = []
        self._ids = itertools.count(1)
        self._arrived = asyncio.Condition()
        self._fault: Exception | None = None

    @property
    def modern(self) -> bool:
        return self.revision == MODERN

    # --- sending -----------------------------------------------------------------------------

    async def post(self, message: Any) -> None:
        """Send a message; what comes for it goes to the inbox."""
        raise NotImplementedError

    async def start(self, method: str, params: Any = None, *, id: Any = None, **meta: Any) -> Any:
        """Send a request and give its id; the response is awaited with `response`."""
        id = f"r{next(self._ids)}" if id is None else id
        params = dict(params or {})
        if self.modern:
            said = {
                f"{META}protocolVersion": MODERN,
                f"{META}clientCapabilities": self.capabilities,
                f"{META}clientInfo": {"name": "tests", "version": "1"},
            }
            params["_meta"] = {**said, **meta}
        elif meta:
            params["_meta"] = meta
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        if params:
            message["params"] = params
        self.oracle.asked(message)
        await self.post(message)
        return id

    async def notify(self, method: str, params: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        await self.post(message if params is None else {**message, "params": params})

    async def answer(self, request: Any, result: Any) -> None:
        """Answer a request of the server."""
        await self.post({"jsonrpc": "2.0", "id": request["id"], "result": result})

    # --- receiving ---------------------------------------------------------------------------

    async def arrive(self, message: Any) -> None:
        try:
            self.oracle.check(message)
        except Exception as fault:
            self._fault = fault
            raise
        finally:
            async with self._arrived:
                self.inbox.append(message)
                self._arrived.notify_all()

    async def find(self, wanted: Callable[[Any], bool], limit: float = LIMIT) -> Any:
        """The first message of this kind, taken out of the inbox; waits for it."""
        async with asyncio.timeout(limit), self._arrived:
            while True:
                if self._fault is not None:
                    raise self._fault
                for place, message in enumerate(self.inbox):
                    if wanted(message):
                        return self.inbox.pop(place)
                await self._arrived.wait()

    async def response(self, id: Any) -> Any:
        return await self.find(lambda m: isinstance(m, dict) and "method" not in m and m.get("id") == id)

    async def message(self, method: str) -> Any:
        """The next request or notification of this method."""
        return await self.find(lambda m: isinstance(m, dict) and m.get("method") == method)

    async def request(self, method: str, params: Any = None, **meta: Any) -> Any:
        return await self.response(await self.start(method, params, **meta))

    async def result(self, method: str, params: Any = None, **meta: Any) -> Any:
        response = await self.request(method, params, **meta)
        assert "error" not in response, response
        return response["result"]

    async def error(self, method: str, params: Any = None, **meta: Any) -> tuple[int, str]:
        response = await self.request(method, params, **meta)
        assert "error" in response, response
        return response["error"]["code"], response["error"]["message"]

    async def tool(self, name: str, /, **arguments: Any) -> str:
        """Call a tool that does not fail; give its text."""
        result = await self.result("tools/call", {"name": name, "arguments": arguments})
        assert not result.get("isError"), result
        return text(result)

    async def begin(self, name: str, /, **arguments: Any) -> Any:
        """Start a call of a tool."""
        return await self.start("tools/call", {"name": name, "arguments": arguments})

    async def state(self) -> Any:
        return json.loads(await self.tool("admin.state"))

    async def settled(self) -> Any:
        """The server's state, once nothing is left running; fails after a while."""
        async with asyncio.timeout(LIMIT):
            while True:
                state = await self.state()
                if (state["calls"], state["questions"], state["tasks"]) == (0, 0, 0):
                    return state
                await asyncio.sleep(0.02)

    async def until_asked(self, count: int = 1) -> Any:
        """The server's state, once so many questions are open."""
        async with asyncio.timeout(LIMIT):
            while (state := await self.state())["questions"] != count:
                await asyncio.sleep(0.01)
            return state

    async def until_running(self, method: str, count: int = 1) -> None:
        """Wait until the server runs so many calls of a method."""
        async with asyncio.timeout(LIMIT):
            while (await self.state())["running"].count(method) != count:
                await asyncio.sleep(0.01)

    async def until_trail(self, *wanted: str) -> None:
        """Wait until the methods of the server have done this."""
        async with asyncio.timeout(LIMIT):
            while not set(wanted) <= set((await self.state())["trail"]):
                await asyncio.sleep(0.01)

    async def taken(self) -> None:
        """Wait until the server has seen what it was sent so far, and who has left, on any connection."""
        for _ in range(2):  # which come after that, on connections of their own
            await self.state()

    # --- legacy ------------------------------------------------------------------------------

    async def initialize(self) -> Any:
        asked = {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "tests", "version": "1"},
        }
        result = await self.result("initialize", asked)
        self.revision = self.oracle.revision = result["protocolVersion"]
        await self.notify("notifications/initialized")
        return result


def text(result: Any) -> str:
    """The text of a result that is one text."""
    (block,) = result["content"]
    assert block["type"] == "text"
    return str(block["text"])


# --- stdio ----------------------------------------------------------------------------------


class StdioClient(Client):
    """A client that started its server."""

    def __init__(self, wire: StdioWire, revision: str, capabilities: dict[str, Any] | None) -> None:
        super().__init__(revision, capabilities)
        self.wire = wire

    async def post(self, message: Any) -> None:
        await self.wire.send(json.dumps(message).encode())

    async def read(self) -> None:
        stdout = self.wire.process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            await self.arrive(json.loads(line))


@asynccontextmanager
async def over_stdio(
    revision: str = LATEST,
    capabilities: dict[str, Any] | None = None,
    *,
    target: str = "mcp_app:hub",
    flag: str = "--mcp-only",
    options: Sequence[str] = (),
    handshake: bool = True,
) -> AsyncIterator[StdioClient]:
    """A client and a server of its own, which must end cleanly when its input does."""
    process = await asyncio.create_subprocess_exec(
        *command("serve", target, "--stdio", flag, *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=mcp_environment(),
        limit=LARGE,
    )
    client = StdioClient(StdioWire(process), revision, capabilities)
    reading = asyncio.ensure_future(client.read())
    try:
        if handshake and not client.modern:
            await client.initialize()
        yield client
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        async with asyncio.timeout(LIMIT):
            await process.wait()
            errors = (await process.stderr.read()).decode()
        assert process.returncode == 0, errors
        assert "Traceback" not in errors, errors
        await reading  # what the oracle found wrong is raised here
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if process.returncode is None:
            process.kill()
            await process.wait()
        close_pipes(process)


# --- Streamable HTTP -------------------------------------------------------------------------


class Response:
    """An HTTP response, of which the body is still to be read."""

    def __init__(
        self, status: int, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader
        self._writer = writer
        self.last_event_id: str | None = None

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "")

    async def _chunks(self) -> AsyncIterator[bytes]:
        if "content-length" in self.headers:
            yield await self._reader.readexactly(int(self.headers["content-length"]))
            return
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]

    async def body(self) -> bytes:
        found = b"".join([chunk async for chunk in self._chunks()])
        await self.drop()
        return found

    async def events(self) -> AsyncIterator[dict[str, str]]:
        """The events of a stream, as it sends them; comments are left out."""
        rest = b""
        async for chunk in self._chunks():
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                lines = [line for line in event.decode().split("\n") if not line.startswith(":")]
                if lines:
                    fields = dict(
                        line.split(": ", 1) if ": " in line else (line.rstrip(":"), "") for line in lines
                    )
                    self.last_event_id = fields.get("id", self.last_event_id)
                    yield fields
        await self.drop()

    async def messages(self) -> AsyncIterator[Any]:
        """The messages of a body, whichever kind it is."""
        if self.kind == "text/event-stream":
            async for event in self.events():
                if event.get("data"):
                    yield json.loads(event["data"])
        else:
            body = await self.body()
            if body:
                yield json.loads(body)

    async def drop(self) -> None:
        """Close the connection, wherever it is."""
        await hang_up(self._writer)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def http(
    port: int,
    verb: str,
    headers: dict[str, str],
    body: bytes = b"",
    sent: Callable[[], object] = lambda: None,
) -> Response:
    """Send a request on a connection of its own; give the response once its head is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LARGE)
    lines = {"host": f"127.0.0.1:{port}", "content-length": str(len(body)), **headers}
    head = f"{verb} /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(head.encode() + b"\r\n" + body)
    sent()
    try:
        status = int((await reader.readline()).split()[1])
        found = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            found[name.lower()] = value.strip()
    except BaseException:
        await hang_up(writer)
        raise
    return Response(status, found, reader, writer)


class HttpClient(Client):
    """A client with a connection for each message, as HTTP/1.1 clients have them."""

    def __init__(
        self, port: int, revision: str, capabilities: dict[str, Any] | None = None, token: str | None = None
    ) -> None:
        super().__init__(revision, capabilities)
        self.port = port
        self.session_id: str | None = None
        self.statuses: list[int] = []
        self.open: list[Response] = []
        self.listened: Response | None = None
        self._token = token
        self._posts: set[asyncio.Task[None]] = set()

    def headers(self, message: Any = None) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if self.session_id is not None:
            headers |= {"mcp-session-id": self.session_id, "mcp-protocol-version": self.revision}
        if self.modern:
            headers["mcp-protocol-version"] = MODERN
            if isinstance(message, dict):
                params = message.get("params", {})
                headers["mcp-method"] = message["method"]
                name = params.get("name", params.get("uri", params.get("taskId")))
                if name is not None:
                    headers["mcp-name"] = name
        return headers

    async def post(self, message: Any) -> None:
        sent = asyncio.Event()
        task = asyncio.ensure_future(self._post(message, sent.set))
        task.add_done_callback(lambda _: sent.set())
        self._posts.add(task)
        await sent.wait()
        if isinstance(message, dict) and ("id" not in message or "method" not in message):
            await task  # no response follows: it has been taken once it is acknowledged

    async def _post(self, message: Any, sent: Callable[[], object]) -> None:
        response = await http(self.port, "POST", self.headers(message), json.dumps(message).encode(), sent)
        self.statuses.append(response.status)
        self.session_id = response.headers.get("mcp-session-id", self.session_id)
        await self.take(response)

    async def take(self, response: Response) -> None:
        """Read the messages of a response into the inbox."""
        self.open.append(response)
        try:
            async for message in response.messages():
                await self.arrive(message)
        finally:
            self.open.remove(response)
            await response.drop()

    def listen(self, last_event_id: str | None = None) -> "asyncio.Task[None]":
        """Open the GET stream, or resume another one."""
        self.listened = None
        task = asyncio.ensure_future(self._get(last_event_id))
        self._posts.add(task)
        return task

    async def listening(self) -> "asyncio.Task[None]":
        """Open the GET stream; returns when it is open."""
        task = self.listen()
        await until(lambda: task.done() or self.listened is not None)
        assert self.listened is not None and self.listened.status == 200
        return task

    async def _get(self, last_event_id: str | None) -> None:
        headers = self.headers() | ({} if last_event_id is None else {"last-event-id": last_event_id})
        response = self.listened = await http(self.port, "GET", headers)
        self.statuses.append(response.status)
        await self.take(response)

    async def delete(self) -> int:
        response = await http(self.port, "DELETE", self.headers())
        await response.body()
        return response.status

    async def drop(self) -> None:
        """Lose all connections, in the middle of whatever they carry."""
        for task in self._posts:
            task.cancel()
        await asyncio.gather(*self._posts, return_exceptions=True)
        self._posts.clear()

    async def close(self) -> None:
        """Leave; what the oracle found wrong is raised here."""
        done = [task for task in self._posts if task.done()]
        await self.drop()
        for task in done:
            if not task.cancelled():
                task.result()


class HttpServer:
    """A server in a process of its own, for any number of clients."""

    def __init__(self, port: int) -> None:
        self.port = port

    @asynccontextmanager
    async def client(
        self,
        revision: str = LATEST,
        capabilities: dict[str, Any] | None = None,
        *,
        token: str | None = None,
        handshake: bool = True,
    ) -> AsyncIterator[HttpClient]:
        client = HttpClient(self.port, revision, capabilities, token)
        try:
            if handshake and not client.modern:
                await client.initialize()
            yield client
        except BaseException:
            await client.drop()
            raise
        await client.close()


@contextmanager
def http_server(target: str = "mcp_app:hub", **more: str) -> Iterator[HttpServer]:
    """A server over HTTP, which must end cleanly when it is told to, whoever is still connected."""
    port = free_port()
    process = subprocess.Popen(
        command("serve", target, "--port", str(port), "--log-level", "warning"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=mcp_environment(**more),
    )
    said = Said(process)
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield HttpServer(port)
    finally:
        process.terminate()
        output, errors = said.all()
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors, errors.decode()
    assert output == b"", "standard output is not for logs"

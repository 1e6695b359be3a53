"""What the tests of operations share: a server in a process of its own, and how it is called and looked after."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg

import postgres_server
from driving import LIMIT
from mcp_peers import FORMS, META, MODERN
from peers import HERE, Said, command, environment, free_port, wait_for

ADMIN = "admin-0123456789abcdef"
ADA = "ada-0123456789abcdef"
EVE = "eve-0123456789abcdef"
KEYS = f"root={ADMIN}:midcall:admin ada={ADA}:files:read eve={EVE}:files:read"

_ids = itertools.count(1)


class Answer:
    """A response of HTTP, all of it."""

    def __init__(self, status: int, headers: dict[str, str], text: str) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        return str(self.json["error"]["code"])


class Server:
    """A server that can be stopped, killed and started again, on the same port and journal."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        target: str = "operate_app:hub",
        journal: bool = True,
        **more: str,
    ) -> None:
        self.port = free_port()
        self.journal = folder / "journal.db"
        self.ledger = folder / "ledger"
        self.log = ""
        self._target = target
        self._options = ("--journal", str(self.journal), *options) if journal else options
        self._more = more
        self._process: subprocess.Popen[str] | None = None
        self._said: Said[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {**environment(), "LEDGER": str(self.ledger), **self._more}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()

    def start(self, **more: str) -> None:
        self._process = subprocess.Popen(
            command("serve", self._target, "--port", str(self.port), *self._options),
            env=self.environment | more,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said = Said(self._process)
        wait_for(f"{self.url}/health")

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Stop it; gives what it has logged."""
        assert self._process is not None
        assert self._said is not None
        self._process.send_signal(number)
        _, errors = self._said.all()
        self.log += errors
        if number != signal.SIGKILL:
            assert self._process.returncode == 0, errors
        self._process = None
        return self.log

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def kill_workers(self) -> None:
        """Kill the workers of a parent, which starts others."""
        assert self._process is not None
        pid = self._process.pid
        for worker in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(worker), signal.SIGKILL)

    # --- what administrators do ------------------------------------------------------------------

    def get(self, path: str, token: str | None = None, **headers: str) -> Answer:
        return self.send("GET", path, None, token, **headers)

    def post(self, path: str, body: Any, token: str | None = None, **headers: str) -> Answer:
        return self.send("POST", path, body, token, **headers)

    def send(self, verb: str, path: str, body: Any, token: str | None = None, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as line:
            line.request(verb, path, data, sent)
            response = line.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read().decode())

    def only(self, token: str | None = None) -> Any:
        """The one call that there is."""
        (call,) = self.get("/admin/calls", token).json["calls"]
        return call

    def effects(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    # --- what callers do -------------------------------------------------------------------------

    def call(
        self, tool: str, /, token: str | None = None, state: Any = None, answers: Any = None, **arguments: Any
    ) -> Any:
        """Call a tool as a modern MCP client does; gives the result."""
        params: dict[str, Any] = {
            "name": tool,
            "arguments": arguments,
            "_meta": {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": capabilities()},
        }
        if state is not None:
            params |= {"requestState": state["requestState"], "inputResponses": answers or {}}
        message = {"jsonrpc": "2.0", "id": next(_ids), "method": "tools/call", "params": params}
        came = self.post(
            "/mcp",
            message,
            token,
            accept="application/json, text/event-stream",
            mcp_protocol_version=MODERN,
            mcp_method="tools/call",
            mcp_name=tool,
        )
        assert "result" in came.json, came.text
        return came.json["result"]


def capabilities() -> dict[str, Any]:
    return {"elicitation": {"form": {}, "url": {}}, **{k: v for k, v in FORMS.items() if k != "elicitation"}}


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def text_of(result: Any) -> str:
    return str(result["content"][0]["text"])


def midcall(
    *argv: str, env: dict[str, str] | None = None, stdin: str = "", cwd: Path = HERE
) -> subprocess.CompletedProcess[str]:
    """Run `midcall` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "midcall", *argv],
        input=stdin,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def until(condition: Any, seconds: float = LIMIT) -> Any:
    """Wait until it holds; gives what it gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def own_database() -> Iterator[str]:
    """A database of its own on the PostgreSQL of the tests."""
    name = f"operating_{os.getpid()}_{next(_ids)}"
    server = postgres_server.shared()
    asyncio.run(_on(server, f"CREATE DATABASE {name}"))
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        asyncio.run(_on(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def _on(server: str, statement: str) -> None:
    line = await asyncpg.connect(server)
    try:
        await line.execute(statement)
    finally:
        await line.close()

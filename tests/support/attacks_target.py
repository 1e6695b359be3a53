"""A server that is attacked, in a process of its own, and what has to hold after each attack.

Around its journal lie **canaries**: files that nothing may touch, in every folder that a name with a way out of its
own could lead to. Its environment has secrets, which nothing may tell. Ada attacks; what Bob has said is a secret to
her. A server that an attack has ended, or that no longer answers, is started again for the next one.
"""

import base64
import contextlib
import functools
import http.client
import json
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from websockets.sync.client import ClientConnection, connect

import midcall
from attacks import HERE as PLACE
from attacks import META, SESSION, Hostile, Place, Request, put, tool
from driving import LIMIT
from mcp_oracle import MODERN
from peers import HERE, command, free_port, wait_for

TOKENS = {"ada": "ada-0123456789abcdef", "bob": "bob-0123456789abcdef", "root": "root-0123456789abcdef"}
ADMINISTRATOR = "midcall:admin,midcall:import,vault:open"
SECRETS = {
    "MIDCALL_TOKENS": f"ada={TOKENS['ada']} bob={TOKENS['bob']} root={TOKENS['root']}:{ADMINISTRATOR}",
    "MIDCALL_KEYS": base64.b64encode(b"the secret key that seals states").decode(),
    "OPENAI_API_KEY": "sk-canary-of-a-model-0123456789",
    "ANTHROPIC_API_KEY": "sk-ant-canary-of-a-model-0123456789",
    "DATABASE_URL": "postgresql://user:canary-password@db.example/calls",
}
OF_BOB = "what only Bob knows"

CPU = 2.0
"""Seconds of the processor that one attack may take; an ordinary one takes milliseconds."""

GROWTH = 150 * 1024 * 1024
"""Bytes that the server may have grown by after an attack of a megabyte."""

PATIENCE = LIMIT
"""Seconds after which a server that does not answer counts as stopped."""

HEAD = 64 * 1024
"""Up to this size, the head of a request gets an answer; beyond it the server may hang up."""

ATTACK = "attack"
ORDINARY = "still there?"


class Dropped(AssertionError):
    """The server has hung up, or does not answer."""


class Reply(NamedTuple):
    """A response of HTTP, all of it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def __repr__(self) -> str:
        return f"{self.status} {self.headers!r:.300} {self.body[:500]!r}"

    @property
    def kind(self) -> str:
        found = [value for name, value in self.headers if name == "content-type"]
        return found[0].partition(";")[0] if found else ""


# --- what an answer may look like -----------------------------------------------------------------


def strict_json(data: bytes | str) -> Any:
    """JSON as RFC 8259 has it: UTF-8, no NaN, no half of a pair."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    text = data if isinstance(data, str) else data.decode()
    found = json.loads(text, parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()
    return found


def check_rpc(message: Any) -> None:
    """A message of the server is one of JSON-RPC, and no word of an accident."""
    assert isinstance(message, dict), message
    assert message["jsonrpc"] == "2.0"
    if "method" in message:
        return
    assert "id" in message
    assert ("result" in message) != ("error" in message), message
    if "error" in message:
        assert isinstance(message["error"]["code"], int)
        assert isinstance(message["error"]["message"], str)
        assert message["error"]["message"] != "Internal error", message


def check_reply(reply: Reply) -> list[Any]:
    """An answer of HTTP is well formed, and says nothing of an accident; gives its messages."""
    assert 200 <= reply.status < 500, reply
    names = [name for name, _ in reply.headers]
    assert not {"x-injected", "set-cookie"}.intersection(names), reply.headers
    for name, value in reply.headers:
        assert value.isprintable() or not value, (name, value)
        if name == "location":
            assert "evil.example" not in value, value
    if reply.status in (204, 304):
        assert reply.body == b""
        return []
    match reply.kind:
        case "application/json":
            found = [strict_json(reply.body)]
        case "application/x-ndjson":
            found = [strict_json(line) for line in reply.body.splitlines()]
        case "text/event-stream":
            lines = reply.body.decode().split("\n")
            found = [strict_json(line[6:]) for line in lines if line.startswith("data: ") and line[6:]]
            assert all(
                not line or line.partition(":")[0] in ("", "id", "event", "data", "retry") for line in lines
            ), lines
        case _:
            reply.body.decode()  # a page, or nothing
            found = []
    for message in found:
        if isinstance(message, dict) and "jsonrpc" in message:
            check_rpc(message)
    return found


def check_secret(data: bytes, secrets: Sequence[bytes]) -> None:
    """Nothing is told that is nobody's business."""
    for secret in secrets:
        place = data.find(secret)
        assert place < 0, data[max(0, place - 200) : place + 200]


# --- a server --------------------------------------------------------------------------------------


class Target:
    """A server, and all that is around it."""

    def __init__(self, *options: str, app: str = "attacks_app:hub") -> None:
        self.root = Path(tempfile.mkdtemp(prefix="at-"))
        self.house = self.root / "a"
        self.folder = self.house / "b"
        self.port = 0
        self.tokens = dict(TOKENS)
        self._command = command(
            "serve", app, "--metrics", "--log-level", "info", "--journal", str(self.folder / "journal.db"), *options
        )  # fmt: skip
        inside = {name: self.house / name for name in ("work", "home", "t", "modules")}
        for path in (self.folder, *inside.values()):
            path.mkdir(parents=True)
        self._environment = {  # nothing of whoever runs the tests: it may be told
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{HERE}{os.pathsep}{inside['modules']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(inside["home"]),
            "TMPDIR": str(inside["t"]),
            "MIDCALL_STATE": str(self.folder / "state"),
            "IMPORTED": str(self.root / "imported"),
            **SECRETS,
        }
        (inside["modules"] / "attacked_module.py").write_text(
            "import os, pathlib\npathlib.Path(os.environ['IMPORTED']).write_text('by a journal')\n"
        )
        self.secrets = [
            *(secret.encode() for secret in (*TOKENS.values(), *SECRETS.values())),
            *(str(path).encode() for path in (self.house, HERE, Path(midcall.__file__).parent)),
            b"Traceback",
            b"site-packages",
            b'File "',
            b'File \\"',
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.root / "log"
        self._read = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def stop(self) -> None:
        """Tell it to end."""
        assert self._process is not None
        self._process.terminate()

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self.stop()
        try:
            self._process.wait(timeout=LIMIT)
        finally:
            self._process.kill()
            shutil.rmtree(self.root, ignore_errors=True)

    def start(self) -> None:
        self.__dict__.pop("session", None)
        self.port = free_port()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(self.port)],
                env=self._environment,
                cwd=self.house / "work",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(f"http://127.0.0.1:{self.port}/health")
        self.place_canaries()
        self._read = self._log.stat().st_size

    def restart(self) -> None:
        assert self._process is not None
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # --- canaries ----------------------------------------------------------------------------------

    def place_canaries(self) -> None:
        own = [
            *self.folder.glob("journal.db.workers"),
            *self.folder.glob("state"),
            *(self.house / "t").iterdir(),
        ]
        folders = (self.root, self.house, self.house / "work", self.house / "home", self.folder, *own)
        for path in self.root.glob("**/canary*"):
            path.unlink()
        (self.root / "imported").unlink(missing_ok=True)
        for folder in folders:
            folder.mkdir(exist_ok=True)
            (folder / "canary").write_text("sings")
        self._canaries = self.canaries()

    def canaries(self) -> dict[str, Any]:
        """The canaries, and what else there is outside of the server's own folders."""
        found: dict[str, Any] = {}
        for path in self.root.glob("**/canary*"):
            about = path.stat()
            found[str(path)] = (about.st_mode, about.st_ino, about.st_size, about.st_mtime_ns)
        for folder in (self.root, *(self.house / name for name in (".", "work", "home", "modules", "b"))):
            names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ["(gone)"]
            found[f"in {folder}"] = [name for name in names if not name.startswith(("journal.db", "state"))]
        return found

    # --- how much it takes ---------------------------------------------------------------------------

    def spent(self) -> float:
        """Seconds of the processor that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def size(self) -> int:
        """Bytes of memory that it has."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    # --- an attack ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def attacked(self) -> Iterator[None]:
        """What has to hold after whatever is done inside."""
        spent, size = self.spent(), self.size()
        try:
            yield
            took, grown = self.spent() - spent, self.size() - size
            self.is_well()
            assert took < CPU, f"{took} s of the processor"
            assert grown < GROWTH, f"grown by {grown} bytes"
            self._check_log()
            found = self.canaries()
            changed = {name for name in self._canaries | found if self._canaries.get(name) != found.get(name)}
            assert not changed, f"touched: {changed}"
        except BaseException:
            self.recover()
            raise

    def recover(self) -> None:
        """Make it as it was, for the next attack."""
        try:
            self.is_well()
        except AssertionError:
            self.restart()
        else:
            self.place_canaries()
            self._read = self._log.stat().st_size

    def is_well(self) -> None:
        """It runs, and answers an ordinary call."""
        assert self._process is not None
        assert self._process.poll() is None, "the server has ended"
        word = uuid.uuid4().hex
        reply = self.modern({**tool("box.say", text=word), "id": ORDINARY}, "box.say")
        (message,) = check_reply(reply)
        assert (message["id"], message["result"]["content"]) == (ORDINARY, [{"type": "text", "text": word}])

    def _check_log(self) -> None:
        """What is logged is lines, all of them the server's own, and nothing failed inside."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        assert b"Traceback" not in new, new[-3000:].decode(errors="replace")
        assert b"\nFORGED" not in new
        check_secret(new, [value.encode() for value in (*TOKENS.values(), *SECRETS.values())])
        shown = new.decode(errors="replace").replace("\n", "")
        assert shown.isprintable(), [letter for letter in shown if not letter.isprintable()]

    # --- requests ------------------------------------------------------------------------------------

    def send(self, head: bytes, body: bytes = b"", *, whole: bool = True) -> Reply:
        """Send a request, byte by byte as it is; with `whole=False`, no more than the head of a stream is read."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as line:
                with contextlib.suppress(ConnectionError):  # it may refuse before it has read all
                    line.sendall(head + body)
                with contextlib.closing(http.client.HTTPResponse(line)) as response:
                    response.begin()
                    kind = response.getheader("content-type", "")
                    read = b"" if kind.startswith("text/event-stream") and not whole else response.read()
                    headers = [(name.lower(), value) for name, value in response.getheaders()]
                    return Reply(response.status, headers, read)
        except (OSError, http.client.HTTPException) as error:
            raise Dropped(repr(error)[:300]) from error

    def ask(
        self,
        verb: str,
        path: str,
        headers: Sequence[tuple[str, bytes]] = (),
        body: bytes = b"",
        who: str = "ada",
        *,
        whole: bool = True,
    ) -> Reply:
        """Send a request for somebody, on a connection of its own."""
        own: list[tuple[str, bytes]] = [("host", f"127.0.0.1:{self.port}".encode()), ("connection", b"close")]
        if who in self.tokens:
            own.append(("authorization", f"Bearer {self.tokens[who]}".encode()))
        if not any(name == "transfer-encoding" for name, _ in headers):
            own.append(("content-length", str(len(body)).encode()))
        given = {name for name, _ in headers}
        own = [(name, value) for name, value in own if name not in given]
        lines = [name.encode() + b": " + value for name, value in (*own, *headers)]
        head = b"\r\n".join((f"{verb} {path} HTTP/1.1".encode(), *lines, b"", b""))
        return self.send(head, body, whole=whole)

    def modern(self, message: Any, name: str | None = None, who: str = "ada", **capabilities: Any) -> Reply:
        """A request of a modern client; `name` is what its header repeats."""
        message = with_meta(message, **capabilities)
        return self.modern_bytes(json.dumps(message).encode(), message["method"], name, who)

    def modern_bytes(self, body: bytes, method: str, name: str | None, who: str = "ada") -> Reply:
        headers = [
            ("content-type", b"application/json"),
            ("accept", b"application/json, text/event-stream"),
            ("mcp-protocol-version", MODERN.encode()),
            ("mcp-method", encoded(method)),
        ]
        if name is not None:
            headers.append(("mcp-name", encoded(name)))
        return self.ask("POST", "/mcp", headers, body, who, whole=False)

    def legacy(self, body: bytes, session: str | None = None, who: str = "ada") -> Reply:
        headers = [
            ("content-type", b"application/json"),
            ("accept", b"application/json, text/event-stream"),
            ("mcp-session-id", (session or self.session).encode()),
        ]
        return self.ask("POST", "/mcp", headers, body, who)

    @functools.cached_property
    def session(self) -> str:
        """The session of Ada, as a legacy client."""
        return self.begin_session("ada")

    def begin_session(self, who: str) -> str:
        asked = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}
        headers = [("content-type", b"application/json"), ("accept", b"application/json, text/event-stream")]
        reply = self.ask("POST", "/mcp", headers, json.dumps(message).encode(), who)
        session = dict(reply.headers)["mcp-session-id"]
        ready = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        assert self.legacy(ready, session, who).status == 202
        return session

    def socket(self, who: str = "ada") -> contextlib.AbstractContextManager[ClientConnection]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        url = f"ws://127.0.0.1:{self.port}/ws"
        return connect(url, additional_headers=headers, max_size=None, open_timeout=PATIENCE)


def with_meta(message: Any, **capabilities: Any) -> Any:
    """A message with what a modern client says of itself."""
    params = message.get("params", {})
    if not isinstance(params, dict):
        return message
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities, **params.get("_meta", {})}
    return {**message, "params": {**params, "_meta": meta}}


def encoded(text: str) -> bytes:
    """A text as the header of a modern request repeats it."""
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?"):
        return text.encode()
    return b"=?base64?%b?=" % base64.b64encode(text.encode())


def request_of(target: Target, place: Request, value: Hostile) -> Reply:
    """Attack a place in a request of HTTP."""
    text = value.text or ""
    path = place.path.replace(PLACE, quote(text, safe=""))
    headers = [
        (name, raw.replace(PLACE, text).replace(SESSION, target.session).encode())
        for name, raw in place.headers
    ]
    if not any(name in ("content-type", "accept") for name, _ in headers) and place.body is not None:
        headers.append(("content-type", b"application/json"))
    body = b"" if place.body is None else put(place.body, value)
    return target.ask(place.verb, path, headers, body, place.who, whole=False)


# --- lines of messages -----------------------------------------------------------------------------


def exchange(
    send: Callable[[str | bytes], None], receive: Callable[[], str], data: bytes, place: Place, value: Hostile
) -> list[Any]:
    """Send a message, and an ordinary one after it; gives what comes until both are answered."""
    try:
        send(data.decode())
    except UnicodeDecodeError:
        send(data)
    word = uuid.uuid4().hex
    send(json.dumps({"jsonrpc": "2.0", "id": ORDINARY, "method": "box.say", "params": {"text": word}}))
    found: list[Any] = []
    expected = place.answered and place.name not in ("request id", "line")
    missing = {ORDINARY} | ({ATTACK} if expected and not value.broken else set())
    while missing:
        message = strict_json(receive())
        for one in message if isinstance(message, list) else [message]:
            check_rpc(one)
            if "method" in one:
                found.append(one)
                continue
            if one["id"] == ORDINARY:
                assert one["result"] == word, one
            else:
                found.append(one)
            missing.discard(ATTACK if one["id"] is None and "error" in one else one["id"])
    return found


class Pipes(Target):
    """A server on standard input and output."""

    def __init__(self) -> None:
        super().__init__("--stdio", "--mcp")
        self._lines: queue.Queue[bytes] = queue.Queue()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=self.house / "work", stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._lines = queue.Queue()
        threading.Thread(target=self._take, args=(self._process.stdout, self._lines), daemon=True).start()
        self.is_well()
        self.place_canaries()
        self._read = self._log.stat().st_size

    @staticmethod
    def _take(output: Any, lines: "queue.Queue[bytes]") -> None:
        with output:
            for line in output:
                lines.put(line)
        lines.put(b"")

    def stop(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def is_well(self) -> None:
        nothing = {"jsonrpc": "2.0", "id": ATTACK, "method": "box.say", "params": {"text": ""}}
        self.exchange(json.dumps(nothing).encode(), Place("", nothing, []), Hostile("", b'""', ""))

    def exchange(self, data: bytes, place: Place, value: Hostile) -> list[Any]:
        return exchange(self._send, self._receive, data, place, value)

    def _send(self, line: str | bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((line.encode() if isinstance(line, str) else line) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Dropped(repr(error)) from error

    def _receive(self) -> str:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise Dropped("the server does not answer") from None
        assert line, "the server has closed its output"
        return line.decode()


# --- Bob -----------------------------------------------------------------------------------------


class Bob:
    """Somebody else, and what is his: a session, calls that wait, a conversation, a subscription."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.session = target.begin_session("bob")
        asking: dict[str, Any] = {"elicitation": {"form": {}}}
        self.key = "a key of Bob's"
        asked = tool("box.ask", name=OF_BOB)
        asked["params"]["_meta"] = {"dev.midcall/idempotencyKey": self.key}
        (waits,) = check_reply(target.modern(asked, "box.ask", "bob", **asking))
        self.state = waits["result"]["requestState"]
        tasks = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        (task,) = check_reply(
            target.modern(tool("box.job", name=OF_BOB), "box.job", "bob", **tasks, **asking)
        )
        self.task = task["result"]["taskId"]
        said = target.ask("POST", "/chat", [("content-type", b"application/json")],
                          json.dumps({"message": f"ask {OF_BOB}"}).encode(), "bob")  # fmt: skip
        events = [line["event"] for line in check_reply(said)]
        self.run = events[0]["sessionId"]
        self.conversation = events[0]["conversationId"]
        (question,) = [event for event in events if event["type"] == "plugin_elicit_request"]
        self.tool_call, self.elicit = question["sessionId"], question["elicitId"]
        self._open = contextlib.ExitStack()
        self._socket = self._open.enter_context(target.socket("bob"))
        subscribe = {"method": "box.ask", "params": {"name": OF_BOB}, "durable": True}
        self._socket.send(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "plexus_subscribe", "params": subscribe})
        )
        self.subscription = self.question = ""
        while not (self.subscription and self.question):
            message = json.loads(self._socket.recv(timeout=PATIENCE))
            if message.get("id") == 1:
                self.subscription = message["result"]
            elif message["params"]["result"]["type"] == "request":
                self.question = message["params"]["result"]["request_id"]
        self.before = self.calls()

    def close(self) -> None:
        self._open.close()

    def fill(self, message: Any) -> Any:
        """A message with the ids of what is his."""
        text = json.dumps(message)
        for name in ("subscription", "tool_call", "elicit"):
            text = text.replace(f"@{name}@", getattr(self, name))
        return json.loads(text)

    def calls(self) -> list[Any]:
        """His calls, as he sees them."""
        (found,) = check_reply(self._target.ask("GET", "/calls", who="bob"))
        return sorted((call["id"], call["status"]) for call in found["calls"])

    def shown(self) -> Any:
        """His conversation."""
        return check_reply(self._target.ask("GET", f"/chat/conversations/{self.conversation}", who="bob"))

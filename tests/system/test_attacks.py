"""Hostile values at each place where values come in, at real servers.

The values and the places are in `attacks`; what has to hold after each of them is in `attacks_target`: a
well-formed answer that tells no secret, files that nobody has touched, little work, a log of whole lines, and a
server that goes on.
"""

import asyncio
import base64
import contextlib
import functools
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.sync.client import ClientConnection

import attacks
from attacks import (
    AS_THEY_ARE,
    HERE,
    JSON,
    TEXTS,
    Hostile,
    Place,
    Request,
    aimed,
    put,
    request,
    rows,
    some,
    tool,
)
from attacks_server import ANSWERS, ERRORS, FORMS, SCHEMAS, SMALL, URLS
from attacks_target import (
    ATTACK,
    HEAD,
    OF_BOB,
    PATIENCE,
    SECRETS,
    Bob,
    Dropped,
    Pipes,
    Reply,
    Target,
    check_reply,
    check_rpc,
    check_secret,
    exchange,
    request_of,
    strict_json,
    with_meta,
)
from midcall.errors import JournalError
from midcall.journal.sqlite import SqliteJournal
from operating import midcall
from peers import HERE as TESTS


def named(table: Any) -> Any:
    """Each row of a table is a test, with a name that can be read."""
    found = rows(table)
    return pytest.mark.parametrize(
        ("place", "value"), found, ids=[f"{place.name} | {value.name}" for place, value in found]
    )


def test_no_attack_names_a_file_that_anybody_needs() -> None:
    """An attack that gets through does what it says, on the machine where this runs."""
    for value in TEXTS:
        text = (value.text or "").removeprefix("file://")
        for name in (text, text.rpartition(".")[0], text.rpartition("/")[0]):
            path = Path(name[:200].replace("\0", ""))
            harmless = not path.is_absolute() or path == Path("/") or path.is_relative_to("/proc")
            assert harmless or not path.exists(), value.name


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A server with keys."""
    with Target() as serving:
        yield serving


# --- MCP -------------------------------------------------------------------------------------------


@named(attacks.MODERN)
def test_a_modern_request_does_no_harm(target: Target, place: Place, value: Hostile) -> None:
    value = aimed(value, str(target.root))
    message = with_meta(place.message)
    method, name = repeated(message, value)
    with target.attacked():
        try:
            reply = target.modern_bytes(put(message, value), method, name)
        except Dropped:
            assert len(f"{method}{name}") > HEAD // 2
        else:
            check_answer(target, reply, place, value)


def repeated(message: Any, value: Hostile) -> tuple[str, str | None]:
    """What the headers repeat of a modern request: its method, and what it is about."""
    params = message.get("params")
    about = params if isinstance(params, dict) else {}
    found = [message.get("method", "ping"), about.get("name", about.get("uri", about.get("taskId")))]
    if value.text is not None:
        found = [None if one is None else json.loads(put(one, value)) for one in found]
    return found[0], found[1]


@named(attacks.LEGACY)
def test_a_legacy_request_does_no_harm(target: Target, place: Place, value: Hostile) -> None:
    value = aimed(value, str(target.root))
    with target.attacked():
        check_answer(target, target.legacy(put(place.message, value)), place, value)


def check_answer(target: Target, reply: Reply, place: Place, value: Hostile) -> None:
    """An answer to a message of MCP, or the word that it is none."""
    messages = check_reply(reply)
    check_secret(reply.body, target.secrets)
    if value.broken:
        assert reply.status == 400, reply
        assert messages[0]["error"]["code"] in (-32700, -32600, -32602), messages
    elif not place.answered or reply.kind == "text/event-stream":
        return
    elif reply.status == 202:
        assert reply.body == b""
    elif reply.status != 431:
        (message,) = messages
        assert message["id"] in (ATTACK, None) or place.name == "request id", message


# --- the hub's own protocol ------------------------------------------------------------------------


class Line:
    """A WebSocket to a server, which is opened again after it was lost."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open = contextlib.ExitStack()
        self._socket: ClientConnection | None = None
        self._port = 0

    def exchange(self, data: bytes, place: Place, value: Hostile) -> list[Any]:
        if self._socket is None or self._port != self._target.port:
            self.close()
            self._socket, self._port = self._open.enter_context(self._target.socket()), self._target.port
        try:
            return exchange(self._socket.send, self._receive, data, place, value)
        except BaseException:
            self.close()
            raise

    def _receive(self) -> str:
        assert self._socket is not None
        found = self._socket.recv(timeout=PATIENCE)
        assert isinstance(found, str)
        return found

    def close(self) -> None:
        self._open.close()
        self._socket = None


@pytest.fixture(scope="module")
def line(target: Target) -> Iterator[Line]:
    found = Line(target)
    yield found
    found.close()


@named(attacks.RAW)
def test_a_message_on_a_websocket_does_no_harm(
    target: Target, line: Line, place: Place, value: Hostile
) -> None:
    value = aimed(value, str(target.root))
    with target.attacked():
        for message in line.exchange(put(place.message, value), place, value):
            check_secret(json.dumps(message).encode(), target.secrets)


@pytest.fixture(scope="module")
def pipes() -> Iterator[Pipes]:
    """A server on standard input and output."""
    with Pipes() as serving:
        yield serving


@named(attacks.STDIO)
def test_a_line_on_standard_input_does_no_harm(pipes: Pipes, place: Place, value: Hostile) -> None:
    value = aimed(value, str(pipes.root))
    data = value.json if place.name == "line" else put(place.message, value)
    with pipes.attacked():
        for message in pipes.exchange(data, place, value):
            check_secret(json.dumps(message).encode(), pipes.secrets)


# --- HTTP ------------------------------------------------------------------------------------------


def check_request(target: Target, place: Request, value: Hostile) -> None:
    try:
        reply = request_of(target, place, aimed(value, str(target.root)))
    except Dropped:
        assert len(value.text or "") > HEAD // 2, "it hung up without a word"
        return
    check_reply(reply)
    check_secret(reply.body + repr(reply.headers).encode(), target.secrets)
    if place.refused or value.broken:
        assert reply.status >= 400, reply


@named(attacks.HEADERS)
def test_a_header_does_no_harm(target: Target, place: Request, value: Hostile) -> None:
    with target.attacked():
        check_request(target, place, value)


@named(attacks.CHAT)
def test_a_request_to_the_chat_does_no_harm(target: Target, place: Request, value: Hostile) -> None:
    with target.attacked():
        check_request(target, place, value)


@named(attacks.ADMIN)
def test_a_request_of_an_administrator_does_no_harm(target: Target, place: Request, value: Hostile) -> None:
    with target.attacked():
        check_request(target, place, value)


@named(attacks.PATHS)
def test_a_path_does_no_harm(target: Target, place: Request, value: Hostile) -> None:
    with target.attacked():
        check_request(target, place, value)


@pytest.mark.parametrize("path", AS_THEY_ARE, ids=[path[:40] for path in AS_THEY_ARE])
def test_a_path_that_no_client_would_send_does_no_harm(target: Target, path: str) -> None:
    with target.attacked():
        reply = target.ask("GET", path, [("accept", b"text/html")])
        check_reply(reply)
        check_secret(reply.body + repr(reply.headers).encode(), [*target.secrets, b"sings"])
        assert not (reply.status == 200 and b'"calls"' in reply.body), "that is for administrators"


HEADS = {
    "no request": b"\x16\x03\x01\x02\x00\x01\x00",
    "no version": b"GET /\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "host with a user": b"GET / HTTP/1.1\r\nHost: evil.example@localhost\r\n\r\n",
    "name with a blank": b"GET / HTTP/1.1\r\nHost: localhost\r\nX y: z\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\r\n z\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "lines without CR": b"GET / HTTP/1.1\nHost: localhost\n\n",
    "unknown verb": b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "verb of 10 kB": b"A" * 10_000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "two lengths": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "length and chunks": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative length": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "huge length": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "huge chunk": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"ffffffffffffffffff\r\n{}",
    "chunk that is no number": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    "two authorizations": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n"
    b"Authorization: Bearer b\r\nContent-Length: 2\r\n\r\n{}",
    "WebSocket without a key": b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    "1,000 headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
def test_a_head_that_is_none_does_no_harm(target: Target, head: str) -> None:
    with target.attacked():
        try:
            reply = target.send(HEADS[head])
        except Dropped as dropped:
            assert head in ("no request", "no version"), dropped
        else:
            check_reply(reply)
            check_secret(reply.body, target.secrets)


JSON_PLACES = {
    "/mcp": ("ada", attacks.PING),
    "/chat": ("ada", attacks.SAID),
    "/chat/stop": ("ada", {"conversationId": "x"}),
    "/agui": ("ada", {"threadId": "x", "messages": [{"id": "m", "role": "user", "content": "hello"}]}),
    "/agui/connect": ("ada", {"threadId": "x"}),
    "/calls/x/abort": ("ada", {}),
    "/admin/calls/x/abort": ("root", {}),
}
OTHER_TYPES = [
    "text/plain",
    "text/plain; a=application/json",
    "multipart/form-data; boundary=application/json",
    "application/jsonx",
]
"""What a form of any page can send, or what only looks like JSON."""


@pytest.mark.parametrize("kind", OTHER_TYPES)
@pytest.mark.parametrize("path", JSON_PLACES)
def test_what_does_not_say_that_it_is_json_is_refused(target: Target, path: str, kind: str) -> None:
    who, body = JSON_PLACES[path]
    with target.attacked():
        headers = [("content-type", kind.encode()), ("mcp-session-id", target.session.encode())]
        reply = target.ask("POST", path, headers, json.dumps(body).encode(), who)
        check_reply(reply)
        assert reply.status in (400, 415), reply


@pytest.mark.parametrize(
    "path", ["/mcp", "/chat/info", "/chat/conversations", "/calls", "/health", "/admin/calls"]
)
def test_json_is_not_taken_for_anything_else(target: Target, path: str) -> None:
    verb, body = ("POST", json.dumps(attacks.PING).encode()) if path == "/mcp" else ("GET", b"")
    headers = [("content-type", b"application/json"), ("mcp-session-id", target.session.encode())]
    reply = target.ask(verb, path, headers, body, "root" if "admin" in path else "ada")
    assert reply.kind == "application/json", reply
    assert dict(reply.headers).get("x-content-type-options") == "nosniff", reply


@pytest.mark.parametrize("who", ["nobody", "ada"])
@pytest.mark.parametrize("path", ["/metrics", "/admin/calls", "/admin/export", "/admin/import"])
def test_what_is_for_administrators_is_for_nobody_else(target: Target, path: str, who: str) -> None:
    reply = target.ask("POST" if path.endswith("import") else "GET", path, who=who)
    assert reply.status in (401, 403), reply


# --- what is another's -----------------------------------------------------------------------------

WORD = {"word": {"action": "accept", "content": {"text": "of Ada"}}}
OF_ANOTHER: dict[str, tuple[str, Any]] = {
    "state": ("state", request("tools/call", name="box.ask", arguments={"name": OF_BOB}, requestState=HERE, inputResponses=WORD)),
    "state, for another call": ("state", request("tools/call", name="box.ask", arguments={}, requestState=HERE, inputResponses=WORD)),
    "key": ("key", request("tools/call", name="box.ask", arguments={}, _meta={"dev.midcall/idempotencyKey": HERE})),
    "task to look at": ("task", request("tasks/get", taskId=HERE)),
    "task to answer": ("task", request("tasks/update", taskId=HERE, inputResponses=WORD)),
    "task to cancel": ("task", request("tasks/cancel", taskId=HERE)),
    "call as a task": ("subscription", request("tasks/get", taskId=HERE)),
    "question, by its tool": ("question", tool("_plexus_respond", request_id=HERE, payload="of Ada")),
    "question": ("question", request("plexus_respond", request_id=HERE, payload="of Ada")),
    "question of a subscription": (
        "question", request("plexus_respond", request_id=HERE, payload="of Ada", subscription="@subscription@")
    ),
    "subscription to end": ("subscription", request("plexus_unsubscribe", subscription=HERE)),
    "call to attach to": ("subscription", request("plexus_attach", call=HERE, after=0)),
    "task to attach to": ("task", request("plexus_attach", call=HERE, after=0)),
    "run of a chat": ("run", Request("", "/chat", [], headers=(("x-session-id", HERE),))),
    "run of a chat, in the query": ("run", Request("", f"/chat?sessionId={HERE}", [])),
    "conversation to show": ("conversation", Request("", f"/chat/conversations/{HERE}", [])),
    "conversation to delete": ("conversation", Request("", f"/chat/conversations/{HERE}", [], "DELETE")),
    "conversation to talk in": ("conversation", Request("", "/chat", [], "POST", {"message": "hello", "conversationId": HERE}, JSON)),
    "conversation to resume": ("conversation", Request("", "/chat", [], "POST", {"resume": True, "conversationId": HERE}, JSON)),
    "conversation to stop": ("conversation", Request("", "/chat/stop", [], "POST", {"conversationId": HERE}, JSON)),
    "answer in a chat": (
        "conversation",
        Request("", "/chat", [], "POST", {"conversationId": HERE, "pluginElicitResponses": [
            {"sessionId": "@tool_call@", "elicitId": "@elicit@", "result": WORD["word"]}]}, JSON),
    ),
    "end of a tool in a chat": (
        "conversation",
        Request("", "/chat", [], "POST", {"conversationId": HERE, "pluginAbort": {"sessionId": "@tool_call@"}}, JSON),
    ),
    "thread to connect to": ("conversation", Request("", "/agui/connect", [], "POST", {"threadId": HERE}, JSON)),
    "thread to answer in": (
        "conversation",
        Request("", "/agui", [], "POST", {"threadId": HERE, "resume": [
            {"interruptId": "@elicit@", "status": "resolved", "payload": {"text": "of Ada"}}]}, JSON),
    ),
    "session of a request": ("session", Request("", "/mcp", [], "POST", attacks.PING, (("mcp-session-id", HERE),))),
    "session to listen to": ("session", Request("", "/mcp", [], headers=(("mcp-session-id", HERE),))),
    "session to end": ("session", Request("", "/mcp", [], "DELETE", headers=(("mcp-session-id", HERE),))),
    "call to abort": ("subscription", Request("", f"/calls/{HERE}/abort", [], "POST", {}, JSON)),
    "task to abort": ("task", Request("", f"/calls/{HERE}/abort", [], "POST", {}, JSON)),
    "call to administer": ("subscription", Request("", f"/admin/calls/{HERE}?values=true", [])),
    "call to export": ("subscription", Request("", f"/admin/calls/{HERE}/export", [])),
    "calls": ("subscription", Request("", "/calls", [], headers=(("accept", "application/json"),))),
    "conversations": ("conversation", Request("", "/chat/conversations", [])),
}  # fmt: skip


@pytest.fixture(scope="module")
def bobs(target: Target) -> Iterator[dict[int, Bob]]:
    """Bob, by the process that he talks to."""
    found: dict[int, Bob] = {}
    yield found
    for bob in found.values():
        bob.close()


@pytest.mark.parametrize("place", OF_ANOTHER)
def test_what_is_anothers_is_neither_told_nor_touched(
    target: Target, line: Line, bobs: dict[int, Bob], place: str
) -> None:
    if target.pid not in bobs:
        bobs[target.pid] = Bob(target)
    bob = bobs[target.pid]
    attribute, attack = OF_ANOTHER[place]
    text = getattr(bob, attribute)
    value = Hostile("of another", json.dumps(text).encode(), text)
    before = bob.shown()
    with target.attacked():
        if isinstance(attack, Request):
            attack = attack._replace(body=bob.fill(attack.body))
            reply = request_of(target, attack, value)
            said = reply.body + repr(reply.headers).encode()
            check_reply(reply)
            if attribute in ("session", "run") or "administer" in place or "export" in place:
                assert reply.status in (401, 403, 404), reply
        elif attack["method"].startswith("plexus"):
            message = bob.fill(attack)
            said = json.dumps(line.exchange(put(message, value), Place(place, message, []), value)).encode()
        elif attack["params"].get("name") == "_plexus_respond":
            said = target.legacy(put(attack, value)).body
        else:
            message = with_meta(attack, elicitation={"form": {}})
            said = target.modern_bytes(put(message, value), *repeated(message, value)).body
        known = attack["params"].get("arguments", {}).get("name") if isinstance(attack, dict) else None
        assert known == OF_BOB or OF_BOB.encode() not in said, said[:500]
        check_secret(said, target.secrets)
        assert bob.calls() == bob.before
        assert bob.shown() == before
        assert target.legacy(put(attacks.PING, value), bob.session, "bob").status == 200


@pytest.mark.parametrize("thread", ["anybody's", "../../canary", "x; X-Injected: yes"])
def test_a_thread_is_ones_own_whatever_it_is_called(target: Target, thread: str) -> None:
    def said(who: str, text: str) -> tuple[Reply, list[Any]]:
        asked = {
            "threadId": thread,
            "runId": "r",
            "messages": [{"id": text, "role": "user", "content": text}],
        }
        reply = target.ask(
            "POST", "/agui", [("content-type", b"application/json")], json.dumps(asked).encode(), who
        )
        return reply, check_reply(reply)

    def shown(who: str) -> str:
        asked = json.dumps({"threadId": thread, "runId": "r"}).encode()
        return target.ask(
            "POST", "/agui/connect", [("content-type", b"application/json")], asked, who
        ).body.decode()

    with target.attacked():
        for who in ("bob", "ada"):
            reply, events = said(who, f"hello from {who}")
            assert reply.status == 200, reply
            assert events[-1]["type"] == "RUN_FINISHED", events[-1]
        for who, other in (("bob", "ada"), ("ada", "bob")):
            assert f"hello from {who}" in shown(who)
            assert f"hello from {other}" not in shown(who)


# --- a journal from a stranger ---------------------------------------------------------------------

TOUCH = "@touch@"
"""Stands for a command that makes a file where there is a canary."""

FAILURES: dict[str, Any] = {
    "a command": ("os", "system", [TOUCH]),
    "a command, by another way": ("subprocess", "getoutput", [TOUCH]),
    "a process": ("subprocess", "Popen", [["sh", "-c", TOUCH]]),
    "a command, by a module of a module": ("pathlib", "os.system", [TOUCH]),
    "code": ("builtins", "eval", ["__import__('os').system({TOUCH!r})"]),
    "code of several lines": ("builtins", "exec", ["import os\nos.system({TOUCH!r})"]),
    "a file": ("builtins", "open", ["@file@", "w"]),
    "a file, by its class": ("pathlib", "Path.write_text", ["@file@"]),
    "a file to remove": ("os", "remove", ["@canary@"]),
    "a folder to remove": ("shutil", "rmtree", ["@folder@"]),
    "a module": ("attacked_module", "Anything", []),
    "a module, by its loader": ("importlib", "import_module", ["attacked_module"]),
    "the end": ("builtins", "SystemExit", [1]),
    "the end, by a signal": ("os", "abort", []),
    "an exit": ("os", "_exit", [1]),
    "an interruption": ("builtins", "KeyboardInterrupt", []),
    "a group": ("builtins", "ExceptionGroup", ["x", []]),
    "a cancellation": ("asyncio", "CancelledError", []),
    "a wrong number of arguments": ("builtins", "UnicodeDecodeError", ["x"]),
    "an error of midcall, with nonsense": ("midcall.errors", "StepInterrupted", [{"a": []}]),
    "a path": ("../../canary", "x", []),
    "an empty module": ("", "", []),
    "a relative module": (".steps", "run", []),
    "a NUL": ("os\0", "system\0", [TOUCH]),
    "a long name": ("a." * 50_000, "b." * 50_000, []),
    "arguments that are deep": ("builtins", "ValueError", [[[[[[["x"]]]]]]]),
    "a pause": ("time", "sleep", [3600]),
}


@pytest.fixture(scope="module")
def templates(target: Target) -> dict[int, dict[str, Any]]:
    return {}


def poisoned(target: Target, templates: dict[int, dict[str, Any]], failure: str) -> dict[str, Any]:
    """An exported call that waits, one of whose steps has failed with something else than an error."""
    if target.pid not in templates:
        asked = check_reply(target.modern(tool("box.stumble"), "box.stumble", elicitation={"form": {}}))
        assert asked[0]["result"]["resultType"] == "input_required"
        calls = check_reply(target.ask("GET", "/admin/calls?name=box.stumble&limit=1", who="root"))[0][
            "calls"
        ]
        templates[target.pid] = check_reply(
            target.ask("GET", f"/admin/calls/{calls[0]['id']}/export", who="root")
        )[0]
    made: dict[str, Any] = json.loads(json.dumps(templates[target.pid]))
    made["call"] |= {"id": uuid.uuid4().hex, "idempotency_key": None}
    module, name, arguments = FAILURES[failure]
    told = {
        "@touch@": f"touch {target.root}/canary-touched",
        "@file@": f"{target.root}/canary-written",
        "@canary@": f"{target.root}/canary",
        "@folder@": f"{target.house}/work",
    }
    text = json.dumps({"module": module, "name": name, "message": "x", "arguments": arguments})
    text = text.replace("{TOUCH!r}", f"'{told['@touch@']}'")
    for word, meaning in told.items():
        text = text.replace(word, meaning)
    (step,) = [entry for entry in made["entries"] if entry[2] == "failed"]
    step[3] = base64.b64encode(text.encode()).decode()
    return made


@pytest.mark.parametrize("way", ["over HTTP", "in its file"])
@pytest.mark.parametrize("failure", FAILURES)
def test_an_error_of_a_step_in_a_journal_is_an_error_and_nothing_else(
    target: Target, templates: dict[int, dict[str, Any]], failure: str, way: str
) -> None:
    made = poisoned(target, templates, failure)
    if way == "in its file":
        asyncio.run(write_down(target, made))
        target.place_canaries()  # a worker that comes clears away the signs of those that are gone
    with target.attacked():
        if way == "over HTTP":
            headers = [("content-type", b"application/x-ndjson")]
            check_reply(target.ask("POST", "/admin/import", headers, json.dumps(made).encode(), "root"))
        body = json.dumps({"answers": {"word": "hello"}}).encode()
        path = f"/admin/calls/{made['call']['id']}/answers"
        reply = target.ask("POST", path, [("content-type", b"application/json")], body, "root")
        check_reply(reply)
        check_secret(reply.body, target.secrets)


async def write_down(target: Target, made: dict[str, Any]) -> None:
    """Add a call to the journal of a server, as whoever can write its file does."""
    journal = SqliteJournal(target.folder / "journal.db")
    await journal.open()
    try:
        with contextlib.suppress(JournalError):
            await journal.restore(made)
    finally:
        await journal.close()


FILES = {
    "no JSON": b"\x00\x01\x02",
    "no object": b"[1,2,3]\n",
    "deep": b"[" * 100_000,
    "deep objects": b'{"call":' * 100_000,
    "no UTF-8": b'{"call":"\xff"}',
    "keys": b'{"keys":{"../../canary":"AAAA"}}',
    "call without an id": json.dumps({**attacks.EXPORTED, "call": {**attacks.CALL, "id": ""}}).encode(),
    "control characters": json.dumps(
        {**attacks.EXPORTED, "call": {**attacks.CALL, "id": "\x1b[2J\x9b31m", "name": "\x1b]0;owned\x07\u202e", "status": "\x1b[2J"}}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("content", FILES)
def test_a_file_to_import_does_no_harm(tmp_path: Path, content: str) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_bytes(FILES[content])
    done = midcall("calls", "import", str(file), "--journal", str(tmp_path / "journal.db"))
    assert done.returncode in (0, 1, 2)
    assert "Traceback" not in done.stderr
    check_terminal(done.stdout + done.stderr)


def check_terminal(text: str) -> None:
    """What is printed has no characters that a terminal would act on, or that would mislead who reads it."""
    bad = {letter for letter in text if not letter.isprintable() and letter not in "\n\t\u200c\u200d"}
    assert not bad, (bad, text[:500])


@pytest.mark.parametrize("command", [("list",), ("show",), ("show", "--values")], ids=" ".join)
def test_calls_with_hostile_names_are_shown_without_harm(tmp_path: Path, command: tuple[str, ...]) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\rFORGED\nFORGED"
    call = {**attacks.CALL, "name": hostile, "principal": hostile, "status": "completed", "segment": 1}
    call["arguments"] = base64.b64encode(json.dumps({hostile: hostile}).encode()).decode()
    value = base64.b64encode(json.dumps(hostile).encode()).decode()
    entry = [hostile, f"step {hostile} (x)", "done", value]
    outcome = base64.b64encode(json.dumps({"content": [{"type": "text", "text": hostile}]}).encode()).decode()
    made = {"call": call, "entries": [entry], "outcomes": {"0": outcome}}

    async def write() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        await journal.open()
        await journal.restore(made)
        await journal.close()

    asyncio.run(write())
    which = () if command == ("list",) else ("made-up",)
    done = midcall("calls", command[0], *which, *command[1:], "--journal", str(tmp_path / "journal.db"))
    assert done.returncode == 0, done.stderr
    check_terminal(done.stdout + done.stderr)
    assert not any(one.startswith("FORGED") for one in done.stdout.splitlines())


# --- a hostile server behind -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def front() -> Iterator[Target]:
    """A server with hostile servers behind it."""
    with Target(app="attacks_app:front") as serving:
        yield serving


def called(front: Target, message: Any, name: str | None = None, **capabilities: Any) -> Any:
    """Send a message on; gives the answer."""
    with front.attacked():
        reply = front.modern(message, name, **capabilities)
        messages = check_reply(reply)
        check_secret(reply.body, front.secrets)
        return messages[-1] if messages else None


LISTS = {
    "tools": request("tools/list"),
    "prompts": request("prompts/list"),
    "resources": request("resources/list"),
    "templates": request("resources/templates/list"),
    "itself": request("server/discover"),
}


@pytest.mark.parametrize("what", LISTS)
def test_what_a_hostile_server_offers_is_listed_without_harm(front: Target, what: str) -> None:
    answer = called(front, LISTS[what])
    assert "result" in answer, answer
    kept = [icon["src"] for one in answer["result"].get(what, ()) for icon in one.get("icons", ())]
    for url in kept:
        assert url.partition(":")[0].strip().lower() not in (
            "javascript",
            "file",
            "vbscript",
            "java\tscript",
        ), url


@pytest.mark.parametrize("value", SMALL, ids=[value.name for value in SMALL])
def test_a_tool_with_a_hostile_name_does_no_harm(front: Target, value: Hostile) -> None:
    called(front, tool(f"names.{value.text}"), f"names.{value.text}")


@pytest.mark.parametrize("value", SMALL[::3], ids=[value.name for value in SMALL[::3]])
def test_a_prompt_with_a_hostile_name_does_no_harm(front: Target, value: Hostile) -> None:
    called(front, request("prompts/get", name=f"names.{value.text}"), f"names.{value.text}")


URIS = {
    **{value.name: value.text for value in SMALL[::2]},
    "many parts": "many://" + "-" * 10_000,
    "many parts, 100 kB": "many://" + "-" * 100_000,
    "more parts": "more://" + "a" * 10_000,
    "nothing else": "a" * 10_000,
    "regular expression": "a" * 10_000 + "!",
}


@pytest.mark.parametrize("uri", URIS)
def test_a_resource_of_a_hostile_server_does_no_harm(front: Target, uri: str) -> None:
    called(front, request("resources/read", uri=URIS[uri]), URIS[uri])


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("way", ["in", "out"])
def test_a_hostile_schema_of_a_tool_does_no_harm(front: Target, way: str, schema: str) -> None:
    for argument in ("a" * 30 + "!", 1, {"x": {"x": {}}}):
        called(front, tool(f"schemas.{way}, {schema}", x=argument), f"schemas.{way}, {schema}")


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_hostile_answer_does_no_harm(front: Target, answer: str) -> None:
    said = called(front, tool("answers.it", answer=answer), "answers.it")
    assert ("result" in said) != ("error" in said)


@pytest.mark.parametrize("answer", ["no content", "text, one folder up"])
def test_hostile_notifications_do_no_harm(front: Target, answer: str) -> None:
    asked = tool("answers.it", answer=answer, notify=True)
    asked["params"]["_meta"] = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    called(front, asked, "answers.it")


@pytest.mark.parametrize("error", ERRORS)
def test_a_hostile_error_does_no_harm(front: Target, error: str) -> None:
    said = called(front, tool("answers.it", error=error), "answers.it", elicitation={"form": {}, "url": {}})
    assert "javascript:" not in json.dumps(said), said


NO_SCHEMAS = ("schema, pattern that is none", "schema, unknown draft")
"""Forms that cannot be checked."""


@pytest.mark.parametrize("form", FORMS)
def test_a_hostile_question_does_no_harm(front: Target, form: str) -> None:
    asked = tool("forms.it", form=form)
    said = called(front, asked, "forms.it", elicitation={"form": {}, "url": {}})
    if form.startswith("address, "):
        assert json.dumps(URLS[form.removeprefix("address, ")].strip())[1:-1] not in json.dumps(said), said
    state = said.get("result", {}).get("requestState")
    if state is not None and said["result"].get("inputRequests"):
        content = {"x": {"x": {"x": "a" * 30 + "!"}}}
        answers = {key: {"action": "accept", "content": content} for key in said["result"]["inputRequests"]}
        asked["params"] |= {"requestState": state, "inputResponses": answers}
        said = called(front, asked, "forms.it", elicitation={"form": {}, "url": {}})
        if form in NO_SCHEMAS:
            assert "accept" not in json.dumps(said.get("result", {}).get("content", "")), "anything goes"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_hostile_form_on_a_websocket_does_no_harm(front: Target, schema: str) -> None:
    with front.attacked(), front.socket() as line:

        def send(method: str, params: Any) -> None:
            line.send(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}))

        send("plexus_subscribe", {"method": "forms.it", "params": {"form": f"schema, {schema}"}})
        while True:
            message = strict_json(line.recv(timeout=PATIENCE))
            check_rpc(message)
            check_secret(json.dumps(message).encode(), front.secrets)
            item = message.get("params", {}).get("result", {})
            if item.get("type") == "done" or message.get("id") == "plexus_respond":
                break
            if item.get("type") == "request":
                unfit = {"x": {"x": {"x": "a" * 30 + "!"}}}
                send("plexus_respond", {"request_id": item["request_id"], "payload": {"Custom": unfit}})


@pytest.mark.parametrize("variable", SECRETS)
def test_a_server_behind_does_not_get_the_environment(front: Target, variable: str) -> None:
    reply = front.modern(tool("surroundings.it"), "surroundings.it")
    got = json.loads(check_reply(reply)[0]["result"]["content"][0]["text"])
    known = variable in got or SECRETS[variable] in got.values()
    assert not known, variable


@functools.cache
def printed(*argv: str) -> str:
    """What a command prints that has to do with a hostile server."""
    done = midcall(*argv)
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stdout + done.stderr


def hostile(kind: str) -> str:
    return f"{sys.executable} {TESTS / 'attacks_server.py'} {kind}"


TERMINAL = {
    "names of tools": ("tools", hostile("names")),
    "descriptions of tools": ("tools", hostile("texts")),
    "description of a tool": ("tools", hostile("texts"), "t36"),
    "schema of a tool": ("tools", hostile("schemas"), "in, hostile name"),
    "result": ("call", hostile("answers"), "it", "answer=text, terminal"),
    "error": ("call", hostile("answers"), "it", "error=text"),
}


@pytest.mark.parametrize("what", TERMINAL)
def test_what_a_hostile_server_says_reaches_no_terminal_as_it_is(what: str) -> None:
    check_terminal(printed(*TERMINAL[what]))


# --- OAuth -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def oauth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Any]]:
    """A server that takes tokens of an OAuth server, and the key of that."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    file = tmp_path_factory.mktemp("oauth") / "keys.json"
    file.write_text(json.dumps({"keys": [{**public, "kid": "k", "alg": "ES256", "use": "sig"}]}))
    options = (
        "--oauth-issuer",
        "https://issuer.example",
        "--oauth-audience",
        "https://tools.example.com/mcp",
    )
    with Target(*options, "--oauth-jwks", str(file)) as serving:
        serving.tokens["ada"] = jwt.encode(CLAIMS, key, algorithm="ES256", headers={"kid": "k"})
        yield serving, key


CLAIMS = {
    "iss": "https://issuer.example",
    "aud": "https://tools.example.com/mcp",
    "exp": 9_999_999_999,
    "sub": "ada",
}


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


HUGE = b'{"alg":"ES256","kid":1%b}' % (b"0" * 5000)
FORGED = {
    "not signed": f"{part({'alg': 'none'})}.{part(CLAIMS)}.",
    "not signed, in capitals": f"{part({'alg': 'NONE'})}.{part(CLAIMS)}.",
    "signed with a word": jwt.encode(CLAIMS, "secret" * 8, algorithm="HS256", headers={"kid": "k"}),
    "signed with nothing": f"{part({'alg': 'ES256', 'kid': 'k'})}.{part(CLAIMS)}.",
    "key of a file": f"{part({'alg': 'ES256', 'kid': '../../canary'})}.{part(CLAIMS)}.AAAA",
    "key by SQL": f"{part({'alg': 'ES256', 'kid': attacks.NAMED['SQL'].text})}.{part(CLAIMS)}.AAAA",
    "key that is no text": f"{part({'alg': 'ES256', 'kid': {'a': 1}})}.{part(CLAIMS)}.AAAA",
    "key that is a list": f"{part({'alg': 'ES256', 'kid': ['k']})}.{part(CLAIMS)}.AAAA",
    "way that is a list": f"{part({'alg': ['ES256'], 'kid': 'k'})}.{part(CLAIMS)}.AAAA",
    "key elsewhere": f"{part({'alg': 'ES256', 'jku': 'http://127.0.0.1:1/', 'kid': 'x'})}.{part(CLAIMS)}.AAAA",
    "own key": f"{part({'alg': 'ES256', 'jwk': {'kty': 'oct', 'k': 'AAAA'}})}.{part(CLAIMS)}.AAAA",
    "head that is no JSON": f"{part(b'x')}.{part(CLAIMS)}.AAAA",
    "head that is a list": f"{part([])}.{part(CLAIMS)}.AAAA",
    "head without UTF-8": f"{part(bytes([255, 254]))}.{part(CLAIMS)}.AAAA",
    "deep head": f"{part(b'[' * 10_000)}.{part(CLAIMS)}.AAAA",
    "head with a huge number": f"{part(HUGE)}.{part(CLAIMS)}.AAAA",
    "unknown must": f"{part({'alg': 'ES256', 'kid': 'k', 'crit': ['x'], 'x': 1})}.{part(CLAIMS)}.AAAA",
    "no parts": "AAAA",
    "five parts": "a.b.c.d.e",
    "dots": "." * 1000,
}


@pytest.mark.parametrize("token", FORGED)
def test_a_token_that_nobody_gave_lets_nobody_in(oauth: tuple[Target, Any], token: str) -> None:
    refuse_token(oauth[0], FORGED[token])


SIGNED: dict[str, dict[str, Any]] = {
    "no subject": {"sub": ""},
    "subject that is a list": {"sub": ["ada"]},
    "subject that is a number": {"sub": 7},
    "for another": {"aud": "https://tools.example.com.evil.example/mcp"},
    "for nobody": {"aud": []},
    "by another": {"iss": "https://issuer.example.evil.example"},
    "end that is a text": {"exp": "never"},
    "end in the past": {"exp": 1},
}


@pytest.mark.parametrize("claims", SIGNED)
def test_a_token_with_hostile_claims_lets_nobody_in(oauth: tuple[Target, Any], claims: str) -> None:
    target, key = oauth
    signer = jwt.PyJWS()
    body = json.dumps({**CLAIMS, **SIGNED[claims]}).encode()
    refuse_token(target, signer.encode(body, key, algorithm="ES256", headers={"kid": "k"}))


def refuse_token(target: Target, token: str) -> None:
    with target.attacked():
        headers = [("authorization", f"Bearer {token}".encode()), ("content-type", b"application/json")]
        reply = target.ask("POST", "/mcp", headers, json.dumps(attacks.PING).encode(), "nobody")
        check_reply(reply)
        check_secret(reply.body + repr(reply.headers).encode(), target.secrets)
        assert reply.status == 401, reply


PROTECTED = [
    Request("resource of OAuth", f"/.well-known/oauth-protected-resource/{HERE}", TEXTS[::2], who="nobody"),
    Request(
        "origin of OAuth", "/.well-known/oauth-protected-resource", attacks.CORE_LINES, headers=(("origin", HERE),), who="nobody"
    ),
    Request(
        "host of OAuth", "/.well-known/oauth-protected-resource/mcp", attacks.CORE_LINES, headers=(("host", HERE),), who="nobody"
    ),
    Request("challenge", "/mcp", some("header, encoded", "markup"), "POST", attacks.PING, (("host", HERE),), "nobody", refused=True),
]  # fmt: skip


@named(PROTECTED)
def test_what_leads_to_a_token_does_no_harm(
    oauth: tuple[Target, Any], place: Request, value: Hostile
) -> None:
    with oauth[0].attacked():
        check_request(oauth[0], place, value)

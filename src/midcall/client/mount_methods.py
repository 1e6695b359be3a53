"""What a mounted server offers, as a hub knows it: an activation whose methods are run by that server.

Everything is listed as the server gave it. Arguments are passed on as they came: the server behind checks
them.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from midcall.activation import Activation, Method, digest, own_method, plugin_id
from midcall.call import Call
from midcall.client.mount_relay import RelayedCall
from midcall.client.mount_run import Run
from midcall.client.wire import About
from midcall.decorators import Kind
from midcall.errors import InvalidArguments, MidcallError
from midcall.hub import Hub
from midcall.items import to_json
from midcall.limits import MAX_NAME, MAX_URI
from midcall.mcp.catalog import Prepare, Tool
from midcall.mcp.request import McpRequest, Session

if TYPE_CHECKING:
    from midcall.client.mount import Mount

Rpc: TypeAlias = Literal["tools/call", "prompts/get", "resources/read", "completion/complete"]

Listed: TypeAlias = dict[str, Any]
"""What a server says of one thing that it offers."""

_ANY: Listed = {"type": "object", "properties": {}}

_OF: dict[Kind, Rpc] = {
    "method": "tools/call",
    "prompt": "prompts/get",
    "resource": "resources/read",
    "completion": "completion/complete",
}


_PICTURES = ("http://", "https://", "data:image/")
"""Where icons may be."""


class RemoteMethod(Method):
    """One tool, prompt, resource, template or completion of a mounted server."""

    __slots__ = ("_mount", "_start", "about", "mirrors")

    def __init__(self, mount: "Mount", kind: Kind, name: str, listed: Listed, **extras: Any) -> None:
        self._mount = mount
        self.name = name
        self.hidden = False
        self.elicits = {}
        self.description = _text(listed.get("description"))
        self.interactive = True  # it may ask
        self.streaming = False
        schema = listed.get("inputSchema") if kind == "method" else _schema_of(kind, listed)
        self.params = schema if isinstance(schema, dict) else _ANY
        returns = listed.get("outputSchema")
        self.returns = returns if isinstance(returns, dict) else None
        listed = _with_safe_icons(listed)
        self.extras: Mapping[str, Any] = {"listed": listed, "scopes": mount.scopes, **extras}
        properties = self.params.get("properties")
        self._names = list(properties) if isinstance(properties, dict) else []
        self._ask_parameter = None
        self._function = _nothing
        self.hash = digest([kind, listed])
        self.about = About(_OF[kind], name if kind in ("method", "prompt") else "")
        self._start = b'"name":%b,"arguments":' % to_json(name)
        self.mirrors = kind == "method" and b"x-mcp-header" in to_json(self.params)

    def _schema(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "params": self.params,
            "returns": self.returns,
            "streaming": False,
            "interactive": True,
        }

    def read_arguments(self, raw: bytes, name: str = "") -> dict[str, Any]:
        """The arguments as they came, if they are an object."""
        if b"\n" in raw or b"\r" in raw:  # between tokens only, as JSON has it; they separate messages
            raw = raw.replace(b"\n", b" ").replace(b"\r", b" ")
        if raw[:1] == b"{":
            return {"raw": raw}
        raw = raw.strip()
        if raw in (b"", b"null"):
            return {"raw": b"{}"}
        if raw[:1] == b"[":
            try:
                return {"raw": self._by_name(raw)}
            except ValueError as error:
                raise InvalidArguments(name or self.name, [{"path": "", "message": str(error)}]) from None
        if raw[:1] != b"{":
            fault = {"path": "", "message": "the arguments are no object"}
            raise InvalidArguments(name or self.name, [fault])
        return {"raw": raw}

    def inside(self, arguments: bytes) -> tuple[About, bytes]:
        """What is asked of the server, and the inside of its parameters."""
        match self.about.method:
            case "resources/read":
                uri = _located(arguments)
                return About("resources/read", uri), b'"uri":%b' % to_json(uri)
            case "completion/complete":
                return self.about, self._completing(arguments)
        about = self.about
        if self.mirrors:
            headers = self._mount.headers(self.name, arguments)
            about = About(about.method, about.name, headers) if headers else about
        return about, self._start + arguments

    def _completing(self, arguments: bytes) -> bytes:
        given = msgspec.json.decode(arguments)
        asked: dict[str, Any] = {
            "ref": self.extras["ref"],
            "argument": {"name": given.get("argument", ""), "value": given.get("value", "")},
        }
        if given.get("arguments"):
            asked["context"] = {"arguments": given["arguments"]}
        return to_json(asked)[1:-1]

    def relay(
        self,
        hub: Hub,
        request: McpRequest,
        session: Session,
        tool: Tool,
        arguments: bytes,
        start: Callable[[Prepare], None],
    ) -> None:
        """Run it for an MCP client; by `start`, if there is more to do than to pass on the result."""
        RelayedCall(self._mount, hub, request, session, tool, arguments, start).send(self)

    def watch(self, uri: str, principal: str | None) -> None:
        """Somebody wants to hear of updates of a resource."""
        self._mount.watch(uri, principal)

    def invoke(self, call: Call, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Run it: `raw` are the arguments, and `talk` is what is under way already."""
        return Run(self._mount, self, call, arguments["raw"], arguments.get("talk")).run()


class Mounted(Activation):
    """What a mounted server offers."""

    __slots__ = ("_mount", "instructions", "known")

    def __init__(self, mount: "Mount", namespace: str) -> None:
        self._mount = mount
        self.source = mount
        self.namespace = namespace
        self.known = False
        """Whether the server has told what it has."""
        self.instructions: str | None = None
        self.description = ""
        self.version = "0"
        self.read({}, {})

    def read(self, info: Mapping[str, Any], lists: Mapping[str, list[Listed]]) -> None:
        """Take over what the server says of itself, and its lists, without what nobody could name."""
        mount = self._mount
        self.version = _text(info.get("version")) or "0"
        self.description = _text(info.get("description")) or _text(info.get("title"))
        self.plugin_id = plugin_id(self.namespace, self.version)
        self.methods = {}
        for one in lists.get("tools", ()):
            name = one.get("name")
            if isinstance(name, str) and 0 < len(name) <= MAX_NAME:
                self.methods.setdefault(name, RemoteMethod(mount, "method", name, _tool(one)))
        self.prompts = {}
        for one in lists.get("prompts", ()):
            name = one.get("name")
            if isinstance(name, str) and 0 < len(name) <= MAX_NAME:
                self.prompts.setdefault(name, RemoteMethod(mount, "prompt", name, one))
        self.resources = [
            RemoteMethod(mount, "resource", str(one.get("name") or one[key]), _named(one, key), uri=one[key])
            for part, key in (("resources", "uri"), ("templates", "uriTemplate"))
            for one in lists.get(part, ())
            if _is_uri(one.get(key))
        ]
        offers_resources = "resources" in lists or not lists
        self.reader = RemoteMethod(mount, "resource", "resource", {}, uri="") if offers_resources else None
        self.completions = self._completers(lists) if "completions" in lists else []
        offers = (*self.methods.values(), *self.prompts.values(), *self.resources)
        self.hash = digest([self.version, self.description, [one.hash for one in offers]])
        if self.namespace and "schema" not in self.methods:
            self.methods["schema"] = own_method(self.schema, "The schema of this server.")

    def _completers(self, lists: Mapping[str, list[Listed]]) -> list[Method]:
        refs = [(name, {"type": "ref/prompt", "name": name}) for name in self.prompts]
        key = "uriTemplate"
        templates = [one[key] for one in lists.get("templates", ()) if _is_uri(one.get(key))]
        refs += [(uri, {"type": "ref/resource", "uri": uri}) for uri in templates]
        return [
            RemoteMethod(self._mount, "completion", of, {}, of=of, argument="", ref=ref) for of, ref in refs
        ]

    def unlisted(self, name: str, kind: Kind = "method") -> Method | None:
        return None if self.known else RemoteMethod(self._mount, kind, name, {"inputSchema": _ANY})


def _with_safe_icons(listed: Listed) -> Listed:
    """Without icons at addresses that a client must not open."""
    icons = listed.get("icons")
    if icons is None:
        return listed
    safe = [
        icon
        for icon in (icons if isinstance(icons, list) else ())
        if isinstance(icon, dict) and str(icon.get("src")).lower().startswith(_PICTURES)
    ]
    return {**listed, "icons": safe}


def _tool(listed: Listed) -> Listed:
    """A tool that has at least what clients rely on."""
    return listed if isinstance(listed.get("inputSchema"), dict) else {**listed, "inputSchema": _ANY}


def _named(listed: Listed, key: str) -> Listed:
    return listed if isinstance(listed.get("name"), str) else {**listed, "name": listed[key]}


def _schema_of(kind: Kind, listed: Listed) -> Listed:
    """A schema of the arguments of what is no tool."""
    if kind == "completion":
        return {"type": "object", "properties": {"value": {}, "arguments": {}, "argument": {}}}
    if kind == "resource":
        return {"type": "object", "properties": {"uri": {"type": "string"}}}
    arguments = [one for one in listed.get("arguments") or () if isinstance(one, dict) and "name" in one]
    return {
        "type": "object",
        "properties": {
            one["name"]: {"type": "string", "description": _text(one.get("description"))} for one in arguments
        },
        "required": [one["name"] for one in arguments if one.get("required")],
    }


def _is_uri(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_URI


class _Uri(msgspec.Struct):
    uri: str


def _located(arguments: bytes) -> str:
    try:
        return msgspec.json.decode(arguments, type=_Uri).uri
    except msgspec.DecodeError as error:
        raise MidcallError(f"Invalid arguments: {error}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _nothing() -> None:
    """It is the server behind that runs it."""

"""Mount: an MCP server as a part of a hub, and what it offers as an activation of that.

It stays connected from the opening of the hub to its end, and keeps the list of what the server offers up to
date. Everything is listed as the server gave it.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from midcall.activation import (
    PERSON_ONLY,
    TAGS,
    Activation,
    Method,
    RemoteMethod,
    check_namespace,
    digest,
    own_method,
    plugin_id,
)
from midcall.calls import Owned, Shares
from midcall.client.client import INFO, SILENCE, Options
from midcall.client.handshake import Era
from midcall.client.rounds import Exchange
from midcall.client.server_requests import Folders, Sampler
from midcall.client.targets import Named, Target, target_of
from midcall.decorators import Kind
from midcall.errors import MidcallError, RemoteError, TimedOut
from midcall.limits import MAX_NAME, MAX_URI
from midcall.mount.call import Runner
from midcall.mount.clients import Clients, MountClient, PassingOn
from midcall.selection import checked_tags, readable_tags

log = logging.getLogger("midcall.mount")

LOOK = 15.0
"""Seconds between two looks at what is idle, silent, or listed for so long that it may have changed."""

MOST_WAITING = 10_000
"""How many requests wait for the answer of somebody whose call is not in memory; of a caller with a name, a
tenth."""

MOST_WATCHED = 10_000
"""How many resources of one server are watched; for a caller with a name, a tenth."""


Listed: TypeAlias = dict[str, Any]
"""What a server says of one thing that it offers."""

_ANY: Listed = {"type": "object", "properties": {}}

_PICTURES = ("http://", "https://", "data:image/")
"""Where icons may be."""


class MountOptions(Struct, frozen=True):
    """How a server is mounted (see `Hub.mount`)."""

    headers: Mapping[str, str] | None = None
    auth: Any = None
    env: Mapping[str, str] | None = None
    inherit_env: bool = False
    cwd: str | os.PathLike[str] | None = None
    era: Era = "auto"
    revision: str | None = None
    log_level: str | None = None
    timeout: float = SILENCE
    sample: Sampler | None = None
    roots: Folders | None = None
    scopes: Sequence[str] = ()
    tags: Collection[str] = ()
    info: Mapping[str, Any] = INFO


class Mount:
    """One mounted server."""

    def __init__(
        self,
        namespace: str,
        target: "Named | Target",
        changed: Callable[[], None],
        updated: Callable[[str], None],
        chosen: Mapping[str, Any],
    ) -> None:
        """`changed` is called when what the server offers has, `updated` with the URI of a resource.

        `chosen` are `MountOptions`. Raises `RegistrationError`, `TypeError` or `ValueError`.
        """
        check_namespace(namespace)
        options = MountOptions(**chosen)
        self.namespace = namespace
        self.name = namespace or "The server behind"
        """How messages name it."""
        self.scopes = tuple(options.scopes)
        self.tags = checked_tags(options.tags)
        self.silence = options.timeout
        """For how many seconds the server may say nothing about a call."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """In which it is connected, while it is."""
        self._target = (
            target
            if isinstance(target, Target)
            else target_of(
                target,
                headers=options.headers,
                auth=options.auth,
                env=options.env,
                inherit_env=options.inherit_env,
                cwd=options.cwd,
            )
        )
        self._options = options
        self._changed = changed
        self._updated = updated
        self.answering = PassingOn(None, options.sample, options.roots, by_hand=True)
        self.clients = Clients(self._make_client)
        self.activation = Mounted(self, namespace)
        self.waiting: Owned[Exchange] = Owned()
        """Requests of legacy servers that wait for an answer, by the id of the call in the journal."""
        self._watched: set[str] = set()
        self._watched_by = Shares()
        self._keeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stale = asyncio.Event()

    def _make_client(self) -> MountClient:
        chosen = self._options
        options = Options(chosen.era, chosen.revision, chosen.log_level, None, None, chosen.info)
        return MountClient(self._target, self.answering, options, self._opened)

    # --- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Connect, and stay connected until `close`; once is enough."""
        if self._keeping is None:
            self.loop = asyncio.get_running_loop()
            self._keeping = self.loop.create_task(self._keep())

    async def ready(self, seconds: float) -> None:
        """Wait until it is known what the server offers, or that it cannot be reached."""
        end = time.monotonic() + seconds
        while not self.activation.known and self.failure is None and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # there is no event for a failure

    @property
    def failure(self) -> MidcallError | None:
        """Why the server cannot be reached, if it cannot."""
        return self.clients.base.failure

    async def close(self) -> None:
        """Let go of the server."""
        keeping, self._keeping, self.loop = self._keeping, None, None
        tasks = [task for task in (keeping, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        clients, self.clients = self.clients, Clients(self._make_client)
        self._stale = asyncio.Event()  # what waits in one event loop is of no use in another
        self._watched.clear()
        self._watched_by = Shares()
        self.waiting = Owned()
        await clients.close()

    async def _keep(self) -> None:
        base = self.clients.base
        base.on_change(lambda _: self._stale.set())
        base.keep_open()
        while True:
            self._stale.clear()
            if base.connected:
                try:
                    await self._list(base)
                except MidcallError as error:
                    log.warning("%s does not tell what it offers: %s", self.name, error)
            self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._stale.wait()

    async def _list(self, base: MountClient) -> None:
        """Read what the server offers, from its cache where that still holds."""
        lists: dict[str, list[Listed]] = {"tools": await base.tools()}
        for part, capability, fetch in (
            ("prompts", "prompts", base.prompts),
            ("resources", "resources", base.resources),
            ("templates", "resources", base.templates),
        ):
            if capability in base.capabilities:
                try:
                    lists[part] = await fetch()
                except RemoteError as error:  # some declare more than they have
                    log.info("%s has no list of %s: %s", self.name, part, error)
        if "completions" in base.capabilities:
            lists["completions"] = []
        activation = self.activation
        before = activation.hash if activation.known else None
        activation.instructions = base.instructions
        activation.read(base.server_info, lists)
        activation.known = True
        if activation.hash != before:
            self._changed()

    def _look(self) -> None:
        """Give up what is silent, and close what is idle."""
        now, limit = time.monotonic(), self.silence
        for client in self.clients:
            for exchange in list(client.exchanges):
                if exchange.silent_for(now) > limit:
                    exchange.give_up(TimedOut(f"No sign of life within {limit:g} seconds"))
        self.clients.close_idle()

    def _opened(self, client: MountClient) -> None:
        """There is a new session: what it offers may be something else."""
        if client is self.clients.base:
            self._stale.set()

    # --- for calls ---------------------------------------------------------------------------

    def headers(self, tool: str, arguments: bytes) -> tuple[tuple[str, str], ...]:
        """The arguments of a tool that go into headers, if there are any."""
        if not self.clients.base.has_headers:
            return ()
        return self.clients.base.headers_of(tool, msgspec.json.decode(arguments))

    def keep(self, principal: str | None, call_id: str, exchange: Exchange) -> None:
        """A request waits for an answer, whether or not its call stays in memory."""
        self.waiting.remove(principal, call_id)
        for oldest in self.waiting.make_room(principal, MOST_WAITING):
            oldest.cancel("Too many calls wait")
        self.waiting.use(principal, call_id, exchange)

    def watch(self, uri: str, principal: str | None) -> None:
        """Hear of updates of a resource, from now on; a caller that watches too many does not."""
        if uri not in self._watched and not self._watched_by.is_full(principal, MOST_WATCHED):
            self._watched.add(uri)
            self._watched_by.take(principal)
            self._spawn(_suppressed(self.clients.base.subscribe(uri, self._updated)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _suppressed(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except MidcallError as error:
        log.info("%s", error)


# --- what the server offers -------------------------------------------------------------------------


class Mounted(Activation):
    """What a mounted server offers."""

    __slots__ = ("_mount", "instructions", "known")

    def __init__(self, mount: Mount, namespace: str) -> None:
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
                self.methods.setdefault(name, _remote(mount, "method", name, one))
        self.prompts = {}
        for one in lists.get("prompts", ()):
            name = one.get("name")
            if isinstance(name, str) and 0 < len(name) <= MAX_NAME:
                self.prompts.setdefault(name, _remote(mount, "prompt", name, one))
        self.resources = [
            _remote(mount, "resource", str(one.get("name") or one[key]), _named(one, key), uri=one[key])
            for part, key in (("resources", "uri"), ("templates", "uriTemplate"))
            for one in lists.get(part, ())
            if _is_uri(one.get(key))
        ]
        offers_resources = "resources" in lists or not lists
        self.reader = _remote(mount, "resource", "resource", {}, uri="") if offers_resources else None
        self.completions = self._completers(lists) if "completions" in lists else []
        self.listings = []
        offers = (*self.methods.values(), *self.prompts.values(), *self.resources)
        self.hash = digest([self.version, self.description, [one.hash for one in offers]])
        if self.namespace and "schema" not in self.methods:
            self.methods["schema"] = own_method(self.schema, "The schema of this server.")

    def _completers(self, lists: Mapping[str, list[Listed]]) -> list[Method]:
        refs = [(name, {"type": "ref/prompt", "name": name}) for name in self.prompts]
        key = "uriTemplate"
        templates = [one[key] for one in lists.get("templates", ()) if _is_uri(one.get(key))]
        refs += [(uri, {"type": "ref/resource", "uri": uri}) for uri in templates]
        return [_remote(self._mount, "completion", of, {}, ref, of=of, argument="") for of, ref in refs]

    def unlisted(self, name: str, kind: Kind = "method") -> Method | None:
        return None if self.known else _remote(self._mount, kind, name, {})


def _remote(
    mount: Mount, kind: Kind, name: str, listed: Listed, ref: Listed | None = None, **extras: Any
) -> RemoteMethod:
    """Something that the server offers. A tool has at least what clients rely on."""
    if kind == "method" and not isinstance(listed.get("inputSchema"), dict):
        listed = {**listed, "inputSchema": _ANY}
    params = listed["inputSchema"] if kind == "method" else _schema_of(kind, listed)
    runner = Runner(mount, kind, name, params, ref)
    meta = listed.get("_meta")
    if isinstance(meta, dict) and meta.get(PERSON_ONLY):
        extras["person_only"] = True
    extras["tags"] = checked_tags({*mount.tags, *_tags(meta)})
    return RemoteMethod(kind, name, _with_safe_icons(listed), params, runner, scopes=mount.scopes, **extras)


def _tags(meta: Any) -> Iterator[str]:
    """The tags that a server says, as midcall or as FastMCP does."""
    if isinstance(meta, dict):
        yield from readable_tags(meta.get(TAGS))
        for name in ("fastmcp", "_fastmcp"):
            inner = meta.get(name)
            yield from readable_tags(inner.get("tags") if isinstance(inner, dict) else None)


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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

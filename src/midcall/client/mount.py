"""Mount: an MCP server as a part of a hub (`Hub.mount`).

It stays connected from the opening of the hub to its end, and keeps the list of what the server offers up to
date. Whatever is called goes through here: `mount_methods` is what the hub knows of it, `mount_run` a call,
`mount_clients` who speaks to the server for whom.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from midcall.activation import check_namespace
from midcall.calls import Owned, Shares
from midcall.client.answering import Folders, Sampler
from midcall.client.client import SILENCE
from midcall.client.greeting import Era
from midcall.client.mount_clients import Clients, MountClient, PassingOn
from midcall.client.mount_methods import Listed, Mounted
from midcall.client.mount_talk import Talk
from midcall.client.options import INFO, Options
from midcall.client.targets import Target, target_of
from midcall.errors import MidcallError, RemoteError

log = logging.getLogger("midcall.mount")

LOOK = 15.0
"""Seconds between two looks at what is idle, silent, or listed for so long that it may have changed."""

MOST_TALKS = 10_000
"""How many requests wait for the answer of somebody whose call is not in memory; of a caller with a name, a
tenth."""

MOST_WATCHED = 10_000
"""How many resources of one server are watched; for a caller with a name, a tenth."""


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
    info: Mapping[str, Any] = INFO


def mount_of(
    namespace: str,
    target: Any,
    changed: Callable[[], None],
    updated: Callable[[str], None],
    options: Mapping[str, Any],
) -> "Mount":
    """A mount. `changed` is called when what the server offers has, `updated` with the URI of a resource.

    Raises `RegistrationError`, `TypeError` or `ValueError`.
    """
    check_namespace(namespace)
    chosen = MountOptions(**options)
    if not isinstance(target, Target):
        target = target_of(
            target,
            headers=chosen.headers,
            auth=chosen.auth,
            env=chosen.env,
            inherit_env=chosen.inherit_env,
            cwd=chosen.cwd,
        )
    return Mount(namespace, target, chosen, changed, updated)


class Mount:
    """One mounted server."""

    def __init__(
        self,
        namespace: str,
        target: Target,
        options: MountOptions,
        changed: Callable[[], None],
        updated: Callable[[str], None],
    ) -> None:
        self.namespace = namespace
        self.name = namespace or "The server behind"
        """How messages name it."""
        self.scopes = tuple(options.scopes)
        self.loop: asyncio.AbstractEventLoop | None = None
        """In which it is connected, while it is."""
        self._target = target
        self._options = options
        self._changed = changed
        self._updated = updated
        self.answering = PassingOn(None, options.sample, options.roots, by_hand=True)
        self.clients = Clients(self._make_client)
        self.activation = Mounted(self, namespace)
        self.talks: Owned[Talk] = Owned()
        """Requests of legacy servers that wait for an answer, by the id of the call in the journal."""
        self._watched: set[str] = set()
        self._watched_by = Shares()
        self._keeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stale = asyncio.Event()

    def _make_client(self) -> MountClient:
        chosen = self._options
        options = Options(chosen.era, chosen.revision, chosen.log_level, None, None, chosen.info)
        return MountClient(self._target, self.answering, options, self)

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
        self.talks = Owned()
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
        now = time.monotonic()
        for client in self.clients:
            for talk in list(client.talks):
                talk.check(self._options.timeout, now)
        self.clients.close_idle()

    def opened(self, client: MountClient) -> None:
        """There is a new session: what it offers may be something else."""
        if client is self.clients.base:
            self._stale.set()

    # --- for calls ---------------------------------------------------------------------------

    def headers(self, tool: str, arguments: bytes) -> tuple[tuple[str, str], ...]:
        """The arguments of a tool that go into headers, if there are any."""
        if not self.clients.base.has_headers:
            return ()
        return self.clients.base.headers_of(tool, msgspec.json.decode(arguments))

    def keep(self, principal: str | None, call_id: str, talk: Talk) -> None:
        """A request waits for an answer, whether or not its call stays in memory."""
        self.talks.remove(principal, call_id)
        for oldest in self.talks.make_room(principal, MOST_TALKS):
            oldest.cancel("Too many calls wait")
        self.talks.use(principal, call_id, talk)

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

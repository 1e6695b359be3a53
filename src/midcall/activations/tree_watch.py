"""TreeWatch: who subscribes to a tree, or to a node, hears when it has changed, whichever process did that.

A change of this process is looked at once. For those of others, the journal is asked now and then, as long as
somebody subscribes. A caller hears of its own trees only.
"""

import asyncio
import contextlib
import logging
import re
import time

from msgspec import Struct

from midcall.activations.tree_store import StoredNode, TreeStore
from midcall.errors import JournalError, TreeError
from midcall.hub import Hub
from midcall.logs import Trouble
from midcall.registry import Registry

log = logging.getLogger("midcall.arbor")

LOOK = 1.0
"""Seconds between two looks at what other processes have changed; more, if a look takes long."""

ASKED_AT_ONCE = 500
"""Of how many trees the journal is asked at once."""


class _Watched(Struct):
    """What somebody subscribes to."""

    tree_id: str
    node_id: str | None
    since: float
    updated: float | None = None
    """When the tree had last changed; nothing before it was looked at."""
    node: StoredNode | None = None


class TreeWatch:
    """The subscriptions to the trees of a hub, in this process."""

    def __init__(self, hub: Registry, store: TreeStore, tree_uri: str, node_uri: str) -> None:
        self._hub = hub
        self._store = store
        self._templates = [
            re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(uri)))
            for uri in (tree_uri, node_uri)
        ]
        self._watched: dict[tuple[str, str | None], _Watched] = {}
        """By URI and who subscribes to it."""
        self._changed = set[str]()
        """The trees that this process has changed since the last look."""
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble = Trouble(log, "look for changed trees")
        store.on_change.append(self._on_change)

    def add(self, uri: str, principal: str | None) -> None:
        """Somebody subscribes."""
        found = next((match for one in self._templates if (match := one.fullmatch(uri))), None)
        if found is None:
            return
        parts = found.groupdict()
        watched = _Watched(parts["tree_id"], parts.get("node_id"), time.time())
        self._watched.setdefault((uri, principal), watched)
        if self._task is None or self._task.done():
            self._nudged = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._follow())
        self._nudged.set()

    async def close(self) -> None:
        """Look no more."""
        self._watched.clear()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _on_change(self, tree_id: str) -> None:
        if self._watched:
            self._changed.add(tree_id)
            self._nudged.set()

    async def _follow(self) -> None:
        """Look, until nobody subscribes any more."""
        while True:
            self._nudged.clear()
            begun = time.monotonic()
            hub = self._hub.root
            if isinstance(hub, Hub) and hub.durable is not None and hub.durable.stopping:
                return
            try:
                await self._look()
            except JournalError as error:
                self._trouble.begins(error)
            except Exception:
                log.exception("looking for changed trees failed inside midcall, and goes on")
            else:
                self._trouble.ends()
            if not self._watched:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(LOOK, 10 * (time.monotonic() - begun))):
                    await self._nudged.wait()

    async def _look(self) -> None:
        for key in [key for key in self._watched if not self._hub.is_watched(key[0])]:
            del self._watched[key]
        changed, self._changed = self._changed, set()
        if not self._watched:
            return
        trees = await self._store.trees()
        ids = list({one.tree_id for one in self._watched.values()})
        updated = dict[str, float]()
        for first in range(0, len(ids), ASKED_AT_ONCE):
            updated |= await trees.updated(ids[first : first + ASKED_AT_ONCE])
        for key, one in list(self._watched.items()):
            if one.updated is None or updated.get(one.tree_id) != one.updated:
                await self._tell(key, one, one.tree_id in changed)

    async def _tell(self, key: tuple[str, str | None], one: _Watched, changed: bool) -> None:
        """A tree may have changed: tell whoever subscribes, if it is theirs."""
        uri, principal = key
        first = one.updated is None
        try:
            tree = await self._store.load(principal, one.tree_id)
            is_new = not first or changed or tree.updated >= one.since
            node = None
            if one.node_id is not None:
                node = await self._store.node(principal, one.tree_id, one.node_id)
                if not is_new and await self._store.load(principal, one.tree_id) != tree:
                    self._nudged.set()  # what came meanwhile may be in the node already: look again
                    return
        except TreeError:  # it is purged, or was never theirs
            self._watched.pop(key, None)
            if not first:
                self._hub.updated(uri, principals=(principal,))
            return
        before, one.node, one.updated = one.node, node, tree.updated
        same = not first and node is not None and node == before and not node.more_children
        if is_new and not same:
            self._hub.updated(uri, principals=(principal,))

"""Cache: what a server offers, as it was last listed.

A list is fetched when it is first asked for, and again when the server says that it has changed, when the
time is up for which it said that it holds, or after a new connection.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from midcall.client.mirrored import Mirrored
from midcall.mcp.results import objects_in

Part: TypeAlias = Literal["tools", "prompts", "resources", "templates"]

PARTS: dict[Part, tuple[str, str, str]] = {
    # part: the method that lists it, the key of the list, the capability behind it
    "tools": ("tools/list", "tools", "tools"),
    "prompts": ("prompts/list", "prompts", "prompts"),
    "resources": ("resources/list", "resources", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates", "resources"),
}

MAX_PAGES = 1000

Fetch: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class _Listed:
    """One list."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] | None = None
        self.fresh_until = 0.0
        self.version = 0
        """Counts what has made it stale: a change during a fetch is not missed."""
        self.lock = asyncio.Lock()


class Cache:
    """All lists of one server."""

    def __init__(self, fetch: Fetch, mirrored: Mirrored | None = None) -> None:
        self._fetch = fetch
        self._mirrored = mirrored
        self._parts: dict[Part, _Listed] = {part: _Listed() for part in PARTS}

    async def get(self, part: Part) -> list[dict[str, Any]]:
        """A list, from here if it still holds."""
        listed = self._parts[part]
        async with listed.lock:
            if listed.items is None or time.monotonic() >= listed.fresh_until:
                version = listed.version
                items, holds = await self._all_pages(part)
                if part == "tools" and self._mirrored is not None:
                    items = self._mirrored.read(items)
                listed.items = items
                listed.fresh_until = time.monotonic() + holds if listed.version == version else 0.0
            return listed.items

    def stale(self, capability: str | None = None) -> None:
        """What the server has of this capability has changed; without one, all of it may have."""
        for part, listed in self._parts.items():
            if capability in (None, PARTS[part][2]):
                listed.fresh_until = 0.0
                listed.version += 1

    async def _all_pages(self, part: Part) -> tuple[list[dict[str, Any]], float]:
        method, key, _ = PARTS[part]
        items: list[dict[str, Any]] = []
        holds = math.inf
        params: dict[str, Any] = {}
        seen: set[str] = set()
        while len(seen) < MAX_PAGES:
            page = await self._fetch(method, params)
            items += objects_in(page.get(key))
            if isinstance(page.get("ttlMs"), int | float):
                holds = min(holds, page["ttlMs"] / 1000)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
        return items, holds

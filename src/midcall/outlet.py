"""Outlet: where a call's items go.

It belongs to whoever started the call: a dialect that writes to a line, or a reader in this process.
"""

from typing import Protocol

from midcall.items import Item


class Outlet(Protocol):
    """Takes items. `put` never waits; `drain` does, while `full` is true."""

    @property
    def full(self) -> bool:
        """Whether the reader is behind."""

    def put(self, item: Item) -> None:
        """Take an item. After the reader is gone this does nothing."""

    async def drain(self) -> None:
        """Wait until the reader has caught up, or is gone."""


class Nowhere:
    """The outlet of a call whose items nobody reads."""

    __slots__ = ()

    full = False

    def put(self, item: Item) -> None:
        """Nobody reads."""

    async def drain(self) -> None:
        """Nobody is behind."""


NOWHERE = Nowhere()

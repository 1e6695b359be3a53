"""Siblings: the other workers of the same parent, whose figures are told together with one's own.

A monitor that asks for metrics gets to any of the workers that share an address. So each of them leaves what
it has counted in a folder that its parent has made, and whoever is asked adds it all up. What a worker has
counted stays when it ends; what it had at the moment (calls that run) does not.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from midcall.metrics import Counts, counts

VARIABLE = "MIDCALL_FIGURES"
"""Names the folder, in the environment of workers."""

OFTEN = 2.0
"""Seconds after which figures are left again."""

Present = Mapping[str, int]
"""Figures of the moment, by name."""


class _Left(Struct):
    counts: Counts
    present: dict[str, int]


_decode = msgspec.json.Decoder(_Left).decode


class Siblings:
    """All workers of the parent, this one among them; without a parent, this one alone."""

    def __init__(self, present: Callable[[], Present], folder: str | None = None) -> None:
        folder = folder or os.environ.get(VARIABLE)
        self._folder = None if folder is None else Path(folder)
        self._name = str(os.getpid())
        self._present = present

    @asynccontextmanager
    async def sharing(self) -> AsyncIterator[None]:
        """Leave figures, as long as this lasts."""
        if self._folder is None:
            yield
            return
        leaving = asyncio.ensure_future(self._leave_often())
        try:
            yield
        finally:
            leaving.cancel()
            await asyncio.wait((leaving,))
            self._leave({})

    async def _leave_often(self) -> None:
        while True:
            self._leave(self._present())
            await asyncio.sleep(OFTEN)

    def _leave(self, present: Present) -> None:
        if self._folder is not None:
            draft = self._folder / f".{self._name}"
            with contextlib.suppress(OSError):  # the parent is gone, and so is the folder
                draft.write_bytes(msgspec.json.encode(_Left(counts, dict(present))))
                draft.replace(self._folder / self._name)

    def figures(self) -> tuple[Counts, dict[str, int]]:
        """What all have counted, and what they have at this moment."""
        total, present = Counts(), dict(self._present())
        total.add(counts)
        for path in () if self._folder is None else self._folder.iterdir():
            if path.name == self._name or path.name.startswith("."):
                continue
            with contextlib.suppress(OSError, msgspec.DecodeError):
                left = _decode(path.read_bytes())
                total.add(left.counts)
                if _is_alive(int(path.name)):
                    for name, number in left.present.items():
                        present[name] = present.get(name, 0) + number
        return total, present


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True

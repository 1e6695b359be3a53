"""Files: work with the files of one folder, and ask before anything is lost.

Try it:

    midcall call examples/files.py:hub files.delete --ids notes.txt --ids draft.txt

Each start makes a new temporary folder with three small files, so nothing of yours is touched.
"""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct

from midcall import Ask, Hub, ToolError, method


class Deleted(Struct, tag_field="type", tag="deleted"):
    """One file is gone."""

    id: str


class Kept(Struct, tag_field="type", tag="kept"):
    """The person said no: nothing was touched."""


class Files:
    """Work with the files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @method
    def names(self) -> list[str]:
        """List the files."""
        return sorted(path.name for path in self._folder.iterdir())

    @method
    async def delete(self, ids: list[str], ask: Ask) -> AsyncIterator[Deleted | Kept]:
        """Delete files, after a confirmation.

        Args:
            ids: the names of the files
        """
        paths = [self._find(id) for id in ids]
        if not await ask.confirm(f"Delete {len(paths)} files?", default=False):
            yield Kept()
            return
        for number, path in enumerate(paths, 1):
            await ask.step(path.unlink)
            ask.progress(f"{path.name} deleted", 100 * number / len(paths))
            yield Deleted(path.name)

    @method
    async def rename(self, id: str, ask: Ask) -> str:
        """Give a file a new name, and say which.

        Args:
            id: the present name of the file
        """
        path = self._find(id)
        name = await ask.prompt("New name:", default=id)
        if Path(name).name != name or name in ("", ".", ".."):
            raise ToolError(f"{name!r} is not a name for a file")
        target = self._folder / name
        if target.exists() and not await ask.confirm(f"{name} exists. Replace it?", default=False):
            return id
        await ask.step(path.replace, target)
        return name

    def _find(self, id: str) -> Path:
        path = self._folder / id
        if path.parent != self._folder or not path.is_file():
            raise ToolError(f"No file {id!r}", code="no_such_file")
        return path


_folder = tempfile.TemporaryDirectory(prefix="midcall-files-")  # removed when Python ends
for _name in ("notes.txt", "draft.txt", "report.txt"):
    Path(_folder.name, _name).write_text(f"This is {_name}.\n")

hub = Hub("plexus", description="Files of a temporary folder.").register(Files(Path(_folder.name)))

"""Which journal: from what a person writes on the command line or in the environment."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from midcall.journal.seal import state_directory

if TYPE_CHECKING:
    from midcall.journal.contract import Journal
    from midcall.journal.seal import KeyRing

VARIABLE = "MIDCALL_JOURNAL"

DIRECT = "MIDCALL_JOURNAL_DIRECT"
"""The address of the PostgreSQL itself, if the journal's own is that of a pooler."""


def choose_journal(
    where: str | None, target: str, seal: "KeyRing | None" = None, *, plain_too: bool = False
) -> "Journal":
    """The journal at a place: `memory`, the path of a file, or the URL of a PostgreSQL.

    Without a place, the environment says (`MIDCALL_JOURNAL`), or it is a file of the user's state
    directory that belongs to `target`, the hub that is served. With keys to `seal` it, what is not sealed is
    refused, unless `plain_too`. Raises `ValueError` for what is none of these.
    """
    is_named = bool(where or os.environ.get(VARIABLE))
    where = place_of(where, target)
    if where == "memory":
        from midcall.journal.memory import MemoryJournal  # noqa: PLC0415  only the one that is chosen

        return MemoryJournal()
    if is_postgres(where):
        try:
            from midcall.journal.postgres import PostgresJournal  # noqa: PLC0415  as above
        except ModuleNotFoundError as error:
            raise ValueError(f"{error}: PostgreSQL needs `pip install 'midcall[postgres]'`") from None
        return PostgresJournal(where, direct=os.environ.get(DIRECT), seal=seal, plain_too=plain_too)
    if "://" in where and not where.startswith("sqlite://"):
        scheme = where.partition("://")[0]
        raise ValueError(f"{scheme}:// is not a journal: use a path, postgresql://..., or memory")
    from midcall.journal.sqlite import SqliteJournal  # noqa: PLC0415  as above

    path = Path(where.removeprefix("sqlite://"))
    folder = path.absolute().parent
    if is_named and not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    return SqliteJournal(path, seal=seal, plain_too=plain_too)


def is_postgres(where: str) -> bool:
    """Whether a place is a PostgreSQL."""
    return where.startswith(("postgres://", "postgresql://"))


def place_of(where: str | None, target: str) -> str:
    """The place that is meant, if none is named."""
    return where or os.environ.get(VARIABLE) or str(default_path(target))


def default_path(target: str) -> Path:
    """The file of a hub that is served: the same one for the same target in the same folder."""
    module, _, attribute = target.partition(":")
    named = f"{Path(module).stem or module}-{attribute or 'hub'}".replace("/", "-")
    exact = hashlib.sha256(f"{Path.cwd()}\n{target}".encode()).hexdigest()[:8]
    return state_directory() / "journals" / f"{named}-{exact}.db"

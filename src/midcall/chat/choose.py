"""Where conversations are kept: beside the journal, in the same kind of place."""

from midcall.chat.store import ChatStore, MemoryStore
from midcall.journal.contract import Journal


def store_beside(journal: Journal) -> ChatStore:
    """The store that belongs to a journal: a file beside its file, its database, or memory."""
    from midcall.journal.sqlite import SqliteJournal  # noqa: PLC0415  only what is needed is imported

    if isinstance(journal, SqliteJournal):
        from midcall.chat.sqlite_store import SqliteStore  # noqa: PLC0415  as above

        return SqliteStore(journal.path.with_name(f"{journal.path.name}.chat"))
    address = getattr(journal, "address", None)
    if isinstance(address, str):
        from midcall.chat.postgres_store import PostgresStore  # noqa: PLC0415  as above

        return PostgresStore(address, pooled=getattr(journal, "pooled", True))
    return MemoryStore()

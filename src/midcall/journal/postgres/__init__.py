"""The journal in PostgreSQL."""

from midcall.journal.postgres.journal import PostgresJournal

__all__ = ["PostgresJournal"]

"""The journal in an SQLite file."""

from midcall.journal.sqlite.journal import LEASE, SqliteJournal

__all__ = ["LEASE", "SqliteJournal"]

"""Trouble with a store: what callers are told of it, and what only the log is.

Callers learn what is wrong, and whether it passes. Where the store is, and what a file system or a database
has to say of it (paths, hosts, users), is for whoever runs it: it is logged, the same thing once a minute.
"""

import logging
import time

from midcall.errors import JournalError

log = logging.getLogger("midcall.journal")

QUIET = 60.0
"""Seconds for which the same thing is not logged again."""

MOST = 100

_said: dict[str, float] = {}
"""When something was last logged."""


def trouble(message: str, where: object, why: object, *, final: bool = False) -> JournalError:
    """An error that says `message` to callers; the rest is logged. `final`: to try again does not help."""
    details, now = f"{where}: {why or type(why).__name__}", time.monotonic()
    if now - _said.get(details, -QUIET) >= QUIET:
        if len(_said) >= MOST:
            _said.clear()
        _said[details] = now
        log.error("%s", details)
    error = JournalError(message)
    error.recoverable = not final
    error.add_note(details)  # which is in no message, but in tracebacks and on the command line
    return error

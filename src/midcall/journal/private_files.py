"""Private files: what is kept for this user alone, and whether it is."""

import logging
import os
from pathlib import Path

log = logging.getLogger("midcall.files")


def warn_if_exposed(path: Path) -> None:
    """Log that others may read a file, or that it is a link, which whoever can change it turns elsewhere."""
    if path.is_symlink():
        log.warning("%s is a link to %s: give that path itself", path, path.resolve())
    if os.name == "posix" and path.stat().st_mode & 0o077:
        log.warning("Others on this machine may read %s: chmod 600 it", path)

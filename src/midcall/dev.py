"""`--dev`: warns of effects outside a step, which would be done again when a call is run again.

Python tells of what a program does to the outside (audit events): files opened for writing, files removed,
connections made, programs started. If that happens in the body of an interactive method and in no step,
its author hears of it, once for each line of code.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from midcall.replay import in_call
from midcall.steps import in_step

log = logging.getLogger("midcall.dev")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_EFFECTS = {
    "os.mkdir": "makes a folder",
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.rmdir": "removes a folder",
    "os.truncate": "cuts a file",
    "shutil.move": "moves a file",
    "shutil.rmtree": "removes a folder",
    "smtplib.send": "sends mail",
    "socket.connect": "makes a connection",
    "subprocess.Popen": "starts a program",
    "os.system": "starts a program",
}
_HERE = str(Path(__file__).parent)
_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120  as frames have it

_seen: set[tuple[str, int]] = set()
_busy = False


def watch() -> None:
    """Begin to warn; there is no way to stop it."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:  # pragma: no cover  hooks are not traced
    global _busy  # noqa: PLW0603  what a warning itself does is not to be warned of
    if _busy or not (event == "open" or event in _EFFECTS) or in_step() or not in_call():
        return
    effect = _EFFECTS.get(event)
    if event == "open":
        _, mode, flags = arguments
        writes = flags & _WRITING if isinstance(flags, int) else any(c in str(mode) for c in "wax+")
        effect = f"writes to {arguments[0]!r}" if writes else None
    if effect is None:
        return
    _busy = True
    try:
        _warn(effect)
    finally:
        _busy = False


def _warn(effect: str) -> None:  # pragma: no cover  runs in the hook
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, _LIBRARY, "<")):
        frame = frame.f_back
    where = (frame.f_code.co_filename, frame.f_lineno)
    if where in _seen:
        return
    _seen.add(where)
    log.warning(
        "%s:%d %s outside a step: if the call is run again after a crash, it does so again. "
        "Put it in a function, and await ask.step(function, ...)",
        *where,
        effect,
    )

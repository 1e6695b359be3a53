"""Logs: lines for people or for machines, with the call that they are about where that is known.

A record says which call it is about by `extra={"call": ..., "method": ...}`, or is written while a kept call
runs: then also what the author's own code logs belongs to it. Arguments, answers and tokens are never
logged; a frame of a WebSocket, which would have them, is left out at every level.
"""

import datetime as dt
import json
import logging
import re
import sys
import time
from typing import Any, Literal, TextIO

import msgspec

from midcall import replay

Format = Literal["text", "json"]

FIELDS = ("call", "method", "segment")
"""What a line says of its call."""


def set_up(
    format: Format = "text", level: str = "info", label: str = "", stream: TextIO | None = None
) -> None:
    """Log to a stream, standard error by default; whatever was set up before stays.

    `label` is what this process is called among others.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(label) if format == "json" else TextFormatter(label))
    handler.addFilter(is_no_frame)
    logging.basicConfig(level=level.upper(), handlers=[handler])


class Trouble:
    """Something that fails and is tried again: logged when that begins and when it is over."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` is what cannot be done: "write the journal"."""
        self._log = log
        self._what = what
        self.since: float | None = None
        """When it began, while it lasts."""

    def begins(self, error: Exception) -> None:
        """It failed, for the first time or again."""
        if self.since is None:
            self.since = time.monotonic()
            self._log.warning("cannot %s, and tries again: %s", self._what, error)

    def ends(self) -> None:
        """It was done."""
        if self.since is not None:
            self._log.warning("can %s again, after %.1f s", self._what, time.monotonic() - self.since)
            self.since = None


def is_no_frame(record: logging.LogRecord) -> bool:
    """Whether a record is none of those that show what a WebSocket carries, or its headers."""
    return record.levelno > logging.DEBUG or not str(record.msg).startswith(("< ", "> "))


_LINK = re.compile(r"(/q/)[\w-]{8,}")


def hide_links(record: logging.LogRecord) -> bool:
    """Whether to log a record, as always; but who reads the log does not get the links of questions."""
    if isinstance(record.args, tuple):
        record.args = tuple(_LINK.sub(r"\1...", one) if isinstance(one, str) else one for one in record.args)
    return True


def about(record: logging.LogRecord) -> dict[str, Any]:
    """The call that a record is about: those of `FIELDS` that are known."""
    found = {field: getattr(record, field) for field in FIELDS if hasattr(record, field)}
    if "call" not in found:
        running = replay.current()
        if running is not None:
            found = {"call": running.call_id, "method": running.method, "segment": running.segment}
    return {field: found[field] for field in FIELDS if found.get(field) not in (None, "")}


class PrintableFormatter(logging.Formatter):
    """A line as ever; what others have put into it does nothing to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class TextFormatter(PrintableFormatter):
    """A line with the time, and the call at its end."""

    def __init__(self, label: str = "") -> None:
        super().__init__(f"%(asctime)s %(levelname)s {f'{label} ' if label else ''}%(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  a name of the standard library
        line = super().formatMessage(record)
        found = about(record)
        if not found:
            return line
        return f"{line} [{' '.join(f'{name}={value}' for name, value in found.items())}]"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message; process; call, method and segment; error."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = label

    def format(self, record: logging.LogRecord) -> str:
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _sendable(record.getMessage()),
            **({"process": self._label} if self._label else {}),
            **about(record),
        }
        if record.exc_info:
            line["error"] = _sendable(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _sendable(self.formatStack(record.stack_info))
        return printable(msgspec.json.encode(line, enc_hook=str).decode())


def _sendable(text: str) -> str:
    """Without lone surrogates, as file names may have them: JSON cannot carry those."""
    return text.encode(errors="replace").decode()


_KEPT = frozenset("\n\t\u200c\u200d")
"""Those that many languages and emoji need between letters are kept, beside newline and tab."""


def printable(text: str) -> str:
    """Text of others, as a terminal or a log shows it: without characters that act or hide.

    Such characters are written as in JSON, `\\u001b`: what was JSON is the same JSON."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in _KEPT else json.dumps(letter)[1:-1]
        for letter in text.replace("\r\n", "\n")
    )

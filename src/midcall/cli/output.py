"""Where the items of a call are shown.

`Plain` writes lines for a pipe or a log, `JsonLines` writes items as programs read them; `terminal` has
the one for a person. Data go to standard output; all else to standard error. A screen decides nothing:
the `interactive_call` does.
"""

import sys
from typing import Any, Literal, Protocol

import msgspec

from midcall.items import Data, Item, Log, Progress, encode_item, to_builtins
from midcall.logs import printable

LINE = 88
"""JSON that is no longer than this stays on one line."""

Tone = Literal["plain", "quiet", "warning", "error"]


class Screen(Protocol):
    """Shows items and says things."""

    def show(self, item: Item) -> None:
        """Show an item, if it is one that is shown."""

    def say(self, text: str, tone: Tone = "plain") -> None:
        """Say something to the person, on standard error."""

    def pause(self) -> None:
        """Take away what moves, because a prompt comes."""

    def resume(self) -> None:
        """Put it back."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def has_person() -> bool:
    """Whether somebody is there who reads and types; standard output may go elsewhere."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


class Plain:
    """Lines without colour or movement."""

    def show(self, item: Item) -> None:
        match item:
            case Data():
                write_out(readable(item.content))
            case Progress():
                self.say(progress_line(item))
            case Log():
                self.say(log_line(item))

    def say(self, text: str, tone: Tone = "plain") -> None:
        say(text)

    def pause(self) -> None:
        """Nothing moves."""

    def resume(self) -> None:
        """Nothing moves."""

    def close(self) -> None:
        """Nothing was changed."""


class JsonLines(Plain):
    """One item a line in its wire form on standard output; log lines on standard error."""

    def show(self, item: Item) -> None:
        if isinstance(item, Log):
            self.say(log_line(item))
            return
        write_out(encode_item(item).decode())


def write_out(text: str) -> None:
    """Write a line to standard output: as it is to a program, and printable to a terminal."""
    sys.stdout.write(f"{printable(text) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def readable(content: Any) -> str:
    """Content as a person reads it: text as it is, small JSON on one line, other JSON indented."""
    content = to_builtins(content)
    if isinstance(content, str):
        return content
    encoded = msgspec.json.encode(content)
    line = msgspec.json.format(encoded, indent=0).decode()
    return line if len(line) <= LINE else msgspec.json.format(encoded, indent=2).decode()


def progress_line(item: Progress) -> str:
    """A report of progress as a line: `[ 40%] Copying`."""
    return item.message if item.percentage is None else f"[{item.percentage:3.0f}%] {item.message}"


def log_line(item: Log) -> str:
    """A line of log, with its data if there are any."""
    data = "" if item.data is None else f" {readable(item.data)}"
    return f"{item.level}: {item.message}{data}"

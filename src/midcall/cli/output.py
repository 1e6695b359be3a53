"""Where the items of a call are shown.

`Plain` writes lines for a pipe or a log, `JsonLines` writes items as programs read them, and `Terminal` is
for a person: a progress bar, colours, data as readable text. Data go to standard output; all else to standard
error. A screen decides nothing: the `interactive_call` does. Rich takes a while to import, so it is imported
where it is needed.
"""

import datetime as dt
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from midcall.cli.content import Block, Folder, drawn, parts_of, pictures
from midcall.items import Data, Item, Log, Progress, encode_item, to_builtins
from midcall.logs import printable

if TYPE_CHECKING:
    from rich import progress
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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

    def __init__(self, folder: Folder | None = None, returns: Any = None) -> None:
        """`folder` is where pictures, sound and files are saved; `returns` is the schema of what is given."""
        self._folder = folder
        self._returns = returns

    def show(self, item: Item) -> None:
        match item:
            case Data():
                for part in parts_of(item.content, self._returns):
                    write_part(part, self._folder)
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
        if isinstance(item, Data) and self._folder is not None:
            for block in parts_of(item.content, self._returns):
                if isinstance(block, Block):
                    self.say(self._folder.save(block))
        write_out(encode_item(item).decode())


def write_out(text: str) -> None:
    """Write a line to standard output: as it is to a program, and printable to a terminal."""
    sys.stdout.write(f"{printable(text) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def write_part(part: Any, folder: Folder | None) -> None:
    """Write a part of what a call gave: a picture itself where it can be seen, else its name and size."""
    if not isinstance(part, Block):
        write_out(readable(part))
        return
    saved = None if folder is None else folder.save(part)
    picture = drawn(part, pictures())
    if picture is not None:
        sys.stdout.write(f"{picture}\n")
    write_out(saved or str(part))


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def span_text(span: dt.timedelta) -> str:
    """A time in its two largest units: `6d 23h`."""
    seconds = max(0, int(span.total_seconds()))
    parts = [
        f"{number}{unit}"
        for number, unit in (
            (seconds // 86400, "d"),
            (seconds // 3600 % 24, "h"),
            (seconds // 60 % 60, "m"),
            (seconds % 60, "s"),
        )
        if number
    ]
    return " ".join(parts[:2]) or "0s"


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


_STYLES: dict[Tone, str] = {"plain": "", "quiet": "dim", "warning": "yellow", "error": "red"}
_LOUD = frozenset(("warning", "error", "critical", "alert", "emergency"))


def styled(text: str, style: str = "") -> "Text":
    """Text of others for the console: neither its markup nor its control characters do anything."""
    from rich.text import Text

    return Text(printable(text), style=style)


def console() -> "Console":
    """For lists on standard output. A pipe has no width: what reads it wants whole lines."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def table(*titles: str, wraps: Sequence[str]) -> "Table":
    """A table without lines; the columns `wraps` may take several lines."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in titles:
        made.add_column(title, no_wrap=title not in wraps, header_style="dim")
    return made


class Terminal:
    """Shows items in a terminal.

    The bar is taken away while a prompt is open, and comes back after it. Where standard output and standard
    error are the same terminal, data are printed by the console that owns the bar, so that neither overwrites
    the other.
    """

    def __init__(self, folder: Folder | None = None, returns: Any = None) -> None:
        """`folder` is where pictures, sound and files are saved; `returns` is the schema of what is given."""
        from rich.console import Console

        self._folder = folder
        self._returns = returns
        self._console = Console(stderr=True, highlight=False)
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None
        self._paused = False

    def show(self, item: Item) -> None:
        match item:
            case Data():
                for part in parts_of(item.content, self._returns):
                    self._show_part(part)
            case Progress() if self._paused:
                self.say(progress_line(item), "quiet")
            case Progress():
                self._show_progress(item)
            case Log():
                self.say(log_line(item), "warning" if item.level in _LOUD else "quiet")

    def say(self, text: str, tone: Tone = "plain") -> None:
        self._console.print(styled(text, _STYLES[tone]))

    def pause(self) -> None:
        self._paused = True
        if self._bar is not None:
            self._bar.stop()

    def resume(self) -> None:
        self._paused = False
        if self._bar is not None:
            self._bar.start()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.live.transient = False  # the last state of the bar stays to be read
            self._bar.stop()
            self._bar = None

    def _show_part(self, part: Any) -> None:
        if isinstance(part, Block) or not sys.stdout.isatty():
            moves = self._bar is not None and not self._paused and sys.stdout.isatty()
            if moves:
                self.pause()
            write_part(part, self._folder)
            if moves:
                self.resume()
            return
        shown = styled(readable(part))
        if not isinstance(part, str):
            from rich.highlighter import JSONHighlighter

            JSONHighlighter().highlight(shown)
        self._console.print(shown, soft_wrap=True)  # whole lines, as they would be in a file

    def _show_progress(self, item: Progress) -> None:
        from rich import progress

        message = " ".join(printable(item.message).split())
        if self._bar is None:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                progress.TimeElapsedColumn(),
                console=self._console,
                redirect_stdout=False,
                redirect_stderr=False,
                transient=True,
            )
            self._task = self._bar.add_task(message, total=None)
            self._bar.start()
        if self._task is not None:
            total = None if item.percentage is None else 100
            self._bar.update(self._task, description=message, total=total, completed=item.percentage or 0)

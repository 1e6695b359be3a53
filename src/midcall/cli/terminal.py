"""The screen for a person: a progress bar, colours, data as readable text.

The bar is taken away while a prompt is open, and comes back after it. Where standard output and
standard error are the same terminal, data are printed by the console that owns the bar, so that
neither overwrites the other.
"""

import sys

from rich import progress
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from midcall.cli.output import Tone, log_line, progress_line, readable, write_out
from midcall.items import Data, Item, Log, Progress
from midcall.logs import printable

_STYLES: dict[Tone, str] = {"plain": "", "quiet": "dim", "warning": "yellow", "error": "red"}
_LOUD = frozenset(("warning", "error", "critical", "alert", "emergency"))


def styled(text: str, style: str = "") -> Text:
    """Text of others for the console: neither its markup nor its control characters do anything."""
    return Text(printable(text), style=style)


class Terminal:
    """Shows items in a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None
        self._paused = False

    def show(self, item: Item) -> None:
        match item:
            case Data():
                self._show_data(item)
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

    def _show_data(self, item: Data) -> None:
        text = readable(item.content)
        if not sys.stdout.isatty():
            write_out(text)
            return
        shown = styled(text)
        if not isinstance(item.content, str):
            JSONHighlighter().highlight(shown)
        self._console.print(shown, soft_wrap=True)  # whole lines, as they would be in a file

    def _show_progress(self, item: Progress) -> None:
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

"""Makes the pictures of terminal sessions in docs/images, by running them in a pseudo-terminal.

    .venv/bin/python scripts/terminal_pictures.py

What a picture shows is what the commands wrote, cell by cell. Run it again when the terminal's look changes.
"""

import io
import itertools
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 78, 40
DOWN, ENTER = "\x1b[B", "\r"

_COLOURS = [
    (224, 108, 117),
    (126, 190, 130),
    (229, 192, 123),
    (97, 175, 239),
    (198, 120, 221),
    (86, 182, 194),
]
THEME = TerminalTheme(
    (30, 34, 42),
    (214, 220, 229),
    [(30, 34, 42), *_COLOURS, (214, 220, 229)],
    [(110, 118, 132), *_COLOURS, (255, 255, 255)],
)
# Without rich's link to a font on another server.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

_SEQUENCE = re.compile(r"\x1b\[([?>=]?)([\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[=>78()][0-9A-B]?")


class Screen:
    """As much of a terminal as prompt_toolkit and rich use: cells, a cursor, and what moves it."""

    def __init__(self) -> None:
        self.cells = [[(" ", "")] * WIDTH for _ in range(HEIGHT)]
        self.row = self.column = 0
        self.style = ""

    def feed(self, text: str) -> str:
        """Take output; gives what the terminal answers to it."""
        answers = ""
        place = 0
        while place < len(text):
            match = _SEQUENCE.match(text, place)
            if match:
                if match[3] == "n":
                    answers += f"\x1b[{self.row + 1};{self.column + 1}R"
                elif match[3] and not match[1]:
                    self.control(match[3], match[2])
                place = match.end()
                continue
            self.write(text[place])
            place += 1
        return answers

    def write(self, char: str) -> None:
        match char:
            case "\n":
                self.row = min(self.row + 1, HEIGHT - 1)
            case "\r":
                self.column = 0
            case "\b":
                self.column = max(0, self.column - 1)
            case _ if char >= " ":
                if self.column == WIDTH:
                    self.row, self.column = self.row + 1, 0
                self.cells[self.row][self.column] = (char, self.style)
                self.column += 1

    def control(self, letter: str, given: str) -> None:
        number = int(given.partition(";")[0] or 0) if given else 0
        match letter:
            case "A":
                self.row = max(0, self.row - max(1, number))
            case "B":
                self.row = min(HEIGHT - 1, self.row + max(1, number))
            case "C":
                self.column = min(WIDTH - 1, self.column + max(1, number))
            case "D":
                self.column = max(0, self.column - max(1, number))
            case "G":
                self.column = max(1, number) - 1
            case "H":
                self.row = self.column = 0
            case "K":
                start = 0 if number == 2 else self.column
                self.cells[self.row][start:] = [(" ", "")] * (WIDTH - start)
            case "J":
                self.cells[self.row][self.column :] = [(" ", "")] * (WIDTH - self.column)
                for row in range(self.row + 1, HEIGHT):
                    self.cells[row] = [(" ", "")] * WIDTH
            case "m":
                self.style = "" if given in ("", "0") else f"{self.style}\x1b[{given}m"
                if given.startswith("0;"):
                    self.style = f"\x1b[{given[2:]}m"

    def text(self) -> str:
        return "\n".join("".join(char for char, _ in row).rstrip() for row in self.cells).rstrip()

    def ansi(self) -> str:
        shown = len(self.text().split("\n"))
        return "\n".join(_line(row) for row in self.cells[:shown])


def _line(row: list[tuple[str, str]]) -> str:
    runs = itertools.groupby(row, key=lambda cell: cell[1])
    return "".join(f"\x1b[0m{style}{''.join(char for char, _ in run)}" for style, run in runs)


def play(command: str, keys: list[tuple[str, str]], until: str, folder: Path) -> Screen:
    """Run a command; when the screen shows each text, type its keys. Ends when it shows `until`."""
    screen = Screen()
    screen.feed(f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n")
    main, other = pty.openpty()
    ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = os.environ | {
        "TERM": "xterm-256color",
        "COLORTERM": "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("NO_COLOR", None)
    running = subprocess.Popen(
        command, shell=True, stdin=other, stdout=other, stderr=other, env=environment, cwd=folder
    )
    os.close(other)
    waiting = [*keys, (until, "")]
    deadline = time.monotonic() + 30
    while waiting and time.monotonic() < deadline:
        if select.select([main], [], [], 0.3)[0]:
            try:
                came = os.read(main, 65536).decode()
            except OSError:
                break
            os.write(main, screen.feed(came).encode())
        elif waiting[0][0] in screen.text():
            os.write(main, waiting.pop(0)[1].encode())
    running.terminate()
    running.wait()
    os.close(main)
    assert until in screen.text(), screen.text()
    return screen


def save(screen: Screen, name: str) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="256")
    console.print(Text.from_ansi(screen.ansi()), no_wrap=True)
    console.print()  # some room below the last line
    svg = console.export_svg(title="", theme=THEME, code_format=FORMAT, unique_id=name)
    lines = "".join(f"{line.rstrip()}\n" for line in svg.rstrip().split("\n"))
    (IMAGES / f"{name}.svg").write_text(lines)
    print(f"{name}\n{screen.text()}\n")


def app_of_the_tutorial() -> str:
    page = (ROOT / "docs" / "tutorial" / "first-tool.md").read_text()
    return page.partition('```python title="app.py"\n')[2].partition("```\n")[0]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(app_of_the_tutorial())
        save(
            play(
                "midcall call midcall.activations:hub interactive.wizard",
                [("Project name:", f"kiosk{ENTER}"), ("Template:", DOWN + ENTER), ("Create", "y")],
                '"created"',
                Path(folder),
            ),
            "wizard",
        )
        save(
            play(
                "midcall call app:hub parcel.pack --items book --items pen",
                [("Which box?", DOWN)],
                "» large",
                Path(folder),
            ),
            "tutorial",
        )


if __name__ == "__main__":
    main()

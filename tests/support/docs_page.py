"""Runs what one page of the documentation shows: `python tests/support/docs_page.py docs/tutorial/first-tool.md`.

The page is played from top to bottom in an empty folder that holds a copy of `examples/`. How a block
is treated depends on the first word of its fence:

    python                  runs; the blocks of a page share one namespace
    python title="app.py"   is written to that file, which a later block must use
    output                  is what the python block above it prints
    console                 each `$ command` runs, and the lines below it are what it prints; a command
                            must succeed, unless the next one is `$ echo $?`. Commands that serve
                            for ever (`midcall serve` and `proxy` over HTTP, `uvicorn`) stay in the background
                            until the end of the page, on a free port in the place of 8000
    wire                    is played on the server's WebSocket: `>` is sent, `<` must come back;
                            words in capitals stand for ids that differ each time
    json                    must be JSON
    others                  are only shown

In all expected output `...` stands for anything. `<!-- fragment -->` above a block keeps it from being
run: for code that is not whole, and for commands that wait for a person.
"""

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from driving import LIMIT
from ports import free_port

ROOT = Path(__file__).parents[2]
PORT = "8000"

RUN = {"midcall", "python", "pytest", "printf", "cat"}
NOT_RUN = {"pip", "make", "git", "cd", "node"}

_FENCE = re.compile(r"^```(\w+)?(?: title=\"([^\"]+)\")?[ \t]*$")
_NAME = re.compile(r'"([A-Z][A-Z0-9]*)"')


class Block(NamedTuple):
    language: str
    title: str
    text: str
    line: int
    fragment: bool


def read_blocks(markdown: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = markdown.split("\n")
    place = 0
    while place < len(lines):
        if not lines[place].startswith("```"):
            place += 1
            continue
        opening = _FENCE.match(lines[place])
        assert opening, f"line {place + 1}: a fence with words that the site cannot read: {lines[place]}"
        end = lines.index("```", place + 1)
        above = "\n".join(lines[max(0, place - 2) : place])
        text = "".join(f"{line}\n" for line in lines[place + 1 : end])
        yield Block(opening[1] or "", opening[2] or "", text, place + 2, "<!-- fragment -->" in above)
        place = end + 1


class Page:
    """One page, being played."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(ROOT))
        self.port = free_port()
        text = path.read_text().replace(PORT, str(self.port))
        self.blocks = list(read_blocks(text))
        self.module = types.ModuleType("page")
        self.printed = ""
        self.servers: list[subprocess.Popen[bytes]] = []
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": os.environ.get("MIDCALL_STATE", os.environ["HOME"]),  # also of servers that servers start
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }

    def play(self) -> None:
        sys.modules["page"] = self.module
        sys.path.insert(0, str(Path.cwd()))
        try:
            for number, block in enumerate(self.blocks):
                if not block.fragment:
                    self.play_block(block, self.blocks[number + 1 :])
        finally:
            for server in self.servers:
                server.terminate()
            for server in self.servers:
                server.wait(LIMIT)

    def play_block(self, block: Block, later: list[Block]) -> None:
        match block.language:
            case "python" if block.title:
                compile(block.text, block.title, "exec")
                Path(block.title).write_text(block.text)
                stem = Path(block.title).stem
                assert any(re.search(rf"\b{stem}\b", b.text) for b in later), f"nothing uses {block.title}"
            case "python":
                self.run_python(block)
            case "output":
                self.expect(block.text, self.printed, block.line)
            case "console":
                self.run_commands(block)
            case "wire":
                self.play_wire(block)
            case "json":
                json.loads(block.text)

    def run_python(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + block.text, self.name, "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, vars(self.module))
        self.printed = printed.getvalue()

    def run_commands(self, block: Block) -> None:
        parts = re.split(r"^\$ (.+)\n", block.text, flags=re.MULTILINE)
        assert not parts[0].strip(), f"line {block.line}: a console block starts with `$ command`"
        commands = list(zip(parts[1::2], parts[2::2], strict=True))
        code = 0
        for number, (command, expected) in enumerate(commands):
            if command == "echo $?":
                self.expect(expected, f"{code}\n", block.line)
                continue
            program = shlex.split(command)[0]
            if program in NOT_RUN:
                continue
            own = command.partition(" -- ")[0]  # what follows is the command of another server
            serves = own.startswith(("midcall serve", "midcall proxy")) and "--stdio" not in own
            if program == "uvicorn" or serves:
                self.serve(command)
                continue
            assert program in RUN, f"line {block.line}: is {program} to be run or only shown?"
            ran = self.run(command)
            code = ran.returncode
            told = len(commands) > number + 1 and commands[number + 1][0] == "echo $?"
            assert code == 0 or told, f"line {block.line}: {command}: exit code {code}\n{ran.stdout}"
            if expected.strip():
                self.expect(expected, ran.stdout, block.line)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def serve(self, command: str) -> None:
        if "--port" not in command:
            command += f" --port {self.port}"
        self.servers.append(
            subprocess.Popen(
                ["bash", "-c", f"exec {command}"], env=self.environment, stdin=subprocess.DEVNULL
            )
        )
        deadline = time.monotonic() + LIMIT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self.servers[-1].poll() is None, f"{command} ended"
            assert time.monotonic() < deadline, f"{command} does not open its port"
            time.sleep(0.05)

    def play_wire(self, block: Block) -> None:
        import websockets.sync.client

        names: dict[str, str] = {}
        with websockets.sync.client.connect(f"ws://127.0.0.1:{self.port}/ws") as socket:
            for line in block.text.splitlines():
                if line.startswith("> "):
                    socket.send(_with_names(line[2:], names))
                elif line.startswith("< "):
                    came = str(socket.recv(timeout=LIMIT))
                    pattern = _wire_pattern(line[2:], names)
                    match = re.fullmatch(pattern, came)
                    assert match, f"line {block.line}: expected\n{line[2:]}\ngot\n{came}"
                    names |= match.groupdict()
                else:
                    assert not line.strip(), f"line {block.line}: neither > nor <: {line}"

    def expect(self, expected: str, got: str, line: int) -> None:
        checker = doctest.OutputChecker()
        expected = "".join(f"{one.rstrip()}\n" for one in expected.rstrip().splitlines())
        got = "".join(f"{one.rstrip()}\n" for one in got.rstrip().splitlines())
        same = checker.check_output(expected, got, doctest.ELLIPSIS)
        assert same, f"{self.name}, line {line}: expected\n{expected}\ngot\n{got}"


def _with_names(line: str, known: dict[str, str]) -> str:
    return _NAME.sub(lambda match: f'"{known[match[1]]}"', line)


def _wire_pattern(line: str, known: dict[str, str]) -> str:
    """A pattern for a message: `...` is anything, a word in capitals is an id, the same one each time."""
    pattern = re.escape(line).replace(re.escape("..."), ".*")
    seen = set(known)

    def named(match: re.Match[str]) -> str:
        name = match[1]
        if name in known:
            return f'"{re.escape(known[name])}"'
        if name in seen:
            return f'"(?P={name})"'
        seen.add(name)
        return f'"(?P<{name}>[^"]+)"'

    return _NAME.sub(named, pattern)


def main(path: str) -> None:
    page = Page(Path(path).resolve())
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(
            ROOT / "examples", Path(folder, "examples"), ignore=shutil.ignore_patterns("__pycache__")
        )
        os.chdir(folder)
        os.environ |= {name: page.environment[name] for name in ("PATH", "HOME")}  # for python blocks too
        page.play()
        os.chdir(ROOT)


if __name__ == "__main__":
    main(sys.argv[1])

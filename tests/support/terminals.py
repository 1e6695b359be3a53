"""A command in a real pseudo-terminal, and the keys of a person."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pexpect

from driving import LIMIT
from peers import HERE

DOWN, ENTER, CTRL_C, CTRL_D = "\x1b[B", "\r", "\x03", "\x04"

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\[?[0-9;?]*$|\r")


class Session:
    """A command in a terminal of 140 columns; what it writes is seen without colours and movement."""

    def __init__(self, command: str, argv: list[str]) -> None:
        self.process = pexpect.spawn(
            command,
            argv,
            cwd=str(HERE),
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            dimensions=(40, 140),
            encoding="utf-8",
            timeout=LIMIT,
        )
        self.written = ""
        self.place = 0

    @property
    def text(self) -> str:
        return _SEQUENCE.sub("", self.written)

    def sees(self, *texts: str) -> None:
        """Wait for these texts, one after the other."""
        for text in texts:
            while (found := self.text.find(text, self.place)) < 0:
                try:
                    self.written += self.process.read_nonblocking(4096, timeout=LIMIT)
                except (pexpect.EOF, pexpect.TIMEOUT) as error:
                    raise AssertionError(f"{type(error).__name__} before {text!r} in:\n{self.text}") from None
            self.place = found + len(text)

    def types(self, keys: str) -> None:
        self.process.send(keys)

    def ends(self) -> int:
        """Wait for the end; gives the exit code."""
        self.process.expect(pexpect.EOF)
        self.written += self.process.before
        self.process.close()
        assert "Traceback" not in self.text
        assert self.process.signalstatus is None
        return int(self.process.exitstatus)


@contextmanager
def terminal(command: str, *argv: str) -> Iterator[Session]:
    session = Session(command, list(argv))
    try:
        yield session
    finally:
        session.process.close(force=True)


def midcall(*argv: str) -> AbstractContextManager[Session]:
    return terminal(sys.executable, "-m", "midcall", *argv)

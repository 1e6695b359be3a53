"""What the tests of bash share: a shell in a project of its own, what runs on this machine, and which sandboxes work."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from midcall import Hub, Request
from midcall.activations.bash import Bash
from midcall.activations.bash.rules import SandboxSettings
from midcall.activations.bash.sandbox import find_sandbox
from midcall.testing import Outcome, run

PLAIN = "[sandbox]\nuse = 'none'\n"


def shell(folder: Path, config: str = "") -> Hub:
    """A hub with a shell that works in `folder`/project, by the rules in `folder`/bash.toml."""
    project = folder / "project"
    project.mkdir(exist_ok=True)
    file = folder / "bash.toml"
    file.write_text(config)
    return Hub().register(Bash(file, folder=project))


def events(outcome: Outcome) -> list[dict[str, Any]]:
    """What a command gave, as a client sees it."""
    made: list[dict[str, Any]] = msgspec.to_builtins(outcome.contents)
    return made


async def execute(hub: Hub, command: str, answers: Any = (), **arguments: Any) -> list[dict[str, Any]]:
    """Run a command, with these answers; gives its events."""
    return events(await run(hub, "bash.execute", {"command": command, **arguments}, answers=answers))


def lines(found: Iterable[dict[str, Any]], stream: str = "stdout") -> list[str]:
    return [event["line"] for event in found if event["type"] == stream]


def choosing(*answers: str) -> tuple[Any, list[Request]]:
    """Who answers one question after the other, and the questions."""
    asked: list[Request] = []
    left = iter(answers)

    def answer(request: Request) -> str:
        asked.append(request)
        return next(left)

    return answer, asked


def processes(mark: str) -> list[int]:
    """The processes on this machine whose command line has a word."""
    return list(_processes(mark.encode()))


def _processes(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in words:
                yield int(entry.name)


@cache
def why_not(kind: str) -> str:
    """Why a sandbox does not work on this machine; nothing if it does."""
    try:
        find_sandbox(SandboxSettings(use=kind, write=[]), Path("/usr"), Path("/usr/bash.toml"))  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    return ""

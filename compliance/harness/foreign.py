"""A foreign server in its folder, the steps that are taken with it, and what is to be seen.

The players in `compliance/foreign` take the steps, and report what their client saw; what is right is said in
`servers`, once for all of them.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.install import node, npm_package, python_package

RUN_SECONDS = 240
ANSWER = {"name": "Ada", "check": True, "integer": 7}
SAMPLE = "all is well"


@dataclass(frozen=True)
class Step:
    """One thing to do, and what is to be seen: all of it, or the part of the text or of the structure."""

    do: Mapping[str, Any]
    sees: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What is done."""
        return str(next(iter(self.do.values())))

    def inside(self, namespace: str) -> dict[str, Any]:
        """The step for a server that is mounted under a name; resources keep theirs."""
        named = {key: f"{namespace}{self.do[key]}" for key in ("call", "prompt") if key in self.do}
        return {**self.do, **named}

    def wrong(self, saw: Mapping[str, Any], *, loses_last: bool = False) -> str:
        """What is not as it should be; empty if all is. `loses_last` is of progress."""
        for key, expected in self.sees.items():
            found = saw.get(key)
            if key == "progress" and loses_last and len(found or ()) < len(expected):
                expected = expected[:-1]
            if not _fits(key, found, expected):
                return f"{key} is {found!r}, not {expected!r}"
        return ""


def _fits(key: str, found: Any, expected: Any) -> bool:
    match key, found, expected:
        case "text", str(), str():
            return expected in found
        case "tools", list(), list():
            return {name.rpartition(".")[2] for name in found} >= set(expected)
        case "progress", list(), list():
            return [round(one, 3) for one in found] == expected
        case "structured", dict(), dict():
            return all(key in found and found[key] == value for key, value in expected.items())
    return bool(found == expected)


def listed(*names: str) -> Step:
    """List the tools, among which are these."""
    return Step({"list": "tools"}, {"tools": list(names)})


def call(name: str, arguments: Mapping[str, Any] | None = None, **sees: Any) -> Step:
    """Call a tool, which works unless said otherwise."""
    return Step({"call": name, "arguments": dict(arguments or {})}, {"failed": False, **sees})


def read(uri: str, text: str) -> Step:
    """Read a resource."""
    return Step({"read": uri}, {"text": text})


def prompt(name: str, text: str, **arguments: str) -> Step:
    """Get a prompt."""
    return Step({"prompt": name, "arguments": arguments}, {"text": text})


@dataclass(frozen=True)
class Scene:
    """A server in its folder: how it is started, and what is done with it."""

    arguments: Sequence[str]
    steps: Sequence[Step]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """A published server."""

    name: str
    package: str
    version: str
    scene: Callable[[Path, str], Scene]
    """Made for a folder, and the URL of a page that can be fetched."""
    overrides: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.package.rpartition('/')[2]} {self.version}"

    def command(self, folder: Path, say: Callable[[str], None]) -> list[str]:
        """Install it if it is not there yet, and return the command line that starts it."""
        if self.package.startswith("@"):
            prefix = npm_package(folder, self.package, self.version, say)
            return [str(node(folder, say)), str(prefix / "node_modules" / self.package / "dist" / "index.js")]
        python = python_package(folder, self.package, self.version, self.overrides, say)
        return [str(python.parent / self.package)]


@dataclass(frozen=True)
class Player:
    """A client, and the command that has it play a plan."""

    command: Sequence[str]
    loses_last: bool = False
    """Whether it may drop progress that comes right before the result."""


def play(
    player: Player, mode: str, scene: Scene, server: Sequence[str], folder: Path, namespace: str = ""
) -> list[str]:
    """Play a scene by a player against a server; gives what went wrong, a line for each step that did.

    What the player and the server said beside that is in the folder's `log.txt`.
    """
    plan = {
        "answer": ANSWER,
        "sample": SAMPLE,
        "roots": [folder.as_uri()],
        "steps": [step.inside(namespace) for step in scene.steps],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    with (folder / "log.txt").open("w") as log:
        try:
            done = subprocess.run(
                [*player.command, str(folder / "plan.json"), mode, *server],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=RUN_SECONDS,
                check=False,
            )
            written, late = done.stdout, f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired as expired:
            written, late = expired.stdout or b"", f"no end within {RUN_SECONDS} s"
    reports = {line["step"]: line for line in map(json.loads, written.splitlines())}
    wrong = [
        f"{step.name}: {problem}"
        for number, step in enumerate(scene.steps)
        if (problem := _problem(step, reports.get(number), player))
    ]
    return [*wrong, f"the player: {late}"] if late else wrong


def _problem(step: Step, report: Mapping[str, Any] | None, player: Player) -> str:
    if report is None:
        return "not reported"
    if "raised" in report:
        return str(report["raised"])
    return step.wrong(report["saw"], loses_last=player.loses_last)

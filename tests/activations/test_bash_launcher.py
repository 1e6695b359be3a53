"""The launcher of commands, in a process that is forked from this one, so that its coverage is measured too."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from midcall.activations.bash import launcher
from midcall.activations.bash.rules import ConfigError, SandboxSettings
from midcall.activations.bash.sandbox import Sandbox, find_sandbox

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the launcher is forked")


def launched(
    command: str, sandbox: Sandbox, *, limit: int = 100_000, stop: bool = False, after: Path | None = None
) -> list[Any]:
    """The events of a command; with `stop`, the server goes away as soon as there is one.

    With `after`, it reads nothing before there is this file, and a while after that.
    """
    with sandbox.entered("/") as (described, needed):
        spec = {
            "argv": ["/bin/bash", "--noprofile", "--norc", "-c", command],
            "cwd": "/",
            "env": {"PATH": "/usr/bin:/bin", **needed},
            "limit": limit,
            "limits": {},
            "processes": 100,
            "grace": 0.2,
            "sandbox": described,
        }
        given, told = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.dup2(given[0], 0)
                os.dup2(told[1], 1)
                for fd in (*given, *told):
                    os.close(fd)
                launcher.main()
            finally:
                os._exit(0)
        os.close(given[0])
        os.close(told[1])
        os.write(given[1], json.dumps(spec).encode() + b"\n")
        if after is not None:
            while not after.exists():
                time.sleep(0.01)
            time.sleep(0.5)
        events: list[Any] = []
        with os.fdopen(told[0], "rb") as lines:
            for line in lines:
                events.append(json.loads(line))
                if stop:
                    os.close(given[1])
                    stop = False
        os.waitpid(child, 0)
    return events


@pytest.fixture(params=["none", "bwrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    settings = SandboxSettings(use=request.param, write=())
    try:
        return find_sandbox(settings, tmp_path, tmp_path / "rules.toml")
    except ConfigError as error:
        pytest.skip(str(error))


def test_lines_and_the_end_are_told(sandbox: Sandbox) -> None:
    assert launched("echo one; echo two >&2; exit 3", sandbox)[-1] == {"type": "exit", "code": 3}
    told = launched("echo one", sandbox)
    assert told == [{"type": "stdout", "line": "one"}, {"type": "exit", "code": 0}]


def test_a_signal_that_ends_it_is_told(sandbox: Sandbox) -> None:
    last = launched("kill -TERM $$", sandbox)[-1]
    assert (last["type"], last["code"]) == ("exit", -1) or last["code"] == 128 + signal.SIGTERM


def test_too_much_output_is_cut(sandbox: Sandbox) -> None:
    events = launched("for n in {1..9000}; do echo line $n; done", sandbox, limit=10_000)
    assert "cut" in [one["type"] for one in events]
    assert events[-2] == {"type": "stdout", "line": "line 9000"}


def test_a_server_that_is_behind_gets_all_of_it_after_the_command_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "FLUSH", 0.0)
    ended = tmp_path / "ended"
    events = launched(f"seq 1 8000; touch {ended}", Sandbox("none"), after=ended)
    assert [one.get("line") for one in events] == [*map(str, range(1, 8001)), None]
    assert events[-1] == {"type": "exit", "code": 0}


def test_what_is_left_behind_is_ended_with_the_command(sandbox: Sandbox) -> None:
    assert launched("sleep 1000 & echo begun", sandbox)[-1]["type"] == "exit"


def test_when_the_server_is_gone_so_is_the_command(sandbox: Sandbox) -> None:
    launched("trap '' TERM; echo begun; sleep 1000", sandbox, stop=True)


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launcher.os, "chdir", _fails)
        assert launched("echo", Sandbox("none"))[-1]["type"] == "error"


def _fails(path: str) -> None:
    raise FileNotFoundError(2, "No such file or directory", path)

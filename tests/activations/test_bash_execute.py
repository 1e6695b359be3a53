"""bash.execute runs commands: their lines in order, how they end, and that nothing of them stays behind."""

import asyncio
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT, assert_nothing_left, drive, until, with_patience
from midcall import Data
from midcall.activations.bash import run
from midcall.activations.bash.run import GRACE
from shelling import PLAIN, execute, lines, processes, shell

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes by /proc")


def mark() -> str:
    """How long a command sleeps that is known by just that."""
    return f"{600 + int.from_bytes(os.urandom(3)) / 2**24:.9f}"


@pytest.fixture
def marked() -> Iterator[str]:
    """A mark of processes, of which none is left at the end."""
    made = mark()
    yield made
    end = time.monotonic() + LIMIT
    while processes(made):
        assert time.monotonic() < end, "a process was left behind"
        time.sleep(0.02)


def test_lines_of_both_streams_come_in_the_order_in_which_they_are_written(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    project = tmp_path / "project"
    steps = "".join(
        f"echo line {n} {'>&2' if n % 2 else ''}; until [ -e go{n} ]; do sleep 0.01; done; " for n in range(6)
    )

    async def main() -> None:
        seen = []
        async for item in hub.call("bash.execute", {"command": steps}):
            if isinstance(item, Data) and item.content.__struct_config__.tag in ("stdout", "stderr"):
                seen.append((item.content.__struct_config__.tag, item.content.line))
                (project / f"go{len(seen) - 1}").touch()  # it goes on when its line has come
        assert seen == [("stderr" if n % 2 else "stdout", f"line {n}") for n in range(6)]

    drive(main())


@pytest.mark.parametrize(
    ("command", "code"), [("true", 0), ("false", 1), ("exit 3", 3), ("exit 255", 255), ("no_such_thing", 127)]
)
def test_it_ends_with_the_exit_code_of_the_command(tmp_path: Path, command: str, code: int) -> None:
    asked = ["once"] if code == 127 else []
    found = drive(execute(shell(tmp_path), command, asked))
    assert found[-1] == {"type": "exit", "code": code}


@pytest.mark.parametrize("use", ["auto", "landlock", "none"])
@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_a_command_that_a_signal_ends_says_which(tmp_path: Path, name: str, use: str) -> None:
    config = f"[sandbox]\nuse = '{use}'\n"
    found = drive(execute(shell(tmp_path, config), f"echo before; kill -{name} $$", ["once"]))
    assert found == [
        {"type": "stdout", "line": "before"},
        {"type": "exit", "code": -1, "signal": f"SIG{name}"},
    ]


def test_a_signal_of_a_child_is_a_code_of_the_shell(tmp_path: Path) -> None:
    found = drive(execute(shell(tmp_path), "bash -c 'kill -9 $$'; exit $?", ["once"]))
    assert found[-1] == {"type": "exit", "code": 137}


def test_a_hundred_megabytes_are_cut_and_take_no_memory(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command = "echo first; seq 1 99999999 | head -c 100000000; echo; echo last; echo last error >&2"
    found = drive(execute(hub, command))
    assert lines(found)[0] == "first"
    assert lines(found)[-1] == "last"
    assert lines(found, "stderr") == ["last error"]
    (cut,) = (event for event in found if event["type"] == "cut")
    sizes = [len(event["line"]) + 1 for event in found if "line" in event]
    assert sum(sizes) <= 128 * 1024
    assert sum(sizes) + cut["bytes"] == len("first\n\nlast\nlast error\n") + 100_000_000
    assert str(cut["bytes"]) in cut["message"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kilobytes
    where = found.index(cut)
    numbers = [int(line) for line in lines(found[:where])[1:]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert found[-1] == {"type": "exit", "code": 0}


def test_output_up_to_the_limit_is_whole(tmp_path: Path) -> None:
    found = drive(execute(shell(tmp_path, "[limits]\noutput = 8192\n"), "seq 1 1700"))
    assert lines(found) == [str(n) for n in range(1, 1701)]
    assert [event for event in found if event["type"] == "cut"] == []


def test_a_line_without_end_is_passed_on_and_a_huge_one_in_pieces(tmp_path: Path) -> None:
    command = "printf 'no end' >&2; for i in {1..2000}; do printf '0123456789ab€'; done; echo; printf tail"
    found = drive(execute(shell(tmp_path), command))
    pieces = [event for event in found if event["type"] == "stdout"]
    assert [event.get("continues", False) for event in pieces] == [True, False, False]
    assert pieces[0]["line"] + pieces[1]["line"] == "0123456789ab€" * 2000
    assert pieces[2]["line"] == "tail"
    assert lines(found, "stderr") == ["no end"]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    found = drive(execute(shell(tmp_path), "printf 'a\\xffb\\x00c\\xe2\\x82\\n'"))
    assert lines(found) == ["a\ufffdb\0c\ufffd"]


def test_there_is_no_input(tmp_path: Path) -> None:
    found = drive(execute(shell(tmp_path), "cat; echo over"))
    assert lines(found) == ["over"]


@pytest.mark.parametrize("use", ["auto", "landlock", "none"])
def test_a_child_that_holds_the_pipe_does_not_hold_up_the_call(tmp_path: Path, marked: str, use: str) -> None:
    hub = shell(tmp_path, f"[sandbox]\nuse = '{use}'\n")
    found = drive(execute(hub, f"sleep {marked} & setsid sleep {marked} & echo started", ["once"]))
    assert lines(found) == ["started"]
    assert [event["message"] for event in found if event["type"] == "notice"] == [
        "2 processes that still ran were ended"
    ]
    assert found[-1] == {"type": "exit", "code": 0}


@pytest.mark.parametrize("use", ["auto", "landlock", "none"])
@pytest.mark.parametrize("how", ["plainly", "stubborn"])
def test_what_is_cancelled_in_the_middle_leaves_no_process(
    tmp_path: Path, marked: str, use: str, how: str
) -> None:
    hub = shell(tmp_path, f"[sandbox]\nuse = '{use}'\n")
    stubborn = "trap '' TERM; " if how == "stubborn" else ""
    command = f"{stubborn}(setsid sleep {marked} &); sleep {marked} | cat & echo started; sleep {marked}"

    async def main() -> None:
        invocation = hub.call("bash.execute", {"command": command}, answer=lambda request: "once")
        items = aiter(invocation)
        while not isinstance(item := await anext(items), Data):
            pass
        assert item.content.line == "started"
        await until(lambda: len(processes(marked)) >= 3)
        await invocation.cancel()
        await until(lambda: not processes(marked))
        await assert_nothing_left(hub)

    drive(main())


@pytest.mark.parametrize(
    ("command", "signal"),
    [
        ("echo before; sleep {}", "SIGTERM"),
        ("trap '' TERM; echo before; sleep {} & wait; sleep {}", "SIGKILL"),
    ],
)
def test_a_command_is_ended_when_its_time_is_over(
    tmp_path: Path, marked: str, command: str, signal: str
) -> None:
    hub = shell(tmp_path)

    async def attempt(seconds: float) -> bool:
        begun = time.monotonic()
        asked = command.format(marked, marked)
        found = await execute(hub, asked, lambda request: "once", timeout=seconds)
        assert found[-1]["timed_out"]
        if lines(found) != ["before"]:
            return False
        assert found[-1] == {"type": "exit", "code": -1, "signal": signal, "timed_out": True}
        assert time.monotonic() - begun > seconds + (GRACE if signal == "SIGKILL" else 0)
        return True

    drive(with_patience(attempt))


def test_no_caller_gets_more_time_than_the_settings_allow(tmp_path: Path, marked: str) -> None:
    hub = shell(tmp_path, "[limits]\nlongest = 1\n")
    found = drive(execute(hub, f"sleep {marked}", timeout=900))
    assert found[-1]["timed_out"]


def test_a_reader_who_is_slow_gets_every_line(tmp_path: Path) -> None:
    hub = shell(tmp_path, "[limits]\noutput = 2000000\n")

    async def main() -> None:
        seen = 0
        async for item in hub.call("bash.execute", {"command": "seq 1 100000"}):
            if isinstance(item, Data) and item.content.__struct_config__.tag == "stdout":
                seen += 1
                assert item.content.line == str(seen)
                if seen % 20_000 == 0:
                    await asyncio.sleep(0.05)
        assert seen == 100_000

    drive(main())


def test_a_launcher_that_dies_in_the_middle_of_a_line_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = 'import os; os.read(0, 9); os.write(1, b\'{"type":"stdout","line":"one"}\\n{"type":\')'
    monkeypatch.setattr(run, "LAUNCH", (sys.executable, "-I", "-S", "-c", dies))
    found = drive(execute(shell(tmp_path), "echo"))
    assert lines(found) == ["one"]
    assert found[-1] == {"type": "error", "message": "The launcher of the command has died"}


def test_a_command_gets_no_secrets_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "MIDCALL_TOKENS",
        "MIDCALL_KEYS",
        "AWS_SECRET_ACCESS_KEY",
        "OPENAI_API_KEY",
        "BASH_ENV",
        "LD_PRELOAD_NOT",
        "PS4",
    ):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("BASH_FUNC_ls%%", "() { echo s3cret; }")
    monkeypatch.setenv("PASSED_ON", "visible")
    found = drive(execute(shell(tmp_path, "pass_env = ['PASSED_ON']\n"), "printenv; ls"))
    assert "s3cret" not in str(found)
    given = dict(line.split("=", 1) for line in lines(found) if "=" in line)
    assert given["PASSED_ON"] == "visible"
    assert given["HOME"] == os.environ["HOME"]
    assert {"PATH", "HOME", "LANG", "TERM", "TMPDIR"} <= given.keys()


def test_a_command_is_read_as_it_was_judged_whatever_the_locale_of_the_server_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In GBK, the last byte of a character and the pipe behind it are one character."""
    monkeypatch.setenv("LC_ALL", "zh_CN.GBK")
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    assert lines(drive(execute(shell(tmp_path), "printenv LC_ALL LANG"))) == ["en_US.UTF-8"]


def test_variables_of_the_caller_are_set_and_asked_about_if_they_may_do_harm(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    assert lines(drive(execute(hub, "echo $NO_COLOR", env={"NO_COLOR": "yes"}))) == ["yes"]
    assert lines(drive(execute(hub, "echo $LD_PRELOAD", ["once"], env={"LD_PRELOAD": ""}))) == [""]
    (asked,) = drive(execute(hub, "ls", ["no"], env={"LD_PRELOAD": "./evil.so"}))
    assert asked["type"] == "error"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": {"A B": "x"}}, "is not the name of a variable"),
        ({"env": {"A=B": "x"}}, "is not the name of a variable"),
        ({"env": {"": "x"}}, "is not the name of a variable"),
        ({"env": {"MIDCALL_TOKENS": "x"}}, "variable of the server"),
        ({"env": {"A": "\0"}}, "cannot be used"),
        ({"env": {f"A{n}": "" for n in range(101)}}, "more than 100"),
        ({"cwd": "nowhere"}, "There is no folder nowhere"),
        ({"cwd": "a\0b"}, "There is no folder"),
        ({"command": "echo \0"}, "NUL"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_are_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    (error,) = drive(execute(shell(tmp_path), **{"command": "ls", **arguments}))
    assert error["type"] == "error"
    assert message in error["message"]


def test_a_command_runs_in_the_folder_that_is_named(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    (tmp_path / "project/src").mkdir()
    assert lines(drive(execute(hub, "pwd"))) == [os.path.realpath(tmp_path / "project")]
    assert lines(drive(execute(hub, "pwd", cwd="src"))) == [os.path.realpath(tmp_path / "project/src")]
    assert lines(drive(execute(hub, "pwd", cwd="/usr"))) == ["/usr"]


def test_a_command_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    hub = shell(tmp_path, PLAIN)
    closed = tmp_path / "project/gone"
    closed.mkdir()

    def remove(request: Any) -> str:
        closed.rmdir()  # while somebody thinks
        return "once"

    (error,) = drive(execute(hub, "ls", remove, cwd="gone"))
    assert error["type"] == "error"
    assert re.search("cannot be started.*No such file", error["message"])

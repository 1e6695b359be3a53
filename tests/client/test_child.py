"""Servers in child processes: how they are started, what they say beside messages, and how they end."""

import asyncio
import itertools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from client_peers import calls, children, run, said, scripted
from driving import LIMIT, until
from http_peers import loops, run_in
from midcall import Client, Hub, TransportLost, Unreachable, connect
from midcall.client import child, reconnect
from peers import HERE

Run = Callable[[Coroutine[Any, Any, Any]], Any]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups of POSIX")


@pytest.fixture(params=loops(), ids=["asyncio", "uvloop"])
def on_each_loop(request: pytest.FixtureRequest) -> Run:
    return lambda main: run_in(request.param, main)


def alive(pid: int) -> bool:
    """Whether there is such a process. A zombie is none: of an orphan it is left to the system."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def gone(pid: int) -> None:
    await until(lambda: not alive(pid))


async def pid_of(client: Client) -> int:
    return int((await client.call("pid")).text)


def test_a_server_ends_when_its_input_does(on_each_loop: Run) -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            pid = await pid_of(client)
            assert said(await client.call_tools(calls(100), parallel=True)) == [
                f"word {n}" for n in range(100)
            ]
            assert alive(pid)
        assert not alive(pid)

    on_each_loop(main())


def test_death_is_noticed_at_once(on_each_loop: Run) -> None:
    async def main() -> None:
        async with scripted("dying", "kill") as client:
            with pytest.raises(TransportLost, match="was ended by SIGKILL"):
                await client.call("echo", timeout=None)

    on_each_loop(main())


def test_the_error_stream_goes_to_the_log_and_its_end_into_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with scripted("dying", "exit") as client:
            with pytest.raises(TransportLost, match=r"ended with code 3, and said: I cannot go on$"):
                await client.call("echo")

    with caplog.at_level(logging.INFO, "midcall.client.server"):
        run(main())
    assert "I cannot go on" in caplog.text


def test_why_a_server_did_not_start_is_told() -> None:
    async def main() -> None:
        program = "import sys; print('no license found', file=sys.stderr); sys.exit(7)"
        with pytest.raises(Unreachable, match="ended with code 7, and said: no license found"):
            async with connect([sys.executable, "-S", "-c", program]):
                pass

    run(main())


def test_ten_megabytes_on_the_error_stream_block_nobody(on_each_loop: Run) -> None:
    async def main() -> None:
        async with scripted("chatty", "10000000") as client:
            assert (await client.call("echo", {"say": "done"})).text == "done"

    on_each_loop(main())


def patient_until_noted(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a client lose its patience soon, but not before its server has noted what it was told."""
    lose_patience, told = child._ended, itertools.count(1)

    async def wait(one: Any) -> None:
        times = next(told)
        await until(lambda: one.ended.done() or (mark.exists() and mark.read_text().count("\n") >= times))
        await lose_patience(one)

    monkeypatch.setattr(child, "PATIENCE", 0.2)
    monkeypatch.setattr(child, "_ended", wait)


def test_a_server_that_does_not_heed_the_end_of_its_input_is_told_to_end(
    on_each_loop: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    patient_until_noted(mark, monkeypatch)

    async def main() -> None:
        async with scripted("stubborn", str(mark)) as client:
            pid = await pid_of(client)
        await gone(pid)
        assert mark.read_text() == "end of input\nSIGTERM\n"

    on_each_loop(main())


def test_a_server_that_heeds_nothing_is_killed(
    on_each_loop: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    patient_until_noted(mark, monkeypatch)

    async def main() -> None:
        async with scripted("stubborn", str(mark), "TERM") as client:
            pid = await pid_of(client)
        await gone(pid)
        assert mark.read_text() == "end of input\nSIGTERM\n"

    on_each_loop(main())


def test_a_closing_that_is_itself_given_up_leaves_no_process(on_each_loop: Run, tmp_path: Path) -> None:
    async def main() -> None:
        client = scripted("stubborn", str(tmp_path / "mark"), "TERM")
        await client.open()
        pid = await pid_of(client)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        await asyncio.wait((closing,))
        await gone(pid)

    on_each_loop(main())


@pytest.mark.parametrize("turns", range(8))
def test_a_client_may_be_closed_at_any_moment_after_its_server_has_ended(
    on_each_loop: Run, turns: int
) -> None:
    """Also while what is left of the server is put away: a transport that is left open is warned of."""

    async def main() -> None:
        async with scripted("dying", "exit", give_up_after=0.0) as client:
            with pytest.raises(TransportLost, match="ended with code 3"):
                await client.call("echo")
            for _ in range(turns):
                await asyncio.sleep(0)

    on_each_loop(main())


def test_an_opening_that_is_given_up_at_any_moment_leaves_no_process(on_each_loop: Run) -> None:
    async def main() -> None:
        before = children()
        for moment in range(12):
            client = scripted("plain")
            opening = asyncio.create_task(client.open())
            if moment < 6:
                for _ in range(moment):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(0.02 * (moment - 6))
            opening.cancel()
            await asyncio.wait((opening,))
            if not opening.cancelled():
                await client.close()
        assert children() <= before

    on_each_loop(main())


def test_a_client_that_is_closed_at_any_moment_leaves_no_process(
    on_each_loop: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(reconnect, "LONGEST_PAUSE", 0.002)

    async def main() -> None:
        before = children()
        for moment in range(12):
            client = scripted("dying", "exit")
            client.keep_open()
            batch = asyncio.create_task(client.call_tools(calls(20), parallel=True, timeout=5))
            await asyncio.sleep(0.03 * moment)
            await client.close()
            assert len(await batch) == 20
        assert children() <= before

    on_each_loop(main())


@pytest.mark.parametrize("ends", ["by itself", "when told"])
def test_children_of_a_server_do_not_outlive_it(on_each_loop: Run, ends: str) -> None:
    async def main() -> None:
        async with scripted("parent") as client:
            grandchild = int((await client.call("x")).text)
            assert alive(grandchild)
            if ends == "by itself":
                os.kill(await pid_of(client), 9)
                await until(lambda: not client.connected)
                await gone(grandchild)
                assert await client.ping(timeout=LIMIT)  # another one, with another child
                grandchild = int((await client.call("x")).text)
        await gone(grandchild)

    on_each_loop(main())


def test_no_zombie_is_left(on_each_loop: Run) -> None:
    async def main() -> None:
        before = children()
        for _ in range(3):
            async with scripted("dying", "kill") as client:
                with pytest.raises(TransportLost):
                    await client.call("echo")
        await until(lambda: children() <= before)

    on_each_loop(main())


def test_a_missing_program_is_told() -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match=r"cannot be started: there is no program no-such-program-9"):
            async with connect("no-such-program-9 --stdio"):
                pass

    run(main())


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match=r"there is no folder .*/nowhere"):
            async with connect([sys.executable], cwd=tmp_path / "nowhere"):
                pass

    run(main())


def test_a_file_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "server").write_text("echo")

    async def main() -> None:
        with pytest.raises(Unreachable, match=r"cannot be started: .*ermission"):
            async with connect([str(tmp_path / "server")]):
                pass

    run(main())


def test_environment_and_folder_are_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with scripted("surroundings", env={"EXTRA": "yes"}, cwd=tmp_path) as client:
            found = (await client.call("x")).structured
            assert found["cwd"] == str(tmp_path.resolve())
            assert found["env"]["EXTRA"] == "yes"
            assert found["env"]["PATH"] == os.environ["PATH"]

    run(main())


async def variables(client: Client) -> dict[str, str]:
    return dict((await client.call("x")).structured["env"])


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a process that serves has in its environment, and a server that it starts must not see."""
    found = {
        name: f"secret of {name}"
        for name in ("MIDCALL_TOKENS", "MIDCALL_KEYS", "OPENAI_API_KEY", "PGPASSWORD")
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "() { :; }; echo a function of a shell")
    return found


def test_a_server_gets_no_variables_but_the_few_that_programs_need(secrets: dict[str, str]) -> None:
    async def main() -> None:
        async with scripted("surroundings") as client:
            found = await variables(client)
        assert found.keys() - {"LC_CTYPE"} <= {
            "HOME",
            "LOGNAME",
            "PATH",
            "SHELL",
            "USER",
        }  # Python sets the former
        assert found["PATH"] == os.environ["PATH"]

    run(main())


def test_a_server_gets_the_variables_that_are_given_to_it(secrets: dict[str, str]) -> None:
    async def main() -> None:
        async with scripted("surroundings", env={"OPENAI_API_KEY": "its own"}) as client:
            found = await variables(client)
        assert found["OPENAI_API_KEY"] == "its own"
        assert not found.keys() & (secrets.keys() - {"OPENAI_API_KEY"})

    run(main())


def test_a_server_gets_the_whole_environment_only_if_that_is_said(secrets: dict[str, str]) -> None:
    async def main() -> None:
        async with scripted("surroundings", inherit_env=True, env={"PGPASSWORD": "its own"}) as client:
            found = await variables(client)
        assert secrets | {"PGPASSWORD": "its own"} == {name: found[name] for name in secrets}

    run(main())


def test_servers_of_settings_get_no_secrets_but_those_that_the_settings_name(
    secrets: dict[str, str], tmp_path: Path
) -> None:
    words = ["-S", str(HERE / "scripted_server.py"), "surroundings"]
    server = {"command": sys.executable, "args": words, "env": {"KEY": "${OPENAI_API_KEY}"}}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": server}}))

    async def main() -> None:
        for settings in ({"mcpServers": {"one": server}}, file):
            async with connect(settings) as client:
                found = await variables(client)
            assert found["KEY"] == secrets["OPENAI_API_KEY"]
            assert not found.keys() & secrets.keys()
            async with connect(settings, inherit_env=True) as client:
                assert secrets.keys() <= (await variables(client)).keys()

    run(main())


def test_a_mounted_server_gets_no_secrets_unless_that_is_said(secrets: dict[str, str]) -> None:
    server = [sys.executable, "-S", str(HERE / "scripted_server.py"), "surroundings"]

    async def main() -> None:
        for inherits in (False, True):
            hub = Hub("front").mount("b", server, inherit_env=inherits)
            await hub.open()
            found = (await hub.call("b.echo"))["env"]
            await hub.close()
            assert bool(found.keys() & secrets.keys()) is inherits

    run(main())


def test_the_settings_of_another_client_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "from outside")
    server = {
        "command": sys.executable,
        "args": ["-S", str(HERE / "scripted_server.py"), "surroundings"],
        "env": {"EXTRA": "${WORD}", "OTHER": "${NOT_SET_ANYWHERE:-default}"},
        "cwd": str(tmp_path),
    }
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"mcpServers": {"here": server}}))

    async def main() -> None:
        for target in ({"mcpServers": {"here": server}}, {"servers": {"here": server}}, str(file), file):
            async with connect(target) as client:
                found = (await client.call("x")).structured
                assert found["env"]["EXTRA"] == "from outside"
                assert found["env"]["OTHER"] == "default"
                assert found["cwd"] == str(tmp_path.resolve())

    run(main())


def test_no_resource_is_left_to_the_garbage_collector() -> None:
    program = f"""
import asyncio, gc, sys
sys.path.insert(0, {str(HERE)!r})
from client_peers import calls, connect, echo, http_peer, scripted, speaking
from midcall.client import reconnect
async def main():
    for name, words in (("plain", ()), ("dying", ("exit",)), ("dying", ("output",)), ("silent", ())):
        async with scripted(name, *words) as client:
            await client.call_tools(calls(2), parallel=True, timeout=0.5)
    reconnect.STARTING, patience = 0.5, reconnect.STARTING
    try:
        async with scripted("mute", era="legacy") as client:
            pass
    except Exception as error:
        print(error)
    reconnect.STARTING = patience
    for modern in (False, True):
        async with http_peer(speaking(echo, modern=modern, session="s")) as peer:
            async with connect(peer.url) as client:
                await client.call_tools(calls(20), parallel=True)
                await client.tools()
                await peer.stop()
                waiting = asyncio.create_task(client.call_tools(calls(5), parallel=True))
                await asyncio.sleep(0.1)
            print(len(await waiting))
asyncio.run(main(), debug=True)
gc.collect()
"""
    found = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=HERE,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "Warning" not in found.stderr, found.stderr
    assert "Traceback" not in found.stderr, found.stderr
    assert "never" not in found.stderr, found.stderr
    assert "no answer within 0.5 seconds" in found.stdout

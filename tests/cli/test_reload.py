"""`midcall serve --reload` and `midcall dev`: new code is served when a file changes, and calls go on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import USAGE, midcall
from crash.person import MODERN, SAID
from driving import LIMIT, drive
from midcall import connect
from midcall.cli.reload import snapshot
from peers import command, environment

APP = """
from midcall import Ask, Hub
hub = Hub("reloaded")

@hub.method
async def version() -> int:
    return {version}

@hub.method
async def greet(ask: Ask) -> str:
    return f"Hello, {{await ask.prompt('Who?')}}, from {version}"
"""


class Reloaded:
    """A server whose application is in a folder."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self.app = folder / "app.py"
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command(*words, "--port", "0", "--journal", str(folder / "journal.db"), "--grace", "1"),
                cwd=folder, env={**environment(), **variables}, stderr=log,
            )  # fmt: skip

    def write(self, text: str, at: float | None = None) -> None:
        new = self.app.with_suffix(".new")
        new.write_text(text)
        if at is not None:
            os.utime(new, (at, at))
        new.replace(self.app)

    def wait(self, what: str | Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT
        while not (what in self.log.read_text() if isinstance(what, str) else what()):
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    @property
    def url(self) -> str:
        self.wait("Page:")
        found = re.search(r"Page: +(http://\S+)/", self.log.read_text())
        assert found is not None
        return found.group(1)

    def ask(self, name: str, **more: Any) -> Any:
        async def called() -> Any:
            async with connect(f"{self.url}/mcp", **more) as client:
                result = await client.call(name)
                return result.structured["result"]

        return drive(called())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP.format(version=1))
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Reloaded]:
    made = Reloaded(folder, "serve", "app:hub", "--reload")
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_new_code_is_served_and_what_is_broken_is_told_until_it_is_mended(server: Reloaded) -> None:
    assert server.ask("version") == 1
    server.write(APP.format(version=2))
    server.wait("Reloaded")
    assert server.ask("version") == 2
    server.write("hub = (")
    server.wait("The previous code is served until this is fixed")
    assert "line 1" in server.log.read_text()
    assert server.ask("version") == 2
    server.write(APP.format(version=3))
    server.wait(
        lambda: (
            server.log.read_text().count("INFO midcall.reload: Reloaded") == 2
            or server.log.read_text().count("Reloaded") == 2
        )
    )
    assert server.ask("version") == 3
    assert server.stop() == 0


def test_a_call_that_waits_survives_a_reload(server: Reloaded) -> None:
    def call(**more: Any) -> Any:
        params = {"name": "greet", "arguments": {}, "_meta": SAID, **more}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {
            "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "greet",
        }  # fmt: skip
        request = urllib.request.Request(f"{server.url}/mcp", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            return json.loads(response.read())["result"]

    server.wait("Page:")
    asked = call()
    server.write(APP.format(version=2))
    server.wait("Reloaded")
    (key,) = asked["inputRequests"]
    answers = {key: {"action": "accept", "content": {"text": "Ada"}}}
    told = call(requestState=asked["requestState"], inputResponses=answers)
    assert told["content"][0]["text"] == "Hello, Ada, from 2"


def test_a_change_that_leaves_the_size_and_the_second_is_served_too(folder: Path) -> None:
    second = 1_700_000_000
    app = folder / "app.py"
    app.write_text(APP.format(version=1))
    os.utime(app, (second, second))
    server = Reloaded(folder, "serve", "app:hub", "--reload", PYTHONDONTWRITEBYTECODE="")
    assert server.ask("version") == 1
    server.write(APP.format(version=2), at=second + 0.5)
    server.wait("Reloaded")
    assert server.ask("version") == 2
    assert server.stop() == 0


def test_an_application_that_is_broken_at_first_is_served_when_it_is_mended(folder: Path) -> None:
    (folder / "app.py").write_text("import nothing_of_that_name")
    server = Reloaded(folder, "serve", "app:hub", "--reload")
    server.wait("Nothing is served until this is fixed")
    assert "nothing_of_that_name" in server.log.read_text()
    server.write(APP.format(version=5))
    assert server.ask("version") == 5
    os.kill(server.process.pid, signal.SIGHUP)
    server.wait("Reloading: SIGHUP")
    server.wait("Reloaded")
    assert server.stop() == 0


def test_a_server_that_has_ended_by_itself_is_started_after_a_change(folder: Path) -> None:
    (folder / "app.py").write_text(
        APP.format(version=1) + "\nimport os\n@hub.method\ndef leave() -> None:\n    os._exit(7)\n"
    )
    server = Reloaded(folder, "serve", "app:hub", "--reload")
    with pytest.raises(Exception):  # noqa: B017  whatever the client makes of it
        server.ask("leave")
    server.wait("The server has ended, and is started again after a change")
    server.write(APP.format(version=2))
    assert server.ask("version") == 2
    assert server.stop() == 0


@pytest.mark.parametrize(("words", "fault"), [(("--workers", "2"), "--workers"), (("--stdio",), "HTTP")])
def test_it_is_refused_where_it_makes_no_sense(words: tuple[str, ...], fault: str) -> None:
    refused = midcall("serve", "--reload", *words)
    assert refused.returncode == USAGE
    assert refused.stderr.startswith("midcall: --reload is for")
    assert fault in refused.stderr


def test_a_journal_that_cannot_be_is_refused_at_once(folder: Path) -> None:
    refused = midcall("dev", "app:hub", "--port", "0", "--journal", str(folder / "no" / "j.db"), cwd=folder)
    assert refused.returncode == USAGE
    assert "there is no folder" in refused.stderr


def test_python_files_are_watched_and_others_are_not(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "b/c.py",
        ".git/x.py",
        "env/pyvenv.cfg",
        "env/y.py",
        "node_modules/z.py",
        "data.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = snapshot([tmp_path, tmp_path / "nothing"])
    assert sorted(str(Path(path).relative_to(tmp_path)) for path in found) == ["a.py", "b/c.py"]


def browser(folder: Path) -> str:
    """A program that notes what it is to open."""
    made = folder / "browser"
    made.write_text(f'#!/bin/sh\necho "$@" >> {folder}/opened\n')
    made.chmod(0o755)
    return f"{made} %s"


@pytest.mark.skipif(sys.platform != "linux", reason="how browsers are found differs")
def test_dev_reloads_warns_and_opens_the_page(folder: Path) -> None:
    server = Reloaded(folder, "dev", "app:hub", BROWSER=browser(folder))
    opened = folder / "opened"
    server.wait(lambda: opened.exists() and opened.read_text() == f"{server.url}/\n")
    server.write(
        APP.format(version=2)
        .replace("return 2", "open('x', 'w').close(); return 2")
        .replace("async def version()", "async def version(ask: Ask)")
    )
    server.wait("Reloaded")
    assert server.ask("version") == 2
    assert server.stop() == 0
    assert "outside a step" in server.log.read_text()
    assert len(opened.read_text().splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="how browsers are found differs")
def test_over_ssh_dev_prints_the_address_and_the_model(folder: Path) -> None:
    over_ssh = {"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22", "DISPLAY": ":0"}
    server = Reloaded(folder, "dev", "app:hub", "--model", "scripted", **over_ssh)
    server.wait(f"Open {server.url}/ in a browser.")
    assert "Model:   scripted\n" in server.log.read_text()
    assert server.stop() == 0

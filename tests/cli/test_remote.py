"""`midcall call URL`: answers, exit codes and ends as those of a call of a hub here."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pexpect
import pytest

from command_line import CANCELLED, FAILED, MIDCALL, NOT_ANSWERED, SUCCESS, USAGE, midcall
from driving import LIMIT
from mcp_peers import mcp_environment
from peers import HERE, command, free_port, wait_for


class Server:
    """The hub of the tests of the command line, over HTTP."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._admin = f"http://127.0.0.1:{port}/admin/calls?status=waiting"

    @property
    def waiting(self) -> list[Any]:
        """The calls that wait for an answer."""
        with urllib.request.urlopen(self._admin) as response:
            return list(json.load(response)["calls"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    journal = str(tmp_path_factory.mktemp("journal") / "calls.db")
    words = command("serve", "cli_app:hub", "--port", str(port), "--admin", "--journal", journal)
    process = subprocess.Popen(words, env=mcp_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield Server(port)
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


BOTH = pytest.mark.parametrize("where", ["here", "url"])


def call(server: Server, where: str, *words: str) -> subprocess.CompletedProcess[str]:
    return midcall("call", "cli_app:hub" if where == "here" else server.url, *words)


@BOTH
@pytest.mark.parametrize(
    ("method", "answer", "printed"),
    [
        ("talk.row", "pickRow=12", "12"),
        ("talk.row", "pickrow=12", "12"),
        ("talk.row", "sit=12", "12"),
        ("talk.seat", 'pickSeat={"row": 12}', '{"row":12}'),
        ("talk.pet", "dog=Rex", "Rex"),
        ("talk.select", "select=full", "took full"),
        ("talk.select", "Template=Full", "took full"),
        ("talk.select", "1=minimal", "took min"),
        ("talk.toppings", "1=Ham,kale", '["ham","kale"]'),
    ],
)
def test_an_answer_is_matched_and_read_alike_here_and_over_a_url(
    server: Server, where: str, method: str, answer: str, printed: str
) -> None:
    done = call(server, where, method, "--answer", answer)
    assert (done.stdout.replace(", ", ",").replace(": ", ":"), done.returncode) == (
        f"{printed}\n",
        SUCCESS,
    ), done.stderr


@BOTH
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("work.text",), SUCCESS),
        (("work.fail",), FAILED),
        (("work.nothing",), USAGE),
        (("files.find", "--params", '{"max_size": 0}'), USAGE),
        (("talk.prompt", "--answer", '1="Cancelled"'), CANCELLED),
        (("talk.gentle", "--answer", '1="Cancelled"'), CANCELLED),
        (("talk.page", "--answer", "1=false"), CANCELLED),
        (("talk.prompt",), NOT_ANSWERED),
        (("talk.prompt", "--yes"), NOT_ANSWERED),
        (("talk.prompt", "--answer", "9=x"), NOT_ANSWERED),
        (("talk.select", "--answer", "1=huge"), NOT_ANSWERED),
        (("talk.sample", "--answer", "1=x"), NOT_ANSWERED),
    ],
)
def test_a_call_ends_with_the_same_exit_code_here_and_over_a_url(
    server: Server, where: str, words: tuple[str, ...], code: int
) -> None:
    done = call(server, where, *words)
    assert done.returncode == code, done.stderr
    assert server.waiting == []


def test_a_person_does_not_see_what_a_question_brings_along_for_programs(server: Server) -> None:
    done = call(server, "url", "talk.row", "--answer", "pickRow=12", "--json")
    asked = next(item for item in map(json.loads, done.stdout.splitlines()) if item["type"] == "request")
    assert asked["key"] == "pickRow"
    data = asked["request_type"]["Custom"]["data"]
    assert data == {"message": "Where to sit?", "context": {"free": [11, 12]}}


def in_a_terminal(server: Server, where: str, *words: str) -> pexpect.spawn:
    target = "cli_app:hub" if where == "here" else server.url
    return pexpect.spawn(MIDCALL[0], [*MIDCALL[1:], "call", target, *words], cwd=str(HERE), timeout=LIMIT)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_is_interrupted_at_a_question_is_not_left_waiting_at_the_server(
    server: Server, how: signal.Signals
) -> None:
    terminal = in_a_terminal(server, "url", "talk.prompt", "--timeout", "0")
    terminal.expect("Your name?")
    assert len(server.waiting) == 1
    terminal.kill(how)
    terminal.expect("Cancelled")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == CANCELLED
    assert server.waiting == []


@BOTH
def test_a_question_whose_time_is_up_exits_with_4(server: Server, where: str) -> None:
    terminal = in_a_terminal(server, where, "talk.prompt", "--timeout", "0.5")
    terminal.expect("Not answered")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == NOT_ANSWERED
    assert server.waiting == []

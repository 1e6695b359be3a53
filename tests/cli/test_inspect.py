"""`midcall inspect`, `completion`, and what `serve` says of itself and refuses."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from driving import LIMIT
from midcall.cli.listening import NO_MODEL, announce, shown_place
from peers import HERE, command, environment


def midcall(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=HERE, env={**environment(), **more}, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def completions(line: str, folder: Path) -> set[str]:
    """What a shell is told when somebody presses Tab at the end of a line."""
    told = folder / "told"
    ran = midcall(
        _ARGCOMPLETE="1", _ARGCOMPLETE_STDOUT_FILENAME=str(told), _ARGCOMPLETE_IFS="\n",
        COMP_LINE=line, COMP_POINT=str(len(line)),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return {word.strip() for word in told.read_text().splitlines()}


def test_all_that_a_hub_offers_is_shown_with_schemas() -> None:
    shown = json.loads(midcall("inspect", "offering_app:hub", "--json").stdout)
    assert {part: [one["name"] for one in listed] for part, listed in shown.items()} == {
        "tools": ["double", "stumble"],
        "resources": ["today"],
        "resourceTemplates": ["note"],
        "prompts": ["review"],
    }
    assert shown["tools"][0]["inputSchema"]["properties"] == {"number": {"type": "integer"}}
    assert shown["tools"][0]["outputSchema"]["properties"] == {"result": {"type": "integer"}}
    text = midcall("inspect", "offering_app:hub").stdout
    for part in ("tools (2)", "notes://{day}", "Ask for a review.", '"number":{"type":"integer"}'):
        assert part in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_tools_lists_resources_and_prompts_too() -> None:
    lines = midcall("tools", "offering_app:hub").stdout.splitlines()
    assert [line.split()[:2] for line in lines if "notes://" in line] == [
        ["today", "notes://today"],
        ["note", "notes://{day}"],
    ]
    assert any(line.startswith("review ") for line in lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(shell: str) -> None:
    ran = midcall("completion", shell)
    assert (ran.returncode, "midcall" in ran.stdout) == (0, True)


def test_a_shell_that_asks_is_told_what_could_come_next(tmp_path: Path) -> None:
    assert completions("midcall in", tmp_path) == {"inspect", "install"}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("midcall call offering_app:hub d", {"double"}),
        ("midcall tools offering_app:hub s", {"stumble"}),
        ("midcall call nowhere:hub n", set()),
        (r"midcall call npx\ -y\ server n", set()),
    ],
)
def test_a_shell_that_asks_is_told_the_methods_of_a_hub(line: str, names: set[str], tmp_path: Path) -> None:
    assert completions(line, tmp_path) == names


def test_bash_completes_with_the_script_that_it_is_given() -> None:
    asked = (
        "eval \"$(midcall completion bash)\"; COMP_LINE='midcall serve --jo' COMP_POINT=18 COMP_TYPE=9 "
        '_python_argcomplete midcall; printf "%s" "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "--norc", "-c", asked],
        env={**environment(), "PATH": path}, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ran.stdout.strip() == "--journal", ran.stderr


def test_a_server_says_where_it_listens_and_what_it_uses(tmp_path: Path) -> None:
    journal = tmp_path / "calls.db"
    serving = subprocess.Popen(
        command("serve", "offering_app:hub", "--port", "0", "--journal", str(journal), "--model", "scripted"),
        cwd=HERE, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert serving.stderr is not None
        lines = [serving.stderr.readline().partition("midcall.serve: ")[2].strip() for _ in range(4)]
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.communicate(timeout=LIMIT)
    page, mcp, kept, model = lines
    port = page.rpartition(":")[2].rstrip("/")
    assert page == f"Page:    http://127.0.0.1:{port}/"
    assert mcp == f"MCP:     http://127.0.0.1:{port}/mcp (WebSocket: ws://127.0.0.1:{port}/ws)"
    assert (kept, model) == (f"Journal: {journal}", "Model:   scripted")


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_a_server_on_all_addresses_is_told_by_a_name_that_it_answers_to(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "midcall.serve"):
        announce(host, 8000, journal="memory", model=NO_MODEL)
    assert caplog.messages[0] == "Page:    http://localhost:8000/ (on all addresses)"
    assert caplog.messages[1] == "MCP:     http://localhost:8000/mcp (WebSocket: ws://localhost:8000/ws)"


def test_a_port_that_is_taken_has_an_exit_code_and_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = midcall("serve", "offering_app:hub", "--port", str(port), "--journal", "memory")
    assert ran.returncode == 5
    assert ran.stderr.strip() == (
        f"midcall: Cannot listen on 127.0.0.1:{port}: {os.strerror(98)}; "
        "stop what listens there, or choose another port with --port"
    )


@pytest.mark.parametrize("port", ["80000", "-1", "http", ""])
def test_what_is_no_port_is_refused(port: str) -> None:
    ran = midcall("serve", "offering_app:hub", f"--port={port}")
    assert (ran.returncode, "is not a port" in ran.stderr) == (2, True)


@pytest.mark.parametrize("url", ["https://a b", "https://tools.example.com:99999", "tools.example.com"])
def test_what_is_no_public_url_is_refused(url: str) -> None:
    ran = midcall("serve", "offering_app:hub", "--port", "0", "--journal", "memory", "--public-url", url)
    assert (ran.returncode, "is not an http:// or https:// URL" in ran.stderr) == (2, True)


def test_a_journal_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    ran = midcall(
        "serve", "offering_app:hub", "--port", "0", "--journal", str(tmp_path / "none" / "calls.db")
    )
    assert (ran.returncode, ran.stderr.strip()) == (
        2,
        f"midcall: --journal: there is no folder {tmp_path / 'none'}",
    )
    assert not (tmp_path / "none").exists()


def test_a_journal_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    ran = midcall("serve", "offering_app:hub", "--port", "0", "--journal", str(tmp_path))
    assert (ran.returncode, ran.stderr.strip()) == (
        2,
        f"midcall: --journal: {tmp_path} is a folder; name a file in it",
    )


@pytest.mark.parametrize("option", ["--auth-tokens", "--notify-email", "--cwd"])
def test_a_file_that_is_not_there_is_named_without_the_number_of_the_error(option: str) -> None:
    ran = midcall("serve", "offering_app:hub", "--port", "0", "--journal", "memory", option, "nowhere")
    assert ran.returncode == 2
    assert ran.stderr.strip().endswith(" nowhere: No such file or directory")


def test_a_wrong_option_is_told_in_two_lines() -> None:
    ran = midcall("serve", "offering_app:hub", "--wait", "soon")
    assert (ran.returncode, ran.stderr.splitlines()) == (
        2,
        [
            "midcall serve: error: argument --wait: 'soon' is not a number of seconds",
            "Try `midcall serve --help`.",
        ],
    )


def test_a_mistake_in_the_code_of_a_tool_is_told_with_its_type() -> None:
    ran = midcall("call", "offering_app:hub", "stumble")
    assert (ran.returncode, "KeyError: 'missing'" in ran.stderr) == (1, True)


def test_the_password_of_a_journal_is_not_shown() -> None:
    assert (
        shown_place("postgresql://user:secret@db:5432/calls?password=secret") == "postgresql://db:5432/calls"
    )

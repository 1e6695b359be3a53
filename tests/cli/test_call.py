"""The command line without a terminal: real processes, as in a script or in CI."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import CANCELLED, FAILED, MIDCALL, NOT_ANSWERED, SUCCESS, USAGE, midcall
from driving import LIMIT
from peers import HERE, free_port, wait_for


def call(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return midcall("call", "cli_app:hub", *argv, stdin=stdin)


def items(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- parameters -----------------------------------------------------------------------------


def test_flags_become_parameters() -> None:
    where = '{"name": "*.py"}'
    done = call("files.find", "--max-size", "5", "--order=size", "--owner", "null", "--where", where)
    assert json.loads(done.stdout) == {
        "max_size": 5, "order": "size", "owner": None, "where": {"name": "*.py"}, "timeout": 1.5,
    }  # fmt: skip
    assert (done.returncode, done.stderr) == (SUCCESS, "")


def test_a_flag_may_be_spelled_with_underscores_and_one_that_midcall_has_itself_gets_a_prefix() -> None:
    done = call("files.find", "--max_size", "7", "--param-timeout", "9", "--timeout", "3")
    assert json.loads(done.stdout)["max_size"] == 7
    assert json.loads(done.stdout)["timeout"] == 9


def test_all_parameters_may_be_given_as_json(tmp_path: Path) -> None:
    given = '{"max_size": 3}'
    (tmp_path / "params.json").write_text(given)
    ways = [
        call("files.find", "--params", given),
        call("files.find", "--params", "-", stdin=given),
        call("files.find", "--params", f"@{tmp_path / 'params.json'}"),
        call("files.find", "--params", '{"max_size": 9}', "--max-size", "3"),
    ]
    assert [json.loads(done.stdout)["max_size"] for done in ways] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("{", "--params is not JSON: {"),
        ("@nowhere.json", "Cannot read nowhere.json: No such file or directory"),
    ],
)
def test_params_that_cannot_be_read_are_a_usage_error(params: str, message: str) -> None:
    done = call("files.find", "--params", params)
    assert (done.returncode, done.stderr, done.stdout) == (USAGE, f"midcall: {message}\n", "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["files.find", "--max-size", "x"], "files.find: max_size: Input should be a valid integer"),
        (
            ["files.find", "--max-size", "0"],
            "files.find: max_size: Input should be greater than or equal to 1",
        ),
        (["files.find", "--order", "age"], "files.find: order: Input should be 'name' or 'size'"),
        (["files.find", "--params", '{"x": 1}'], "files.find: x: is not a parameter"),
        (["files.delete"], "files.delete: ids: is required"),
    ],
)
def test_invalid_arguments_are_told_in_the_words_of_the_hub(argv: list[str], message: str) -> None:
    done = call(*argv)
    assert done.stderr.startswith(f"midcall: Invalid arguments for {message}")
    assert done.stderr.count("\n") == 1
    assert (done.returncode, done.stdout) == (USAGE, "")


def test_an_unknown_method_is_told_with_near_matches() -> None:
    done = call("files.delet", "--ids", "a")
    assert done.stderr.startswith("midcall: Unknown method: files.delet. Did you mean files.delete")
    assert done.returncode == USAGE


def test_an_unknown_flag_is_a_usage_error() -> None:
    done = call("files.find", "--nonsense", "1")
    assert "unrecognized arguments: --nonsense 1" in done.stderr
    assert done.returncode == USAGE


# --- help -----------------------------------------------------------------------------------


def test_help_of_a_method_shows_its_description_and_its_flags() -> None:
    done = call("files.delete", "--help")
    assert "Asks before it does." in done.stdout
    assert "--ids TEXT" in done.stdout
    assert "what to delete, list of string [required; may be repeated]" in " ".join(done.stdout.split())
    assert "--force, --no-force" in done.stdout
    assert "100% sure" in done.stdout
    assert "4  not answered" in done.stdout
    assert done.returncode == SUCCESS


def test_help_shows_choices_without_enforcing_them() -> None:
    assert "--order {name,size}" in call("files.find", "--help").stdout


@pytest.mark.parametrize(
    "argv", [["--help"], ["serve", "-h"], ["call", "-h"], ["tools", "-h"], ["demo", "-h"]]
)
def test_every_command_has_a_help(argv: list[str]) -> None:
    done = midcall(*argv)
    assert done.stdout.startswith("usage: midcall")
    assert (done.returncode, done.stderr) == (SUCCESS, "")


def test_help_loads_none_of_the_slow_libraries() -> None:
    code = (
        "import sys\nfrom midcall.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'pydantic', 'rich', 'questionary', 'uvicorn', 'starlette'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_told() -> None:
    from midcall import __version__

    assert midcall("--version").stdout == f"midcall {__version__}\n"


def test_without_a_command_the_help_is_shown() -> None:
    done = midcall()
    assert "commands:" in done.stdout
    assert done.returncode == USAGE


# --- output ---------------------------------------------------------------------------------


def test_data_go_to_stdout_and_all_else_to_stderr() -> None:
    done = call("files.delete", "--ids", "a", "--ids", "b", "--yes")
    assert done.stdout == '{"type": "deleted", "id": "a"}\n{"type": "deleted", "id": "b"}\n'
    assert done.stderr.splitlines() == [
        "? Delete 2 items? yes [--yes]",
        "[ 50%] a deleted",
        "info: removing a",
        "[100%] b deleted",
        "info: removing b",
    ]


def test_text_is_printed_as_it_is() -> None:
    assert call("work.text").stdout == 'two\nlines, "quoted"\n'


def test_json_prints_one_item_a_line_and_nothing_else() -> None:
    done = call("files.delete", "--ids", "a", "--yes", "--json")
    assert [item["type"] for item in items(done)] == ["request", "progress", "data", "done"]
    assert items(done)[0]["request_type"] == {"Confirm": {"message": "Delete 1 items?"}}
    assert items(done)[2]["content"] == {"type": "deleted", "id": "a"}
    assert "info: removing a" in done.stderr


def test_json_prints_nothing_when_the_arguments_are_refused() -> None:
    done = call("files.delete", "--json")
    assert (done.returncode, done.stdout) == (USAGE, "")


def test_a_reader_that_goes_away_ends_the_call_quietly() -> None:
    process = subprocess.Popen(
        [*MIDCALL, "call", "midcall.activations:hub", "echo.echo", "--message", "x" * 999, "--count", "9999"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=HERE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(LIMIT) == FAILED


# --- failing --------------------------------------------------------------------------------


def test_a_tool_that_fails_exits_with_1_and_says_why() -> None:
    done = call("work.fail")
    assert (done.returncode, done.stdout, done.stderr) == (FAILED, "", "Failed: The disk is full\n")


def test_the_traceback_of_a_mistake_is_shown_on_request_only() -> None:
    assert call("work.crash").stderr == "Failed: a mistake\n"
    assert "Traceback" in call("work.crash", "--log-level", "warning").stderr


def test_a_question_that_is_not_json_is_a_failure_of_the_tool() -> None:
    done = call("talk.odd", "--json", "--answer", "1=x")
    assert "Traceback" not in done.stderr
    assert done.returncode == FAILED


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_result_that_is_not_json_is_a_failure_of_the_tool(options: list[str]) -> None:
    done = call("work.strange", *options)
    assert done.returncode == FAILED
    assert done.stderr.startswith("Failed: ")
    assert "object" in done.stderr


# --- questions ------------------------------------------------------------------------------


def test_without_answers_the_tool_is_told_that_it_cannot_ask() -> None:
    done = call("files.delete", "--ids", "a")
    assert done.stderr.startswith("Not answered: This caller cannot be asked: interactive mode required")
    assert "--yes" in done.stderr
    assert done.returncode == NOT_ANSWERED


def test_a_fallback_that_covers_it_is_a_success() -> None:
    done = call("talk.covered")
    assert (done.returncode, done.stdout) == (SUCCESS, "nobody\n")


def test_yes_answers_only_yes_or_no_questions() -> None:
    done = call("talk.prompt", "--yes")
    assert "cannot answer a question of kind prompt, only confirm" in done.stderr
    assert done.returncode == NOT_ANSWERED


@pytest.mark.parametrize("key", ["1", "prompt", "Prompt", "your NAME", "name?"])
def test_an_answer_is_found_by_number_kind_or_words(key: str) -> None:
    assert call("talk.prompt", "--answer", f"{key}=Bob").stdout == "Hello Bob\n"


def test_a_number_wins_over_words_and_words_over_the_kind() -> None:
    by_kind = ("--answer", "prompt=kind")
    assert call("talk.prompt", *by_kind, "--answer", "name=words").stdout == "Hello words\n"
    assert (
        call("talk.prompt", *by_kind, "--answer", "name=words", "--answer", "1=number").stdout
        == "Hello number\n"
    )


def test_each_of_several_questions_gets_its_own_answer() -> None:
    done = call("talk.several", "--answer", "calm=1", "--answer", "urgent=2")
    assert json.loads(done.stdout) == {"calm": "1", "urgent": "2"}


@pytest.mark.parametrize(
    ("method", "value", "printed"),
    [
        ("files.delete --ids a", "yes", '{"type": "deleted", "id": "a"}'),
        ("files.delete --ids a", "False", '{"type": "cancelled"}'),
        ("files.delete --ids a", '{"Confirmed": true}', '{"type": "deleted", "id": "a"}'),
        ("talk.prompt", "5", "Hello 5"),
        ("talk.prompt", '"Bob"', "Hello Bob"),
        ("talk.prompt", "a=b", "Hello a=b"),
        ("talk.prompt", "Cancelled", "Hello Cancelled"),
        ("talk.select", "full", "took full"),
        ("talk.select", "minimal", "took min"),
        ("talk.toppings", "ham, kale", '["ham", "kale"]'),
        ("talk.toppings", '["egg"]', '["egg"]'),
        ("talk.toppings", "", "[]"),
        (
            "talk.visitor",
            '{"name": "Bob", "age": 20}',
            '{"name": "Bob", "age": 20, "badge": "red", "news": false}',
        ),
        ("talk.page", "done", "welcome"),
        ("talk.seat", '{"row": 11}', '{"row": 11}'),
    ],
)
def test_a_value_is_read_as_its_question_wants_it(method: str, value: str, printed: str) -> None:
    done = call(*method.split(), "--answer", f"1={value}")
    assert (done.stdout, done.returncode) == (f"{printed}\n", SUCCESS)


def test_a_question_of_ones_own_is_found_by_its_type_name() -> None:
    assert call("talk.seat", "--answer", 'pickseat={"row": 12}').stdout == '{"row": 12}\n'


def test_a_question_that_no_answer_matches_ends_the_call_and_is_named() -> None:
    done = call("talk.several", "--answer", "calm=1")
    assert done.stderr.endswith('Not answered: No --answer matches question 1 (prompt): "An urgent one?"\n')
    assert (done.returncode, done.stdout) == (NOT_ANSWERED, "")


def test_an_answer_that_does_not_fit_ends_the_call_and_says_what_was_expected() -> None:
    done = call("talk.select", "--answer", "1=huge")
    assert "'huge' does not fit question 1 (select): \"Template?\", expected one of full, min" in done.stderr
    assert done.returncode == NOT_ANSWERED


def test_what_an_mcp_server_adds_to_a_question_for_programs_is_not_shown_to_a_person() -> None:
    server = (
        f"{sys.executable} -m midcall serve midcall.activations.demo:hub --stdio --mcp-only --journal memory"
    )
    trip = ("flights.book_flight", "--origin", "Paris", "--destination", "Rome")
    done = midcall("call", server, *trip, "--answer", "number=none")
    assert "Pick your flight from Paris to Rome" in done.stderr
    assert "model-context" not in done.stderr
    assert done.returncode == NOT_ANSWERED


def test_no_answer_makes_a_terminal_a_model() -> None:
    done = call("talk.sample", "--answer", "sample=hi")
    assert "cannot answer a question of kind sample" in done.stderr
    assert done.returncode == NOT_ANSWERED


@pytest.mark.parametrize("method", ["talk.prompt", "talk.gentle"])
def test_a_cancelled_question_exits_with_3_even_if_the_tool_lives_with_it(method: str) -> None:
    done = call(method, "--answer", '1="Cancelled"')
    assert done.returncode == CANCELLED
    assert done.stdout == ("as you like\n" if method == "talk.gentle" else "")


def test_an_answer_without_a_key_is_a_usage_error() -> None:
    done = call("talk.prompt", "--answer", "Bob")
    assert done.stderr.startswith("midcall: --answer takes KEY=VALUE")
    assert done.returncode == USAGE


# --- targets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["cli_app", "cli_app:hub", "cli_app.py", "./cli_app.py:hub", "cli_app:make_hub"]
)
def test_a_target_is_a_module_or_a_file_and_a_name(target: str) -> None:
    assert "files.delete" in midcall("tools", target).stdout


def test_a_file_elsewhere_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("from cli_app import Files")
    (tmp_path / "json.py").write_text(
        "from neighbour import Files\nfrom midcall import Hub\nhub = Hub().register(Files())\n"
    )
    done = midcall("call", f"{tmp_path}/json.py", "files.find")
    assert (done.returncode, done.stderr) == (SUCCESS, "")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere:hub", "no module named 'nowhere'"),
        ("nowhere.py:hub", "no file nowhere.py"),
        ("cli_app:hob", "cli_app has no 'hob'; it has hub"),
        ("cli_app:not_a_hub", "it is a int, not a Hub"),
        (":hub", "a target is a module or a file"),
        ("broken.py", "broken.py, line 2: ZeroDivisionError: division by zero"),
        ("syntax.py", "syntax.py, line 1: "),
        ("mistaken:hub", "mistaken.py, line 1: ValueError: no number"),
        ("missing.py", "missing.py, line 1: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
    ],
)
def test_a_target_that_cannot_be_loaded_is_told_in_one_line(
    tmp_path: Path, target: str, message: str
) -> None:
    (tmp_path / "cli_app.py").write_text((HERE / "cli_app.py").read_text())
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "syntax.py").write_text("def\n")
    (tmp_path / "mistaken.py").write_text("raise ValueError('no number')\n")
    (tmp_path / "missing.py").write_text("import nothing_of_the_kind\n")
    done = midcall("tools", target, cwd=tmp_path)
    assert done.stderr.startswith(f"midcall: Cannot load {target!r}: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode == USAGE


# --- tools ----------------------------------------------------------------------------------


def test_tools_lists_methods_with_their_marks() -> None:
    lines = [line.split() for line in midcall("tools", "cli_app").stdout.splitlines()]
    assert ["files.delete", "stream,", "asks", "Delete", "items."] in lines
    assert ["work.text", "Give", "text,", "as", "it", "is."] in lines


def test_tools_shows_one_method_with_its_parameters() -> None:
    shown = midcall("tools", "cli_app", "files.delete").stdout
    assert "Asks before it does." in shown
    assert "list of string" in shown
    assert "what to delete" in shown


def test_tools_prints_the_schema_as_json() -> None:
    whole = json.loads(midcall("tools", "cli_app", "--json").stdout)
    assert [activation["namespace"] for activation in whole["activations"]] == ["files", "talk", "work"]
    assert json.loads(midcall("tools", "cli_app", "files.find", "--json").stdout)["name"] == "files.find"


def test_tools_knows_near_matches_too() -> None:
    done = midcall("tools", "cli_app", "files.delet")
    assert "Did you mean files.delete" in done.stderr
    assert done.returncode == USAGE


# --- serve, demo ----------------------------------------------------------------------------


def test_serve_over_stdio_answers_on_stdout_and_ends_with_its_input() -> None:
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "work.text"})
    done = midcall("serve", "cli_app", "--stdio", stdin=f"{asked}\n")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["result"] == 'two\nlines, "quoted"'
    assert done.returncode == SUCCESS


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stdio", [True, False])
def test_a_signal_ends_serve_cleanly(how: signal.Signals, stdio: bool) -> None:
    port = free_port()
    options = ["--stdio"] if stdio else ["--port", str(port)]
    process = subprocess.Popen(
        [*MIDCALL, "serve", *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    if stdio:
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "health.check"}\n')
        process.stdin.flush()
        process.stdout.readline()
    else:
        wait_for(f"http://127.0.0.1:{port}/health")
    process.send_signal(how)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (SUCCESS, "")
    assert "Traceback" not in err


def test_the_demo_without_a_terminal_is_played_by_a_script_and_says_so() -> None:
    done = midcall("demo")
    shown = done.stdout + done.stderr
    assert "played by a SCRIPT" in shown
    assert "http://127.0.0.1:" in shown
    assert "SeatPicker is shown" in shown
    assert "Your flight is booked." in shown
    assert done.returncode == SUCCESS


def test_the_demo_started_by_uvx_shows_commands_that_work_in_another_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.delenv("UV", raising=False)
    assert "\n  midcall tools http://" in midcall("demo").stderr
    monkeypatch.setenv("UV", "/usr/bin/uv")  # which has put midcall into the path of this process alone
    assert f"\n  {sys.executable} -m midcall tools http://" in midcall("demo").stderr


def test_the_demo_on_a_port_that_is_taken_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = midcall("demo", "--port", str(port))
    assert (
        f"Cannot listen on 127.0.0.1:{port}: Address already in use; stop what listens there" in done.stderr
    )
    assert done.returncode == 5


@pytest.mark.parametrize(("how", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_an_interrupted_call_is_cancelled_and_says_so(how: signal.Signals, name: str) -> None:
    process = subprocess.Popen(
        [*MIDCALL, "call", "cli_app", "work.long", "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE,
    )  # fmt: skip
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["type"] == "progress"
    process.send_signal(how)
    out, err = process.communicate(timeout=LIMIT)
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["error", "done"]
    assert err == f"info: cleaned up\nCancelled: The call was stopped by {name}\n"
    assert process.returncode == CANCELLED

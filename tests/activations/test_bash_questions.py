"""What a person is asked before a command runs, and what the answers come to."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from midcall import Request
from midcall.activations.bash import Bash
from midcall.activations.bash.rules import ConfigError
from midcall.errors import InvalidArguments
from midcall.hub import Hub
from midcall.questions import CANCELLED, DECLINED, Prompt, Select
from midcall.testing import run
from shelling import choosing, execute, lines, shell

ASKED = "touch made; echo $(ls)"


def the_select(asked: list[Request], place: int = 0) -> Select:
    question = asked[place].request_type
    assert isinstance(question, Select)
    return question


def values(question: Select) -> list[str]:
    return [option.value for option in question.options]


def test_the_question_shows_the_command_and_the_plan(tmp_path: Path) -> None:
    answer, asked = choosing("no")
    drive(execute(shell(tmp_path), ASKED, answer))
    (request,) = asked
    message = request.request_type.message
    assert request.key == "permission"
    assert request.timeout_ms is None
    assert "    touch made; echo $(ls)\n" in message
    assert f"in {tmp_path}/project" in message
    assert "    1. ASK  touch made\n       no rule is for it\n" in message
    assert "ALLOW  echo $(ls)\n" in message
    assert "ALLOW  ls\n" in message
    assert values(the_select(asked)) == ["once", "session", "always", "no", "reason"]


def test_nothing_in_a_command_can_hide_in_the_question(tmp_path: Path) -> None:
    answer, asked = choosing("no")
    hostile = "touch '\u202egpj.exe'\x1b[2K\r; l\u0455 \u200b; touch '\u05d0 a' '\u3164' '\u2028'"
    drive(execute(shell(tmp_path), hostile, answer))
    message = asked[0].request_type.message
    assert r"touch '\u202egpj.exe'\x1b[2K\x0d; l" in message
    assert r"\u200b" in message
    assert not set("\u05d0\u3164\u2028") & set(message)
    assert all(character.isprintable() or character == "\n" for character in message)


def test_a_command_cannot_write_into_its_own_plan(tmp_path: Path) -> None:
    answer, asked = choosing("no")
    drive(execute(shell(tmp_path), 'touch "$x\n\n2. ALLOW  ls\n![x](http://x)"', answer))
    message = asked[0].request_type.message
    assert r'1. ASK  touch "$x\n\n2. ALLOW  ls\n![x](http://x)"' in message
    told = [line for line in message.splitlines() if line and not line.startswith("    ")]
    assert told == ["Run this command?", "What it does:", "Where:"]


def test_once_is_once(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    assert drive(execute(hub, ASKED, ["once"]))[-1] == {"type": "exit", "code": 0}
    assert (tmp_path / "project/made").exists()
    assert drive(execute(hub, ASKED, ["no"])) == [{"type": "error", "message": "Not run: the person said no"}]


@pytest.mark.parametrize("refusal", [DECLINED, CANCELLED])
def test_who_does_not_answer_has_not_said_yes(tmp_path: Path, refusal: Any) -> None:
    (error,) = drive(execute(shell(tmp_path), ASKED, lambda request: refusal))
    assert error["type"] == "error"
    assert not (tmp_path / "project/made").exists()


def test_a_reason_goes_to_the_model(tmp_path: Path) -> None:
    answer, asked = choosing("reason", "use the staging folder")
    (error,) = drive(execute(shell(tmp_path), ASKED, answer))
    assert isinstance(asked[1].request_type, Prompt)
    assert error == {"type": "error", "message": "Not run: the person said no: use the staging folder"}


def test_always_keeps_exactly_what_was_shown(tmp_path: Path) -> None:
    hub = shell(tmp_path, "# mine\n[limits]\ntimeout = 30\n")
    answer, asked = choosing("always", "keep")
    assert drive(execute(hub, ASKED, answer))[-1] == {"type": "exit", "code": 0}
    shown = "\n".join(
        line[4:] for line in the_select(asked, 1).message.splitlines() if line.startswith("    ")
    )
    text = (tmp_path / "bash.toml").read_text()
    assert text == f"# mine\n[limits]\ntimeout = 30\n\n{shown}\n"
    assert tomllib.loads(text)["approved"] == [{"command": ASKED, "cwd": f"{tmp_path}/project"}]
    assert drive(execute(hub, ASKED))[-1] == {"type": "exit", "code": 0}
    (tmp_path / "project/sub").mkdir()
    assert drive(execute(hub, ASKED, ["no"], cwd="sub"))[-1]["type"] == "error"
    assert drive(execute(hub, ASKED, ["no"], env={"FOO": "x"}))[-1]["type"] == "error"


@pytest.mark.parametrize(
    ("kept", "other"),
    [
        ("rm '*'", "rm *"),
        ("touch made", "touch made too"),
        ("touch made", "touch made;"),
        ("touch made", "touch  made"),
        ("touch made", "cd sub; touch made"),
        ("touch made", "command cd sub; touch made"),
        ("touch made", "find . -execdir touch made \\;"),
        ("touch made", "MAKEFLAGS=x touch made"),
        ("touch 'a?'", "touch a?"),
        ("touch '{a,b}'", "touch {a,b}"),
        ("rm '$(cat list)'", "rm $(cat list)"),
        ("git push", "git push -f"),
        ("rm /a/b", "rm /a/link/../b"),
    ],
)
def test_what_is_kept_is_for_nothing_else(tmp_path: Path, kept: str, other: str) -> None:
    hub = shell(tmp_path)
    drive(execute(hub, kept, lambda request: {"permission": "always", "rule": "keep"}.get(request.key, "no")))
    assert tomllib.loads((tmp_path / "bash.toml").read_text())["approved"][0]["command"] == kept
    answer, asked = choosing("no")
    assert drive(execute(hub, other, answer))[-1]["type"] == "error"
    assert [request.key for request in asked] == ["permission"]


def test_what_is_kept_does_not_undo_what_is_denied(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    drive(execute(hub, ASKED, ["always", "keep"]))
    with (tmp_path / "bash.toml").open("a") as file:
        file.write("[[rule]]\nverdict = 'deny'\ncommand = 'touch'\n")
    (error,) = drive(execute(hub, ASKED))
    assert "it is denied" in error["message"]


@pytest.mark.parametrize(("second", "runs"), [("once", True), ("no", False)])
def test_who_does_not_like_the_rule_keeps_none(tmp_path: Path, second: str, runs: bool) -> None:
    found = drive(execute(shell(tmp_path), ASKED, ["always", second]))
    assert (found[-1]["type"] == "exit") is runs
    assert (tmp_path / "bash.toml").read_text() == ""


def test_a_command_with_variables_of_its_caller_is_not_offered_for_always(tmp_path: Path) -> None:
    answer, asked = choosing("no")
    drive(execute(shell(tmp_path), ASKED, answer, env={"FOO": "x"}))
    assert "always" not in values(the_select(asked))


def test_what_one_caller_keeps_is_not_for_another(tmp_path: Path) -> None:
    hub = shell(tmp_path)

    async def as_caller(name: str | None, *answers: str) -> Any:
        answer, asked = choosing(*answers)
        invocation = hub.call("bash.execute", {"command": ASKED}, answer=answer, principal=name)
        return (await invocation)[-1], len(asked)

    assert drive(as_caller("ada", "always", "keep"))[1] == 2
    assert drive(as_caller("ada"))[1] == 0
    assert drive(as_caller("eve", "no"))[1] == 1
    assert drive(as_caller(None, "always", "keep"))[1] == 2
    assert drive(as_caller(None))[1] == 0
    assert drive(as_caller("eve", "no"))[1] == 1


def test_a_caller_who_cannot_be_asked_gets_what_is_allowed_and_no_more(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    assert drive(execute(hub, "echo hi", None)) == [
        {"type": "stdout", "line": "hi"},
        {"type": "exit", "code": 0},
    ]
    (error,) = drive(execute(hub, ASKED, None))
    assert error["type"] == "error"
    assert "nobody can be asked here" in error["message"]
    assert "touch made: no rule is for it" in error["message"]
    assert not (tmp_path / "project/made").exists()


def test_what_is_denied_is_not_even_asked(tmp_path: Path) -> None:
    (error,) = drive(execute(shell(tmp_path), "ls; mkfs.ext4 /dev/sda1"))
    assert error["type"] == "error"
    assert "denied (mkfs.ext4 /dev/sda1: it would overwrite a device)" in error["message"]


def test_what_is_denied_while_somebody_thinks_is_not_run(tmp_path: Path) -> None:
    hub = shell(tmp_path)

    def answer(request: Request) -> str:
        (tmp_path / "bash.toml").write_text("[[rule]]\nverdict = 'deny'\ncommand = 'touch'\n")
        return "once"

    (error,) = drive(execute(hub, ASKED, answer))
    assert error == {"type": "error", "message": "Not run: a rule now denies it"}
    assert not (tmp_path / "project/made").exists()


def test_there_is_no_parameter_that_leads_out_of_the_sandbox(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    for name in ("sandbox", "network", "outside", "permission"):
        outcome = drive(run(hub, "bash.execute", {"command": "ls"}))
        assert outcome.error is None
        with pytest.raises(InvalidArguments):
            drive(run(hub, "bash.execute", {"command": "ls", name: False}))


# --- the file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule = 3", "rule"),
        ("x = 1", "unknown field `x`"),
        ("[[rule]]", "missing required field `verdict`"),
        ("[[rule]]\nverdict = 'maybe'\ncommand = 'x'", "Invalid enum value 'maybe'"),
        ("[[rule]]\nverdict = 'allow'", "missing required field `command`"),
        ("[[rule]]\nverdict = 'allow'\ncommand = '*'", "cannot allow every program"),
        ("[[rule]]\nverdict = 'allow'\ncommand = 'bin/ls'", "without a folder"),
        ("[[rule]]\nverdict = 'allow'\ncommand = ''", "rule 1"),
        ("[[rule]]\nverdict = 'allow'\ncommand = []", "rule 1"),
        ("[[rule]]\nverdict = 'allow'\ncommand = 'a'\nargs = ['re:(']", "is no regular expression"),
        ("[[approved]]\ncommand = 'ls'", "missing required field `cwd`"),
        ("[sandbox]\nuse = 'magic'", "Invalid enum value 'magic'"),
        ("[sandbox]\nwrite = ['nowhere']", "there is no folder"),
        ("[limits]\noutput = 1", "limits.output"),
        ("[limits]\nmemory = 1", "limits.memory"),
        ("pass_env = ['MIDCALL_KEYS']", "MIDCALL_KEYS is for the server alone"),
        ("this is not TOML", "bash.toml"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_and_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shell(tmp_path, text)
    assert message in str(refused.value)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no file"):
        Bash(tmp_path / "bash.toml")


def test_a_file_that_is_spoilt_later_stops_everything(tmp_path: Path) -> None:
    hub = shell(tmp_path)
    (tmp_path / "bash.toml").write_text("rule = 3")
    (error,) = drive(execute(hub, "ls"))
    assert error["type"] == "error"
    assert "bash.toml" in error["message"]


def test_rules_of_the_user_come_before_those_of_midcall(tmp_path: Path) -> None:
    rules = """
        [[rule]]
        verdict = "ask"
        command = ["ls", "bash", "xargs"]

        [[rule]]
        verdict = "allow"
        command = "touch"
        args = ["*.txt"]

        [[rule]]
        verdict = "deny"
        command = "git"
        args = ["push", "**"]
        options = ["-f|--force"]
        reason = "ask your colleagues first"

        [[rule]]
        verdict = "allow"
        command = "git"
        args = ["push", "**"]
    """
    hub = shell(tmp_path, rules)
    for command in ("ls", "bash -c pwd", "echo a | xargs cat", "env ls"):
        assert drive(execute(hub, command, ["no"]))[-1]["type"] == "error"
    assert drive(execute(hub, "touch a.txt"))[-1] == {
        "type": "exit",
        "code": 1,
    }  # nobody has permitted to write
    assert not (tmp_path / "project/a.txt").exists()
    assert drive(execute(hub, "touch a.md", ["no"]))[-1]["type"] == "error"
    assert "ask your colleagues" in drive(execute(hub, "git push origin --forc"))[-1]["message"]
    assert drive(execute(hub, "git push $x", ["no"]))[-1]["type"] == "error"
    assert drive(execute(hub, "git push --dry-run nowhere"))[-1]["type"] == "exit"


def test_without_the_rules_of_midcall_everything_is_asked(tmp_path: Path) -> None:
    hub = shell(tmp_path, "defaults = false\n")
    assert drive(execute(hub, "ls", ["no"]))[-1]["type"] == "error"


def test_a_program_of_a_project_is_not_the_one_that_a_rule_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project/bin").mkdir(parents=True)
    (tmp_path / "project/bin/ls").write_text("#!/bin/sh\necho changed\n")
    (tmp_path / "project/bin/ls").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/project/bin:/usr/bin:/bin")
    answer, asked = choosing("once")
    found = drive(execute(shell(tmp_path), "ls", answer))
    assert "it is no program of the system" in asked[0].request_type.message
    assert lines(found) == ["changed"]


def test_a_hub_has_its_shell_by_name() -> None:
    assert Hub().register(Bash()).resolve("bash_execute").name == "bash.execute"

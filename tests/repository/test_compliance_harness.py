"""The harness around the conformance suites, clients and servers judges every check, not only the failures."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "compliance"))

from clients import Row, report  # noqa: E402
from harness.booking import Booking  # noqa: E402
from harness.clients import (  # noqa: E402
    CHECKS,
    CLIENTS,
    RESPOND_TOOL,
    TOOLS,
    TWENTY,
    Outcome,
    Verdict,
    run_client,
)
from harness.clients import judge as judge_client  # noqa: E402
from harness.foreign import Player, Scene, call, listed, play  # noqa: E402
from harness.install import Tool  # noqa: E402
from harness.suites import SUITES, Check, Result, Side, run_client_scenario  # noqa: E402
from harness.verdict import AllowListError, judge, read_allow_list, summary, table  # noqa: E402


def result(*statuses: str, scenario: str = "ping") -> Result:
    checks = tuple(Check(f"check-{n}", status, "why") for n, status in enumerate(statuses))
    return Result("2026-07-28", scenario, checks)


def allow_list(tmp_path: Path, status: str, scenario: str, reason: str = "known") -> Path:
    path = tmp_path / "allowed.toml"
    path.write_text(
        f'[[allowed]]\nstatus = "{status}"\nscenario = "{scenario}"\ncheck = "*"\nreason = "{reason}"\n'
    )
    return path


def test_successes_and_infos_pass():
    assert judge([result("SUCCESS", "INFO")], []).passed


@pytest.mark.parametrize("status", ["FAILURE", "WARNING", "SKIPPED"])
def test_anything_else_does_not_pass_by_itself(status):
    verdict = judge([result("SUCCESS", status)], [])
    assert [check.status for _, check in verdict.unexcused] == [status]


@pytest.mark.parametrize("status", ["WARNING", "SKIPPED"])
def test_the_allow_list_excuses_a_warning_or_a_skip_of_the_scenarios_that_it_names(tmp_path, status):
    entries = read_allow_list(allow_list(tmp_path, status, "pi*"))
    assert judge([result(status)], entries).passed
    assert not judge([result(status, scenario="tools-list")], entries).passed


def test_the_allow_list_cannot_excuse_a_failure(tmp_path):
    with pytest.raises(AllowListError):
        read_allow_list(allow_list(tmp_path, "FAILURE", "ping"))


def test_the_allow_list_wants_a_reason(tmp_path):
    with pytest.raises(AllowListError):
        read_allow_list(allow_list(tmp_path, "WARNING", "ping", reason=" "))


def test_an_entry_that_excuses_nothing_is_reported_after_a_complete_run(tmp_path):
    results = [result("SUCCESS")]
    verdict = judge(results, read_allow_list(allow_list(tmp_path, "WARNING", "gone")))
    assert "WARNING gone" in summary(results, verdict, complete=True)
    assert "WARNING gone" not in summary(results, verdict, complete=False)


def test_the_table_counts_each_status():
    rows = [line.split() for line in table([result("SUCCESS", "SUCCESS", "WARNING")]).splitlines()]
    assert ["1", "scenarios", "2", "0", "1", "0", "0"] in rows


def test_the_allow_list_of_this_repository_can_be_read():
    assert read_allow_list(ROOT / "compliance" / "allowed.toml")


def said(*lines: dict[str, object]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


FLIGHT = {"id": "sk-1", "number": "SK-1", "price": 99}
SEATS = {"flight": FLIGHT, "seatMap": {"rows": 1, "columns": ["A", "B"], "taken": ["1A"]}}
CHAT = Booking(("sk-1 for $99", "Seats of SK-1 (taken: 1A)"), ({"flights": [FLIGHT]}, SEATS))


def verdicts(written: str, mode: str = "modern", chat: Booking = CHAT) -> dict[str, Verdict]:
    return {outcome.check: outcome.verdict for outcome in judge_client(written, mode, chat)}


def booked(*, hidden: str = "", **ticket: object) -> dict[str, Any]:
    """What a client reports that has booked as the chat did."""
    answers: list[dict[str, object]] = [{"flightId": "sk-1"}, {"row": 1, "seat": "B"}]
    shown = [
        {"text": text, "inMessage": context, "inSchema": context, "answer": answer}
        | ({hidden: None} if hidden else {})
        for text, context, answer in zip(CHAT.texts, CHAT.contexts, answers, strict=True)
    ]
    good = {"ticketNumber": "TK0123ABCD", "flight": FLIGHT, "seat": "1B", "price": 99, "tip": "all is well"}
    return {
        "check": "book",
        "saw": {"asked": ["flightId", "row seat"], "shown": shown, "ticket": good | ticket},
    }


def test_a_client_passes_a_check_only_by_what_it_saw():
    assert verdicts(said({"check": "call", "saw": {"total": 5}}))["call"] is Verdict.PASSED
    assert verdicts(said({"check": "call", "saw": {"total": 6}}))["call"] is Verdict.FAILED
    assert verdicts(said({"check": "call", "failed": "timeout"}))["call"] is Verdict.FAILED


def test_a_check_that_a_client_does_not_report_has_failed():
    assert set(verdicts("").values()) == {Verdict.FAILED}


def test_a_client_must_speak_the_revision_of_its_mode():
    legacy = said({"check": "connect", "saw": "2025-11-25"})
    assert verdicts(legacy, "legacy")["connect"] is Verdict.PASSED
    assert verdicts(legacy, "auto")["connect"] is Verdict.FAILED


def test_only_a_legacy_client_that_cannot_be_asked_is_shown_the_respond_tool():
    shown = {"check": "list", "saw": [*TOOLS, *(f"twenty.{one['tool']}" for one in TWENTY), RESPOND_TOOL]}
    unasked = {"check": "accept", "cannot": "has nobody to ask"}
    assert verdicts(said(shown, unasked), "legacy")["list"] is Verdict.PASSED
    assert verdicts(said(shown, unasked), "modern")["list"] is Verdict.FAILED
    assert verdicts(said(shown), "legacy")["list"] is Verdict.FAILED


def test_a_booking_passes_only_with_the_ticket_that_was_chosen():
    assert verdicts(said(booked()))["book"] is Verdict.PASSED
    assert verdicts(said(booked(seat="1A")))["book"] is Verdict.FAILED
    assert verdicts(said(booked(ticketNumber="")))["book"] is Verdict.FAILED
    assert verdicts(said({**booked(), "saw": {**booked()["saw"], "ticket": None}}))["book"] is Verdict.FAILED


def test_a_booking_without_a_tip_is_for_a_client_without_a_model():
    assert verdicts(said(booked(tip="")))["book"] is Verdict.FAILED
    without = {"check": "sample", "cannot": "has no model"}
    assert verdicts(said(without, booked(tip="")))["book"] is Verdict.PASSED


@pytest.mark.parametrize("place", ["inSchema", "inMessage"])
def test_a_client_must_be_shown_the_context_of_the_chat_in_each_place_that_it_does_not_hide(place):
    assert verdicts(said(booked(hidden=place)))["book"] is Verdict.FAILED
    hiding = replace(CHAT, hidden=place)
    assert verdicts(said(booked(hidden=place)), chat=hiding)["book"] is Verdict.PASSED
    assert verdicts(said(booked()), chat=hiding)["book"] is Verdict.FAILED


@pytest.mark.parametrize(
    "texts", [("sk-1", CHAT.texts[1]), ("$99", CHAT.texts[1]), (CHAT.texts[0], "Seats of SK-1")]
)
def test_the_text_of_a_question_must_say_what_its_context_says(texts):
    silent = booked()
    for shown, text in zip(silent["saw"]["shown"], texts, strict=True):
        shown["text"] = text
    assert verdicts(said(silent))["book"] is Verdict.FAILED
    assert verdicts(said(silent), chat=replace(CHAT, texts=texts))["book"] is Verdict.FAILED


def test_a_part_of_the_checks_can_be_judged_alone():
    (outcome,) = judge_client(said(booked()), "modern", CHAT, ["book"])
    assert (outcome.check, outcome.verdict) == ("book", Verdict.PASSED)


def test_a_script_that_breaks_off_fails_with_what_it_said(tmp_path):
    script = 'import sys; print(\'{"check": "call", "saw": {"total": 5}}\'); sys.exit(\'no luck\')'
    outcomes = run_client([sys.executable, "-c", script], "modern", [], tmp_path / "log", CHAT)
    assert [outcome.check for outcome in outcomes if outcome.verdict is Verdict.PASSED] == ["call"]
    assert "exit code 1; no luck" in outcomes[-1].reason


def test_what_a_client_cannot_do_stands_in_the_report_with_the_reason():
    outcomes = [Outcome(check, Verdict.CANNOT, "has no model") for check in CHECKS]
    text = report([Row(CLIENTS[0], "stdio", "auto", outcomes)])
    assert "[1] mcp 2.3.0 has no model" in text
    assert f"0 passed, {len(CHECKS)} cannot, 0 failed" in text


# --- a suite that tests a client, in the place of the official one ---------------------------

SUITE = """
import json, sys
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--output-dir") + 1]) / "ping-now"
folder.mkdir(parents=True, exist_ok=True)
(folder / "checks.json").write_text(json.dumps([{{"id": "ping", "status": status}} for status in {statuses}]))
(folder / "stderr.txt").write_text("Traceback\\nno luck")
print({said!r}, file=sys.stderr)
sys.exit({code})
"""


def played(
    tmp_path: Path, statuses: list[str], said: str = "", code: int = 0, scenario: str = "ping"
) -> Result:
    script = tmp_path / "suite.py"
    script.write_text(SUITE.format(statuses=statuses, said=said, code=code))
    suite = next(suite for suite in SUITES if suite.side is Side.CLIENT)
    return run_client_scenario(
        Tool("1", Path(sys.executable), script), suite, scenario, ["client"], tmp_path / "results"
    )


def test_a_client_passes_a_scenario_if_all_checks_succeed_and_it_ends_well(tmp_path):
    assert judge([played(tmp_path, ["SUCCESS", "INFO"])], []).passed


def test_a_client_that_ends_with_an_error_fails_the_scenario_even_if_the_suite_overlooks_it(tmp_path):
    result = played(tmp_path, ["SUCCESS"], "Client exited with code 1")
    assert [check.text for check in result.checks if check.status == "FAILURE"] == ["exit code 1: no luck"]


def test_a_client_that_does_not_end_in_time_fails_the_scenario(tmp_path):
    assert not judge([played(tmp_path, ["SUCCESS"], "Client timed out after 30000ms")], []).passed


def test_a_suite_that_fails_without_a_failed_check_fails_the_scenario(tmp_path):
    assert not judge([played(tmp_path, ["SUCCESS"], code=1)], []).passed


def test_a_scenario_without_checks_has_failed(tmp_path):
    assert not judge([played(tmp_path, ["INFO"])], []).passed


def test_a_scenario_that_the_client_does_not_play_is_skipped(tmp_path):
    result = played(tmp_path, ["FAILURE"], "Client exited with code 77", code=1)
    assert [check.status for check in result.checks] == ["SKIPPED"]


# --- a player that reports what it is told, in the place of a client --------------------------

SCENE = Scene(
    (), (listed("add"), call("add", {"a": 2, "b": 3}, text="is 5"), call("count", progress=[0.5, 1.0]))
)
RIGHT = (
    {"step": 0, "saw": {"tools": ["math.add", "math.count"]}},
    {"step": 1, "saw": {"text": "The sum is 5.", "failed": False}},
    {"step": 2, "saw": {"failed": False, "progress": [0.5, 1.0]}},
)


def wrong(folder: Path, *lines: dict[str, object], code: int = 0, loses_last: bool = False) -> list[str]:
    script = f"import sys; print({said(*lines)!r}, end=''); sys.exit({code})"
    return play(
        Player([sys.executable, "-c", script], loses_last), "auto", SCENE, ["server"], folder, "math."
    )


def test_a_player_that_saw_what_it_should_passes(tmp_path):
    assert wrong(tmp_path, *RIGHT) == []
    assert [step.get("call") for step in json.loads((tmp_path / "plan.json").read_text())["steps"]] == [
        None,
        "math.add",
        "math.count",
    ]


def test_a_step_that_went_wrong_was_not_reported_or_raised_has_failed(tmp_path):
    lines = wrong(
        tmp_path,
        {"step": 0, "saw": {"tools": []}},
        {"step": 1, "raised": "ValueError: no"},
        {"step": 2, "saw": {}},
    )
    assert [line.partition(":")[0] for line in lines] == ["tools", "add", "count"]
    assert wrong(tmp_path, *RIGHT[:2]) == ["count: not reported"]


def test_a_player_that_ends_with_an_error_has_failed(tmp_path):
    assert wrong(tmp_path, *RIGHT, code=3) == ["the player: exit code 3"]


def test_the_last_progress_may_be_missing_only_where_the_client_is_known_for_it(tmp_path):
    late = {"step": 2, "saw": {"failed": False, "progress": [0.5]}}
    assert wrong(tmp_path, *RIGHT[:2], late, loses_last=True) == []
    assert wrong(tmp_path, *RIGHT[:2], late) == ["count: progress is [0.5], not [0.5, 1.0]"]

"""The harness around the conformance suites and clients judges every check, not only the failures."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "compliance"))

from clients import Row, report  # noqa: E402
from harness.clients import (  # noqa: E402
    CHECKS,
    CLIENTS,
    RESPOND_TOOL,
    TOOLS,
    Outcome,
    Verdict,
    run_client,
)
from harness.clients import judge as judge_client  # noqa: E402
from harness.suites import Check, Result  # noqa: E402
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


def verdicts(written: str, mode: str = "modern") -> dict[str, Verdict]:
    return {outcome.check: outcome.verdict for outcome in judge_client(written, mode)}


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
    shown = {"check": "list", "saw": [*TOOLS, RESPOND_TOOL]}
    unasked = {"check": "accept", "cannot": "has nobody to ask"}
    assert verdicts(said(shown, unasked), "legacy")["list"] is Verdict.PASSED
    assert verdicts(said(shown, unasked), "modern")["list"] is Verdict.FAILED
    assert verdicts(said(shown), "legacy")["list"] is Verdict.FAILED


def test_a_script_that_breaks_off_fails_with_what_it_said(tmp_path):
    script = 'import sys; print(\'{"check": "call", "saw": {"total": 5}}\'); sys.exit(\'no luck\')'
    outcomes = run_client([sys.executable, "-c", script], "modern", [], tmp_path / "log")
    assert [outcome.check for outcome in outcomes if outcome.verdict is Verdict.PASSED] == ["call"]
    assert "exit code 1; no luck" in outcomes[-1].reason


def test_what_a_client_cannot_do_stands_in_the_report_with_the_reason():
    outcomes = [Outcome(check, Verdict.CANNOT, "has no model") for check in CHECKS]
    text = report([Row(CLIENTS[0], "stdio", "auto", outcomes)])
    assert "[1] mcp 2.3.0 has no model" in text
    assert "0 passed, 8 cannot, 0 failed" in text

"""The harness around the conformance suites judges every check, not only the failures."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "compliance"))

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

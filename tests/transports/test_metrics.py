"""Metrics and readiness: what monitors and load balancers see of real servers."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from chatting import Person
from driving import LIMIT, drive
from midcall.errors import Conflict, JournalError
from midcall.journal.contract import ConversationRecord
from midcall.journal.measured import measure, refused_lately
from midcall.journal.memory import MemoryJournal
from midcall.metrics import keep
from operating import ADA, ADMIN, KEYS, Server, accept, until
from peers import environment

Figures = dict[str, Any]


def read(text: str) -> Figures:
    """Every figure by its name and labels, as the official parser reads them."""
    return {
        sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figures(server: Server, token: str | None = None) -> Figures:
    came = server.get("/metrics", token)
    assert came.status == 200
    assert came.headers["content-type"].startswith("text/plain; version=0.0.4")
    return read(came.text)


# --- a server -------------------------------------------------------------------------------------


def test_questions_segments_and_the_journal_are_counted(tmp_path: Path) -> None:
    with Server(tmp_path, "--metrics") as server:
        before = figures(server)
        assert before["midcall_journal_up"] == 1
        assert before["midcall_calls_kept waiting"] == before["midcall_segments_run_total"] == 0
        asked = server.call("shop.order", item="tea")
        waits = time.time()
        server.call("shop.survey")
        until(lambda: figures(server)["midcall_calls_kept waiting"] == 2)  # they are counted now and then
        after = figures(server)
        assert after["midcall_calls_parked"] == 2
        assert (after["midcall_calls_active"], after["midcall_questions_open"]) == (2, 4)
        assert after["midcall_questions_asked_total prompt"] == 1
        assert after["midcall_questions_asked_total select"] == 2
        assert after["midcall_answer_seconds_count"] == 0
        answers = {"address": accept(text="the harbour")}
        waited = time.time() - waits
        asked = server.call("shop.order", state=asked, answers=answers, item="tea")
        server.call("shop.order", state=asked, answers={"question-4": {"action": "cancel"}}, item="tea")
        hurried = 1
        while "inputRequests" not in server.call("shop.hurry", seconds=0.3 * hurried):
            hurried += 1  # it was over before it was told
        until(lambda: figures(server)["midcall_questions_ended_total timed_out"] == hurried)
        found = figures(server)
        assert found["midcall_questions_ended_total answered"] == 1
        assert found["midcall_questions_ended_total cancelled"] == 1
        assert found["midcall_answer_seconds_count"] == 2
        assert found["midcall_answer_seconds_sum"] > waited
        assert found["midcall_segments_run_total"] >= 5
        assert found["midcall_segments_rebuilt_total"] == 0
        assert found["midcall_journal_seconds_count claim"] >= 2
        assert found["midcall_journal_seconds_sum settle"] > 0


def test_what_the_journal_does_with_conversations_is_counted(tmp_path: Path) -> None:
    with Server(tmp_path, "--metrics", target="chat_restart_app:hub") as server:
        drive(Person(server.port).say("Send it."))
        found = figures(server)
        assert found["midcall_journal_seconds_count conversations.save"] >= 2
        assert found["midcall_journal_seconds_sum conversations.save"] > 0


def test_a_conversation_that_cannot_be_written_is_counted_until_one_can() -> None:
    def failed() -> float:
        return read(keep().text().decode()).get("midcall_journal_errors_total conversations.save", 0)

    async def main() -> None:
        journal = MemoryJournal()
        measure(journal)
        talk = ConversationRecord(id="c", version=1, updated=0.0)
        errors = failed()
        with pytest.raises(JournalError):
            await journal.conversations.save(talk)  # it is not open
        assert failed() == errors + 1
        assert refused_lately(journal, LIMIT)
        await journal.open()
        with pytest.raises(Conflict):
            await journal.conversations.save(replace(talk, version=2))
        await journal.conversations.save(talk)
        assert failed() == errors + 1, "a conflict is none"
        assert not refused_lately(journal, LIMIT)

    drive(main())


def test_how_long_people_take_survives_the_process(tmp_path: Path) -> None:
    with Server(tmp_path, "--metrics") as server:
        began = time.time()
        asked = server.call("shop.order", item="tea")
        waits = time.time()
        server.kill()
        time.sleep(2.1)
        server.start()
        answers = {"address": accept(text="the harbour")}
        back = time.time()
        server.call("shop.order", state=asked, answers=answers, item="tea")
        found = figures(server)
        assert found["midcall_answer_seconds_bucket 2.0"] == 0
        assert found["midcall_answer_seconds_count"] == 1
        assert back - waits < found["midcall_answer_seconds_sum"] < time.time() - began
        assert found["midcall_segments_rebuilt_total"] == 1
        assert found["midcall_questions_asked_total prompt"] == 0, "it was asked before"
        assert found["midcall_questions_asked_total confirm"] == 1


def test_a_call_that_diverges_is_counted(tmp_path: Path) -> None:
    with Server(tmp_path, "--metrics", "--admin") as server:
        server.call("shop.order", item="tea")
        server.stop()
        server.start(TWIST="1")
        server.post(f"/admin/calls/{server.only()['id']}/answers", {"answers": {"address": "x"}})
        found = figures(server)
        assert found["midcall_calls_diverged_total"] == 1
        assert found["midcall_calls_kept diverged"] == 1


def test_where_there_are_keys_figures_are_for_administrators_only(tmp_path: Path) -> None:
    with Server(tmp_path, "--metrics", MIDCALL_TOKENS=KEYS) as server:
        for origin in ({}, {"x_forwarded_for": "203.0.113.7"}):
            assert server.get("/metrics", **origin).status == 401
            assert server.get("/metrics", ADA, **origin).status == 403
            assert server.get("/metrics", ADMIN, **origin).status == 200


def test_without_keys_figures_are_for_programs_of_this_machine(tmp_path: Path) -> None:
    with Server(tmp_path, "--metrics") as server:
        assert figures(server)["midcall_journal_up"] == 1
        assert server.get("/metrics", x_forwarded_for="203.0.113.7").status == 404


def test_the_figures_of_all_workers_are_told_together(tmp_path: Path) -> None:
    with Server(tmp_path, "--metrics", "--workers", "2") as server:
        for number in range(8):
            server.call("shop.order", item=f"item {number}")

        def all_asked() -> bool:
            return all(figures(server)["midcall_questions_asked_total prompt"] == 8 for _ in range(6))

        until(all_asked)
        found = figures(server)
        assert found["midcall_segments_run_total"] == 8
        assert found["midcall_calls_parked"] == 8
        server.kill_workers()
        until(lambda: figures(server)["midcall_calls_parked"] == 0)
        assert figures(server)["midcall_questions_asked_total prompt"] == 8, "what was counted stays"


def test_workers_start_again_when_temporary_files_were_tidied_away(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with Server(tmp_path, "--metrics", "--workers", "2", TMPDIR=str(temporary)) as server:
        folders = list(temporary.glob("midcall-*"))
        assert folders
        for folder in folders:
            shutil.rmtree(folder)
        server.kill_workers()
        server.call("shop.order", item="tea")
        until(lambda: figures(server).get("midcall_questions_asked_total prompt") == 1)


def test_without_the_library_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\nfrom midcall.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "serve", "cli_app:hub", "--metrics"]
    ran = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert ran.returncode == 2
    assert "pip install 'midcall[metrics]'" in ran.stderr


# --- readiness ------------------------------------------------------------------------------------


def test_a_server_is_ready_while_its_journal_can_be_reached(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    options = {"target": "operate_app:fragile", "MIDCALL_TOKENS": KEYS, "BROKEN": str(broken)}
    with Server(tmp_path, "--metrics", journal=False, **options) as server:
        assert (server.get("/ready").status, server.get("/ready").json) == (200, {"status": "ready"})
        assert server.get("/ready", host="10.1.2.3").status == 200, "a load balancer has no name for it"
        broken.touch()
        until(lambda: server.get("/ready").status == 503)
        came = server.get("/ready").json
        assert came == {"status": "not ready", "reason": "The journal cannot be reached"}
        assert server.get("/health").status == 200, "it lives"
        found = figures(server, ADMIN)
        assert found["midcall_journal_up"] == 0
        assert found["midcall_journal_errors_total load"] >= 1
        broken.unlink()
        until(lambda: server.get("/ready").status == 200)
        assert server.stop().count("the server is not ready: No route to /secret/host") == 1


# --- OpenTelemetry --------------------------------------------------------------------------------


def test_opentelemetry_gets_the_same_histogram() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            """
import asyncio, json
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from midcall.testing import run
from cli_app import hub

reader = InMemoryMetricReader()
first = asyncio.run(run(hub, "talk.prompt", answers=["Bob"]))  # before it is set up: nothing is lost, nothing fails
metrics.set_meter_provider(MeterProvider([reader]))
asyncio.run(run(hub, "talk.prompt", answers=["Ada"]))
(resource,) = reader.get_metrics_data().resource_metrics
(scope,) = resource.scope_metrics
(metric,) = scope.metrics
(point,) = metric.data.data_points
print(json.dumps([scope.scope.name, metric.name, metric.unit, dict(point.attributes), point.count, list(point.explicit_bounds)]))
""",
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    scope, name, unit, attributes, count, bounds = json.loads(ran.stdout)
    assert (scope, name, unit, count) == ("midcall", "midcall.answer.duration", "s", 1)
    assert attributes == {"midcall.question.kind": "prompt", "midcall.question.outcome": "answered"}
    assert bounds[-1] == 7 * 24 * 3600


def test_a_plain_call_counts_nothing() -> None:
    import asyncio

    from cli_app import hub
    from midcall.testing import run

    before = keep().text()
    asyncio.run(run(hub, "files.find"))
    assert keep().text() == before
    asyncio.run(run(hub, "talk.prompt", answers=["Ada"]))
    assert keep().text() != before, "one that asks is counted"

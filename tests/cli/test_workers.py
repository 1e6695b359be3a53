"""Several workers: they share an address or have one each, come and go, and go on with each other's calls."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import postgres_server
from driving import LIMIT, until
from mcp_peers import FORMS, LATEST, HttpServer
from midcall import connect_hub
from midcall.items import Request
from peers import HERE, command, environment, free_port
from workers_chaos import TROUBLE, Fleet, chaos, is_open, post, tool
from workers_parent import Parent, serving

SEED = int(os.environ.get("CHAOS_SEED", "7"))


def gone(pid: int) -> bool:
    """Whether a process has ended, perhaps without anybody to read its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def reachable(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


# --- the parent -----------------------------------------------------------------------------


def test_all_workers_serve_on_one_address_and_say_in_the_log_which_they_are(tmp_path: Path) -> None:
    with serving(tmp_path, workers=3) as parent:
        served: set[int] = set()
        end = time.monotonic() + LIMIT
        while len(served) < 3 and time.monotonic() < end:
            served.add(parent.ask("pid"))
        assert served == set(parent.workers)
        for number in (1, 2, 3):
            assert f"worker {number}" in parent.log
        parent.process.send_signal(signal.SIGTERM)
        assert parent.ends() == 0
        assert not reachable(parent.port)
        assert all(gone(pid) for pid in served)


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path) as parent:
        before = parent.workers
        os.kill(before[0], signal.SIGKILL)
        parent.said("has ended by SIGKILL, and is started again")
        parent.until(lambda: len(parent.workers) == 2 and before[0] not in parent.workers)
        assert before[1] in parent.workers


def test_on_sighup_each_worker_is_replaced_and_nobody_is_turned_away(tmp_path: Path) -> None:
    async def run(parent: Parent, before: list[int]) -> list[int]:
        """Ask all the time, while the workers are replaced."""
        asked: list[int] = []
        waiting = asyncio.ensure_future(tool(parent.port, "work.slow", {"seconds": LIMIT}))
        place = before.index(await parent.runs_slow())
        parent.process.send_signal(signal.SIGHUP)
        while "new workers are ready" not in parent.log:
            asked.append(await tool(parent.port, "work.pid", {}))
            if len(set(asked).difference(before)) > place:
                parent.enough()  # its worker is asked to leave, or will be at once
            await asyncio.sleep(0.02)
        asked.append(await waiting)
        return asked

    with serving(tmp_path, "--grace", str(LIMIT)) as parent:
        before = parent.workers
        asked = asyncio.run(run(parent, before))
        after = parent.workers
        assert not {*before} & {*after}
        assert len(after) == 2
        assert asked[-1] in before, "what ran was finished"
        assert {*asked} <= {*before, *after}
        parent.until(lambda: all(gone(pid) for pid in before))


def test_new_workers_that_cannot_start_leave_the_old_ones_alone(tmp_path: Path) -> None:
    app = tmp_path / "fragile.py"
    app.write_text("from workers_app import hub\n")
    parent = Parent(tmp_path, "--cwd", str(tmp_path), target="fragile.py:hub")
    try:
        parent.said("2 workers are ready")
        before = set(parent.workers)
        app.write_text("raise RuntimeError('broken by this deploy')\n")
        parent.process.send_signal(signal.SIGHUP)
        parent.said("the old ones stay")
        assert "broken by this deploy" in parent.log
        assert set(parent.workers) == before
        assert parent.ask("pid") in before
    finally:
        parent.process.terminate()
        assert parent.ends() == 0


def test_workers_whose_parent_is_gone_end_by_themselves(tmp_path: Path) -> None:
    with serving(tmp_path) as parent:
        workers = parent.workers
        parent.process.kill()
        parent.ends()
        end = time.monotonic() + LIMIT
        while not all(gone(pid) for pid in workers):
            assert time.monotonic() < end, parent.log
            time.sleep(0.05)
        assert "The parent is gone" in parent.log


def test_pressed_twice_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    async def run(parent: Parent) -> None:
        calling = asyncio.ensure_future(tool(parent.port, "work.slow", {"seconds": 3 * LIMIT}))
        await parent.runs_slow()
        parent.process.send_signal(signal.SIGINT)
        await asyncio.to_thread(parent.said, "Stopping 2 workers")
        await asyncio.sleep(0.5)
        assert parent.process.poll() is None
        parent.process.send_signal(signal.SIGINT)
        with pytest.raises(TROUBLE):
            await calling

    with serving(tmp_path, "--grace", str(3 * LIMIT)) as parent:
        workers = parent.workers
        asyncio.run(run(parent))
        assert parent.ends() == 0
        assert all(gone(pid) for pid in workers)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["nothing_here:hub", "--workers", "2"], 2, "no module named 'nothing_here'"),
        (["workers_app:hub", "--workers", "2", "--stdio"], 2, "--workers is for HTTP"),
        (
            ["workers_app:hub", "--workers", "2", "--journal", "memory"],
            2,
            "needs a journal that all workers share",
        ),
        (["workers_app:hub", "--workers", "0"], 2, "is not a number from 1"),
        (["workers_app:hub", "--workers", "2", "--host", "0.0.0.0"], 2, "Refused to listen on 0.0.0.0"),
        (
            ["workers_app:hub", "--workers", "2", "--journal", "/proc/no/journal.db"],
            2,
            "midcall: --journal: there is no folder /proc/no",
        ),
        (["workers_app:hub", "--workers", "2", "--journal", "/proc/journal.db"], 1, "midcall: The journal "),
    ],
)
def test_what_cannot_be_served_is_said_once_and_clearly(options: list[str], code: int, says: str) -> None:
    command_line = command("serve", *options, "--port", str(free_port()))
    ran = subprocess.run(
        command_line, cwd=HERE, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.count(says) == 1, ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_server_that_is_told_to_stop_while_it_starts_ends_well(tmp_path: Path) -> None:
    """The signal comes just before the server listens for it itself."""
    (tmp_path / "hasty.py").write_text("""
import os, signal
from midcall import Hub

class Hasty(Hub):
    async def open(self):
        await super().open()
        os.kill(os.getpid(), signal.SIGTERM)

hub = Hasty()
""")
    ran = subprocess.run(
        command("serve", "hasty.py:hub", "--cwd", str(tmp_path), "--port", str(free_port()), "--journal", "memory"),
        env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr


def test_an_address_that_is_taken_is_said_clearly(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = subprocess.run(
            command("serve", "workers_app:hub", "--workers", "2", "--port", str(taken.getsockname()[1])),
            cwd=HERE, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    assert ran.returncode == 5
    assert "Cannot listen on 127.0.0.1" in ran.stderr
    assert "Traceback" not in ran.stderr


# --- one of several is stopped --------------------------------------------------------------


@contextmanager
def fleet_of_two(folder: Path, lease: float = LIMIT) -> Iterator[Fleet]:
    fleet = Fleet(folder, str(folder / "journal.db"), 2, lease=lease)
    try:
        for port in fleet.ports:
            fleet.start(port)
        asyncio.run(fleet.until_ready())
        yield fleet
    finally:
        fleet.close()
    assert "Traceback" not in fleet.log.read_text(), fleet.log.read_text()


def answered(params: dict[str, Any], outcome: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    responses = {key: {"action": "accept", "content": content} for key in outcome["inputRequests"]}
    return {**params, "requestState": outcome["requestState"], "inputResponses": responses}


async def until_told(port: int, request: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a request, which comes back for it if it is told to."""
    while True:
        result = (await post(port, request, None, LIMIT))["result"]
        if not is_open(result) or "inputRequests" in result:
            return dict(result)
        request = {k: v for k, v in request.items() if k != "inputResponses"}
        request["requestState"] = result["requestState"]


def effects(fleet: Fleet) -> list[str]:
    return [effect["step"] for effect in fleet.effects()]


def test_a_question_of_a_worker_that_was_stopped_is_answered_through_another(tmp_path: Path) -> None:
    params = {"name": "work.wizard", "arguments": {"run": "r"}}

    async def run(fleet: Fleet) -> None:
        first, second = fleet.ports
        asked = (await post(first, params, None, LIMIT))["result"]
        stop(fleet, first)
        asked = await until_told(second, answered(params, asked, {"text": "Ann"}))
        assert list(asked["inputRequests"]) == ["colour"]
        assert effects(fleet) == ["one", "two"]

    with fleet_of_two(tmp_path) as fleet:
        asyncio.run(run(fleet))


def stop(fleet: Fleet, port: int) -> None:
    """Tell a worker to stop; it ends well."""
    process = fleet._processes.pop(port)
    process.terminate()
    assert process.wait(LIMIT) == 0


@pytest.mark.parametrize(("name", "result", "done"), [
    ("thinking", "It is Ann", ["before", "after"]),
    ("working", "interrupted, Ann", ["begun"]),
])  # fmt: skip
def test_what_takes_longer_than_the_grace_is_taken_over_by_another_worker(
    tmp_path: Path, name: str, result: str, done: list[str]
) -> None:
    params = {"name": f"work.{name}", "arguments": {"run": "r", "seconds": LIMIT}}

    async def run(fleet: Fleet) -> None:
        first, second = fleet.ports
        asked = (await post(first, params, None, LIMIT))["result"]
        again = answered(params, asked, {"text": "Ann"})
        waiting = asyncio.ensure_future(post(first, again, None, LIMIT))
        while done[:1] != effects(fleet):
            await asyncio.sleep(0.02)
        joined = asyncio.ensure_future(until_told(second, again))
        await until(lambda: fleet.waits(second))  # for what the first one runs
        await asyncio.to_thread(stop, fleet, first)
        fleet.enough()
        told = (await waiting)["result"]
        assert told.keys() == {"resultType", "requestState", "_meta"}, "it is told to come back"
        outcome = await until_told(second, {**params, "requestState": told["requestState"]})
        assert outcome["content"][0]["text"] == result
        assert await joined == outcome
        assert effects(fleet) == done

    with fleet_of_two(tmp_path) as fleet:
        asyncio.run(run(fleet))


def test_a_parked_coroutine_does_not_go_on_if_another_worker_has_begun_a_step_since(tmp_path: Path) -> None:
    params = {"name": "work.working", "arguments": {"run": "r", "seconds": LIMIT}}

    async def run(fleet: Fleet) -> None:
        first, second = fleet.ports
        again = answered(params, (await post(first, params, None, LIMIT))["result"], {"text": "Ann"})
        running = asyncio.ensure_future(post(second, again, None, LIMIT))
        while effects(fleet) != ["begun"]:
            await asyncio.sleep(0.02)
        fleet._processes[second].kill()
        with pytest.raises(TROUBLE):
            await running
        outcome = await until_told(first, again)
        assert outcome["content"][0]["text"] == "interrupted, Ann"
        assert effects(fleet) == ["begun"]

    with fleet_of_two(tmp_path, lease=3.0) as fleet:
        asyncio.run(run(fleet))


def test_who_waits_at_a_worker_that_stops_for_what_another_one_runs_is_sent_there(tmp_path: Path) -> None:
    params = {"name": "work.thinking", "arguments": {"run": "r", "seconds": LIMIT}}

    async def run(fleet: Fleet) -> None:
        first, second = fleet.ports
        again = answered(params, (await post(first, params, None, LIMIT))["result"], {"text": "Ann"})
        running = asyncio.ensure_future(until_told(first, again))
        while effects(fleet) != ["before"]:
            await asyncio.sleep(0.02)
        waiting = asyncio.ensure_future(post(second, again, None, LIMIT))
        await until(lambda: fleet.waits(second))
        await asyncio.to_thread(stop, fleet, second)
        told = (await waiting)["result"]
        assert is_open(told)
        assert not running.done()
        fleet.enough()
        assert await until_told(first, {**params, "requestState": told["requestState"]}) == await running

    with fleet_of_two(tmp_path) as fleet:
        asyncio.run(run(fleet))


def test_a_legacy_session_may_be_used_through_any_worker(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        first, second = fleet.ports
        async with HttpServer(first).client(LATEST, FORMS) as client:
            here = int(await client.tool("work.pid"))
            client.port = second
            assert int(await client.tool("work.pid")) == here, "the session stays where it began"
            id = await client.start("tools/call", {"name": "work.wizard", "arguments": {"run": "r"}})
            for content in ({"text": "Ann"}, {"choice": "red"}, {"confirmed": True}):
                asked = await client.message("elicitation/create")
                client.port = first if client.port == second else second
                await client.answer(asked, {"action": "accept", "content": content})
            told = (await client.response(id))["result"]
            assert json.loads(told["content"][0]["text"])["answers"] == ["Ann", "red", True]

    with fleet_of_two(tmp_path) as fleet:
        asyncio.run(run(fleet))


def test_a_durable_call_on_a_websocket_goes_on_with_the_other_worker(tmp_path: Path) -> None:
    async def run(parent: Parent) -> Any:
        async with connect_hub(f"ws://127.0.0.1:{parent.port}/ws") as remote:
            killed: list[int] = []

            async def answer(request: Request) -> Any:
                if not killed:
                    killed.append(parent.workers[0])
                    for pid in parent.workers:  # all, as nobody knows which one has this connection
                        os.kill(pid, signal.SIGKILL)
                return {"Name?": "Ann", "Colour?": "red", "Sure?": True}[request.request_type.message]

            return await remote.call("work.wizard", {"run": "r"}, answer=answer, durable=True)

    with serving(tmp_path) as parent:
        result = asyncio.run(asyncio.wait_for(run(parent), LIMIT))
        assert result["answers"] == ["Ann", "red", True]
        steps = [json.loads(line)["step"] for line in parent.ledger.read_text().splitlines()]
        assert steps == ["one", "two", "three", "four"]


# --- chaos ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True], ids=["a-port-each", "one-port"])
def test_nothing_is_lost_or_done_twice_while_workers_come_and_go(tmp_path: Path, shared: bool) -> None:
    fleet = Fleet(tmp_path, str(tmp_path / "journal.db"), 4, lease=1.5, shared=shared)
    try:
        seen = asyncio.run(chaos(fleet, calls=60, seconds=8, seed=SEED))
    finally:
        fleet.close()
    assert seen["workers killed"] + seen["workers frozen"] >= 3, seen


def test_postgres_is_restarted_in_the_middle_of_it_all(tmp_path: Path) -> None:
    database = postgres_server.Server().start()

    def restart() -> None:
        database.halt("immediate")
        time.sleep(1)
        database.start()

    fleet = Fleet(tmp_path, database.dsn, 4, lease=1.5)
    try:
        asyncio.run(chaos(fleet, calls=60, seconds=8, seed=SEED, halfway=restart))
    finally:
        fleet.close()
        database.stop()

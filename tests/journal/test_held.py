"""A call that asks while another branch of it is at work: whoever is answered, and wherever, nothing is done twice."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from operating import Server, accept, own_database, text_of, until

DONE = {name: f"{name} done" for name in ("tool", "model", "function")}


@pytest.fixture(params=["sqlite", "postgres"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Two workers on one journal, and the file that keeps their tools at work."""
    (tmp_path / "hold").touch()
    more = {"target": "held_app:hub", "HOLD": str(tmp_path / "hold")}
    if request.param == "sqlite":
        with Server(tmp_path, **more) as one, Server(tmp_path, **more) as other:
            yield one, other
        return
    with own_database() as url:
        options = ("--journal", url)
        with (
            Server(tmp_path, *options, journal=False, **more) as one,
            Server(tmp_path, *options, journal=False, **more) as other,
        ):
            yield one, other


def begun(server: Server) -> str:
    """The address of a run that asks, and is at work in three other branches."""
    told = server.post("/fsm/busy/run", {}, prefer="wait=30").json
    assert [one["key"] for one in told["questions"]] == ["person"]
    until(lambda: sorted(server.effects()) == sorted(DONE))
    return str(told["run"])


def values(ended: Any) -> dict[str, Any]:
    results = ended["event"]["results"]
    assert {one["status"] for one in results.values()} == {"success"}
    found = {name: one["value"] for name, one in results.items()}
    return {**found, "function": found["function"]["said"]}


def ended(server: Server, run: str) -> Any:
    return until(lambda: (told := server.get(run)).status == 200 and told.json)


def test_an_answer_at_another_worker_goes_to_the_one_that_is_at_work(
    servers: tuple[Server, Server],
) -> None:
    one, other = servers
    run = begun(one)
    assert [one["key"] for one in other.get(run).json["questions"]] == ["person"]
    taken = other.post(run, {"answers": {"person": "Ada"}}, prefer="wait=0")
    assert taken.status == 202
    assert other.post(run, {"answers": {"person": "Eve"}}).status in (409, 422)
    (one.ledger.parent / "hold").unlink()
    assert values(ended(other, run)) == {"person": "Ada", **DONE}
    assert sorted(one.effects()) == sorted(DONE)


def test_when_nothing_is_at_work_any_more_anybody_may_go_on(servers: tuple[Server, Server]) -> None:
    one, other = servers
    run = begun(one)
    (one.ledger.parent / "hold").unlink()
    call = run.rpartition("/")[2]
    until(lambda: one.get(f"/calls/{call}").json["worker"] is None)
    one.kill()
    assert other.post(run, {"answers": {"person": "Ada"}}).status == 200
    assert values(ended(other, run)) == {"person": "Ada", **DONE}
    assert sorted(other.effects()) == sorted(DONE)


def test_if_the_worker_that_was_at_work_is_gone_the_call_goes_on_elsewhere(
    servers: tuple[Server, Server],
) -> None:
    one, other = servers
    run = begun(one)
    one.kill()
    (one.ledger.parent / "hold").unlink()
    assert other.post(run, {"answers": {"person": "Ada"}}).status in (200, 202)
    results = ended(other, run)["event"]["results"]
    assert results["person"]["value"] == "Ada"
    assert "interrupted" in results["tool"]["error"]
    assert other.effects().count("tool") == 1


def test_a_tool_that_asks_and_works_at_once_is_answered_at_another_worker(
    servers: tuple[Server, Server],
) -> None:
    one, other = servers
    asked = one.call("work.both")
    until(lambda: one.effects() == ["step"])
    with ThreadPoolExecutor() as threads:
        told = threads.submit(other.call, "work.both", state=asked, answers={"name": accept(text="Ada")})
        (one.ledger.parent / "hold").unlink()
        assert text_of(told.result()) == "Ada: step done"
    assert one.effects() == ["step"]


def test_a_time_limit_around_a_question_holds_after_a_restart(servers: tuple[Server, Server]) -> None:
    one, other = servers
    # A busy machine may take longer than that until it asks: then this is another run.
    told = until(
        lambda: (told := one.post("/fsm/late/run", {}, prefer="wait=30").json).get("questions") and told
    )
    assert [one["key"] for one in told["questions"]] == ["name"]
    one.kill()
    assert ended(other, told["run"])["event"]["said"] == "nobody"

"""Machines over HTTP: what is listed, drawn, run and refused."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from driving import LIMIT
from mcp_peers import HttpServer, http_server
from operating import ADA, ADMIN, KEYS, Answer, Server, own_database, until


class Answered(NamedTuple):
    status: int
    text: str

    @property
    def value(self) -> Any:
        return json.loads(self.text)


@pytest.fixture(scope="module")
def machines() -> Iterator[HttpServer]:
    with http_server("machines_app:hub") as serving:
        yield serving


def ask(server: HttpServer, path: str, given: bytes | None = None) -> Answered:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", given, headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            return Answered(response.status, response.read().decode())
    except urllib.error.HTTPError as error:
        return Answered(error.code, error.read().decode())


def run(server: HttpServer, name: str, given: Any) -> Answered:
    return ask(server, f"/fsm/{name}/run", json.dumps(given).encode())


def test_machines_are_listed_and_shown(machines: HttpServer) -> None:
    listed = ask(machines, "/fsm").value["machines"]
    assert [one["id"] for one in listed] == ["payment", "approval", "slow"]
    assert ask(machines, "/fsm/approval").value["transitions"][0]["id"] == ["start", "policy"]


def test_machines_are_drawn(machines: HttpServer) -> None:
    assert ask(machines, "/fsm/approval/graph.dot").text.startswith('digraph "approval"')
    assert ask(machines, "/fsm/approval/graph.mmd").text.startswith("stateDiagram-v2")
    assert ask(machines, "/fsm/approval/graph.png").status == 404


def test_a_machine_is_run_by_one_request(machines: HttpServer) -> None:
    ran = run(machines, "approval", {"item": "tea", "amount": 3})
    assert ran.status == 200
    assert ran.value["event"] == {"id": ["payment", "end"], "receipt": "tea: 3.00 paid"}
    assert [one["to"] for one in ran.value["trail"]] == ["policy", "payment", "end"]


def test_what_does_not_fit_is_refused_with_all_faults(machines: HttpServer) -> None:
    refused = run(machines, "approval", {"amount": "x"})
    assert refused.status == 400
    assert refused.value["error"] == "Input validation failed"
    assert len(refused.value["details"]) == 2
    for nonsense in (b"{", b"[" * 100_000, b"[]", b"7"):
        assert ask(machines, "/fsm/approval/run", nonsense).status == 400


@pytest.mark.parametrize(("path", "given"), [("", None), ("/run", b"{}"), ("/graph.dot", None)])
def test_what_is_not_there_is_not_found(machines: HttpServer, path: str, given: bytes | None) -> None:
    answered = ask(machines, f"/fsm/x{path}", given)
    assert answered.status == 404
    assert answered.value == {"error": "FSM not found: x"}


def test_a_run_that_takes_too_long_is_told_so(machines: HttpServer) -> None:
    late = run(machines, "slow", {})
    assert late.status == 504
    assert late.value["event"]["reason"] == "timeout"


# --- a run that comes to a person -------------------------------------------------------------------

CHAIR = {"item": "a chair", "amount": 120}
PAID = {"id": ["payment", "end"], "receipt": "a chair: 120.00 paid"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks who calls."""
    with Server(tmp_path_factory.mktemp("fsm"), target="web_machines:hub", MIDCALL_TOKENS=KEYS) as serving:
        yield serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, target="web_machines:hub") as serving:
        yield serving


def started(server: Server, given: Any = CHAIR, **headers: str) -> Any:
    """A run of `approval` that has come to a person."""
    asked = server.post("/fsm/approval/run", given, **headers)
    assert (asked.status, asked.json["status"]) == (202, "waiting")
    assert asked.headers["location"] == asked.json["run"]
    return asked.json


def answer(server: Server, run: Any, token: str | None = None, **answers: Any) -> Answer:
    return server.post(run["run"], {"answers": answers}, token)


def test_a_run_that_comes_to_a_person_is_answered_at_its_address(server: Server) -> None:
    run = started(server)
    (question,) = run["questions"]
    assert (question["key"], question["kind"]) == ("boss", "select")
    assert question["message"] == "May they buy a chair for 120?"
    again = server.get(run["run"])
    assert (again.status, again.json) == (202, run)
    asked = answer(server, run, boss="end")
    assert (asked.status, asked.json["questions"][0]["key"]) == (202, "boss-end")
    ended = answer(server, run, **{"boss-end": {"note": "too dear"}})
    assert ended.status == 200
    assert ended.json["event"] == {"id": ["boss", "end"], "note": "too dear"}
    assert [one["to"] for one in ended.json["trail"]] == ["policy", "boss", "end"]
    assert server.get(run["run"]).json == ended.json


def test_an_answer_that_is_not_for_it_changes_nothing(server: Server) -> None:
    run = started(server)
    for answers, status in (({"boss": "nowhere"}, 422), ({"chair": "end"}, 422), ({}, 422)):
        refused = answer(server, run, **answers)
        assert (refused.status, isinstance(refused.json["error"], str)) == (status, True)
    for body in (b"{", {"answers": []}, {"reply": {}}, b"[" * 100_000):
        assert server.post(run["run"], body).status == 400
    assert server.get(run["run"]).json == run
    assert answer(server, run, boss="approved").json["event"] == PAID
    assert answer(server, run, boss="end").status == 409
    assert server.get(run["run"]).json["event"] == PAID


def test_a_run_waits_through_a_kill_and_is_answered_after_it(server: Server) -> None:
    run = started(server)
    server.kill()
    server.start()
    assert server.get(run["run"]).json == run
    assert answer(server, run, boss="approved").json["event"] == PAID


CHANGING = """
import os
from midcall import Hub
from midcall.fsm import MachineBuilder

built = MachineBuilder("m").ask("boss", "Buy it?").to("start", "boss").to("boss", "end")
if "CHANGED" in os.environ:
    built = built.ask("owner", "Really?").to("boss", "owner").to("owner", "end")
hub = Hub().register_machine(built)
"""


def test_who_comes_back_to_a_run_of_another_definition_is_told_what_has_changed(tmp_path: Path) -> None:
    (tmp_path / "changing.py").write_text(CHANGING)
    with Server(tmp_path, target=f"{tmp_path / 'changing.py'}:hub") as server:
        run = server.post("/fsm/m/run", {}).json
        server.stop()
        server.start(CHANGED="1")
        told = "its code has changed since it asked: expected machine m as it was, but got one where state 'owner' is new"
        for answered in (answer(server, run, boss=True), server.get(run["run"])):
            assert answered.status == 409
            assert told in answered.json["error"]
        server.stop()
        server.start(CHANGED="1")
        still = server.get(run["run"])
        assert (still.status, still.json["status"]) == (409, "diverged")
        assert told in still.json["error"]
        server.stop()
        server.start()
        assert server.get(run["run"]).json["event"] == {"id": ["boss", "end"], "confirmed": True}


def test_a_run_is_answered_at_another_worker(tmp_path: Path) -> None:
    with own_database() as journal:
        places = [tmp_path / name for name in ("one", "two")]
        for place in places:
            place.mkdir()
        first, second = (
            Server(place, "--journal", journal, target="web_machines:hub", journal=False) for place in places
        )
        with first, second:
            run = started(first)
            assert answer(second, run, boss="approved").json["event"] == PAID
            assert first.get(run["run"]).json["event"] == PAID


def test_only_who_has_started_a_run_finds_it(guarded: Server) -> None:
    asked = guarded.post("/fsm/approval/run", CHAIR, ADA)
    run = asked.json
    assert asked.status == 202
    for token, status in ((None, 401), (ADMIN, 404)):
        assert guarded.get(run["run"], token).status == status
        assert answer(guarded, run, token, boss="approved").status == status
    other = run["run"].replace("approval", "payment")
    assert guarded.get(other, ADA).json == {"error": f"Unknown call: {run['call']}"}
    assert guarded.get(f"/fsm/approval/runs/{'x' * 5000}", ADA).status == 400
    assert answer(guarded, run, ADA, boss="approved").json["event"] == PAID


def test_a_request_that_is_repeated_with_its_key_runs_nothing_twice(server: Server) -> None:
    key = {"idempotency_key": "order-7"}
    run = started(server, **key)
    assert started(server, **key) == run
    other = server.post("/fsm/approval/run", {"item": "a table", "amount": 120}, **key)
    assert (other.status, other.json["error"]) == (400, "This idempotency key was used for another request")
    answer(server, run, boss="approved")
    assert server.post("/fsm/approval/run", CHAIR, **key).json["event"] == PAID
    assert server.post("/fsm/approval/run", CHAIR, idempotency_key="k" * 5000).status == 400


def test_whoever_does_not_wait_is_told_where_it_runs(server: Server) -> None:
    given = {"left": 2, "stop": 1, "gate": "later"}
    begun = server.post("/fsm/walk/run", given, prefer="wait=0")
    assert (begun.status, begun.json["status"], begun.json["questions"]) == (202, "running", [])
    at_once = server.post("/fsm/payment/run", CHAIR, prefer="respond-async")
    assert (at_once.status, at_once.json.keys()) == (202, begun.json.keys())
    assert server.get(at_once.json["run"]).json["event"]["receipt"] == PAID["receipt"]
    server.call("gates.open", name="later")
    ended = server.get(begun.json["run"], prefer="wait=500")
    assert ended.json["event"]["left"] == 0
    assert len(ended.json["trail"]) == 6


def test_who_waits_while_a_server_stops_is_told_where_the_run_goes_on(server: Server) -> None:
    given = {"left": 2, "stop": 1, "gate": "stop"}
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(server.post, "/fsm/walk/run", given)
        until(lambda: server.get("/calls?name=machines.walk").json["calls"])
        server.stop()
        told = waiting.result()
    assert (told.status, told.json["status"]) == (202, "running")
    server.start()
    server.call("gates.open", name="stop")
    assert server.get(told.json["run"]).json["event"]["left"] == 0


def test_a_run_that_was_aborted_or_forked_is_told_as_that(server: Server) -> None:
    run = started(server)
    forked = server.post(f"/calls/{run['call']}/fork", {}).json["id"]
    server.post(f"/calls/{run['call']}/abort", {"reason": "Out of chairs"})
    gone = server.get(run["run"])
    assert (gone.status, gone.json["error"], gone.json["status"]) == (410, "Out of chairs", "aborted")
    assert answer(server, run, boss="approved").status == 409
    fork = {"run": f"/fsm/approval/runs/{forked}"}
    assert answer(server, fork, boss="approved").json["event"] == PAID


def test_runs_are_listed_with_those_that_have_ended(server: Server) -> None:
    run = started(server)
    server.post("/fsm/payment/run", CHAIR)
    every = "status=running,waiting,completed"
    assert [one["method"] for one in server.get(f"/calls?{every}").json["calls"]] == [
        "machines.payment",
        "machines.approval",
    ]
    (found,) = server.get(f"/calls?name=machines.approval&{every}").json["calls"]
    assert (found["id"], found["status"]) == (run["call"], "waiting")
    assert server.get("/calls?name=machines.payment").json["calls"] == []
    assert server.get("/calls?status=sleeping").status == 400


# --- what is told of it -----------------------------------------------------------------------------


def test_openapi_has_operations_for_each_machine(machines: HttpServer) -> None:
    document = ask(machines, "/fsm/openapi.json").value
    assert document["openapi"] == "3.1.0"
    operation = document["paths"]["/fsm/approval/run"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert resolved(document, body)["required"] == ["item", "amount"]
    assert {"200", "202", "400", "404", "504"} <= operation["responses"].keys()
    going_on = document["paths"]["/fsm/approval/runs/{call}"]
    assert {"get", "post", "parameters"} == going_on.keys()
    ids = [
        one["operationId"]
        for path in document["paths"].values()
        for one in path.values()
        if isinstance(one, dict)
    ]
    assert len(ids) == len(set(ids)) == 9


def test_references_of_the_openapi_document_lead_somewhere(guarded: Server) -> None:
    document = guarded.get("/fsm/openapi.json", ADA).json
    references = re.findall(r'"\$ref": "([^"]+)"', json.dumps(document))
    assert any("$defs" in one for one in references)
    for one in references:
        resolved(document, {"$ref": one})


def resolved(document: Any, schema: Any) -> Any:
    found = document
    for part in schema["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_machines_of_nested_hubs_with_one_name_are_told_apart(guarded: Server) -> None:
    listed = {one["id"]: one["method"] for one in guarded.get("/fsm", ADA).json["machines"]}
    assert listed["tree"] == "machines.tree"
    assert listed["inner.machines.tree"] == "inner.machines.tree"
    given = {"text": "root", "next": {"text": "leaf"}}
    asked = guarded.post("/fsm/inner.machines.tree/run", given, ADA).json
    assert asked["run"] == f"/fsm/inner.machines.tree/runs/{asked['call']}"
    assert answer(guarded, asked, ADA, **{"grow-end": {"text": "more"}}).json["event"]["text"] == "more"


def test_a_drawing_cannot_do_anything_in_a_browser(guarded: Server) -> None:
    for form in ("dot", "mmd"):
        drawn = guarded.get(f"/fsm/hostile/graph.{form}", ADA)
        assert drawn.status == 200
        assert "sandbox" in drawn.headers["content-security-policy"]
        assert drawn.headers["x-content-type-options"] == "nosniff"

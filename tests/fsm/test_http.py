"""Machines over HTTP: what is listed, drawn, run and refused."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from driving import LIMIT
from mcp_peers import HttpServer, http_server


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


def test_nobody_can_be_asked_by_one_request(machines: HttpServer) -> None:
    event = run(machines, "approval", {"item": "a chair", "amount": 120}).value["event"]
    assert event["bail_out"]
    assert "cannot be asked" in event["message"]


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


def test_openapi_has_an_operation_for_each_machine(machines: HttpServer) -> None:
    document = ask(machines, "/fsm/openapi.json").value
    assert document["openapi"] == "3.1.0"
    operation = document["paths"]["/fsm/approval/run"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["item", "amount"]

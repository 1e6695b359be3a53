"""`midcall fsm check`: what is wrong with a definition in a file, and with all machines of a hub."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from midcall.cli import main

HUB = """
from midcall import Hub
from midcall.fsm import MachineBuilder

def asking(name):
    return MachineBuilder(name).ask("s").to("start", "s").to("s", "end")

hub = Hub().register_machine(asking("one")).register_machine(asking("two"))
"""


def checked(path: Path, *states: Any) -> int:
    """The exit code of `midcall fsm check` for a machine that has these states, one after the other."""
    names = ["start", *(state["id"] for state in states), "end"]
    ways = [{"id": list(pair)} for pair in itertools.pairwise(names)]
    file = path / "machine.json"
    file.write_text(json.dumps({"id": "m", "states": states, "transitions": ways}))
    return main(["fsm", "check", str(file)])


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"action": "modle"}, "states[0].action: unknown action 'modle': did you mean 'model'?"),
        ({"action": "method"}, "states[0].config: missing key 'method'"),
        ({"action": "model", "config": {"modell": "x"}}, "states[0].config: unknown key 'modell': did you mean 'model'?"),
        ({"action": "tools", "config": {"timeout": "x"}}, "states[0].config.timeout: Expected `float`, got `str`"),
        ({"action": "ask", "config": {"failure_to": "ned"}}, "states[0].config.failure_to: no transition leads to 'ned': did you mean 'end'?"),
        ({"action": "parallel", "config": {"branches": [{"id": "a", "action": "aks"}]}}, "states[0].config.branches[0].action: unknown action 'aks': did you mean 'ask'?"),
        ({"action": "parallel", "config": {"branches": []}}, "states[0].config.branches: there is none"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_told_with_its_place(
    state: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, {"id": "s", **state}) == 1
    assert capsys.readouterr().err.startswith(f"m: {told}")


def test_a_file_without_a_fault_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = {"id": "s", "action": "method", "config": {"method": "of.a-hub"}}
    branches = [{"id": "a", "action": "function", "config": {"function": "f"}}]
    assert checked(tmp_path, method, {"id": "p", "action": "parallel", "config": {"branches": branches}}) == 0
    assert capsys.readouterr().out == "m: 2 states, 3 transitions, no fault\n"


def test_all_machines_of_a_hub_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_machines.py").write_text(HUB)
    monkeypatch.chdir(tmp_path)
    assert main(["fsm", "check", "two_machines.py:hub"]) == 0
    assert capsys.readouterr().out == (
        "one: 1 states, 2 transitions, no fault\ntwo: 1 states, 2 transitions, no fault\n"
    )

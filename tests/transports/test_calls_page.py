"""What `/calls` shows to whom: a caller's own calls, what others' calls ask of it, and all to an administrator."""

import json
from pathlib import Path
from typing import Any

import pytest

from operating import Server
from people_app import CALLER, KEYS, OPS, OTHER, ROOT

ENDED = "completed,failed,aborted,expired,poisoned"


def guarded(folder: Path, target: str = "people_app:hub") -> Server:
    return Server(folder, target=target, MIDCALL_TOKENS=KEYS)


def calls(server: Server, token: str | None = None, query: str = "") -> list[Any]:
    listed = server.get(f"/calls{query}", token)
    assert listed.status == 200, listed.text
    found: list[Any] = listed.json["calls"]
    return found


def methods(server: Server, token: str, query: str = "") -> list[str]:
    return [call["method"] for call in calls(server, token, query)]


def test_a_caller_chooses_between_its_own_calls_and_what_it_is_asked(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.deploy", CALLER)
        server.call("people.own", OPS)
        assert sorted(methods(server, OPS)) == ["people.deploy", "people.own"]
        assert methods(server, OPS, "?which=mine") == ["people.own"]
        assert methods(server, OPS, "?which=asked") == ["people.deploy"]
        assert methods(server, OPS, "?name=people.own") == ["people.own"]
        assert methods(server, OPS, "?status=running") == []
        (asked,) = calls(server, OPS, "?which=asked")
        assert (asked["caller"], asked["own"]) == ("ada", False)
        (question,) = asked["questions"]
        assert (question["to"], question["message"]) == ("scope:ops", "Deploy 1.2?")
        (mine,) = calls(server, CALLER)
        assert mine["questions"][0]["to"] == "scope:ops"
        assert "link" not in mine["questions"][0]  # it is not for the caller
        assert methods(server, OTHER) == []


def test_what_is_asked_of_somebody_is_all_that_they_see_of_anothers_call(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.mixed", CALLER)
        (call,) = calls(server, OPS, "?which=asked")
        assert [one["key"] for one in call["questions"]] == ["really"]
        assert "conversation" not in call
        path = f"/calls/{call['id']}"
        assert server.get(path, OPS).status == 404
        assert server.post(f"{path}/abort", {}, OPS).status == 404
        assert server.post(f"{path}/fork", {"at": 0}, OPS).status == 404
        assert server.post(f"{path}/answers", {"answers": {"why": "me"}}, OPS).status == 422
        assert server.post(f"{path}/answers", {"answers": {"really": True}}, OTHER).status == 404
        assert server.post(f"{path}/answers", {"answers": {"really": True}}, OPS).status == 200


def test_an_administrator_sees_answers_and_ends_the_calls_of_everybody(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.own", CALLER)
        server.call("people.deploy", CALLER)
        listed = server.get("/calls?which=all", ROOT).json
        assert listed["admin"] is True
        assert {call["caller"] for call in listed["calls"]} == {"ada"}
        by_method = {call["method"]: call for call in listed["calls"]}
        assert by_method["people.own"]["questions"][0]["message"] == "Your name?"
        assert methods(server, ROOT) == []  # none of them is its own
        own, deploy = (by_method[name]["id"] for name in ("people.own", "people.deploy"))
        assert server.get(f"/calls/{own}", ROOT).json["entries"][0]["type"] == "step"
        assert server.post(f"/calls/{own}/answers", {"answers": {"name": "Root"}}, ROOT).status == 200
        assert server.post(f"/calls/{deploy}/abort", {"reason": "not today"}, ROOT).status == 200
        ended = {call["id"]: call["status"] for call in calls(server, ROOT, f"?which=all&status={ENDED}")}
        assert ended == {own: "completed", deploy: "aborted"}


def test_what_somebody_else_has_allowed_is_not_allowed_to_a_fork_of_the_caller(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.deploy", CALLER)
        (call,) = calls(server, CALLER)
        path = f"/calls/{call['id']}"
        assert server.post(f"{path}/answers", {"answers": {"sure": True}}, OPS).status == 200
        assert server.effects() == ["build", "deploy True"]
        for at in (2, 3, None):
            forked = server.post(f"{path}/fork", {"at": at}, CALLER).json
            assert [one["to"] for one in forked["questions"]] == ["scope:ops"], at
            refused = server.post(f"/calls/{forked['id']}/answers", {"answers": {"sure": True}}, CALLER)
            assert refused.status == 422
        assert server.effects() == ["build", "deploy True"]
        assert server.post(f"{path}/fork", {"at": 2}, ROOT).json["status"] == "completed"
        assert server.effects() == ["build", "deploy True", "deploy True"]


def test_others_are_refused_the_calls_of_everybody(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.own", CALLER)
        refused = server.get("/calls?which=all", OTHER)
        assert (refused.status, refused.error) == (403, "insufficient_scope")
        assert server.get("/calls", OTHER).json == {"calls": [], "next": None, "admin": False}
        assert server.get("/calls").status == 401
    with Server(
        tmp_path, target="people_app:hub"
    ) as open_to_all:  # callers without names are no administrators
        assert open_to_all.get("/calls?which=all").status == 403
        assert calls(open_to_all) == []  # what ada has called is not for nobody


@pytest.mark.parametrize(
    "query", ["which=theirs", "status=asleep", "after=%00", "which=all&which=mine&after=x"]
)
def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path, query: str) -> None:
    with guarded(tmp_path) as server:
        assert server.get(f"/calls?{query}", ROOT).status == 400


def test_the_history_is_told_with_outcomes_and_in_pages(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.own", CALLER)
        (waiting,) = calls(server, CALLER)
        assert "ended" not in waiting
        server.post(f"/calls/{waiting['id']}/answers", {"answers": {"name": "Ada"}}, CALLER)
        (ended,) = calls(server, CALLER, f"?status={ENDED}")
        assert ended["status"] == "completed"
        assert ended["ended"] <= ended["age"]
        assert calls(server, OTHER, f"?status={ENDED}") == []
        shown = server.get(f"/calls/{ended['id']}", CALLER).json
        assert [entry["type"] for entry in shown["entries"]] == ["step", "question", "step"]
        assert shown["entries"][1]["state"] == "answered"
        assert "Hello Ada" in str(shown["outcome"])


def test_more_calls_than_fit_on_a_page_come_page_by_page(tmp_path: Path) -> None:
    with Server(tmp_path, target="few_calls_app:hub", MIDCALL_TOKENS=KEYS) as server:
        for _ in range(5):
            server.call("people.own", CALLER)
            server.call("people.deploy", CALLER)
            server.call("people.deploy", CALLER, to="eve")
        server.call("people.own", OTHER)
        assert page_by_page(server, CALLER, "mine") == 15
        assert page_by_page(server, OPS, "asked") == page_by_page(server, OTHER, "asked") == 5


def test_older_questions_of_others_are_on_later_pages_without_a_filter_too(tmp_path: Path) -> None:
    with Server(tmp_path, target="few_calls_app:hub", MIDCALL_TOKENS=KEYS) as server:
        for _ in range(5):
            server.call("people.deploy", CALLER)
        assert page_by_page(server, OPS) == 5
        for _ in range(3):
            server.call("people.own", OPS)
        assert page_by_page(server, OPS) == 8
        for _ in range(4):
            server.call("people.own", OPS)
        assert page_by_page(server, OPS) == 12
        for after in ("1", "|x", "1 a|1 a|1 a"):
            assert server.get(f"/calls?after={after.replace(' ', '%20')}", OPS).status == 400


def page_by_page(server: Server, token: str, which: str = "") -> int:
    """How many calls there are on all pages."""
    seen = list[str]()
    wanted = f"which={which}&" if which else ""
    after = ""
    while True:
        page = server.get(f"/calls?{wanted}{after}", token).json
        seen += [call["id"] for call in page["calls"]]
        if page["next"] is None:
            assert len(seen) == len(set(seen))
            return len(seen)
        after = f"after={page['next'].replace(' ', '%20')}"


def test_a_call_of_a_chat_names_its_conversation(tmp_path: Path) -> None:
    with guarded(tmp_path, "people_app:talking") as server:
        said = server.post("/chat", {"message": "own"}, CALLER)
        assert said.status == 200, said.text
        (call,) = calls(server, CALLER)
        assert call["conversation"] == json.loads(said.text.splitlines()[0])["event"]["conversationId"]
        (seen,) = calls(server, ROOT, "?which=all")
        assert "conversation" not in seen  # it would not find it

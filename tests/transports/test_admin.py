"""What an administrator does with calls over HTTP: real servers, in processes of their own."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_socket

from driving import LIMIT, drive
from midcall import Hub, connect_hub
from midcall.items import Data, Done, Error, Item, Request, RequestCancelled
from midcall.transports.admin import is_local
from midcall.transports.auth import StaticKeys
from operate_app import Shop
from operating import ADA, ADMIN, EVE, KEYS, Server, accept, midcall, own_database, text_of, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, "--admin", "--log-level", "info") as serving:
        yield serving


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, MIDCALL_TOKENS=KEYS) as serving:
        yield serving


def answer(server: Server, call: Any, **answers: Any) -> Any:
    return server.post(f"/admin/calls/{call['id']}/answers", {"answers": answers})


# --- who may come in ----------------------------------------------------------------------------


def test_only_the_scope_opens_the_pages_of_a_server_with_keys(guarded: Server) -> None:
    for path in ("/admin/calls", "/admin/calls/x", "/admin/export", "/admin/nothing"):
        nobody = guarded.get(path)
        assert (nobody.status, nobody.error) == (401, "unauthorized")
        assert nobody.headers["www-authenticate"].startswith("Bearer")
        wrong = guarded.get(path, "wrong-0123456789abcdef")
        assert (wrong.status, wrong.error) == (401, "unauthorized")
        ada = guarded.get(path, ADA)
        assert (ada.status, ada.error) == (403, "insufficient_scope")
        assert 'scope="midcall:admin"' in ada.headers["www-authenticate"]
    assert guarded.get("/admin/calls", ADMIN).json == {"calls": [], "next": None}
    assert guarded.get("/admin/nothing", ADMIN).status == 404
    with pytest.raises(InvalidStatus), open_socket(f"ws://127.0.0.1:{guarded.port}/admin/calls"):
        pass


def test_without_keys_there_is_nothing_to_be_found(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        assert server.get("/admin/calls").status == 404
        assert server.get("/metrics").status == 404


def test_without_keys_programs_of_this_machine_come_in_if_that_is_said(server: Server) -> None:
    assert server.get("/admin/calls").status == 200
    for headers in (
        {"x_forwarded_for": "203.0.113.7"},
        {"forwarded": "for=203.0.113.7"},
        {"via": "1.1 proxy"},
    ):
        by_proxy = server.get("/admin/calls", **headers)
        assert (by_proxy.status, by_proxy.error) == (404, "not_found")
    assert server.get("/admin/calls", host="tools.example.com").status == 403
    assert server.get("/admin/calls", origin="https://evil.example.com").status == 403


@pytest.mark.parametrize(
    ("client", "server", "headers", "local"),
    [
        ("127.0.0.1", "127.0.0.1", [(b"host", b"localhost:8000")], True),
        ("::1", "::1", [(b"host", b"[::1]:8000"), (b"origin", b"http://localhost:8000")], True),
        ("127.0.0.1", "127.0.0.1", [(b"host", b"tools.example.com")], False),
        ("127.0.0.1", "127.0.0.1", [(b"host", b"localhost"), (b"origin", b"https://app.example.com")], False),
        ("127.0.0.1", "127.0.0.1", [(b"host", b"localhost"), (b"origin", b"null")], False),
        ("10.0.0.7", "127.0.0.1", [(b"host", b"localhost")], False),
        ("127.0.0.1", "10.0.0.1", [(b"host", b"localhost")], False),
        (None, "127.0.0.1", [(b"host", b"localhost")], False),
    ],
)
def test_a_request_is_local_only_if_it_cannot_be_anything_else(
    client: str | None, server: str, headers: Any, local: bool
) -> None:
    scope = {"client": None if client is None else (client, 5), "server": (server, 8000), "headers": headers}
    assert is_local(scope) is local


def test_an_open_door_on_a_public_address_is_refused() -> None:
    done = midcall("serve", "operate_app:hub", "--host", "0.0.0.0", "--no-auth", "--allow-public", "--admin")
    assert done.returncode == 2
    assert "--admin without keys is for a loopback address" in done.stderr


# --- looking ------------------------------------------------------------------------------------


def test_calls_are_listed_by_status_method_and_caller_page_by_page(guarded: Server) -> None:
    for number in range(5):
        guarded.call("shop.order", ADA, item=f"item {number}")
    guarded.call("shop.survey", ADMIN)
    asked = {"status": "waiting", "kept": True}
    first = guarded.get("/admin/calls?limit=4", ADMIN).json
    second = guarded.get(f"/admin/calls?limit=4&after={first['next'].replace(' ', '%20')}", ADMIN).json
    assert [call["method"] for call in first["calls"]] == ["shop.survey", *["shop.order"] * 3]
    assert (len(second["calls"]), second["next"]) == (2, None)
    assert all(asked.items() <= call.items() for call in first["calls"])
    assert len({call["id"] for call in first["calls"] + second["calls"]}) == 6
    of_ada = guarded.get("/admin/calls?principal=ada", ADMIN).json["calls"]
    assert {call["principal"] for call in of_ada} == {"ada"}
    assert len(of_ada) == 5
    assert len(guarded.get("/admin/calls?name=shop.survey", ADMIN).json["calls"]) == 1
    assert guarded.get("/admin/calls?status=failed,aborted", ADMIN).json["calls"] == []
    for wrong in ("status=sleeping", "limit=many", "limit=-1", "after=nowhere"):
        refused = guarded.get(f"/admin/calls?{wrong}", ADMIN)
        code = "bad_page" if wrong.startswith("after") else "bad_request"
        assert (refused.status, refused.error) == (400, code)


def test_a_call_is_shown_with_its_questions_and_what_it_has_done_but_not_with_answers(server: Server) -> None:
    asked = server.call("shop.order", item="tea")
    server.call("shop.order", state=asked, answers={"address": accept(text="a secret place")}, item="tea")
    call = server.get(f"/admin/calls/{server.only()['id']}").json
    assert (call["status"], call["segment"], call["arguments"]) == ("waiting", 2, {"item": "tea"})
    (question,) = call["questions"]
    assert (question["kind"], question["message"]) == ("confirm", "Charge for tea?")
    assert question["question"] == {"Confirm": {"message": "Charge for tea?"}}
    assert [(e["type"], e["what"], e["state"]) for e in call["entries"]] == [
        ("step", "effect", "done"),
        ("question", "prompt 'Deliver to?'", "answered"),
        ("step", "effect", "done"),
        ("question", "confirm 'Charge for tea?'", "open"),
    ]
    assert "secret" not in json.dumps(call)
    shown = server.get(f"/admin/calls/{call['id']}?values=true").json
    assert [e.get("value") for e in shown["entries"]] == [
        "did reserve tea", {"Text": "a secret place"}, "did pack tea", None,
    ]  # fmt: skip


def test_what_is_not_known_is_told_so(server: Server) -> None:
    for verb, path in (
        ("GET", "/admin/calls/none"),
        ("POST", "/admin/calls/none/answers"),
        ("POST", "/admin/calls/none/abort"),
        ("POST", "/admin/calls/none/fork"),
        ("GET", "/admin/calls/none/export"),
    ):
        body = None if verb == "GET" else {"answers": {"a": 1}} if "answers" in path else {}
        missing = server.send(verb, path, body)
        assert (missing.status, missing.error) == (404, "unknown_call"), path


# --- answering ----------------------------------------------------------------------------------


def test_an_administrator_answers_and_the_caller_gets_the_outcome(server: Server) -> None:
    asked = server.call("shop.order", item="tea")
    call = answer(server, server.only(), address="the harbour").json
    assert (call["status"], [q["key"] for q in call["questions"]]) == ("waiting", ["question-4"])
    ended = answer(server, call, **{"question-4": accept(confirmed=True)}).json
    assert (ended["status"], ended["questions"]) == ("completed", [])
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]
    late = server.call("shop.order", state=asked, answers={"address": accept(text="elsewhere")}, item="tea")
    assert text_of(late) == "tea to the harbour, paid", "how the call stands now"
    again = answer(server, call, **{"question-4": True})
    assert (again.status, again.error) == (409, "not_waiting")
    assert again.json["error"]["data"] == {"call": call["id"], "status": "completed"}


def test_a_call_is_answered_after_its_server_was_killed(server: Server) -> None:
    server.call("shop.order", item="tea")
    server.kill()
    server.start()
    call = answer(server, server.only(), address="the harbour").json
    assert answer(server, call, **{"question-4": "Declined"}).json["status"] == "completed"
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]


def test_an_answer_that_does_not_fit_changes_nothing(server: Server) -> None:
    server.call("shop.survey")
    before = server.only()
    wrong: list[dict[str, Any]] = [
        {"one": "c"},
        {"one": ["a", "b"]},
        {"one": {"action": "shrug"}},
        {"one": "a", "some": "nonsense"},
        {"where": {"street": 7}},
        {"where": "over there"},
        {},
    ]
    for answers in wrong:
        refused = server.post(f"/admin/calls/{before['id']}/answers", {"answers": answers})
        assert (refused.status, refused.error) == (422, "wrong_answer"), answers
    refused = answer(server, before, nothing=1)
    assert (refused.status, refused.error) == (422, "unknown_request")
    assert server.only() == before


def test_several_questions_are_answered_together_or_one_by_one(server: Server) -> None:
    server.call("shop.survey")
    call = answer(server, server.only(), some=["b", "a"]).json
    assert [q["key"] for q in call["questions"]] == ["one", "where"]
    where = {"street": "Main", "floor": 3}
    done = answer(server, call, one={"Selected": ["b"]}, where=accept(**where)).json
    assert done["status"] == "completed"
    outcome = server.get(f"/admin/calls/{call['id']}?values=1").json["outcome"]
    assert text_of(outcome["result"]) == "b ['b', 'a'] Main 3"


def test_a_page_is_visited_and_a_question_is_declined(server: Server) -> None:
    server.call("shop.visit")
    assert answer(server, server.only(), page=True).json["status"] == "completed"
    server.call("shop.visit")
    call = server.get("/admin/calls?status=waiting").json["calls"][0]
    assert answer(server, call, page={"action": "decline"}).json["status"] == "failed"
    shown = server.get(f"/admin/calls/{call['id']}").json
    assert shown["entries"][0]["state"] == "declined"


def test_of_two_administrators_one_is_too_late(server: Server) -> None:
    server.call("shop.slow_after", seconds=1)
    call = server.only()
    came: list[Any] = []
    key = call["questions"][0]["key"]
    threads = [
        threading.Thread(target=lambda: came.append(answer(server, call, **{key: "now"}))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.status for one in came) == [200, 409, 409, 409]


def test_what_is_no_json_is_refused(server: Server) -> None:
    server.call("shop.order", item="tea")
    path = f"/admin/calls/{server.only()['id']}/answers"
    for body in (b"{", b"[]", b'{"answers": []}', b'{"answers": {}, "more": 1}'):
        refused = server.post(path, body)
        assert (refused.status, refused.error) == (400, "bad_request")
    form = server.post(path, b'{"answers": {"address": "x"}}', content_type="text/plain")
    assert (form.status, form.error) == (400, "bad_request")
    assert server.get(path).status == 405


@pytest.mark.parametrize("depth", [100, 400, 700, 900, 1100, 5000, 100_000])
def test_json_however_deep_is_answered_and_never_with_an_error_of_the_server(
    server: Server, depth: int
) -> None:
    deep = b"[" * depth + b"]" * depth
    server.call("shop.order", item="tea")
    id = server.only()["id"]
    assert server.post(f"/admin/calls/{id}/answers", b'{"answers": {"address": %b}}' % deep).status in (
        400,
        422,
    )
    assert server.post(f"/admin/calls/{id}/abort", b'{"reason": %b}' % deep).status == 400
    assert server.post(f"/calls/{id}/abort", b'{"reason": %b}' % deep).status == 400
    lines = b'{"x": %b}' % deep
    assert server.post("/admin/import", lines, content_type="application/x-ndjson").status == 400
    assert "Traceback" not in server.stop()
    server.start()


def test_a_call_whose_code_has_changed_is_not_answered(server: Server) -> None:
    server.call("shop.order", item="tea")
    server.stop()
    server.start(TWIST="1")
    call = server.only()
    for _ in range(2):
        tried = answer(server, call, address="the harbour")
        assert (tried.status, tried.json["error"]["data"]["status"]) == (409, "diverged")
        assert "its code has changed" in tried.text
    server.stop()
    server.start()
    assert server.only()["status"] == "diverged"
    call = answer(server, call, address="the harbour").json
    assert answer(server, call, **{"question-4": True}).json["status"] == "completed"
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]


# --- forking ------------------------------------------------------------------------------------


def fork(server: Server, call: Any, at: Any, token: str | None = None, where: str = "/admin/calls") -> Any:
    return server.post(f"{where}/{call['id']}/fork", {"at": at}, token)


def ended_order(server: Server, token: str | None = None) -> Any:
    """An order that is paid and sent; its entries: step, question, step, question, step."""
    asked = server.call("shop.order", token, item="tea")
    to = {"address": accept(text="the harbour")}
    asked = server.call("shop.order", token, state=asked, answers=to, item="tea")
    paid = {"question-4": accept(confirmed=True)}
    assert text_of(server.call("shop.order", token, state=asked, answers=paid, item="tea"))
    return server.only(ADMIN if token else None)


def test_a_fork_goes_on_from_the_middle_of_another_call(server: Server) -> None:
    ended = ended_order(server)
    before = server.get(f"/admin/calls/{ended['id']}?values=1").json
    forked = fork(server, ended, 3).json
    assert (forked["status"], forked["method"], forked["principal"]) == ("waiting", "shop.order", None)
    (question,) = forked["questions"]
    assert question["message"] == "Charge for tea?"
    assert server.effects() == ["reserve tea", "pack tea", "send tea"], (
        "nothing that it has done is done again"
    )
    done = answer(server, forked, **{question["key"]: False}).json
    assert done["status"] == "completed"
    outcome = server.get(f"/admin/calls/{done['id']}?values=1").json["outcome"]
    assert outcome["contents"] == ["tea to the harbour, for free"]
    assert server.effects() == ["reserve tea", "pack tea", "send tea", "send tea"]
    assert server.get(f"/admin/calls/{ended['id']}?values=1").json == before, "the other stays as it is"


@pytest.mark.parametrize(
    ("at", "status", "asks", "effects"),
    [
        (0, "waiting", ["Deliver to?"], ["reserve tea"]),
        (1, "waiting", ["Deliver to?"], []),
        (2, "waiting", ["Charge for tea?"], ["pack tea"]),
        (4, "completed", [], ["send tea"]),
        (5, "completed", [], []),
        (None, "completed", [], []),
    ],
)
def test_what_is_not_kept_is_done_and_asked_anew(
    server: Server, at: int | None, status: str, asks: list[str], effects: list[str]
) -> None:
    forked = fork(server, ended_order(server), at).json
    assert (forked["status"], [one["message"] for one in forked["questions"]]) == (status, asks)
    assert server.effects()[3:] == effects


def test_a_fork_of_a_call_that_waits_asks_the_same_and_neither_answers_for_the_other(server: Server) -> None:
    asked = server.call("shop.order", item="tea")
    first = server.only()
    forked = fork(server, first, None).json
    (question,) = forked["questions"]
    assert answer(server, forked, **{question["key"]: "the hill"}).json["status"] == "waiting"
    assert server.get(f"/admin/calls/{first['id']}").json["status"] == "waiting"
    server.kill()
    server.start()
    to = {"address": accept(text="the harbour")}
    asked = server.call("shop.order", state=asked, answers=to, item="tea")
    paid = server.call("shop.order", state=asked, answers={"question-4": accept(confirmed=True)}, item="tea")
    assert text_of(paid) == "tea to the harbour, paid"
    (question,) = server.get(f"/admin/calls/{forked['id']}").json["questions"]
    assert answer(server, forked, **{question["key"]: True}).json["status"] == "completed"
    outcome = server.get(f"/admin/calls/{forked['id']}?values=1").json["outcome"]
    assert outcome["contents"] == ["tea to the hill, paid"], "also after its server was killed"


def test_a_question_that_timed_out_is_asked_anew_with_its_whole_time(server: Server) -> None:
    for seconds in (0.3, 3.0, 30.0):  # enough to hear of the question, and of the one of the fork
        asked = server.call("shop.hurry", seconds=seconds)
        if "inputRequests" not in asked:
            continue
        call = {"id": asked["_meta"]["dev.midcall/callId"]}
        until(lambda: server.get(f"/admin/calls/{call['id']}").json["status"] == "failed")  # noqa: B023
        forked = fork(server, call, 0).json
        if forked["questions"]:
            break
    assert [one["message"] for one in forked["questions"]] == ["Quick?"]
    (late,) = server.get(f"/admin/calls/{call['id']}").json["entries"]
    assert late["state"] == "timed_out"


def test_no_fork_where_there_is_none_to_be_had(server: Server) -> None:
    ended = ended_order(server)
    for at in (-1, 6, 10**30):
        refused = fork(server, ended, at)
        assert (refused.status, refused.error) == (400, "bad_fork")
    assert fork(server, ended, "3").status == 400
    assert fork(server, {"id": "none"}, 0).error == "unknown_call"
    assert len(server.get("/admin/calls").json["calls"]) == 1
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]


def test_a_caller_sees_and_forks_its_own_calls_only(guarded: Server) -> None:
    ended = ended_order(guarded, ADA)
    for token in (EVE, None):
        status = 401 if token is None else 404
        assert fork(guarded, ended, 3, token, "/calls").status == status
        assert guarded.get(f"/calls/{ended['id']}", token).status == status
    shown = guarded.get(f"/calls/{ended['id']}", ADA).json
    assert [entry["state"] for entry in shown["entries"]] == ["done", "answered"] * 2 + ["done"]
    forked = fork(guarded, ended, 3, ADA, "/calls").json
    assert (forked["status"], forked["principal"]) == ("waiting", "ada")
    assert fork(guarded, ended, 3, ADA).status == 403, "as an administrator she is none"
    by_admin = fork(guarded, ended, 3, ADMIN).json
    assert (by_admin["status"], by_admin["principal"]) == ("waiting", "ada")


def test_a_fork_is_followed_on_a_websocket(server: Server) -> None:
    forked = fork(server, ended_order(server), 3).json

    async def run() -> list[Item]:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            following = remote.attach(forked["id"], answer=lambda _: True)
            return [item async for item in following]

    items = drive(run(), 120)
    assert [item.content for item in items if isinstance(item, Data)] == ["tea to the harbour, paid"]


# --- aborting -----------------------------------------------------------------------------------


def test_an_aborted_call_is_over_and_its_caller_is_told_why(server: Server) -> None:
    asked = server.call("shop.order", item="tea")
    call = server.only()
    aborted = server.post(f"/admin/calls/{call['id']}/abort", {"reason": "Out of tea"})
    assert (aborted.status, aborted.json["status"]) == (200, "aborted")
    with pytest.raises(AssertionError, match="Out of tea"):
        server.call("shop.order", state=asked, answers={"address": accept(text="x")}, item="tea")
    again = server.post(f"/admin/calls/{call['id']}/abort", {})
    assert (again.status, again.error) == (409, "not_waiting")
    assert server.effects() == ["reserve tea"]


def test_a_call_that_runs_is_aborted(server: Server) -> None:
    server.call("shop.slow_after", seconds=LIMIT)
    call = server.only()
    key = call["questions"][0]["key"]
    answering = threading.Thread(target=lambda: answer(server, call, **{key: "now"}))
    answering.start()
    until(lambda: server.only()["status"] == "running")
    aborted = server.post(f"/admin/calls/{call['id']}/abort", {"reason": "Enough"})
    assert aborted.json["status"] == "aborted"
    answering.join()


def abort_at_another_server(folder: Path) -> None:
    with Server(folder, "--admin") as other:
        call = until(lambda: other.get("/admin/calls?status=running").json["calls"])[0]
        aborted = other.post(f"/admin/calls/{call['id']}/abort", {"reason": "Enough"})
        assert aborted.json["status"] == "aborted"


def abort_in_the_journal(folder: Path) -> None:
    place = ("--journal", str(folder / "journal.db"))
    listed = until(lambda: midcall("calls", "list", "--status", "running", "--json", *place).stdout)
    aborted = midcall("calls", "abort", json.loads(listed)["id"], "--reason", "Enough", *place)
    assert aborted.returncode == 0, aborted.stderr


@pytest.mark.parametrize("abort", [abort_at_another_server, abort_in_the_journal])
def test_a_call_that_a_server_runs_is_aborted_from_elsewhere_and_its_caller_is_told(
    tmp_path: Path, abort: Callable[[Path], None]
) -> None:
    with Server(tmp_path) as one:
        asked = one.call("shop.slow_after", seconds=LIMIT)
        (key,) = asked["inputRequests"]
        said: list[Any] = []
        given = {"state": asked, "answers": {key: accept(text="now")}}

        def wait() -> None:
            with pytest.raises(AssertionError, match="Enough") as refused:
                one.call("shop.slow_after", **given, seconds=LIMIT)
            said.append(refused.value)

        waiting = threading.Thread(target=wait)
        waiting.start()
        abort(tmp_path)
        waiting.join(LIMIT)
        assert said, "it does not go on for as long as it would"
        with pytest.raises(AssertionError, match="Enough"):
            one.call("shop.slow_after", state=asked, seconds=LIMIT)


def test_calls_that_are_not_kept_are_listed_and_aborted(server: Server) -> None:
    said: list[Any] = []
    assert server.get("/admin/calls").json["calls"] == []
    calling = threading.Thread(target=lambda: said.append(server.call("shop.slow", seconds=LIMIT)))
    calling.start()
    call = until(lambda: server.get("/admin/calls").json["calls"])[0]
    assert (call["method"], call["status"], call["kept"]) == ("shop.slow", "running", False)
    assert server.get(f"/admin/calls/{call['id']}").json["method"] == "shop.slow"
    assert server.get("/admin/calls?status=waiting").json["calls"] == []
    refused = answer(server, call, x=1)
    assert (refused.status, refused.error) == (409, "not_waiting")
    assert server.post(f"/admin/calls/{call['id']}/abort", {"reason": "Too slow"}).json["status"] == "aborted"
    calling.join()
    assert said[0]["isError"]
    assert text_of(said[0]) == "Too slow"


# --- WebSocket ----------------------------------------------------------------------------------


def test_a_durable_call_on_a_websocket_is_answered_for_the_one_who_looks_on(server: Server) -> None:
    items: list[Item] = []

    async def run() -> None:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            call = remote.call("shop.tell", supports={"prompt"}, durable=True)
            async for item in call:
                items.append(item)
                if isinstance(item, Request):
                    (listed,) = (await asyncio.to_thread(server.get, "/admin/calls")).json["calls"]
                    assert [q["key"] for q in listed["questions"]] == ["then"]
                    wrong = await asyncio.to_thread(answer, server, listed, then=7)
                    assert wrong.error == "wrong_answer"
                    done = await asyncio.to_thread(answer, server, listed, then="the end")
                    assert done.json["status"] == "completed"

    drive(run())
    assert [item.content for item in items if isinstance(item, Data)] == ["before", "the end"]
    assert [item.reason for item in items if isinstance(item, RequestCancelled)] == [
        "answered by somebody else"
    ]
    assert isinstance(items[-1], Done)


def test_a_durable_call_is_answered_after_a_restart_and_when_nobody_is_on_the_line(server: Server) -> None:
    async def begin() -> None:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            async for item in remote.call("shop.tell", supports={"prompt"}, durable=True):
                if isinstance(item, Request):
                    return

    drive(begin())
    server.kill()
    server.start()
    call = until(lambda: [c for c in server.get("/admin/calls").json["calls"] if c["status"] == "waiting"])[0]
    assert answer(server, call, then="the end").json["status"] == "completed"
    shown = server.get(f"/admin/calls/{call['id']}?values=1").json
    assert shown["outcome"] == {"contents": ["before", "the end"]}


def test_whoever_waits_on_a_websocket_hears_that_its_call_is_aborted(server: Server) -> None:
    items: list[Item] = []

    async def run() -> None:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            async for item in remote.call("shop.tell", supports={"prompt"}, durable=True):
                items.append(item)
                if isinstance(item, Request):
                    (listed,) = (await asyncio.to_thread(server.get, "/admin/calls")).json["calls"]
                    path = f"/admin/calls/{listed['id']}/abort"
                    await asyncio.to_thread(server.post, path, {"reason": "Out of ink"})

    drive(run())
    assert [item.message for item in items if isinstance(item, Error)] == ["Out of ink"]


@pytest.fixture(params=["sqlite", "postgresql"])
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Two servers on one journal."""
    with contextlib.ExitStack() as stack:
        options: tuple[str, ...] = ("--admin",)
        if request.param == "postgresql":
            options += ("--journal", stack.enter_context(own_database()))
        own = {"journal": request.param == "sqlite"}
        yield (
            stack.enter_context(Server(tmp_path, *options, **own)),
            stack.enter_context(Server(tmp_path, *options, **own)),
        )


def test_a_question_is_withdrawn_when_another_worker_answers_it(workers: tuple[Server, Server]) -> None:
    server, other = workers
    items: list[Item] = []

    async def run() -> None:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            order = remote.call("shop.order", {"item": "tea"}, durable=True, answer=decide)
            items.extend([item async for item in order])

    async def decide(request: Request) -> Any:
        if request.key != "address":
            return True
        call = await asyncio.to_thread(other.only)
        answered = await asyncio.to_thread(answer, other, call, address="Ada")
        assert answered.json["status"] == "waiting", answered.text
        return await asyncio.get_running_loop().create_future()  # nobody answers here

    drive(run(), 120)
    first, withdrawn, second = [item for item in items if isinstance(item, Request | RequestCancelled)]
    assert isinstance(withdrawn, RequestCancelled)
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert (withdrawn.request_id, withdrawn.reason) == (first.request_id, "answered by somebody else")
    assert second.request_type.message == "Charge for tea?", "the call goes on where its caller is"
    assert [item.content for item in items if isinstance(item, Data)] == ["tea to Ada, paid"]
    assert isinstance(items[-1], Done)
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]


def test_an_answer_to_another_worker_may_be_the_last_one(workers: tuple[Server, Server]) -> None:
    server, other = workers
    items: list[Item] = []

    async def run() -> None:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            async for item in remote.call("shop.tell", supports={"prompt"}, durable=True):
                items.append(item)
                if isinstance(item, Request):
                    call = await asyncio.to_thread(other.only)
                    done = await asyncio.to_thread(answer, other, call, then="the end")
                    assert done.json["status"] == "completed"

    drive(run(), 120)
    assert [item.content for item in items if isinstance(item, Data)] == ["before", "the end"]
    assert [type(item) for item in items[-3:]] == [RequestCancelled, Data, Done]


def test_whoever_waits_at_one_worker_hears_that_another_one_has_aborted(
    workers: tuple[Server, Server],
) -> None:
    server, other = workers
    items: list[Item] = []

    async def run() -> None:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            async for item in remote.call("shop.tell", supports={"prompt"}, durable=True):
                items.append(item)
                if isinstance(item, Request):
                    call = await asyncio.to_thread(other.only)
                    path = f"/admin/calls/{call['id']}/abort"
                    await asyncio.to_thread(other.post, path, {"reason": "Out of ink"})

    drive(run(), 120)
    assert [item.message for item in items if isinstance(item, Error)] == ["Out of ink"]
    assert isinstance(items[-1], Done)


# --- moving -------------------------------------------------------------------------------------


def test_calls_move_to_another_server(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with Server(tmp_path / "old", "--admin") as old, Server(tmp_path / "new", "--admin") as new:
        old.call("shop.order", item="tea")
        old.call("shop.order", item="cake")
        ended = old.get("/admin/calls?name=shop.order").json["calls"][0]
        old.post(f"/admin/calls/{ended['id']}/abort", {})
        one = old.get(f"/admin/calls/{ended['id']}/export").text
        every = old.get("/admin/export").text
        assert one in every
        assert len(old.get("/admin/export?status=waiting").text.splitlines()) == 1
        old.stop()

        lines = {"content_type": "application/x-ndjson"}
        first = new.post("/admin/import", one.encode(), **lines)
        assert first.json == {"imported": 1, "known": 0}
        assert new.post("/admin/import", every.encode(), **lines).json == {"imported": 1, "known": 1}
        broken = new.post("/admin/import", one.encode() + b'{"call": 1}\n', **lines)
        assert (broken.status, broken.error) == (400, "bad_request")
        assert "Line 2 is not an exported call" in broken.text
        (call,) = new.get("/admin/calls?status=waiting").json["calls"]
        call = answer(new, call, address="the harbour").json
        assert answer(new, call, **{"question-4": True}).json["status"] == "completed"
        assert new.effects() == ["pack tea", "send tea"]


# --- in an application of one's own ---------------------------------------------------------------


def test_a_mounted_hub_has_the_same_pages() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from midcall.journal.durable import DurableCalls

    async def get(app: Any, path: str, token: str) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
        }
        await app(
            {
                **scope,
                "headers": headers,
                "root_path": "",
                "server": ("127.0.0.1", 80),
                "client": ("10.0.0.1", 5),
            },
            receive,
            send,
        )
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])

    async def run() -> None:
        hub = Hub("market").register(Shop())
        hub.durable = DurableCalls(hub)
        app = Starlette(routes=[Mount("/tools", hub.asgi(auth=StaticKeys(KEYS), metrics=True))])
        status, body = await get(app, "/tools/admin/calls", ADMIN)
        assert (status, json.loads(body)) == (200, {"calls": [], "next": None})
        assert (await get(app, "/tools/admin/calls", ADA))[0] == 403
        assert (await get(app, "/tools/metrics", ADMIN))[0] == 200
        assert (await get(app, "/tools/metrics", ADA))[0] == 403
        assert (await get(app, "/tools/ready", ADA))[0] == 200
        hub.durable.let_go()
        status, body = await get(app, "/tools/ready", ADA)
        assert (status, json.loads(body)["reason"]) == (503, "The server is closing")
        await hub.close()

    drive(run(), 120)

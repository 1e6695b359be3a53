"""Links to questions: whoever is meant answers, once and in time. Real servers, with keys and without."""

import concurrent.futures
import contextlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from midcall.journal.seal import BadSeal, KeyRing
from operating import Answer, Server, own_database, text_of, until
from people_app import CALLER, KEYS, OPS, OTHER, ROOT

REFUSED = "This link is not valid: it was used, its time is up, or it is for somebody else"


def guarded(folder: Path, *options: str) -> Server:
    return Server(folder, "--log-level", "info", *options, target="people_app:hub", MIDCALL_TOKENS=KEYS)


def links(server: Server, token: str | None = None) -> dict[str, str]:
    """The links to all that this principal is asked, by key."""
    calls = server.get("/calls", token).json["calls"]
    return {one["key"]: one["link"] for call in calls for one in call["questions"] if "link" in one}


def answer(server: Server, link: str, given: Any, token: str | None = None) -> Answer:
    return server.post(link, {"answer": given}, token)


def assert_refused(*came: Answer) -> None:
    """All are refused, and nothing tells one reason from another."""
    for one in came:
        assert one.status == 404
        assert one.json == {"error": {"code": "unknown_link", "message": REFUSED}}


def test_a_link_is_answered_by_whoever_is_meant_and_by_nobody_else(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        asked = server.call("people.own", CALLER)
        link = links(server, CALLER)["name"]
        assert links(server, OTHER) == {}
        assert re.fullmatch(r"/q/[\w-]{60,}", link)
        assert server.get(link).status == 401
        assert answer(server, link, "Eve").status == 401
        guessed = link[:-4] + ("AAAA" if not link.endswith("AAAA") else "BBBB")
        assert_refused(
            server.get(link, OTHER),
            answer(server, link, "Eve", OTHER),
            server.get(guessed, CALLER),
            answer(server, guessed, "Eve", CALLER),
            server.get("/q/" + "A" * len(link), CALLER),
            server.get("/q/x", CALLER),
        )
        shown = server.get(link, CALLER)
        assert shown.headers["referrer-policy"] == "no-referrer"
        assert shown.headers["cache-control"] == "no-store"
        body = shown.json
        assert body.pop("age") >= 0
        assert body == {
            "key": "name",
            "place": "2",
            "message": "Your name?",
            "question": {"Prompt": {"message": "Your name?"}},
            "until": None,
            "to": None,
            "link": link,
            "method": "people.own",
            "caller": "ada",
            "component": None,
        }
        assert answer(server, link, "Ada", CALLER).json == {"answered": True}
        assert_refused(answer(server, link, "Ada", CALLER), server.get(link, CALLER))
        assert text_of(server.call("people.own", CALLER, asked)) == "Hello Ada"
        assert server.effects() == ["before", "hello Ada"]
        token = link.removeprefix("/q/")
        assert token not in server.stop()
        assert "answered by its link by ada" in server.log
        assert "/q/..." in server.log


def test_without_keys_whoever_has_the_link_answers_once(tmp_path: Path) -> None:
    with Server(tmp_path, target="people_app:hub") as server:
        server.call("people.own")
        link = links(server)["name"]
        with concurrent.futures.ThreadPoolExecutor(8) as people:
            came = list(people.map(lambda n: answer(server, link, f"person {n}"), range(8)))
        taken = [one for one in came if one.status == 200]
        assert len(taken) == 1
        assert_refused(*(one for one in came if one is not taken[0]))
        assert len([line for line in server.effects() if line.startswith("hello")]) == 1


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_of_two_workers_that_get_an_answer_in_the_same_moment_one_takes_it(
    tmp_path: Path, store: str
) -> None:
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / "here", tmp_path / "there"]
        place = str(tmp_path / "shared.db") if store == "sqlite" else stack.enter_context(own_database())
        workers = []
        for folder in folders:
            folder.mkdir()
            one = Server(folder, "--journal", place, target="people_app:hub", journal=False)
            workers.append(stack.enter_context(one))
        for turn in range(4):
            asked = workers[turn % 2].call("people.own")
            link = links(workers[0])["name"]
            with concurrent.futures.ThreadPoolExecutor(8) as people:
                turns = zip(range(8), itertools.cycle(workers), strict=False)
                came = list(people.map(lambda n: answer(n[1], link, f"{n[0]}"), turns))  # noqa: B023
            (taken,) = [n for n, one in enumerate(came) if one.status == 200]
            assert_refused(*(one for n, one in enumerate(came) if n != taken))
            assert text_of(workers[0].call("people.own", None, asked)) == f"Hello {taken}"
        said = [line for one in workers for line in one.effects() if line.startswith("hello")]
        assert len(said) == 4


def test_the_first_answer_to_a_call_whose_code_has_changed_is_the_one_that_counts(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        asked = server.call("shop.order", item="tea")
        link = links(server)["address"]
        server.stop()
        server.start(TWIST="1")
        kept, late = answer(server, link, "the harbour"), answer(server, link, "the hill")
        assert (kept.status, kept.error) == (409, "not_waiting")
        assert "It is kept, with the answer" in kept.text
        assert late.status in (404, 409)
        assert "with the answer" not in late.text
        server.stop()
        server.start()
        assert answer(server, link, "the hill").status in (404, 409)  # but now it goes on
        until(lambda: set(links(server)) not in (set(), {"address"}))
        assert_refused(answer(server, link, "the hill"))
        (charge,) = links(server).values()
        assert answer(server, charge, True).status == 200
        assert text_of(server.call("shop.order", None, asked, item="tea")) == "tea to the harbour, paid"


def test_looking_at_a_link_does_not_use_it_up(tmp_path: Path) -> None:
    with Server(tmp_path, target="people_app:hub") as server:
        server.call("people.own")
        link = links(server)["name"]
        for verb, accept in (("HEAD", "*/*"), ("HEAD", "text/html"), ("GET", "text/html"), ("GET", "*/*")):
            assert server.send(verb, link, None, accept=accept, user_agent="Slackbot 1.0").status == 200
        for verb in ("OPTIONS", "PUT", "DELETE", "PATCH"):
            assert server.send(verb, link, {"answer": "x"}).status == 405
        for body in (b"", b"{}", b"null", b"[]", b'{"answer": "x", "more": 1}', b'{"answer"', b"[" * 100_000):
            assert server.send("POST", link, body).error == "bad_request"
        assert answer(server, link, "Ada").status == 200


def test_a_link_to_a_call_that_was_ended_is_refused(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.deploy", CALLER)
        link = links(server, OPS)["sure"]
        (call,) = server.get("/calls", CALLER).json["calls"]
        assert server.post(f"/calls/{call['id']}/abort", {}, CALLER).status == 200
        assert_refused(server.get(link, OPS), answer(server, link, True, OPS), server.get(link, ROOT))


def test_what_is_no_link_is_refused_whatever_it_is(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        server.call("people.own", CALLER)
        real = links(server, CALLER)["name"].removeprefix("/q/")
        other = real.swapcase()
        wrong = (
            "-",
            "_" * 90,
            real + "=",
            real + "A",
            real[:-1],
            real[1:],
            other,
            real.replace(real[9], "%2b"),
        )
        wrong += (f"{real}%00", "%ff%fe", "%E2%82%AC", f"%20{real}", "..%2f..%2fcalls", f"{real}%0a", "~")
        for one in wrong:
            came = server.get(f"/q/{one}", CALLER)
            assert came.status in (400, 404), one
            assert real not in came.text
            assert server.post(f"/q/{one}", {"answer": "x"}, CALLER).status in (400, 404), one
        assert server.get(f"/q/{'A' * 5000}", CALLER).status == 400
        assert server.get(f"/q/{real}/", CALLER).status in (307, 404)
        assert server.get(f"/q/{real}", CALLER).status == 200


def test_an_answer_that_does_not_fit_leaves_the_question_open(tmp_path: Path) -> None:
    with Server(tmp_path, target="people_app:hub") as server:
        server.call("people.window")
        link = links(server)["window"]
        for wrong in ({"minutes": "many"}, 5, None, {"Text": "x"}):
            came = answer(server, link, wrong)
            assert (came.status, came.error) == (422, "wrong_answer"), came.text
        assert answer(server, link, {"Custom": {"minutes": 5}}).status == 200


def test_a_link_that_is_late_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path, target="people_app:hub") as server:
        for limit in (2, 10, 60):  # on a machine that is too slow to see it within two seconds
            server.call("people.own", limit=limit)
            if link := links(server).get("name"):
                break
        until(lambda: server.get(link).status == 404)
        assert_refused(server.get(link), answer(server, link, "late"))
        assert "hello late" not in server.effects()


def test_links_outlive_the_server_that_made_them(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        asked = server.call("people.own", CALLER)
        link = links(server, CALLER)["name"]
        server.kill()
        server.start()
        assert_refused(answer(server, link, "Eve", OTHER))
        assert answer(server, link, "Ada", CALLER).status == 200
        assert text_of(server.call("people.own", CALLER, asked)) == "Hello Ada"
        assert server.effects() == ["before", "hello Ada"]
        server.kill()
        server.start()
        assert_refused(answer(server, link, "Ada", CALLER))


def test_two_questions_of_a_round_are_answered_at_once_by_their_links(tmp_path: Path) -> None:
    with Server(tmp_path, target="people_app:hub") as server:
        for _ in range(5):
            asked = server.call("people.both")
            found = links(server)
            given = {"first": "one", "second": True}
            with concurrent.futures.ThreadPoolExecutor(2) as people:
                came = list(people.map(lambda key: answer(server, found[key], given[key]), given))  # noqa: B023
            assert [one.status for one in came] == [200, 200], [one.text for one in came]
            assert json.loads(text_of(server.call("people.both", None, asked))) == ["one", True]


def test_a_page_of_another_site_cannot_answer(tmp_path: Path) -> None:
    with Server(tmp_path, target="people_app:hub") as server:
        server.call("people.own")
        link = links(server)["name"]
        form = server.send("POST", link, b"answer=x", content_type="application/x-www-form-urlencoded")
        assert (form.status, form.error) == (400, "bad_request")
        text = server.send("POST", link, b'{"answer": "x"}', content_type="text/plain")
        assert (text.status, text.error) == (400, "bad_request")
        foreign = server.post(link, {"answer": "x"}, origin="https://evil.example")
        assert foreign.status == 403
        named = server.post(link, {"answer": "x"}, host="evil.example")
        assert named.status == 403
        assert server.get(link).status == 200


def test_a_caller_answers_its_own_calls_and_sees_no_others(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:
        asked = server.call("people.own", CALLER)
        (call,) = server.get("/calls", CALLER).json["calls"]
        path = f"/calls/{call['id']}/answers"
        assert server.post(path, {"answers": {"name": "Eve"}}, OTHER).error == "unknown_call"
        assert server.post(path, {"answers": {"other": "Ada"}}, CALLER).error == "unknown_request"
        assert server.post(path, {"answers": {"name": "Ada"}}, CALLER).json == {"status": "completed"}
        assert text_of(server.call("people.own", CALLER, asked)) == "Hello Ada"


def test_what_is_sealed_for_one_use_does_not_open_for_another() -> None:
    ring = KeyRing([b"k" * 32])
    sealed = ring.seal(b"payload", b"question link")
    assert sealed == ring.seal(b"payload", b"question link") != ring.seal(b"payload")
    assert ring.open(sealed, b"question link") == b"payload"
    for about in (b"", b"other"):
        with pytest.raises(BadSeal):
            ring.open(sealed, about)


def test_the_public_url_is_a_name_of_the_server(tmp_path: Path) -> None:
    with Server(tmp_path, "--public-url", "https://tools.example.com/a/", target="people_app:hub") as server:
        assert server.get("/health", host="tools.example.com").status == 200
        assert (
            server.get("/calls", host="tools.example.com", origin="https://tools.example.com").status == 200
        )
        assert server.get("/calls", host="other.example.com").status == 403


def test_a_page_at_the_public_url_answers_through_a_proxy_that_sends_its_own_host(tmp_path: Path) -> None:
    with Server(tmp_path, "--public-url", "https://tools.example.com", target="people_app:hub") as server:
        server.call("people.own")
        link = links(server)["name"]
        for origin in ("http://tools.example.com", "https://example.com", "https://tools.example.com:8443"):
            assert server.post(link, {"answer": "Eve"}, origin=origin).status == 403
        assert server.post(link, {"answer": "Ada"}, origin="https://tools.example.com").status == 200

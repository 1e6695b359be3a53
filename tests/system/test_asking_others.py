"""Questions for somebody else than the caller: whichever way the call was made, they answer, and nobody else.

Ada calls, Bob has the scope `ops`, Eve has others. Real servers, with their keys.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chatting import Keyed, questions, text
from driving import LIMIT, drive
from midcall import Hub, connect, connect_hub
from midcall.items import Data, Done, Error, Item, Progress, Request
from midcall.principal import check_addressee
from midcall.questions import Confirm
from midcall.replay import fingerprint
from midcall.testing import run
from operating import Answer, Server, accept, own_database, text_of, until
from people_app import CALLER, KEYS, OPS, OTHER, ROOT
from people_app import hub as people

WAITS_FOR = "dev.midcall/waitsFor"
SAID = "Waiting for somebody with the scope ops: Deploy 1.2? "


def serving(folder: Path, *options: str, keys: str = KEYS, **more: Any) -> Server:
    return Server(folder, *options, **{"target": "people_app:hub", **more}, MIDCALL_TOKENS=keys)


def path_of(server: Server, link: str) -> str:
    assert link.startswith(f"{server.url}/q/")
    return link.removeprefix(server.url)


def answer(server: Server, path: str, given: Any, token: str | None) -> Answer:
    return server.post(path, {"answer": given}, token)


def assert_only_for_ops(server: Server, path: str) -> None:
    for token in (CALLER, OTHER, ROOT):
        assert server.get(path, token).error == "unknown_link"
        assert answer(server, path, True, token).error == "unknown_link"
    assert server.get(path, OPS).json["message"] == "Deploy 1.2?"


# --- the caller goes, and comes back -------------------------------------------------------------


def test_over_mcp_the_caller_is_told_who_is_asked_and_the_one_who_is_asked_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        asked = server.call("people.deploy", CALLER)
        assert "inputRequests" not in asked
        (waits_for,) = asked["_meta"][WAITS_FOR]
        assert (waits_for["to"], waits_for["message"]) == ("scope:ops", "Deploy 1.2?")
        path = path_of(server, waits_for["link"])
        assert_only_for_ops(server, path)
        server.kill()
        server.start()
        assert_only_for_ops(server, path)
        assert answer(server, path, True, OPS).json == {"answered": True}
        assert answer(server, path, True, OPS).error == "unknown_link"
        assert text_of(server.call("people.deploy", CALLER, asked)) == "deployed: True"
        assert server.effects() == ["build", "deploy True"]


def test_the_caller_cannot_answer_in_their_place(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        asked = server.call("people.mixed", CALLER)
        assert list(asked["inputRequests"]) == ["why"]
        given = {"why": accept(text="because"), "really": accept(confirmed=True)}
        again = server.call("people.mixed", CALLER, asked, given)
        assert "inputRequests" not in again
        (call,) = [one for one in server.get("/calls", CALLER).json["calls"] if one["waiting"]]
        (question,) = call["questions"]
        assert (question["key"], question["to"], "link" in question) == ("really", "bob", False)
        path = f"/calls/{call['id']}/answers"
        assert server.post(path, {"answers": {"really": True}}, CALLER).error == "unknown_request"
        assert server.post(path, {"answers": {"really": True}}, OTHER).error == "unknown_call"
        assert server.post(path, {"answers": {"really": False}}, OPS).status == 200
        assert json.loads(text_of(server.call("people.mixed", CALLER, again))) == ["because", False]


def test_a_retry_waits_until_the_others_have_answered(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        asked = await asyncio.to_thread(server.call, "people.deploy", CALLER)
        retry = asyncio.create_task(asyncio.to_thread(server.call, "people.deploy", CALLER, asked))
        path = path_of(server, asked["_meta"][WAITS_FOR][0]["link"])
        assert (await asyncio.to_thread(answer, server, path, False, OPS)).status == 200
        result = await retry
        while "content" not in result:  # it had been told to come back, on a machine that is very slow
            result = await asyncio.to_thread(server.call, "people.deploy", CALLER, result)
        assert text_of(result) == "deployed: False"

    with serving(tmp_path) as server:
        drive(main(server))


def test_a_task_works_while_others_are_asked(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with connect(f"{server.url}/mcp", auth=CALLER, era="modern") as client:
            call = asyncio.ensure_future(collect(client.call("people.later")))
            bob = await asyncio.to_thread(links, server, OPS)
            assert (await asyncio.to_thread(answer, server, bob["later"], True, OPS)).status == 200
            assert (await call).text == "later: True"

    with serving(tmp_path) as server:
        drive(main(server))


async def collect(call: Any) -> Any:
    return await call


def links(server: Server, token: str | None) -> dict[str, str]:
    """The links to what this principal is asked, by key, as soon as there is one."""

    def found() -> dict[str, str]:
        calls = server.get("/calls", token).json["calls"]
        return {one["key"]: one["link"] for call in calls for one in call["questions"] if "link" in one}

    return dict(until(found))


# --- the caller stays on the line ----------------------------------------------------------------


class Line:
    """A call whose caller stays on the line, and what has come of it so far."""

    def __init__(self, items: AsyncIterator[Item]) -> None:
        self.items: list[Item] = []
        self._task = asyncio.create_task(self._read(items))

    async def _read(self, items: AsyncIterator[Item]) -> None:
        async for item in items:
            self.items.append(item)

    async def link(self, server: Server) -> str:
        """The link that the caller is told."""
        while True:
            for item in self.items:
                if isinstance(item, Progress) and item.message.startswith(SAID):
                    return path_of(server, item.message.removeprefix(SAID))
            assert not self._task.done(), self.items
            await asyncio.sleep(0.01)

    async def end(self) -> list[Item]:
        await self._task
        assert not any(isinstance(item, Request) for item in self.items)
        return self.items

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


@contextlib.asynccontextmanager
async def on_a_line(server: Server, way: str, **arguments: Any) -> AsyncIterator[Line]:
    """A call by one of the ways in which callers stay on the line, or follow a call that is kept."""
    if way in ("legacy", "modern"):
        async with connect(f"{server.url}/mcp", auth=CALLER, era=way) as client:  # type: ignore[arg-type]
            yield Line(aiter(client.call("people.deploy", arguments)))
        return
    headers = {"Authorization": f"Bearer {CALLER}"}
    async with connect_hub(f"ws://127.0.0.1:{server.port}/ws", headers=headers) as remote:
        yield Line(aiter(remote.call("people.deploy", arguments, durable=way == "durable")))


def contents(items: list[Item]) -> list[Any]:
    return [getattr(i.content, "text", i.content) for i in items if isinstance(i, Data)]


WAYS = ["websocket", "durable", "legacy", "modern"]


@pytest.mark.parametrize("way", WAYS)
def test_whoever_is_asked_answers_while_the_caller_is_on_the_line(tmp_path: Path, way: str) -> None:
    async def main(server: Server) -> None:
        async with on_a_line(server, way) as line:
            path = await line.link(server)
            await asyncio.to_thread(assert_only_for_ops, server, path)
            (asked,) = (await asyncio.to_thread(server.get, "/calls", OPS)).json["calls"]
            assert (asked["caller"], asked["method"]) == ("ada", "people.deploy")
            assert (await asyncio.to_thread(server.get, path, OPS)).json["method"] == "people.deploy"
            named = await asyncio.to_thread(server.get, "/calls?which=asked&name=people.deploy", OPS)
            assert [call["id"] for call in named.json["calls"]] == [asked["id"]]
            assert asked["questions"][0]["link"] == path
            assert (await asyncio.to_thread(server.get, "/calls", OTHER)).json["calls"] == []
            assert (await asyncio.to_thread(answer, server, path, "maybe", OPS)).error == "wrong_answer"
            assert (await asyncio.to_thread(answer, server, path, True, OPS)).status == 200
            items = await line.end()
            assert contents(items) == ["deployed: True"]
        assert (await asyncio.to_thread(answer, server, path, True, OPS)).error == "unknown_link"
        assert (await asyncio.to_thread(server.get, "/calls", OPS)).json["calls"] == []

    with serving(tmp_path) as server:
        drive(main(server))
        assert server.effects() == ["build", "deploy True"]


@pytest.mark.parametrize("way", ["websocket", "legacy"])
def test_a_question_ends_with_the_line_of_a_call_that_is_not_kept(tmp_path: Path, way: str) -> None:
    async def main(server: Server) -> str:
        async with on_a_line(server, way) as line:
            path = await line.link(server)
            await line.leave()
        await asyncio.to_thread(until, lambda: server.get(path, OPS).status == 404)
        return path

    with serving(tmp_path) as server:
        path = drive(main(server))
        assert answer(server, path, True, OPS).error == "unknown_link"
        assert server.get("/calls", OPS).json["calls"] == []
        assert server.effects() == ["build"]


def test_a_question_of_a_server_that_was_killed_is_refused_unless_its_call_is_kept(tmp_path: Path) -> None:
    async def main(server: Server, way: str) -> str:
        async with on_a_line(server, way) as line:
            path = await line.link(server)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await line.leave()
        return path

    with serving(tmp_path) as server:
        path = drive(main(server, "legacy"))
        assert answer(server, path, True, OPS).error == "unknown_link"
        until(lambda: "aborted" in str(server.get("/admin/calls", ROOT).json))
        assert server.effects() == ["build"]
        path = drive(main(server, "durable"))
        assert answer(server, path, True, OPS).status == 200
        assert server.effects() == ["build", "build", "deploy True"]


@pytest.mark.parametrize("way", ["legacy", "websocket"])
def test_a_server_that_stops_lets_go_of_what_is_asked_for_callers_on_the_line(
    tmp_path: Path, way: str
) -> None:
    async def main(server: Server) -> None:
        async with on_a_line(server, way) as line:
            path = await line.link(server)
            await asyncio.to_thread(server.stop)
            await line.leave()
        await asyncio.to_thread(server.start)
        assert (await asyncio.to_thread(answer, server, path, True, OPS)).error == "unknown_link"
        (call,) = (await asyncio.to_thread(server.get, "/admin/calls", ROOT)).json["calls"]
        assert call["status"] == "aborted"

    with serving(tmp_path) as server:
        drive(main(server))
        assert server.effects() == ["build"]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("way", ["legacy", "websocket", "modern"])
def test_the_answer_may_come_to_another_worker(tmp_path: Path, way: str, store: str) -> None:
    async def main(here: Server, there: Server) -> None:
        async with on_a_line(here, way) as line:
            path = await line.link(here)
            await asyncio.to_thread(assert_only_for_ops, there, path)
            assert (await asyncio.to_thread(answer, there, path, True, OPS)).status == 200
            items = await line.end()
            assert contents(items) == ["deployed: True"]

    with contextlib.ExitStack() as stack:
        folder = tmp_path / "there"
        folder.mkdir()
        place = str(tmp_path / "shared.db") if store == "sqlite" else stack.enter_context(own_database())
        here = stack.enter_context(serving(tmp_path, "--journal", place, journal=False))
        there = stack.enter_context(serving(folder, "--journal", place, journal=False))
        drive(main(here, there))
        assert here.effects() + there.effects() == ["build", "deploy True"]


def test_the_time_limit_of_the_question_is_kept_elsewhere_too(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with on_a_line(server, "websocket", limit=0.5) as line:
            items = await line.end()
            (error,) = [item for item in items if isinstance(item, Error)]
            assert error.code == "timed_out"
            assert isinstance(items[-1], Done)

    with serving(tmp_path) as server:
        drive(main(server))
        until(lambda: server.get("/calls", OPS).json["calls"] == [])
        assert server.effects() == ["build"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_mounted_server_asks_its_own_people(tmp_path: Path, era: str) -> None:
    async def main(server: Server) -> None:
        front = Hub("front").mount("there", f"{server.url}/mcp", auth=CALLER, era=era)
        async with front:
            line = Line(aiter(front.call("there.people.deploy", {})))
            path = await line.link(server)
            await asyncio.to_thread(assert_only_for_ops, server, path)
            assert (await asyncio.to_thread(answer, server, path, True, OPS)).status == 200
            assert contents(await line.end()) == ["deployed: True"]

    with serving(tmp_path) as server:
        drive(main(server))
        assert server.effects() == ["build", "deploy True"]


# --- in a chat -----------------------------------------------------------------------------------


def test_in_a_chat_the_turn_goes_on_when_the_others_have_answered(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        ada = Keyed(server.port, CALLER)
        turn = asyncio.create_task(ada.say("deploy"))
        path = (await asyncio.to_thread(links, server, OPS))["sure"]
        await asyncio.to_thread(assert_only_for_ops, server, path)
        assert (await asyncio.to_thread(answer, server, path, True, OPS)).status == 200
        events = await turn
        assert questions(events) == []
        told = [event["message"] for event in events if event["type"] == "tool_progress"]
        assert told == [f"{SAID}{server.url}{path}"]
        assert text(events) == "It said: deployed: True"

    with serving(tmp_path, target="people_app:talking") as server:
        drive(main(server))
        assert server.effects() == ["build", "deploy True"]


def test_in_a_chat_others_answer_after_the_server_was_killed(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        ada = Keyed(server.port, CALLER)
        (asked,) = questions(await ada.say("mixed"))
        assert asked["key"] == "why"
        path = (await asyncio.to_thread(links, server, OPS))["really"]
        going_on = asyncio.create_task(ada.answer(asked, text="because"))
        await asyncio.to_thread(until, lambda: "why" not in links_of_all(server))
        await asyncio.to_thread(server.kill)
        await asyncio.wait((going_on,))
        going_on.exception()
        await asyncio.to_thread(server.start)
        assert (await asyncio.to_thread(answer, server, path, True, OPS)).status == 200
        while (await ada.shown())["run"] is not None:  # until that is known to be dead
            await asyncio.sleep(0.1)
        assert text(await ada.post(resume=True)) == 'It said: ["because",true]'

    with serving(tmp_path, target="people_app:talking") as server:
        drive(main(server), 3 * LIMIT)


def links_of_all(server: Server) -> str:
    return str([call["questions"] for call in server.get("/admin/calls", ROOT).json["calls"]])


# --- every kind, and who is who ------------------------------------------------------------------


def test_every_kind_of_question_can_be_for_somebody_else(tmp_path: Path) -> None:
    window = {"Custom": {"minutes": 5}}
    given = {"q1": True, "q2": "two", "q3": "b", "q4": window, "q5": {"level": 3}, "trip": window, "q7": True}
    with serving(tmp_path) as server:
        asked = server.call("people.everything", CALLER)
        for key, value in given.items():
            assert answer(server, links(server, OPS)[key], value, OPS).status == 200, key
        result = server.call("people.everything", CALLER, asked)
        assert json.loads(text_of(result)) == [True, "two", "b", 5, {"level": 3}, 5, None]


def test_a_question_to_the_caller_by_name_is_asked_as_any_other(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        asked = server.call("people.deploy", CALLER, to="ada")
        assert list(asked["inputRequests"]) == ["sure"]
        answers = {"sure": accept(confirmed=True)}
        assert text_of(server.call("people.deploy", CALLER, asked, answers, to="ada")) == "deployed: True"


def test_a_principal_cannot_take_the_name_of_a_scope(tmp_path: Path) -> None:
    """A name is not a scope, and a scope is not a name."""
    with serving(tmp_path, keys=f"{KEYS} ops=named-0123456789abcdef:bob") as server:
        server.call("people.deploy", CALLER)
        server.call("people.mixed", CALLER)
        assert server.get("/calls", "named-0123456789abcdef").json["calls"] == []
        assert set(links(server, OPS)) == {"sure", "really"}


def test_an_administrator_answers_in_the_place_of_anybody(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        asked = server.call("people.deploy", CALLER)
        call = server.only(ROOT)
        assert call["questions"][0]["to"] == "scope:ops"
        assert (
            server.post(f"/admin/calls/{call['id']}/answers", {"answers": {"sure": True}}, ROOT).status == 200
        )
        assert text_of(server.call("people.deploy", CALLER, asked)) == "deployed: True"


def test_without_keys_whoever_has_the_link_is_meant(tmp_path: Path) -> None:
    with Server(tmp_path, target="people_app:hub") as server:
        asked = server.call("people.deploy")
        assert "inputRequests" not in asked
        assert answer(server, links(server, None)["sure"], True, None).status == 200
        assert text_of(server.call("people.deploy", None, asked)) == "deployed: True"


@pytest.mark.parametrize("wrong", ["", "scope:", "a\nb", "x" * 201, 5])
def test_nobody_is_asked_by_a_name_that_nobody_can_have(wrong: Any) -> None:
    with pytest.raises(ValueError, match="A question is to a principal"):
        check_addressee(wrong)


def test_in_a_test_of_a_tool_whoever_runs_it_answers_for_all() -> None:
    async def main() -> None:
        outcome = await run(people, "people.deploy", answers=[True])
        assert outcome.result == "deployed: True"
        assert [question.to for question in outcome.questions] == ["scope:ops"]

    drive(main())


def test_the_same_question_to_another_one_is_another_question() -> None:
    question = Confirm("Sure?")
    assert len({fingerprint(question, to) for to in ("alice", "bob", "scope:bob", None)}) == 4

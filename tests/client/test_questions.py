"""Questions of servers in both eras: answered by handlers, by hand, in another process, or not at all."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from client_peers import calls, methods, midcall_server, nothing_waits, run, scripted, seen
from driving import LIMIT, until, with_patience
from mcp_peers import mcp_environment
from midcall import (
    Aborted,
    Ask,
    Cancelled,
    Client,
    Data,
    Declined,
    Hub,
    Question,
    RemoteError,
    Request,
    RequestCancelled,
    TimedOut,
    UnknownQuestion,
    WrongAnswer,
    connect,
    method,
)
from midcall.client import rounds
from midcall.client.targets import HubWire, Target
from midcall.questions import Confirm, Form, Prompt, Root, Sample, Sampled, Select, Url
from peers import HERE, command
from scripted_server import FORM, elicitation

ERAS = ["legacy", "modern"]
SAMPLING = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 5},
}
ROOTS = {"method": "roots/list", "params": {}}
VISIT = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Log in", "url": "https://x.test/", "elicitationId": "e1"},
}


async def ask(client: Client, era: str, question: Any) -> Any:
    """Have a scripted server of this era ask one question; give what it got for it."""
    arguments: dict[str, Any] = {"asks": [question] if era == "legacy" else [{"k": question}]}
    found = json.loads((await client.call("ask", arguments)).text)
    return found if era == "legacy" else found[0]["k"]


def asking(era: str, **options: Any) -> Client:
    return scripted("asking" if era == "legacy" else "rounds", **options)


# --- what is asked, and what is answered ------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_a_form_is_answered_with_its_defaults_filled_in(era: str) -> None:
    async def main() -> None:
        asked: list[Request] = []

        async def answer(request: Request) -> Any:
            asked.append(request)
            return {"name": "Ann"}

        async with asking(era, answer=answer) as client:
            assert await ask(client, era, elicitation()) == {
                "action": "accept",
                "content": {"name": "Ann", "size": 7},
            }
            assert asked[0].request_type == Form("Who?", FORM)
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("question", "answer", "result"),
    [
        (elicitation(), {"name": "A", "size": 1}, {"action": "accept", "content": {"name": "A", "size": 1}}),
        (elicitation(), "Declined", {"action": "decline"}),
        (elicitation(), "Cancelled", {"action": "cancel"}),
        (VISIT, True, {"action": "accept"}),
        (VISIT, False, {"action": "decline"}),
        (VISIT, "Cancelled", {"action": "cancel"}),
    ],
)
def test_what_a_handler_gives_is_what_the_server_gets(
    era: str, question: Any, answer: Any, result: Any
) -> None:
    async def main() -> None:
        async with asking(era, answer=lambda request: answer) as client:
            assert await ask(client, era, question) == result

    run(main())


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("error", "action"), [(Declined("no"), "decline"), (Cancelled("away"), "cancel")])
def test_a_handler_may_raise_a_refusal(era: str, error: Exception, action: str) -> None:
    async def main() -> None:
        def answer(request: Request) -> Any:
            raise error

        async with asking(era, answer=answer) as client:
            assert await ask(client, era, elicitation()) == {"action": action}

    run(main())


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("Hello", {"content": {"type": "text", "text": "Hello"}, "model": "unknown", "role": "assistant"}),
        (
            Sampled("Hello", "m1", "endTurn"),
            {
                "content": {"type": "text", "text": "Hello"},
                "model": "m1",
                "role": "assistant",
                "stopReason": "endTurn",
            },
        ),
        (
            {"role": "assistant", "content": [], "model": "x"},
            {"content": [], "model": "x", "role": "assistant"},
        ),
    ],
)
def test_a_model_is_asked_for_the_server(era: str, said: Any, result: Any) -> None:
    async def main() -> None:
        asked: list[Sample] = []

        async def sample(question: Sample) -> Any:
            asked.append(question)
            return said

        async with asking(era, sample=sample) as client:
            assert await ask(client, era, SAMPLING) == result
            assert asked[0].message == "Hi"
            assert asked[0].max_tokens == 5

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_the_folders_are_told(era: str, tmp_path: Path) -> None:
    async def main() -> None:
        folders = [str(tmp_path), tmp_path / "x", "file:///y", Root("file:///z", "Z")]
        expected = {
            "roots": [
                {"uri": tmp_path.as_uri(), "name": tmp_path.name},
                {"uri": (tmp_path / "x").as_uri(), "name": "x"},
                {"uri": "file:///y"},
                {"uri": "file:///z", "name": "Z"},
            ]
        }

        async def find() -> Any:
            return folders

        for roots in (folders, lambda: folders, find):
            async with asking(era, roots=roots) as client:
                assert await ask(client, era, ROOTS) == expected

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_several_questions_of_one_round_are_asked_at_once(era: str) -> None:
    async def main() -> None:
        together = asyncio.Barrier(3)

        async def answer(request: Request) -> Any:
            await together.wait()
            return {"name": request.request_type.message}

        async def sample(question: Sample) -> str:
            await together.wait()
            return "said"

        async with asking(era, answer=answer, sample=sample, roots=["file:///r"]) as client:
            asks = [elicitation("a"), elicitation("b"), SAMPLING, ROOTS]
            if era == "modern":
                asks = [{str(number): one for number, one in enumerate(asks)}]
                (found,) = json.loads((await client.call("ask", {"asks": asks})).text)
                assert found["0"]["content"]["name"] == "a"
                assert found["1"]["content"]["name"] == "b"
                assert found["2"]["content"]["text"] == "said"
                assert found["3"] == {"roots": [{"uri": "file:///r"}]}
            else:
                await client.call("ask", {"asks": asks})
                await client.ping()
                given = [one["result"] for one in await seen(client) if "method" not in one]
                assert len(given) == 4

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_the_same_questions_come_from_a_midcall_server(era: str) -> None:
    async def main() -> None:
        kinds = []

        def answer(request: Request) -> Any:
            question = request.request_type
            kinds.append(type(question))
            match question:
                case Confirm():
                    return True
                case Prompt():
                    return "word"
                case Select(multi_select=True):
                    return ["red", "blue"]
                case Select():
                    return "g"
                case Url():
                    return True
                case _:
                    return {"name": "Ann"}

        async with midcall_server(
            era=era, answer=answer, sample=lambda question: "hi", roots=["file:///r"]
        ) as client:
            results = await client.call_tools(
                [
                    {"id": name, "name": f"seek.{name}", "arguments": {}}
                    for name in (
                        "confirm",
                        "prompt",
                        "select",
                        "several",
                        "form",
                        "url",
                        "sample",
                        "roots",
                        "together",
                    )
                ]
            )
            texts = {one["call_id"]: one["result"]["content"][0]["text"] for one in results}
            assert texts == {
                "confirm": "confirmed: True",
                "prompt": "you: word",
                "select": "chose g",
                "several": "chose red blue",
                "form": "Ann 18 user",
                "url": "visited",
                "sample": "unknown said hi",
                "roots": "file:///r",
                "together": "word True",
            }
            assert kinds == [Confirm, Prompt, Select, Select, Form, Url, Prompt, Confirm]
            assert (await client.read("secret://x"))[0]["text"] == "the secret of x"
            asked = await client.prompt("interview", {"topic": "rust"})
            assert asked["messages"][1]["content"]["text"] == "word"
            await nothing_waits(client)

    run(main())


def test_what_is_not_offered_is_not_asked_for() -> None:
    async def main() -> None:
        async with midcall_server(era="modern") as client:
            (result,) = await client.call_tools([{"id": "a", "name": "seek.careful"}])
            assert result["result"]["content"][0]["text"] == "error: not_supported"
        for era in ERAS:
            async with asking(era) as client:
                for question in (elicitation(), SAMPLING, ROOTS):
                    if era == "legacy":
                        assert (await ask(client, era, question))["code"] == -32602
                    else:
                        with pytest.raises(RemoteError):
                            await ask(client, era, question)

    run(main())


# --- typed questions ------------------------------------------------------------------------------------------


@dataclass
class Pick:
    id: str


pick = Question("pickFlight", Pick)


class Flights:
    """Flights."""

    @method(elicits=[pick])
    async def book(self, ask: Ask) -> str:
        """Ask what brings data along, and what has a key only."""
        flight = await ask(pick, "Which flight?", flights=["MC1", "MC2"])
        return f"{flight.id} {await ask.prompt('Which seat?', key='seat')}"


@pytest.mark.parametrize("mounted", [False, True])
@pytest.mark.parametrize("front", ERAS)
@pytest.mark.parametrize("back", ERAS)
def test_a_question_comes_with_its_key_and_its_context_and_a_message_for_people(
    back: Any, front: Any, mounted: bool
) -> None:
    async def main() -> None:
        asked: list[Request] = []

        def answer(request: Request) -> Any:
            asked.append(request)
            return {"id": request.request_type.context["flights"][1]} if len(asked) == 1 else "12A"

        hub = Hub("back").register(Flights())
        target = Target("the hub behind", lambda: HubWire(hub))
        outer = Hub("front").mount("", target, era=back) if mounted else hub
        await outer.open()
        async with connect(outer, answer=answer, era=front) as client:
            assert (await client.call("flights.book")).text == "MC2 12A"
        assert [one.request_type.message for one in asked] == ["Which flight?", "Which seat?"]
        assert asked[0].request_type.context == {"flights": ["MC1", "MC2"]}
        assert [one.key for one in asked] == ["pickFlight", "seat"]
        await outer.close()
        await hub.close()

    run(main())


# --- handlers that fail -----------------------------------------------------------------------------


def broken(request: Any) -> Any:
    raise KeyError("the handler is broken")


def test_an_error_of_a_handler_goes_to_a_legacy_server(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with asking("legacy", answer=broken) as client:
            found = await ask(client, "legacy", elicitation())
            assert found["code"] == -32603
            assert "the handler is broken" in found["message"]

    run(main())
    assert "could not be answered" in caplog.text


def test_an_error_of_a_handler_fails_the_call_of_a_modern_server() -> None:
    async def main() -> None:
        async with asking("modern", answer=broken) as client:
            with pytest.raises(Aborted, match="the handler is broken") as caught:
                await ask(client, "modern", elicitation())
            assert isinstance(caught.value.__cause__, KeyError)
            (result,) = await client.call_tools(
                [{"id": "a", "name": "ask", "arguments": {"asks": [{"k": elicitation()}]}}]
            )
            assert "the handler is broken" in result["error"]
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("wrong", [5, "text", {"name": 5}, {"size": 3}, {"name": "A", "size": "big"}])
def test_an_answer_that_does_not_fit_is_not_sent(era: str, wrong: Any) -> None:
    async def main() -> None:
        async with asking(era, answer=lambda request: wrong) as client:
            if era == "legacy":
                assert "Nobody gave an answer" in (await ask(client, era, elicitation()))["message"]
            else:
                with pytest.raises(RemoteError, match="Nobody gave an answer"):
                    await ask(client, era, elicitation())

    run(main())


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "question",
    [
        {
            "method": "elicitation/create",
            "params": {"requestedSchema": {"properties": {"choice": {"oneOf": [1]}}}},
        },
        {"method": "elicitation/create", "params": {"requestedSchema": []}},
        {"method": "elicitation/create", "params": {"requestedSchema": {"properties": {"confirmed": 5}}}},
        {"method": "sampling/createMessage", "params": {"messages": 5}},
        {"method": "nonsense/create", "params": {}},
    ],
)
def test_a_question_that_cannot_be_read_is_refused(era: str, question: Any) -> None:
    async def main() -> None:
        async with asking(era, answer=lambda request: {}, sample=lambda question: "x") as client:
            if era == "legacy":
                assert (await ask(client, era, question))["code"] in (-32602, -32601)
            else:
                with pytest.raises(RemoteError):
                    await ask(client, era, question)
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("asks", [[{"k": 5}], [5], [[]], [{"k": {}}]])
def test_input_requests_that_cannot_be_read_fail_the_call(asks: Any) -> None:
    async def main() -> None:
        async with asking("modern", answer=lambda request: {}) as client:
            with pytest.raises(RemoteError):
                await client.call("ask", {"asks": asks})

    run(main())


# --- withdrawn questions ------------------------------------------------------------------------------


class Slow:
    """A handler that takes its time, and notes what becomes of it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, request: Request) -> Any:
        self.started.set()
        try:
            await asyncio.sleep(3 * LIMIT)
        finally:
            self.ended.set()


def test_a_legacy_server_may_withdraw_its_question() -> None:
    async def main() -> None:
        slow = Slow()
        async with asking("legacy", answer=slow) as client:
            call = asyncio.ensure_future(client.call("ask", {"asks": [elicitation()]})._collect())
            await slow.started.wait()
            await client.call("withdraw")
            assert (await call).text == "withdraw"
            await asyncio.wait_for(slow.ended.wait(), LIMIT)
            assert not [one for one in await seen(client) if "method" not in one]  # it is not answered

    run(main())


def test_a_question_ends_with_its_call() -> None:
    async def main() -> None:
        slow = Slow()
        async with asking("legacy", answer=slow) as client:
            call = asyncio.ensure_future(client.call("ask", {"asks": [elicitation()]})._collect())
            await slow.started.wait()
            await client.call("leave")
            assert (await call).text == "leave"
            await asyncio.wait_for(slow.ended.wait(), LIMIT)
            await client.ping()
            (told,) = [one for one in await seen(client) if "method" not in one]
            assert "is over" in told["error"]["message"]

    run(main())


def test_a_question_of_a_call_that_is_over_already_is_not_asked() -> None:
    async def main() -> None:
        slow = Slow()
        async with asking("legacy", answer=slow) as client:
            found = await client.call("ask", {"asks": [elicitation()], "hurry": True})
            assert found.text == "hurry"
            await client.ping()
            (told,) = [one for one in await seen(client) if "method" not in one]
            assert "is over" in told["error"]["message"]
            assert not slow.started.is_set()

    run(main())


def test_a_question_that_is_withdrawn_is_told_to_whoever_reads_the_items() -> None:
    async def main() -> None:
        async with midcall_server(era="legacy", by_hand=True) as client:
            items = [item async for item in client.call("seek.prompt", {"timeout": 0.5})]
            kinds = [type(item).__name__ for item in items]
            assert kinds == ["Request", "RequestCancelled", "Error", "Done"]
            assert isinstance(items[1], RequestCancelled)
            assert items[0].request_id == items[1].request_id

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_deadline_holds_while_a_person_thinks(era: str) -> None:
    async def main() -> None:
        slow = Slow()
        async with midcall_server(era=era, answer=slow) as client:

            async def attempt(seconds: float) -> bool:
                batch = [{"id": "a", "name": "seek.prompt"}, {"id": "b", "name": "give.word"}]
                results = await client.call_tools(batch, timeout=seconds, parallel=True)
                assert results[0]["error"] == "timeout"
                return slow.started.is_set() and "error" not in results[1]

            await with_patience(attempt)
            await asyncio.wait_for(slow.ended.wait(), LIMIT)
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_the_time_of_a_person_is_not_the_time_of_the_server(era: str) -> None:
    async def main() -> None:
        thinks = 0.0

        async def answer(request: Request) -> Any:
            await asyncio.sleep(thinks)
            return "word"

        async with midcall_server(era=era, answer=answer) as client:

            async def attempt(seconds: float) -> bool:
                nonlocal thinks
                thinks = 1.25 * seconds
                try:
                    assert (await client.call("seek.prompt", timeout=seconds)).text == "you: word"
                except TimedOut:
                    return False
                return True

            await with_patience(attempt)
            with pytest.raises(TimedOut, match="no sign of life"):
                await client.call("give.slow", {"seconds": LIMIT}, timeout=0.3)

    run(main())


# --- by hand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_questions_are_answered_by_hand(era: str) -> None:
    async def main() -> None:
        async with midcall_server(era=era, by_hand=True) as client:
            call = client.call("seek.wizard", {"run": era})
            asked, texts = [], []
            async for item in call:
                match item:
                    case Request():
                        asked.append(type(item.request_type))
                        answer = {Prompt: "demo", Select: "full", Confirm: True}[asked[-1]]
                        await call.answer(item.request_id, answer)
                    case Data():
                        texts.append(item.content.text)
            assert asked == [Prompt, Select, Confirm]
            assert texts == ["demo full True"]
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_wrong_answer_leaves_the_question_open(era: str) -> None:
    async def main() -> None:
        async with midcall_server(era=era, by_hand=True) as client:
            call = client.call("seek.form")
            texts = []
            async for item in call:
                if isinstance(item, Request):
                    for wrong in (5, "Ann", {"name": 5}, {"name": "Ann", "role": "king"}, {"age": 3}):
                        with pytest.raises(WrongAnswer):
                            await call.answer(item.request_id, wrong)
                    with pytest.raises(UnknownQuestion):
                        await call.answer("nothing", {})
                    await call.answer(item.request_id, {"name": "Ann", "role": "admin"})
                    with pytest.raises(UnknownQuestion):
                        await call.answer(item.request_id, {"name": "Bob"})
                elif isinstance(item, Data):
                    texts.append(item.content.text)
            assert texts == ["Ann 18 admin"]

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_each_call_may_have_its_own_handler(era: str) -> None:
    async def main() -> None:
        def other(request: Request) -> Any:
            raise AssertionError("the handler of the client is not asked")

        for options in ({"by_hand": True}, {"answer": other}):
            async with midcall_server(era=era, **options) as client:
                found = await client.call("seek.prompt", {"name": "a"}, answer=lambda request: "mine")
                assert found.text == "a: mine"

    run(main())


def test_parallel_calls_with_handlers_of_their_own_over_a_modern_line() -> None:
    async def main() -> None:
        async with midcall_server(era="modern", by_hand=True) as client:

            async def one(name: str) -> str:
                found = await client.call("seek.prompt", {"name": name}, answer=lambda request: f"for {name}")
                return str(found.text)

            names = [f"n{number}" for number in range(10)]
            assert await asyncio.gather(*map(one, names)) == [f"{name}: for {name}" for name in names]

    run(main())


def test_a_handler_for_a_call_needs_a_client_that_may_be_asked() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            with pytest.raises(ValueError, match="by_hand=True"):
                client.call("echo", answer=lambda request: True)

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_what_the_handler_of_a_call_raises_is_raised_by_the_call(era: str) -> None:
    async def main() -> None:
        async with midcall_server(era=era, by_hand=True) as client:
            with pytest.raises(KeyError, match="the handler is broken"):
                await client.call("seek.prompt", answer=broken)
            with pytest.raises(WrongAnswer):
                await client.call("seek.prompt", answer=lambda request: 5)
            await until(lambda: not client._reconnect.current.waiting)  # type: ignore[union-attr]

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_is_cancelled_in_the_middle_of_a_question_ends(era: str) -> None:
    async def main() -> None:
        async with midcall_server(era=era, by_hand=True) as client:
            call = client.call("seek.prompt", {"name": "gone"})
            kinds = []
            async for item in call:
                kinds.append(type(item).__name__)
                if isinstance(item, Request):
                    await call.cancel()
                    await call.cancel()
            assert kinds[0] == "Request"
            assert kinds[-2:] == ["Error", "Done"]
            assert kinds.count("Done") == 1
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_reader_that_leaves_cancels_the_call(era: str) -> None:
    async def main() -> None:
        async with midcall_server(era=era, by_hand=True) as client:
            async for item in client.call("seek.prompt", {"name": "left"}):
                assert isinstance(item, Request)
                break
            await until(lambda: not client._reconnect.current.waiting)  # type: ignore[union-attr]

    run(main())


# --- rounds ----------------------------------------------------------------------------------------------


def test_a_server_that_asks_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 5)

    async def main() -> None:
        count = 0

        def answer(request: Request) -> Any:
            nonlocal count
            count += 1
            return {"name": "x"}

        async with asking("modern", answer=answer) as client:
            with pytest.raises(RemoteError, match="asked in more than 5 rounds"):
                await client.call("ask", {"asks": [{"k": elicitation()}], "for ever": True})
            assert count == 5
            await nothing_waits(client)

    run(main())


def test_a_server_that_only_wants_to_be_asked_again_is_asked_again() -> None:
    async def main() -> None:
        async with scripted("waits", "5") as client:
            assert (await client.call("x")).text == "after 5"

    run(main())


def test_a_server_that_wants_to_be_asked_again_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_WAITS", 5)

    async def main() -> None:
        async with scripted("waits", "1000") as client:
            with pytest.raises(RemoteError, match="asked again too often"):
                await client.call("x")
            (result,) = await client.call_tools(calls(1), timeout=0.1)
            assert not result["success"]
            await nothing_waits(client)

    run(main())


def test_the_state_goes_back_as_it_came_and_ids_differ() -> None:
    async def main() -> None:
        async with asking("modern", answer=lambda request: {"name": "x"}) as client:
            asks = [{"k": elicitation("one")}, {"k": elicitation("two")}]
            found = json.loads((await client.call("ask", {"asks": asks, "more": 1})).text)
            assert [one["k"]["action"] for one in found] == ["accept", "accept"]
            sent = [one for one in await seen(client) if one["params"].get("name") == "ask"]
            assert len({one["id"] for one in sent}) == 3
            assert [one["params"].get("requestState") for one in sent][:2] == [None, "[]"]
            assert all(one["params"]["arguments"] == sent[0]["params"]["arguments"] for one in sent)

    run(main())


# --- pages to be visited first ------------------------------------------------------------------------------


def test_a_page_that_a_legacy_server_wants_visited_is_visited_and_the_call_is_sent_again() -> None:
    async def main() -> None:
        visited: list[Any] = []

        def answer(request: Request) -> Any:
            visited.append(request.request_type)
            return True

        async with scripted("pages", answer=answer) as client:
            assert (await client.call("x", {"page": "p1"})).text == "after p1"
            assert visited == [Url("Log in", "https://x.test/login")]
            with pytest.raises(RemoteError) as caught:  # it wants the same page again and again
                await client.call("x", {"page": "never"})
            assert caught.value.rpc_code == -32042
            assert len(visited) == 2
            with pytest.raises(RemoteError):  # or another one each time
                await client.call("x", {"page": "ever new"})
            assert len(visited) == 2 + rounds.MAX_VISITS

    run(main())


@pytest.mark.parametrize("options", [{}, {"answer": lambda request: False}])
def test_a_page_that_nobody_visits_fails_the_call(options: dict[str, Any]) -> None:
    async def main() -> None:
        async with scripted("pages", **options) as client:
            with pytest.raises(RemoteError, match="URL elicitation required") as caught:
                await client.call("x")
            assert caught.value.rpc_code == -32042

    run(main())


# --- tasks ------------------------------------------------------------------------------------------------


def test_a_task_is_followed_with_the_questions_in_it() -> None:
    async def main() -> None:
        async with midcall_server(era="modern", answer=lambda request: "word") as client:
            assert (await client.call("seek.job")).text == "job done: word"
            (result,) = await client.call_tools([{"id": "a", "name": "seek.job"}])
            assert result["result"]["content"][0]["text"] == "job done: word"
            with pytest.raises(Exception, match="It broke"):
                await client.call("seek.job", {"fail": True})
            with pytest.raises(RemoteError, match="There is no word"):
                await client.call("seek.doomed")
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ([{"status": "working"}, {"status": "failed", "error": {"code": -1, "message": "boom"}}], "boom"),
        ([{"status": "failed"}], "The task failed"),
        ([{"status": "failed", "error": "x"}], "The task failed"),
        ([{"status": "cancelled", "statusMessage": "stopped by hand"}], "stopped by hand"),
        ([{"status": "cancelled"}], "The task was cancelled"),
        ([{"status": "completed"}], "ended strangely: 'completed'"),
        ([{"status": "completed", "result": [1]}], "ended strangely"),
        ([{"status": "dancing"}], "ended strangely: 'dancing'"),
        ([{}], "ended strangely: None"),
        ([{"status": "input_required", "inputRequests": 5}], "cannot be read"),
        ([{"status": "input_required", "inputRequests": {"a": 5}}], "cannot be read"),
    ],
)
def test_a_task_that_ends_badly_fails_its_call(states: list[Any], why: str) -> None:
    async def main() -> None:
        async with scripted("tasks", answer=lambda request: {}) as client:
            with pytest.raises(Exception, match=why):
                await client.call("x", {"states": states}, timeout=LIMIT)
            await nothing_waits(client)

    run(main())


def test_a_task_of_which_nothing_more_is_heard_fails_its_call() -> None:
    async def attempt(seconds: float) -> bool:
        async with scripted("tasks", answer=lambda request: {}) as client:
            with pytest.raises(TimedOut) as failed:
                await client.call("x", {"states": ["silence"]}, timeout=seconds)
            await nothing_waits(client)
            if "no sign of life" in str(failed.value):  # there was no time to begin it
                return False
            assert "no answer within" in str(failed.value)
            return True

    run(with_patience(attempt))


def test_a_task_may_say_strange_things_and_still_end_well() -> None:
    async def main() -> None:
        done = {"status": "completed", "result": {"content": [{"type": "text", "text": "fine"}]}}
        states = [
            {"status": "working", "pollIntervalMs": -5, "statusMessage": "at it"},
            {"status": "working", "pollIntervalMs": "soon", "statusMessage": 5},
            {"status": "working", "pollIntervalMs": None, "statusMessage": "at it"},
            {"status": "input_required", "inputRequests": {}},
            {"status": "input_required", "inputRequests": {"k": elicitation()}},
            {"status": "input_required", "inputRequests": {"k": elicitation()}},  # it has not looked yet
            done,
        ]
        asked = []

        def answer(request: Request) -> Any:
            asked.append(request)
            return {"name": "x"}

        async with scripted("tasks", answer=answer) as client:
            items = [item async for item in client.call("x", {"states": states})]
            assert [item.message for item in items if type(item).__name__ == "Progress"] == ["at it"]
            assert items[-2].content.text == "fine"
            assert len(asked) == 1
            (update,) = [one for one in await seen(client) if one["method"] == "tasks/update"]
            assert update["params"]["inputResponses"]["k"]["action"] == "accept"

    run(main())


def test_a_task_that_never_ends_is_cancelled_at_the_deadline() -> None:
    async def attempt(seconds: float) -> bool:
        async with scripted("tasks") as client:
            batch = [{"id": "a", "name": "x", "arguments": {"states": [{"status": "working"}]}}]
            (result,) = await client.call_tools(batch, timeout=seconds)
            assert result["error"] == "timeout"
            await nothing_waits(client)
            asked = methods(await seen(client))
            if "tasks/get" not in asked:
                return False
            assert asked.count("tasks/cancel") == 1
            return True

    run(with_patience(attempt))


# --- calls that are gone on with ----------------------------------------------------------------------------


RESUMER = """
import asyncio, json, sys
from midcall import connect
async def main():
    target, handle = json.loads(sys.stdin.read())
    async with connect(target["command"], env=target["env"], answer=answer) as client:
        print(json.dumps([(await client.resume(handle)).text, asked]))
asked = []
def answer(request):
    asked.append(request.request_type.message)
    return {"Project name?": "demo", "Template?": "full", "Create it?": True, "A word?": "late"}[asked[-1]]
asyncio.run(main())
"""


def test_a_call_goes_on_in_another_process_after_client_and_server_are_gone(tmp_path: Path) -> None:
    words = command("serve", "mcp_app:hub", "--stdio", "--mcp-only", "--journal", str(tmp_path / "calls.db"))

    async def first() -> Any:
        client = connect(words, env=mcp_environment(), by_hand=True, era="modern")
        await client.open()
        call = client.call("seek.wizard", {"run": "kept"})
        handles = []
        async for item in call:
            if isinstance(item, Request):
                handles.append(json.loads(json.dumps(call.handle)))
                if len(handles) == 2:
                    break
                await call.answer(item.request_id, "demo")
        await client.close()  # and the server with it
        return handles[-1]

    handle = run(first())
    assert handle["method"] == "tools/call"
    assert handle["params"] == {"name": "seek.wizard", "arguments": {"run": "kept"}}
    found = subprocess.run(
        [sys.executable, "-c", RESUMER],
        input=json.dumps([{"command": words, "env": mcp_environment()}, handle]),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=HERE,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == ["demo full True", ["Template?", "Create it?"]]


def test_a_call_goes_on_although_the_line_was_lost_while_a_person_thought(tmp_path: Path) -> None:
    words = command("serve", "mcp_app:hub", "--stdio", "--mcp-only", "--journal", str(tmp_path / "calls.db"))

    async def main() -> None:
        async def answer(request: Request) -> Any:
            if isinstance(request.request_type, Select):
                session = client._reconnect.current
                assert session is not None
                session._wire._transport.kill()  # type: ignore[attr-defined]
                await until(lambda: session.ended is not None)
            return {Prompt: "demo", Select: "full", Confirm: True}[type(request.request_type)]

        async with connect(words, env=mcp_environment(), answer=answer, era="modern") as client:
            assert (await client.call("seek.wizard", {"run": "lost"})).text == "demo full True"

    run(main())


def test_a_task_is_looked_for_on_a_new_line_after_the_old_one_was_lost(tmp_path: Path) -> None:
    words = command("serve", "mcp_app:hub", "--stdio", "--mcp-only", "--journal", str(tmp_path / "calls.db"))

    async def main() -> None:
        async def answer(request: Request) -> Any:
            session = client._reconnect.current
            assert session is not None
            session._wire._transport.kill()  # type: ignore[attr-defined]
            await until(lambda: session.ended is not None)
            return "after all"

        async with connect(words, env=mcp_environment(), answer=answer, era="modern") as client:
            assert (await client.call("seek.job")).text == "job done: after all"

    run(main())


def test_a_look_at_a_task_and_an_answer_to_it_are_sent_again_if_they_are_lost(tmp_path: Path) -> None:
    async def main() -> None:
        asked = []

        def answer(request: Request) -> Any:
            asked.append(request)
            return {"name": "x"}

        async with scripted("mortal_task", str(tmp_path / "mark"), answer=answer) as client:
            assert (await client.call("x")).text == "survived"
            assert len(asked) == 1

    run(main())


def test_a_task_that_is_kept_is_found_again_by_its_handle(tmp_path: Path) -> None:
    words = command("serve", "mcp_app:hub", "--stdio", "--mcp-only", "--journal", str(tmp_path / "calls.db"))

    async def first() -> Any:
        client = connect(words, env=mcp_environment(), by_hand=True, era="modern")
        await client.open()
        call = client.call("seek.job")
        items = call.__aiter__()
        async for item in items:
            if isinstance(item, Request):
                break
        handle = json.loads(json.dumps(call.handle))
        await client.close()
        await items.aclose()  # type: ignore[attr-defined]
        return handle

    async def second(handle: Any) -> str:
        async with connect(
            words, env=mcp_environment(), answer=lambda request: "late", era="modern"
        ) as client:
            return str((await client.resume(handle)).text)

    handle = run(first())
    assert "taskId" in handle
    assert run(second(handle)) == "job done: late"


def test_a_handle_that_is_none_is_refused() -> None:
    async def main() -> None:
        async with scripted("modern") as client:
            for wrong in (
                {},
                {"method": "tools/call"},
                {"method": 5, "params": {}},
                {"method": "x", "params": 5},
            ):
                with pytest.raises(ValueError, match="not the handle"):
                    client.resume(wrong)

    run(main())

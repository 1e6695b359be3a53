"""What a mounted server asks reaches whoever has made the call, whichever eras the two speak."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from driving import assert_nothing_left, until
from midcall import Cancelled, Hub, NotSupported, ToolError
from midcall.client import connect
from midcall.items import Request, RequestCancelled
from midcall.questions import Confirm, Prompt, Sample, Select, Url
from mounting import ERAS, drive, mounted, result_of, speaking_for, strange
from strange_forms import ODD_FORM

CASES = [(behind, front) for behind in ERAS for front in ERAS]
ORDER = {"size": "M"}


def said(found: Any) -> Any:
    return json.loads(found.text)


def to_all(request: Request) -> Any:
    """Answers the three questions of the wizard."""
    match request.request_type:
        case Prompt():
            return "demo"
        case Select():
            return "full"
        case Confirm():
            return True
    raise AssertionError(request)


@pytest.mark.parametrize("behind", ERAS)
def test_what_a_model_must_not_answer_is_not_asked_across_a_mount_where_a_model_would(behind: str) -> None:
    async def main() -> None:
        async with mounted(era=behind) as hub, connect(hub, era="legacy") as client:
            with pytest.raises(ToolError) as refused:
                await client.call("b.seek.permission")
            assert refused.value.code == ("not_supported" if behind == "modern" else "cancelled")
        async with (
            mounted(era=behind) as hub,
            connect(hub, era="legacy", answer=lambda request: True) as client,
        ):
            assert (await client.call("b.seek.permission")).text == "permitted: True"

    drive(main())


# --- the bridge -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_three_questions_are_asked_and_answered_across_the_eras(behind: str, front: str) -> None:
    async def main() -> None:
        asked: list[Any] = []

        def answer(request: Request) -> Any:
            asked.append(request.request_type)
            return to_all(request)

        async with mounted(era=behind) as hub, connect(hub, era=front, answer=answer) as client:
            assert (await client.call("b.seek.wizard", {"run": "x"})).text == "demo full True"
            assert [type(one) for one in asked] == [Prompt, Select, Confirm]
            assert [one.message for one in asked] == ["Project name?", "Template?", "Create it?"]
            assert [option.value for option in asked[1].options] == ["minimal", "full"]
            trail = (await client.call("b.admin.state")).structured["trail"]
            assert trail == ["x before", "x named demo", "x chose full", "x done"]
        await assert_nothing_left(hub)

    drive(main())


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_decline_and_cancel_stay_what_they_are(behind: str, front: str) -> None:
    async def main() -> None:
        for refusal, code in (("Declined", "declined"), ("Cancelled", "cancelled")):
            async with (
                mounted(era=behind) as hub,
                connect(hub, era=front, answer=lambda _, how=refusal: how) as client,
            ):
                assert (await client.call("b.seek.careful")).text == f"error: {code}"
                if refusal == "Declined":
                    assert (await client.call("b.seek.confirm")).text == "confirmed: False"

    drive(main())


def test_callers_in_the_process_are_asked_too() -> None:
    async def main() -> None:
        for era in ERAS:
            async with mounted(era=era) as hub:
                assert await hub.call("b.seek.wizard", answer=to_all) == "demo full True"
                with pytest.raises(NotSupported if era == "modern" else Cancelled, match="cannot be asked"):
                    await hub.call("b.seek.wizard")

    drive(main())


def test_what_is_asked_when_a_prompt_or_a_resource_is_wanted_is_passed_on() -> None:
    async def main() -> None:
        async with mounted(era="modern") as hub:
            for front in ERAS:
                async with connect(
                    hub, era=front, answer=lambda r: r.request_type.kind == "confirm" or "deep"
                ) as c:
                    assert (await c.read("secret://box"))[0]["text"] == "the secret of box"
                    found = await c.prompt("b.interview", {"topic": "tea"})
                    assert found["messages"][1]["content"]["text"] == "deep"

    drive(main())


# --- what is asked, untouched --------------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_a_form_goes_through_untouched_and_so_does_its_answer(behind: str, front: str) -> None:
    async def main() -> None:
        asked: list[Any] = []

        def answer(request: Request) -> Any:
            asked.append(request.request_type)
            return ORDER

        async with (
            mounted(strange(behind), era=behind) as hub,
            connect(hub, era=front, answer=answer) as client,
        ):
            found = said(await client.call("b.form"))
            assert asked[0].schema == ODD_FORM
            assert asked[0].message == "Your order?"
            given = found["order"] if behind == "modern" else found
            assert given == {"action": "accept", "content": {"size": "M", "count": 2}}

    drive(main())


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_a_model_is_asked_with_all_that_the_server_says(behind: str, front: str) -> None:
    async def main() -> None:
        asked: list[Sample] = []
        reply = {
            "role": "assistant",
            "content": {"type": "text", "text": "Hi yourself"},
            "model": "small-1",
            "stopReason": "endTurn",
        }

        def sample(question: Sample) -> Any:
            asked.append(question)
            return reply

        async with (
            mounted(strange(behind), era=behind) as hub,
            connect(hub, era=front, sample=sample, answer=to_all) as client,
        ):
            found = said(await client.call("b.sample"))
            assert (found["model"] if behind == "modern" else found) == reply
            (question,) = asked
            assert (question.system, question.max_tokens, question.temperature) == ("Be brief", 7, 0.25)
            assert question.options == {
                "stopSequences": ["END"],
                "modelPreferences": {"hints": [{"name": "small"}], "costPriority": 0.9},
                "metadata": {"trace": "t"},
            }

    drive(main())


def test_folders_of_the_caller_reach_the_server() -> None:
    async def main() -> None:
        for behind, front in CASES:
            async with (
                mounted(era=behind) as hub,
                connect(hub, era=front, roots=["file:///work", "file:///home"], answer=to_all) as client,
            ):
                assert (await client.call("b.seek.roots")).text == "file:///work file:///home"

    drive(main())


def test_a_mount_may_have_a_model_and_folders_of_its_own() -> None:
    async def main() -> None:
        for era in ERAS:
            async with (
                mounted(era=era, sample=lambda _: "from the hub", roots=["file:///srv"]) as hub,
                connect(hub, answer=to_all) as client,
            ):
                assert (await client.call("b.seek.sample")).text == "unknown said from the hub"
                assert (await client.call("b.seek.roots")).text == "file:///srv"

    drive(main())


# --- several, withdrawn, ended --------------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_of_two_questions_one_may_be_declined_and_the_other_answered(behind: str, front: str) -> None:
    async def main() -> None:
        def answer(request: Request) -> Any:
            return {"word": "yes"} if request.request_type.message.startswith("First") else "Declined"

        async with (
            mounted(strange(behind), era=behind) as hub,
            connect(hub, era=front, answer=answer) as client,
        ):
            found = said(await client.call("b.both"))
            first, second = (found["First"], found["Second"]) if behind == "modern" else found
            assert first == {"action": "accept", "content": {"word": "yes"}}
            assert second == {"action": "decline"}

    drive(main())


def open_questions(hub: Hub) -> list[str]:
    return [question.message for call in hub.calls.list() for question in call.questions]


@pytest.mark.parametrize("front", ERAS)
def test_a_question_that_the_server_withdraws_is_withdrawn(front: str, tmp_path: Path) -> None:
    is_asked = tmp_path / "asked"

    async def main() -> None:
        async with (
            mounted(strange("legacy"), era="legacy") as hub,
            connect(hub, era=front, by_hand=True) as client,
        ):
            call = client.call("b.withdraws", {"file": str(is_asked)})
            asked: list[str] = []
            text = ""
            async for item in call:
                match item:
                    case Request(request_type=question):
                        asked.append(question.message)
                        if question.message.endswith("Instead?"):
                            await call.answer(item.request_id, {"word": "fine"})
                            continue
                        is_asked.touch()
                        if front == "modern":  # its answer comes too late, and finds the next question
                            await until(lambda: "Instead?" in open_questions(hub))
                            await call.answer(item.request_id, {"word": "late"})
                    case RequestCancelled():
                        assert front == "legacy"
                    case _:
                        text = getattr(getattr(item, "content", None), "text", text)
            assert asked == ["Never mind?", "Instead?"]
            assert json.loads(text) == {"action": "accept", "content": {"word": "fine"}}

    drive(main())


@pytest.mark.parametrize("front", ERAS)
def test_a_server_that_does_not_wait_for_its_answer_ends_the_call(front: str, tmp_path: Path) -> None:
    is_asked = tmp_path / "asked"

    async def main() -> None:
        async with (
            mounted(strange("legacy"), era="legacy") as hub,
            connect(hub, era=front, by_hand=True) as client,
        ):
            call = client.call("b.ends", {"file": str(is_asked)})
            texts = []
            async for item in call:
                if isinstance(item, Request):
                    is_asked.touch()
                    if front == "modern":
                        await until(lambda: hub.calls.open_questions == 0)
                        await call.answer(item.request_id, {"word": "late"})
                texts.append(getattr(getattr(item, "content", None), "text", None))
            assert "I did not wait" in texts
            assert hub.calls.open_questions == 0

    drive(main())


@pytest.mark.parametrize("front", ERAS)
def test_a_page_that_a_legacy_server_wants_to_be_visited_is_asked_for(front: str) -> None:
    async def main() -> None:
        pages: list[Any] = []

        def answer(request: Request) -> Any:
            pages.append(request.request_type)
            return True

        async with (
            mounted(strange("legacy"), era="legacy") as hub,
            connect(hub, era=front, answer=answer) as client,
        ):
            assert (await client.call("b.pages")).text == "came in"
            assert pages == [Url("Please log in", "https://example.com/in")]

    drive(main())


@pytest.mark.parametrize("front", ERAS)
def test_a_task_of_the_server_is_followed_and_its_questions_are_asked(front: str) -> None:
    async def main() -> None:
        async with (
            mounted(strange("modern"), era="modern") as hub,
            connect(hub, era=front, answer=lambda _: {"word": "done"}) as client,
        ):
            found = said(await client.call("b.task"))
            assert found == {"word": {"action": "accept", "content": {"word": "done"}}}

    drive(main())


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_a_long_running_tool_of_midcall_is_followed_as_a_task(behind: str, front: str) -> None:
    async def main() -> None:
        async with mounted(era=behind) as hub, connect(hub, era=front, answer=lambda _: "ok") as client:
            assert (await client.call("b.seek.job")).text == "job done: ok"

    drive(main())


# --- who cannot be asked ----------------------------------------------------------------------------------


def test_a_modern_server_is_told_what_the_caller_in_front_can_be_asked() -> None:
    async def main() -> None:
        async with mounted(strange("modern"), era="modern") as hub:
            async with connect(hub, era="modern") as client:
                declared = said(await client.call("b.capabilities"))
                assert declared == {"extensions": {"io.modelcontextprotocol/tasks": {}}}
            async with connect(hub, era="modern", answer=to_all, roots=["/"]) as client:
                declared = said(await client.call("b.capabilities"))
                assert declared["elicitation"] == {"form": {}, "url": {}}
                assert "roots" in declared
                assert "sampling" not in declared

    drive(main())


def test_a_tool_that_can_do_without_an_answer_does_so_for_a_caller_who_cannot_be_asked() -> None:
    async def main() -> None:
        async with mounted(era="modern") as hub, connect(hub, era="modern") as client:
            assert (await client.call("b.seek.fallback")).text == "used nothing"
            assert await hub.call("b.seek.fallback") == "used nothing"

    drive(main())


def test_a_legacy_server_gets_an_error_for_a_question_that_the_caller_cannot_answer() -> None:
    async def main() -> None:
        async with mounted(strange("legacy"), era="legacy") as hub, connect(hub, era="modern") as client:
            found = said(await client.call("b.form"))
            assert found["error"]["code"] == -32602
            found = said(await client.call("b.sample"))
            assert found["error"]["code"] == -32601

    drive(main())


def test_a_modern_server_that_asks_all_the_same_makes_the_call_fail_clearly() -> None:
    async def main() -> None:
        async with mounted(strange("modern"), era="modern") as hub, connect(hub, era="modern") as client:
            with pytest.raises(ToolError, match="b asked something that has no answer: This caller cannot"):
                await client.call("b.form")

    drive(main())


def test_a_legacy_client_without_elicitation_is_asked_by_the_tool_for_that() -> None:
    async def main() -> None:
        async with mounted(era="modern") as hub, connect(hub, era="legacy", log_level="info") as client:
            running = asyncio.ensure_future(result_of(client.call("b.seek.prompt", {"name": "x"})))
            await until(lambda: hub.calls.open_questions == 1)
            (info,) = [question for call in hub.calls.list() for question in call.questions]
            given = {"request_id": info.request_id, "payload": "by hand"}
            await client.call("_plexus_respond", given)
            assert (await running).text == "x: by hand"

    drive(main())


# --- whose question it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_nobody_is_asked_what_the_call_of_another_principal_asks(era: str) -> None:
    names = ("ann", "bob", "eve")

    async def main() -> None:
        asked: dict[str, list[str]] = {name: [] for name in names}

        async def calls(hub: Hub, name: str) -> list[str]:
            async def answer(request: Request) -> str:
                asked[name].append(request.request_type.message)
                await asyncio.sleep(0.01)
                return f"from {name}"

            async with connect(speaking_for(hub, name), era="legacy", answer=answer) as client:
                rounds = [client.call("b.seek.prompt", {"name": name}) for _ in range(5)]
                return [(await one).text for one in rounds]

        async with mounted(era=era) as hub:
            found = await asyncio.gather(*(calls(hub, name) for name in names))
            assert found == [[f"{name}: from {name}"] * 5 for name in names]
            assert asked == {name: [f"A word for {name}?"] * 5 for name in names}
            clients = list(hub.mounts[0].clients)
            assert len(clients) == (1 if era == "modern" else 1 + len(names))

    drive(main())


def test_a_question_on_stdio_belongs_to_the_newest_call_of_its_principal() -> None:
    async def main() -> None:
        async with mounted(era="legacy") as hub:
            slow = asyncio.ensure_future(result_of(hub.call("b.give.slow", {"seconds": 60})))
            await until(lambda: len(list(hub.mounts[0].clients.base.exchanges)) == 1)
            found = await hub.call("b.seek.prompt", {"name": "new"}, answer=lambda _: "mine")
            assert found == "new: mine"
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)

    drive(main())


@pytest.mark.parametrize("behind", ERAS)
@pytest.mark.parametrize("front", ERAS)
def test_one_call_goes_on_when_the_server_asks(behind: str, front: str) -> None:
    made: list[str] = []
    seen: set[str] = set()

    async def main() -> None:
        async with mounted(era=behind) as hub:
            prepare = hub.prepare

            def counted(found: Any, *args: Any, **options: Any) -> Any:
                made.append(found.name)
                return prepare(found, *args, **options)

            def answer(request: Request) -> str:
                seen.update(one.id for one in hub.calls.list())
                return "word"

            hub.prepare = counted  # type: ignore[method-assign]
            async with connect(hub, era=front, answer=answer) as client:
                assert (await client.call("b.seek.prompt")).text
            assert made == ["b.seek.prompt"]
            assert len(seen) == 1
            assert len(hub.calls) == 0

    drive(main())


def test_a_client_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midcall.mount.clients.IDLE", 0.2)
    monkeypatch.setattr("midcall.mount.mount.LOOK", 0.05)

    async def main() -> None:
        async with mounted(strange("legacy"), era="legacy") as hub:
            assert await hub.call("b.list", principal="ann") == [1, 2]
            await until(lambda: len(list(hub.mounts[0].clients)) == 1)
            assert await hub.call("b.list", principal="ann") == [1, 2]

    drive(main())


def test_a_client_that_takes_long_to_start_is_not_taken_for_an_idle_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("midcall.mount.clients.IDLE", 0.2)
    monkeypatch.setattr("midcall.mount.mount.LOOK", 0.05)
    slow = ["sh", "-c", 'sleep 1; exec "$@"', "sh", *strange("legacy")]

    async def main() -> None:
        async with mounted(slow, era="legacy") as hub:
            assert await hub.call("b.list", principal="ann") == [1, 2]

    drive(main())


def test_there_are_not_more_clients_than_may_be_and_idle_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("midcall.mount.clients.MOST", 2)

    async def main() -> None:
        async with mounted(strange("legacy"), era="legacy") as hub:
            for name in ("a", "b", "c", "d"):
                async with connect(speaking_for(hub, name)) as client:
                    assert (await client.call("b.list")).text == "[1,2]"
                assert len(list(hub.mounts[0].clients)) <= 3
            async with connect(speaking_for(hub, "x")) as x, connect(speaking_for(hub, "y")) as y:
                waiting = [asyncio.ensure_future(result_of(one.call("b.silent"))) for one in (x, y)]
                await until(lambda: sum(any(one.exchanges) for one in hub.mounts[0].clients) == 2)
                async with connect(speaking_for(hub, "z")) as z:
                    with pytest.raises(ToolError, match="More than 2 callers"):
                        await z.call("b.list")
                for one in waiting:
                    one.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    drive(main())

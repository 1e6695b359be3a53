"""What a person does in a conversation beside saying things: ask back while a question waits, edit, retry; and
what the conversation keeps of it."""

import base64
from typing import Any

import pytest

from chatting import Puppet, call, chat, kinds, only, questions, text
from driving import drive
from midcall import Ask, method
from midcall.chat.dialect import ChatCalls
from midcall.chat.turn import LATE, NOTHING_SAID, WAITS, for_model
from midcall.content import Audio, Document, Embedded, Image, Link
from midcall.errors import JournalError
from midcall.models.base import Message, ModelError, ToolCall

PNG = b"\x89PNG\r\n\x1a\n" + b"dots" * 10


class Desk:
    """Asks, fails and shows."""

    def __init__(self) -> None:
        self.erased = 0

    @method
    async def erase(self, ask: Ask, name: str = "notes") -> str:
        """Erase something."""
        if not await ask.confirm(f"Erase {name}?"):
            return "kept"
        self.erased += 1
        return f"{name} is gone"

    @method
    async def both(self, ask: Ask) -> str:
        """Ask two things."""
        first, second = await ask.all(ask.prompt("First?"), ask.prompt("Second?"))
        return f"{first} {second}"

    @method
    async def show(self) -> list[Any]:
        """Give all kinds of content."""
        return [
            "Look",
            Image(PNG),
            Image(b"<svg/>", "image/svg+xml"),
            Audio(b"RIFF", "audio/wav"),
            Embedded(Document("file:///a/report.csv", "text/csv", text="1,2")),
            Embedded(Document("file:///a/photo", "image/png", blob=PNG)),
            Link("https://example.com/manual", "The manual"),
        ]

    @method
    async def large(self) -> list[Any]:
        """Give more than is kept."""
        return [Image(b"\x89PNG\r\n\x1a\n" + b"0" * (5 * 1024 * 1024))]


class Seeing(Puppet):
    """A model that takes pictures."""

    images = True


def roles(model: Puppet) -> list[str]:
    return [message.role for message in model.told]


# --- aside ------------------------------------------------------------------------------------


def test_a_message_aside_is_answered_while_the_question_waits_on() -> None:
    async def main() -> None:
        desk, model = Desk(), Puppet(call("desk__erase"), "It is a file.", "Erased.")
        async with chat(model, desk) as person:
            (asked,) = questions(await person.say("erase"))
            events = await person.post(message="What is notes?", aside=True)
            assert text(events) == "It is a file."
            assert model.asked[-1].tool_choice == "none"
            assert model.asked[-1].tools
            assert [(m.role, m.content) for m in model.told[2:]] == [
                ("tool", WAITS),
                ("user", "What is notes?"),
            ]
            state = only(events, "conversation_state")
            assert [one["elicitId"] for one in state["pending"]] == [asked["elicitId"]]
            events = await person.answer(asked, confirmed=True)
            assert text(events) == "Erased."
            assert desk.erased == 1
            late = LATE.format(name="desk__erase", content="notes is gone")
            assert roles(model) == ["user", "assistant", "tool", "user", "assistant", "user"]
            assert model.told[-1].content == late

    drive(main())


def test_a_model_calls_nothing_while_it_answers_an_aside() -> None:
    async def main() -> None:
        model = Puppet(call("desk__erase"), call("desk__erase", "call_2"))
        async with chat(model, Desk()) as person:
            await person.say("erase")
            events = await person.post(message="Go on!", aside=True)
            assert text(events) == NOTHING_SAID
            assert "tool_calls" not in kinds(events)
            assert len(only(events, "conversation_state")["pending"]) == 1

    drive(main())


def test_an_aside_whose_answer_failed_is_answered_when_the_turn_is_taken_up_again() -> None:
    async def main() -> None:
        model = Puppet(call("desk__erase"), ModelError("away", recoverable=True), "Here I am.", "Gone.")
        async with chat(model, Desk()) as person:
            (asked,) = questions(await person.say("erase"))
            assert kinds(await person.post(message="Why?", aside=True))[-1] == "error"
            events = await person.post(resume=True)
            assert text(events) == "Here I am."
            assert text(await person.answer(asked, confirmed=True)) == "Gone."

    drive(main())


def test_an_aside_where_nothing_waits_is_a_message() -> None:
    async def main() -> None:
        model = Puppet("Hello.")
        async with chat(model, Desk()) as person:
            events = await person.post(message="Hi", aside=True)
            assert only(events, "complete")["reason"] == "stop"
            assert model.asked[-1].tool_choice == "auto"

    drive(main())


def test_a_message_that_is_none_aside_drops_the_question_and_the_conversation_says_so() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__erase"), "As you like."), Desk()) as person:
            (asked,) = questions(await person.say("erase"))
            events = await person.say("Forget it")
            assert only(events, "tool_error")["code"] == "dropped"
            kept = (await person.shown())["calls"]["call_1"]
            assert kept["code"] == "dropped"
            assert kept["answered"][asked["elicitId"]]["action"] == "dropped"

    drive(main())


def test_results_in_any_order_are_told_to_a_model_in_the_order_that_it_takes() -> None:
    calls = (ToolCall("a", "one"), ToolCall("b", "two"))
    messages = [
        Message("user", "go"),
        Message("assistant", "", calls),
        Message("tool", "A", tool_call_id="a"),
        Message("user", "why?"),
        Message("assistant", "because"),
        Message("tool", "B", tool_call_id="b"),
    ]
    told = [(one.role, one.content) for one in for_model(messages)]
    assert told[2:] == [
        ("tool", "A"),
        ("tool", WAITS),
        ("user", "why?"),
        ("assistant", "because"),
        ("user", LATE.format(name="two", content="B")),
    ]


# --- what is kept -----------------------------------------------------------------------------


def test_answers_are_kept_with_the_conversation() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__both"), "Fine."), Desk()) as person:
            first, second = questions(await person.say("both"))
            await person.answer(first, text="Ada")
            (again,) = (await person.shown())["pending"]
            assert again["elicitId"] == second["elicitId"]
            await person.answer(second, text="Lovelace")
            shown = await person.shown()
            answered = list(shown["calls"]["call_1"]["answered"].values())
            assert [one["message"] for one in answered] == ["First?", "Second?"]
            assert [one["content"] for one in answered] == [{"text": "Ada"}, {"text": "Lovelace"}]
            assert all(one["action"] == "accept" and one["schema"] for one in answered)
            assert shown["calls"]["call_1"]["seconds"] > 0
            assert all(message["time"] > 1e9 for message in shown["messages"])

    drive(main())


def test_who_declines_is_told_apart_from_what_fails() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__both"), "Well."), Desk()) as person:
            first, second = questions(await person.say("both"))
            declined = [
                {
                    **{key: one[key] for key in ("sessionId", "callId", "elicitId")},
                    "result": {"action": "decline"},
                }
                for one in (first, second)
            ]
            events = await person.post(pluginElicitResponses=declined)
            assert only(events, "tool_error")["code"] == "declined"
            kept = (await person.shown())["calls"]["call_1"]
            assert kept["code"] == "declined"
            assert [one["action"] for one in kept["answered"].values()] == ["decline", "decline"]

    drive(main())


def test_pictures_sound_and_files_of_a_tool_can_be_had_and_are_in_no_event() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__show"), "There."), Desk()) as person:
            events = await person.say("show")
            assert base64.b64encode(PNG).decode() not in str(events)
            parts = only(events, "tool_result")["parts"]
            assert [(one["kind"], one["name"]) for one in parts] == [
                ("image", "image.png"),
                ("file", "image.svg+xml"),
                ("audio", "audio.wav"),
                ("file", "report.csv"),
                ("image", "photo"),
                ("link", "The manual"),
            ]
            assert parts[0]["size"] == len(PNG)
            shown = await person.shown()
            assert shown["calls"]["call_1"]["parts"] == parts
            where = f"/chat/conversations/{person.conversation}/files"
            status, headers, data = await person.request("GET", f"{where}/{parts[0]['file']}")
            assert (status, headers["content-type"], data) == (200, "image/png", PNG)
            assert headers["content-disposition"].startswith("attachment")
            _, headers, data = await person.request("GET", f"{where}/{parts[1]['file']}")
            assert (headers["content-type"], data) == ("application/octet-stream", b"<svg/>")
            assert "sandbox" in headers["content-security-policy"]
            assert (await person.request("GET", f"{where}/nothing"))[0] == 404

    drive(main())


def test_of_a_file_that_is_too_large_the_name_and_the_size_are_kept() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__large"), "There."), Desk()) as person:
            (part,) = only(await person.say("large"), "tool_result")["parts"]
            assert part["size"] > 5 * 1024 * 1024
            assert "file" not in part

    drive(main())


# --- edit and retry -----------------------------------------------------------------------------


def test_an_edited_message_takes_its_place_and_what_followed_is_forgotten() -> None:
    async def main() -> None:
        model = Puppet("One.", "Two.", "Three.")
        async with chat(model, Desk()) as person:
            await person.say("first")
            await person.say("second")
            count = len((await person.shown())["messages"])
            events = await person.post(message="better", edit={"message": 0, "of": count})
            assert text(events) == "Three."
            assert [(m.role, m.content) for m in model.told] == [("user", "better")]
            shown = await person.shown()
            assert [m["content"] for m in shown["messages"]] == ["better", "Three."]
            assert shown["title"] == "better"

    drive(main())


def test_an_edit_of_something_that_is_not_there_changes_nothing() -> None:
    async def main() -> None:
        async with chat(Puppet("One."), Desk()) as person:
            await person.say("first")
            here = {"conversationId": person.conversation, "message": "x"}
            for edit in ({"message": 1, "of": 2}, {"message": 2, "of": 2}, {"message": -1, "of": 2}):
                assert (await person.refused(**here, edit=edit))[0] == 400
            assert (await person.refused(**here, edit={"message": 0, "of": 4}))[0] == 409
            assert (await person.refused(message="x", edit={"message": 0, "of": 2}))[0] == 400
            assert [m["content"] for m in (await person.shown())["messages"]] == ["first", "One."]

    drive(main())


def test_a_question_in_what_was_cut_off_is_ended_and_its_id_is_not_used_again() -> None:
    async def main() -> None:
        desk = Desk()
        model = Puppet(call("desk__erase"), call("desk__erase"), "Done.")
        async with chat(model, desk) as person:
            (old,) = questions(await person.say("erase"))
            count = len((await person.shown())["messages"])
            (new,) = questions(await person.post(message="erase it", edit={"message": 0, "of": count}))
            assert (old["callId"], new["callId"]) == ("call_1", "call_1-2")
            events = await person.answer(old, confirmed=True)
            assert only(events, "plugin_session_error")["error"] == "SESSION_NOT_FOUND"
            await person.answer(new, confirmed=True)
            assert desk.erased == 1
            status, _, data = await person.request("GET", "/calls?status=waiting")
            assert (status, b'"desk.erase"' in data) == (200, False)

    drive(main())


def test_a_call_that_was_cut_off_is_ended_later_if_that_fails_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = True
    abort = ChatCalls.abort

    async def may_fail(calls: ChatCalls, principal: str | None, key: str, reason: str) -> None:
        if away:
            raise JournalError("The journal is away")
        await abort(calls, principal, key, reason)

    async def main() -> None:
        nonlocal away
        async with chat(Puppet(call("desk__erase"), "Done."), Desk()) as person:
            await person.say("erase")
            count = len((await person.shown())["messages"])
            monkeypatch.setattr(ChatCalls, "abort", may_fail)
            failed = await person.post(message="never mind", edit={"message": 0, "of": count})
            assert only(failed, "error")["recoverable"]
            away = False
            assert text(await person.post(resume=True)) == "Done."
            status, _, data = await person.request("GET", "/calls?status=waiting")
            assert (status, b'"desk.erase"' in data) == (200, False)

    drive(main())


def test_an_edited_aside_stays_one_and_a_result_that_came_later_stays_with_its_call() -> None:
    async def main() -> None:
        desk = Desk()
        model = Puppet(call("desk__erase"), "A file.", "Some text.", "Gone.", "A text file.")
        async with chat(model, desk) as person:
            (asked,) = questions(await person.say("erase"))
            await person.post(message="What?", aside=True)
            events = await person.post(message="What is it?", edit={"message": 2, "of": 4})
            assert text(events) == "Some text."
            assert len(only(events, "conversation_state")["pending"]) == 1
            assert text(await person.answer(asked, confirmed=True)) == "Gone."
            events = await person.post(message="Tell me", edit={"message": 2, "of": 6})
            assert text(events) == "A text file."
            assert desk.erased == 1
            assert [(m.role, m.content) for m in model.told[2:]] == [
                ("tool", "notes is gone"),
                ("user", "Tell me"),
            ]

    drive(main())


def test_a_call_that_is_made_again_asks_again() -> None:
    async def main() -> None:
        desk = Desk()
        model = Puppet(ToolCall("call_1", "desk__erase", '{"name": "a.txt"}'), "Gone.", "Gone again.")
        async with chat(model, desk) as person:
            (asked,) = questions(await person.say("erase"))
            here = {"conversationId": person.conversation}
            assert (await person.refused(**here, retry="call_1"))[0] == 400  # it has not ended
            await person.answer(asked, confirmed=True)
            events = await person.post(retry="call_1")
            (again,) = questions(events)
            (made,) = only(events, "tool_calls")["calls"]
            assert (again["message"], made["arguments"]) == ("Erase a.txt?", {"name": "a.txt"})
            assert desk.erased == 1
            assert text(await person.answer(again, confirmed=True)) == "Gone again."
            assert desk.erased == 2
            assert model.told[4].content == "Call desk.erase again with the same arguments."
            assert (await person.refused(**here, retry="call_7"))[0] == 400

    drive(main())


# --- attachments and models -----------------------------------------------------------------------


def attached(data: bytes = PNG, name: str = "dot.png") -> dict[str, str]:
    return {"name": name, "data": base64.b64encode(data).decode()}


def test_a_picture_that_is_sent_is_shown_to_the_model() -> None:
    async def main() -> None:
        model = Seeing("A dot.", "Still a dot.")
        async with chat(model, Desk()) as person:
            await person.post(message="What is this?", attachments=[attached()])
            (file,) = model.told[0].files
            assert (file.name, file.type, file.data) == ("dot.png", "image/png", PNG)
            (message, _) = (await person.shown())["messages"]
            (kept,) = message["files"]
            assert "data" not in kept
            where = f"/chat/conversations/{person.conversation}/files/{kept['id']}"
            assert (await person.request("GET", where))[2] == PNG
            await person.post(message="And now?", edit={"message": 0, "of": 2})
            assert model.told[0].files[0].data == PNG

    drive(main())


def test_what_no_model_takes_is_refused() -> None:
    async def main() -> None:
        async with chat(Seeing(), Desk()) as person:
            for wrong in (
                [attached(b"<script>")],
                [attached(b"")],
                [attached(name="")],
                [attached(name="a\nb")],
                [attached(PNG + b"0" * (4 * 1024 * 1024))],
                [attached()] * 5,
            ):
                assert (await person.refused(message="x", attachments=wrong))[0] == 400
            assert (await person.refused(conversationId="c", attachments=[attached()]))[0] == 400
            assert (await person.request("GET", "/chat/conversations"))[2] == b'{"conversations":[]}'
        async with chat(Puppet(), Desk()) as person:
            status, why = await person.refused(message="x", attachments=[attached()])
            assert (status, why) == (400, "puppet cannot read images")

    drive(main())


def test_a_conversation_remembers_its_model_and_another_is_told_that_it_cannot_see() -> None:
    async def main() -> None:
        blind, seeing = Puppet("I cannot."), Seeing("A dot.")
        seeing.name = "seeing"
        async with chat(blind, Desk(), models=[seeing]) as person:
            info = (await person.request("GET", "/chat/info"))[2]
            assert b'"models":[{"name":"puppet","scripted":true,"images":false}' in info
            events = await person.post(message="See?", model="seeing", attachments=[attached()])
            assert (events[0]["model"]["name"], text(events)) == ("seeing", "A dot.")
            assert (await person.shown())["model"] == "seeing"
            assert (await person.say("Again"))[0]["model"]["name"] == "seeing"
            await person.post(message="And you?", model="puppet")
            assert "dot.png: a picture that cannot be shown" in blind.told[0].content
            status, why = await person.refused(message="x", model="nobody")
            assert (status, why) == (400, "There is no model nobody")
        assert blind.closed
        assert seeing.closed

    drive(main())


def test_requests_that_contradict_themselves_are_refused() -> None:
    async def main() -> None:
        async with chat(Puppet("Hi."), Desk()) as person:
            await person.say("hello")
            here = {"conversationId": person.conversation}
            answer = {"sessionId": "a", "elicitId": "b", "result": {"action": "decline"}}
            for wrong in (
                {"aside": True},
                {"edit": {"message": 0, "of": 2}},
                {"retry": "a", "message": "x"},
                {"retry": "a", "resume": True},
                {"message": "x", "aside": True, "pluginElicitResponses": [answer]},
                {"message": "x", "edit": {"message": "0", "of": 2}},
                {"message": "x", "attachments": [{"name": "a", "data": "***"}]},
            ):
                assert (await person.refused(**here, **wrong))[0] == 400
            assert len((await person.shown())["messages"]) == 2

    drive(main())

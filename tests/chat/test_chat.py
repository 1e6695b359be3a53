"""The chat: a model calls methods that ask, over several requests."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Struct

from chatting import Person, Puppet, call, chat, kinds, only, questions, response, serving, text
from driving import LIMIT, drive
from midcall import Ask, Hub, Question, RegistrationError, method
from midcall.activations.demo import RULES, flights_plugin
from midcall.activations.flights import Flights, pick_flight, pick_seat, search, taken_seats
from midcall.activations.interactive import Interactive
from midcall.chat import ChatEngine, Plugin, PluginContext, PluginQuestion, Reply, Retry, Sampling
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.models.base import ModelError, ModelRequest, ToolCall
from midcall.models.scripted import Scripted

BOOK = "Book a flight from New York to Los Angeles"
FLIGHTS = search("New York", "Los Angeles")


def booking() -> Any:
    return chat(Scripted(RULES), Flights(), plugins=[flights_plugin()])


def free_seat() -> dict[str, Any]:
    taken = taken_seats(FLIGHTS[0])
    return next(
        {"row": row, "seat": seat} for row in range(1, 9) for seat in "ABCDEF" if f"{row}{seat}" not in taken
    )


# --- the booking, as the seed tells it --------------------------------------------------------


def test_a_booking_takes_three_requests_and_tells_these_events() -> None:
    async def main() -> None:
        async with booking() as person:
            first = await person.say(BOOK)
            assert kinds(first) == [
                "session_info",
                "text",
                "tool_calls",
                "tool_progress",
                "plugin_session_status",
                "plugin_elicit_request",
                "conversation_state",
            ]
            assert first[0]["model"] == {"name": "scripted", "scripted": True}
            (made,) = only(first, "tool_calls")["calls"]
            assert made["arguments"] == {"origin": "New York", "destination": "Los Angeles"}
            asked = only(first, "plugin_elicit_request")
            assert asked["sessionId"] == asked["callId"] == made["id"]
            assert asked["toolName"] == "flights.book_flight"
            assert asked["elicitId"] == f"{made['id']}:pickFlight:1"
            assert asked["key"] == "pickFlight"
            assert asked["schema"]["properties"].keys() == {"flightId"}
            assert asked["schema"]["x-model-context"] == asked["context"]
            assert [flight["id"] for flight in asked["context"]["flights"]] == [f.id for f in FLIGHTS]
            assert asked["component"]["name"] == "FlightList"
            assert asked["component"]["props"]["flights"] == asked["context"]["flights"]
            assert "x-model-context" not in asked["message"]
            state = only(first, "conversation_state")
            assert [message["role"] for message in state["messages"]] == ["user", "assistant"]
            assert state["pending"] == [asked]

            second = await person.answer(asked, flightId=FLIGHTS[0].id)
            assert kinds(second) == [
                "session_info",
                "plugin_session_status",
                "tool_progress",
                "plugin_session_status",
                "plugin_elicit_request",
                "conversation_state",
            ]
            asked = only(second, "plugin_elicit_request")
            assert asked["elicitId"] == f"{made['id']}:pickSeat:2"
            assert asked["component"]["name"] == "SeatPicker"
            assert asked["component"]["props"]["seatMap"]["taken"] == taken_seats(FLIGHTS[0])

            third = await person.answer(asked, **free_seat())
            assert kinds(third)[-3:] == ["tool_result", "text", "complete"]
            statuses = [e["status"] for e in third if e["type"] == "plugin_session_status"]
            assert statuses == ["running", "awaiting_sample", "completed"]
            ticket = json.loads(only(third, "tool_result")["content"])
            assert ticket["flight"]["id"] == FLIGHTS[0].id
            assert ticket["seat"] == "{row}{seat}".format(**free_seat())
            assert ticket["tip"]
            assert only(third, "tool_result")["structured"] == ticket
            assert ticket["ticketNumber"] in text(third)
            shown = await person.shown()
            assert [message["role"] for message in shown["messages"]] == [
                "user",
                "assistant",
                "tool",
                "assistant",
            ]
            assert (shown["pending"], shown["run"]) == ([], None)

    drive(main())


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_person_may_refuse_at_each_question_and_the_model_is_told(action: str, at: int) -> None:
    async def main() -> None:
        async with booking() as person:
            events = await person.say(BOOK)
            if at == 2:
                events = await person.answer(only(events, "plugin_elicit_request"), flightId=FLIGHTS[0].id)
            events = await person.answer(only(events, "plugin_elicit_request"), action)
            assert kinds(events)[-3:] == ["tool_error", "text", "complete"]
            assert "That did not work out" in text(events)
            messages = (await person.shown())["messages"]
            assert messages[2]["role"] == "tool"
            assert messages[2]["is_error"]

    drive(main())


def test_an_answer_to_another_question_is_refused_and_the_right_one_still_taken() -> None:
    async def main() -> None:
        async with booking() as person:
            asked = only(await person.say(BOOK), "plugin_elicit_request")
            wrong = {**asked, "elicitId": "nonsense"}
            events = await person.answer(wrong, flightId=FLIGHTS[0].id)
            error = only(events, "plugin_session_error")
            assert error["message"] == f"Elicitation ID mismatch: expected {asked['elicitId']}, got nonsense"
            assert only(events, "plugin_elicit_request") == asked
            assert kinds(events)[-1] == "conversation_state"
            events = await person.answer(asked, flightId=FLIGHTS[0].id)
            assert only(events, "plugin_elicit_request")["key"] == "pickSeat"
            events = await person.answer(asked, flightId=FLIGHTS[0].id)  # once more, after the next was asked
            assert "Elicitation ID mismatch" in only(events, "plugin_session_error")["message"]

    drive(main())


def test_content_that_does_not_fit_is_asked_for_again_with_the_reason() -> None:
    async def main() -> None:
        async with booking() as person:
            asked = only(await person.say(BOOK), "plugin_elicit_request")
            events = await person.answer(asked, flight=FLIGHTS[0].id)  # no flightId
            again = only(events, "plugin_elicit_request")
            assert again["key"] == "pickFlight"
            assert again["elicitId"] != asked["elicitId"]
            assert "Not understood" in again["message"]
            events = await person.answer(again, flightId="no-such")
            third = only(events, "plugin_elicit_request")
            assert "There is no flight no-such" in third["message"]
            events = await person.answer(third, flightId=FLIGHTS[1].id)
            assert only(events, "plugin_elicit_request")["key"] == "pickSeat"

    drive(main())


def test_an_abort_ends_the_tool_and_the_model_goes_on() -> None:
    async def main() -> None:
        async with booking() as person:
            asked = only(await person.say(BOOK), "plugin_elicit_request")
            events = await person.post(
                pluginAbort={"sessionId": asked["sessionId"], "reason": "changed my mind"}
            )
            assert only(events, "plugin_session_status")["status"] == "aborted"
            assert only(events, "tool_error")["message"] == "changed my mind"
            assert kinds(events)[-1] == "complete"
            assert (await person.shown())["pending"] == []
            events = await person.answer(asked, flightId=FLIGHTS[0].id)
            assert only(events, "plugin_session_error")["error"] == "SESSION_ABORTED"
            events = await person.post(pluginAbort={"sessionId": asked["sessionId"]})
            assert only(events, "plugin_session_error")["error"] == "SESSION_ABORTED"
            events = await person.post(pluginAbort={"sessionId": "unknown"})
            assert only(events, "plugin_session_error")["error"] == "SESSION_NOT_FOUND"

    drive(main())


def test_a_session_that_is_really_gone_is_told_and_the_model_goes_on_with_a_synthetic_message() -> None:
    async def main() -> None:
        conversations = MemoryJournal()

        def engine() -> ChatEngine:  # each with a journal of its own, in memory
            hub = Hub("h").register(Flights())
            return ChatEngine(hub, Scripted(RULES), store=conversations, plugins=[flights_plugin()])

        async with serving(engine()) as port:
            person = Person(port)
            asked = only(await person.say(BOOK), "plugin_elicit_request")
        async with serving(engine()) as port:
            person.port = port
            events = await person.answer(asked, flightId=FLIGHTS[0].id)
            error = only(events, "plugin_session_error")
            assert (error["sessionId"], error["error"]) == (asked["sessionId"], "SESSION_NOT_FOUND")
            assert kinds(events)[-2:] == ["text", "complete"]
            shown = await person.shown()
            assert [m["role"] for m in shown["messages"]] == ["user", "assistant", "tool", "assistant"]
            lost = "Error: Plugin session was lost. Please retry the operation."
            assert shown["messages"][2]["content"] == lost
            assert shown["pending"] == []

    drive(main())


def test_who_says_something_else_instead_of_answering_ends_what_was_asked() -> None:
    async def main() -> None:
        async with booking() as person:
            asked = only(await person.say(BOOK), "plugin_elicit_request")
            events = await person.say("Never mind. Hello!")
            assert only(events, "tool_error")["callId"] == asked["callId"]
            shown = await person.shown()
            assert [m["role"] for m in shown["messages"]] == [
                "user",
                "assistant",
                "tool",
                "user",
                "assistant",
            ]
            assert "wrote something else" in shown["messages"][2]["content"]
            assert shown["pending"] == []

    drive(main())


# --- any method, without a plugin -------------------------------------------------------------


def test_any_method_that_asks_works_in_the_chat_without_a_plugin() -> None:
    async def main() -> None:
        async with chat(Puppet(call("interactive__wizard")), Interactive()) as person:
            events = await person.say("Set up a project")
            asked = only(events, "plugin_elicit_request")
            assert "component" not in asked
            assert asked["schema"]["properties"].keys() == {"text"}
            events = await person.answer(asked, text="demo")
            asked = only(events, "plugin_elicit_request")
            options = asked["schema"]["properties"]["choice"]["oneOf"]
            events = await person.answer(asked, choice=options[0]["const"])
            asked = only(events, "plugin_elicit_request")
            events = await person.answer(asked, confirmed=True)
            assert kinds(events)[-1] == "complete"
            assert "demo" in only(events, "tool_result")["content"]

    drive(main())


class Address(Struct):
    """Where."""

    street: str
    tags: list[str] = []


class Order(Struct):
    """What, and where to."""

    article: str
    address: Address


order = Question("order", Order)


class Desk:
    """Asks in all ways."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.working = asyncio.Event()

    @method(elicits=[order])
    async def nested(self, ask: Ask) -> str:
        """Ask for what is not flat."""
        found = await ask(order, "What shall it be?", stock={"tea": 3})
        return f"{found.article} to {found.address.street} {found.address.tags}"

    @method
    async def two(self, ask: Ask) -> str:
        """Ask two things at once."""
        name, sure = await ask.all(ask.prompt("Name?"), ask.confirm("Sure?"))
        return f"{name} {sure}"

    @method
    async def slow(self, ask: Ask) -> str:
        """Work for as long as nobody waits."""
        ask.progress("working", 50)
        self.working.set()
        await asyncio.sleep(10 * LIMIT)
        self.done.append("slow")
        return "done"

    @method
    async def plain(self, text: str) -> str:
        """Say it back."""
        return text

    @method
    async def page(self, ask: Ask) -> str:
        """Have a page visited."""
        await ask.url("https://example.com/login", "Log in there")
        return "logged in"

    @method
    async def guess(self, ask: Ask) -> str:
        """Ask the model."""
        said = await ask.sample("A number?", system="Be brief")
        return f"it said {said.text}"


def test_a_form_that_is_not_flat_can_be_asked_in_the_chat() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__nested")), Desk()) as person:
            asked = only(await person.say("go"), "plugin_elicit_request")
            assert asked["context"] == {"stock": {"tea": 3}}
            assert "address" in asked["schema"]["properties"]
            content = {"article": "tea", "address": {"street": "High St", "tags": ["x"]}}
            events = await person.answer(asked, **content)
            assert only(events, "tool_result")["content"] == "tea to High St ['x']"

    drive(main())


def test_two_questions_of_one_tool_may_be_answered_one_at_a_time() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__two")), Desk()) as person:
            one, other = questions(await person.say("go"))
            events = await person.answer(one, text="Ada")
            assert questions(events) == [other]
            events = await person.answer(other, confirmed=True)
            assert only(events, "tool_result")["content"] == "Ada True"

    drive(main())


def test_several_tools_wait_in_one_turn_beside_one_that_does_not() -> None:
    async def main() -> None:
        calls = [
            call("desk__two", "a"),
            call("desk__plain", "b", text="hi"),
            call("interactive__confirm", "c", message="?"),
        ]
        model = Puppet(["I call three. ", *calls], "All done.")
        async with chat(model, Desk(), Interactive()) as person:
            events = await person.say("go")
            assert only(events, "tool_result")["callId"] == "b"
            assert [q["callId"] for q in questions(events)] == ["a", "a", "c"]
            asked = questions(events)
            events = await person.answer(asked[2], confirmed=True)
            assert only(events, "tool_result")["callId"] == "c"
            assert [q["callId"] for q in questions(events)] == ["a", "a"]
            assert len(model.asked) == 1
            events = await person.post(
                pluginElicitResponses=[
                    response(asked[0], "accept", {"text": "Ada"}),
                    response(asked[1], "accept", {"confirmed": False}),
                ]
            )
            assert only(events, "tool_result")["content"] == "Ada False"
            assert text(events) == "All done."
            answered = [message.tool_call_id for message in model.told if message.role == "tool"]
            assert sorted(filter(None, answered)) == ["a", "b", "c"]

    drive(main())


def test_a_page_to_visit_is_asked_with_its_address() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__page")), Desk()) as person:
            asked = only(await person.say("go"), "plugin_elicit_request")
            assert (asked["mode"], asked["url"]) == ("url", "https://example.com/login")
            assert only(await person.answer(asked), "tool_result")["content"] == "logged in"

    drive(main())


# --- what models do ---------------------------------------------------------------------------


def test_what_a_model_calls_wrongly_is_told_to_it_as_the_tools_result() -> None:
    async def main() -> None:
        calls = [
            ToolCall("1", "desk__plain", "{no json"),
            call("desk__nothing", "2"),
            call("desk__plain", "3"),
        ]
        model = Puppet(calls, "Sorry.")
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            assert kinds(events)[-1] == "complete"
            told = {m.tool_call_id: m.content for m in model.told if m.role == "tool"}
            assert "not valid JSON" in told["1"]
            assert "desk__nothing" in told["2"]
            assert "text" in told["3"]
            assert only(events, "tool_calls")["calls"][0]["arguments"] == "{no json"

    drive(main())


def test_calls_that_have_the_same_id_are_told_apart() -> None:
    async def main() -> None:
        same = [call("desk__plain", "x", text="a"), call("desk__plain", "x", text="b")]
        model = Puppet(same, call("desk__plain", "x", text="c"), "ok")
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            results = {e["callId"]: e["content"] for e in events if e["type"] == "tool_result"}
            assert results == {"x": "a", "x-2": "b", "x-3": "c"}

    drive(main())


def test_a_turn_ends_after_so_many_answers_or_tokens() -> None:
    async def main() -> None:
        async with chat(Puppet(*[call("desk__plain", text="x")] * 9), Desk(), max_iterations=3) as person:
            events = await person.say("go")
            assert only(events, "complete")["reason"] == "iterations"
            assert kinds(events).count("tool_calls") == 3
        async with chat(Puppet(*[call("desk__plain", text="x")] * 9), Desk(), token_budget=30) as person:
            events = await person.say("go")
            assert only(events, "complete") == {
                "type": "complete",
                "reason": "budget",
                "usage": {"input": 20, "output": 10},
            }

    drive(main())


def test_a_model_that_fails_is_told_and_the_turn_can_be_taken_up_again() -> None:
    async def main() -> None:
        model = Puppet(["Well, ", ModelError("puppet is overloaded", recoverable=True)], "There you are.")
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            assert events[-1] == {
                "type": "error",
                "message": "puppet is overloaded",
                "code": "model_error",
                "recoverable": True,
            }
            events = await person.post(resume=True)
            assert text(events) == "There you are."
            assert [m["role"] for m in (await person.shown())["messages"]] == ["user", "assistant"]

    drive(main())


def test_the_model_answers_what_a_tool_asks_of_it_through_three_hooks() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def before(request: ModelRequest) -> ModelRequest:
            seen.append(f"before {request.messages[-1].content} {request.system}")
            return request

        async def after(reply: Reply, request: ModelRequest) -> Reply:
            seen.append(f"after {reply.text}")
            if reply.text == "seven":
                raise Retry("not seven")
            return reply

        model = Puppet(call("desk__guess"), "seven", "eight", "It was eight.")
        sampling = Sampling(before=before, after=after)
        async with chat(model, Desk(), sampling=sampling) as person:
            events = await person.say("guess")
            assert only(events, "tool_result")["content"] == "it said eight"
            assert seen == ["before A number? Be brief", "after seven", "after eight"]
            assert "not seven" in model.asked[2].messages[-1].content
            assert only(events, "complete")["usage"] == {"input": 40, "output": 20}

    drive(main())


# --- plugins ----------------------------------------------------------------------------------


def test_a_plugin_must_show_every_question_of_its_method_and_no_other() -> None:
    hub = Hub("h").register(Flights())

    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        return await ctx.render("X")

    with pytest.raises(RegistrationError, match=r"no handler for pickSeat; it asks: pickFlight, pickSeat"):
        ChatEngine(hub, Puppet(), plugins=[Plugin(Flights.book_flight).on(pick_flight, handler)])
    whole = Plugin("flights.book_flight").on(pick_flight, handler).on(pick_seat, handler)
    with pytest.raises(RegistrationError, match="a handler for order, which it does not ask"):
        ChatEngine(hub, Puppet(), plugins=[whole.on(order, handler)])
    with pytest.raises(RegistrationError, match="has no method"):
        ChatEngine(hub, Puppet(), plugins=[Plugin("flights.fly")])
    with pytest.raises(RegistrationError, match="already has a handler"):
        Plugin(Flights.book_flight).on(pick_flight, handler).on(pick_flight, handler)
    with pytest.raises(RegistrationError, match="async def"):
        Plugin(Flights.book_flight).on(pick_flight, lambda question, ctx: None)  # type: ignore[arg-type,return-value]


def test_a_handler_may_show_several_components_and_change_the_answer() -> None:
    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        article = await ctx.render("Shelf", stock=question.context["stock"])
        if article is None:
            return {"article": "nothing", "address": {"street": "nowhere"}}
        street = await ctx.render("Map", {"zoom": 3}, article=article)
        return {"article": article.upper(), "address": {"street": street}}

    async def main() -> None:
        plugin = Plugin(Desk.nested).on(order, handler)
        async with chat(Puppet(call("desk__nested")), Desk(), plugins=[plugin]) as person:
            asked = only(await person.say("go"), "plugin_elicit_request")
            assert asked["component"] == {"name": "Shelf", "props": {"stock": {"tea": 3}}}
            events = await person.post(pluginElicitResponses=[response(asked, "accept", "tea")])
            again = only(events, "plugin_elicit_request")
            assert again["component"] == {"name": "Map", "props": {"zoom": 3, "article": "tea"}}
            assert again["elicitId"] != asked["elicitId"]
            events = await person.post(pluginElicitResponses=[response(again, "accept", "High St")])
            assert only(events, "tool_result")["content"] == "TEA to High St []"

    drive(main())


def test_a_handler_reports_how_far_it_is() -> None:
    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        await ctx.report_progress("Looking at the shelf")
        article = await ctx.render("Shelf")
        await ctx.reportProgress("Looking for a street")
        return {"article": article, "address": {"street": "High St"}}

    async def main() -> None:
        plugin = Plugin(Desk.nested).on(order, handler)
        async with chat(Puppet(call("desk__nested")), Desk(), plugins=[plugin]) as person:
            events = await person.say("go")
            asked = only(events, "plugin_elicit_request")
            told = only(events, "tool_progress")
            assert (told["callId"], told["message"]) == (asked["callId"], "Looking at the shelf")
            events = await person.post(pluginElicitResponses=[response(asked, "accept", "tea")])
            told = [event["message"] for event in events if event["type"] == "tool_progress"]
            assert told == ["Looking at the shelf", "Looking for a street"]

    drive(main())


def test_a_call_that_fails_inside_midcall_after_it_asked_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with booking() as person:
            asked = only(await person.say(BOOK), "plugin_elicit_request")
            monkeypatch.setattr("midcall.chat.dialect.ChatCalls.current", fail)
            events = await person.answer(asked, flightId=FLIGHTS[0].id)
            error = only(events, "plugin_session_error")
            assert (error["sessionId"], error["error"]) == (asked["sessionId"], "INTERNAL_ERROR")
            assert only(events, "tool_error")["message"] == "Internal error"

    drive(main())


def test_a_handler_that_fails_on_an_answer_asks_again_with_the_reason() -> None:
    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        article = await ctx.render("Shelf")
        if article not in question.context["stock"]:
            raise ValueError(f"there is no {article}")
        street = await ctx.render("Map")
        return {"article": article, "address": {"street": street["name"]}}

    async def main() -> None:
        plugin = Plugin(Desk.nested).on(order, handler)
        async with chat(Puppet(call("desk__nested")), Desk(), plugins=[plugin]) as person:
            shown = [only(await person.say("go"), "plugin_elicit_request")]
            for answer in ("wine", "beer", "tea", "no object", {"name": "High St"}):
                events = await person.post(pluginElicitResponses=[response(shown[-1], "accept", answer)])
                shown += [event for event in events if event["type"] == "plugin_elicit_request"]
            assert only(events, "tool_result")["content"] == "tea to High St []"
            message = shown[0]["message"]
            assert [one["message"].removesuffix(message) for one in shown[:4]] == [
                "",
                "(Not understood: there is no wine)\n",
                "(Not understood: there is no beer)\n",
                "",
            ]
            assert shown[4]["message"].startswith("(Not understood: ")
            assert [one["component"]["name"] for one in shown] == ["Shelf", "Shelf", "Shelf", "Map", "Map"]
            assert len({one["elicitId"] for one in shown}) == 5

    drive(main())


def test_every_event_names_a_tool_by_the_name_of_its_method() -> None:
    async def main() -> None:
        async with booking() as person:
            events = await person.say(BOOK)
            events += await person.answer(only(events, "plugin_elicit_request"), flightId=FLIGHTS[0].id)
            seat = [event for event in events if event["type"] == "plugin_elicit_request"][-1]
            events += await person.post(pluginAbort={"sessionId": seat["sessionId"]})
            named = [event for event in events if "toolName" in event]
            assert {event["toolName"] for event in named} == {"flights.book_flight"}
            assert {event["type"] for event in named} >= {
                "plugin_elicit_request",
                "plugin_session_status",
                "tool_error",
            }

    drive(main())


# --- lines ------------------------------------------------------------------------------------


def test_a_stream_cut_at_any_line_and_taken_up_again_gives_the_same_lines() -> None:
    async def main() -> None:
        async with booking() as person:
            await person.say(BOOK)
            run = person.run
            _, _, whole = await person.request("GET", "/chat", headers={"X-Session-Id": run})
            lines = whole.splitlines()
            assert len(lines) > 8
            for cut in range(len(lines) + 1):
                headers = {"X-Session-Id": run, "X-Last-LSN": str(cut)}
                status, found, rest = await person.request("GET", "/chat", headers=headers)
                assert (status, found["x-session-id"]) == (200, run)
                assert lines[:cut] + rest.splitlines() == lines
                query = f"/chat?sessionId={run}&lastLsn={cut}"
                assert (await person.request("POST", query))[2] == rest
                assert (await person.request("GET", query, headers={"X-Last-LSN": "0"}))[2] == whole
            assert (await person.request("GET", "/chat", headers={"X-Session-Id": "unknown"}))[0] == 404
            bad = {"X-Session-Id": run, "X-Last-LSN": "-1"}
            assert (await person.request("GET", "/chat", headers=bad))[0] == 400

    drive(main())


def test_a_reader_who_comes_while_the_turn_runs_gets_the_rest_as_it_comes() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        class Gated(Puppet):
            async def stream(self, request: ModelRequest) -> Any:
                async for event in super().stream(request):
                    yield event
                    await gate.wait()

        async with chat(Gated(["one ", "two "]), Desk()) as person:
            turn = asyncio.create_task(person.say("go"))
            while not (
                listed := json.loads((await person.request("GET", "/chat/conversations"))[2])["conversations"]
            ):
                await asyncio.sleep(0.01)
            person.conversation = listed[0]["id"]
            while (run := (await person.shown())["run"]) is None:
                await asyncio.sleep(0.01)
            busy = await person.refused(conversationId=person.conversation, message="again")
            assert busy == (409, "The last turn of this conversation is still running")
            headers = {"X-Session-Id": run["sessionId"], "X-Last-LSN": "2"}
            late = asyncio.create_task(person.request("GET", "/chat", headers=headers))
            await asyncio.sleep(0.05)
            gate.set()
            events = await turn
            rest = [json.loads(line) for line in (await late)[2].splitlines()]
            assert [line["event"] for line in rest] == events[2:]
            assert [line["lsn"] for line in rest] == list(range(3, len(events) + 1))

    drive(main())


def test_a_stopped_turn_keeps_what_was_said_and_leaves_no_call_without_a_result() -> None:
    async def main() -> None:
        desk = Desk()
        async with chat(Puppet(["Working. ", call("desk__slow")], "never"), desk) as person:
            turn = asyncio.create_task(person.say("go"))
            await desk.working.wait()
            (listed,) = json.loads((await person.request("GET", "/chat/conversations"))[2])["conversations"]
            person.conversation = listed["id"]
            while len((await person.shown())["messages"]) < 2:
                await asyncio.sleep(0.01)
            body = {"conversationId": person.conversation}
            assert json.loads((await person.request("POST", "/chat/stop", body))[2]) == {"stopped": True}
            events = await turn
            assert only(events, "complete")["reason"] == "stopped"
            messages = (await person.shown())["messages"]
            assert [m["role"] for m in messages] == ["user", "assistant", "tool"]
            assert "Stopped" in messages[2]["content"]
            assert desk.done == []
            assert json.loads((await person.request("POST", "/chat/stop", body))[2]) == {"stopped": False}
            assert kinds(await person.say("and now?"))[-1] == "complete"

    drive(main())


# --- bad requests, and other people -----------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "Say something"),
        ({"message": "   "}, 400, "between 1 and"),
        ({"message": 5}, 400, "Invalid request"),
        ({"message": "hi", "conversationId": "unknown"}, 404, "no such conversation"),
        ({"resume": True}, 400, "conversationId is missing"),
        ({"pluginElicitResponses": [{"sessionId": "x"}]}, 400, "Invalid request"),
        ([1], 400, "Invalid request"),
    ],
)
def test_a_bad_request_gets_a_clear_error_and_changes_nothing(body: Any, status: int, message: str) -> None:
    async def main() -> None:
        async with chat(Puppet(), Desk()) as person:
            found, _, data = await person.request("POST", "/chat", body)
            assert found == status
            assert message in json.loads(data)["error"]["message"]
            assert json.loads((await person.request("GET", "/chat/conversations"))[2]) == {
                "conversations": []
            }

    drive(main())


def test_a_history_may_be_brought_along() -> None:
    async def main() -> None:
        model = Puppet("Ada, of course.")
        async with chat(model, Desk()) as person:
            said = [
                {"role": "user", "content": "I am Ada"},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Who am I?"},
            ]
            await person.post(messages=said)
            assert [(m.role, m.content) for m in model.told] == [(m["role"], m["content"]) for m in said]

    drive(main())


def test_a_deleted_conversation_is_gone_and_so_is_what_waited_in_it() -> None:
    async def main() -> None:
        hub = Hub("h").register(Flights())
        engine = ChatEngine(hub, Scripted(RULES), plugins=[flights_plugin()])
        async with serving(engine) as port:
            person = Person(port)
            asked = only(await person.say(BOOK), "plugin_elicit_request")
            path = f"/chat/conversations/{person.conversation}"
            assert (await person.request("DELETE", path))[0] == 204
            assert (await person.request("GET", path))[0] == 404
            assert (await person.request("DELETE", path))[0] == 404
            (record,) = (await hub.durable.journal.list()).calls
            assert record.status == "aborted"
            status, _ = await person.refused(
                conversationId=person.conversation,
                pluginElicitResponses=[response(asked, "accept", {"flightId": FLIGHTS[0].id})],
            )
            assert status == 404

    drive(main())


# --- across a restart -------------------------------------------------------------------------


def test_a_question_outlives_the_server_and_the_booking_is_finished_by_the_next_one(tmp_path: Any) -> None:
    def engine() -> ChatEngine:
        hub = Hub("h").register(Flights())
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
        store = SqliteJournal(tmp_path / "chat.db")
        return ChatEngine(hub, Scripted(RULES), store=store, plugins=[flights_plugin()])

    async def main() -> None:
        async with serving(engine()) as port:
            person = Person(port)
            await person.say(BOOK)
            before = await person.shown()
        async with serving(engine()) as port:
            person.port = port
            after = await person.shown()
            assert after == before
            (asked,) = after["pending"]
            events = await person.answer(asked, flightId=FLIGHTS[0].id)
        async with serving(engine()) as port:
            person.port = port
            events = await person.answer(only(events, "plugin_elicit_request"), **free_seat())
            assert kinds(events)[-1] == "complete"
            assert only(events, "tool_result")["structured"]["seat"]

    drive(main())

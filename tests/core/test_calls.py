"""Calls: status, stopping, back-pressure, who may answer, and that nothing is left behind."""

import asyncio
import contextlib
import gc
import random
import threading
import time
import weakref

import pytest

from driving import LIMIT, assert_nothing_left, drive, kinds, turns, until
from midcall import (
    CANCELLED,
    Aborted,
    Ask,
    Cancelled,
    Data,
    Done,
    Error,
    Hub,
    InvalidArguments,
    Log,
    Progress,
    Request,
    RequestCancelled,
    Status,
    TimedOut,
    ToolError,
    TooManyCalls,
    TransportLost,
    UnknownQuestion,
    WrongAnswer,
    method,
)
from midcall.items import encode_item
from midcall.testing import run

PEOPLE = {"confirm", "prompt", "select", "form", "url", "custom"}
ALL = frozenset(PEOPLE | {"sample"})
UNKNOWN = "Unknown request ID: {}. The request may have timed out or been cancelled."

released = threading.Event()
"""Lets `Tool.block` end."""


class Plain:
    """A reader that takes everything at once; what `hub.start` needs as outlet."""

    full = False

    def __init__(self):
        self.items = []
        self.done = asyncio.Event()

    def put(self, item):
        self.items.append(item)
        if isinstance(item, Done):
            self.done.set()

    async def drain(self): ...

    @property
    def asked(self):
        return [item for item in self.items if isinstance(item, Request)]


class Gate(Plain):
    """A reader that is behind after its first item, until the gate is opened."""

    def __init__(self):
        super().__init__()
        self.full = False
        self.opened = asyncio.Event()

    def put(self, item):
        super().put(item)
        self.full = not self.opened.is_set()

    async def drain(self):
        await self.opened.wait()
        self.full = False


class Tool:
    """The tools of these tests."""

    def __init__(self):
        self.emitted = 0
        self.stopped = asyncio.Event()

    @method
    async def echo(self, value: int = 0) -> int:
        return value

    @method
    async def ask_name(self, ask: Ask) -> str:
        return await ask.prompt("Name?")

    @method
    async def ask_number(self, number: int, ask: Ask) -> str:
        return f"{number}: {await ask.prompt(f'Number {number}?', timeout=None)}"

    @method
    async def ask_briefly(self, ask: Ask) -> str:
        return await ask.prompt("Name?", timeout=0.02)

    @method
    async def ask_many(self, ask: Ask) -> None:
        await ask.all(ask.prompt("a"), ask.prompt("b"), ask.sample("c"))

    @method
    async def gather_many(self, ask: Ask) -> None:
        await asyncio.gather(*(ask.prompt(f"{n}") for n in range(200)))

    @method
    async def fail(self, ask: Ask) -> None:
        asyncio.ensure_future(ask.prompt("Still open?")).add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0)
        raise ValueError("broken")

    @method
    async def wait(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            self.stopped.set()

    @method
    async def stream(self, count: int = 1_000_000):
        try:
            for n in range(count):
                self.emitted += 1
                yield n
        finally:
            self.stopped.set()

    @method
    def block(self) -> None:
        assert released.wait(LIMIT)


def tools():
    tool = Tool()
    return tool, Hub().register(tool)


def started(hub, name, params=b"", **options):
    outlet = Plain()
    call = hub.start(name, params, outlet, **{"supported": ALL, **options})
    return outlet, call


# --- status and lists -----------------------------------------------------------------------


def test_a_call_goes_from_running_to_completed():
    async def main():
        _, hub = tools()
        outlet, call = started(hub, "tool.echo", b'{"value": 5}')
        assert call.status == Status.RUNNING
        assert hub.calls.get(call.id) is call
        await outlet.done.wait()
        assert call.status == Status.COMPLETED
        assert hub.calls.get(call.id) is None
        assert kinds(outlet.items) == ["Data", "Done"]

    drive(main())


@pytest.mark.parametrize(
    ("name", "waiting", "open_questions"),
    [
        ("tool.ask_name", Status.AWAITING_ANSWER, ["Name?"]),
        ("tool.ask_many", Status.AWAITING_ANSWER, ["a", "b", "c"]),
        ("tool.wait", Status.RUNNING, []),
    ],
)
def test_the_list_has_every_active_call_with_age_and_open_questions(name, waiting, open_questions):
    async def main():
        _, hub = tools()
        begun = time.monotonic()
        _, call = started(hub, name)
        await until(lambda: hub.calls.open_questions == len(open_questions))
        await asyncio.sleep(0.02)
        (info,) = hub.calls.list()
        passed = time.monotonic() - begun
        assert (info.id, info.method, info.status) == (call.id, name, waiting)
        assert 0.01 < info.age <= passed
        assert [question.message for question in info.questions] == open_questions
        assert all(0.01 < question.age <= passed for question in info.questions)
        assert hub.calls.open_questions == len(open_questions)
        assert len(hub.calls) == 1
        await hub.calls.close()
        await assert_nothing_left(hub)

    drive(main())


def test_the_list_has_the_oldest_call_first():
    async def main():
        _, hub = tools()
        calls = [started(hub, "tool.wait")[1] for _ in range(3)]
        assert [info.id for info in hub.calls.list()] == [call.id for call in calls]
        assert len({call.id for call in calls}) == 3
        await hub.calls.close()

    drive(main())


@pytest.mark.parametrize(
    ("raised", "code", "message", "recoverable"),
    [
        (ValueError("broken"), "tool_error", "broken", False),
        (KeyError(), "tool_error", "KeyError", False),
        (ToolError("no such file", code="missing", recoverable=True), "missing", "no such file", True),
        (TimedOut("late"), "timed_out", "late", True),
        (SystemExit(3), "tool_error", "3", False),
        (ExceptionGroup("many", [ValueError("inner")]), "tool_error", "inner", False),
        (OSError("bad name \udcff"), "tool_error", "bad name ?", False),
    ],
)
def test_a_tool_that_raises_fails_the_call_with_its_message(raised, code, message, recoverable):
    class Raises:
        @method
        async def coroutine(self):
            raise raised

        @method
        async def stream(self):
            yield 1
            raise raised

        @method
        def plain(self):
            raise raised

    async def main():
        hub = Hub().register(Raises())
        for name in ("raises.coroutine", "raises.stream", "raises.plain"):
            outlet, call = started(hub, name)
            await outlet.done.wait()
            error = outlet.items[-2]
            assert (error.code, error.message, error.recoverable) == (code, message, recoverable)
            assert call.status == Status.FAILED
            assert b"error" in encode_item(error)
        await assert_nothing_left(hub)

    drive(main())


def test_the_result_of_an_invocation_raises_what_the_call_failed_with():
    async def main():
        _, hub = tools()
        with pytest.raises(ToolError, match="broken"):
            await hub.call("tool.fail", supports=PEOPLE)
        with pytest.raises(InvalidArguments):
            await hub.call("tool.echo", {"value": "x"})
        await assert_nothing_left(hub)

    drive(main())


def test_an_invocation_can_be_used_once():
    async def main():
        _, hub = tools()
        call = hub.call("tool.echo", {"value": 1})
        assert await call == 1
        with pytest.raises(RuntimeError, match="used already"):
            await call
        with pytest.raises(RuntimeError, match="used already"):
            async for _ in call:
                pass

    drive(main())


def test_past_the_limit_of_calls_a_new_one_is_refused():
    async def main():
        _, hub = tools()
        hub.calls.limit = 2
        started(hub, "tool.wait")
        started(hub, "tool.wait")
        with pytest.raises(TooManyCalls):
            started(hub, "tool.wait")
        await hub.calls.close()
        started(hub, "tool.wait")
        await hub.calls.close()
        await assert_nothing_left(hub)

    drive(main())


# --- stopping -------------------------------------------------------------------------------


def test_an_aborted_call_ends_with_the_reason():
    async def main():
        tool, hub = tools()
        outlet, call = started(hub, "tool.wait")
        await turns()
        assert hub.calls.abort(call.id, "The operator said so")
        assert not hub.calls.abort(call.id, "again")
        await outlet.done.wait()
        assert kinds(outlet.items) == ["Error", "Done"]
        assert (outlet.items[0].code, outlet.items[0].message) == ("aborted", "The operator said so")
        assert call.status == Status.ABORTED
        assert tool.stopped.is_set()
        assert not hub.calls.abort(call.id)
        assert not call.abort()
        assert not hub.calls.abort("nobody")

    drive(main())


def test_a_call_that_is_aborted_before_it_began_never_runs():
    async def main():
        tool, hub = tools()
        outlet, call = started(hub, "tool.stream")
        call.abort("Too early")
        await outlet.done.wait()
        assert tool.emitted == 0
        assert kinds(outlet.items) == ["Error", "Done"]
        assert call.status == Status.ABORTED
        await assert_nothing_left(hub)

    drive(main())


def test_cancelling_an_invocation_ends_the_iteration_with_an_error():
    async def main():
        _, hub = tools()
        call = hub.call("tool.ask_name", supports=PEOPLE)
        items = []
        async for item in call:
            items.append(item)
            if isinstance(item, Request):
                await call.cancel("Changed my mind")
                assert len(hub.calls) == 0
        assert kinds(items) == ["Request", "RequestCancelled", "Error", "Done"]
        assert items[2].message == "Changed my mind"
        await assert_nothing_left(hub)

    drive(main())


def test_a_call_can_be_aborted_while_its_reader_does_not_read():
    async def main():
        tool, hub = tools()
        reader = hub.call("tool.stream").__aiter__()
        await anext(reader)
        await turns()  # the tool now waits for room
        (call,) = hub.calls
        call.abort("Stop")
        await until(lambda: len(hub.calls) == 0)
        assert tool.stopped.is_set()
        rest = [item async for item in reader]
        assert kinds(rest[-2:]) == ["Error", "Done"]
        await assert_nothing_left(hub)

    drive(main())


def test_a_tool_that_swallows_its_cancellation_is_stopped_where_it_emits_or_asks():
    class Stubborn:
        @method
        async def stream(self):
            n = 0
            while True:
                n += 1
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
                yield n

        @method
        async def asks(self, ask: Ask):
            try:
                await ask.confirm("?")
            except asyncio.CancelledError:
                await ask.confirm("Really?")

        @method
        async def returns(self):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "never mind"

        @method
        async def asks_when_it_cleans_up(self, ask: Ask):
            try:
                while True:
                    yield 1
                    await asyncio.sleep(0)
            finally:
                await ask.all(ask.confirm("Really?"), ask.confirm("Sure?"))

    async def main():
        hub = Hub().register(Stubborn())
        for name in ("stream", "asks", "returns", "asks_when_it_cleans_up"):
            outlet, call = started(hub, f"stubborn.{name}")
            await turns()
            asked = len(outlet.asked)
            call.abort("Stop it")
            await outlet.done.wait()
            assert call.status == Status.ABORTED
            assert (outlet.items[-2].code, outlet.items[-2].message) == ("aborted", "Stop it")
            assert len(outlet.asked) == asked
            await assert_nothing_left(hub)

    drive(main())


def test_a_tool_that_asks_while_it_is_stopped_does_not_wait_for_its_reader():
    class Asks:
        @method
        async def at_the_end(self, ask: Ask):
            try:
                while True:
                    yield 1
            finally:
                await ask.confirm("Really?")

    async def main():
        hub = Hub().register(Asks())
        outlet = Gate()  # is never opened
        call = hub.start("asks.at_the_end", b"", outlet, supported=ALL)
        await until(lambda: outlet.items)
        call.abort("Stop")
        await outlet.done.wait()
        assert kinds(outlet.items) == ["Data", "Error", "Done"]
        await assert_nothing_left(hub)

    drive(main())


def test_a_stream_has_cleaned_up_before_its_call_is_done():
    class Careful:
        clean = False

        @method
        async def stream(self):
            try:
                while True:
                    yield 1
            finally:
                await asyncio.sleep(0.01)
                self.clean = True

    async def main():
        careful = Careful()
        hub = Hub().register(careful)
        outlet = Gate()
        call = hub.start("careful.stream", b"", outlet)
        await until(lambda: outlet.items)
        call.abort("Stop")
        await outlet.done.wait()
        assert careful.clean
        await assert_nothing_left(hub)

    drive(main())


def test_a_tool_that_never_stops_does_not_hold_up_whoever_stops_it(monkeypatch):
    monkeypatch.setattr("midcall.calls.GRACE", 0.05)
    release = asyncio.Event()

    class Stubborn:
        @method
        async def endless(self):
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

    async def main():
        hub = Hub().register(Stubborn())
        started(hub, "stubborn.endless")
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT):
            await hub.calls.close()
        assert [info.method for info in hub.calls.list()] == ["stubborn.endless"]
        release.set()
        await assert_nothing_left(hub)

    drive(main())


def test_a_task_that_a_tool_left_behind_cannot_ask_or_report_after_the_call_has_ended():
    outcomes = []
    ended = asyncio.Event()

    class Careless:
        @method
        async def spawn(self, ask: Ask) -> str:
            async def later():
                await ended.wait()
                ask.progress("anybody there?")
                ask.log("hello?")
                try:
                    await ask.confirm("Late?")
                except Aborted as error:
                    outcomes.append(str(error))

            self.task = asyncio.ensure_future(later())
            return "done"

    async def main():
        careless = Careless()
        hub = Hub().register(careless)
        outlet, _ = started(hub, "careless.spawn")
        await outlet.done.wait()
        ended.set()
        await careless.task
        assert kinds(outlet.items) == ["Data", "Done"]
        await assert_nothing_left(hub)

    drive(main())
    assert outcomes == ["The call has ended"]


def test_a_question_that_is_open_when_the_tool_ends_is_withdrawn_and_its_waiter_told():
    outcomes = []

    class Careless:
        @method
        async def spawn(self, ask: Ask) -> str:
            async def ask_on():
                try:
                    await ask.confirm("Still there?")
                except Aborted as error:
                    outcomes.append(str(error))

            self.task = asyncio.ensure_future(ask_on())
            await asyncio.sleep(0)
            return "done"

    async def main():
        hub = Hub().register(Careless())
        outlet, _ = started(hub, "careless.spawn")
        await outlet.done.wait()
        assert kinds(outlet.items) == ["Request", "Data", "RequestCancelled", "Done"]
        with pytest.raises(UnknownQuestion):
            hub.calls.answer(outlet.items[0].request_id, True)
        await assert_nothing_left(hub)

    drive(main())
    assert outcomes == ["The call has ended"]


def test_a_caller_whose_line_is_lost_fails_this_question_and_the_next_ones():
    class Persistent:
        @method
        async def twice(self, ask: Ask) -> list[str]:
            seen = []
            for _ in range(2):
                try:
                    await ask.all(ask.confirm("?"), ask.prompt("?"))
                except TransportLost as error:
                    seen.append(str(error))
            return seen

    async def main():
        hub = Hub().register(Persistent())
        outlet, call = started(hub, "persistent.twice")
        await until(lambda: len(outlet.asked) == 2)
        call.lose_caller()
        await outlet.done.wait()
        assert outlet.items[-2].content == ["The line to the caller is closed"] * 2
        await assert_nothing_left(hub)

    drive(main())


# --- every way to end leaves nothing ---------------------------------------------------------


async def complete(hub):
    assert await hub.call("tool.echo", {"value": 1}) == 1


async def complete_with_answers(hub):
    assert await hub.call("tool.ask_name", answer=lambda _: "Ada") == "Ada"


async def error(hub):
    with pytest.raises(ToolError):
        await hub.call("tool.fail", answer=lambda _: asyncio.sleep(60))


async def refusal(hub):
    with pytest.raises(Cancelled):
        await hub.call("tool.ask_many", answer=lambda _: CANCELLED)


async def question_timed_out(hub):
    with pytest.raises(TimedOut):
        await hub.call("tool.ask_briefly", answer=lambda _: asyncio.sleep(60))


async def cancel_by_caller(hub):
    call = hub.call("tool.ask_many", supports=ALL)
    async for item in call:
        if isinstance(item, Request):
            await call.cancel()


async def timeout_around_the_call(hub):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await hub.call("tool.ask_many", answer=lambda _: asyncio.sleep(60))


async def task_cancelled_before_it_began(hub):
    task = asyncio.ensure_future(hub.call("tool.ask_many", supports=ALL))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def task_cancelled_twice(hub):
    asked, stopping, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_):
        asked.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopping.set()
            await go_on.wait()  # the caller is cancelled again while it waits for this

    task = asyncio.ensure_future(hub.call("tool.ask_many", answer=slow))
    await asked.wait()
    task.cancel()
    await stopping.wait()
    task.cancel()
    await turns()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def abandon_at_a_question(hub):
    async for item in hub.call("tool.ask_many", supports=ALL):
        if isinstance(item, Request):
            break


async def abandon_a_stream(hub):
    async for _ in hub.call("tool.stream"):
        break


async def abandon_a_full_line_of_questions(hub):
    async for _ in hub.call("tool.gather_many", supports=ALL):
        await turns()
        break


async def raise_in_the_loop(hub):
    with pytest.raises(ZeroDivisionError):
        async for _ in hub.call("tool.stream"):
            raise ZeroDivisionError


async def abort(hub):
    outlet, call = started(hub, "tool.ask_many")
    await until(lambda: len(outlet.asked) == 3)
    call.abort("Stop")


async def abort_before_it_began(hub):
    _, call = started(hub, "tool.ask_many")
    call.abort("Stop")


async def abort_while_it_waits_for_room(hub):
    reader = hub.call("tool.gather_many", supports=ALL).__aiter__()
    await anext(reader)
    await turns()
    (call,) = hub.calls
    call.abort("Stop")
    await until(lambda: not len(hub.calls))
    await reader.aclose()


async def close_all(hub):
    released.clear()
    for name in ("tool.ask_many", "tool.wait", "tool.stream", "tool.block", "tool.gather_many"):
        started(hub, name)
    await turns()
    await hub.calls.close()
    released.set()


async def handler_raises(hub):
    def answer(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await hub.call("tool.ask_many", answer=answer)


async def async_handler_raises(hub):
    async def answer(_):
        await asyncio.sleep(0.001)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await hub.call("tool.ask_many", answer=answer)


async def handler_answers_wrongly(hub):
    with pytest.raises(WrongAnswer):
        await hub.call("tool.ask_name", answer=lambda _: 5)


async def plain_function_abandoned(hub):
    released.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await hub.call("tool.block")
    released.set()


async def caller_lost(hub):
    outlet, call = started(hub, "tool.gather_many")
    await until(lambda: len(outlet.asked) == 200)
    call.lose_caller()
    await outlet.done.wait()


async def abort_after_a_refusal_while_it_waits_for_room(hub):
    outlet = Gate()
    call = hub.start("tool.ask_many", b"", outlet, supported=ALL)
    await until(lambda: outlet.asked)
    hub.calls.answer(outlet.asked[0].request_id, "Cancelled")
    await turns()
    call.abort("Stop")
    await outlet.done.wait()
    assert len(outlet.asked) == 1


ENDS = [
    complete, complete_with_answers, error, refusal, question_timed_out, cancel_by_caller, timeout_around_the_call,
    task_cancelled_before_it_began, task_cancelled_twice, abandon_at_a_question, abandon_a_stream,
    abandon_a_full_line_of_questions, raise_in_the_loop, abort, abort_before_it_began, abort_while_it_waits_for_room,
    abort_after_a_refusal_while_it_waits_for_room,
    close_all, handler_raises, async_handler_raises, handler_answers_wrongly, plain_function_abandoned, caller_lost,
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_no_task_no_question_and_no_call_is_left_after(end):
    async def main():
        _, hub = tools()
        await end(hub)
        await assert_nothing_left(hub)

    drive(main())


def test_an_abandoned_iteration_stops_the_tool():
    async def main():
        tool, hub = tools()
        async for _ in hub.call("tool.stream"):
            break
        async with asyncio.timeout(LIMIT):
            await tool.stopped.wait()

    drive(main())


# --- answers --------------------------------------------------------------------------------


def test_a_wrong_answer_is_refused_and_the_question_stays_open_for_the_right_one():
    async def main():
        _, hub = tools()
        call = hub.call("tool.ask_name", supports=PEOPLE)
        items = []
        async for item in call:
            items.append(item)
            if isinstance(item, Request):
                for wrong in (5, True, None, {"Confirmed": True}, {"Selected": ["Ada"]}, ["Ada"]):
                    with pytest.raises(WrongAnswer, match=r"expected text.*still open"):
                        await call.answer(item.request_id, wrong)
                    assert hub.calls.open_questions == 1
                await call.answer(item.request_id, {"Text": "Ada"})
        assert kinds(items) == ["Request", "Data", "Done"]
        assert items[1].content == "Ada"

    drive(main())


def test_an_unknown_answer_is_refused_and_changes_nothing():
    async def main():
        _, hub = tools()
        outlet, call = started(hub, "tool.ask_name")
        await until(lambda: outlet.asked)
        for unknown in ("", "nobody", "00000000-0000-4000-8000-000000000000"):
            with pytest.raises(UnknownQuestion) as caught:
                hub.calls.answer(unknown, "Ada")
            assert str(caught.value) == UNKNOWN.format(unknown)
        assert call.status == Status.AWAITING_ANSWER
        hub.calls.answer(outlet.asked[0].request_id, "Ada")
        await outlet.done.wait()
        assert outlet.items[1].content == "Ada"

    drive(main())


def test_a_refusal_that_comes_before_all_questions_of_a_round_are_out_stops_the_rest():
    async def main():
        _, hub = tools()
        outlet = Gate()
        hub.start("tool.ask_many", b"", outlet, supported=ALL)
        await until(lambda: outlet.asked)
        hub.calls.answer(outlet.asked[0].request_id, "Cancelled")
        await turns()
        outlet.opened.set()
        await outlet.done.wait()
        assert kinds(outlet.items) == ["Request", "Error", "Done"]
        assert outlet.items[1].code == "cancelled"
        await assert_nothing_left(hub)

    drive(main())


def test_a_second_answer_is_refused_and_the_first_counts():
    async def main():
        _, hub = tools()
        outlet, _ = started(hub, "tool.ask_name")
        await until(lambda: outlet.asked)
        request_id = outlet.asked[0].request_id
        hub.calls.answer(request_id, "first")
        for _ in range(2):
            with pytest.raises(UnknownQuestion) as caught:
                hub.calls.answer(request_id, "second")
            assert str(caught.value) == UNKNOWN.format(request_id)
            await turns()
        assert outlet.items[1].content == "first"

    drive(main())


@pytest.mark.parametrize("end", ["time", "abort", "refuse"])
def test_a_late_answer_is_refused(end):
    async def main():
        _, hub = tools()
        outlet, call = started(hub, "tool.ask_briefly" if end == "time" else "tool.ask_name")
        await until(lambda: outlet.asked)
        request_id = outlet.asked[0].request_id
        if end == "time":
            await outlet.done.wait()
        elif end == "abort":
            call.abort("Stop")  # the tool has not seen it yet
        else:
            hub.calls.answer(request_id, "Cancelled")
        before = len(outlet.items)
        with pytest.raises(UnknownQuestion) as caught:
            hub.calls.answer(request_id, "late")
        assert str(caught.value) == UNKNOWN.format(request_id)
        assert len(outlet.items) == before
        await outlet.done.wait()
        assert "Data" not in kinds(outlet.items)
        await assert_nothing_left(hub)

    drive(main())


def test_only_the_owner_of_a_call_can_answer_its_questions():
    async def main():
        _, hub = tools()
        mine, yours = object(), object()
        outlet, call = started(hub, "tool.ask_name", owner=mine)
        await until(lambda: outlet.asked)
        request_id = outlet.asked[0].request_id
        with pytest.raises(UnknownQuestion) as caught:
            hub.calls.answer(request_id, "Mallory", owner=yours)
        assert str(caught.value) == UNKNOWN.format(request_id)
        assert call.status == Status.AWAITING_ANSWER
        hub.calls.answer(request_id, "Ada", owner=mine)
        await outlet.done.wait()
        assert outlet.items[1].content == "Ada"

    drive(main())


def test_one_invocation_cannot_answer_for_another():
    async def main():
        _, hub = tools()
        mine = hub.call("tool.ask_name", supports=PEOPLE)
        yours = hub.call("tool.ask_name", supports=PEOPLE)
        other = yours.__aiter__()
        await anext(other)
        async for item in mine:
            if isinstance(item, Request):
                with pytest.raises(UnknownQuestion):
                    await yours.answer(item.request_id, "Mallory")
                await mine.answer(item.request_id, "Ada")
            elif isinstance(item, Data):
                assert item.content == "Ada"
        await other.aclose()
        await assert_nothing_left(hub)

    drive(main())


def test_two_calls_of_one_tool_answered_in_reverse_order_each_get_their_own():
    async def main():
        _, hub = tools()
        (one, _), (two, _) = started(hub, "tool.ask_name"), started(hub, "tool.ask_name")
        await until(lambda: one.asked and two.asked)
        hub.calls.answer(two.asked[0].request_id, "for two")
        await two.done.wait()
        assert not one.done.is_set()
        hub.calls.answer(one.asked[0].request_id, "for one")
        await one.done.wait()
        assert (one.items[1].content, two.items[1].content) == ("for one", "for two")
        await assert_nothing_left(hub)

    drive(main())


def test_a_thousand_waiting_calls_answered_in_random_order_are_never_mixed_up():
    async def main():
        _, hub = tools()
        outlets = [started(hub, "tool.ask_number", b'{"number": %d}' % n)[0] for n in range(1000)]
        await until(lambda: hub.calls.open_questions == 1000)
        assert len(hub.calls.list()) == 1000
        order = list(enumerate(outlets))
        random.Random(7).shuffle(order)
        for n, outlet in order:
            hub.calls.answer(outlet.asked[0].request_id, f"answer {n}")
        await asyncio.gather(*(outlet.done.wait() for outlet in outlets))
        for n, outlet in enumerate(outlets):
            assert kinds(outlet.items) == ["Request", "Data", "Done"]
            assert outlet.items[1].content == f"{n}: answer {n}"
        await assert_nothing_left(hub)

    drive(main())


def test_a_thousand_calls_through_invocations_with_handlers_are_never_mixed_up():
    async def main():
        _, hub = tools()
        waits = random.Random(7)

        async def answer(request):
            await asyncio.sleep(waits.random() / 20)
            return request.request_type.message

        calls = [hub.call("tool.ask_number", {"number": n}, answer=answer) for n in range(1000)]
        results = await asyncio.gather(*calls)
        assert results == [f"{n}: Number {n}?" for n in range(1000)]
        await assert_nothing_left(hub)

    drive(main())


def test_a_handler_that_is_late_is_no_error_of_the_caller():
    """The reader is slow, so that it has not yet seen the question withdrawn when its handler answers."""

    class Patient:
        @method
        async def again(self, ask: Ask) -> str:
            try:
                return await ask.prompt("first", timeout=0.01)
            except TimedOut:
                timed_out.set()
                return await ask.prompt("second")

    timed_out, answered = asyncio.Event(), asyncio.Event()

    async def main():
        hub = Hub().register(Patient())

        async def answer(request):
            await timed_out.wait()
            answered.set()
            return request.request_type.message

        contents = []
        async for item in hub.call("patient.again", answer=answer):
            if isinstance(item, Request) and item.request_type.message == "first":
                await answered.wait()
                await turns()
            contents.append(getattr(item, "content", None))
        assert contents[-2] == "second"
        await assert_nothing_left(hub)

    drive(main())


def test_the_handler_of_a_question_that_timed_out_is_stopped():
    class Patient:
        @method
        async def again(self, ask: Ask) -> str:
            with contextlib.suppress(TimedOut):
                await ask.prompt("first", timeout=0.01)
            return await ask.prompt("second")

    async def main():
        hub = Hub().register(Patient())
        stopped = asyncio.Event()

        async def answer(request):
            if request.request_type.message == "second":
                await stopped.wait()
                return "second"
            try:
                return await asyncio.sleep(60)
            finally:
                stopped.set()

        assert await hub.call("patient.again", answer=answer) == "second"
        await assert_nothing_left(hub)

    drive(main())


def test_an_answered_question_with_a_long_limit_does_not_keep_its_call_in_memory():
    async def main():
        _, hub = tools()
        outlet, call = started(hub, "tool.ask_name", time_limit=300)
        await until(lambda: hub.calls.open_questions)
        call.answer(outlet.asked[0].request_id, "Ada")
        await outlet.done.wait()
        await assert_nothing_left(hub)
        kept = weakref.ref(outlet)
        del outlet, call
        gc.collect()
        assert kept() is None

    drive(main())


# --- back-pressure --------------------------------------------------------------------------


def test_a_slow_reader_slows_the_tool():
    async def main():
        tool, hub = tools()
        read = 0
        async for item in hub.call("tool.stream"):
            assert isinstance(item, Data)
            assert item.content == read
            read += 1
            await asyncio.sleep(0.001)
            assert tool.emitted - read <= 70  # the buffer, and the one in its hand
            if read == 150:
                break
        assert tool.emitted <= 225

    drive(main())


def test_a_plain_generator_is_slowed_too():
    made = []

    class Numbers:
        @method
        def count(self):
            for n in range(100_000):
                made.append(n)
                yield n

    async def main():
        hub = Hub().register(Numbers())
        async for _ in hub.call("numbers.count"):
            await until(lambda: len(made) >= 64)  # no room is left
            await asyncio.sleep(0.1)
            break
        assert len(made) <= 70
        await assert_nothing_left(hub)

    drive(main())


def test_a_stream_that_never_waits_lets_other_calls_run_and_can_be_aborted():
    async def main():
        tool, hub = tools()
        stream, call = started(hub, "tool.stream")
        other, _ = started(hub, "tool.echo")
        await other.done.wait()
        assert not stream.done.is_set()
        assert tool.emitted < 1000
        call.abort("Enough")
        await stream.done.wait()
        assert tool.emitted < 2000
        await assert_nothing_left(hub)

    drive(main())


def test_questions_wait_for_a_slow_reader_and_are_all_asked():
    async def main():
        _, hub = tools()
        call = hub.call("tool.gather_many", supports=ALL)
        asked = 0
        async for item in call:
            if isinstance(item, Request):
                asked += 1
                assert hub.calls.open_questions <= 70
                await call.answer(item.request_id, "fine")
        assert asked == 200
        await assert_nothing_left(hub)

    drive(main())


def flooding(report):
    class Flood:
        @method
        async def go(self, ask: Ask) -> str:
            for n in range(20_000):
                report(ask, n)
            return "done"

    return Hub().register(Flood())


@pytest.mark.parametrize(
    "report",
    [
        lambda ask, n: ask.progress(f"{n}"),
        lambda ask, n: ask.log(f"{n}"),
        lambda ask, n: ask.log(f"{n}") if n % 2 else ask.progress(f"{n}"),
    ],
    ids=["progress", "log", "both"],
)
def test_a_flood_of_reports_from_a_tool_that_never_awaits_is_bounded_and_the_newest_is_kept(report):
    outcome = drive(run(flooding(report), "flood.go"))
    assert outcome.result == "done"
    assert len(outcome.items) <= 64 + 100 + 2
    reports = [item for item in outcome.items if isinstance(item, Progress | Log)]
    assert reports[-1].message == "19999"
    assert [int(item.message) for item in reports] == sorted(int(item.message) for item in reports)


def test_a_flood_of_reports_from_a_thread_is_bounded_and_the_newest_is_kept():
    said_all = threading.Event()

    class Flood:
        @method
        async def go(self, ask: Ask) -> str:
            def work():
                for n in range(20_000):
                    ask.progress(f"{n}")
                said_all.set()

            await ask.step(work)
            return "done"

    async def main():
        hub = Hub().register(Flood())
        reader = hub.call("flood.go").__aiter__()
        first = await anext(reader)
        assert await asyncio.to_thread(said_all.wait, LIMIT)
        return [first, *[item async for item in reader]]

    items = drive(main())
    assert len(items) <= 300
    assert isinstance(items[-3], Progress)
    assert items[-3].message == "19999"


# --- what cannot be sent --------------------------------------------------------------------


class Encoding(Plain):
    """An outlet that writes, as a transport does."""

    def put(self, item):
        encode_item(item)
        super().put(item)


class Unsendable:
    @method
    async def result(self):
        return object()

    @method
    async def stream(self):
        yield 1
        yield object()

    @method
    async def surrogate(self):
        return "\udcff"

    @method
    async def question(self, ask: Ask):
        try:
            await ask.custom("thing", object())
        except TypeError as error:
            raise ToolError(f"{self.hub.calls.open_questions} questions are open") from error

    @method
    async def log(self, ask: Ask):
        ask.log("thing", data=object())


def test_a_result_that_cannot_be_encoded_is_passed_as_it_is_in_process():
    assert type(drive(run(Hub().register(Unsendable()), "unsendable.result")).result) is object


@pytest.mark.parametrize("name", ["result", "stream", "surrogate", "question", "log"])
def test_what_cannot_be_encoded_fails_the_call_and_the_stream_still_ends(name):
    async def main():
        hub = Unsendable.hub = Hub().register(Unsendable())
        outlet = Encoding()
        call = hub.start(f"unsendable.{name}", b"", outlet, supported=ALL)
        await outlet.done.wait()
        assert kinds(outlet.items)[-2:] == ["Error", "Done"]
        assert call.status == Status.FAILED
        if name == "question":
            assert outlet.items[-2].message == "0 questions are open"
        await assert_nothing_left(hub)

    drive(main())


def test_a_held_report_that_cannot_be_encoded_does_not_stop_the_end_of_the_stream():
    class Slow(Encoding):
        full = True

    async def main():
        hub = Hub().register(Unsendable())
        outlet = Slow()
        hub.start("unsendable.log", b"", outlet, supported=ALL)
        await outlet.done.wait()
        assert kinds(outlet.items) == ["Done"]
        await assert_nothing_left(hub)

    drive(main())


def test_exactly_one_done_ends_every_stream():
    async def main():
        _, hub = tools()
        for name in ("tool.echo", "tool.fail", "tool.ask_briefly", "tool.ask_name"):
            outlet, call = started(hub, name)
            if name == "tool.ask_name":
                await asyncio.sleep(0)
                call.abort("Stop")
            await outlet.done.wait()
            await turns()
            assert [type(item) for item in outlet.items].count(Done) == 1
            assert isinstance(outlet.items[-1], Done)
            assert sum(isinstance(item, Error) for item in outlet.items) <= 1
            closed = [item.request_id for item in outlet.items if isinstance(item, RequestCancelled)]
            assert closed == [item.request_id for item in outlet.asked]

    drive(main())


def test_calls_of_one_hub_run_in_several_event_loops_one_after_the_other():
    _, hub = tools()
    assert drive(hub_call(hub)) == 1
    assert drive(hub_call(hub)) == 1


async def hub_call(hub):
    return await hub.call("tool.echo", {"value": 1})

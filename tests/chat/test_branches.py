"""Questions that change while a chat waits: one times out, several are open, one is withdrawn."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chatting import Person, Puppet, call, kinds, only, questions, response, serving
from driving import drive, with_patience
from midcall import Ask, Hub, TimedOut, method
from midcall.chat import ChatEngine
from midcall.journal.contract import Journal
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal


class Desk:
    """Asks in ways that are not one after the other."""

    def __init__(self, patience: float = 0.3) -> None:
        self.patience = patience
        self.late, self.more, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.done: list[str] = []

    @method
    async def impatient(self, ask: Ask) -> str:
        """Ask, and when nobody answers ask something else at once."""
        try:
            return await ask.prompt("Quick?", timeout=self.patience)
        except TimedOut:
            self.late.set()
            return f"At last: {await ask.prompt('Again?')}"

    @method
    async def both(self, ask: Ask) -> str:
        """Ask in two branches, each of which does something with its answer."""

        async def branch(message: str) -> str:
            answer = await ask.prompt(message)
            await ask.step(self.done.append, answer)
            self.asked.set()
            return answer

        return " and ".join(await asyncio.gather(branch("First?"), branch("Second?")))

    @method
    async def later(self, ask: Ask) -> str:
        """Ask in a branch while a question of another one is open."""

        async def second() -> str:
            await self.more.wait()
            self.asked.set()
            return await ask.prompt("Second?")

        return " and ".join(await asyncio.gather(ask.prompt("First?"), second()))

    @method
    async def either(self, ask: Ask) -> str:
        """Ask two questions, of which one answer is enough."""
        asked = [asyncio.ensure_future(ask.prompt(message)) for message in ("First?", "Second?")]
        done, left = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for one in left:
            one.cancel()
        return "/".join(one.result() for one in done)

    @method
    async def withdrawn(self, ask: Ask) -> str:
        """Ask two questions, and take one of them back."""
        second = asyncio.ensure_future(ask.prompt("Second?"))

        async def take_back() -> None:
            await self.more.wait()
            second.cancel()
            await asyncio.wait((second,))
            self.asked.set()

        first, _ = await asyncio.gather(ask.prompt("First?"), take_back())
        return f"only {first}"


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")


def engine(desk: Desk, journal: Journal, method: str) -> ChatEngine:
    hub = Hub("h").register(desk)
    hub.durable = DurableCalls(hub, journal)
    return ChatEngine(hub, Puppet(call(f"desk__{method}"), "There."))


def messages(events: list[dict[str, Any]]) -> list[str]:
    return [one["message"] for one in questions(events)]


def result_of(events: list[dict[str, Any]]) -> str:
    assert kinds(events)[-1] == "complete"
    result: str = only(events, "tool_result")["content"]
    return result


def test_a_question_asked_at_once_after_one_that_timed_out_reaches_the_person(journal: Journal) -> None:
    async def is_in_time(patience: float) -> bool:
        desk = Desk(patience)
        async with serving(engine(desk, journal, "impatient")) as port:
            person = Person(port)
            quick = only(await person.say("go"), "plugin_elicit_request")
            if quick["message"] != "Quick?":
                return False
            await desk.late.wait()
            again = only(await person.answer(quick, text="too late"), "plugin_elicit_request")
            assert again["message"] == "Again?"
            assert result_of(await person.answer(again, text="Ada")) == "At last: Ada"
            return True

    drive(with_patience(is_in_time))


def test_whoever_comes_back_is_shown_what_is_asked_now(journal: Journal) -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(engine(desk, journal, "impatient")) as port:
            person = Person(port)
            await person.say("go")
            await desk.late.wait()
            again = only(await person.post(resume=True), "plugin_elicit_request")
            assert again["message"] == "Again?"
            assert (await person.shown())["pending"] == [again]
            assert result_of(await person.answer(again, text="Ada")) == "At last: Ada"

    drive(main())


def test_of_two_branches_each_goes_on_with_its_own_answer(journal: Journal) -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(engine(desk, journal, "both")) as port:
            person = Person(port)
            first, second = questions(await person.say("go"))
            assert (first["message"], second["message"]) == ("First?", "Second?")
            events = await person.answer(second, text="two")
            await desk.asked.wait()
            assert desk.done == ["two"]
            assert questions(events) == [first]  # the same, for whoever is about to answer it
            assert result_of(await person.answer(first, text="one")) == "one and two"
            assert desk.done == ["two", "one"]

    drive(main())


def test_two_branches_may_be_answered_at_once(journal: Journal) -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(engine(desk, journal, "both")) as port:
            person = Person(port)
            asked = questions(await person.say("go"))
            answers = [response(one, "accept", {"text": one["message"]}) for one in asked]
            events = await person.post(pluginElicitResponses=answers)
            assert result_of(events) == "First? and Second?"

    drive(main())


def test_a_question_asked_while_another_is_open_reaches_whoever_comes_back(journal: Journal) -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(engine(desk, journal, "later")) as port:
            person = Person(port)
            (first,) = questions(await person.say("go"))
            desk.more.set()
            await desk.asked.wait()
            asked = questions(await person.post(resume=True))
            assert [one["message"] for one in asked] == ["First?", "Second?"]
            assert asked[0] == first
            (second,) = questions(await person.answer(first, text="one"))
            assert second == asked[1]
            assert result_of(await person.answer(second, text="two")) == "one and two"

    drive(main())


def test_a_question_that_an_answer_to_another_makes_needless_is_not_asked_any_more(journal: Journal) -> None:
    async def main() -> None:
        async with serving(engine(Desk(), journal, "either")) as port:
            person = Person(port)
            _, second = questions(await person.say("go"))
            events = await person.answer(second, text="enough")
            while kinds(events)[-1] != "complete":  # the answer was faster than the tool
                events = await person.post(resume=True)
            assert result_of(events) == "enough"
            assert (await person.shown())["pending"] == []

    drive(main())


def test_a_withdrawn_question_is_not_asked_any_more_and_an_answer_to_it_changes_nothing(
    journal: Journal,
) -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(engine(desk, journal, "withdrawn")) as port:
            person = Person(port)
            asked = {one["message"]: one for one in questions(await person.say("go"))}
            assert asked.keys() == {"First?", "Second?"}
            desk.more.set()
            await desk.asked.wait()
            events = await person.answer(asked["Second?"], text="too late")
            assert questions(events) == [asked["First?"]]
            assert result_of(await person.answer(asked["First?"], text="one")) == "only one"

    drive(main())

"""Machines in a chain: what one ends with is what the next one begins with."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from driving import drive
from midcall import Hub, connect
from midcall.fsm import MachineBuilder, MachineError, chain
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite.journal import SqliteJournal

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
CLOSED = {**NUMBER, "additionalProperties": False}


def machine(name: str, function: Any, given: Any = NUMBER, gives: Any = NUMBER) -> MachineBuilder:
    return MachineBuilder(name).function("f", function).to("start", "f", given).to("f", "end", gives)


def plus(name: str, number: int, **schemas: Any) -> MachineBuilder:
    return machine(name, lambda event: {"number": event["number"] + number}, **schemas)


def trail(made: Any, given: Any, **options: Any) -> list[Any]:
    async def main() -> Any:
        hub = Hub().register_machine(made, **options)
        return msgspec.to_builtins(await hub.call(f"machines.{made.id}", given))

    return drive(main())  # type: ignore[no-any-return]


def test_machines_in_sequence_are_one_machine() -> None:
    made = chain(plus("one", 1), plus("ten", 10, given=CLOSED), plus("hundred", 100), id="sum")
    entries = trail(made, {"number": 0})
    assert [(one["from"], one["to"]) for one in entries] == [
        ("start", "one"),
        ("one", "ten"),
        ("ten", "hundred"),
        ("hundred", "end"),
    ]
    assert [one["event"]["number"] for one in entries] == [0, 1, 11, 111]


def test_a_machine_may_be_in_a_chain_twice_and_a_chain_in_a_chain() -> None:
    one = plus("one", 1)
    twice = chain(one, one, id="twice")
    assert trail(chain(twice, plus("ten", 10), id="all"), {"number": 0})[-1]["event"]["number"] == 12
    assert [state.id for state in twice.build().states] == ["one", "one-2"]


def test_definitions_can_be_chained_with_their_functions_given_later() -> None:
    definition = plus("one", 1).build()
    made = chain(definition, msgspec.json.decode(definition.to_json()) | {"id": "other"}, id="c")
    functions = {"f": lambda event: {"number": event["number"] + 5}}
    assert trail(made, {"number": 0}, functions=functions)[-1]["event"]["number"] == 10


def test_its_input_and_output_are_those_of_its_ends() -> None:
    made = chain(machine("a", dict, NUMBER, TEXT), machine("b", dict, TEXT, NUMBER), id="c")
    method = Hub().register_machine(made).resolve("machines.c").method
    assert method.params["required"] == ["number"]
    assert method.output is not None
    assert method.output["anyOf"][0]["required"] == ["id", "number"]


def test_that_one_fits_the_next_is_checked_when_it_is_registered() -> None:
    made = chain(machine("a", dict, gives=TEXT), machine("b", dict), id="c")
    hub = Hub()
    with pytest.raises(
        MachineError, match=r"what state 'a' gives can never be an event of \['a', 'b'\]"
    ) as why:
        hub.register_machine(made)
    assert '"number" is a required property' in str(why.value)
    assert hub.methods() == []


def test_one_that_may_end_in_two_ways_fits_if_one_of_them_does() -> None:
    either = machine("a", lambda event: {"id": ["f", "end"], "number": 7})
    either.function("g", dict).to("f", "g").to("g", "end", TEXT)
    assert trail(chain(either, plus("b", 1), id="c"), {"number": 0})[-1]["event"]["number"] == 8


def test_one_that_gives_up_ends_the_chain() -> None:
    def broken(event: Any) -> Any:
        raise ValueError("no tea")

    ran: list[Any] = []
    entries = trail(chain(machine("a", broken), machine("b", ran.append), id="c"), {"number": 0})
    assert entries[-1]["event"]["id"] == ["a", "end"]
    assert entries[-1]["event"]["bail_out"]
    assert "a gave up: no tea" in entries[-1]["event"]["message"]
    assert ran == []


def test_what_comes_that_does_not_fit_ends_the_chain_with_the_reason() -> None:
    loose = machine("a", lambda event: {"number": "seven"}, gives=None)
    event = trail(chain(loose, plus("b", 1), id="c"), {"number": 0})[-1]["event"]
    assert event["bail_out"]
    assert 'number: "seven" is not of type "integer"' in event["message"]


def test_its_parts_are_no_methods_of_their_own_and_may_be_there_already() -> None:
    one = plus("one", 1)
    hub = Hub().register_machine(plus("one", 1000)).register_machine(chain(one, plus("ten", 10), id="c"))
    assert [name for name, _ in hub.methods()] == ["machines.one", "machines.c"]

    async def main() -> Any:
        return (await hub.call("machines.c", {"number": 0}))[-1].event["number"]

    assert drive(main()) == 11, "those that it was made of, not others of the same name"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (chain, "at least one machine"),
        (lambda: chain(plus("a", 1), plus("a", 2)), "The id 'a' is of two machines"),
        (
            lambda: chain(plus("a", 1), id="a"),
            "The id 'a' is of two machines of a chain, or of the chain too",
        ),
        (lambda: chain({"id": "x"}), "missing required field"),
    ],
)
def test_what_is_no_chain_is_refused(make: Any, told: str) -> None:
    with pytest.raises(MachineError, match=told):
        make()


def test_a_chain_goes_on_from_its_journal(tmp_path: Path) -> None:
    ran: list[str] = []

    def noted(event: Any) -> Any:
        ran.append("first")
        return {"number": 1}

    second = MachineBuilder("second").ask("sure", "{number}?").to("start", "sure", NUMBER).to("sure", "end")
    third = MachineBuilder("third").ask("really").to("start", "really").to("really", "end")
    hub = Hub().register_machine(chain(machine("first", noted), second, third, id="c"))

    async def main() -> Any:
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"), replay_check=True)
        await hub.open()
        try:
            async with connect(hub, answer=lambda _: True) as client:
                return (await client.call("machines.c", {"number": 0})).structured
        finally:
            await hub.close()

    assert drive(main()) == {"id": ["third", "end"], "confirmed": True}
    assert ran == ["first"]

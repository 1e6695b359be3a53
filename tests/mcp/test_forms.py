"""Forms with objects inside, asked of clients whose forms are flat: in rounds, with one answer at the end."""

import datetime as dt
import logging
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp_types import _v2025_11_25
from pydantic import BaseModel

from driving import drive
from mcp_peers import FORMS, LATEST, MODERN, HttpServer, http_server, text
from midcall import Ask, Hub, Question, connect
from midcall.errors import WrongAnswer
from midcall.mcp import McpExtension
from midcall.mcp.elicitation import response_for, rounds_for
from midcall.mcp.forms import MAX_ROUNDS, NotFlat, form_rounds, from_rounds
from midcall.questions import Form, Prompt
from midcall.schema import shape_of


class Tag(Enum):
    NEW = "new"
    OLD = "old"


class Geo(BaseModel):
    lat: float
    long: float


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    geo: Geo | None = None


class Visitor(BaseModel):
    name: str
    nick: str | None
    tags: list[Tag]
    since: dt.date
    seen: dt.datetime | None = None
    home: Address
    work: Address | None = None


class Tree(BaseModel):
    name: str
    child: "Tree | None" = None


class Parcels(BaseModel):
    weights: list[float]


hub = Hub()


@hub.method
async def welcome(ask: Ask) -> Visitor:
    """Ask for a visitor."""
    return await ask.form(Visitor, "Who comes?", key="who")


@hub.method
async def locate(ask: Ask) -> Geo:
    """Ask for a place, which stands alone in what is asked for."""

    class Place(BaseModel):
        geo: Geo

    return (await ask.form(Place, "Where?")).geo


ROOT = {"name": "Ada", "nick": "", "tags": ["new"], "since": "2026-07-28"}
CONTENTS = {"": ROOT, "home": {"street": "Main"}, "home.geo": {}, "work": {"street": ""}, "work.geo": {}}
VISITOR = {
    "name": "Ada",
    "nick": None,
    "tags": ["new"],
    "since": "2026-07-28",
    "seen": None,
    "home": {"street": "Main", "geo": None},
    "work": None,
}


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with http_server(f"{__file__}:hub") as serving:
        yield serving


def test_each_object_is_a_flat_form_that_says_what_it_is_about() -> None:
    rounds = rounds_for(Form("Who comes?", shape_of(Visitor).schema))
    assert [*rounds] == [*CONTENTS]
    for _, params in rounds.values():
        _v2025_11_25.ElicitRequestFormParams.model_validate(params)
    assert rounds["home"][1]["message"] == "Who comes? (home: Address: Where somebody lives.)"
    assert rounds[""][1]["requestedSchema"]["required"] == ["name", "tags", "since"]
    assert rounds["home"][1]["requestedSchema"]["required"] == ["street"]
    assert "required" not in rounds["work"][1]["requestedSchema"]


def test_a_legacy_client_is_asked_one_round_after_the_other(server: HttpServer) -> None:
    async def main() -> None:
        async with server.client(LATEST, FORMS) as client:
            id = await client.begin("welcome")
            for content in CONTENTS.values():
                asked = await client.message("elicitation/create")
                await client.answer(asked, {"action": "accept", "content": content})
            assert (await client.response(id))["result"]["structuredContent"] == VISITOR
            id = await client.begin("locate")
            asked = await client.message("elicitation/create")
            await client.answer(asked, {"action": "accept", "content": {"lat": 1, "long": 2}})
            assert (await client.response(id))["result"]["structuredContent"] == {"lat": 1, "long": 2}

    drive(main())


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_who_refuses_a_round_is_not_asked_the_others(server: HttpServer, action: str) -> None:
    async def main() -> None:
        async with server.client(LATEST, FORMS) as client:
            id = await client.begin("welcome")
            for result in ({"action": "accept", "content": ROOT}, {"action": action}):
                asked = await client.message("elicitation/create")
                await client.answer(asked, result)
            refused = (await client.response(id))["result"]
            assert (refused["isError"], action[:6] in text(refused)) == (True, True)
            assert client.inbox == []

    drive(main())


def test_a_modern_client_is_asked_all_rounds_at_once_also_by_another_process(tmp_path: Path) -> None:
    """And what does not fit is asked for again, all of it."""
    place = {"MIDCALL_JOURNAL": str(tmp_path / "journal.db")}
    call = {"name": "welcome", "arguments": {}}

    async def begin(serving: HttpServer) -> Any:
        async with serving.client(MODERN, FORMS) as client:
            asked = await client.result("tools/call", call)
            assert [*asked["inputRequests"]] == [
                "who",
                "who/home",
                "who/home.geo",
                "who/work",
                "who/work.geo",
            ]
            half = {"who": {"action": "accept", "content": ROOT}, "who/work": {"action": "accept"}}
            again = {**call, "requestState": asked["requestState"], "inputResponses": half}
            asked = await client.result("tools/call", again)
            assert "home" in asked["inputRequests"]["who"]["params"]["message"]
            return asked["requestState"]

    async def end(serving: HttpServer, state: str) -> None:
        given = {
            f"who/{path}" if path else "who": {"action": "accept", "content": content}
            for path, content in CONTENTS.items()
        }
        async with serving.client(MODERN, FORMS) as client:
            again = {**call, "requestState": state, "inputResponses": given}
            assert (await client.result("tools/call", again))["structuredContent"] == VISITOR

    with http_server(f"{__file__}:hub", **place) as serving:
        state = drive(begin(serving))
    with http_server(f"{__file__}:hub", **place) as serving:
        drive(end(serving, state))


def test_of_a_modern_client_a_refusal_of_one_round_refuses_the_question() -> None:
    question = Form("Who comes?", shape_of(Visitor).schema)
    given = {"who": {"action": "accept", "content": ROOT}, "who/home": {"action": "decline"}}
    assert response_for(question, "who", given) == {"action": "decline"}
    assert response_for(question, "other", given) is None
    whole = {"action": "accept", "content": VISITOR}
    assert response_for(question, "who", {"who": whole}) == whole
    with pytest.raises(WrongAnswer):
        response_for(question, "who", {"who/home": {"action": "accept", "content": 5}})


def test_a_slash_in_a_key_is_not_a_round_of_another_question() -> None:
    hub = Hub()

    @hub.method
    async def trip(ask: Ask) -> list[str]:
        return list(await ask.all(ask.prompt("Flight?", key="trip"), ask.prompt("Seat?", key="trip/seat")))

    async def main() -> None:
        async with connect(hub, era="modern", answer=lambda asked: asked.request_type.message) as client:
            assert (await client.call("trip")).value == ["Flight?", "Seat?"]

    drive(main())
    flat, nested = Prompt("Flight?"), Form("Who comes?", shape_of(Visitor).schema)
    accepted = {"action": "accept", "content": {}}
    for question in (flat, nested):
        assert response_for(question, "who", {"who/elsewhere": accepted}) is None


def test_what_was_filled_in_is_put_together() -> None:
    schema = shape_of(Visitor).schema
    work = {"work": {"street": "Side"}, "work.geo": {"lat": 1, "long": 2}}
    made = from_rounds(schema, {**CONTENTS, **work, "unknown.path": {"x": 1}})
    assert made["work"] == {"street": "Side", "geo": {"lat": 1, "long": 2}}
    assert shape_of(Visitor).validate(made).work == Address(street="Side", geo=Geo(lat=1, long=2))


class Town(BaseModel):
    name: str
    geo: Geo | None = None


class House(BaseModel):
    street: str
    colour: Literal["red", "blue"] = "blue"
    town: Town


class Move(BaseModel):
    old: House
    new: House | None = None


OLD = {"old": {"street": "Main", "colour": "blue"}, "old.town": {"name": "Oslo"}}
MOVED = {"street": "Main", "colour": "blue", "town": {"name": "Oslo", "geo": None}}


def test_an_optional_object_with_others_inside_can_be_left_out() -> None:
    """Also by a client that checks what is required, and sends what it was told to propose."""
    schema = shape_of(Move).schema
    rounds = form_rounds(schema, "")
    assert rounds["old.town"].schema["required"] == ["name"]
    assert not any("required" in one.schema for path, one in rounds.items() if path.startswith("new"))
    for proposed in ({"colour": "blue"}, {"colour": "blue", "street": ""}, {}):
        assert from_rounds(schema, {**OLD, "new": proposed}) == {"old": MOVED, "new": None}


def test_an_optional_object_that_was_begun_is_not_left_out() -> None:
    schema = shape_of(Move).schema
    for begun in ({"new": {"colour": "red"}}, {"new": {"colour": "blue"}, "new.town": {"name": "Bergen"}}):
        made = from_rounds(schema, {**OLD, **begun})
        with pytest.raises(ValueError, match="street"):
            shape_of(Move).validate(made)
    whole = {"new": {"street": "Side", "colour": "blue"}, "new.town": {"name": "Bergen"}}
    assert shape_of(Move).validate(from_rounds(schema, {**OLD, **whole})).new.town.name == "Bergen"


def test_two_objects_of_one_type_are_told_apart_and_so_are_two_choices() -> None:
    class Paint(BaseModel):
        door: Tag
        back_wall: Tag

    about = [one.about for path, one in form_rounds(shape_of(Move).schema, "").items() if "town" in path]
    assert about == ["old.town: Town", "old.town.geo: Geo", "new.town: Town", "new.town.geo: Geo"]
    asked = form_rounds(shape_of(Paint).schema, "")[""].schema["properties"]
    assert {name: field["title"] for name, field in asked.items()} == {
        "door": "Door",
        "back_wall": "Back wall",
    }


def test_what_has_itself_inside_and_lists_of_numbers_have_no_rounds() -> None:
    with pytest.raises(NotFlat, match=f"more than {MAX_ROUNDS - 1} others inside"):
        form_rounds(shape_of(Tree).schema, "")
    with pytest.raises(NotFlat, match="'weights', which is a list of other things than choices"):
        form_rounds(shape_of(Parcels).schema, "")


def test_an_author_is_told_of_a_declared_question_that_mcp_cannot_ask(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weigh, visit = Question("weigh", Parcels), Question("visit", Visitor)
    serving = Hub().with_extension(McpExtension())
    with caplog.at_level(logging.WARNING, "midcall.mcp"):

        @serving.method(elicits=[weigh, visit])
        async def ship(ask: Ask) -> int:
            """Ask for weights."""
            return len((await ask(weigh, "How heavy?")).weights)

        @serving.method
        async def other() -> None:
            """Ask nothing."""

    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith("ship asks weigh, which MCP clients cannot show.")
    assert "'weights', which is a list of other things than choices" in told

"""What a hostile model, caller or moment can do to a run: what it may not do, and that it does nothing twice."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Router

from driving import drive
from midcall import Ask, Hub, NotAllowed, Request, connect, method
from midcall.fsm import MachineBuilder, MachineError, Moment
from midcall.fsm.http import MachinePart
from midcall.fsm.run import MOST_WITHIN
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite.journal import SqliteJournal
from midcall.principal import CallSource, Principal, check_scopes
from midcall.questions import KINDS
from spoken import Spoken

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
EVE = Principal("eve", frozenset())


class Shop:
    namespace = "shop"

    def __init__(self) -> None:
        self.begun: list[str] = []

    @method(scopes=["shop:admin"])
    async def close(self) -> str:
        """Close the shop."""
        self.begun.append("close")
        return "closed"

    @method
    async def hang(self, ask: Ask) -> str:
        """Never ends."""
        self.begun.append("hang")
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    @method
    async def fail(self) -> str:
        """Fails with what cannot be kept."""
        raise Strange(object())


class Strange(Exception):
    """Has attributes that JSON cannot carry, and words that need them."""

    def __init__(self, what: object) -> None:
        self.what = what
        super().__init__("strange")

    def __str__(self) -> str:
        return f"strange {type(self.what).__name__}"


def tools(*names: str, **options: Any) -> MachineBuilder:
    """A machine that makes the tool calls that it is given, and then asks three times."""
    built = MachineBuilder("m").tools("t", *names, **options).to("start", "t").to("t", "one")
    for name, after in (("one", "two"), ("two", "three"), ("three", "end")):
        built.ask(name, f"{name}?").to(name, after)
    return built


def calls(*names: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": str(n), "name": name} for n, name in enumerate(names)]}


def durable_run(hub: Hub, path: Path, given: Any) -> Any:
    """The result of `machines.m` on a hub that runs a call again from its journal after each answer."""

    async def main() -> Any:
        hub.durable = DurableCalls(hub, SqliteJournal(path / "journal.db"), replay_check=True)
        await hub.open()
        try:
            async with connect(hub, answer=lambda _: True) as client:
                return (await client.call("machines.m", given)).structured
        finally:
            await hub.close()

    return drive(main())


# --- who may what -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda shop: Hub().register(shop).register_machine(tools("shop.*")),
        lambda shop: Hub().register_machine(tools("shop.*")).register(shop),
        lambda shop: Hub().register_machine(tools("shop.close")).register(shop),
        lambda shop: (
            Hub().register(shop).register_machine(MachineBuilder("m").method("t", "shop_close").to("start", "t").to("t", "end"))
        ),
        lambda shop: Hub().mount("shop", Hub("x").register(shop, namespace=""), scopes=["shop:admin"]).register_machine(tools("shop.*")),
    ],
    ids=["before", "later", "later by name", "alias", "mounted"],
)  # fmt: skip
def test_a_caller_needs_the_scopes_of_all_that_a_machine_may_call(make: Callable[[Shop], Hub]) -> None:
    hub = make(Shop())
    with pytest.raises(NotAllowed):
        check_scopes("machines.m", hub.resolve("machines.m").method.extras, EVE)


def test_a_machine_does_not_have_a_model_answer_what_only_a_person_may() -> None:
    class Door:
        @method(person_only=True)
        async def open(self, ask: Ask) -> str:
            """Open it."""
            return f"opened: {await ask.confirm('Open it?', timeout=None)}"

    machine = MachineBuilder("m").method("t", "door.open").to("start", "t").to("t", "end")
    hub = Hub().register(Door()).register_machine(machine)

    async def run() -> None:
        async with connect(hub, era="legacy") as client:  # its model would answer
            told = str((await client.call("machines.m")).structured)
            assert "door.open asks a person, and here a model would answer" in told
        async with connect(hub, era="legacy", answer=lambda request: True) as client:
            assert "opened: True" in str((await client.call("machines.m")).structured)

    drive(run())


def test_scopes_that_change_with_nothing_else_are_seen() -> None:
    def store(scope: str) -> object:
        class Store:
            @method(scopes=[scope])
            async def close(self) -> str:
                """Close it."""
                return "closed"

        return Store()

    before = store("store:admin")
    hub = Hub().register(before).register_machine(tools("store.close"))
    assert hub.resolve("machines.m").method.extras["scopes"] == ("store:admin",)
    hub.unregister(before).register(store("store:owner"))
    assert hub.resolve("machines.m").method.extras["scopes"] == ("store:owner",)


@pytest.mark.parametrize(("scopes", "seen"), [((), ["open"]), (("shop:admin",), ["m", "open"])])
def test_a_machine_is_listed_for_those_alone_who_may_run_it(scopes: tuple[str, ...], seen: list[str]) -> None:
    free = MachineBuilder("open").ask("one", "one?").to("start", "one").to("one", "end")
    hub = Hub().register(Shop()).register_machine(tools("shop.close")).register_machine(free)
    listed, described = (
        drive(page_of(hub, path, Principal("eve", frozenset(scopes))))
        for path in ("/fsm", "/fsm/openapi.json")
    )
    assert [one["id"] for one in listed["machines"]] == seen
    assert [path for path in described["paths"] if path.endswith("/run")] == [f"/fsm/{id}/run" for id in seen]


async def page_of(hub: Hub, path: str, principal: Principal) -> Any:
    """What a page says to a caller that a transport has found to be this one."""
    said = []

    async def send(message: Any) -> None:
        said.append(message.get("body", b""))

    asked = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await Router(MachinePart(hub).routes())({**asked, "midcall.principal": principal}, None, send)  # type: ignore[arg-type]
    return json.loads(b"".join(said))


def test_what_comes_while_a_machine_runs_is_not_reached_without_its_scopes() -> None:
    shop = Shop()

    async def main() -> Any:
        hub = Hub().register_machine(tools("shop.*"))
        run = hub.call("machines.m", calls("shop.close"), answer=lambda _: True)
        entries = []
        async for item in run:
            entries.append(item)
            if len(entries) == 1:
                hub.register(shop)
        return entries[2].content.event if hasattr(entries[2], "content") else entries

    told = str(drive(main()))
    assert shop.begun == []
    assert "shop.close" in told


def test_tools_that_are_not_named_are_neither_guarded_nor_machines() -> None:
    async def main() -> list[Any]:
        hub = Hub().register(Shop()).register_machine(tools())
        trail = await hub.call("machines.m", calls("shop.close", "machines.m"), answer=lambda _: True)
        return [one["success"] for one in trail[1].event["tool_results"]]

    assert drive(main()) == [False, False]


# --- how much ---------------------------------------------------------------------------------------


def test_machines_that_a_model_starts_in_machines_come_to_an_end() -> None:
    batch = [{"id": str(n), "name": "machines.loop"} for n in range(10)]
    model = Spoken({"id": ["llm", "t"], "tool_calls": batch})
    loop = (
        MachineBuilder("loop").model("llm").tools("t", "machines.loop", parallel=True)
        .to("start", "llm").to("llm", "t").to("t", "llm").to("llm", "end")
    )  # fmt: skip

    async def main() -> Any:
        hub = Hub().register_machine(loop, model=model, max_transitions=3)
        return (await hub.call("machines.loop", {}))[-1].event

    assert drive(main())["bail_out"]
    assert len(model.asked) <= MOST_WITHIN


def test_a_machine_that_runs_itself_in_branches_comes_to_an_end() -> None:
    branch = {"action": "machine", "config": {"machine": "m"}}
    built = MachineBuilder("m").parallel("p", dict.fromkeys("abc", branch)).to("start", "p").to("p", "end")

    async def main() -> Any:
        return (await Hub().register_machine(built).call("machines.m", {}))[-1].event

    assert set(drive(main())["results"]) == {"a", "b", "c"}


# --- replay -----------------------------------------------------------------------------------------


TIMES = (0.05, 0.5, 5.0, 50.0)
"""Seconds, of which the first that are enough for something to begin are taken."""


@pytest.mark.parametrize("parallel", [False, True])
def test_a_tool_that_took_too_long_is_not_begun_again(tmp_path: Path, parallel: bool) -> None:
    for number, seconds in enumerate(TIMES):
        shop = Shop()
        hub = Hub().register(shop).register_machine(tools(parallel=parallel, timeout=seconds))
        (folder := tmp_path / str(number)).mkdir()
        assert durable_run(hub, folder, calls("shop.hang"))["confirmed"] is True
        if shop.begun:
            break
    assert shop.begun == ["hang"]


def test_a_branch_that_took_too_long_is_not_begun_again(tmp_path: Path) -> None:
    begun: list[str] = []

    async def late(event: Any) -> Any:
        begun.append("late")
        await asyncio.get_running_loop().create_future()

    async def main(seconds: float) -> Any:
        branch = {"action": "function", "config": {"function": "late"}, "timeout": seconds}
        built = (
            MachineBuilder("m").function("late", late).parallel("p", {"a": branch}).ask("one").ask("two")
            .to("start", "p").to("p", "one").to("one", "two").to("two", "end").to("two", "late").to("late", "end")
        )  # fmt: skip
        hub = Hub().register_machine(built)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / f"{seconds}.db"), replay_check=True)
        await hub.open()
        try:
            async with connect(
                hub, answer=lambda r: "end" if r.request_type.kind == "select" else True
            ) as client:
                return (await client.call("machines.m", {})).structured
        finally:
            await hub.close()

    for seconds in TIMES:
        assert drive(main(seconds))["id"] == ["two", "end"]
        if begun:
            break
    assert begun == ["late"]


def test_an_error_that_cannot_be_kept_does_not_stop_a_run(tmp_path: Path) -> None:
    hub = Hub().register(Shop()).register_machine(tools())
    assert durable_run(hub, tmp_path, calls("shop.fail"))["confirmed"] is True


def test_tuples_in_a_configuration_are_no_change(tmp_path: Path) -> None:
    built = MachineBuilder("m").state("t", "tools", {"tools": ("shop.fail",)}).ask("one")
    built.to("start", "t").to("t", "one").to("one", "end")
    hub = Hub().register(Shop()).register_machine(built)
    assert durable_run(hub, tmp_path, calls("shop.fail"))["confirmed"] is True


class Follower:
    """Somebody who follows a call, and says nothing."""

    principal = None
    closed = False
    full = False

    def source(self) -> CallSource:
        """It is nobody."""
        return CallSource()

    async def drain(self) -> None:
        """It is never behind."""

    def send_item(self, subscription: str, item: Any, number: int | None = None) -> None:
        """It does not listen."""


def test_a_call_whose_code_has_changed_goes_on_when_the_old_code_is_back(tmp_path: Path) -> None:
    def hub_asking(words: str) -> Hub:
        async def asks(event: Any, moment: Moment) -> Any:
            return {"sure": await moment.ask.confirm(words)}

        built = MachineBuilder("m").function("f", asks).to("start", "f").to("f", "end")
        hub = Hub().register_machine(built)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
        return hub

    async def stands(hub: Hub, call_id: str, *statuses: str) -> Any:
        assert hub.durable is not None
        while True:
            found = await hub.durable.journal.load(call_id)
            assert found is not None
            if found[0].status in statuses:
                return found[0]
            await asyncio.sleep(0.01)

    async def go_on(hub: Hub, call_id: str, segment: int) -> None:
        assert hub.durable is not None
        claimed = await hub.durable.claim(call_id, segment)
        hub.durable.resume(claimed)  # type: ignore[arg-type]

    async def main() -> None:
        old = hub_asking("old?")
        await old.open()
        assert old.durable is not None
        call_id = await old.durable.subscriptions.subscribe(Follower(), "machines.m", b"{}", KINDS)
        waiting = await stands(old, call_id, "waiting")
        await old.close()
        new = hub_asking("new?")
        await new.open()
        await go_on(new, call_id, waiting.segment)
        await stands(new, call_id, "diverged")
        await new.close()
        again = hub_asking("old?")
        await again.open()
        await go_on(again, call_id, waiting.segment)
        await stands(again, call_id, "waiting")
        await again.close()

    drive(main())


# --- what else was found ----------------------------------------------------------------------------


def one_state(built: MachineBuilder, end: Any = None) -> MachineBuilder:
    return built.to("start", "s").to("s", "end", end)


def last_event(built: MachineBuilder, answer: Any = None, **options: Any) -> Any:
    async def main() -> Any:
        return (await Hub().register_machine(built, **options).call("machines.m", {}, answer=answer))[
            -1
        ].event

    return drive(main())


async def never(request: Request) -> Any:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("schema", [None, TEXT], ids=["yes or no", "a form"])
def test_a_person_has_as_long_as_is_said(schema: Any) -> None:
    event = last_event(one_state(MachineBuilder("m").ask("s", timeout=0.05), schema), never)
    assert event["reason"] == "timeout"


def test_a_person_fills_in_what_a_schema_refers_to() -> None:
    definition = {
        "id": "m",
        "schemas": {"note": TEXT},
        "states": [{"id": "s", "action": "ask"}],
        "transitions": [{"id": ["start", "s"]}, {"id": ["s", "end"], "schema": {"$ref": "#/$defs/note"}}],
    }

    async def main() -> Any:
        hub = Hub().register_machine(definition)
        return (await hub.call("machines.m", {}, answer=lambda _: {"text": "x"}))[-1].event

    assert drive(main()) == {"id": ["s", "end"], "text": "x"}


def test_a_person_may_be_one_of_several_branches() -> None:
    built = MachineBuilder("m").parallel("s", {"ann": {"action": "ask", "config": {"message": "Ann?"}}})
    event = last_event(one_state(built), lambda request: f"to {request.request_type.message}")
    assert event["results"] == {"ann": {"status": "success", "value": "to Ann?"}}


def test_a_model_that_breaks_ends_the_run() -> None:
    def breaks(request: Any) -> Any:
        raise OSError("no route")

    event = last_event(one_state(MachineBuilder("m").model("s")), model=Spoken(breaks))
    assert (event["reason"], event["message"]) == ("llm-fatal-error", "no route")


def test_a_plain_function_cannot_have_the_moment() -> None:
    with pytest.raises(MachineError, match="must be `async def`"):
        Hub().register_machine(one_state(MachineBuilder("m").function("s", lambda event, moment: event)))


def test_a_default_of_a_function_is_its_own() -> None:
    def named(event: Any, name: str = "Ada") -> Any:
        return {"name": name}

    assert last_event(one_state(MachineBuilder("m").function("s", named)))["name"] == "Ada"


@pytest.mark.parametrize("number", [0, -1, float("nan"), float("inf"), 1e10])
def test_a_limit_that_is_none_is_refused(number: float) -> None:
    for key, built in (
        ("timeout", MachineBuilder("m").tools("s", timeout=number)),
        ("max_tokens", MachineBuilder("m").model("s", max_tokens=number)),  # type: ignore[arg-type]
        (
            "branches[0].timeout",
            MachineBuilder("m").parallel("s", {"a": {"action": "ask", "timeout": number}}),
        ),
    ):
        with pytest.raises(MachineError, match=re.escape(f"states[0].config.{key}: ")):
            Hub().register(Shop()).register_machine(one_state(built))
    for key in ("time_limit", "max_transitions"):
        with pytest.raises(MachineError, match=f"^{key}: "):
            Hub().register_machine(one_state(MachineBuilder("m").ask("s")), **{key: number})  # type: ignore[arg-type]


def test_branches_in_branches_without_end_are_refused() -> None:
    config: dict[str, Any] = {"branches": [{"id": "a", "action": "model"}]}
    for _ in range(400):
        config = {"branches": [{"id": "a", "action": "parallel", "config": config}]}
    definition = {
        "id": "m",
        "states": [{"id": "s", "action": "parallel", "config": config}],
        "transitions": [{"id": ["start", "s"]}, {"id": ["s", "end"]}],
    }
    with pytest.raises(MachineError, match="nested too deeply"):
        Hub().register_machine(definition)

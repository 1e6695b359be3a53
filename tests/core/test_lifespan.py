"""The lifespan of a hub: entered once, given to methods, left at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from command_line import midcall
from driving import drive
from midcall import Ask, Depends, Hub, Lifespan, LifespanError, RegistrationError, connect
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from midcall.testing import run


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


def hub_with(trail: list[str], name: str = "main") -> Hub:
    hub = Hub(name)

    @hub.lifespan
    async def database() -> AsyncIterator[Database]:
        trail.append(f"{name} entered")
        try:
            async with asyncio.TaskGroup():  # left by the task that has entered it
                yield Database(name)
        finally:
            trail.append(f"{name} left")

    def name_of(db: Lifespan[Database]) -> str:
        return db.name.upper()

    @hub.method
    async def which(db: Lifespan[Database], upper: Annotated[str, Depends(name_of)], n: int = 0) -> str:
        return f"{db.name} {upper}"

    @hub.method
    async def stream(db: Lifespan[Database]) -> AsyncIterator[str]:
        yield db.name

    @hub.method
    async def asks(db: Lifespan[Database], ask: Ask) -> str:
        return f"{await ask.prompt('?')} {id(db)}"

    return hub


def test_it_is_entered_when_the_hub_is_opened_and_left_when_it_is_closed() -> None:
    async def main() -> None:
        trail: list[str] = []
        hub = hub_with(trail)
        assert "db" not in str(hub.schema("which")["params"])
        async with hub:
            assert trail == ["main entered"]
            await hub.open()
            assert await hub.call("which") == "main MAIN"
            assert (await run(hub, "stream")).result == ["main"]
            async with connect(hub) as client:
                assert (await client.call("which")).value == "main MAIN"
            assert trail == ["main entered"]
        assert trail == ["main entered", "main left"]

    drive(main())


def test_without_being_opened_it_is_entered_by_the_first_call_and_left_with_the_event_loop() -> None:
    trail: list[str] = []
    hub = hub_with(trail)

    async def main() -> None:
        assert await asyncio.gather(hub.call("which"), hub.call("which")) == ["main MAIN"] * 2
        assert trail == ["main entered"]

    for _ in range(2):  # each event loop has its own
        asyncio.run(main())
        assert trail == ["main entered", "main left"]
        trail.clear()

    drive(run(hub, "which"))
    assert trail == ["main entered", "main left"]


def test_nested_hubs_have_their_own_and_one_without_takes_that_around_it() -> None:
    async def main() -> None:
        trail: list[str] = []
        outer, inner, plain = hub_with(trail, "outer"), hub_with(trail, "inner"), Hub("plain")

        @plain.method
        async def borrowed(db: Lifespan[Database]) -> str:
            return db.name

        outer.register_hub(inner.register_hub(plain))
        async with outer:
            assert await outer.call("which") == "outer OUTER"
            assert await outer.call("inner.which") == "inner INNER"
            assert await outer.call("inner.plain.borrowed") == "inner"
        assert trail == ["outer entered", "inner entered", "inner left", "outer left"]
        alone = await run(Hub("alone").register_hub(Hub("b")).register_hub(Hub("c")), "alone.hash")
        assert alone.error is None

    drive(main())


def test_a_mounted_application_enters_it_with_the_one_around_it() -> None:
    trail: list[str] = []
    hub = hub_with(trail)

    @asynccontextmanager
    async def around(app: Starlette) -> AsyncIterator[None]:
        async with hub:
            yield

    with TestClient(Starlette(routes=[Mount("/tools", hub.asgi())], lifespan=around)) as client:
        assert trail == ["main entered"]
        assert client.get("/tools/health", headers={"host": "127.0.0.1"}).status_code == 200
    assert trail == ["main entered", "main left"]


def test_a_failure_at_the_start_is_told_and_the_next_one_may_succeed() -> None:
    async def main() -> None:
        tries: list[int] = []

        @asynccontextmanager
        async def fragile(hub: Hub) -> AsyncIterator[str]:
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError("no database")
            yield hub.name

        hub = Hub("shop", lifespan=fragile)

        @hub.method
        async def value(name: Lifespan[str]) -> str:
            return name

        told = "The lifespan of hub 'shop' failed to start: ConnectionError: no database"
        with pytest.raises(LifespanError) as caught:
            await hub.open()
        assert str(caught.value) == told
        with pytest.raises(LifespanError, match="no database"):
            await hub.call("value")
        assert await hub.call("value") == "shop"
        await hub.close()

    drive(main())


def test_one_that_breaks_off_is_entered_again_by_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        entered: list[str] = []
        break_off, broken = asyncio.Event(), asyncio.Event()

        async def watch() -> None:
            await break_off.wait()
            raise ConnectionError("the database is gone")

        async def guarded() -> AsyncIterator[str]:
            try:
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(watch())
                    entered.append("connection")
                    yield f"connection {len(entered)}"
                    watching.cancel()
            finally:
                broken.set()

        hub = Hub("shop", lifespan=guarded)

        @hub.method
        async def value(name: Lifespan[str]) -> str:
            return name

        async with hub:
            assert await hub.call("value") == "connection 1"
            break_off.set()
            await broken.wait()
            break_off.clear()
            assert await hub.call("value") == "connection 2"

    drive(main())
    assert "broke off; the next call enters it again" in caplog.text
    assert "the database is gone" in caplog.text


def test_what_is_no_lifespan_is_refused() -> None:
    async def main() -> None:
        async def coroutine() -> None: ...

        for wrong in (coroutine, lambda: 5):
            with pytest.raises(LifespanError, match="neither an async generator"):
                await Hub(lifespan=wrong).open()

        async def nothing() -> AsyncIterator[None]:
            if False:
                yield

        with pytest.raises(LifespanError, match="didn't yield"):
            await Hub(lifespan=nothing).open()
        with pytest.raises(RegistrationError, match="not a function"):
            Hub(lifespan=5)  # type: ignore[arg-type]
        with pytest.raises(RegistrationError, match="already"):
            Hub(lifespan=nothing).lifespan(nothing)
        none = Hub("none")

        @none.method
        async def needs(db: Lifespan[str]) -> str:
            return db

        outcome = await run(none, "needs")
        assert outcome.error is not None and "has no lifespan" in str(outcome.error)

    drive(main())


def test_one_that_fails_or_hangs_at_its_end_does_not_keep_the_hub_open(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midcall.lifespan.LEAVING", 0.05)
    monkeypatch.setattr("midcall.lifespan.CANCELLED", 0.05)
    cleaned: list[str] = []

    async def fails() -> AsyncIterator[None]:
        yield
        raise ValueError("at the end")

    async def hangs() -> AsyncIterator[None]:
        yield
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("cancelled")

    async def main() -> None:
        async with Hub("outer", lifespan=hangs).register_hub(Hub("inner", lifespan=fails)):
            pass

    drive(main())
    assert cleaned == ["cancelled"]
    assert "The lifespan of hub 'inner' failed as it ended" in caplog.text
    assert "The lifespan of hub 'outer' does not end" in caplog.text


def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        entered, left = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[None]:
            entered.set()
            try:
                await asyncio.Event().wait()
                yield
            finally:
                left.set()

        hub = Hub(lifespan=slow)
        opening = asyncio.create_task(hub.open())
        await entered.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert left.is_set()

    drive(main())


def test_a_call_that_is_rebuilt_gets_the_value_of_its_process(tmp_path: Path) -> None:
    async def main() -> None:
        trail: list[str] = []
        hub = hub_with(trail)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"), replay_check=True)
        async with hub, connect(hub, answer=lambda _: "yes") as client:
            assert (await client.call("asks")).value == f"yes {id(await hub.lifespan_value())}"

    drive(main())


APP = """
from midcall import Hub, Lifespan
hub = Hub("app")
@hub.lifespan
async def value():
    {start}
    yield 41
    print("left", flush=True)
@hub.method
async def answer(given: Lifespan[int]) -> int:
    return given + 1
"""


def test_the_command_line_enters_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(start="pass"))
    ended = midcall("call", "app:hub", "answer", cwd=tmp_path)
    assert (ended.returncode, ended.stdout.split()) == (0, ["42", "left"])
    (tmp_path / "bad.py").write_text(APP.format(start="raise OSError('no disk')"))
    for argv in (
        ["call", "bad:hub", "answer"],
        ["serve", "bad:hub", "--stdio"],
        ["serve", "bad:hub", "--port", "0"],
    ):
        failed: Any = midcall(*argv, cwd=tmp_path)
        assert failed.returncode == 1, argv
        assert "midcall: The lifespan of hub 'app' failed to start: OSError: no disk" in failed.stderr

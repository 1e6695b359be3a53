"""Middleware: what it sees, what it may change, and what it must not break."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from driving import drive, until
from midcall import (
    Ask,
    CallContext,
    CallerName,
    Hub,
    InvalidArguments,
    Listing,
    MidcallError,
    Next,
    Principal,
    RateLimited,
    RegistrationError,
    RequestInfo,
    ToolError,
    connect,
)
from midcall.client.targets import HubWire, Target
from midcall.journal.admin import Admin
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from midcall.mcp import CALL_KINDS
from midcall.middleware import ResponseCache, rate_limit
from midcall.testing import run

ADA = Principal("ada", frozenset({"read"}))


class Watched(Hub):
    """A hub with methods of every kind, and what its middleware has seen."""

    def __init__(self) -> None:
        super().__init__("watched")
        self.seen: list[str] = []
        self.ran: list[Any] = []

        @self.method
        async def add(a: int, b: int = 1) -> int:
            self.ran.append((a, b))
            return a + b

        @self.method
        def slow(text: str) -> str:
            return text

        @self.method
        async def count(to: int) -> AsyncIterator[int]:
            for n in range(to):
                yield n
            self.ran.append("counted")

        @self.method
        async def name(ask: Ask, greeting: str = "Hello") -> str:
            who = await ask.prompt("Who?")
            return f"{greeting} {await ask.step(self.noted, who)}"

        @self.method
        async def fail() -> None:
            raise ToolError("no luck", code="luck")

        @self.resource("text://motto")
        def motto() -> str:
            return "ask"

    def noted(self, who: str) -> str:
        self.ran.append(who)
        return who

    async def observe(self, call: CallContext, next: Next) -> Any:
        self.seen.append(f"> {call.name} {dict(call.arguments)}")
        try:
            result = await next(call)
        except BaseException as error:
            self.seen.append(f"! {type(error).__name__}")
            raise
        self.seen.append(f"< {result}")
        return result


def watched() -> Watched:
    hub = Watched()
    hub.use(hub.observe)
    return hub


def test_it_sees_every_kind_of_call_from_its_beginning_to_its_end() -> None:
    async def main() -> None:
        hub = watched()
        assert (await run(hub, "add", {"a": 1})).result == 2
        assert (await run(hub, "slow", {"text": "x"})).result == "x"
        assert (await run(hub, "count", {"to": 3})).result == [0, 1, 2]
        assert (await run(hub, "name", answers=["Ada"])).result == "Hello Ada"
        with pytest.raises(ToolError, match="no luck"):
            await hub.call("fail")
        assert hub.seen == [
            *("> add {'a': 1, 'b': 1}", "< 2"),
            *("> slow {'text': 'x'}", "< x"),
            *("> count {'to': 3}", "< None"),
            *("> name {'greeting': 'Hello'}", "< Hello Ada"),
            *("> fail {}", "! ToolError"),
        ]

    drive(main())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_it_is_the_same_over_mcp(era: Any) -> None:
    async def main() -> None:
        hub = watched()
        async with connect(hub, era=era, answer=lambda _: "Ada") as client:
            assert (await client.call("add", {"a": 1})).value == 2
            assert (await client.call("count", {"to": 2})).value == [0, 1]
            assert (await client.call("name")).value == "Hello Ada"
            await client.read("text://motto")
        assert [one.split(" {")[0] for one in hub.seen if one.startswith(">")] == [
            "> add",
            "> count",
            "> name",
            "> motto",
        ]

    drive(main())


def test_who_calls_and_how_is_told() -> None:
    async def main() -> None:
        seen: list[CallContext] = []

        async def look(call: CallContext, next: Next) -> Any:
            seen.append(call)
            return await next(call)

        hub = Watched().use(look)
        request = RequestInfo("http", {"x-team": "blue"})
        await run(hub, "add", {"a": 1}, principal=ADA, request=request)
        (call,) = seen
        assert (call.principal, call.request, call.kind, call.rebuilt) == (ADA, request, "method", False)
        assert (call.streaming, call.interactive) == (False, False)
        with pytest.raises(TypeError):
            call.arguments["a"] = 5  # type: ignore[index]

    drive(main())


def test_before_validation_it_sees_what_was_sent_and_may_mend_it() -> None:
    async def main() -> None:
        seen: list[Any] = []

        async def mend(call: CallContext, next: Next) -> Any:
            seen.append(dict(call.arguments))
            return await next(call.with_arguments({"a": int(call.arguments["alpha"])}))

        hub = Watched().use(mend, before_validation=True)
        assert (await run(hub, "add", {"alpha": "3"})).result == 4
        assert seen == [{"alpha": "3"}]
        with pytest.raises(InvalidArguments):
            await hub.call("add", "no object")
        assert len(seen) == 1

    drive(main())


def test_arguments_that_a_middleware_has_made_invalid_do_not_reach_the_method() -> None:
    async def main() -> None:
        async def spoil(call: CallContext, next: Next) -> Any:
            return await next(call.with_arguments({"a": "not a number"}))

        for before in (False, True):
            hub = Watched()
            hub.use(spoil, before_validation=before)
            outcome = await run(hub, "add", {"a": 1})
            assert outcome.error is not None and outcome.error.code == "invalid_arguments"
            assert hub.ran == []

        async def strange(call: CallContext, next: Next) -> Any:
            return await next(call.with_arguments({"a": object()}))

        outcome = await run(Watched().use(strange), "add", {"a": 1})
        assert outcome.error is not None

    drive(main())


def test_arguments_that_stay_are_those_that_were_sent() -> None:
    async def main() -> None:
        hub = Hub()

        @hub.method
        async def login(user: str, password: SecretStr) -> str:
            return f"{user} {password.get_secret_value()}"

        async def upper(call: CallContext, next: Next) -> Any:
            return await next(call.with_arguments({**call.arguments, "user": call.arguments["user"].upper()}))

        hub.use(upper)
        assert (await run(hub, "login", {"user": "ada", "password": "x"})).result == "ADA x"
        assert (await run(hub, "login", ["ada", "x"])).result == "ADA x"

    drive(main())


def test_it_changes_results_and_each_item_of_a_stream() -> None:
    async def main() -> None:
        async def later(value: Any) -> Any:
            await asyncio.sleep(0)
            return value + 100

        async def more(call: CallContext, next: Next) -> Any:
            return await next(call, item=later)

        async def twice(call: CallContext, next: Next) -> Any:
            return await next(call, item=lambda value: value * 2)

        hub = Watched().use(more).use(twice)
        assert (await run(hub, "count", {"to": 3})).result == [100, 102, 104]
        assert (await run(hub, "add", {"a": 1})).result == 104

    drive(main())


def test_it_may_answer_in_the_place_of_the_method() -> None:
    async def main() -> None:
        async def instead(call: CallContext, next: Next) -> Any:
            return [7, 8] if call.streaming else 7

        async def refuse(call: CallContext, next: Next) -> Any:
            raise ToolError("closed", code="closed")

        hub = Watched().use(instead)
        assert (await run(hub, "count", {"to": 3})).result == [7, 8]
        assert (await run(hub, "add", {"a": 1})).result == 7
        assert hub.ran == []
        refused = await run(Watched().use(refuse), "count", {"to": 3})
        assert refused.error is not None and refused.error.code == "closed"

        async def more(call: CallContext, next: Next) -> Any:
            await next(call)

            async def items() -> AsyncIterator[int]:
                yield 99

            return items()

        assert (await run(Watched().use(more), "count", {"to": 2})).result == [0, 1, 99]

        async def wrong(call: CallContext, next: Next) -> Any:
            return "text"

        outcome = await run(Watched().use(wrong), "count", {"to": 2})
        assert outcome.error is not None and "a list of items" in str(outcome.error)

    drive(main())


def test_what_json_cannot_carry_is_an_error_over_mcp_and_the_hub_goes_on() -> None:
    async def main() -> None:
        async def spoil(call: CallContext, next: Next) -> Any:
            return object() if call.arguments.get("a") == 1 else await next(call)

        async with connect(Watched().use(spoil)) as client:
            with pytest.raises(MidcallError):
                await client.call("add", {"a": 1})
            assert (await client.call("add", {"a": 2})).value == 3

    drive(main())


def test_next_runs_again_only_what_may_be_repeated() -> None:
    async def main() -> None:
        async def again(call: CallContext, next: Next) -> Any:
            await next(call)
            return await next(call)

        hub = Watched().use(again)
        assert (await run(hub, "add", {"a": 1})).result == 2
        assert len(hub.ran) == 2
        for name, params, answers in (("count", {"to": 1}, None), ("name", None, ["Ada"])):
            outcome = await run(hub, name, params, answers=answers)
            assert outcome.error is not None and "twice" in str(outcome.error)

        kept: list[Next] = []

        async def keep(call: CallContext, next: Next) -> Any:
            kept.append(next)
            if len(kept) == 1:
                return 0
            return await kept[0](call)

        hub = Watched().use(keep)
        assert (await run(hub, "add", {"a": 1})).result == 0
        late = await run(hub, "add", {"a": 1})
        assert late.error is not None and "had returned" in str(late.error)

        async def forgets(call: CallContext, next: Any) -> Any:
            return await next(call.arguments)

        outcome = await run(Watched().use(forgets), "add", {"a": 1})
        assert outcome.error is not None and "next takes the call" in str(outcome.error)

    drive(main())


def test_a_call_that_is_cancelled_ends_also_if_a_middleware_swallows_that() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def stubborn(call: CallContext, next: Next) -> Any:
            begun.set()
            try:
                return await next(call)
            except asyncio.CancelledError:
                return "went on"

        hub = Watched().use(stubborn)
        invocation = hub.call("name", supports={"prompt"})
        items: list[Any] = []

        async def read() -> None:
            items.extend([item async for item in invocation])

        reading = asyncio.create_task(read())
        await begun.wait()
        await until(lambda: hub.calls.open_questions)
        await invocation.cancel("enough")
        await reading
        assert [one.code for one in items if hasattr(one, "code")] == ["aborted"]
        assert not len(hub.calls)

    drive(main())


def test_a_time_limit_around_next_ends_the_method() -> None:
    async def main() -> None:
        async def limited(call: CallContext, next: Next) -> Any:
            try:
                async with asyncio.timeout(0.01):
                    return await next(call)
            except TimeoutError:
                raise ToolError("too slow", code="slow") from None

        hub = Watched().use(limited)
        outcome = [i async for i in hub.call("name", supports={"prompt"})]
        assert any(getattr(one, "code", "") == "slow" for one in outcome)
        assert not hub.calls.open_questions

    drive(main())


def test_those_of_the_outer_hub_come_first_and_validation_is_between() -> None:
    async def main() -> None:
        order: list[str] = []

        def noting(name: str) -> Any:
            async def note(call: CallContext, next: Next) -> Any:
                order.append(f"{name} {call.name}")
                return await next(call)

            return note

        inner, outer = Watched(), Hub("outer")
        inner.use(noting("inner")).use(noting("inner before"), before_validation=True)
        outer.register_hub(inner).use(noting("outer")).use(noting("outer before"), before_validation=True)
        await run(outer, "watched.add", {"a": 1})
        assert order == [
            "outer before watched.add",
            "inner before watched.add",
            "outer watched.add",
            "inner watched.add",
        ]
        order.clear()
        await run(inner, "add", {"a": 1})
        assert order == ["inner before add", "inner add"]

        late, outside = Watched(), Hub("outside")
        outside.register_hub(late)
        late.use(noting("late"))
        order.clear()
        await run(outside, "watched.add", {"a": 1})
        assert order == ["late watched.add"]

    drive(main())


def test_a_mounted_servers_methods_pass_it_too() -> None:
    async def main() -> None:
        front = Hub("front").mount("behind", Watched())
        seen: list[Any] = []

        async def bigger(call: CallContext, next: Next) -> Any:
            seen.append((call.name, dict(call.arguments), call.interactive))
            if call.name == "behind.slow":
                raise ToolError("not today", code="closed")
            return await next(call.with_arguments({**call.arguments, "b": 40}))

        front.use(bigger)
        async with front, connect(front) as client:
            assert (await client.call("behind.add", {"a": 2})).value == 42
            with pytest.raises(MidcallError, match="not today"):
                await client.call("behind.slow", {"text": "x"})
        assert seen == [
            ("behind.add", {"a": 2}, True),
            ("behind.slow", {"text": "x"}, True),
        ]

    drive(main())


@pytest.mark.parametrize("before", [False, True])
def test_a_durable_call_that_is_rebuilt_passes_it_again_and_is_told(tmp_path: Path, before: bool) -> None:
    async def main() -> None:
        hub = Watched()
        seen: list[tuple[bool, str | None, Principal | None]] = []

        async def look(call: CallContext, next: Next) -> Any:
            seen.append((call.rebuilt, call.id, call.principal))
            return await next(call.with_arguments({"greeting": "Hi"}))

        hub.use(rate_limit(1, per=1000)).use(look, before_validation=before)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"), replay_check=True)
        async with hub, connect(Target("hub", lambda: HubWire(hub, ADA)), answer=lambda _: "Ada") as client:
            assert (await client.call("name")).value == "Hi Ada"
            assert hub.ran == ["Ada"]
            (first, id, who), *others = seen
            assert not first
            assert id is not None
            assert who == ADA
            assert others == [(True, id, ADA)]  # and the limit has counted it once
            with pytest.raises(MidcallError, match="try again in"):
                await client.call("name")

    drive(main())


def test_a_fork_is_a_call_of_its_own_that_counts() -> None:
    async def main() -> None:
        hub = Watched().use(rate_limit(2, per=1000))
        seen: list[Any] = []

        async def look(call: CallContext, next: Next) -> Any:
            seen.append((call.rebuilt, call.principal))
            return await next(call)

        hub.use(look)
        hub.durable = durable = DurableCalls(hub)
        async with hub, connect(Target("hub", lambda: HubWire(hub, ADA)), answer=lambda _: "Ada") as client:
            assert (await client.call("name")).value == "Hello Ada"
            admin = Admin(durable.journal, CALL_KINDS, durable=durable)
            (first,) = (await admin.list())["calls"]
            less = Principal("ada")
            for status in ("waiting", "failed"):
                fork = await admin.fork(first["id"], 0, less, by_caller=True)
                assert (await admin.settled(fork["id"]))["status"] == status
        assert seen == [(False, ADA), (False, less)]

    drive(main())


def test_a_call_that_waits_live_is_not_seen_again(tmp_path: Path) -> None:
    async def main() -> None:
        hub = watched()
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
        async with hub, connect(hub, answer=lambda _: "Ada") as client:
            assert (await client.call("name")).value == "Hello Ada"
        assert hub.seen == ["> name {'greeting': 'Hello'}", "< Hello Ada"]

    drive(main())


def test_what_is_no_middleware_is_refused() -> None:
    def plain(call: Any, next: Any) -> None: ...

    async def one(call: Any) -> None: ...

    async def generator(call: Any, next: Any) -> AsyncIterator[int]:
        yield 1

    for wrong in (plain, one, generator, None, 5):
        with pytest.raises(RegistrationError, match="is not a middleware"):
            Hub().use(wrong)  # type: ignore[arg-type]


# --- ready to use -----------------------------------------------------------------------------------


def test_each_principal_has_a_rate_of_its_own() -> None:
    async def main() -> None:
        now = [0.0]
        hub = Watched().use(rate_limit(2, per=60, methods="add", clock=lambda: now[0]))
        for who in ("ada", "bob", None):
            for _ in range(2):
                await hub.call("add", {"a": 1}, principal=who)
            with pytest.raises(MidcallError, match=r"^More than 2 calls in 60 s; try again in 30 s$"):
                await hub.call("add", {"a": 1}, principal=who)
            await hub.call("slow", {"text": "x"}, principal=who)
        now[0] = 30.0
        await hub.call("add", {"a": 1}, principal="ada")
        outcome = await run(hub, "add", {"a": 1}, principal="ada")
        assert outcome.error is not None and outcome.error.code == RateLimited.code

    drive(main())
    for calls, per in ((0, 1.0), (1, 0.0), (1, float("inf"))):
        with pytest.raises(ValueError, match="rate_limit takes"):
            rate_limit(calls, per)


class Reading(Hub):
    """Methods that are cached, and how often they have run."""

    def __init__(self, *patterns: str, **options: Any) -> None:
        super().__init__("reading")
        self.now = 0.0
        self.runs = 0
        self.cache = ResponseCache(*(patterns or ("*",)), ttl=60, clock=lambda: self.now, **options)
        self.use(self.cache)

        @self.method
        async def echo(value: Any = None, other: int = 0) -> Any:
            self.runs += 1
            return [value]

        @self.method
        async def whoami(caller: CallerName) -> str | None:
            self.runs += 1
            return caller

        @self.method
        async def team(request: RequestInfo | None) -> str:
            self.runs += 1
            return "none" if request is None else request.headers["x-team"]

        @self.method
        async def secret(word: SecretStr) -> int:
            self.runs += 1
            return len(word.get_secret_value())

        @self.method
        async def broken() -> None:
            self.runs += 1
            raise ToolError("broken")

        @self.method
        async def asks(ask: Ask) -> str:
            self.runs += 1
            return await ask.prompt("?")

        @self.method
        async def streams() -> AsyncIterator[int]:
            self.runs += 1
            yield 1

    async def ran(self, *calls: tuple[str, Any, Any]) -> int:
        before = self.runs
        for name, params, principal in calls:
            await run(self, name, params, principal=principal, answers=["x"] if name == "asks" else None)
        return self.runs - before


def test_the_same_call_gives_what_it_gave_before() -> None:
    async def main() -> None:
        hub = Reading()
        assert await hub.ran(*[("echo", {"value": {"a": 1, "b": 2}}, None)] * 3) == 1
        assert await hub.ran(("echo", {"value": {"b": 2, "a": 1}}, None)) == 0
        assert await hub.ran(("echo", {"value": {"a": 1, "b": 3}}, None)) == 1
        big = 10**400
        texts = (
            None,
            0,
            False,
            "",
            "0",
            [],
            {},
            1e300,
            big,
            "x" * 100_000,
            "\ud800".encode(errors="replace").decode(),
        )
        for value in texts:
            assert await hub.ran(*[("echo", {"value": value}, None)] * 2) == 1, value
        hub.now = 60.0
        assert await hub.ran(("echo", {"value": 0}, None)) == 1
        hub.cache.clear()
        assert len(hub.cache) == 0
        assert await hub.ran(("echo", {"value": 0}, None)) == 1

    drive(main())


def test_no_principal_gets_what_another_was_given() -> None:
    async def main() -> None:
        hub = Reading()
        ada, other = Principal("ada"), Principal("ada", frozenset({"admin"}))
        assert await hub.ran(*[("whoami", None, one) for one in (ada, other, "bob", None, ada, "bob")]) == 4
        assert (await run(hub, "whoami", principal="bob")).result == "bob"
        shared = Reading(shared=True)
        assert await shared.ran(("echo", None, ada), ("echo", None, "bob")) == 1

    drive(main())


def test_what_has_the_same_name_does_not_get_what_another_gave() -> None:
    """Functions of one name may be read at several URIs, and complete several arguments."""

    def read(uri: str) -> None:
        @hub.resource(uri)
        async def text() -> str:
            return uri

    def suggest(argument: str) -> None:
        @hub.completion("greet", argument)
        async def suggested(value: str) -> list[str]:
            return [f"{argument} {value}"]

    def list_of(uri: str) -> None:
        @hub.resource(f"{uri}{{name}}")
        async def one(name: str) -> str:
            return name

        @hub.listing(f"{uri}{{name}}")
        async def all_of(after: str | None) -> Listing:
            return Listing([{"uri": f"{uri}x", "name": "x"}])

    async def main() -> None:
        hub.use(ResponseCache("*", ttl=60))
        read("text://one")
        read("text://two")
        list_of("a://")
        list_of("b://")

        @hub.prompt
        async def greet(word: str, name: str) -> str:
            return f"{word} {name}"

        suggest("word")
        suggest("name")
        async with connect(hub) as client:
            for uri in ("text://one", "text://two") * 2:
                assert [one["text"] for one in await client.read(uri)] == [uri]
            greeting = {"type": "ref/prompt", "name": "greet"}
            for argument in ("word", "name") * 2:
                assert await client.complete(greeting, argument, "a") == [f"{argument} a"]
            listed = [one["uri"] for one in await client.resources()]
            assert sorted(listed) == ["a://x", "b://x", "text://one", "text://two"]

    hub = Hub("library")
    drive(main())


def test_what_cannot_be_told_apart_or_repeated_is_not_kept() -> None:
    async def main() -> None:
        hub = Reading()
        assert (
            await hub.ran(*[("broken", None, None), ("asks", None, None), ("streams", None, None)] * 2) == 6
        )
        for team in ("blue", "red"):
            outcome = await run(hub, "team", request=RequestInfo("http", {"x-team": team}))
            assert outcome.result == team
        assert (await run(hub, "secret", {"word": "a"})).result == 1
        assert (await run(hub, "secret", {"word": "bb"})).result == 2
        assert await Reading("other.*").ran(*[("echo", None, None)] * 2) == 2

    drive(main())


def test_what_is_kept_is_not_changed_by_whoever_gets_it() -> None:
    async def main() -> None:
        hub = Hub()

        async def spoil(call: CallContext, next: Next) -> Any:
            result = await next(call)
            result.append("spoiled")
            return result

        @hub.method
        async def pair() -> list[str]:
            return ["clean"]

        hub.use(spoil).use(ResponseCache("pair", ttl=60))
        for _ in range(3):
            assert (await run(hub, "pair")).result == ["clean", "spoiled"]

    drive(main())


def test_it_is_bounded_in_entries_and_in_bytes() -> None:
    async def main() -> None:
        hub = Reading(entries=2)
        await hub.ran(*[("echo", {"value": n}, None) for n in (1, 2, 1, 3)])
        assert len(hub.cache) == 2
        assert await hub.ran(("echo", {"value": 1}, None)) == 0  # 2 was unused for longest
        assert await hub.ran(("echo", {"value": 2}, None)) == 1
        small = Reading(max_bytes=200)
        await small.ran(("echo", {"value": "x" * 100}, None), ("echo", {"value": "y" * 100}, None))
        assert len(small.cache) == 1
        assert await small.ran(*[("echo", {"value": "z" * 1000}, None)] * 2) == 2
        assert len(small.cache) == 1

    drive(main())
    for wrong in (
        lambda: ResponseCache(ttl=1),
        lambda: ResponseCache("a", ttl=0),
        lambda: ResponseCache("a", ttl=float("nan")),
        lambda: ResponseCache("a", ttl=1, entries=0),
    ):
        with pytest.raises(ValueError, match="ResponseCache"):
            wrong()


def test_what_was_under_way_when_it_was_cleared_is_not_kept() -> None:
    async def main() -> None:
        hub, gate, runs = Hub(), asyncio.Event(), []
        cache = ResponseCache("read", ttl=60)

        @hub.method
        async def read() -> int:
            runs.append(1)
            await gate.wait()
            return len(runs)

        hub.use(cache)
        first = asyncio.create_task(run(hub, "read"))
        await until(lambda: runs)
        cache.clear()
        gate.set()
        assert (await first).result == 1
        assert (await run(hub, "read")).result == 2

        async def odd(call: CallContext, next: Next) -> Any:
            await next(call)
            return msgspec.UNSET if len(runs) > 2 else object()

        other = Hub().use(ResponseCache("read", ttl=60)).use(odd)
        other.method(read)
        await run(other, "read")
        assert len(cache) == 1

    drive(main())

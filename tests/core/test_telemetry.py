"""Traces: what OpenTelemetry is told of calls, in servers that have set it up."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT, drive
from mcp_peers import FORMS, LATEST, MODERN, Client, Connect, HttpServer, http_server, over_stdio, text
from modern_peers import WITH_TASKS, accept, by_order, call, task_until
from peers import environment

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "00f067aa0ba902b7"
SENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "baggage": "user=ann"}


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with http_server("trace_app:make_hub") as serving:
        yield serving


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest) -> Connect:
    if request.param == "http":
        return request.getfixturevalue("server").client  # type: ignore[no-any-return]
    return lambda *args, **kwargs: over_stdio(*args, target="trace_app:make_hub", **kwargs)


async def spans(client: Client) -> list[Any]:
    """What was traced since the last time."""
    return list(json.loads(text(await client.result("tools/call", call("tools.spans")))))


async def until_traced(client: Client) -> list[Any]:
    """What was traced since the last time, as soon as there is something."""
    async with asyncio.timeout(LIMIT):
        while not (found := await spans(client)):
            await asyncio.sleep(0.02)
    return found


def of_midcall(found: list[Any]) -> list[Any]:
    return [span for span in found if span["scope"] == "midcall"]


def by_name(found: list[Any]) -> dict[str, Any]:
    return {span["name"]: span for span in found}


@pytest.mark.parametrize("revision", [LATEST, MODERN])
def test_a_call_is_a_span_below_the_callers_own(connect: Connect, revision: str) -> None:
    async def run() -> None:
        async with connect(revision) as client:
            await spans(client)
            id = await client.start("tools/call", call("tools.look"), **SENT)
            seen = json.loads(text((await client.response(id))["result"]))
            found = by_name(await spans(client))
            span = found["tools/call tools.look"]
            assert (span["kind"], span["trace"], span["parent"]) == ("SERVER", TRACE, PARENT)
            assert span["attributes"] == {
                "mcp.method.name": "tools/call",
                "mcp.protocol.version": revision,
                "gen_ai.tool.name": "tools.look",
                "gen_ai.operation.name": "execute_tool",
                "jsonrpc.request.id": str(id),
                "app.seen": True,
            }
            assert (span["status"], span["links"]) == ("UNSET", [])
            assert seen == {"trace": TRACE, "span": span["span"], "baggage": {"user": "ann"}}
            inside = found["inside"]
            assert (inside["trace"], inside["parent"]) == (TRACE, span["span"])
            assert span["events"] == ["inside"]

    drive(run())


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"traceparent": "nonsense"},
        {"traceparent": 7, "tracestate": [], "baggage": {}},
        {"tracestate": "a=1"},
    ],
)
def test_without_a_callers_context_a_trace_begins(connect: Connect, meta: dict[str, Any]) -> None:
    async def run() -> None:
        async with connect(MODERN) as client:
            await spans(client)
            seen = json.loads(text(await client.result("tools/call", call("tools.look"), **meta)))
            span = by_name(await spans(client))["tools/call tools.look"]
            assert span["parent"] is None
            assert seen["trace"] == span["trace"] != TRACE

    drive(run())


def test_every_way_to_run_has_the_span(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN) as client:
            await spans(client)
            seen = json.loads(text(await client.result("tools/call", call("tools_look_in_a_thread"), **SENT)))
            (span,) = await spans(client)
            assert span["name"] == "tools/call tools.look_in_a_thread", "by its own name, not by the alias"
            assert seen == {"trace": TRACE, "span": span["span"]}

            assert text(await client.result("tools/call", call("tools.stream"), **SENT)) == "onetwo"
            found = by_name(await spans(client))
            span = found["tools/call tools.stream"]
            assert span["events"] == ["one", "two"]
            assert found["one"]["parent"] == found["two"]["parent"] == span["span"]

            for method, params, name, attributes in (
                ("resources/read", {"uri": "trace://a"}, "resources/read", {"mcp.resource.uri": "trace://a"}),
                (
                    "prompts/get",
                    call("tools.greet", name="Ann"),
                    "prompts/get tools.greet",
                    {"gen_ai.prompt.name": "tools.greet"},
                ),
                (
                    "completion/complete",
                    {
                        "ref": {"type": "ref/prompt", "name": "tools.greet"},
                        "argument": {"name": "name", "value": "a"},
                    },
                    "completion/complete",
                    {"gen_ai.prompt.name": "tools.greet"},
                ),
            ):
                await client.result(method, params, **SENT)
                (span,) = of_midcall(await spans(client))
                assert (span["name"], span["parent"], span["status"]) == (name, PARENT, "UNSET")
                assert attributes.items() <= span["attributes"].items()
                assert "gen_ai.operation.name" not in span["attributes"]

            await client.result("tools/list", **SENT)
            assert await spans(client) == [], "only calls are traced"

    drive(run())


def test_failures_are_told_apart(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN) as client:
            await spans(client)
            for params, name, error, description in (
                (call("tools.fail", how="tool"), "tools/call tools.fail", "tool_error", None),
                (call("tools.fail", how=7), "tools/call tools.fail", "tool_error", None),
                (call("tools.fail", how="protocol"), "tools/call tools.fail", "-32603", "Not today"),
                (call("no.such"), "tools/call", "-32602", "Unknown tool: no.such"),
            ):
                await client.request("tools/call", params)
                (span,) = await spans(client)
                assert (span["name"], span["status"]) == (name, "ERROR")
                assert (span["attributes"]["error.type"], span["description"]) == (error, description)
                code = span["attributes"].get("rpc.response.status_code")
                assert code == (None if error == "tool_error" else error)
            await client.request("tools/call", call("tools.fail", how="unsendable"))
            (span,) = await spans(client)
            assert span["attributes"]["error.type"] == "-32603"

    drive(run())


def test_a_span_ends_when_its_caller_leaves(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN) as client, server.client(MODERN) as other:
            await spans(other)
            await client.start("tools/call", call("tools.hang"))
            begun = await until_traced(other)
            assert [span["name"] for span in begun] == ["begun"]
            await client.drop()
            (ended,) = await until_traced(other)
            assert (ended["name"], ended["attributes"]["error.type"]) == (
                "tools/call tools.hang",
                "cancelled",
            )

    drive(run())


def test_a_cancelled_request_ends_its_span() -> None:
    async def run() -> None:
        async with over_stdio(LATEST, target="trace_app:make_hub") as client:
            id = await client.start("tools/call", call("tools.slow", seconds=60))
            await client.notify("notifications/cancelled", {"requestId": id})
            (span,) = await spans(client)
            assert (span["name"], span["attributes"]["error.type"]) == ("tools/call tools.slow", "cancelled")

    drive(run())


def test_no_span_is_open_while_a_person_thinks_and_the_next_one_is_linked_to_it(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            await spans(client)
            params = call("tools.wizard")
            asked = await client.result("tools/call", params, **SENT)
            first = by_name(await spans(client))
            assert first["before"]["parent"] == first["tools/call tools.wizard"]["span"]
            assert first["tools/call tools.wizard"]["status"] == "UNSET"

            other = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
            asked = await client.result("tools/call", by_order(asked, params, accept(text="a")), **other)
            second = by_name(await spans(client))
            span = second["tools/call tools.wizard"]
            assert (span["trace"], span["parent"]) == ("1" * 32, "2" * 16)
            assert span["links"] == [first["tools/call tools.wizard"]["span"]]
            assert second["between"]["parent"] == span["span"], "the tool goes on in the new one"
            assert span["events"] == ["between"]

            again = by_order(asked, params, accept(text="b"))
            assert text(await client.result("tools/call", again)) == "a b"
            third = by_name(await spans(client))
            assert third["tools/call tools.wizard"]["links"] == [span["span"]]
            assert third["after"]["parent"] == third["tools/call tools.wizard"]["span"]

            assert text(await client.result("tools/call", again)) == "a b"
            (repeated,) = await spans(client)
            assert repeated["name"] == "tools/call tools.wizard", "a span for each request, also for this one"

    drive(run())


@pytest.mark.parametrize("parked_calls", [0, 100])
def test_what_goes_on_in_another_process_is_linked_to_the_span_that_asked(
    tmp_path: Path, parked_calls: int
) -> None:
    """Two hubs on one journal; what the first has parked is out of date when its turn comes again."""
    run_python(
        """
import asyncio, sys
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from midcall.mcp import CALL_KINDS, mcp_of
from midcall.journal.admin import Admin
from mcp_visitor import Visitor
from modern_peers import accept, by_order
from trace_app import exporter, late, make_hub, shown

params = {"name": "tools.wizard", "arguments": {}}

async def asked_by(visitor, params, trace):
    response = await visitor.modern("tools/call", params, meta={"traceparent": f"00-{trace}-{'a' * 16}-01"})
    found = {span.name: shown(span) for span in exporter.get_finished_spans()}
    exporter.clear()
    return response["result"], found.pop("tools/call tools.wizard"), found

async def main(path, parked_calls):
    hubs = [make_hub(), late()]
    for hub in hubs:
        hub.durable = DurableCalls(hub, SqliteJournal(path), parked_calls=parked_calls)
        await hub.open()
    one, other = map(Visitor, hubs)
    asked, first, _ = await asked_by(one, params, "1" * 32)
    asked, second, inside = await asked_by(other, by_order(asked, params, accept(text="a")), "2" * 32)
    assert (second["trace"], second["links"]) == ("2" * 32, [first["span"]])
    assert inside["between"]["parent"] == second["span"], "the tool runs in the new one"
    ended, third, inside = await asked_by(one, by_order(asked, params, accept(text="b")), "3" * 32)
    assert (third["trace"], third["links"]) == ("3" * 32, [second["span"]])
    assert inside["after"]["parent"] == third["span"]
    assert ended["content"][0]["text"] == "a b"

    asked, first, _ = await asked_by(one, params, "4" * 32)
    durable = mcp_of(hubs[1]).resumption.durable
    admin = Admin(durable.journal, CALL_KINDS, durable=durable)
    (call,) = (await admin.list(status=["waiting"]))["calls"]
    await admin.answer(call["id"], {call["questions"][0]["key"]: "a"})
    exporter.clear()
    late_one, _, _ = await asked_by(one, {**params, "requestState": asked["requestState"]}, "5" * 32)
    ended, third, _ = await asked_by(one, by_order(late_one, params, accept(text="b")), "6" * 32)
    assert third["links"] == [first["span"]], "what ran untraced has passed it on"
    for hub in hubs:
        await hub.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
""",
        str(tmp_path / "journal.db"),
        str(parked_calls),
    )


def test_a_legacy_call_that_asks_is_one_span(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            await spans(client)
            id = await client.start("tools/call", call("tools.wizard"), **SENT)
            for word in ("a", "b"):
                await client.answer(await client.message("elicitation/create"), accept(text=word))
            assert text((await client.response(id))["result"]) == "a b"
            found = await spans(client)
            (span,) = of_midcall(found)
            assert span["events"] == ["before", "between", "after"]
            assert {one["parent"] for one in found if one is not span} == {span["span"]}

    drive(run())


def test_a_task_works_on_below_the_span_that_started_it(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, WITH_TASKS) as client:
            await spans(client)
            task = await client.result("tools/call", call("tools.job"), **SENT)
            found = by_name(await spans(client))
            span = found["tools/call tools.job"]
            assert span["status"] == "UNSET"
            await task_until(client, task, "completed")
            found |= by_name(await spans(client))  # it may have worked already when they were asked for
            assert sorted(found) == ["tools/call tools.job", "worked"]
            assert found["worked"]["parent"] == span["span"]

    drive(run())


def test_a_process_may_set_it_up_at_any_time() -> None:
    async def run() -> None:
        async with over_stdio(MODERN, target="trace_app:late") as client:
            seen = json.loads(text(await client.result("tools/call", call("tools.look"), **SENT)))
            assert seen["span"] == "0" * 16, "nothing is traced"
            await client.result("tools/call", call("tools.set_up"))
            async with asyncio.timeout(LIMIT):
                while not (found := of_midcall(await spans(client))):
                    await asyncio.sleep(0.02)
                    await client.result("tools/call", call("tools.look"), **SENT)
            assert by_name(found)["tools/call tools.look"]["parent"] == PARENT

    drive(run())


def test_the_span_of_a_transport_is_the_parent_or_is_linked_to() -> None:
    """In an application whose HTTP requests are traced too, both belong together."""
    run_python("""
import asyncio
from trace_app import exporter, make_hub, shown, tracer
from mcp_visitor import Visitor

visitor = Visitor(make_hub())
params = {"name": "tools.slow", "arguments": {"seconds": 0.01}}

async def main(**meta):
    with tracer.start_as_current_span("POST /mcp"):
        await visitor.modern("tools/call", params, meta=meta)
    call, post = [shown(span) for span in exporter.get_finished_spans()]
    exporter.clear()
    return call, post

call, post = asyncio.run(main())
assert (call["trace"], call["parent"], call["links"]) == (post["trace"], post["span"], [])
call, post = asyncio.run(main(traceparent="00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"))
assert (call["parent"], call["links"]) == ("00f067aa0ba902b7", [post["span"]])
""")


def test_whoever_does_not_use_it_never_loads_it() -> None:
    run_python("""
import asyncio, sys
import midcall.cli.serve, midcall.mcp, midcall.transports.http_server, midcall.transports.stdio
from mcp_visitor import Visitor
from mcp_app import make_hub

answer = asyncio.run(Visitor(make_hub()).modern("tools/call", {"name": "give.word", "arguments": {}}))
assert answer["result"]["content"][0]["text"] == "hello"
assert [name for name in sys.modules if name.startswith(("opentelemetry", "midcall.telemetry"))] == []
""")


def run_python(code: str, *arguments: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr

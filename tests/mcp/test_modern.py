"""MCP with clients of the modern revision: stateless requests, and questions as results.

Each message that the server sends is checked by the oracle (see `mcp_oracle`): also that every result
has its `resultType`.
"""

import asyncio
import base64
import json
from typing import Annotated, Any

import pytest
from pydantic import Field

from driving import LIMIT, drive, turns
from mcp_app import make_hub
from mcp_oracle import Oracle
from mcp_peers import FORMS, META, MODERN, Client, Connect, HttpServer, http_server, over_stdio, text
from mcp_visitor import KEYS, Visitor
from midcall import Hub, method
from midcall.journal import dialect
from midcall.mcp import resume
from modern_peers import TASKS, WITH_TASKS, accept, by_order, call, retry, task_until

REFUSED = (-32602, "Invalid or expired requestState")


def messages_of(asked: Any) -> list[str]:
    assert asked["resultType"] == "input_required", asked
    return [one["params"]["message"] for one in asked["inputRequests"].values()]


async def start(client: Client, params: dict[str, Any], method: str = "tools/call", **meta: Any) -> Any:
    asked = await client.result(method, params, **meta)
    assert asked["resultType"] == "input_required", asked
    return asked


WIZARD_ANSWERS = (accept(text="demo"), accept(choice="full"), accept(confirmed=True))


async def trail(client: Client, run: str) -> list[str]:
    return [
        one.removeprefix(f"{run} ") for one in (await client.state())["trail"] if one.startswith(f"{run} ")
    ]


# --- questions as results ------------------------------------------------------------------------


def test_the_side_effects_of_a_wizard_happen_exactly_once(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params = call("seek.wizard", run="once")
            result = await start(client, params)
            assert messages_of(result) == ["Project name?"]
            (question,) = result["inputRequests"].values()
            assert question["method"] == "elicitation/create"
            assert question["params"]["requestedSchema"]["required"] == ["text"]
            states = {result["requestState"]}
            for answer in WIZARD_ANSWERS:
                result = await client.result("tools/call", by_order(result, params, answer))
                states.add(result.get("requestState", ""))
            assert len(states) == 4
            assert (result["resultType"], text(result)) == ("complete", "demo full True")
            assert await trail(client, "once") == ["before", "named demo", "chose full", "done"]
            assert all("method" not in message for message in client.inbox), "nothing is sent unasked"

    drive(run())


def test_the_same_retry_sent_twice_runs_nothing_twice_and_gets_the_same_outcome(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params = call("seek.wizard", run="twice")
            asked = await start(client, params)
            for answer in WIZARD_ANSWERS:
                again = by_order(asked, params, answer)
                first = await client.result("tools/call", again)
                second = await client.result("tools/call", again)
                assert first == second
                other = by_order(asked, params, {"action": "cancel"})  # another answer comes too late
                assert await client.result("tools/call", other) == first
                asked = first
            assert text(asked) == "demo full True"
            assert await trail(client, "twice") == ["before", "named demo", "chose full", "done"]

    drive(run())


def test_the_same_retry_sent_at_the_same_time_runs_nothing_twice(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params = call("seek.slow_wizard", run="race", seconds=0.3)
            asked = await start(client, params)
            again = by_order(asked, params, accept(text="x"))
            results = await asyncio.gather(*(client.result("tools/call", again) for _ in range(10)))
            assert all(one == results[0] for one in results)
            assert text(results[0]) == "x"
            assert await trail(client, "race") == ["works", "worked"]

            params = call("seek.wizard", run="race on")
            asked = await start(client, params)
            for answer in WIZARD_ANSWERS:
                again = by_order(asked, params, answer)
                results = await asyncio.gather(*(client.result("tools/call", again) for _ in range(10)))
                assert all(one == results[0] for one in results)
                asked = results[0]
            assert await trail(client, "race on") == ["before", "named demo", "chose full", "done"]

    drive(run())


def test_an_answer_is_never_taken_for_a_later_question_of_the_same_key(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params = call("seek.again")
            asked = await start(client, params)
            for number in range(3):
                assert asked["resultType"] == "input_required"
                assert messages_of(asked) == [f"Word {number}?"]
                again = retry(asked, params, word=accept(text=f"w{number}"))
                ids = [await client.start("tools/call", again) for _ in range(20)]
                results = [(await client.response(id))["result"] for id in ids]
                assert all(one == results[0] for one in results)
                asked = results[0]
            assert text(asked) == "w0 w1 w2"

    drive(run())


def test_a_retry_that_meets_the_time_limit_gets_one_outcome(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN, FORMS) as client:

            async def race(delay: float, timeout: float = 1.0) -> str:
                params = call("seek.prompt", name=f"{delay}", timeout=timeout)
                again = by_order(await start(client, params), params, accept(text="in time"))
                await asyncio.sleep(delay)
                results = [client.result("tools/call", again) for _ in range(4)]
                (outcome,) = {text(result) for result in await asyncio.gather(*results)}
                return outcome  # all retries of one state agree

            early, late, *others = await asyncio.gather(
                race(0, 10 * LIMIT), race(2), *(race(number / 20) for number in range(1, 39))
            )
            answered = {f"{delay}: in time" for delay in (number / 20 for number in range(1, 39))}
            assert early == "0: in time"
            assert late.startswith("Nobody answered in time")
            assert {one for one in others if not one.startswith("Nobody answered in time")} <= answered

    drive(run())


def test_a_caller_that_leaves_does_not_take_the_outcome_from_another_one(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN, FORMS) as staying, server.client(MODERN, FORMS) as leaving:
            params = call("seek.held_wizard", run="left")
            asked = await start(staying, params)
            again = by_order(asked, params, accept(text="x"))
            id = await staying.start("tools/call", again)
            await staying.until_trail("left works")
            await leaving.start("tools/call", again)
            await staying.taken()
            await leaving.drop()
            await staying.taken()
            await staying.tool("give.open", gate="left")
            assert text((await staying.response(id))["result"]) == "x"
            assert await trail(staying, "left") == ["works", "worked"]

    drive(run())


def test_a_call_goes_on_when_its_caller_leaves_and_another_connection_gets_the_outcome(
    server: HttpServer,
) -> None:
    async def run() -> None:
        params = call("seek.held_wizard", run="moved")
        async with server.client(MODERN, FORMS) as client:
            asked = await start(client, params)
            await client.start("tools/call", by_order(asked, params, accept(text="x")))
            await client.until_trail("moved works")
            await client.drop()
        async with server.client(MODERN, FORMS) as client:
            await client.taken()
            await client.tool("give.open", gate="moved")
            await client.until_trail("moved worked")
            result = await client.result("tools/call", by_order(asked, params, accept(text="y")))
            assert text(result) == "x"
            assert await trail(client, "moved") == ["works", "worked"]

    drive(run())


def test_a_call_that_has_asked_nothing_ends_when_its_caller_leaves(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN, {}) as client, server.client(MODERN) as other:
            await client.start("tools/call", call("give.held", gate="never opened"))
            await other.until_running("give.held")
            await client.drop()
            await other.until_running("give.held", 0)

    drive(run())


def test_whoever_joins_a_call_is_told_what_the_others_are_told_and_leaves_its_progress_to_them() -> None:
    async def run() -> None:
        async with over_stdio(MODERN, FORMS) as client:
            params = call("seek.held_wizard", run="joined")
            again = by_order(await start(client, params), params, accept(text="x"))
            ids = [await client.start("tools/call", again, progressToken="first")]
            await client.until_trail("joined works")
            ids += [await client.start("tools/call", again, progressToken=f"later {n}") for n in range(3)]
            await client.tool("give.open", gate="joined")
            results = [(await client.response(id))["result"] for id in ids]
            assert [text(result) for result in results] == ["x"] * 4
            assert [message["params"]["progressToken"] for message in client.inbox] == ["first"]
            assert await trail(client, "joined") == ["works", "worked"]

    drive(run())


def test_a_cancelled_request_ends_its_call_unless_somebody_else_waits_for_it() -> None:
    async def run() -> None:
        async with over_stdio(MODERN, FORMS) as client:
            params = call("seek.held_wizard", run="c")
            again = by_order(await start(client, params), params, accept(text="x"))
            first = await client.start("tools/call", again)
            second = await client.start("tools/call", again)
            await client.notify("notifications/cancelled", {"requestId": first})
            await client.tool("give.open", gate="c")
            assert text((await client.response(second))["result"]) == "x"
            params = call("seek.held_wizard", run="d")
            again = by_order(await start(client, params), params, accept(text="x"))
            only = await client.start("tools/call", again)
            await client.until_trail("d works")
            await client.notify("notifications/cancelled", {"requestId": only, "reason": "enough"})
            await client.settled()
            late = await client.result("tools/call", again)
            assert (late["isError"], text(late)) == (True, "enough")
            assert client.inbox == []

    drive(run())


def test_a_retry_of_a_call_that_runs_on_is_sent_away_with_a_state_and_comes_back_for_the_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resume, "PATIENCE", 0.1)

    async def run() -> None:
        hub = make_hub(keys=KEYS)
        visitor = Visitor(hub)
        oracle = Oracle(MODERN)

        async def send(params: dict[str, Any], **meta: Any) -> Any:
            response = await visitor.modern("tools/call", params, meta=meta)
            oracle.asked({"id": response["id"], "method": "tools/call", "params": {}})
            oracle.check(response)
            return response["result"]

        async def sent_away(params: dict[str, Any], **meta: Any) -> dict[str, Any]:
            result = await send(params, **meta)
            assert result.keys() == {"resultType", "requestState", "_meta"}, result
            assert result["resultType"] == "input_required"
            return {**call(params["name"], **params["arguments"]), "requestState": result["requestState"]}

        async def opened(gate: str) -> None:
            assert text(await send(call("give.open", gate=gate))) == "opened"

        params = call("seek.held_wizard", run="patient")
        again = by_order(await send(params), params, accept(text="x"))
        first = asyncio.ensure_future(send(again))
        await turns()
        later = await sent_away(again)
        later = await sent_away(later)
        assert not first.done()
        await opened("patient")
        assert text(await first) == "x"
        assert await send(later) == await first, "who comes back gets the outcome"
        assert await send(again) == await first, "and so does who sends the answers again"

        key = {"dev.midcall/idempotencyKey": "patient"}
        held = call("give.held", gate="keyed")
        only = asyncio.ensure_future(send(held, **key))
        await turns()
        later = await sent_away(held, **key)
        await opened("keyed")
        assert text(await only) == "worked"
        assert await send(later) == await only

        params = call("seek.unhurried", run="unhurried")
        again = by_order(await send(params), params, accept(text="a"))
        working = asyncio.ensure_future(send(again))
        await turns()
        later = await sent_away(again)
        await opened("unhurried")
        asked = await working
        assert messages_of(asked) == ["Second?"]
        assert await send(later) == asked, "the next question is an outcome too"
        assert text(await send(by_order(asked, params, accept(text="b")))) == "a b"

        trail = json.loads(text(await send(call("admin.state"))))["trail"]
        assert trail == ["patient works", "patient worked", "unhurried a"], "nothing was run twice"
        assert len(hub.calls) == 0

    drive(run())


# --- requestState -----------------------------------------------------------------------------------


def test_a_state_that_is_not_for_this_request_is_refused_with_one_message(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params = call("seek.prompt", name="n")
            asked = await start(client, params)
            state = asked["requestState"]
            good = by_order(asked, params, accept(text="w"))
            wrong: list[tuple[str, str, dict[str, Any]]] = [
                ("another tool", "tools/call", {**good, "name": "seek.wizard"}),
                ("a tool that does not ask", "tools/call", {**good, **call("give.word")}),
                ("other arguments", "tools/call", {**good, "arguments": {"name": "m"}}),
                ("more arguments", "tools/call", {**good, "arguments": {"name": "n", "timeout": 30}}),
                ("no arguments", "tools/call", {**good, "arguments": {}}),
                ("another method", "prompts/get", {**good, **call("interview", topic="t")}),
                ("a resource", "resources/read", {"uri": "secret://x", "requestState": state}),
                ("a plain resource", "resources/read", {"uri": "notes://all", "requestState": state}),
                ("a plain prompt", "prompts/get", {**call("greet", name="x"), "requestState": state}),
                ("null", "tools/call", {**good, "requestState": None}),
                ("a number", "tools/call", {**good, "requestState": 7}),
                ("null, for the first request", "tools/call", {**params, "requestState": None}),
                ("null, for a plain tool", "tools/call", {**call("give.word"), "requestState": None}),
                ("null, for a resource", "resources/read", {"uri": "secret://x", "requestState": None}),
                ("null, for a prompt", "prompts/get", {**call("greet", name="x"), "requestState": None}),
                ("empty", "tools/call", {**good, "requestState": ""}),
                ("no base64", "tools/call", {**good, "requestState": "!!ä"}),
                ("junk", "tools/call", {**good, "requestState": base64.b64encode(b"x" * 90).decode()}),
                ("shorter", "tools/call", {**good, "requestState": state[:-4]}),
                ("longer", "tools/call", {**good, "requestState": state + "AAAA"}),
                ("doubled", "tools/call", {**good, "requestState": state + state}),
            ]
            for place in range(0, len(state), 17):
                changed = "A" if state[place] != "A" else "B"
                tampered = state[:place] + changed + state[place + 1 :]
                wrong.append((f"tampered at {place}", "tools/call", {**good, "requestState": tampered}))
            for what, method, bad in wrong:
                assert await client.error(method, bad) == REFUSED, what
            assert text(await client.result("tools/call", good)) == "n: w", "the right one still works"

    drive(run())


def test_an_answer_may_reach_another_process_than_the_one_that_asked() -> None:
    async def run() -> None:
        params = call("seek.prompt", name="n")
        async with over_stdio(MODERN, FORMS) as one, over_stdio(MODERN, FORMS) as two:
            asked, other = await start(one, params), await start(two, params)
            answer = by_order(asked, params, accept(text="w"))
            assert text(await two.result("tools/call", answer)) == "n: w"
            assert text(await one.result("tools/call", answer)) == "n: w", "it has run: this is its outcome"
            assert text(await two.result("tools/call", by_order(other, params, accept(text="v")))) == "n: v"

    drive(run())


def test_an_expired_state_is_refused_and_the_question_is_over() -> None:
    async def run() -> None:
        visitor = Visitor(make_hub(keys=KEYS, time_limit=0.1))
        asked = []
        for params in (call("seek.prompt", name="n", timeout=60), call("seek.careful")):
            result = (await visitor.modern("tools/call", params))["result"]
            asked.append(by_order(result, params, accept(text="w")))
        await asyncio.sleep(1.2)  # a state lives for whole seconds
        for late in asked:
            error = (await visitor.modern("tools/call", late))["error"]
            assert (error["code"], error["message"]) == REFUSED
        await visitor.hub.close()

    drive(run())


def test_states_keys_and_tasks_belong_to_their_principal() -> None:
    async def run() -> None:
        tokens = {"ann": "token-of-ann-1234567890", "bob": "token-of-bob-1234567890"}
        lines = "\n".join(f"{name}={token}" for name, token in tokens.items())
        with http_server(MIDCALL_TOKENS=lines) as server:
            async with (
                server.client(MODERN, WITH_TASKS, token=tokens["ann"]) as ann,
                server.client(MODERN, WITH_TASKS, token=tokens["bob"]) as bob,
            ):
                params = call("seek.prompt", name="n")
                key = {"dev.midcall/idempotencyKey": "k"}
                asked = await start(ann, params, **key)
                stolen = by_order(asked, params, accept(text="stolen"))
                assert await bob.error("tools/call", stolen) == REFUSED
                own = await start(bob, params, **key)
                assert own["requestState"] != asked["requestState"]
                task = await ann.result("tools/call", call("seek.job"))
                for method in ("tasks/get", "tasks/cancel", "tasks/update"):
                    params = {"taskId": task["taskId"]}
                    params |= (
                        {"inputResponses": {"word": accept(text="x")}} if method == "tasks/update" else {}
                    )
                    assert (await bob.error(method, params))[0] == -32602
                assert (await ann.result("tasks/get", {"taskId": task["taskId"]}))["status"] != "completed"

    drive(run())


# --- answers -----------------------------------------------------------------------------------------


def test_what_is_not_answered_or_does_not_fit_is_asked_again_with_the_reason(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params = call("seek.together")
            asked = await start(client, params)
            assert messages_of(asked) == ["Name?", "Sure?"]
            asked = await start(client, retry(asked, params, name=accept(text=7)))
            first, second = messages_of(asked)
            assert "Not understood" in first
            assert first.endswith("Name?")
            assert second == "Sure?"
            asked = await start(client, retry(asked, params, sure=accept(confirmed=True)))
            (message,) = messages_of(asked)
            assert "Not understood" in message
            for junk in ("w", None, [], {"action": "shrug"}, {"action": "accept", "content": "w"}):
                asked = await start(client, retry(asked, params, name=junk))
                assert list(asked["inputRequests"]) == ["name"]
            asked = await start(client, {**params, "requestState": asked["requestState"]})
            result = await client.result("tools/call", retry(asked, params, name=accept(text="Ann"), odd=1))
            assert text(result) == "Ann True"
            for tool, content in (
                ("seek.select", {"choice": "purple"}),
                ("seek.several", {"choices": ["red", "red"]}),
                ("seek.form", {"name": "A"}),
                ("seek.custom", {"name": 7}),
                ("seek.confirm", {}),
            ):
                asked = await start(client, call(tool))
                asked = await start(client, by_order(asked, call(tool), accept(**content)))
                assert "Not understood" in messages_of(asked)[0]

    drive(run())


def test_declining_and_cancelling_are_told_apart_and_end_the_round(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:

            async def ends(tool: str, *answers: Any) -> Any:
                asked = await start(client, call(tool))
                return await client.result("tools/call", by_order(asked, call(tool), *answers))

            assert text(await ends("seek.confirm", {"action": "decline"})) == "confirmed: False"
            assert text(await ends("seek.careful", {"action": "decline"})) == "error: declined"
            assert text(await ends("seek.careful", {"action": "cancel"})) == "error: cancelled"
            for answers in (
                ({"action": "cancel"}, accept(confirmed=True)),
                (accept(text="Ann"), {"action": "cancel"}),
                ({"action": "cancel"}, {"action": "cancel"}),
            ):
                result = await ends("seek.together", *answers)
                assert (result["isError"], text(result)) == (True, "The question was cancelled")
            asked = await start(client, call("seek.together"))
            alone = retry(asked, call("seek.together"), name={"action": "cancel"})
            assert (await client.result("tools/call", alone))["isError"] is True

    drive(run())


def test_questions_asked_side_by_side_go_out_in_one_round(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params = call("seek.gathered")
            asked = await start(client, params)
            assert list(asked["inputRequests"]) == ["one", "two"]
            asked = await start(client, retry(asked, params, one=accept(text="1")))
            assert sorted(asked["inputRequests"]) == ["after", "two"]
            asked = await start(client, retry(asked, params, two=accept(text="2")))
            assert list(asked["inputRequests"]) == ["after"]
            result = await client.result("tools/call", retry(asked, params, after=accept(text="+")))
            assert text(result) == "1+ 2"
            asked = await start(client, params)
            asked = await start(client, retry(asked, params, one=accept(text="1"), two=accept(text="2")))
            assert list(asked["inputRequests"]) == ["after"]

    drive(run())


def test_prompts_and_resources_ask_too(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            params: dict[str, Any] = {"uri": "secret://door"}
            asked = await start(client, params, "resources/read")
            result = await client.result("resources/read", by_order(asked, params, accept(confirmed=True)))
            assert result["contents"][0]["text"] == "the secret of door"
            params = call("interview", topic="tea")
            asked = await start(client, params, "prompts/get")
            assert messages_of(asked) == ["How deep into tea?"]
            again = by_order(asked, params, accept(text="deep"))
            first = await client.result("prompts/get", again)
            assert [one["content"]["text"] for one in first["messages"]] == ["Explain tea", "deep"]
            assert await client.result("prompts/get", again) == first
            asked = await start(client, params, "prompts/get")
            cancelled = by_order(asked, params, {"action": "cancel"})
            assert (await client.error("prompts/get", cancelled))[0] == -32603
            assert (await client.error("prompts/get", cancelled))[0] == -32603  # the same outcome again

    drive(run())


def test_sampling_and_roots_are_input_requests_of_those_who_declare_them(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN, {"sampling": {}, "roots": {}}) as client:
            asked = await start(client, call("seek.sample"))
            (request,) = asked["inputRequests"].values()
            assert request["method"] == "sampling/createMessage"
            said = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m-1"}
            result = await client.result("tools/call", by_order(asked, call("seek.sample"), said))
            assert text(result) == "m-1 said hi"
            asked = await start(client, call("seek.roots"))
            (request,) = asked["inputRequests"].values()
            assert request["method"] == "roots/list"
            roots = {"roots": [{"uri": "file:///a"}]}
            result = await client.result("tools/call", by_order(asked, call("seek.roots"), roots))
            assert text(result) == "file:///a"

    drive(run())


def test_nothing_is_asked_that_the_request_does_not_declare(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, {}) as client:
            for tool in ("seek.prompt", "seek.wizard", "seek.sample", "seek.roots", "seek.url"):
                result = await client.result("tools/call", call(tool))
                assert (result["resultType"], result["isError"]) == ("complete", True), tool
                assert "cannot be asked" in text(result)
            assert await client.tool("seek.careful") == "error: not_supported"
            assert await client.tool("seek.fallback") == "used nothing"
            assert (await client.error("prompts/get", call("interview", topic="t")))[0] == -32603
            response = await client.request("tools/call", call("seek.needs_model"))
            assert response["error"]["code"] == -32021
            assert response["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}

            client.capabilities = FORMS
            result = await client.result("tools/call", call("seek.url"))
            assert result["isError"] is True, "an empty elicitation means forms alone"
            asked = await start(client, call("seek.careful"))
            assert asked["inputRequests"]
            params = call("seek.wizard", run="undeclared")
            asked = await start(client, params)
            client.capabilities = {}  # the retry can be asked nothing more
            result = await client.result("tools/call", by_order(asked, params, accept(text="x")))
            assert (result["resultType"], result["isError"]) == ("complete", True)
            client.capabilities = {"elicitation": {"url": {}}}
            asked = await start(client, call("seek.url"))
            (request,) = asked["inputRequests"].values()
            assert (request["params"]["mode"], request["params"]["url"]) == (
                "url",
                "https://example.com/login",
            )
            result = await client.result(
                "tools/call", by_order(asked, call("seek.url"), {"action": "accept"})
            )
            assert text(result) == "visited"

    drive(run())


def test_the_same_idempotency_key_is_the_same_call(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            name = f"keyed {type(client).__name__}"
            key = {"dev.midcall/idempotencyKey": name}
            first, second = await asyncio.gather(
                *(client.result("tools/call", call("seek.count", name=name), **key) for _ in range(2))
            )
            assert text(first) == text(second) == "counted 1"
            assert await client.tool("seek.count", name=name) == "counted 2", "without the key it is another"
            other = await client.error("tools/call", call("seek.count", name="other"), **key)
            assert other[0] == -32602

            key = {"dev.midcall/idempotencyKey": f"{name} wizard"}
            params = call("seek.wizard", run=name)
            asked = await start(client, params, **key)
            assert await start(client, params, **key) == asked
            for answer in WIZARD_ANSWERS:
                asked = await client.result("tools/call", by_order(asked, params, answer))
            assert await trail(client, name) == ["before", "named demo", "chose full", "done"]

            key = {"dev.midcall/idempotencyKey": f"{name} slow"}
            slow = call("give.slow", seconds=0.3)
            ids = [await client.start("tools/call", slow, **key) for _ in range(2)]
            assert [text((await client.response(id))["result"]) for id in ids] == ["slept", "slept"]

    drive(run())


def test_a_lost_first_request_is_found_again_by_its_key(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN, FORMS) as client:
            key = {"dev.midcall/idempotencyKey": "lost"}
            params = call("give.held", gate="lost")
            await client.start("tools/call", params, **key)
            await client.until_running("give.held")
            await client.drop()
            await client.taken()
            id = await client.start("tools/call", params, **key)
            await client.taken()
            assert (await client.state())["running"].count("give.held") == 1
            await client.tool("give.open", gate="lost")
            assert text((await client.response(id))["result"]) == "worked"

    drive(run())


# --- tasks ---------------------------------------------------------------------------------------------


def test_a_long_running_method_is_a_task_for_those_who_know_tasks(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, WITH_TASKS) as client:
            task = await client.result("tools/call", call("seek.job"))
            assert (task["resultType"], task["status"]) == ("task", "working")
            shown = await task_until(client, task, "input_required")
            assert shown["inputRequests"]["word"]["params"]["message"] == "A word?"
            wrong = {"taskId": task["taskId"], "inputResponses": {"word": accept(text=7), "odd": {}}}
            await client.result("tasks/update", wrong)
            shown = await task_until(client, task, "input_required")
            assert "Not understood" in shown["inputRequests"]["word"]["params"]["message"]
            right = {"taskId": task["taskId"], "inputResponses": {"word": accept(text="w")}}
            await client.result("tasks/update", right)
            shown = await task_until(client, task, "completed")
            assert text(shown["result"]) == "job done: w"
            await client.result("tasks/update", right)  # too late: nothing happens
            assert await task_until(client, task, "completed") == shown

            failing = await client.result("tools/call", call("seek.job", fail=True))
            await task_until(client, failing, "input_required")
            await client.result("tasks/update", {**right, "taskId": failing["taskId"]})
            shown = await task_until(client, failing, "completed", "failed")
            assert (shown["status"], shown["result"]["isError"]) == ("completed", True)

            endless = await client.result("tools/call", call("seek.endless"))
            assert (await task_until(client, endless, "working"))["status"] == "working"
            await client.result("tasks/cancel", {"taskId": endless["taskId"]})
            assert (await task_until(client, endless, "cancelled"))["status"] == "cancelled"
            assert "endless was cancelled" in (await client.state())["trail"]
            await client.result("tasks/cancel", {"taskId": endless["taskId"]})

            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                params = {"taskId": "nope", **({"inputResponses": {}} if method == "tasks/update" else {})}
                assert (await client.error(method, params))[0] == -32602

    drive(run())


def test_a_task_whose_request_fails_has_failed_and_tells_the_error(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, WITH_TASKS) as client:
            task = await client.result("tools/call", call("seek.doomed"))
            await task_until(client, task, "input_required")
            answer = {"taskId": task["taskId"], "inputResponses": {"word": accept(text="spoon")}}
            await client.result("tasks/update", answer)
            shown = await task_until(client, task, "failed", "completed", "cancelled")
            assert shown["status"] == "failed"
            assert shown["error"] == {"code": -32603, "message": "There is no spoon"}
            assert "result" not in shown
            await client.result("tasks/cancel", {"taskId": task["taskId"]})  # too late: it has failed
            assert await task_until(client, task, "failed", "cancelled") == shown

    drive(run())


def test_a_task_says_how_long_it_is_sure_to_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is as long as it may wait for its person, or as its outcome is kept."""
    monkeypatch.setattr(dialect, "KEEP", 0.5)

    async def run() -> None:
        visitor = Visitor(make_hub(keys=KEYS))

        async def ask_for(method: str, params: dict[str, Any]) -> Any:
            return (await visitor.modern(method, params, WITH_TASKS)).get("result")

        task = await ask_for("tools/call", call("seek.job"))
        week = 7 * 24 * 3600 * 1000
        assert week - 1000 * LIMIT < task["ttlMs"] <= week
        which = {"taskId": task["taskId"]}
        await asyncio.sleep(0.6)
        shown = await ask_for("tasks/get", which)
        assert (shown["status"], shown["createdAt"]) == ("input_required", task["createdAt"])
        assert shown["ttlMs"] >= task["ttlMs"], "it counts from its last question"
        await ask_for("tasks/update", {**which, "inputResponses": {"word": accept(text="w")}})
        while (ended := await ask_for("tasks/get", which))["status"] != "completed":
            await asyncio.sleep(0.01)
        assert ended["ttlMs"] >= shown["ttlMs"], (
            "what was said of it holds, though outcomes are kept for less"
        )
        await asyncio.sleep(0.6)
        await visitor.hub.durable.journal.sweep()
        assert await ask_for("tasks/get", which) == ended
        await visitor.hub.close()

    drive(run())


def test_those_who_do_not_know_tasks_get_none(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            asked = await start(client, call("seek.job"))
            result = await client.result("tools/call", by_order(asked, call("seek.job"), accept(text="w")))
            assert text(result) == "job done: w"
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                params = {"taskId": "nope", **({"inputResponses": {}} if method == "tasks/update" else {})}
                response = await client.request(method, params)
                assert response["error"]["code"] == -32021
                assert response["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}

    drive(run())


# --- without questions ------------------------------------------------------------------------------------


def test_discover_tells_what_the_server_can_do_and_lists_may_be_cached(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            found = await client.result("server/discover")
            assert found["supportedVersions"] == [MODERN]
            assert found["capabilities"]["extensions"] == {TASKS: {}}
            lists: list[tuple[str, Any]] = [
                ("server/discover", {}),
                ("tools/list", {}),
                ("resources/list", {}),
                ("resources/templates/list", {}),
                ("prompts/list", {}),
                ("resources/read", {"uri": "notes://all"}),
            ]
            for method, params in lists:
                result = await client.result(method, params)
                assert result["resultType"] == "complete"
                assert isinstance(result["ttlMs"], int)
                assert result["cacheScope"] in ("public", "private")
                assert result["_meta"][f"{META}serverInfo"] == {"name": "plexus", "version": "9.8.7"}
            unknown = await client.error("resources/read", {"uri": "nowhere://x"})
            assert unknown == (-32602, "Resource not found: nowhere://x")
            for method in ("initialize", "ping", "logging/setLevel", "resources/subscribe", "no/such"):
                assert (await client.error(method, {"uri": "x", "level": "info"}))[0] == -32601, method
            assert json.loads(text(await client.result("tools/call", call("give.sum", a=1, b=2)))) == {
                "total": 3
            }

    drive(run())


def test_log_and_progress_come_only_to_those_who_ask_for_them(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN, FORMS) as client:
            await client.tool("give.narrate")
            await asyncio.sleep(0.1)
            assert client.inbox == []
            await client.result("tools/call", call("give.narrate"), **{f"{META}logLevel": "alert"})
            assert [m["params"]["level"] for m in client.inbox] == ["alert", "emergency"]
            client.inbox.clear()
            await client.result("tools/call", call("give.narrate"), progressToken="t")
            assert [m["params"]["progress"] for m in client.inbox] == [10, 60, 100]
            client.inbox.clear()
            await client.result("tools/call", call("give.narrate"), **{f"{META}logLevel": "loud"})
            assert client.inbox == []

    drive(run())


def test_a_request_that_says_nothing_of_itself_is_refused(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN) as client:
            for meta, code in (
                ({f"{META}clientCapabilities": None}, -32602),
                ({f"{META}protocolVersion": "2099-01-01"}, -32022),
            ):
                response = await client.request("server/discover", **meta)
                if code == -32022 and hasattr(client, "port"):
                    code = -32020  # the header says something else
                assert response["error"]["code"] == code, meta

    drive(run())


class Mirrored:
    """Arguments that headers repeat."""

    @method
    async def send(
        self,
        dry: Annotated[bool, Field(json_schema_extra={"x-mcp-header": "Dry"})] = False,
        count: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Count"})] = 1,
        to: Annotated[str, Field(json_schema_extra={"x-mcp-header": "To"})] = "",
    ) -> str:
        """Send something."""
        return f"{dry} {count} {to}"


@pytest.mark.parametrize(
    ("arguments", "headers", "fits"),
    [
        ({"dry": True}, {"dry": "true"}, True),
        ({"dry": True}, {"dry": "false"}, False),
        ({"dry": False}, {"dry": "true"}, False),
        ({"dry": True}, {"dry": "1"}, False),
        ({"dry": True}, {}, False),
        ({"count": 5}, {"count": "5.0"}, True),
        ({"count": 5}, {"count": "6"}, False),
        ({"count": 5}, {"count": "five"}, False),
        ({"to": "Zoë"}, {"to": "=?base64?Wm/Dqw==?="}, True),
        ({"to": "Zoë"}, {"to": "=?base64?Wm9l?="}, False),
        ({"to": "Zoë"}, {"to": "=?base64?!?="}, False),
        ({"to": "5"}, {"to": "5.0"}, False),
        ({}, {"to": "anybody"}, True),
        ({}, {"to": "=?base64?!?="}, False),
        ({}, {"to": "=?base64?é?="}, False),
    ],
)
def test_a_header_that_repeats_an_argument_says_the_same(
    arguments: dict[str, Any], headers: dict[str, str], fits: bool
) -> None:
    async def run() -> None:
        visitor = Visitor(Hub("plexus").register(Mirrored()))
        given = {f"mcp_param_{name}": value for name, value in headers.items()}
        response = await visitor.modern("tools/call", call("mirrored.send", **arguments), **given)
        assert ("result" in response) == fits, response
        assert fits or response["error"]["code"] == -32020

    drive(run())


def test_changes_are_told_to_those_who_listen_for_them(connect: Connect) -> None:
    async def run() -> None:
        async with connect(MODERN) as client:
            wanted = {"toolsListChanged": True, "resourceSubscriptions": ["notes://all"]}
            id = await client.start("subscriptions/listen", {"notifications": wanted})
            subscription = {f"{META}subscriptionId": id}
            heard = await client.message("notifications/subscriptions/acknowledged")
            assert heard["params"] == {"_meta": subscription, "notifications": wanted}
            await client.tool("admin.touch", uri="notes://other")
            await client.tool("admin.touch", uri="notes://all")
            heard = await client.message("notifications/resources/updated")
            assert heard["params"] == {"_meta": subscription, "uri": "notes://all"}
            for _ in range(2):
                await client.tool("admin.change")
                heard = await client.message("notifications/tools/list_changed")
                assert heard["params"]["_meta"] == subscription
            assert client.inbox == [], "it hears of nothing else"
            if hasattr(client, "drop"):
                await client.drop()
            else:
                await client.notify("notifications/cancelled", {"requestId": id})
            await client.tool("admin.touch", uri="notes://all")
            await asyncio.sleep(0.1)
            assert client.inbox == []

    drive(run())


def test_both_eras_are_served_on_one_line() -> None:
    async def run() -> None:
        async with over_stdio("2025-11-25", FORMS) as client:
            legacy = await client.begin("seek.prompt", name="old")
            asked = await client.message("elicitation/create")
            modern = {
                "name": "seek.prompt",
                "arguments": {"name": "new"},
                "_meta": {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": FORMS},
            }
            message = {"jsonrpc": "2.0", "id": "m", "method": "tools/call", "params": modern}
            client.oracle.asked(message)
            await client.post(message)
            new = (await client.response("m"))["result"]
            assert new["resultType"] == "input_required"
            await client.answer(asked, accept(text="1"))
            assert text((await client.response(legacy))["result"]) == "old: 1"
            message["params"] = by_order(new, modern, accept(text="2"))
            client.oracle.asked(message)
            await client.post(message)
            assert text((await client.response("m"))["result"]) == "new: 2"
            await client.settled()

    drive(run())


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_two_processes_of_one_server_work_at_once(seconds: float) -> None:
    async def run() -> None:
        async with over_stdio(MODERN, FORMS) as one, over_stdio(MODERN, FORMS) as two:
            params = call("seek.slow_wizard", run="p", seconds=seconds)
            asked = await asyncio.gather(start(one, params), start(two, params))
            results = await asyncio.gather(
                one.result("tools/call", by_order(asked[0], params, accept(text="1"))),
                two.result("tools/call", by_order(asked[1], params, accept(text="2"))),
            )
            assert [text(result) for result in results] == ["1", "2"]

    drive(run())

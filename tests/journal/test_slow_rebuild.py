"""An answer that was acknowledged is in the journal, however long its call takes to be run again."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from mcp_peers import MODERN
from operating import Server, accept, until
from waiting_peers import TASKS

_ids = itertools.count(1)


def rpc(server: Server, name: str, method: str, params: dict[str, Any]) -> Any:
    """A modern request of a client that knows tasks; gives its result."""
    message = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": {**params, "_meta": TASKS}}
    came = server.post(
        "/mcp",
        message,
        accept="application/json, text/event-stream",
        mcp_protocol_version=MODERN,
        mcp_method=method,
        mcp_name=name,
    )
    assert "result" in came.json, came.text
    return came.json["result"]


def ask(line: ClientConnection, method: str, params: Any) -> Any:
    """A request on a WebSocket; gives its result, and leaves out what else comes."""
    id = next(_ids)
    line.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    while (came := json.loads(line.recv())).get("id") != id:
        pass
    assert "result" in came, came
    return came["result"]


def _question(line: ClientConnection) -> str:
    """The id of the question that comes on a WebSocket."""
    while (item := json.loads(line.recv())["params"]["result"])["type"] != "request":
        pass
    return str(item["request_id"])


def calls(server: Server) -> dict[str, Any]:
    """All calls in the journal, by who they are for."""
    shown = [server.get(f"/admin/calls/{one['id']}").json for one in server.get("/admin/calls").json["calls"]]
    return {one["arguments"]["who"]: one for one in shown if one["kept"]}


def test_an_answer_that_was_acknowledged_outlives_a_crash_during_the_rebuild(tmp_path: Path) -> None:
    everybody = {"retry", "task", "administrator", "websocket"}
    gate = tmp_path / "gate"
    gate.touch()
    options = ("--admin", "--log-level", "warning")
    with (
        Server(tmp_path, *options, target="slow_rebuild_app:hub", GATE=f"{gate}") as server,
        ThreadPoolExecutor() as threads,
    ):
        asked = threads.submit(server.call, "slow.ask", who="retry")
        for who in ("task", "administrator"):
            rpc(server, "slow.work", "tools/call", {"name": "slow.work", "arguments": {"who": who}})
        with connect(f"ws://127.0.0.1:{server.port}/ws") as line:
            params = {"method": "slow.ask", "params": {"who": "websocket"}, "durable": True}
            followed = ask(line, "plexus_subscribe", params)
            until(lambda: {who for who, one in calls(server).items() if one["questions"]} == everybody)
            state, question = asked.result(), _question(line)
        before = calls(server)
        server.kill()

        gate.unlink()
        server.start()
        ids = {who: one["id"] for who, one in before.items()}
        rpc(
            server,
            ids["task"],
            "tasks/update",
            {"taskId": ids["task"], "inputResponses": {"name": accept(text="Ada")}},
        )
        with connect(f"ws://127.0.0.1:{server.port}/ws") as line:
            ask(line, "plexus_attach", {"call": followed})
            ask(line, "plexus_respond", [followed, question, "Ada"])
            # These two are told only what comes of their answer; until then it is on record all the same.
            answers = {"name": accept(text="Ada")}
            threads.submit(server.call, "slow.ask", who="retry", state=state, answers=answers)
            path = f"/admin/calls/{ids['administrator']}/answers"
            threads.submit(server.post, path, {"answers": {"name": "Ada"}})
            until(lambda: all(_is_answered(one) for one in calls(server).values()))
            assert {one["status"] for one in calls(server).values()} == {"running"}, "it is being run again"
            server.kill()

        gate.touch()
        server.start()
        until(lambda: {one["status"] for one in calls(server).values()} == {"completed"})
        for who, id in ids.items():
            shown = server.get(f"/admin/calls/{id}?values=1").json
            assert f"{who}: Ada" in json.dumps(shown["outcome"]), shown


def _is_answered(call: dict[str, Any]) -> bool:
    (entry,) = call["entries"]
    return bool(entry["state"] == "answered")

"""A worker in this process, with a journal of any kind, and clients of it: one MCP client, and raw ones."""

import asyncio
import itertools
import json
from typing import Any, Self

from crash.person import KEY, SAID
from midcall import Hub
from midcall.journal.contract import CallRecord, Entry, Journal
from midcall.journal.durable import DurableCalls
from midcall.mcp import mcp_of
from midcall.plexus.protocol import Connection

META = "io.modelcontextprotocol/"
TASKS = {**SAID, f"{META}clientCapabilities": {"elicitation": {}, "extensions": {f"{META}tasks": {}}}}

_ids = itertools.count(1)


class Peer:
    """One connection: requests and their responses, and the items of subscriptions."""

    def __init__(self, hub: Hub) -> None:
        self._connection = Connection(hub, self._receive)
        self._responses: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.items: dict[str, list[dict[str, Any]]] = {}
        self.progress: list[tuple[str, float]] = []
        """The tokens and values of what came as progress."""
        self.arrived = asyncio.Event()

    def _receive(self, data: bytes) -> None:
        message = json.loads(data)
        if "id" in message:
            self._responses.pop(message["id"]).set_result(message)
        elif message["method"] == "notifications/progress":
            self.progress.append((message["params"]["progressToken"], message["params"]["progress"]))
        elif message["method"] == "plexus_subscription":
            params = message["params"]
            self.items.setdefault(params["subscription"], []).append(
                {**params["result"], "number": params.get("number")}
            )
        self.arrived.set()

    def send(self, method: str, params: Any) -> "asyncio.Future[dict[str, Any]]":
        """Send a request; gives the response to come."""
        id = next(_ids)
        response = self._responses[id] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self._connection.receive(json.dumps(message).encode())
        return response

    async def request(self, method: str, params: Any) -> Any:
        """What a request gives; an error of the protocol is given as it is."""
        response = await self.send(method, params)
        return response["result"] if "result" in response else response["error"]

    # --- MCP ---------------------------------------------------------------------------------

    async def tool(self, name: str, /, state: str | None = None, **more: Any) -> Any:
        """Call a tool, or come back for it with answers by key."""
        return await self.request("tools/call", self.params(name, state, **more))

    def params(
        self,
        name: str,
        /,
        state: str | None = None,
        answers: dict[str, Any] | None = None,
        key: str | None = None,
        arguments: dict[str, Any] | None = None,
        progress: str | None = None,
    ) -> dict[str, Any]:
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}, "_meta": dict(SAID)}
        if key is not None:
            params["_meta"][KEY] = key
        if progress is not None:
            params["_meta"]["progressToken"] = progress
        if state is not None:
            params |= {"requestState": state, "inputResponses": responses(answers or {})}
        return params

    async def start_task(self, name: str) -> str:
        """Call a tool that is a task; gives the task's id."""
        began = await self.request("tools/call", {"name": name, "arguments": {}, "_meta": TASKS})
        assert began["resultType"] == "task", began
        return str(began["taskId"])

    async def task(self, task: str) -> dict[str, Any]:
        """How a task stands."""
        shown: dict[str, Any] = await self.request("tasks/get", {"taskId": task, "_meta": TASKS})
        return shown

    async def update(self, task: str, answers: dict[str, Any]) -> None:
        """Answer questions of a task; returns when that is acknowledged."""
        params = {"taskId": task, "inputResponses": responses(answers), "_meta": TASKS}
        acknowledged = await self.request("tasks/update", params)
        assert acknowledged.keys() == {"resultType", "_meta"}, acknowledged

    async def cancel(self, task: str) -> None:
        """Cancel a task; returns when that is acknowledged."""
        acknowledged = await self.request("tasks/cancel", {"taskId": task, "_meta": TASKS})
        assert acknowledged.keys() == {"resultType", "_meta"}, acknowledged

    # --- the hub's own protocol --------------------------------------------------------------

    async def subscribe(self, method: str) -> str:
        """Start a durable call; gives its id."""
        call_id = await self.request("plexus_subscribe", {"method": method, "durable": True})
        assert isinstance(call_id, str), call_id
        return call_id

    async def respond(self, call_id: str, request_id: str, payload: Any) -> Any:
        return await self.request("plexus_respond", [call_id, request_id, payload])

    def of(self, call_id: str, type: str) -> list[dict[str, Any]]:
        """The items of a type."""
        return [item for item in self.items.get(call_id, []) if item["type"] == type]

    def asked(self, call_id: str) -> list[str]:
        """The messages of all questions that came, in their order."""
        return [question(item) for item in self.of(call_id, "request")]

    def open(self, call_id: str) -> dict[str, str]:
        """The ids of the questions that came and were not withdrawn, by their messages."""
        closed = {item["request_id"] for item in self.of(call_id, "request_cancelled")}
        requests = self.of(call_id, "request")
        return {question(item): item["request_id"] for item in requests if item["request_id"] not in closed}

    async def until(self, condition: Any) -> None:
        """Wait until something that comes makes a condition true."""
        while not condition():
            self.arrived.clear()
            await self.arrived.wait()

    async def close(self) -> None:
        await self._connection.close()


def question(item: dict[str, Any]) -> str:
    ((_, body),) = item["request_type"].items()
    return str(body["message"])


def responses(answers: dict[str, Any]) -> dict[str, Any]:
    """Answers of a person to prompts, by key."""
    return {key: {"action": "accept", "content": {"text": text}} for key, text in answers.items()}


def messages(asked: dict[str, Any]) -> list[str]:
    """What an `input_required` result, or a task, asks."""
    return sorted(one["params"]["message"] for one in asked.get("inputRequests", {}).values())


def keys(asked: dict[str, Any]) -> dict[str, str]:
    """The keys of the questions, by their messages."""
    return {one["params"]["message"]: key for key, one in asked["inputRequests"].items()}


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


class Worker:
    """A hub and its journal."""

    def __init__(self, hub: Hub, journal: Journal, **options: Any) -> None:
        self.hub = hub
        self.journal = journal
        self.durable = hub.durable = DurableCalls(hub, journal, **options)
        self.mcp = mcp_of(hub)

    def peer(self) -> Peer:
        return Peer(self.hub)

    async def record(self, call_id: str) -> CallRecord:
        return (await self.loaded(call_id))[0]

    async def loaded(self, call_id: str) -> tuple[CallRecord, list[Entry]]:
        found = await self.journal.load(call_id)
        assert found is not None
        return found[0], list(found[1])

    async def only(self) -> CallRecord:
        """The only call of the journal."""
        (call,) = (await self.journal.list()).calls
        return call

    async def __aenter__(self) -> Self:
        await self.hub.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hub.close(grace=0)

"""HTTP requests to an MCP endpoint in this process."""

import asyncio
import json
from typing import Any

from mcp_peers import FORMS, LATEST, META, MODERN
from midcall import Hub
from midcall.journal.seal import KeyRing
from midcall.mcp import mcp_of
from midcall.principal import Principal
from midcall.transports.mcp_http import McpEndpoint

KEYS = KeyRing([b"k" * 32])


class Visitor:
    """HTTP requests to an endpoint in this process."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.endpoint = McpEndpoint(mcp_of(hub))
        self._id = 0

    async def post(
        self, message: Any, *, gone: asyncio.Event | None = None, principal: str | None = None, **headers: str
    ) -> tuple[int, dict[bytes, bytes], list[Any]]:
        """The status, the headers and the messages of the response."""
        body = json.dumps(message).encode()
        return await self.visit("POST", headers, body, gone, principal)

    async def visit(
        self,
        verb: str,
        headers: dict[str, str],
        body: bytes = b"",
        gone: asyncio.Event | None = None,
        principal: str | None = None,
    ) -> tuple[int, dict[bytes, bytes], list[Any]]:
        sent: list[dict[str, Any]] = []
        given = [{"type": "http.request", "body": body}]
        over = gone or asyncio.Event()

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)
            await asyncio.sleep(0)
            if event["type"] == "http.response.body" and not event.get("more_body"):
                over.set()  # a server tells this after a response too

        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": verb,
            "headers": named,
            "midcall.principal": principal and Principal(principal),
        }
        await self.endpoint(scope, receive, send)
        if not sent:
            return 0, {}, []
        parts = b"".join(event.get("body", b"") for event in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), _messages(parts)

    async def initialize(self, **more: Any) -> str:
        params = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params | more}
        _, headers, _ = await self.post(message)
        return headers[b"mcp-session-id"].decode()

    async def request(self, method: str, params: Any, **rest: Any) -> Any:
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        _, _, messages = await self.post(message, **rest)
        return messages[-1] if messages else None

    async def modern(
        self, method: str, params: dict[str, Any], capabilities: Any = FORMS, **rest: Any
    ) -> Any:
        meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": capabilities}
        headers = {"mcp_protocol_version": MODERN, "mcp_method": method}
        name = params.get("name", params.get("taskId"))
        headers |= {"mcp_name": name} if name is not None else {}
        params = {**params, "_meta": meta | rest.pop("meta", {})}
        return await self.request(method, params, **headers, **rest)


def _messages(body: bytes) -> list[Any]:
    if not body.startswith((b"id:", b"event:", b":")):
        return [json.loads(body)] if body else []
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]

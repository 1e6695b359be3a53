"""Web pages of other origins that are let in: what a browser is told, by a real server.

A browser asks before it sends what a plain form could not have sent, and hides a response from the page
unless its headers say otherwise. Both are done here by hand.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from mcp_peers import META, MODERN
from peers import http_server

ALICE = "alice-0123456789abcdef"

APP = "https://app.example.com"
FOREIGN = "https://evil.example"
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}
MODERN_META = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}


class Browser:
    """Sends what a page of one origin asks for."""

    def __init__(self, url: str, origin: str | None) -> None:
        self._port = int(url.removesuffix("/ws").rpartition(":")[2])
        self._origin = origin

    async def send(
        self, verb: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        lines = [f"{verb} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}", "Connection: close"]
        lines += [f"Origin: {self._origin}"] if self._origin is not None else []
        lines += [f"Content-Length: {len(body)}"] if body else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        first, *others = head.decode().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in others)}
        return int(first.split()[1]), found, rest

    async def ask(self, path: str, headers: str, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
        """The preflight: may a page send this?"""
        return await self.send(
            "OPTIONS",
            path,
            Access_Control_Request_Method=method,
            Access_Control_Request_Headers=headers,
        )

    async def fetch(self, message: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """What a page does: ask, and send only what is allowed."""
        headers = {
            "Content_Type": "application/json",
            "Accept": "application/json, text/event-stream",
        } | headers
        asked = ",".join(sorted(name.replace("_", "-").lower() for name in headers))
        status, said, _ = await self.ask("/mcp", asked)
        assert (status, said["access-control-allow-origin"]) == (204, self._origin)
        assert "POST" in said["access-control-allow-methods"].split(", ")
        assert set(asked.split(",")) <= set(said["access-control-allow-headers"].split(", "))
        return await self.send("POST", "/mcp", json.dumps(message).encode(), **headers)


def request(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def readable(headers: dict[str, str], origin: str) -> bool:
    """Whether a browser shows the page this response, and the headers that it needs."""
    exposed = headers.get("access-control-expose-headers", "").split(", ")
    return (
        headers.get("access-control-allow-origin") == origin
        and "Origin" in headers.get("vary", "")
        and {"mcp-session-id", "www-authenticate"} <= set(exposed)
    )


def test_a_page_that_is_let_in_calls_tools_of_both_eras() -> None:
    async def main() -> None:
        async with http_server("mcp_app:hub", options=("--allow-host", APP)) as url:
            page = Browser(url, APP)
            status, headers, _ = await page.fetch(request("initialize", INITIALIZE))
            assert status == 200
            assert readable(headers, APP)
            session = {"Mcp_Session_Id": headers["mcp-session-id"], "Mcp_Protocol_Version": "2025-11-25"}
            call = {"name": "give.word", "arguments": {}}
            status, headers, body = await page.fetch(request("tools/call", call), **session)
            assert status == 200
            assert readable(headers, APP)
            assert json.loads(body)["result"]["content"][0]["text"] == "hello"

            mirrored = {
                "Mcp_Protocol_Version": MODERN,
                "Mcp_Method": "tools/call",
                "Mcp_Name": "give.plain_progress",
            }
            asks_progress = {"_meta": {**MODERN_META, "progressToken": "t"}}
            call = {"name": "give.plain_progress", "arguments": {}, **asks_progress}
            status, headers, body = await page.fetch(request("tools/call", call), **mirrored)
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert readable(headers, APP)
            assert b"told" in body

            status, headers, _ = await page.send("POST", "/mcp", b"{", Content_Type="application/json")
            assert (status, readable(headers, APP)) == (400, True), "errors can be read too"
            status, headers, _ = await page.send("DELETE", "/mcp", **session)
            assert (status, readable(headers, APP)) == (200, True)

    drive(main())


def test_a_browser_may_ask_without_a_token_but_not_call(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"alice={ALICE}\n")
    file.chmod(0o600)
    options = ("--allow-host", APP, "--auth-tokens", str(file))

    async def main() -> None:
        async with http_server("mcp_app:hub", options=options) as url:
            page = Browser(url, APP)
            message = request("initialize", INITIALIZE)
            status, headers, _ = await page.fetch(message)
            assert (status, readable(headers, APP)) == (401, True), "the page can read what is missing"
            assert headers["www-authenticate"] == 'Bearer realm="midcall"'
            status, headers, _ = await page.fetch(message, Authorization=f"Bearer {ALICE}")
            assert (status, readable(headers, APP)) == (200, True)

    drive(main())


def test_only_the_headers_of_mcp_may_be_sent() -> None:
    async def main() -> None:
        async with http_server("mcp_app:hub", options=("--allow-host", APP)) as url:
            page = Browser(url, APP)
            wanted = "content-type, Mcp-Param-Region, mcp-param-a_b, x-evil, mcp-param-, mcp-param-x y"
            _, headers, body = await page.ask("/mcp", wanted)
            allowed = headers["access-control-allow-headers"].split(", ")
            assert [name for name in allowed if name.startswith("mcp-param")] == ["mcp-param-region"]
            assert "x-evil" not in allowed
            assert {"last-event-id", "authorization", "mcp-session-id"} <= set(allowed)
            assert int(headers["access-control-max-age"]) > 0
            assert body == b""
            many = ",".join(f"mcp-param-p{number}" for number in range(1000))
            _, headers, _ = await page.ask("/mcp", many)
            assert len(headers["access-control-allow-headers"]) < 4000
            assert "access-control-allow-credentials" not in headers

    drive(main())


@pytest.mark.parametrize("origin", [FOREIGN, "null", "https://app.example.com:8443"])
def test_pages_of_other_origins_are_still_refused(origin: str) -> None:
    async def main() -> None:
        async with http_server("mcp_app:hub", options=("--allow-host", APP)) as url:
            page = Browser(url, origin)
            for status, headers, _ in (
                await page.ask("/mcp", "content-type"),
                await page.send("POST", "/mcp", b"{}", Content_Type="text/plain"),
            ):
                assert status == 403
                assert not [name for name in headers if name.startswith("access-control")]
            status, headers, _ = await page.send("GET", "/health")
            assert status == 200, "as ever, for load balancers"
            assert "access-control-allow-origin" not in headers, "but the page cannot read it"

    drive(main())


def test_a_program_hears_nothing_of_it_and_options_is_no_method_for_it() -> None:
    async def main() -> None:
        async with http_server("mcp_app:hub", options=("--allow-host", APP)) as url:
            program, page = Browser(url, None), Browser(url, APP)
            for path in ("/health", "/"):
                _, headers, _ = await program.send("GET", path)
                assert not [name for name in headers if name.startswith("access-control")]
                assert "origin" not in headers.get("vary", "").lower()
                _, headers, _ = await page.send("GET", path)
                assert readable(headers, APP)
                assert (await page.ask(path, "x", "GET"))[0] == 204
            status, headers, _ = await program.send("OPTIONS", "/mcp")
            assert (status, headers["allow"]) == (405, "POST, GET, DELETE")
            status, headers, _ = await page.send("OPTIONS", "/mcp")
            assert (status, readable(headers, APP)) == (405, True), "no preflight: it asks for nothing"

    drive(main())


def test_whoever_needs_a_token_may_read_where_to_get_one() -> None:
    options = ("--oauth-issuer", "https://auth.example.com", "--oauth-jwks", "https://auth.example.com/jwks")
    options += ("--oauth-audience", "https://tools.example.com/mcp", "--allow-host", APP)
    path = "/.well-known/oauth-protected-resource/mcp"

    async def main() -> None:
        async with http_server("mcp_app:hub", options=options) as url:
            for origin, told in ((APP, APP), (FOREIGN, "*")):
                page = Browser(url, origin)
                status, headers, _ = await page.ask(path, "mcp-protocol-version", "GET")
                assert (status, headers["access-control-allow-origin"]) == (204, told)
                assert "mcp-protocol-version" in headers["access-control-allow-headers"]
                status, headers, body = await page.send("GET", path, Mcp_Protocol_Version=MODERN)
                assert (status, headers["access-control-allow-origin"]) == (200, told)
                assert json.loads(body)["authorization_servers"] == ["https://auth.example.com"]

    drive(main())

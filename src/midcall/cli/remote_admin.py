"""The calls of a server that runs, through its pages for administrators (see `transports.admin`).

The methods of `journal.admin.Admin`, which is on the other side; keys and conversations stay there. What the
server refuses is raised as `Refused`, with the server's own words.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from midcall.cli.command import UsageError
from midcall.errors import MidcallError
from midcall.http.client import HttpClient, HttpResponse
from midcall.http.message import HttpError, HttpUrl

LARGEST = 1024 * 1024 * 1024
"""Bytes of an answer: calls may have large values."""

SECONDS = 60.0
"""How long the server may take; an answer waits up to 20 seconds there for what the call does with it."""


class Refused(MidcallError):
    """The server did not do it."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class RemoteAdmin:
    """The calls of the server at a URL."""

    def __init__(self, url: str, token: str | None) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(
                f"--url must be the address of a server, such as http://127.0.0.1:8000, not {url!r}"
            )
        try:
            self._admin = HttpUrl(url.partition("?")[0].rstrip("/") + "/admin")
            shown = str(HttpUrl(url)).rstrip("/")
        except HttpError as error:
            raise UsageError(f"--url: {error}") from None
        self._url = shown
        self._token = token

    async def list(
        self,
        *,
        status: Sequence[str] = (),
        name: str | None = None,
        principal: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        asked = {"name": name, "principal": principal, "after": after, "limit": limit}
        pairs = [(key, str(value)) for key, value in asked.items() if value is not None]
        return await self._json("GET", f"/calls?{urlencode([*pairs, *_statuses(status)])}")

    async def show(self, call_id: str, *, values: bool = False) -> dict[str, Any]:
        return await self._json("GET", f"/calls/{quote(call_id, '')}{'?values=true' if values else ''}")

    async def answer(self, call_id: str, answers: Mapping[str, Any]) -> dict[str, Any]:
        return await self._json("POST", f"/calls/{quote(call_id, '')}/answers", {"answers": answers})

    async def abort(self, call_id: str, reason: str) -> dict[str, Any]:
        return await self._json("POST", f"/calls/{quote(call_id, '')}/abort", {"reason": reason})

    async def fork(self, call_id: str, at: int | None) -> dict[str, Any]:
        return await self._json("POST", f"/calls/{quote(call_id, '')}/fork", {"at": at})

    async def export(self, call_id: str) -> dict[str, Any]:
        return await self._json("GET", f"/calls/{quote(call_id, '')}/export")

    async def export_all(self, status: Sequence[str] = ()) -> AsyncIterator[dict[str, Any]]:
        rest = b""
        async with self._sent("GET", f"/export?{urlencode(_statuses(status))}") as response:
            while (piece := await self._next(response)) is not None:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    async def restore(self, exported: dict[str, Any]) -> bool:
        body = json.dumps(exported).encode() + b"\n"
        taken = await self._json("POST", "/import", body, "application/x-ndjson")
        return bool(taken["imported"])

    async def _json(
        self, verb: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        async with self._sent(verb, path, body, kind) as response:
            found: dict[str, Any] = json.loads(await response.read(LARGEST))
        return found

    @asynccontextmanager
    async def _sent(
        self, verb: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> AsyncIterator[HttpResponse]:
        """Send a request. It is never redirected: a token goes to the server that is meant, and no other."""
        headers = [] if self._token is None else [("Authorization", f"Bearer {self._token}")]
        if body is not None:
            headers.append(("Content-Type", kind))
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with HttpClient() as http:
            try:
                url = self._admin.join(self._admin.full + path)
                response = await http.request(verb, url, headers, body or b"", timeout=SECONDS)
                if response.status >= 300:
                    raise self._refused(response.status, await response.read())
                yield response
            except HttpError as error:
                raise Refused(f"{self._url} does not answer: {error}", "no_server") from None

    async def _next(self, response: HttpResponse) -> bytes | None:
        """The next piece of a body without a known end."""
        try:
            async with asyncio.timeout(SECONDS):
                return await anext(response, None)
        except TimeoutError:
            raise Refused(f"{self._url} stopped in the middle of its answer", "no_server") from None

    def _refused(self, status: int, body: bytes) -> Refused:
        try:
            error = json.loads(body)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            code, message = "not_found" if status == 404 else "http", f"HTTP {status}"
        if status == 401:
            return Refused(f"{self._url}: {message} (give --token, one with the scope midcall:admin)", code)
        if status == 403:
            return Refused(f"{self._url}: {message} (give --token, one that has it)", code)
        if code == "not_found":
            why = "it needs keys, or `midcall serve --admin` on this machine"
            return Refused(f"{self._url} has no pages for administrators: {why}", code)
        return Refused(message, code)


def _statuses(status: Sequence[str]) -> Sequence[tuple[str, str]]:
    return [("status", one) for one in status]

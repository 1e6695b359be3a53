"""Remote: the calls of a server that runs, through its pages for administrators (see `transports.admin`).

The same methods as `journal.admin.Admin`, which is on the other side. What the server refuses is raised
as `Refused`, with the server's own words.
"""

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from midcall.cli.exits import UsageError
from midcall.errors import MidcallError

SECONDS = 60.0
"""How long the server may take; an answer waits up to 20 seconds there for what the call does with it."""


class Refused(MidcallError):
    """The server did not do it."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class RemoteOperations:
    """The calls of the server at a URL."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url is the address of a server, as http://127.0.0.1:8000, not {url!r}")
        self._secure = parts.scheme == "https"
        try:
            self._address = (parts.hostname, parts.port)
        except ValueError:
            raise UsageError(f"--url: {url!r} has no port that there is") from None
        self._path = parts.path.rstrip("/") + "/admin"
        self._url = url
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

    async def export(self, call_id: str) -> dict[str, Any]:
        return await self._json("GET", f"/calls/{quote(call_id, '')}/export")

    async def export_keys(self) -> dict[str, Any]:
        return {}  # they are not given away

    async def export_all(self, status: Sequence[str] = ()) -> AsyncIterator[dict[str, Any]]:
        response = await asyncio.to_thread(self._send, "GET", f"/export?{urlencode(_statuses(status))}")
        with response:
            while line := await asyncio.to_thread(response.readline):
                yield json.loads(line)

    async def export_conversations(self) -> AsyncIterator[dict[str, Any]]:
        given: tuple[dict[str, Any], ...] = ()  # as with keys
        for one in given:
            yield one

    async def restore_conversation(self, exported: dict[str, Any]) -> bool | None:
        return None  # as with keys

    async def restore_keys(self, exported: dict[str, Any]) -> bool:
        return False  # a server takes none over HTTP

    async def restore(self, exported: dict[str, Any]) -> bool:
        body = json.dumps(exported).encode() + b"\n"
        taken = await self._json("POST", "/import", body, "application/x-ndjson")
        return bool(taken["imported"])

    async def _json(
        self, verb: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        def fetch() -> Any:
            with self._send(verb, path, body, kind) as response:
                return response.read()

        found: dict[str, Any] = json.loads(await asyncio.to_thread(fetch))
        return found

    def _send(
        self, verb: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> http.client.HTTPResponse:
        """Send a request. It is never redirected: a token goes to the server that is meant, and no other."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = kind
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = (
            http.client.HTTPSConnection(*self._address, timeout=SECONDS, context=ssl.create_default_context())
            if self._secure
            else http.client.HTTPConnection(*self._address, timeout=SECONDS)
        )
        try:
            connection.request(verb, self._path + path, body, {**headers, "Connection": "close"})
            response = connection.getresponse()
        except (OSError, socket.gaierror, http.client.HTTPException) as error:
            raise Refused(
                f"{self._url} does not answer: {error or type(error).__name__}", "no_server"
            ) from None
        if response.status >= 300:
            with response:
                raise self._refused(response.status, response.read())
        return response

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

"""The person's part of a login: a browser goes to the authorization server, and comes back to us.

`Loopback` is the way of programs on a person's machine (RFC 8252): a listener on 127.0.0.1 that lives as long
as the login and hears nothing but its callback. A caller that has another way gives a function instead: from
the address to visit to the address that the browser was sent to in the end.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import sys
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeAlias
from urllib.parse import parse_qs, urlsplit

from midcall.client.oauth.exchange import is_local
from midcall.errors import LoginFailed
from midcall.printable import printable

log = logging.getLogger("midcall.oauth")

Redirect: TypeAlias = Callable[[str], Awaitable[str]]
"""From the address to visit to the address that the browser was sent to."""

PATIENCE = 300.0
"""Seconds that a person has to log in."""

LONGEST_HEAD = 32 * 1024
HEAD_TIME = 10.0

DONE = "You can close this window and go back to the program."
FAILED = "The login did not succeed. The program says why."
NOTHING = "There is nothing here."

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>midcall</title>
<body style="font-family: sans-serif; margin: 15vh auto; max-width: 30em"><p>{text}</p></body></html>
"""


class Visit(Protocol):
    """A way back that is open."""

    @property
    def uri(self) -> str:
        """The redirect URI: where the browser is to be sent."""

    async def go(self, url: str, state: str) -> str:
        """Have the person visit the address; gives the address that the browser was sent to."""


class Way(Protocol):
    """How a person gets to an authorization server and back."""

    def open(self, before: str | None, server: str) -> contextlib.AbstractAsyncContextManager[Visit]:
        """Open the way back; at the redirect URI of before, if there is one and it can be had."""


def open_browser(url: str) -> bool:
    """Show a page to the person; false if there is no browser to do so.

    One that runs in the terminal would take it from the program, so it is used only if `BROWSER` says so.
    """
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    if type(browser) is webbrowser.GenericBrowser and "BROWSER" not in os.environ:
        return False
    return browser.open(url)


class Loopback:
    """Opens the person's browser, and waits for it on 127.0.0.1."""

    def __init__(
        self,
        uri: str | None = None,
        *,
        patience: float = PATIENCE,
        browser: Callable[[str], bool] = open_browser,
    ) -> None:
        """`uri` is for clients that are registered with one redirect URI; otherwise it has any free port."""
        parts = urlsplit(uri or "http://127.0.0.1/callback")
        if parts.scheme != "http" or not is_local(parts.geturl()) or parts.query or parts.fragment:
            raise ValueError(
                f"{uri} is not on this machine, so nobody can listen there: give a `redirect` function"
            )
        self._uri = uri
        self._host = parts.hostname or ""
        self._port = parts.port or (80 if uri else 0)
        self._path = parts.path or "/"
        self._patience = patience
        self._browser = browser

    @contextlib.asynccontextmanager
    async def open(self, before: str | None, server: str) -> AsyncIterator[Visit]:
        """Listen. Raises `LoginFailed` if the port is taken."""
        listener = _Listener(self._path, self._patience, self._browser, server)
        ports = [self._port]
        if self._uri is None and before is not None and (port := self._port_of(before)):
            ports.insert(0, port)  # what was registered is used again, as long as its port is free
        for port in ports:
            try:
                listening = await asyncio.start_server(
                    listener.connected, _address(self._host), port, limit=LONGEST_HEAD
                )
                break
            except OSError as error:
                failure = error
        else:
            raise LoginFailed(
                f"Cannot listen at {self._uri or self._host} for the end of the login: {failure}",
                server=server,
            ) from failure
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            listener.uri = self._uri or f"http://{self._host}:{port}{self._path}"
            try:
                yield listener
            finally:
                listener.hang_up()

    def _port_of(self, before: str) -> int | None:
        parts = urlsplit(before)
        same = (parts.scheme, parts.hostname, parts.path) == ("http", self._host, self._path)
        return parts.port if same else None


class _Listener:
    """Hears one callback."""

    def __init__(self, path: str, patience: float, browser: Callable[[str], bool], server: str) -> None:
        self.uri = ""
        self._path = path
        self._patience = patience
        self._browser = browser
        self._server = server
        self._state = ""
        self._callback: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._writers: set[asyncio.StreamWriter] = set()

    async def go(self, url: str, state: str) -> str:
        """Open the browser and wait for it. Raises `LoginFailed` if nobody comes back."""
        self._state = state
        try:
            async with asyncio.timeout(self._patience):
                if not await asyncio.to_thread(self._browser, url):
                    _print(f"To log in to {self._server}, open this address in a browser:\n\n    {url}\n\n")
                return await self._callback
        except TimeoutError:
            host = urlsplit(url).netloc
            raise LoginFailed(
                f"Nobody logged in to {self._server} at {host} within {self._patience:g} seconds",
                server=self._server,
                recoverable=True,
            ) from None

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, one page."""
        self._writers.add(writer)
        try:
            async with asyncio.timeout(HEAD_TIME):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text, target = self._judge(head.partition(b"\r\n")[0])
                writer.write(_response(status, text))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()
        if target is not None and not self._callback.done():
            self._callback.set_result(f"{self.uri}?{target.partition('?')[2]}")

    def hang_up(self) -> None:
        """Let go of those who are still there."""
        self._callback.cancel()
        for writer in list(self._writers):
            writer.close()

    def _judge(self, line: bytes) -> tuple[str, str, str | None]:
        """Status, page and, if it is the callback, the target of a request."""
        verb, _, rest = line.decode("latin-1").partition(" ")
        target = rest.rpartition(" ")[0]
        if target.partition("?")[0] != self._path:
            return "404 Not Found", NOTHING, None
        if verb != "GET":
            return "405 Method Not Allowed", NOTHING, None
        given = parse_qs(target.partition("?")[2], keep_blank_values=True)
        state, *more = given.get("state", [""])
        if not state or more or not hmac.compare_digest(state.encode(), self._state.encode()):
            log.warning("Somebody came to %s with a state that is not of this login", self.uri)
            return "400 Bad Request", NOTHING, None
        return "200 OK", DONE if "code" in given else FAILED, target


class Given:
    """The caller's own way."""

    def __init__(self, redirect: Redirect, uri: str) -> None:
        self._redirect = redirect
        self.uri = uri

    @contextlib.asynccontextmanager
    async def open(self, before: str | None, server: str) -> AsyncIterator[Visit]:
        """Nothing needs to be opened."""
        yield self

    async def go(self, url: str, state: str) -> str:
        """Ask the caller."""
        return await self._redirect(url)


def _address(host: str) -> str:
    # Never by name: `localhost` may lead elsewhere, and others could hear the callback.
    return "127.0.0.1" if host.endswith("localhost") else host


def _print(text: str) -> None:
    sys.stderr.write(printable(text))
    sys.stderr.flush()


def _response(status: str, text: str) -> bytes:
    body = _PAGE.format(text=text).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nx-content-type-options: nosniff\r\n"
        "content-security-policy: default-src 'none'; style-src 'unsafe-inline'\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body

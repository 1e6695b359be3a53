"""Access in the name of a person, who logs in once: authorization code with PKCE, and refresh tokens.

A browser goes to the authorization server, and comes back to us. `Loopback` is the way of programs on a
person's machine (RFC 8252): a listener on 127.0.0.1 that lives as long as the login and hears nothing but its
callback. A caller that has another way gives a function instead: from the address to visit to the address
that the browser was sent to in the end.

Whatever comes back is believed only if it carries this login's `state` and comes from the issuer that was
asked (RFC 9207); before that, not even an error in it is looked at.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import sys
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from midcall.client.oauth.access import OFFLINE, Access
from midcall.client.oauth.discovery import TokenSource
from midcall.client.oauth.fetch import Fetch, is_local, words
from midcall.client.oauth.registration import ClientKey, Identity, Registered, choose_client
from midcall.client.oauth.store import Grant, TokenStore, default_store
from midcall.errors import LoginFailed
from midcall.logs import printable

log = logging.getLogger("midcall.oauth")

Redirect: TypeAlias = Callable[[str], Awaitable[str]]
"""From the address to visit to the address that the browser was sent to."""

WayBack: TypeAlias = tuple[str, Callable[[str, str], Awaitable[str]]]
"""The redirect URI, and what has the person visit an address and gives the one that the browser was sent to.

The second argument is the `state` of the login.
"""

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
    async def open(self, before: str | None, server: str) -> AsyncIterator[WayBack]:
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
                f"Cannot listen at {self._uri or self._host} for the end of the login: {failure}"
            ) from failure
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            listener.uri = self._uri or f"http://{self._host}:{port}{self._path}"
            try:
                yield listener.uri, listener.go
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


class _Login:
    """A login that is going on."""

    def __init__(
        self, source: TokenSource, client: Registered, redirect_uri: str, scopes: Sequence[str]
    ) -> None:
        """Prepare it. Raises `LoginFailed` if this authorization server cannot be trusted with one."""
        issuer = source.issuer
        if issuer.authorization_endpoint is None:
            raise LoginFailed(f"{issuer.issuer} has no page to log in at")
        if not _has_pkce(source):
            raise LoginFailed(f"{issuer.issuer} does not support PKCE (S256): refused")
        self._source = source
        self.verifier = secrets.token_urlsafe(48)
        self.state = secrets.token_urlsafe(32)
        self.url: str = prepare_grant_uri(
            issuer.authorization_endpoint,
            client.client_id,
            "code",
            redirect_uri=redirect_uri,
            scope=" ".join(scopes) or None,
            state=self.state,
            code_challenge=create_s256_code_challenge(self.verifier),  # type: ignore[no-untyped-call]
            code_challenge_method="S256",
            resource=source.resource,
            # OpenID servers ignore a wish for refresh tokens unless the person is asked
            prompt="consent" if "offline_access" in scopes else None,
        )

    def read(self, callback: str) -> str:
        """The code in the address that the browser was sent to. Raises `LoginFailed`."""
        given = parse_qs(urlsplit(callback).query, keep_blank_values=True)
        if repeated := [name for name, values in given.items() if len(values) > 1]:
            raise self._failure(f"came back with two values of {words(repeated[0], 40)}: refused")
        said = {name: values[0] for name, values in given.items()}
        if not hmac.compare_digest(said.get("state", "").encode(), self.state.encode()):
            raise self._failure("came back with a state that is not of this login: refused")
        self._check_issuer(said.get("iss"))
        if "error" in said:
            raise self._refused(said["error"], said.get("error_description", ""))
        if not said.get("code"):
            raise self._failure("came back without a code")
        return said["code"]

    def _check_issuer(self, iss: str | None) -> None:
        """Compared letter by letter: whoever may choose what is the same may choose another server."""
        issuer = self._source.issuer
        if iss is None:
            if issuer.authorization_response_iss_parameter_supported:
                raise self._failure("came back without saying from which issuer: refused")
        elif iss != issuer.issuer:
            raise self._failure(f"came back from another issuer, {words(iss)}: refused")

    def _refused(self, error: str, description: str) -> LoginFailed:
        said = words(f"{error}: {description}" if description else error)
        if error == "access_denied":
            return self._failure(f"was declined ({said})", error)
        return self._failure(f"failed ({said})", error)

    def _failure(self, what: str, reason: str = "") -> LoginFailed:
        issuer = self._source.issuer.issuer
        return LoginFailed(f"The login at {issuer} {what}", reason=words(reason, 60))


def _has_pkce(source: TokenSource) -> bool:
    """A server must say that it has it. The rules of 2025-03-26 want it used, but not announced."""
    methods = source.issuer.code_challenge_methods_supported
    return source.issuer.legacy if methods is None else "S256" in methods


class OAuth(Access):
    """Logs a person in, when a server asks for it: `connect(url, auth=OAuth())`.

    Nothing else needs to be given: the server says where to log in, and most let clients register themselves.
    A client that is registered already gives its `client_id`, and its secret or key; `issuer` names the only
    authorization server that these are shown to (without it, that is the first one that the server names).
    `client_metadata_url` is where the client's metadata document is, for servers that read such. `scopes` are
    asked for in addition to what the server wants. A server may not lead into a network that it is not in,
    unless to `issuer`, or with `allow_private`.

    The browser comes back to 127.0.0.1, at any free port or at the `redirect_uri` that is registered. With
    `redirect`, a function from the address to visit to the address that the browser was sent to, the caller
    sees to that. `store` is where the login is kept: the keyring, or a file.
    """

    asks_nobody = False

    def __init__(
        self,
        *,
        scopes: Sequence[str] | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        private_key: str | bytes | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "midcall",
        issuer: str | None = None,
        redirect: Redirect | Loopback | None = None,
        redirect_uri: str | None = None,
        allow_private: bool = False,
        store: TokenStore | None = None,
    ) -> None:
        if client_secret is not None and client_id is None:
            raise ValueError("A client_secret belongs to a client_id")
        if client_metadata_url is not None and not _can_be_id(client_metadata_url):
            raise ValueError(f"client_metadata_url must be https with a path, not {client_metadata_url}")
        key = None if private_key is None else ClientKey(private_key)
        identity = Identity(client_name, client_id, client_secret, key, client_metadata_url)
        super().__init__(
            identity,
            scopes=scopes,
            issuer=issuer,
            allow_private=allow_private,
            store=store or default_store(),
        )
        self._redirect = redirect or Loopback(redirect_uri)
        self._redirect_uri = redirect_uri or "http://127.0.0.1/callback"

    def _way_back(self, before: str | None, server: str) -> contextlib.AbstractAsyncContextManager[WayBack]:
        redirect = self._redirect
        if isinstance(redirect, Loopback):
            return redirect.open(before, server)
        return contextlib.nullcontext((self._redirect_uri, lambda url, _: redirect(url)))

    async def _obtain(self, source: TokenSource, before: Grant, scopes: Sequence[str], fetch: Fetch) -> Grant:
        """Have the person log in."""
        if scopes and OFFLINE not in scopes and OFFLINE in (source.issuer.scopes_supported or ()):
            scopes = (*scopes, OFFLINE)
        known = before.client.redirect_uri if before.client else None
        async with self._way_back(known, source.server) as (uri, visit):
            client = await choose_client(self._identity, source, before.client, uri, scopes, fetch)
            login = _Login(source, client, uri, scopes)
            code = login.read(await visit(login.url, login.state))
            return await self._ask_for(
                source,
                "authorization_code",
                scopes,
                fetch,
                client=client,
                code=code,
                redirect_uri=uri,
                code_verifier=login.verifier,
            )


def _can_be_id(url: str) -> bool:
    parts = urlsplit(url)
    return (
        parts.scheme == "https"
        and bool(parts.hostname)
        and parts.path not in ("", "/")
        and not parts.fragment
    )

"""The browser's way to a login and back: a listener on this machine, and whoever else may come to it."""

import asyncio
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.responses import Response

from driving import LIMIT, drive
from midcall.client.oauth import Loopback
from oauth_world import World, in_world, world
from peers import free_port


class Browser:
    """A real one as far as HTTP goes: it follows where it is led, and shows a page in the end."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def __call__(self, url: str) -> bool:
        with urllib.request.urlopen(url, timeout=LIMIT) as response:
            self.pages.append(response.read().decode())
        return True


async def knock(uri: str, request: str) -> str:
    """Send something to the listener; gives the first line of what it says."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(uri).port)
    writer.write(request.encode())
    async with asyncio.timeout(LIMIT):
        line = await reader.readline()
    writer.close()
    return line.decode().strip()


def log_in_again(it: World) -> None:
    """The next token that is shown is refused, and there is no refresh token any more."""
    shown: list[int] = []

    def gate(request: Any) -> Response | None:
        if shown:
            return None
        shown.append(1)
        return Response(status_code=401, headers={"www-authenticate": "Bearer"})

    it.server.gate = gate
    it.issuer.revoke_refresh_tokens()


@in_world
async def test_the_browser_is_opened_and_comes_back_to_this_machine(it: World) -> None:
    browser = Browser()
    assert await it.status(it.oauth(redirect=Loopback(browser=browser))) == 200
    [page], [login] = browser.pages, it.issuer.logins()
    assert "You can close this window" in page
    back = urlsplit(login["redirect_uri"])
    assert (back.scheme, back.hostname, back.path) == ("http", "127.0.0.1", "/callback")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", back.port)


@in_world
async def test_somebody_who_declines_is_not_told_that_all_is_well(it: World) -> None:
    it.issuer.answer = lambda said: {"error": "access_denied", "state": said["state"], "iss": said["iss"]}
    browser = Browser()
    failure = await it.fails(it.oauth(redirect=Loopback(browser=browser)))
    assert failure.reason == "access_denied"
    assert "did not succeed" in browser.pages[0]


@in_world
async def test_only_the_callback_of_this_login_is_heard(it: World) -> None:
    heard: list[str] = []
    lines = {
        "GET /favicon.ico HTTP/1.1": "HTTP/1.1 404 Not Found",
        "GET / HTTP/1.1": "HTTP/1.1 404 Not Found",
        "POST /callback?code=x&state=STATE HTTP/1.1": "HTTP/1.1 405 Method Not Allowed",
        "GET /callback HTTP/1.1": "HTTP/1.1 400 Bad Request",
        "GET /callback?code=x&state= HTTP/1.1": "HTTP/1.1 400 Bad Request",
        "GET http://[ HTTP/1.1": "HTTP/1.1 404 Not Found",
        "GET /callback?code=x&state=guessed HTTP/1.1": "HTTP/1.1 400 Bad Request",
        "GET /callback?code=x&state=STATE&state=STATE HTTP/1.1": "HTTP/1.1 400 Bad Request",
        "GET /callback?code=x&state=%ff HTTP/1.1": "HTTP/1.1 400 Bad Request",
        "nonsense": "HTTP/1.1 404 Not Found",
    }
    opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def browser(url: str) -> bool:
        loop.call_soon_threadsafe(opened.set_result, url)
        return True

    going = asyncio.create_task(it.status(it.oauth(redirect=Loopback(browser=browser))))
    url = await opened
    back = await it.person(url)
    uri, _, query = back.partition("?")
    state = query.partition("state=")[2].partition("&")[0]
    silent = await asyncio.open_connection("127.0.0.1", urlsplit(uri).port)
    for request, answer in lines.items():
        asked = f"{request.replace('STATE', state)}\r\nhost: x\r\n\r\n"
        heard.append(await knock(uri, asked))
        assert heard[-1] == answer, request
    assert not going.done()
    assert await knock(uri, f"GET /callback?{query} HTTP/1.1\r\nhost: x\r\n\r\n") == "HTTP/1.1 200 OK"
    assert await going == 200
    silent[1].close()


@in_world
async def test_nobody_waits_for_ever(it: World) -> None:
    failure = await it.fails(it.oauth(redirect=Loopback(patience=0.1, browser=lambda url: True)))
    host = urlsplit(it.issuer.issuer).netloc
    assert str(failure) == f"Nobody logged in to {it.server.url} at {host} within 0.1 seconds"
    assert failure.recoverable


def test_without_a_browser_the_address_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with world() as it:
            going = asyncio.create_task(it.status(it.oauth(redirect=Loopback(browser=lambda url: False))))
            said = ""
            while f"{it.issuer.issuer}/authorize?" not in said:
                assert not going.done()
                await asyncio.sleep(0.01)
                said += capsys.readouterr().err
            [url] = [line.strip() for line in said.splitlines() if "/authorize?" in line]
            assert f"To log in to {it.server.url}, open this address in a browser" in said
            await asyncio.to_thread(Browser(), url)
            assert await going == 200
            assert capsys.readouterr().out == ""

    drive(main())


@in_world
async def test_the_next_login_comes_back_to_the_same_port_so_that_the_registration_fits(it: World) -> None:
    browser = Browser()
    await it.request(it.oauth(redirect=Loopback(browser=browser)))
    log_in_again(it)
    assert await it.status(it.oauth(redirect=Loopback(browser=browser))) == 200
    first, second = it.issuer.logins()
    assert first["redirect_uri"] == second["redirect_uri"]
    assert len(it.issuer.registrations()) == 1
    log_in_again(it)
    with socket.create_server(("127.0.0.1", urlsplit(first["redirect_uri"]).port or 0)):
        assert await it.status(it.oauth(redirect=Loopback(browser=browser))) == 200
    assert it.issuer.logins()[2]["redirect_uri"] != first["redirect_uri"]
    assert len(it.issuer.registrations()) == 2


@in_world
async def test_a_client_with_one_registered_address_is_heard_there_and_nowhere_else(it: World) -> None:
    uri = f"http://localhost:{free_port()}/back/here"
    it.issuer.know("ours", redirect_uris=[uri])
    assert await it.status(it.oauth(client_id="ours", redirect=Loopback(uri, browser=Browser()))) == 200
    assert it.issuer.logins()[0]["redirect_uri"] == uri
    log_in_again(it)
    with socket.create_server(("127.0.0.1", urlsplit(uri).port or 0)):
        auth = it.oauth(client_id="ours", redirect=Loopback(uri, browser=Browser()))
        assert f"Cannot listen at {uri}" in str(await it.fails(auth))


@in_world
async def test_a_login_that_nobody_waits_for_any_more_leaves_nothing_behind(it: World) -> None:
    opened = asyncio.Event()
    loop = asyncio.get_running_loop()

    def browser(url: str) -> bool:
        loop.call_soon_threadsafe(opened.set)
        return True

    auth = it.oauth(redirect=Loopback(browser=browser))
    going = asyncio.create_task(it.status(auth))
    await opened.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    port = urlsplit(it.issuer.registrations()[0]["redirect_uris"][0]).port
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    another = it.oauth()
    assert await it.status(another) == 200


# --- which browser --------------------------------------------------------------------------


def opened_by(environment: dict[str, str], url: str = "http://127.0.0.1/x") -> str:
    code = f"from midcall.client.oauth.login import open_browser; print(open_browser({url!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    return done.stdout.strip()


def script(folder: Path, name: str) -> Path:
    """A program that notes what it was started with."""
    made = folder / name
    made.write_text(f'#!/bin/sh\necho "$@" >> {folder}/started\n')
    made.chmod(0o755)
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="how browsers are found differs")
def test_the_browser_of_the_person_is_used(tmp_path: Path) -> None:
    browser = script(tmp_path, "my-browser")
    assert opened_by({"PATH": "/nowhere", "BROWSER": f"{browser} %s"}) == "True"
    assert (tmp_path / "started").read_text() == "http://127.0.0.1/x\n"


@pytest.mark.skipif(sys.platform != "linux", reason="how browsers are found differs")
def test_a_browser_that_would_take_the_terminal_is_not_used_unasked(tmp_path: Path) -> None:
    script(tmp_path, "w3m")
    assert opened_by({"PATH": "/nowhere"}) == "False"
    assert opened_by({"PATH": str(tmp_path), "TERM": "xterm"}) == "False"
    assert not (tmp_path / "started").exists()

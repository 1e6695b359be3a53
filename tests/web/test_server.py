"""How the web client is served: what a browser may do with it, what it keeps, and who sees which calls."""

import asyncio
import base64
import gzip
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from driving import LIMIT, drive
from midcall.transports.web import BUILT, WebClient
from operating import ADA, ADMIN, KEYS, Answer, Server
from peers import HERE
from web_browser import web_server

pytest_plugins = ("web_fixtures",)

PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"
CALL = {"method": "plexus_subscribe", "params": {"method": "lab.both", "params": {}}}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks who calls."""
    with web_server(tmp_path_factory.mktemp("keyed"), MIDCALL_TOKENS=KEYS) as serving:
        yield serving


def directives(answer: Answer) -> dict[str, str]:
    policy = answer.headers["content-security-policy"].split("; ")
    return {name: rest for name, _, rest in (part.partition(" ") for part in policy)}


# --- the page ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/tools", "/calls", "/c/some-conversation"])
def test_a_browser_gets_the_page_at_each_of_its_addresses(site: Server, path: str) -> None:
    answer = site.get(path, accept=PAGE)
    assert answer.status == 200
    assert '<div id="root">' in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    policy = directives(answer)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script>|<style| style=|\son\w+=", answer.text)
    assert not re.search(r"https?://", answer.text)  # nothing from elsewhere


def test_a_program_gets_text_and_data_at_the_same_addresses(site: Server) -> None:
    assert "lab.parcel" in site.get("/").text
    assert site.get("/").headers["content-type"].startswith("text/plain")
    assert site.get("/calls").json == {"calls": [], "next": None, "admin": False}
    assert "Accept" in site.get("/calls").headers["vary"]


def test_the_page_is_asked_for_again_and_its_parts_never(site: Server) -> None:
    first = site.get("/", accept=PAGE)
    assert first.headers["cache-control"] == "no-cache"
    again = site.get("/", accept=PAGE, if_none_match=first.headers["etag"])
    assert (again.status, again.text) == (304, "")
    for part in re.findall(r'(?:src|href)="(/assets/[^"]+)"', first.text):
        answer = site.get(part)
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
    assert site.get("/assets/nothing.js").status == 404
    assert site.get("/assets/../web.py").status == 404
    assert site.get("/assets/%2e%2e%2fweb.py").status == 404


def test_the_script_of_the_first_page_is_small_on_the_wire(site: Server) -> None:
    text = site.get("/", accept=PAGE).text
    scripts = re.findall(r'src="(/assets/[^"]+)"', text)
    total = 0
    for path in scripts:
        packed = _get_bytes(site, path)
        assert b"React" in gzip.decompress(packed) or len(packed) < 1000
        total += len(packed)
    assert scripts
    assert total <= 120_000
    told = json.loads((BUILT / "sizes.json").read_text())
    assert told["firstPaintScriptGzip"] < told["firstPaintGzip"] <= told["limit"] == 120_000


def _get_bytes(site: Server, path: str) -> bytes:
    line = http.client.HTTPConnection("127.0.0.1", site.port, timeout=LIMIT)
    line.request("GET", path, headers={"Accept-Encoding": "gzip"})
    response = line.getresponse()
    body = response.read()
    line.close()
    return body if response.headers.get("content-encoding") == "gzip" else gzip.compress(body)


def test_modules_of_other_authors_are_listed_and_served(site: Server) -> None:
    (path,) = site.get("/web-modules.json").json["modules"]
    answer = site.get(f"/{path}")
    assert answer.text == (HERE / "web_rating.js").read_text()
    assert answer.headers["content-type"].startswith("text/javascript")
    assert site.get("/web-modules/1-000000000000/web_rating.js").status == 404


def test_a_module_that_is_none_is_refused_at_start() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "midcall", "serve", "--web-module", "nowhere.js"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 2
    assert "there is no file 'nowhere.js'" in ran.stderr


def test_without_the_built_page_there_is_a_plain_one_with_a_hint(tmp_path: Path) -> None:
    async def plain(request: Request) -> Response:
        return PlainTextResponse("midcall, hub plexus\n")

    async def main() -> None:
        web = WebClient(plain, folder=tmp_path)
        route = next(route for route in web.routes() if route.path == "/")
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "query_string": b"",
            "headers": [(b"accept", PAGE.encode())],
        }
        await route.handle(scope, None, send)  # type: ignore[arg-type]
        body = sent[1]["body"].decode()
        assert "midcall, hub plexus" in body
        assert "make web" in body

    drive(main())


# --- calls ------------------------------------------------------------------------------------


def test_callers_see_and_abort_their_own_calls_only(keyed: Server) -> None:
    assert keyed.get("/calls").status == 401
    assert keyed.get("/", accept=PAGE).status == 200  # the page itself is for everybody
    waiting = keyed.call("interactive.confirm", token=ADA, message="Ready?")
    assert waiting["resultType"] == "input_required"
    (mine,) = keyed.get("/calls", ADA).json["calls"]
    assert mine["method"] == "interactive.confirm"
    assert mine["waiting"] is True
    assert [question["message"] for question in mine["questions"]] == ["Ready?"]
    assert keyed.get("/calls", ADMIN).json["calls"] == []
    path = f"/calls/{mine['id']}/abort"
    assert keyed.post(path, {"reason": "no"}).status == 401
    assert keyed.post(path, b"reason=no", ADA, content_type="text/plain").status == 400
    assert keyed.post(path, {"reason": "no"}, ADA).json == {"aborted": True}
    assert keyed.get("/calls", ADA).json["calls"] == []
    assert keyed.post(path, {"reason": "no"}, ADA).status == 409
    assert keyed.post("/calls/nobody/abort", {}, ADA).status == 404
    keyed.call("interactive.confirm", token=ADMIN, message="Ready?")
    (other,) = keyed.get("/calls", ADMIN).json["calls"]
    path = f"/calls/{other['id']}/abort"
    assert keyed.post(path, {"reason": "no"}, ADA).status == 404
    assert keyed.post(path, {"reason": "no"}, ADMIN).json == {"aborted": True}


def test_a_page_of_another_site_cannot_abort(site: Server) -> None:
    answer = site.post("/calls/nobody/abort", {}, origin="https://evil.example")
    assert answer.status == 403


# --- the key of a WebSocket -------------------------------------------------------------------


def subprotocol(token: str) -> str:
    return "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def test_a_websocket_of_a_page_brings_its_key_as_a_subprotocol(keyed: Server) -> None:
    async def main() -> None:
        url = f"ws://127.0.0.1:{keyed.port}/ws"
        async with connect(url, subprotocols=["midcall", subprotocol(ADA)]) as line:  # type: ignore[list-item]
            assert line.subprotocol == "midcall"  # and never the one with the key
            await line.send(json.dumps({"jsonrpc": "2.0", "id": 1, **CALL}))
            async with asyncio.timeout(LIMIT):
                assert "result" in json.loads(await line.recv())
            listed = await asyncio.to_thread(keyed.get, "/calls", ADA)
            assert [call["method"] for call in listed.json["calls"]] == ["lab.both"]
            assert (await asyncio.to_thread(keyed.get, "/calls", ADMIN)).json["calls"] == []

    drive(main())


@pytest.mark.parametrize(
    "offered",
    [
        [],
        ["midcall"],
        ["midcall", subprotocol("wrong-0123456789abcdef")],
        ["midcall", "bearer.%%%"],
        ["midcall", "bearer.", "midcall2"],
        ["midcall", subprotocol(ADA), subprotocol(ADMIN)],
        [f"bearer.{ADA}"],
    ],
)
def test_a_websocket_without_a_good_key_is_refused(keyed: Server, offered: list[str]) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{keyed.port}/ws", subprotocols=offered or None)  # type: ignore[arg-type]
        assert refused.value.response.status_code == 401

    drive(main())

"""A question at its own address, on a phone: by somebody with a key, and by whoever has the link."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from playwright.sync_api import Page, expect

from driving import LIMIT
from mcp_peers import MODERN
from operating import Server, text_of, until
from people_app import CALLER, KEYS, OPS, OTHER
from receivers import SECRET, Receiver
from web_browser import AXE, Open, overflow, serious_findings, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


def link_of(server: Server, token: str | None = None) -> str:
    (call,) = server.get("/calls", token).json["calls"]
    return server.url + str(call["questions"][0]["link"])


def give_key(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Go on").click()


def phone(open_page: Open, scheme: str = "light") -> Page:
    return open_page(width=360, height=740, scheme=scheme, has_touch=True, is_mobile=True)


async def deployed(url: str, mode: str) -> str:
    """What Ada gets, by the official client, of a tool that asks somebody else."""
    headers = {"Authorization": f"Bearer {CALLER}"}
    async with httpx2.AsyncClient(headers=headers, timeout=LIMIT) as http:
        line = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(line, mode=mode, input_required_max_rounds=1000) as client:
            result = await client.call_tool("people.deploy", {})
            return str(result.content[0].text)  # type: ignore[union-attr]


def refused(page: Page, link: str, key: str | None = None) -> None:
    page.goto(link)
    if key is not None:
        give_key(page, key)
    expect(page.get_by_role("heading", name="Nothing to answer here")).to_be_visible()


def check(page: Page, name: str) -> None:
    assert overflow(page) <= 0
    shoot(page, name)
    if AXE.is_file():
        assert serious_findings(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_link_is_answered_on_a_phone_once_and_by_nobody_else(
    open_page: Open, tmp_path: Path, scheme: str
) -> None:
    with web_server(tmp_path, target="people_app:hub", MIDCALL_TOKENS=KEYS) as server:
        asked = server.call("people.own", CALLER)
        link = link_of(server, CALLER)
        page = phone(open_page, scheme)
        refused(page, link, OTHER)
        expect(page.get_by_text("it is for somebody else")).to_be_visible()
        check(page, f"question-refused-{scheme}")
        page.get_by_role("button", name="Use another key").click()
        give_key(page, CALLER)
        expect(page.get_by_role("heading", name="A question for you")).to_be_visible()
        expect(page.get_by_text("people.own")).to_be_visible()
        check(page, f"question-phone-{scheme}")
        page.get_by_role("textbox").fill("Ada")
        page.get_by_role("button", name="Answer").tap()
        expect(page.get_by_role("heading", name="Thank you")).to_be_visible()
        check(page, f"question-answered-{scheme}")
        refused(page, link)
        assert text_of(server.call("people.own", CALLER, asked)) == "Hello Ada"


def test_who_comes_second_is_told_so(open_page: Open, tmp_path: Path) -> None:
    with web_server(tmp_path, target="people_app:hub") as server:
        server.call("people.window")
        link = link_of(server)
        first, second = open_page(width=360), open_page()
        for page in (first, second):
            page.goto(link)
            page.get_by_label("Minutes").fill("5")
        check(first, "question-form-phone")
        first.get_by_role("button", name="Answer").click()
        expect(first.get_by_role("heading", name="Thank you")).to_be_visible()
        second.get_by_role("button", name="Answer").click()
        expect(second.get_by_role("heading", name="Nothing to answer here")).to_be_visible()


def test_a_link_below_a_path_that_a_proxy_takes_off_is_answered(open_page: Open, tmp_path: Path) -> None:
    public = "https://tools.example.com/mid"
    with web_server(tmp_path, "--public-url", public, target="people_app:hub") as server:
        asked = server.call("people.own")
        link = link_of(server).replace(server.url, public)
        page = open_page(width=360)
        page.route(
            f"{public}/**",
            lambda route: route.fulfill(
                response=route.fetch(url=route.request.url.replace(public, server.url))
            ),
        )
        page.goto(link)
        page.get_by_role("textbox", name="Your name?").fill("Ada")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("heading", name="Thank you")).to_be_visible()
        assert text_of(server.call("people.own", None, asked)) == "Hello Ada"
        page.get_by_role("link", name="midcall").click()
        page.get_by_role("link", name="Calls").click()
        expect(page).to_have_url(f"{public}/calls")
        expect(page.get_by_text("Nothing is running or waiting")).to_be_visible()
        page.goto(f"{public}/nothing/here")
        expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
        page.goto(server.url + "/calls")  # without the proxy
        expect(page.get_by_text("Nothing is running or waiting")).to_be_visible()


def test_a_question_is_shown_with_its_component_step_by_step(open_page: Open, tmp_path: Path) -> None:
    with web_server(tmp_path) as server:
        asked = server.call("lab.stay")
        page = phone(open_page)
        page.goto(link_of(server))
        page.get_by_role("button", name="1 star").tap()
        expect(page.get_by_role("alert")).to_contain_text("One star is too few")
        check(page, "question-component")
        page.get_by_role("button", name="3 stars").tap()
        expect(page.get_by_role("group", name="And the food?")).to_be_visible()
        page.get_by_role("button", name="5 stars").tap()
        expect(page.get_by_role("heading", name="Thank you")).to_be_visible()
        assert text_of(server.call("lab.stay", None, asked)) == "Thank you for 8 stars"


@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_a_question_over_mcp_is_answered_by_somebody_else_who_is_told_through_an_outage(
    open_page: Open, tmp_path: Path, mode: str
) -> None:
    with Receiver() as receiver, ThreadPoolExecutor(1) as caller:
        receiver.status = 503
        settings = {"MIDCALL_TOKENS": KEYS, "MIDCALL_WEBHOOK_SECRET": SECRET}
        notify = ("--notify-webhook", receiver.url)
        with web_server(tmp_path, *notify, target="people_app:hub", **settings) as server:
            result = caller.submit(lambda: asyncio.run(deployed(server.url, mode)))
            until(lambda: len(receiver.told) >= 2)
            receiver.close()
            tried = len(receiver.told)
            receiver.status = 200
            receiver.open()
            until(lambda: len(receiver.told) > tried)
            told = receiver.told[tried]
            assert {one.id for one in receiver.told} == {told.id}
            assert told.is_signed()
            assert told.data["to"] == "scope:ops"
            link = told.data["link"]

            eve, bob = phone(open_page), phone(open_page)
            refused(eve, link, OTHER)
            refused(bob, link[:-4] + ("AAAA" if not link.endswith("AAAA") else "BBBB"), OPS)
            bob.goto(link)
            expect(bob.get_by_role("heading", name="A question for you")).to_be_visible()
            expect(bob.get_by_role("region", name="Deploy 1.2?")).to_be_visible()
            check(bob, f"question-of-another-{mode}")
            bob.get_by_role("button", name="Yes").tap()
            expect(bob.get_by_role("heading", name="Thank you")).to_be_visible()
            assert result.result(LIMIT) == "deployed: True"
            refused(bob, link)

            late = server.call("people.deploy", CALLER, limit=1)["_meta"]["dev.midcall/waitsFor"][0]["link"]
            until(lambda: server.get(late.removeprefix(server.url), OPS).status == 404)
            refused(bob, late)

            server.call("people.deploy", CALLER)  # the next one is told, and the first was told once
            until(lambda: receiver.told[-1].data["link"] not in (link, late))
            assert [one.id for one in receiver.told[tried:]].count(told.id) == 1

"""A question at its own address, on a phone: by somebody with a key, and by whoever has the link."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from operating import Server, text_of
from people_app import CALLER, KEYS, OTHER
from web_browser import AXE, Open, overflow, serious_findings, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


def link_of(server: Server, token: str | None = None) -> str:
    (call,) = server.get("/calls", token).json["calls"]
    return server.url + str(call["questions"][0]["link"])


def give_key(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Go on").click()


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
        phone = open_page(width=360, height=740, scheme=scheme, has_touch=True, is_mobile=True)
        phone.goto(link)
        give_key(phone, OTHER)
        expect(phone.get_by_role("heading", name="Nothing to answer here")).to_be_visible()
        expect(phone.get_by_text("it is for somebody else")).to_be_visible()
        check(phone, f"question-refused-{scheme}")
        phone.get_by_role("button", name="Use another key").click()
        give_key(phone, CALLER)
        expect(phone.get_by_role("heading", name="A question for you")).to_be_visible()
        expect(phone.get_by_text("people.own")).to_be_visible()
        check(phone, f"question-phone-{scheme}")
        phone.get_by_role("textbox").fill("Ada")
        phone.get_by_role("button", name="Answer").tap()
        expect(phone.get_by_role("heading", name="Thank you")).to_be_visible()
        check(phone, f"question-answered-{scheme}")
        phone.reload()
        expect(phone.get_by_role("heading", name="Nothing to answer here")).to_be_visible()
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

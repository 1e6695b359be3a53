"""Texts of tools, models and mounted servers: whatever they are, nothing of them runs, and the page stays usable."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from operating import Server
from web_browser import Open, overflow, shoot, web_server
from web_hostile import TEXTS

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("web"), target="web_hostile:talking") as serving:
        yield serving


def check(page: Page, name: str) -> None:
    """Nothing has run, nothing leads into a script, nothing is wider than a phone, and the page still answers."""
    assert page.evaluate("window.owned") is None
    assert page.locator("a[href^='javascript:' i], .prose script, .prose img").count() == 0
    page.set_viewport_size({"width": 360, "height": 740})
    assert overflow(page) <= 0
    shoot(page, f"hostile-{name}")
    page.set_viewport_size({"width": 1280, "height": 820})
    assert overflow(page) <= 0
    page.get_by_role("button", name="Colours").click()


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("what", TEXTS)
def test_the_chat_is_not_harmed_by_what_is_said_and_asked(page: Page, site: Server, what: str) -> None:
    given = json.dumps({"what": what})
    page.goto(site.url)
    say(page, what)
    expect(page.get_by_role("button", name="Regenerate")).to_be_attached()
    say(page, f"say {given}")
    expect(page.locator(".tool").last).to_have_attribute("data-status", "done")
    page.locator(".tool summary").last.click()
    check(page, f"chat-{what}")
    say(page, f"ask {given}")
    question = page.locator(".question")
    expect(question).to_be_visible()
    say(page, "What is this?")
    expect(page.get_by_role("button", name="Answer it")).to_be_in_viewport()
    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.get_by_label("Message")).to_be_in_viewport(ratio=1)
    check(page, f"chat-asks-{what}")
    page.get_by_role("button", name="Answer it").click()
    question.get_by_role("textbox").fill("Fine")
    question.get_by_role("button", name="Answer").click()
    expect(page.locator(".tool").last).to_have_attribute("data-status", "done")
    expect(page.locator(".answered-answer")).to_have_text("Fine")


@pytest.mark.parametrize("what", TEXTS)
def test_tools_and_calls_are_not_harmed_by_a_question(page: Page, site: Server, what: str) -> None:
    page.goto(f"{site.url}/tools?method=ask")
    page.get_by_label("What").fill(what)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".question")).to_be_visible()
    check(page, f"tools-{what}")
    page.goto(f"{site.url}/calls")
    call = page.locator(".call").first
    call.get_by_role("button", name="Answer").click()
    expect(call.locator(".question")).to_be_visible()
    check(page, f"calls-{what}")
    call.get_by_role("textbox").fill("Fine")
    call.locator(".question").get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Nothing is running or waiting")).to_be_visible()


@pytest.mark.parametrize(("method", "sign"), [("rows", "row 1"), ("columns", "c0_0"), ("picture", "8.0 MB")])
def test_results_that_are_too_large_are_shown_in_part(
    page: Page, site: Server, method: str, sign: str
) -> None:
    page.goto(f"{site.url}/tools?method={method}")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".run")).to_contain_text(sign)
    check(page, f"tools-{method}")
    page.goto(site.url)
    say(page, method)
    expect(page.locator(".transcript").get_by_text("It has answered.")).to_be_visible()
    page.locator(".tool summary").first.click()
    check(page, f"chat-{method}")


def test_a_deeply_nested_form_is_filled_in(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/tools?method=nests")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".question")).to_be_visible()
    check(page, "form")
    page.locator(".question").get_by_role("button", name="Answer").click()
    expect(page.locator(".run-status")).to_contain_text("done")


def test_what_a_mounted_server_offers_is_only_text(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/tools?method=behind.tool")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".run")).to_contain_text("window.owned=2")
    check(page, "mounted-tool")
    page.goto(f"{site.url}/resources")
    expect(page.locator(".method-link").first).to_be_visible()
    check(page, "mounted-list")
    for link in page.locator(".method-link").all():
        link.click()
        check(page, "mounted-one")


def test_a_title_is_only_text_and_stays_in_its_place(open_page: Open, site: Server) -> None:
    page = open_page()
    page.goto(site.url)
    say(page, TEXTS["evil"])
    expect(page.locator(".side-title").first).to_contain_text("window.owned=1")
    check(page, "title")

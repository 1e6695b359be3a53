"""The chat for everybody: axe-core finds nothing serious in what people meet there."""

import pytest
from playwright.sync_api import Page, expect

from operating import Server
from web_browser import AXE, Open, serious_findings

pytest_plugins = ("web_fixtures",)
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm ci in web/"),
]


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chat_can_be_used_by_everybody(open_page: Open, site: Server, scheme: str) -> None:
    page = open_page(scheme=scheme)
    page.goto(site.url)
    say(page, "eight")
    expect(page.locator(".question-one")).to_have_count(8)
    assert serious_findings(page) == []
    say(page, "Why?")
    expect(page.get_by_role("button", name="Ask the model first")).to_be_visible()
    assert serious_findings(page) == []
    page.get_by_role("button", name="Drop them and send").click()
    expect(page.locator(".answered > li")).to_have_count(8)
    say(page, "picture")
    expect(page.get_by_role("img", name="image.png")).to_be_visible()
    say(page, "markdown")
    expect(page.locator(".code-string")).to_be_visible()
    page.locator(".side-item").first.get_by_role("button", name="More about").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert serious_findings(page) == []
    page.keyboard.press("Escape")
    page.locator(".tool summary").first.click()
    page.get_by_role("button", name="Edit what you said").first.click()
    expect(page.get_by_label("What you say instead")).to_be_visible()
    assert serious_findings(page) == []

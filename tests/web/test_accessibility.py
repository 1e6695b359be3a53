"""Every page, by axe-core, light and dark, wide and narrow; targets for fingers; focus; and what is not found."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from operating import Server
from web_browser import AXE, Open, overflow, serious_findings, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)

PLACES = {
    "chat": ("/", "main"),
    "tools": ("/tools", ".method-link"),
    "form": ("/tools?method=forms.order", "form"),
    "results": ("/tools?method=results.all", ".item-data img"),
    "refused": ("/tools?method=runs.patient", ".item-error"),
    "question": ("/tools?method=forms.asked", ".question form"),
    "resources": ("/resources", ".method-link"),
    "resource": ("/resources?uri=notes://today", ".content"),
    "prompt": ("/resources?prompt=review", "form"),
    "calls": ("/calls", ".call"),
    "history": ("/calls", ".call-details"),
    "missing": ("/no/such/page", "h1"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("web"), target="tools_app:hub") as serving:
        serving.call("runs.patient")
        serving.call("forms.upload")
        yield serving


def show(page: Page, site: Server, name: str) -> None:
    path, ready = PLACES[name]
    page.goto(site.url + path)
    if name in ("results", "question", "refused"):
        page.get_by_role("button", name="Run", exact=True).click()
    if name == "refused":
        page.get_by_role("button", name="Cancel", exact=True).click()
    if name == "history":
        page.locator(".call", has_text="runs.patient").get_by_role("button", name="Details").first.click()
        page.locator(".call", has_text="runs.patient").get_by_role("button", name="Answer").first.click()
    expect(page.locator(ready).first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PLACES)
def test_no_serious_finding(open_page: Open, site: Server, name: str, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip("No axe-core: make web")
    page = open_page(scheme=scheme)
    show(page, site, name)
    shoot(page, f"page-{name}-{scheme}")
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0  # the bar stays
    page.set_viewport_size({"width": 360, "height": 740})
    assert overflow(page) <= 0
    shoot(page, f"narrow-page-{name}-{scheme}")
    assert serious_findings(page) == []


SMALL = """() => [...document.querySelectorAll("a, button, input, select, textarea, summary, label.choice")]
    .filter(e => e.checkVisibility({visibilityProperty: true}) && !e.closest(".prose, .sr-only, .skip, .content-link"))
    .filter(e => !["checkbox", "radio"].includes(e.type) && e.getBoundingClientRect().height > 1)
    .filter(e => e.getBoundingClientRect().height < 43.5 || e.getBoundingClientRect().width < 43.5)
    .map(e => `${e.outerHTML.slice(0, 120)} ${e.getBoundingClientRect().width}x${e.getBoundingClientRect().height}`)"""


@pytest.mark.parametrize("name", PLACES)
def test_what_is_touched_on_a_phone_is_large_enough(open_page: Open, site: Server, name: str) -> None:
    page = open_page(width=360, height=740, has_touch=True, is_mobile=True)
    show(page, site, name)
    found = page.evaluate(SMALL)
    assert not found, "\n".join(found)


def test_the_focus_is_seen_wherever_the_keyboard_goes(page: Page, site: Server) -> None:
    show(page, site, "form")
    for _ in range(40):
        page.keyboard.press("Tab")
        seen = page.evaluate(
            """() => {
                const e = document.activeElement;
                if (e === document.body) return true;
                const shown = [e, e.closest(".choice")].filter(Boolean).map(one => getComputedStyle(one));
                return shown.some(s => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2);
            }"""
        )
        assert seen, page.evaluate("document.activeElement.outerHTML")


def test_a_browser_is_shown_a_page_where_there_is_nothing(page: Page, site: Server) -> None:
    response = page.goto(f"{site.url}/no/such/page?x=1")
    assert response is not None
    assert response.status == 404
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    expect(page).to_have_title(re.compile(r"^(\(\d+\) )?Not found · midcall$"))  # questions wait meanwhile
    back = page.get_by_role("link", name="Go to the chat")
    assert (back.bounding_box() or {})["height"] < 60
    back.click()
    expect(page).to_have_url(f"{site.url}/")
    plain = site.get("/no/such/page")
    assert (plain.status, plain.text) == (404, "Not Found")
    assert site.post("/no/such/page", {}, accept="text/html").text == "Not Found"
    assert site.get("/assets/nothing.js", accept="text/html").text == "Not found\n"
    page.goto(f"{site.url}/c/%E0%A4%A")  # no text in any encoding
    expect(page.locator("main")).to_be_visible()

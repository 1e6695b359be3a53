"""The web client for everybody: axe-core on every page in both colour schemes, the key of a server, the theme."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from driving import LIMIT
from operating import ADA, KEYS, Server
from peers import environment, free_port, wait_for
from web_browser import AXE, Open, serious_findings, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)

BOOK = "Book a flight from New York to Los Angeles"


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_nothing_serious_on_any_page(
    open_page: Open, site: Server, scheme: str, width: int
) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make web, which needs Node.js")
    page = open_page(width=width, scheme=scheme)
    look = f"{scheme}-{width}"

    def check(name: str) -> None:
        shoot(page, f"axe-{look}-{name}")
        assert serious_findings(page) == []

    page.goto(site.url)
    expect(page.locator(".suggestions")).to_be_visible()
    check("welcome")
    say(page, BOOK)
    expect(page.locator(".flight")).to_have_count(3)
    check("flights")
    page.get_by_role("button", name=re.compile("^Select ")).first.click()
    expect(page.get_by_role("grid")).to_be_visible()
    page.get_by_role("button", name=re.compile(r"^Seat .*, available$")).first.click()
    check("seats")
    page.get_by_role("button", name=re.compile("^Take seat")).click()
    expect(page.get_by_text("Your flight is booked.")).to_be_visible()
    page.locator(".tool summary").first.click()
    check("booked")
    say(page, "markdown")
    expect(page.get_by_role("button", name="Copy code")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    check("markdown")
    say(page, "two")
    expect(page.locator(".question")).to_have_count(2)  # of two tools: the two of one are one form
    check("questions")
    page.goto(f"{site.url}/tools")
    expect(page.locator(".method-link").first).to_be_visible()
    check("tools")
    page.goto(f"{site.url}/tools?method=lab.parcel")
    page.get_by_role("button", name="Add to Tags").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".field-fault").first).to_be_visible()
    check("form")
    page.goto(f"{site.url}/tools?method=lab.work")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("step 1 done")).to_be_visible()
    check("run")
    page.goto(f"{site.url}/calls")
    expect(page.locator(".call").first).to_be_visible()
    check("calls")
    page.get_by_role("button", name=re.compile("^Abort")).first.click()
    check("dialog")


def test_the_colours_follow_the_system_until_the_person_chooses(open_page: Open, site: Server) -> None:
    page = open_page(scheme="dark")
    page.goto(site.url)
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.get_by_role("button", name=re.compile("^Colours: as the system")).click()
    light = page.evaluate(colour)
    assert light != dark
    page.reload()
    assert page.evaluate(colour) == light
    page.get_by_role("button", name=re.compile("^Colours: light")).click()
    assert page.evaluate(colour) == dark


# --- a server that asks who calls -------------------------------------------------------------


def test_a_key_is_asked_for_once_and_kept_in_the_tab(tmp_path: Path, open_page: Open) -> None:
    with web_server(tmp_path, MIDCALL_TOKENS=KEYS) as site:
        page = open_page()
        page.goto(site.url)
        dialog = page.get_by_role("dialog", name="A key is needed")
        expect(dialog).to_be_visible()
        shoot(page, "key")
        page.get_by_label("Key", exact=True).fill("wrong-0123456789abcdef")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("This key is not known")
        page.get_by_label("Key", exact=True).fill(ADA)
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
        say(page, BOOK)
        expect(page.locator(".flight")).to_have_count(3)
        page.goto(f"{site.url}/tools?method=echo.once")  # the WebSocket takes the same key
        page.get_by_label("Message").fill("hello")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(".run")).to_contain_text('"hello"')
        page.goto(f"{site.url}/calls")
        expect(page.locator(".call", has_text="flights.book_flight")).to_be_visible()
        other = open_page()  # another person, who sees nothing of it
        other.goto(f"{site.url}/tools")
        other.get_by_label("Key", exact=True).fill("admin-0123456789abcdef")
        other.keyboard.press("Enter")
        expect(other.locator(".method-link").first).to_be_visible()
        other.get_by_role("link", name="Calls").click()
        expect(other.get_by_text("Nothing is running or waiting")).to_be_visible()
        other.get_by_role("link", name="Chat", exact=True).click()
        expect(other.get_by_text("What you say is kept here.")).to_be_visible()


def test_a_server_without_a_chat_leads_to_its_tools(tmp_path: Path, page: Page) -> None:
    with web_server(tmp_path, target="midcall.activations:hub") as site:
        page.goto(site.url)
        page.get_by_role("link", name="Look at the tools").click()
        expect(page.get_by_role("link", name=re.compile("echo.once"))).to_be_visible()


def test_the_page_works_below_a_path(page: Page) -> None:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "web_mounted:app",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    mounted = subprocess.Popen(command, env=environment())
    try:
        wait_for(f"http://127.0.0.1:{port}/deep/inside/health")
        page.goto(f"http://127.0.0.1:{port}/deep/inside/")
        page.get_by_role("button", name="Book a flight from New York to Los Angeles").click()
        expect(page.locator(".flight")).to_have_count(3)
        expect(page).to_have_url(re.compile("/deep/inside/c/"))
        page.reload()
        expect(page.locator(".flight")).to_have_count(3)
        page.get_by_role("link", name="Tools").click()
        expect(page.get_by_role("link", name=re.compile("lab.parcel"))).to_be_visible()
        page.reload()
        expect(page.get_by_role("link", name=re.compile("lab.parcel"))).to_be_visible()
    finally:
        mounted.terminate()
        mounted.wait(timeout=LIMIT)

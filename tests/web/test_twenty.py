"""The twenty tools of the examples on the page: the values that every other way gives, and what is shown of content."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from operating import Server
from web_browser import Open, overflow, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)

TWENTY: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "examples" / "twenty.json").read_text()
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("web"), target="twenty_app:hub") as serving:
        yield serving


def run(page: Page, site: Server, tool: str, arguments: dict[str, Any]) -> Locator:
    """Run a tool with these arguments to its end."""
    page.goto(f"{site.url}/tools?method={tool}")
    if arguments:
        page.get_by_role("button", name="Edit as JSON").click()
        page.get_by_label("JSON", exact=True).fill(json.dumps(arguments))
    page.get_by_role("button", name="Run", exact=True).click()
    if tool == "delete":
        page.get_by_role("button", name="Yes").click()
    if tool == "introduce":
        asked = page.locator(".question")
        asked.get_by_label("Name").fill("Ada")
        asked.get_by_label("tea").check()
        asked.get_by_label("Born").fill("1815-12-10")
        asked.get_by_label("Street").fill("Main")
        asked.get_by_role("button", name="Answer").click()
    ended = page.locator(".run")
    expect(ended.locator(".run-status")).to_contain_text(" after ")
    return ended


def seen(ended: Locator, tool: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """What a run shows, as `twenty.json` has it."""
    if "error" in wanted:
        return {"error": ended.locator(".item-error").inner_text().removesuffix("tool_error").strip()}
    texts = ended.locator(".items code").all_inner_texts()
    if ended.get_by_text("(no output)").count():
        return {"content": ["(no output)"]} if "content" in wanted else {"value": None}
    if tool in ("dot", "beep"):
        kind, encoded = str(ended.locator("img, audio").get_attribute("src")).split(";base64,")
        mime_type = kind.removeprefix("data:")
        return {"content": [[mime_type.split("/")[0], mime_type, encoded]]}
    if tool == "report":
        expect(ended).to_contain_text("report://May.csv")
        return {"content": [texts[0], ["resource", "text/csv", texts[1]]]}
    if tool == "spell":
        return {"value": "".join(texts)}
    values = texts if isinstance(wanted["value"], str) else [json.loads(text) for text in texts]
    return {"value": values if tool == "squares" else values[0]}


def test_the_tools_page_shows_these_values(page: Page, site: Server) -> None:
    for one in TWENTY:
        tool, gives = one["tool"], one["gives"]
        ended = run(page, site, tool, one["arguments"])
        assert seen(ended, tool, gives) == gives, tool


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_content_is_seen_in_the_chat_and_in_tools(
    open_page: Open, site: Server, width: int, scheme: str
) -> None:
    page = open_page(width=width, scheme=scheme)
    page.goto(site.url)
    for number, said in enumerate(("dot", "beep", 'report {"title": "May"}'), 1):
        page.get_by_label("Message").fill(said)
        page.keyboard.press("Enter")
        expect(page.locator(".prose")).to_have_count(number)
        expect(page.get_by_label("Message")).to_be_enabled()
        if number == 1:
            is_seen(page.get_by_role("img", name="image.png"))
            shoot(page, f"twenty-picture-{width}-{scheme}")
    can_be_played(page)
    expect(page.get_by_role("button", name="Save May.csv")).to_be_visible()
    assert overflow(page) <= 0
    shoot(page, f"twenty-chat-{width}-{scheme}")
    for tool, arguments in (("dot", {}), ("beep", {}), ("report", {"title": "May"})):
        ended = run(page, site, tool, arguments)
        if tool == "dot":
            is_seen(ended.locator("img"))
        if tool == "beep":
            can_be_played(page)
        assert overflow(page) <= 0
        shoot(page, f"twenty-{tool}-{width}-{scheme}")


def is_seen(picture: Locator) -> None:
    expect(picture).to_be_visible()
    assert picture.evaluate("e => e.decode().then(() => e.width)") == 64


def can_be_played(page: Page) -> None:
    page.wait_for_function("() => document.querySelector('audio')?.readyState > 0")

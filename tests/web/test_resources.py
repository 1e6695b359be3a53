"""The page Resources: lists, reading, subscriptions, templates and prompts with completion."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from operating import Server
from web_browser import Open, overflow, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("web"), target="tools_app:hub") as serving:
        yield serving


def choose(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Resources and prompts").get_by_role(
        "link", name=re.compile(name)
    ).click()
    expect(page.locator("#resource-title")).to_be_visible()


def test_resources_and_prompts_are_listed_found_and_read(page: Page, site: Server) -> None:
    page.goto(site.url)
    page.get_by_role("link", name="Resources").click()
    listed = page.get_by_role("navigation", name="Resources and prompts")
    expect(listed.get_by_role("heading")).to_have_text(["Resources", "Templates", "Prompts"])
    page.get_by_label("Search resources").fill("picture")
    expect(listed.get_by_role("link")).to_have_count(1)
    choose(page, "picture")
    expect(page.locator(".content img")).to_be_visible()
    page.get_by_label("Search resources").fill("")
    choose(page, "Today")
    expect(page.get_by_role("region", name="Contents")).to_contain_text("Wash")
    shoot(page, "resources-read")
    page.reload()
    expect(page.get_by_role("region", name="Contents")).to_contain_text("Wash")


def test_a_subscription_shows_changes_as_they_come_also_after_a_restart(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/resources?uri=notes://today")
    contents = page.get_by_role("region", name="Contents")
    expect(contents).to_contain_text("Wash")
    subscribe = page.get_by_role("button", name="Subscribe")
    subscribe.click()
    expect(page.get_by_text("Waiting for changes")).to_be_visible()
    expect(subscribe).to_have_attribute("aria-pressed", "true")
    site.call("notes.write", text="Iron")
    expect(contents).to_contain_text("Iron")
    expect(page.get_by_text("Changed once")).to_be_visible()
    site.kill()
    site.start()
    expect(contents).to_contain_text("Wash")  # the server begins anew
    site.call("notes.write", text="Fold")
    expect(contents).to_contain_text("Fold")
    subscribe.click()
    expect(subscribe).to_have_attribute("aria-pressed", "false")


def test_a_template_is_filled_in_with_suggestions(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/resources")
    choose(page, "Some day")
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.locator(".field-fault")).to_have_text("Required")
    day = page.get_by_label("Day")
    day.fill("t")
    expect(page.locator("datalist option")).to_have_count(1)
    assert page.locator("datalist option").get_attribute("value") == "tuesday"
    day.fill("tuesday")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Contents")).to_contain_text("Cook")
    day.fill("wednesday")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Contents")).to_contain_text("<script>alert(1)</script>")
    day.fill("no such day")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()


def test_a_prompt_is_got_with_suggestions(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/resources?prompt=review")
    page.get_by_role("button", name="Get").click()
    expect(page.locator(".field-fault")).to_have_count(1)
    page.get_by_label("Title").fill("Dune")
    tone = page.get_by_label("Tone")
    tone.fill("h")
    expect(page.locator("datalist option")).to_have_count(2)
    tone.fill("honest")
    page.get_by_role("button", name="Get").click()
    expect(page.get_by_role("region", name="Messages")).to_contain_text("Write a honest review of Dune")
    shoot(page, "resources-prompt")


def test_what_is_not_there_is_told(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/resources?prompt=nothing")
    expect(page.get_by_text("There is no nothing here")).to_be_visible()
    page.goto(f"{site.url}/resources?uri=javascript:alert(1)")
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("a[href^=javascript]").count() == 0


def test_long_lists_come_page_by_page(page: Page, tmp_path_factory: pytest.TempPathFactory) -> None:
    with web_server(tmp_path_factory.mktemp("many"), target="many_resources_app:hub") as server:
        page.goto(f"{server.url}/resources")
        links = page.get_by_role("navigation", name="Resources and prompts").get_by_role("link")
        expect(links.first).to_be_visible()
        before = links.count()
        page.get_by_role("button", name="Show more").click()
        expect(links.nth(before)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_on_a_phone(open_page: Open, site: Server, scheme: str) -> None:
    phone = open_page(width=360, height=740, scheme=scheme, has_touch=True, is_mobile=True)
    phone.goto(f"{site.url}/resources")
    expect(phone.get_by_role("link", name=re.compile("Today"))).to_be_visible()
    assert overflow(phone) <= 0
    shoot(phone, f"narrow-resources-{scheme}")
    choose(phone, "Today")
    expect(phone.get_by_role("region", name="Contents")).to_be_visible()
    assert overflow(phone) <= 0
    phone.get_by_role("link", name="All resources and prompts").tap()
    expect(phone.get_by_label("Search resources")).to_be_visible()

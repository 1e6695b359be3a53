"""Runs of the page Tools outlive it: a visit to another page, a reload, and a restart of the server."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from operating import Server
from web_browser import Open, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("web"), target="tools_app:hub") as serving:
        yield serving


def start(page: Page, site: Server, name: str) -> None:
    page.goto(f"{site.url}/tools?method={name}")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".run")).to_have_count(1)


def stop(page: Page) -> None:
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".run-status")).to_contain_text("cancelled")


def test_a_run_is_still_there_after_a_visit_to_another_page_and_after_a_reload(
    page: Page, site: Server
) -> None:
    start(page, site, "runs.slow")
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_text("Go on after step 2?").first).to_be_visible()
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(page.locator(".run")).to_have_count(0)
    page.get_by_role("link", name="Tools", exact=True).click()
    page.get_by_role("link", name=re.compile("runs.slow")).click()
    expect(page.get_by_text("step 1 done")).to_be_visible()
    expect(page.get_by_text("answered")).to_be_visible()
    page.reload()
    expect(page.get_by_text("step 2 done")).to_be_visible()
    expect(page.get_by_text("step 1 done")).to_have_count(1)
    page.get_by_role("button", name="Yes").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".run-status")).to_contain_text("done after")
    page.reload()
    expect(page.locator(".run-status")).to_contain_text("done after")
    expect(page.get_by_text("step 3 done")).to_be_visible()
    page.get_by_role("button", name="Remove run").click()
    expect(page.locator(".run")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", name="runs.slow")).to_be_visible()
    expect(page.locator(".run")).to_have_count(0)


def test_who_comes_back_to_tools_finds_the_method_that_was_open(page: Page, site: Server) -> None:
    start(page, site, "runs.slow")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    page.get_by_role("link", name="Chat", exact=True).click()
    page.get_by_role("link", name="Tools", exact=True).click()
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    page.get_by_role("link", name="Tools", exact=True).click()
    expect(page.get_by_text("Choose a method")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("runs.slow"))).to_contain_text("asks you")
    page.get_by_role("link", name=re.compile("runs.slow")).click()
    stop(page)


def test_a_run_survives_a_restart_of_the_server_and_repeats_no_step(page: Page, site: Server) -> None:
    before = len(site.effects())
    start(page, site, "runs.slow")
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_text("Go on after step 2?").first).to_be_visible()
    site.kill()
    expect(page.locator(".run-status")).to_contain_text("Reconnecting")
    shoot(page, "tools-reconnecting")
    site.start()
    expect(page.locator(".question").get_by_text("Go on after step 2?")).to_be_visible()
    page.get_by_role("button", name="Yes").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".run-status")).to_contain_text("done after")
    expect(page.locator(".items").get_by_text(re.compile(r"step \d done"))).to_have_count(3)
    assert site.effects()[before:] == ["step 1", "step 2", "step 3"]


def test_lists_that_could_not_be_read_are_read_when_the_server_is_there(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/resources")
    page.get_by_role("link", name="Tools", exact=True).click()
    expect(page.get_by_role("link", name=re.compile("runs.slow"))).to_be_visible()
    page.get_by_role("link", name="Chat", exact=True).click()
    site.kill()
    for name in ("Resources", "Tools"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    site.start()
    expect(page.get_by_role("link", name=re.compile("runs.slow"))).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_run_that_never_asks_goes_on_behind_a_reload(page: Page, site: Server) -> None:
    start(page, site, "runs.long")
    expect(page.get_by_text("line 2", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_text("line 0", exact=True)).to_be_visible()
    expect(page.get_by_text("line 9", exact=True)).to_be_visible()
    stop(page)
    page.reload()
    expect(page.locator(".run-status")).to_contain_text("cancelled")


def test_a_person_has_time_unless_the_tool_sets_a_limit_which_counts_down(page: Page, site: Server) -> None:
    start(page, site, "runs.patient")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    expect(page.get_by_role("timer")).to_have_count(0)
    stop(page)
    start_limited(page, site)
    timer = page.get_by_role("timer")
    expect(timer).to_have_text(re.compile(r"9 min \d+ s left"))
    first = timer.inner_text()
    expect(timer).not_to_have_text(first)
    shoot(page, "tools-countdown")
    page.reload()  # what is left is still counted from the moment of the question
    expect(timer).to_have_text(re.compile(r"9 min \d+ s left"))
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".item-data")).to_contain_text("Said True")


def start_limited(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/tools?method=runs.limited")
    page.get_by_role("button", name="Run", exact=True).click()


def test_a_question_that_is_too_late_is_withdrawn(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/tools?method=runs.limited")
    page.get_by_label("Seconds").fill("1")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("The question is withdrawn")).to_be_visible()
    expect(page.locator(".question")).to_have_count(0)
    expect(page.locator(".run-status")).to_contain_text("failed")


def test_two_windows_follow_the_same_run_and_one_answers(open_page: Open, site: Server) -> None:
    page = open_page()
    start(page, site, "runs.slow")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    kept = page.evaluate("sessionStorage.getItem('midcall.runs')")
    other = page.context.new_page()
    other.goto(f"{site.url}/health")
    other.evaluate("kept => sessionStorage.setItem('midcall.runs', kept)", kept)
    other.goto(f"{site.url}/tools?method=runs.slow")
    other.get_by_role("button", name="Yes").click()
    expect(page.get_by_text("answered by somebody else")).to_be_visible()
    expect(page.locator(".question").get_by_text("Go on after step 2?")).to_be_visible()
    stop(page)
    expect(other.locator(".run-status")).to_contain_text("failed")


@pytest.mark.parametrize(
    "kept",
    ["nonsense", '{"a": 1}', '[{"id": "x"}, null, 3]', '[{"id":1,"method":"m","call":"gone","replies":[]}]'],
)
def test_what_is_kept_in_the_tab_may_be_anything(page: Page, site: Server, kept: str) -> None:
    page.goto(f"{site.url}/health")
    page.evaluate("kept => sessionStorage.setItem('midcall.runs', kept)", kept)
    page.goto(f"{site.url}/tools?method=runs.patient")
    expect(page.get_by_role("heading", name="runs.patient")).to_be_visible()


def test_a_question_with_script_in_its_text_is_only_text(page: Page, site: Server) -> None:
    dialogs = list[str]()
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    requests = list[str]()
    page.on("request", lambda request: requests.append(request.url))
    start(page, site, "runs.hostile")
    expect(page.locator(".question p").get_by_text("<script>alert(1)</script>")).to_be_visible()
    assert page.locator(".question a[href^=javascript]").count() == 0
    page.get_by_role("link", name="Calls").click()
    expect(page.locator(".call").get_by_text("<script>alert(1)</script>").first).to_be_visible()
    assert dialogs == []
    assert not any("track.png" in url for url in requests)

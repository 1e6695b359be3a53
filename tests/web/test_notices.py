"""The tab tells of questions that wait: in its title and, once that was clicked on, by a notification."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from operating import Server
from web_browser import Open, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)

RECORDING = """
    window.told = [];
    window.asked = 0;
    class Told {
        static permission = localStorage.getItem("granted") ? "granted" : "default";
        static async requestPermission() {
            window.asked += 1;
            if (window.answer === "denied") return (Told.permission = "denied");
            localStorage.setItem("granted", "yes");
            return (Told.permission = "granted");
        }
        constructor(title, options) { window.told.push(`${title}: ${options.body}`); window.last = this; }
        close() {}
    }
    window.Notification = Told;
    document.hasFocus = () => false;
"""


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("web"), target="people_app:hub") as serving:
        yield serving


def recorded(page: Page) -> Page:
    """A page whose browser writes down what it is to notify of."""
    page.add_init_script(RECORDING)
    return page


def test_the_title_counts_the_questions_that_wait(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/tools")
    expect(page).to_have_title("Tools · midcall")
    site.call("people.own")
    expect(page).to_have_title("(1) Tools · midcall")
    page.get_by_role("link", name="Calls").click()
    expect(page).to_have_title("(1) Calls · midcall")
    page.get_by_role("button", name="Answer: Your name?").click()
    page.get_by_role("textbox", name="Your name?").fill("Ada")
    page.locator("form").get_by_role("button", name="Answer").click()
    expect(page).to_have_title("Calls · midcall")


def test_a_notification_comes_only_after_a_click_and_that_is_remembered(page: Page, site: Server) -> None:
    recorded(page).goto(f"{site.url}/tools")
    bell = page.get_by_role("button", name="Notify me of questions")
    expect(bell).to_have_attribute("aria-pressed", "false")
    site.call("people.own")
    expect(page).to_have_title("(1) Tools · midcall")
    assert page.evaluate("[window.asked, window.told]") == [0, []]
    bell.click()
    expect(bell).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("[window.asked, window.told]") == [1, []]  # what waited before is not told of
    site.call("people.both")
    page.wait_for_function("window.told.length === 2")
    assert sorted(page.evaluate("window.told")) == [
        "A question is waiting: people.both: First?",
        "A question is waiting: people.both: Second?",
    ]
    page.evaluate("window.last.onclick()")
    expect(page.get_by_role("heading", name="Calls")).to_be_visible()
    page.reload()
    expect(bell).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_title("(3) Calls · midcall")
    assert page.evaluate("[window.asked, window.told]") == [0, []]
    bell.click()
    page.reload()
    expect(bell).to_have_attribute("aria-pressed", "false")


def test_who_does_not_allow_it_is_told_so(page: Page, site: Server) -> None:
    recorded(page).goto(f"{site.url}/tools")
    page.evaluate("window.answer = 'denied'")
    bell = page.get_by_role("button", name="Notify me of questions")
    bell.click()
    expect(page.get_by_test_id("announcer")).to_contain_text("does not allow notifications")
    expect(bell).to_have_attribute("aria-pressed", "false")


def test_nobody_is_asked_for_a_key_by_it(open_page: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("keys")
    with web_server(folder, target="people_app:hub", MIDCALL_TOKENS="ada=ada-0123456789abcdef") as server:
        page = open_page()
        with page.expect_response(lambda response: "status=waiting" in response.url) as came:
            page.goto(f"{server.url}/nothing/here")
        assert came.value.status == 401
        expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
        expect(page.get_by_role("dialog")).to_have_count(0)

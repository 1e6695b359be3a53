"""The chat in a real browser: a booking from the first word to the ticket, and all that can come between."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from operating import Server
from web_browser import Open, focused, overflow, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)

BOOK = "Book a flight from New York to Los Angeles"


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, which it may kill."""
    with web_server(tmp_path) as serving:
        yield serving


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def said(page: Page, text: str | re.Pattern[str]) -> Locator:
    """What is in the conversation with this text."""
    return page.locator(".transcript").get_by_text(text)


def begin(page: Page, site: Server, text: str) -> None:
    page.goto(site.url)
    say(page, text)


def pick_flight(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Select ")).first.click()


def pick_seat(page: Page) -> None:
    seat = page.get_by_role("button", name=re.compile(r"^Seat .*, available$")).first
    seat.click()
    page.get_by_role("button", name=re.compile("^Take seat")).click()


def expect_booked(page: Page) -> None:
    expect(said(page, "Your flight is booked.")).to_be_visible()
    expect(page.locator(".tool").last).to_have_attribute("data-status", "done")


# --- the booking ------------------------------------------------------------------------------


def test_a_flight_is_booked_from_the_first_word_to_the_ticket(page: Page, site: Server) -> None:
    page.goto(site.url)
    expect(page.get_by_text("Scripted model")).to_be_visible()
    shoot(page, "chat-welcome")
    page.get_by_role("button", name=BOOK).click()
    expect(page.locator(".flight")).to_have_count(3)
    expect(page.locator(".flight svg").first).to_be_visible()
    expect(page).to_have_url(re.compile(r"/c/[0-9a-f-]{36}$"))
    shoot(page, "chat-flights")
    pick_flight(page)
    expect(page.get_by_role("grid")).to_be_visible()
    expect(page.locator(".seat[data-state=taken]:not(.seat-sample)").first).to_be_visible()
    shoot(page, "chat-seats")
    pick_seat(page)
    expect_booked(page)
    expect(said(page, re.compile("Ticket TK[0-9A-F]{8}"))).to_be_visible()
    shoot(page, "chat-booked")
    page.locator(".tool summary").first.click()
    expect(page.get_by_text("Ticket number")).to_be_visible()
    expect(page.locator(".tool").get_by_role("region", name="arguments")).to_contain_text("Los Angeles")


@pytest.mark.parametrize("button", ["Decline", "Cancel"])
@pytest.mark.parametrize("step", ["flight", "seat"])
def test_a_booking_is_refused_at_each_step(page: Page, site: Server, step: str, button: str) -> None:
    begin(page, site, BOOK)
    expect(page.locator(".flight")).to_have_count(3)
    if step == "seat":
        pick_flight(page)
        expect(page.get_by_role("grid")).to_be_visible()
    page.get_by_role("button", name=button, exact=True).click()
    expect(said(page, "That did not work out").or_(said(page, "The tool said"))).to_be_visible()
    expect(page.locator(".tool")).to_have_attribute("data-status", "refused")
    expect(page.locator(".question")).to_have_count(0)
    expect(page.locator(".answered > li").last).to_contain_text(f"You {button.lower().rstrip('e')}")
    say(page, BOOK)
    expect(page.locator(".flight")).to_have_count(3)


def test_a_reload_in_the_middle_of_a_question_shows_it_again(page: Page, site: Server) -> None:
    begin(page, site, BOOK)
    expect(page.locator(".flight")).to_have_count(3)
    page.reload()
    expect(page.locator(".bubble")).to_have_text(BOOK)
    expect(page.locator(".flight")).to_have_count(3)
    pick_flight(page)
    expect(page.get_by_role("grid")).to_be_visible()
    page.reload()
    pick_seat(page)
    expect_booked(page)
    page.reload()
    expect_booked(page)


def test_another_browser_finds_the_open_question(open_page: Open, site: Server) -> None:
    first, second = open_page(), open_page()
    begin(first, site, BOOK)
    expect(first.locator(".flight")).to_have_count(3)
    second.goto(site.url)
    item = second.locator(".side-item", has_text=BOOK).first
    expect(item).to_contain_text("asks")
    item.get_by_role("link").click()
    pick_flight(second)
    expect(second.get_by_role("grid")).to_be_visible()
    expect(first.get_by_role("grid")).to_be_visible()  # without a reload
    pick_seat(first)
    expect_booked(first)
    expect_booked(second)


def test_a_booking_outlives_the_server(page: Page, own_site: Server) -> None:
    begin(page, own_site, BOOK)
    expect(page.locator(".flight")).to_have_count(3)
    own_site.kill()
    own_site.start()
    pick_flight(page)
    expect(page.get_by_role("grid")).to_be_visible()
    own_site.kill()
    page.get_by_role("button", name=re.compile(r"^Seat .*, available$")).first.click()
    page.get_by_role("button", name=re.compile("^Take seat")).click()
    expect(page.get_by_text("Connection lost. Reconnecting")).to_be_visible()
    shoot(page, "chat-line-lost")
    own_site.start()
    expect(page.get_by_text("The server cannot be reached")).to_be_visible()  # the answer did not arrive
    page.get_by_role("button", name=re.compile("^Take seat")).click()
    expect_booked(page)


def test_two_tabs_stay_usable(browser: Browser, open_page: Open, site: Server) -> None:
    first = open_page()
    second = first.context.new_page()
    begin(first, site, "two")
    expect(first.locator(".question")).to_have_count(2)
    second.goto(first.url)
    expect(second.locator(".question")).to_have_count(2)
    second.get_by_role("textbox", name="First name?").fill("Ada")
    second.get_by_role("textbox", name="Last name?").fill("Lovelace")
    second.get_by_role("button", name="Answer all").click()
    for page in (first, second):
        expect(page.locator(".tool").first).to_have_attribute("data-status", "done")
        expect(page.get_by_role("textbox", name="Project name:")).to_be_visible()
    second.get_by_role("button", name="Cancel", exact=True).click()
    for page in (first, second):
        expect(said(page, "The tool said")).to_be_visible()


def test_several_tools_ask_at_once_each_where_it_stands(page: Page, site: Server) -> None:
    begin(page, site, "two")
    tools = page.locator(".tool")
    expect(tools).to_have_count(2)
    expect(tools.nth(0).locator(".question")).to_have_count(1)
    expect(tools.nth(0).locator(".question-one")).to_have_count(2)
    expect(tools.nth(1).locator(".question")).to_have_count(1)
    shoot(page, "chat-several")
    tools.nth(1).get_by_role("textbox").fill("demo")
    tools.nth(1).get_by_role("button", name="Answer").click()
    expect(tools.nth(1).get_by_label(re.compile("Minimal"))).to_be_visible()
    # Answers that are given while a turn runs wait for its end.
    tools.nth(0).get_by_role("textbox", name="First name?").fill("Ada")
    tools.nth(0).get_by_role("textbox", name="Last name?").fill("Lovelace")
    tools.nth(0).get_by_role("button", name="Answer all").click()
    expect(tools.nth(0)).to_have_attribute("data-status", "done")
    tools.nth(1).get_by_role("button", name="Decline").click()
    expect(said(page, "The tool said")).to_be_visible()


# --- what a model says ------------------------------------------------------------------------


def test_markdown_is_shown_and_cannot_harm(page: Page, site: Server) -> None:
    begin(page, site, "markdown")
    prose = page.locator(".prose")
    expect(prose.get_by_role("heading", name="A list")).to_be_visible()
    expect(prose.get_by_role("cell", name="Oslo")).to_be_visible()
    expect(prose.get_by_role("link", name="a link")).to_have_attribute("rel", re.compile("noopener"))
    expect(prose.locator("img")).to_have_count(1)  # the one that is in the text itself
    expect(prose.locator("img")).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    expect(prose.get_by_role("link", name="elsewhere")).to_be_visible()
    expect(prose.locator("blockquote")).to_contain_text("Somebody else said")
    expect(prose.locator(".code-string")).to_have_text('"hello"')
    expect(prose.locator(".code-comment")).to_have_text("# a comment")
    expect(prose).to_contain_text("<img src=x onerror=alert(1)>")
    expect(prose.get_by_role("button", name="Copy code")).to_be_visible()
    shoot(page, "chat-markdown")


def test_thoughts_are_folded_away(page: Page, site: Server) -> None:
    begin(page, site, "think")
    expect(said(page, "I have thought.")).to_be_visible()
    expect(said(page, "First this, then that.")).not_to_be_visible()
    said(page, "Thoughts").click()
    expect(said(page, "First this, then that.")).to_be_visible()


def test_progress_is_shown_while_a_tool_works(page: Page, site: Server) -> None:
    begin(page, site, "work")
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator(".progress-message")).to_contain_text("Step")
    expect(said(page, "The tool said: step 1 done")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_the_turn_is_stopped(page: Page, site: Server) -> None:
    begin(page, site, "slow")
    expect(said(page, "word3 ")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(said(page, "Stopped.")).to_be_visible()
    expect(said(page, "word60")).to_have_count(0)
    expect(page.get_by_label("Message")).to_be_enabled()
    say(page, "think")
    expect(said(page, "I have thought.")).to_be_visible()


def test_a_turn_that_failed_is_gone_on_with(page: Page, own_site: Server) -> None:
    begin(page, own_site, "stumble")
    failure = page.get_by_role("alert").filter(has_text="The model has too much to do")
    expect(failure).to_be_visible()
    shoot(page, "chat-error")
    failure.get_by_role("button", name="Retry").click()
    expect(page.locator(".prose")).to_have_text("Now it works.")
    expect(page.locator(".bubble")).to_have_count(1)


def test_a_turn_that_failed_is_still_seen_when_the_page_is_reloaded(page: Page, own_site: Server) -> None:
    begin(page, own_site, "stumble")
    failure = page.get_by_role("alert").filter(has_text="The model has too much to do")
    expect(failure).to_be_visible()
    page.reload()
    expect(failure).to_be_visible()
    expect(failure).to_have_count(1)
    failure.get_by_role("button", name="Retry").click()
    expect(page.locator(".prose")).to_have_text("Now it works.")
    expect(failure).to_have_count(0)


def test_a_tool_that_fails_is_told(page: Page, site: Server) -> None:
    begin(page, site, "broken")
    tool = page.locator(".tool")
    expect(tool).to_have_attribute("data-status", "failed")
    tool.locator("summary").first.click()
    expect(tool.locator(".tool-error")).to_contain_text("It is broken")


def test_a_component_of_another_author_asks(page: Page, site: Server) -> None:
    begin(page, site, "visit")
    expect(page.get_by_role("group", name="How was your visit?")).to_be_visible()
    page.get_by_role("button", name="4 stars").click()
    expect(said(page, "The tool said: Thank you for 4 stars")).to_be_visible()


def test_a_method_without_a_plugin_asks_with_forms(page: Page, site: Server) -> None:
    begin(page, site, "wizard")
    expect(page.get_by_role("textbox", name="Project name:")).to_be_visible()
    page.keyboard.type("demo")
    page.keyboard.press("Enter")
    page.get_by_label(re.compile("Minimal")).check()
    page.get_by_role("button", name="Answer").click()
    expect(said(page, "Create 'demo' with 'minimal'?")).to_be_visible()
    shoot(page, "chat-wizard")
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".tool")).to_have_attribute("data-status", "done")


# --- the line ---------------------------------------------------------------------------------


def words(page: Page) -> list[str]:
    return page.locator(".prose").last.inner_text().split()


def test_a_dropped_line_loses_and_repeats_nothing(page: Page, site: Server) -> None:
    begin(page, site, "slow")
    expect(said(page, "word3 ")).to_be_visible()
    for _ in range(3):
        page.context.set_offline(True)
        page.wait_for_timeout(300)
        page.context.set_offline(False)
        page.wait_for_timeout(300)
    expect(said(page, "word60")).to_be_visible()
    assert words(page) == [f"word{n}" for n in range(1, 61)]


def test_a_reload_in_the_middle_of_an_answer_loses_and_repeats_nothing(page: Page, site: Server) -> None:
    begin(page, site, "slow")
    expect(said(page, "word3 ")).to_be_visible()
    page.reload()
    expect(said(page, "word60")).to_be_visible()
    assert words(page) == [f"word{n}" for n in range(1, 61)]
    expect(page.locator(".bubble")).to_have_count(1)


def test_a_message_that_does_not_arrive_is_kept_to_be_sent_again(page: Page, site: Server) -> None:
    page.goto(site.url)
    expect(page.locator(".suggestions")).to_be_visible()
    page.context.set_offline(True)
    say(page, "think")
    expect(page.get_by_text("Not sent")).to_be_visible()
    shoot(page, "chat-not-sent")
    page.context.set_offline(False)
    page.get_by_role("button", name="Retry").click()
    expect(said(page, "I have thought.")).to_be_visible()
    expect(page.locator(".bubble")).to_have_count(1)


@pytest.mark.parametrize("how", ["told", "killed"])
def test_a_turn_goes_on_by_itself_when_the_server_was_restarted(
    page: Page, own_site: Server, how: str
) -> None:
    begin(page, own_site, "slow")
    expect(said(page, "word3 ")).to_be_visible()
    if how == "killed":
        own_site.kill()
    else:
        own_site.stop()
    own_site.start()
    expect(said(page, "word60")).to_be_visible()
    assert words(page) == [f"word{n}" for n in range(1, 61)]


def test_a_page_that_is_opened_after_the_server_was_killed_goes_on_with_the_turn(
    page: Page, own_site: Server
) -> None:
    begin(page, own_site, "slow")
    expect(said(page, "word3 ")).to_be_visible()
    where = page.url
    page.goto("about:blank")
    own_site.kill()
    own_site.start()
    page.goto(where)
    expect(said(page, "word60")).to_be_visible()
    assert words(page) == [f"word{n}" for n in range(1, 61)]


# --- conversations ----------------------------------------------------------------------------


def test_conversations_are_switched_and_deleted(page: Page, own_site: Server) -> None:
    begin(page, own_site, "think about one")
    expect(said(page, "I have thought.")).to_be_visible()
    page.get_by_role("link", name="New conversation").click()
    expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
    say(page, "think about two")
    expect(said(page, "I have thought.")).to_be_visible()
    items = page.locator(".side-item")
    expect(items).to_have_count(2)
    items.filter(has_text="one").get_by_role("link").click()
    expect(page.locator(".bubble")).to_have_text("think about one")
    page.go_back()
    expect(page.locator(".bubble")).to_have_text("think about two")
    items.filter(has_text="two").get_by_role("button", name="More about").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(items).to_have_count(1)
    expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
    page.goto(f"{own_site.url}/c/00000000-0000-4000-8000-000000000000")
    expect(page.get_by_role("alert")).to_contain_text("There is no such conversation")


def test_another_page_and_back_finds_the_conversation(page: Page, site: Server) -> None:
    begin(page, site, BOOK)
    expect(page.locator(".flight")).to_have_count(3)
    page.get_by_role("link", name="Calls").click()
    expect(page.locator(".call", has_text="flights.book_flight").first).to_be_visible()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Chat").click()
    expect(page.locator(".flight")).to_have_count(3)


# --- by keyboard, and narrow ------------------------------------------------------------------


def press_until(page: Page, key: str, label: str) -> None:
    for _ in range(60):
        page.keyboard.press(key)
        if re.search(label, focused(page)):
            return
    raise AssertionError(f"{key} never leads to {label}")


def test_a_flight_is_booked_by_keyboard_alone(page: Page, site: Server) -> None:
    page.goto(site.url)
    expect(page.get_by_label("Message")).to_be_focused()
    page.keyboard.type(BOOK)
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_be_focused()  # the focus came to the question
    press_until(page, "Tab", "^Select ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("grid")).to_be_visible()
    expect(page.locator(".seat:focus")).to_be_visible()
    press_until(page, "ArrowDown", ", available$") if "taken" in focused(page) else None
    page.keyboard.press("Space")
    press_until(page, "Tab", "^Take seat")
    page.keyboard.press("Enter")
    expect_booked(page)
    expect(page.get_by_label("Message")).to_be_focused()  # and went back


def test_a_question_does_not_take_the_focus_from_somebody_who_writes(page: Page, site: Server) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:  # the message is on its way for as long as the person needs
        held.append(route)

    page.route("**/chat", hold)
    with page.expect_request("**/chat"):
        begin(page, site, "two")
    page.keyboard.type("By the way, ")
    held[0].continue_()
    expect(page.locator(".question")).to_have_count(2)
    expect(page.get_by_label("Message")).to_be_focused()
    expect(page.get_by_label("Message")).to_have_value("By the way, ")


def test_what_is_said_is_announced(page: Page, site: Server) -> None:
    begin(page, site, "think")
    expect(page.get_by_test_id("announcer")).to_have_text("I have thought.")
    say(page, "wizard")
    expect(page.get_by_test_id("announcer")).to_have_text("Project name:")


def test_the_booking_fits_on_a_narrow_screen(open_page: Open, site: Server) -> None:
    page = open_page(width=360, height=740)
    page.goto(site.url)
    expect(page.locator(".suggestions")).to_be_visible()
    assert overflow(page) == 0
    shoot(page, "narrow-welcome")
    say(page, BOOK)
    expect(page.locator(".flight")).to_have_count(3)
    assert overflow(page) == 0
    shoot(page, "narrow-flights")
    pick_flight(page)
    expect(page.get_by_role("grid")).to_be_visible()
    assert overflow(page) == 0
    shoot(page, "narrow-seats")
    pick_seat(page)
    expect_booked(page)
    assert overflow(page) == 0
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("link", name="New conversation")).to_be_focused()
    shoot(page, "narrow-drawer")
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="New conversation")).not_to_be_visible()
    say(page, "markdown")
    expect(page.get_by_role("button", name="Copy code")).to_be_visible()
    assert overflow(page) == 0
    shoot(page, "narrow-markdown")

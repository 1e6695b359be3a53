"""The pages Tools and Calls, in a real browser: methods are found, run, watched and answered; calls are ended."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from operating import Server
from web_browser import Open, overflow, shoot

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


def open_method(page: Page, site: Server, name: str) -> None:
    page.goto(f"{site.url}/tools?method={name}")
    expect(page.get_by_role("heading", name=name)).to_be_visible()


def run(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()


def test_every_method_is_listed_and_found_by_name_and_description(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/tools")
    methods = page.get_by_role("navigation", name="Methods").get_by_role("link")
    expect(methods.filter(has_text="flights.book_flight")).to_be_visible()
    expect(methods.filter(has_text="nested.said.once")).to_be_visible()
    page.get_by_label("Search methods").fill("every way")
    expect(methods).to_have_count(1)
    methods.first.click()
    expect(page.get_by_role("heading", name="lab.asks")).to_be_visible()
    page.get_by_label("Search methods").fill("nothing like that")
    expect(page.get_by_text("No method has")).to_be_visible()


def test_a_method_of_a_nested_hub_runs_under_its_full_name(page: Page, site: Server) -> None:
    open_method(page, site, "nested.said.once")
    page.get_by_label("Message").fill("through the nest")
    run(page)
    expect(page.locator(".run")).to_contain_text('"through the nest"')
    expect(page.locator(".run")).to_contain_text("done after")


def test_a_form_takes_nested_objects_choices_numbers_and_lists(page: Page, site: Server) -> None:
    open_method(page, site, "lab.parcel")
    run(page)  # nothing is filled in
    expect(page.locator(".field-fault")).to_have_text(["Required"] * 4)
    page.get_by_label("large").check()
    page.get_by_label("Weight").fill("heavy")
    page.get_by_label("Street").fill("High Street 1")
    page.get_by_label("City").fill("Oslo")
    page.get_by_role("button", name="Add to Tags").click()
    page.get_by_label("Tags 1", exact=True).fill("fragile")
    page.get_by_role("button", name="Add to Tags").click()
    page.get_by_label("Tags 2", exact=True).fill("urgent")
    page.get_by_role("button", name="Remove Tags 1").click()
    run(page)
    expect(page.get_by_text("Must be a number")).to_be_visible()
    page.get_by_label("Weight").fill("2.5")
    shoot(page, "tools-form")
    run(page)
    expect(page.locator(".run")).to_contain_text("1 x large to Oslo, urgent")


def test_a_form_can_be_filled_as_json_and_the_server_has_the_last_word(page: Page, site: Server) -> None:
    open_method(page, site, "lab.parcel")
    page.get_by_role("button", name="Edit as JSON").click()
    parcel = {"size": "small", "weight": 31, "to": {"street": "S", "city": "C"}}
    page.get_by_label("JSON", exact=True).fill("{not json")
    run(page)
    expect(page.locator(".field-fault")).to_contain_text("Not JSON")
    page.get_by_label("JSON", exact=True).fill(json.dumps({"parcel": parcel, "colour": "red"}))
    run(page)
    expect(page.get_by_text("Must be 30 or less").first).to_be_visible()
    parcel["weight"] = 3
    page.get_by_label("JSON", exact=True).fill(json.dumps({"parcel": parcel, "colour": "red"}))
    run(page)
    expect(page.get_by_role("alert").filter(has_text="colour: is not a parameter")).to_be_visible()
    page.get_by_label("JSON", exact=True).fill(json.dumps({"parcel": parcel}))
    run(page)
    expect(page.locator(".run")).to_contain_text("1 x small to C")


def test_items_are_watched_as_they_come(page: Page, site: Server) -> None:
    open_method(page, site, "lab.work")
    page.get_by_label("Pause").fill("0.5")
    run(page)
    expect(page.get_by_text("It begins")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_text("step 1 done")).to_be_visible()
    expect(page.get_by_text("step 4 done")).not_to_be_visible()
    shoot(page, "tools-progress")
    expect(page.get_by_text("step 4 done")).to_be_visible()
    expect(page.locator(".run-status")).to_contain_text("done after")
    page.get_by_role("button", name="Items").click()
    expect(page.get_by_role("region", name="items")).to_contain_text('"plexus_hash"')


def test_a_failure_is_shown_with_its_code(page: Page, site: Server) -> None:
    open_method(page, site, "lab.fail")
    run(page)
    expect(page.get_by_role("alert").filter(has_text="It is broken")).to_contain_text("tool_error")
    expect(page.locator(".run-status")).to_contain_text("failed")


def test_a_run_is_stopped(page: Page, site: Server) -> None:
    open_method(page, site, "lab.work")
    page.get_by_label("Steps").fill("1000")
    run(page)
    expect(page.get_by_text("step 1 done")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".run-status")).to_contain_text("cancelled")
    page.goto(f"{site.url}/calls")
    expect(page.get_by_text("Nothing is running or waiting")).to_be_visible()


def test_every_kind_of_question_is_answered(page: Page, site: Server) -> None:
    open_method(page, site, "lab.asks")
    run(page)
    page.get_by_role("button", name="Yes").click()
    name = page.get_by_role("textbox", name="Your name?")
    expect(name).to_have_value("Ada")
    expect(name).to_be_focused()
    name.fill("Grace")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Fits in a bag")).to_be_visible()
    page.get_by_label("Large").check()
    page.get_by_role("button", name="Answer").click()
    page.get_by_label("blue").check()
    page.get_by_label("red").check()
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("What do you send?").first).to_be_visible()
    page.get_by_label("small").check()
    page.get_by_label("Weight").fill("1")
    page.get_by_label("Street").fill("High Street 1")
    page.get_by_label("City").fill("Bergen")
    shoot(page, "tools-question-form")
    page.get_by_role("button", name="Answer").click()
    link = page.get_by_role("link", name="Open the page")
    expect(link).to_have_attribute("href", "https://example.com/sign-in")
    page.get_by_role("button", name="I have been there").click()
    expect(page.get_by_role("columnheader", name="Guests")).to_be_visible()  # what the question brings along
    page.get_by_label("Stars").fill("5")
    shoot(page, "tools-question-context")
    page.get_by_role("button", name="Answer").click()
    result = page.locator(".item-data")
    expect(result).to_contain_text('"Grace"')
    for part in ("true", '"l"', '"blue"', '"red"', '"Bergen"', "5"):
        expect(result).to_contain_text(part)


@pytest.mark.parametrize(("button", "said"), [("Decline", "declined"), ("Cancel", "cancelled")])
def test_a_question_is_declined_and_cancelled(page: Page, site: Server, button: str, said: str) -> None:
    open_method(page, site, "lab.sure")
    run(page)
    page.locator(".question").get_by_role("button", name=button).click()
    expect(page.locator(".item-note .badge")).to_have_text([said])
    for _ in range(2):
        expect(page.locator(".run-status")).to_contain_text(f"{said} by you")
        expect(page.locator(".run")).to_have_attribute("data-status", said)  # which is no failure
        page.reload()


def test_eight_questions_are_one_form_with_one_button(page: Page, site: Server) -> None:
    open_method(page, site, "lab.eight")
    run(page)
    form = page.locator(".question-group")
    expect(form.locator(".question-one")).to_have_count(8)
    expect(form.get_by_role("textbox", name="Who travels?")).to_be_focused()
    expect(form.get_by_role("button", name="Answer")).to_have_count(1)
    form.get_by_role("textbox", name="Who travels?").fill("Ada")
    form.get_by_role("group", name="Is it urgent?").get_by_label("No").check()
    form.get_by_label("Business").check()
    form.get_by_label("cake").check()
    form.get_by_role("textbox", name="To where?").fill("Bergen")
    form.get_by_role("textbox", name="Street").fill("Storgata 1")
    form.get_by_role("textbox", name="City").fill("Lillehammer")
    form.get_by_role("button", name="Answer all").click()
    expect(page.locator(".run-status")).to_contain_text("done")
    for part in ('"Ada"', "false", '"b"', '"cake"', '"Oslo"', '"Bergen"', "true", '"Lillehammer"'):
        expect(page.locator(".item-data")).to_contain_text(part)


def test_the_line_is_opened_again_after_the_server_was_away(page: Page, site: Server) -> None:
    open_method(page, site, "lab.work")
    page.get_by_label("Steps").fill("1000")
    run(page)
    expect(page.get_by_text("step 1 done")).to_be_visible()
    site.kill()
    expect(page.locator(".run-status")).to_contain_text("Reconnecting")
    site.start()
    expect(page.locator(".run-status")).to_contain_text("running")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".run-status")).to_contain_text("cancelled")
    page.get_by_label("Steps").fill("1")
    run(page)
    expect(page.locator(".run-status").first).to_contain_text("done")


# --- calls ------------------------------------------------------------------------------------


def test_calls_are_listed_with_their_questions_and_aborted(open_page: Open, site: Server) -> None:
    asking, looking = open_page(), open_page()
    open_method(asking, site, "lab.asks")
    run(asking)
    expect(asking.get_by_text("Are you sure?").first).to_be_visible()
    looking.goto(f"{site.url}/calls")
    call = looking.locator(".call", has_text="lab.asks")
    expect(call).to_contain_text("Are you sure?")
    expect(call).to_contain_text("waiting")
    before = call.locator(".call-age").inner_text()
    expect(call.locator(".call-age")).not_to_have_text(before)  # it is live
    shoot(looking, "calls")
    call.get_by_role("button", name=re.compile("Abort")).click()
    dialog = looking.get_by_role("dialog")
    dialog.get_by_role("button", name="Keep it running").click()
    expect(call).to_be_visible()
    call.get_by_role("button", name=re.compile("Abort")).click()
    shoot(looking, "calls-abort")
    dialog.get_by_role("button", name="Abort").click()
    expect(looking.get_by_text("Nothing is running or waiting")).to_be_visible()
    expect(asking.get_by_role("alert").filter(has_text="Aborted on the page")).to_be_visible()


def test_a_call_that_waits_in_the_journal_is_listed_and_aborted(page: Page, site: Server) -> None:
    waiting = site.call("interactive.confirm", message="Ready?")
    assert waiting["resultType"] == "input_required"
    page.goto(f"{site.url}/calls")
    call = page.locator(".call", has_text="interactive.confirm")
    expect(call).to_contain_text("Ready?")
    call.get_by_role("button", name=re.compile("Abort")).click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    expect(call).to_have_count(0)


# --- narrow, and by keyboard ------------------------------------------------------------------


def test_tools_and_calls_fit_on_a_narrow_screen(open_page: Open, site: Server) -> None:
    page = open_page(width=360, height=740)
    page.goto(f"{site.url}/tools")
    page.get_by_role("link", name=re.compile("lab.parcel")).click()
    expect(page.get_by_role("heading", name="lab.parcel")).to_be_visible()
    page.get_by_role("button", name="Add to Tags").click()
    page.get_by_text("Schema").click()
    assert overflow(page) == 0
    shoot(page, "narrow-tools-form")
    page.get_by_role("link", name="All methods").click()
    expect(page.get_by_label("Search methods")).to_be_visible()
    assert overflow(page) == 0
    open_method(page, site, "lab.asks")
    run(page)
    expect(page.get_by_text("Are you sure?").first).to_be_visible()
    assert overflow(page) == 0
    shoot(page, "narrow-tools-question")
    page.get_by_role("link", name="Calls").click()
    expect(page.locator(".call", has_text="lab.asks")).to_be_visible()
    assert overflow(page) == 0
    shoot(page, "narrow-calls")


def test_a_method_is_found_run_and_answered_by_keyboard_alone(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/tools")
    expect(page.get_by_role("link", name=re.compile("interactive.confirm"))).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    while page.evaluate("document.activeElement.id") != "tools-search":
        page.keyboard.press("Tab")
    page.keyboard.type("yes-or-no")
    expect(page.locator(".method-link")).to_have_count(1)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    message = page.get_by_label("Message")
    expect(message).to_be_visible()
    page.keyboard.press("Tab")
    expect(message).to_be_focused()
    page.keyboard.type("Shall we?")
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".item-data")).to_contain_text('"confirmed"')

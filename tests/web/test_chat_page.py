"""What people do in the chat beside talking: being asked, going back, looking for what was said, and taking it
along."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from operating import Server
from web_app import PICTURE
from web_browser import Open, focused, overflow, shoot

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def said(page: Page, text: str | re.Pattern[str]) -> Locator:
    return page.locator(".transcript").get_by_text(text)


def begin(page: Page, site: Server, text: str) -> None:
    page.goto(site.url)
    say(page, text)


def status(page: Page) -> Locator:
    return page.locator(".tool").last


def expect_status(page: Page, wanted: str) -> None:
    expect(status(page)).to_have_attribute("data-status", wanted)


# --- being asked ------------------------------------------------------------------------------


def test_a_message_while_a_question_waits_ends_nothing_by_itself(page: Page, site: Server) -> None:
    begin(page, site, "erase")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    expect(page.get_by_placeholder("A question waits for you above")).to_be_visible()
    say(page, "Which notes?")
    choice = page.get_by_role("region", name="A question waits")
    expect(choice).to_contain_text("Erase notes.txt?")
    expect(choice.get_by_role("button", name="Answer it")).to_be_focused()
    shoot(page, "chat-instead")
    page.keyboard.press("Escape")
    expect(choice).to_have_count(0)
    expect(page.get_by_label("Message")).to_have_value("Which notes?")
    page.keyboard.press("Enter")
    choice.get_by_role("button", name="Answer it").click()
    expect(page.locator(".question")).to_be_focused()
    expect(page.get_by_label("Message")).to_have_value("Which notes?")
    expect_status(page, "waiting")


def test_the_model_is_asked_back_while_the_question_stays_open(page: Page, site: Server) -> None:
    begin(page, site, "erase")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    say(page, "Which notes?")
    page.get_by_role("button", name="Ask the model first").click()
    expect(said(page, "You ask: Which notes?")).to_be_visible()
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    page.reload()
    expect(said(page, "You ask: Which notes?")).to_be_visible()
    shoot(page, "chat-aside")
    page.get_by_role("button", name="Yes").click()
    expect(said(page, "At last: notes.txt is gone")).to_be_visible()
    expect(said(page, "You ask: Which notes?")).to_be_visible()
    expect_status(page, "done")


def test_a_question_is_dropped_only_if_the_person_says_so(page: Page, site: Server) -> None:
    begin(page, site, "erase")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    say(page, "think of something else")
    page.get_by_role("button", name="Drop it and send").click()
    expect(said(page, "I have thought.")).to_be_visible()
    expect_status(page, "refused")
    expect(page.locator(".tool-status")).to_contain_text("dropped")
    expect(page.locator(".answered > li")).to_contain_text("Not answered")


def test_a_confirmation_has_yes_no_and_cancel_and_its_answer_stays(page: Page, site: Server) -> None:
    begin(page, site, "erase")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()
    assert page.locator(".question button").all_inner_texts() == ["Yes", "No", "Cancel"]
    page.get_by_role("button", name="No", exact=True).click()
    expect(said(page, "The tool said: notes.txt stays")).to_be_visible()
    expect_status(page, "done")
    for _ in range(2):
        answered = page.get_by_role("list", name="Answered questions").get_by_role("listitem")
        expect(answered).to_contain_text("Erase notes.txt?")
        expect(answered).to_contain_text("no")
        page.reload()


def test_who_cancels_sees_no_failure(page: Page, site: Server) -> None:
    begin(page, site, "erase")
    page.get_by_role("button", name="Cancel", exact=True).click()
    for _ in range(2):
        expect_status(page, "refused")
        expect(page.locator(".tool-status")).to_contain_text("cancelled by you")
        expect(page.locator(".answered > li")).to_contain_text("You cancelled")
        page.reload()


def test_eight_questions_are_one_form_with_one_button(page: Page, site: Server) -> None:
    begin(page, site, "eight")
    form = page.locator(".question-group")
    expect(form.locator(".question-one")).to_have_count(8)
    expect(form.get_by_role("textbox", name="Who travels?")).to_be_focused()
    expect(form.get_by_role("button", name="Answer")).to_have_count(1)
    shoot(page, "chat-eight")
    form.get_by_role("button", name="Answer all").click()
    expect(form.locator("[aria-invalid=true]").first).to_be_focused()  # nothing is sent that does not fit
    form.get_by_role("textbox", name="Who travels?").fill("Ada")
    form.get_by_role("group", name="Is it urgent?").get_by_label("No").check()
    form.get_by_label("Business").check()
    form.get_by_label("soup").check()
    form.get_by_label("cake").check()
    form.get_by_role("textbox", name="To where?").fill("Bergen")
    form.get_by_role("textbox", name="Street").fill("Storgata 1")
    form.get_by_role("textbox", name="City").fill("Lillehammer")
    form.get_by_role("button", name="Answer all").click()
    expect_status(page, "done")
    for _ in range(2):
        answers = page.locator(".answered-answer")
        expect(answers).to_have_count(8)
        expect(answers.nth(2)).to_have_text("Business")
        expect(answers.nth(3)).to_have_text("soup, cake")
        expect(answers.nth(6)).to_have_text("yes")
        page.reload()


def test_a_form_with_dates_lists_and_nested_fields_is_filled_in(page: Page, site: Server) -> None:
    begin(page, site, "trip")
    question = page.locator(".question")
    expect(question.get_by_label("Note")).to_be_focused()
    question.get_by_label("large").check()
    question.get_by_label("Day").fill("2030-05-17")
    question.get_by_label("At").fill("2030-05-17T10:30")
    question.get_by_label("Street").fill("Storgata 1")
    question.get_by_label("City").fill("Oslo")
    question.get_by_role("button", name="Add Back").click()
    question.get_by_role("button", name="Leave out Back").click()
    shoot(page, "chat-trip")
    question.get_by_role("button", name="Answer").click()
    expect_status(page, "done")
    page.locator(".tool summary").first.click()
    page.get_by_text("As JSON").click()
    result = page.get_by_role("region", name="result")
    for part in ('"note": null', '"large"', '"2030-05-17"', '"2030-05-17T10:30:00', '"Oslo"', '"back": null'):
        expect(result).to_contain_text(part)


def test_a_limit_counts_down_and_then_the_conversation_goes_on_by_itself(page: Page, site: Server) -> None:
    begin(page, site, "hurry")
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"9 min \d+ s left"))
    shoot(page, "chat-countdown")
    page.get_by_role("button", name="Yes").click()
    expect(said(page, "The tool said: Said True")).to_be_visible()
    say(page, 'hurry {"seconds": 1}')
    for _ in range(2):
        expect(said(page, "The tool said: Error: Nobody answered in time")).to_be_visible()
        expect(page.locator(".tool-status").last).to_contain_text("not answered in time")
        expect(page.locator(".question")).to_have_count(0)
        shoot(page, "chat-not-in-time")
        page.reload()


def test_an_answer_that_is_too_late_is_not_shown_as_one(page: Page, site: Server) -> None:
    def lose(route: Route) -> None:
        if '"resume":true' in (route.request.post_data or ""):
            route.abort()
        else:
            route.continue_()

    page.route("**/chat", lose)
    begin(page, site, 'hurry {"seconds": 1}')
    expect(page.get_by_role("timer")).to_have_text("Time is up")
    page.get_by_role("button", name="Yes").click()
    for _ in range(2):
        expect(said(page, "The tool said: Error: Nobody answered in time")).to_be_visible()
        expect(page.locator(".answered > li").last).to_contain_text("Not answered")
        page.reload()


def test_who_answers_while_the_time_runs_out_is_told_that_it_was_too_late(page: Page, site: Server) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if '"resume":true' in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/chat", hold)
    begin(page, site, 'hurry {"seconds": 1}')
    with page.expect_request(lambda one: '"resume":true' in (one.post_data or "")):
        expect(page.get_by_role("timer")).to_have_text("Time is up")
    page.get_by_role("button", name="Yes").click()
    held[0].continue_()
    expect(said(page, "The tool said: Error: Nobody answered in time")).to_be_visible()
    expect(said(page, "Your answer came too late")).to_be_visible()


# --- tools ------------------------------------------------------------------------------------


def test_pictures_sound_files_and_links_of_a_tool_are_shown(page: Page, site: Server) -> None:
    begin(page, site, "picture")
    for _ in range(2):
        tool = page.locator(".tool")
        picture = tool.get_by_role("img", name="image.png")
        expect(picture).to_be_visible()
        assert picture.evaluate("e => e.decode().then(() => e.naturalWidth)") == 48
        expect(tool.locator("audio")).to_be_visible()
        expect(tool).to_contain_text("report.csv, 8 bytes")
        expect(tool.get_by_role("link", name="The manual")).to_have_attribute(
            "href", "https://example.com/manual"
        )
        page.reload()
    shoot(page, "chat-picture")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save report.csv").click()
    assert download.value.path().read_text() == "a,b\n1,2\n"
    assert "base64" not in page.locator(".transcript").inner_text()


def test_bytes_of_a_tool_are_files_and_the_model_is_told_their_size(page: Page, site: Server) -> None:
    begin(page, site, "bytes")
    told = f"[a file of {len(PICTURE)} bytes]"
    for _ in range(2):
        scan, archive = page.locator(".tool").first, page.locator(".tool").last
        expect(scan).to_contain_text(f"scan.bin, {len(PICTURE)} bytes")
        expect(archive).to_contain_text(f"data.bin, {len(PICTURE)} bytes")
        for tool in (scan, archive):
            tool.locator("summary").first.click()
            expect(tool.locator(".tool-inside")).to_contain_text(told)
        expect(archive.locator(".tool-inside")).to_contain_text("May")
        shoot(page, "chat-bytes")
        assert "iVBOR" not in (page.locator(".transcript").text_content() or "")
        page.reload()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save scan.bin").click()
    assert download.value.path().read_bytes() == PICTURE


def test_a_tool_call_shows_its_time_and_is_made_again_if_wanted(page: Page, site: Server) -> None:
    begin(page, site, "erase")
    page.get_by_role("button", name="Yes").click()
    expect(said(page, "notes.txt is gone").last).to_be_visible()
    expect(page.locator(".tool-status")).to_have_text(re.compile(r"^done, [\d.]+ m?s$"))
    page.locator(".tool summary").first.click()
    page.get_by_role("button", name="Call again").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Call lab.erase again?")
    dialog.get_by_role("button", name="Leave it").click()
    expect(page.locator(".tool")).to_have_count(1)
    page.get_by_role("button", name="Call again").click()
    dialog.get_by_role("button", name="Call again").click()
    expect(page.locator(".tool")).to_have_count(2)
    page.get_by_role("button", name="No", exact=True).click()  # what was approved is asked again
    expect(said(page, "The tool said: notes.txt stays")).to_be_visible()
    page.reload()
    expect(page.locator(".tool")).to_have_count(2)


# --- messages ---------------------------------------------------------------------------------


def test_a_message_is_edited_and_sent_again(page: Page, site: Server) -> None:
    begin(page, site, "think first")
    expect(said(page, "I have thought.")).to_be_visible()
    say(page, "markdown")
    expect(said(page, "A list")).to_be_visible()
    page.locator(".bubble").first.hover()
    page.get_by_role("button", name="Edit what you said").first.click()
    area = page.get_by_label("What you say instead")
    expect(area).to_be_focused()
    shoot(page, "chat-edit")
    area.fill("model")
    page.get_by_role("button", name="Send again").click()
    expect(said(page, "I am actor.")).to_be_visible()
    for _ in range(2):
        expect(page.locator(".bubble")).to_have_text(["model"])
        expect(said(page, "A list")).to_have_count(0)
        page.reload()


def test_an_answer_is_made_again_and_its_tools_are_named_before(page: Page, site: Server) -> None:
    begin(page, site, "think")
    expect(said(page, "I have thought.")).to_be_visible()
    with page.expect_request(lambda request: request.method == "POST" and request.url.endswith("/chat")):
        page.get_by_role("button", name="Regenerate").click()
    expect(said(page, "I have thought.")).to_be_visible()
    expect(page.locator(".prose")).to_have_count(1)
    say(page, "broken")
    expect_status(page, "failed")
    page.get_by_role("button", name="Regenerate").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("lab.fail")
    dialog.get_by_role("button", name="Regenerate").click()
    expect_status(page, "failed")
    expect(page.locator(".tool")).to_have_count(1)


def test_messages_are_copied_and_have_their_time(open_page: Open, site: Server) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    begin(page, site, "think")
    expect(said(page, "I have thought.")).to_be_visible()
    page.get_by_role("button", name="Copy what was said").click()
    assert page.evaluate("navigator.clipboard.readText()") == "I have thought."
    page.get_by_role("button", name="Copy what you said").click()
    assert page.evaluate("navigator.clipboard.readText()") == "think"
    expect(page.locator(".transcript time")).to_have_count(2)


def test_a_page_without_a_clipboard_copies_all_the_same(page: Page, site: Server) -> None:
    page.add_init_script("delete Navigator.prototype.clipboard")  # as over plain HTTP from another machine
    begin(page, site, "think")
    expect(said(page, "I have thought.")).to_be_visible()
    page.get_by_role("button", name="Copy what was said").click()
    page.get_by_label("Message").focus()
    page.keyboard.press("Control+V")
    expect(page.get_by_label("Message")).to_have_value("I have thought.")


def test_editing_begins_at_the_end_and_gives_the_focus_back(page: Page, site: Server) -> None:
    begin(page, site, "think")
    expect(said(page, "I have thought.")).to_be_visible()
    page.get_by_role("button", name="Edit what you said").click()
    page.keyboard.type(" more")
    expect(page.get_by_label("What you say instead")).to_have_value("think more")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit what you said")).to_be_focused()


def test_what_can_be_done_with_the_last_answer_is_seen_without_a_mouse_over_it(
    page: Page, site: Server
) -> None:
    begin(page, site, "think")
    expect(said(page, "I have thought.")).to_be_visible()
    page.mouse.move(0, 0)
    for name in ("Copy what was said", "Regenerate"):
        expect(page.get_by_role("button", name=name)).to_have_css("opacity", "1")


def test_who_scrolls_up_a_little_is_left_there(page: Page, site: Server) -> None:
    page.set_viewport_size({"width": 360, "height": 420})
    begin(page, site, "markdown")
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    say(page, "slow")
    expect(said(page, "word9 ")).to_be_visible()
    box = page.get_by_role("region", name="Conversation")
    left = box.evaluate("box => { box.scrollTop -= 40; return box.scrollTop; }")
    expect(said(page, "word60")).to_be_attached()
    assert box.evaluate("box => box.scrollTop") == left


def test_a_long_answer_wraps(page: Page, site: Server) -> None:
    begin(page, site, "long")
    text = page.locator("pre.prose")
    expect(text).to_be_visible()
    assert text.evaluate("e => e.scrollWidth - e.clientWidth") == 0


def test_a_long_message_is_folded_and_one_that_is_too_long_stays_where_it_is(
    page: Page, site: Server
) -> None:
    begin(page, site, "think\n" * 40 + "of the end")
    expect(said(page, "I have thought.")).to_be_visible()
    bubble = page.locator(".bubble")
    folded = bubble.bounding_box()
    shoot(page, "chat-long-message")
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show less")).to_be_focused()
    shown = bubble.bounding_box()
    assert folded is not None
    assert shown is not None
    assert shown["height"] > 2 * folded["height"]

    page.get_by_label("Message").fill("x" * 200_001)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("has 200,001 letters; at most 200,000 can be sent")
    assert len(page.get_by_label("Message").input_value()) == 200_001
    expect(bubble).to_have_count(1)
    page.get_by_label("Message").fill("think")
    page.keyboard.press("Enter")
    expect(bubble).to_have_count(2)
    expect(page.get_by_role("alert")).to_have_count(0)


# --- conversations ----------------------------------------------------------------------------


def test_an_address_of_no_conversation_leads_to_a_new_one(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/c/00000000-0000-4000-8000-000000000000")
    expect(page.get_by_role("heading", name="There is no such conversation")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_have_count(0)
    shoot(page, "chat-no-conversation")
    page.get_by_role("main").get_by_role("link", name="New conversation").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


def test_what_another_tab_says_ends_a_notice_of_the_turn_before(open_page: Open, site: Server) -> None:
    first = open_page()
    begin(first, site, "slow")
    expect(said(first, "word3 ")).to_be_visible()
    first.get_by_role("button", name="Stop").click()
    expect(said(first, "Stopped.")).to_be_visible()
    second = first.context.new_page()
    second.goto(first.url)
    say(second, "think")
    expect(said(first, "I have thought.")).to_be_visible()
    expect(said(first, "Stopped.")).to_have_count(0)


def test_a_picture_goes_along_when_its_message_is_sent_again(page: Page, site: Server) -> None:
    page.goto(site.url)
    page.get_by_label("Model:").select_option("understudy")
    page.locator("input[type=file]").set_input_files(
        {"name": "dot.png", "mimeType": "image/png", "buffer": PICTURE}
    )
    expect(page.get_by_role("list", name="Attached pictures").get_by_role("img")).to_be_visible()
    page.context.set_offline(True)
    say(page, "model")
    expect(page.get_by_text("Not sent")).to_be_visible()
    expect(page.locator(".entry-user").get_by_role("img", name="dot.png")).to_be_visible()
    page.context.set_offline(False)
    page.get_by_role("button", name="Retry").click()
    expect(said(page, f"I am understudy. dot.png of {len(PICTURE)} bytes")).to_be_visible()


def test_conversations_are_found_renamed_and_taken_along(page: Page, site: Server, tmp_path: Path) -> None:
    begin(page, site, "think of a walrus")
    expect(said(page, "I have thought.")).to_be_visible()
    items = page.locator(".side-item")
    page.get_by_label("Search conversations").fill("walrus thought")
    expect(items).to_have_count(1)
    expect(items.locator(".side-snippet")).to_contain_text("walrus")
    shoot(page, "chat-search")
    items.get_by_role("button", name="More about").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Title")).to_have_value("think of a walrus")
    shoot(page, "chat-conversation")
    for name, suffix in (("Markdown", ".md"), ("JSON", ".json")):
        with page.expect_download() as download:
            dialog.get_by_role("button", name=f"Export as {name}").click()
        assert download.value.suggested_filename == f"think-of-a-walrus{suffix}"
        text = download.value.path().read_text()
        assert "I have thought." in text
    assert [one["role"] for one in json.loads(text)["messages"]] == ["user", "assistant"]
    dialog.get_by_label("Title").fill("Sea animals")
    dialog.get_by_role("button", name="Rename").click()
    expect(items).to_contain_text("Sea animals")
    page.get_by_label("Search conversations").fill("nothing of the kind")
    expect(page.get_by_text("Nothing was found.")).to_be_visible()
    page.get_by_label("Search conversations").fill("")
    page.reload()
    expect(items.filter(has_text="Sea animals").locator("time")).to_have_count(1)


# --- models and pictures ----------------------------------------------------------------------


def test_a_model_is_chosen_and_remembered_and_shown_a_picture(page: Page, site: Server) -> None:
    page.goto(site.url)
    picker = page.get_by_label("Model:")
    expect(picker).to_have_value("actor")
    expect(page.get_by_role("button", name="Attach pictures")).to_have_count(0)  # it takes none
    picker.select_option("understudy")
    page.locator("input[type=file]").set_input_files(
        [
            {"name": "dot.png", "mimeType": "image/png", "buffer": PICTURE},
            {"name": "page.html", "mimeType": "text/html", "buffer": b"<script>"},
        ]
    )
    expect(page.get_by_role("alert")).to_contain_text("page.html is not a PNG")
    expect(page.get_by_role("list", name="Attached pictures").get_by_role("img")).to_be_visible()
    assert overflow(page) <= 0
    shoot(page, "chat-attached")
    say(page, "model")
    expect(said(page, f"I am understudy. dot.png of {len(PICTURE)} bytes")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)  # what could not be sent is no matter any more
    for _ in range(2):
        expect(page.locator(".entry-user").get_by_role("img", name="dot.png")).to_be_visible()
        expect(picker).to_have_value("understudy")
        page.reload()
    page.get_by_role("link", name="New conversation").click()
    expect(picker).to_have_value("actor")


# --- narrow, dark, by keyboard ------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_all_fits_on_a_phone_and_a_thumb_hits_it(open_page: Open, site: Server, scheme: str) -> None:
    page = open_page(width=360, height=740, scheme=scheme, has_touch=True, is_mobile=True)
    begin(page, site, "eight")
    expect(page.locator(".question-one")).to_have_count(8)
    assert overflow(page) == 0
    shoot(page, f"narrow-eight-{scheme}")
    say(page, "Why so many?")
    expect(page.get_by_role("button", name="Ask the model first")).to_be_visible()
    assert overflow(page) == 0
    shoot(page, f"narrow-instead-{scheme}")
    page.get_by_role("button", name="Drop them and send").click()
    expect_status(page, "refused")
    say(page, "picture")
    expect(page.get_by_role("img", name="image.png")).to_be_visible()
    say(page, "markdown")
    expect(page.get_by_role("button", name="Copy code")).to_be_visible()
    assert overflow(page) == 0
    shoot(page, f"narrow-messages-{scheme}")
    small = page.evaluate(
        """() => [...document.querySelectorAll(".chat-main button, .chat-main summary, .chat-main select")]
            .filter((e) => e.checkVisibility() && !e.closest(".tool-inside"))
            .map((e) => [e.getAttribute("aria-label") ?? e.textContent, e.getBoundingClientRect()])
            .filter(([, box]) => box.height < 44)
            .map(([name, box]) => `${name}: ${box.height}`)"""
    )
    assert small == []


def test_a_question_is_asked_back_and_answered_by_keyboard_alone(page: Page, site: Server) -> None:
    page.goto(site.url)
    expect(page.get_by_label("Message")).to_be_focused()
    page.keyboard.type("erase")
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        if focused(page) == "Message":
            break
    page.keyboard.type("Why?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Answer it")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(said(page, "You ask: Why?")).to_be_visible()
    for _ in range(30):
        page.keyboard.press("Shift+Tab")
        if focused(page) == "Yes":
            break
    page.keyboard.press("Enter")
    expect(said(page, "At last: notes.txt is gone")).to_be_visible()


def test_eight_questions_are_answered_by_keyboard_alone(page: Page, site: Server) -> None:
    page.goto(site.url)
    expect(page.get_by_label("Message")).to_be_focused()
    page.keyboard.type("eight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Who travels?")).to_be_focused()
    for keys in (
        ("Ada", "Tab"),
        ("", "Space", "ArrowRight", "Tab"),  # not urgent
        ("", "Space", "ArrowDown", "Tab"),  # business
        ("", "Space", "Tab", "Tab", "Tab"),  # soup
        ("", "Tab"),  # from Oslo
        ("Bergen", "Tab"),
        ("", "Tab"),  # with a window
        ("Storgata 1", "Tab"),
        ("Lillehammer", "Enter"),
    ):
        page.keyboard.type(keys[0])
        for key in keys[1:]:
            page.keyboard.press(key)
    expect_status(page, "done")
    expect(page.locator(".answered-answer")).to_have_text(
        ["Ada", "no", "Business", "soup", "Oslo", "Bergen", "yes", re.compile("Lillehammer")]
    )
    expect(page.get_by_label("Message")).to_be_focused()  # and on it goes

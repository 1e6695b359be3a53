"""The page Calls answers: what waits, for whom and since when; filters, history, and the way to the conversation."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from operating import Server, text_of
from people_app import CALLER, KEYS, OPS, ROOT
from web_app import PICTURE
from web_browser import Open, overflow, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("web")
    with web_server(folder, target="people_app:talking", MIDCALL_TOKENS=KEYS) as serving:
        yield serving


def look(page: Page, site: Server, key: str) -> None:
    """Open the page as somebody."""
    page.goto(f"{site.url}/calls")
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("heading", name="Calls")).to_be_visible()


def card(page: Page, method: str) -> Locator:
    return page.locator(".call", has_text=method)


def test_questions_are_answered_by_the_caller_and_by_whoever_is_asked(
    open_page: Open, guarded: Server
) -> None:
    own = guarded.call("people.own", CALLER)
    guarded.call("people.deploy", CALLER)
    ada, bob = open_page(), open_page()
    look(ada, guarded, CALLER)
    expect(ada.locator(".call")).to_have_count(2)
    deploy = card(ada, "people.deploy")
    expect(deploy).to_contain_text(re.compile(r"asked of anyone in ops \d+ s ago"))
    expect(deploy.get_by_role("button", name="Answer")).to_have_count(0)  # it is for somebody else
    mine = card(ada, "people.own")
    expect(mine).to_contain_text("asked of you")
    mine.get_by_role("button", name="Answer: Your name?").click()
    ada.get_by_role("textbox", name="Your name?").fill("Ada")
    shoot(ada, "calls-answer")
    mine.locator("form").get_by_role("button", name="Answer").click()
    expect(mine).to_have_count(0)
    assert text_of(guarded.call("people.own", CALLER, own)) == "Hello Ada"

    look(bob, guarded, OPS)
    asked = card(bob, "people.deploy")
    expect(asked).to_contain_text("called by ada")
    expect(asked).to_contain_text("asked of you (anyone in ops)")
    expect(asked.get_by_role("button", name=re.compile("Abort|Details"))).to_have_count(0)
    asked.get_by_role("button", name="Answer: Deploy 1.2?").click()
    asked.get_by_role("button", name="Yes").click()
    expect(bob.get_by_text("Nothing is running or waiting")).to_be_visible()
    expect(ada.get_by_text("Nothing is running or waiting")).to_be_visible()


def test_a_form_keeps_what_was_typed_while_the_list_is_read_again(page: Page, guarded: Server) -> None:
    guarded.call("people.window", CALLER)
    look(page, guarded, CALLER)
    page.get_by_role("button", name=re.compile("Answer: ")).click()
    page.get_by_label("Minutes").fill("12")
    guarded.call("people.own", CALLER)
    expect(page.locator(".call")).to_have_count(2)
    expect(page.get_by_label("Minutes")).to_have_value("12")
    page.get_by_label("Minutes").fill("many")
    page.locator("form").get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Must be a number")).to_be_visible()
    page.get_by_label("Minutes").fill("5")
    page.locator("form").get_by_role("button", name="Answer").click()
    expect(card(page, "people.window")).to_have_count(0)


def test_the_history_shows_outcome_arguments_and_steps(page: Page, guarded: Server) -> None:
    guarded.call("people.own", CALLER)
    look(page, guarded, CALLER)
    page.get_by_role("button", name="Answer: Your name?").click()
    page.get_by_role("textbox", name="Your name?").fill("Ada")
    page.locator("form").get_by_role("button", name="Answer").click()
    expect(page.locator(".call")).to_have_count(0)
    page.get_by_label("Status").select_option("Finished")
    call = card(page, "people.own")
    expect(call.locator(".badge").first).to_have_text("completed")
    expect(call).to_contain_text(re.compile(r"ended \d+ s ago"))
    call.get_by_role("button", name=re.compile("Details")).click()
    trail = call.locator(".call-entry")
    expect(trail).to_have_count(3)
    expect(trail.nth(1)).to_contain_text("answered")
    expect(trail.nth(1)).to_contain_text("Ada")
    expect(call).to_contain_text("Hello Ada")
    expect(call.get_by_role("region", name="arguments")).to_be_visible()
    expect(call.get_by_role("button", name=re.compile("Abort"))).to_have_count(0)
    shoot(page, "calls-history")


def test_an_outcome_shows_pictures_and_a_refusal_is_no_failure(page: Page, tmp_path: Path) -> None:
    with web_server(tmp_path, target="tools_app:hub") as server:
        for method, ends in (("results.all", "done"), ("runs.patient", "cancelled by you")):
            page.goto(f"{server.url}/tools?method={method}")
            page.get_by_role("button", name="Run", exact=True).click()
            if method == "runs.patient":
                page.get_by_role("button", name="Cancel", exact=True).click()
            expect(page.locator(".run-status").first).to_contain_text(ends)
        page.goto(f"{server.url}/calls")
        page.get_by_label("Status").select_option("Finished")
        shown = card(page, "results.all").first
        shown.get_by_role("button", name=re.compile("Details")).click()
        expect(shown.get_by_role("img", name="Result")).to_be_visible()
        assert "base64" not in shown.inner_text()
        assert "iVBOR" not in shown.inner_text()
        refused = card(page, "runs.patient")
        refused.get_by_role("button", name=re.compile("Details")).click()
        expect(refused.get_by_text("The question was cancelled")).to_be_visible()
        expect(refused.locator(".question-error")).to_have_count(0)


def test_bytes_are_files_under_tools_and_calls(page: Page, tmp_path: Path) -> None:
    with web_server(tmp_path) as server:
        for method, name in (("lab.scan", "scan.bin"), ("lab.archive", "data.bin")):
            page.goto(f"{server.url}/tools?method={method}")
            page.get_by_role("button", name="Run", exact=True).click()
            run = page.locator(".run").first
            expect(run.locator(".file-name")).to_have_text(name)
            expect(run.locator(".file")).to_contain_text(f"{len(PICTURE)} bytes")
            assert "iVBOR" not in run.inner_text()
            page.goto(f"{server.url}/calls")
            page.get_by_label("Status").select_option("Finished")
            call = card(page, method)
            call.get_by_role("button", name=re.compile("Details")).click()
            expect(call.locator(".file-name")).to_have_text(name)
            expect(call.locator(".file")).to_contain_text(f"{len(PICTURE)} bytes")
            assert "iVBOR" not in call.inner_text()
            with page.expect_download() as download:
                call.get_by_role("button", name=f"Download {name}").click()
            assert download.value.path().read_bytes() == PICTURE
        shoot(page, "calls-bytes")


def test_calls_are_filtered_by_whose_they_are_status_and_method(page: Page, guarded: Server) -> None:
    guarded.call("people.own", OPS)
    guarded.call("people.window", OPS)
    guarded.call("people.deploy", CALLER)
    look(page, guarded, OPS)
    expect(page.locator(".call")).to_have_count(3)
    page.get_by_label("Whose").select_option("Asked of me")
    expect(page.locator(".call-method")).to_have_text(["people.deploy"])
    page.get_by_label("Whose").select_option("Mine")
    expect(page.locator(".call")).to_have_count(2)
    page.get_by_label("Method").select_option("people.window")
    expect(page.locator(".call-method")).to_have_text(["people.window"])
    page.get_by_label("Method").select_option("All methods")
    page.get_by_label("Status").select_option("Running")
    expect(page.get_by_text("Nothing is running.")).to_be_visible()
    page.get_by_label("Status").select_option("Waiting")
    expect(page.locator(".call")).to_have_count(2)
    assert page.get_by_label("Whose").locator("option").all_inner_texts() == [
        "Mine and asked of me",
        "Mine",
        "Asked of me",
    ]


def test_an_administrator_sees_everybodys_calls_and_answers_for_them(page: Page, guarded: Server) -> None:
    guarded.call("people.own", CALLER)
    guarded.call("people.window", CALLER)
    look(page, guarded, ROOT)
    expect(page.get_by_text("Nothing is running or waiting")).to_be_visible()
    page.get_by_label("Whose").select_option("Everybody\u2019s")
    call = card(page, "people.own")
    expect(call).to_contain_text("called by ada")
    shoot(page, "calls-admin")
    call.get_by_role("button", name=re.compile("Answer for ada")).click()
    page.get_by_role("textbox", name="Your name?").fill("Root")
    page.locator("form").get_by_role("button", name="Answer").click()
    expect(call).to_have_count(0)
    card(page, "people.window").get_by_role("button", name=re.compile("Abort")).click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    expect(page.locator(".call")).to_have_count(0)


def test_a_call_of_a_chat_leads_to_its_conversation(page: Page, guarded: Server) -> None:
    guarded.post("/chat", {"message": "own"}, CALLER)
    look(page, guarded, CALLER)
    card(page, "people.own").get_by_role("link", name="Conversation").click()
    expect(page).to_have_url(re.compile(r"/c/"))
    expect(page.get_by_text("Your name?").first).to_be_visible()


def test_older_calls_come_on_demand(page: Page, tmp_path_factory: pytest.TempPathFactory) -> None:
    with web_server(tmp_path_factory.mktemp("few"), target="few_calls_app:hub") as server:
        for _ in range(5):
            server.call("people.own")
        page.goto(f"{server.url}/calls")
        expect(page.locator(".call")).to_have_count(2)
        page.get_by_role("button", name="Show older calls").click()
        expect(page.locator(".call")).to_have_count(4)
        page.get_by_role("button", name="Show older calls").click()
        expect(page.locator(".call")).to_have_count(5)
        expect(page.get_by_role("button", name="Show older calls")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_calls_fit_on_a_phone(open_page: Open, guarded: Server, scheme: str) -> None:
    guarded.call("people.own", CALLER)
    guarded.call("people.deploy", CALLER)
    phone = open_page(width=360, height=740, scheme=scheme, has_touch=True, is_mobile=True)
    look(phone, guarded, CALLER)
    card(phone, "people.own").get_by_role("button", name=re.compile("Details")).tap()
    card(phone, "people.own").get_by_role("button", name=re.compile("Answer")).tap()
    expect(phone.get_by_role("textbox", name="Your name?")).to_be_visible()
    expect(phone.locator(".call-entry").first).to_be_visible()
    assert overflow(phone) <= 0
    shoot(phone, f"narrow-calls-{scheme}")


def test_a_question_is_asked_with_its_component_and_answered_there(page: Page, tmp_path: Path) -> None:
    with web_server(tmp_path) as server:
        server.call("lab.visit")
        page.goto(f"{server.url}/calls")
        page.get_by_role("button", name="Answer: How was your visit?").click()
        stars = page.get_by_role("group", name="How was your visit?")
        expect(stars).to_be_visible()
        shoot(page, "calls-component")
        stars.get_by_role("button", name="4 stars").click()
        expect(page.get_by_text("Nothing is running or waiting")).to_be_visible()
        page.goto(server.url)
        page.get_by_label("Message").fill("Book a flight from Paris to Rome")
        page.keyboard.press("Enter")
        expect(page.locator(".flight").first).to_be_visible()
        page.get_by_role("link", name="Calls", exact=True).click()
        page.get_by_role("button", name=re.compile("Answer: Pick your flight")).click()
        page.get_by_role("button", name=re.compile("Select")).first.click()
        page.get_by_role("button", name=re.compile("Answer: Pick your seat")).click()
        expect(page.get_by_role("grid")).to_be_visible()
        shoot(page, "calls-seats")
        page.get_by_role("button", name="Cancel", exact=True).click()
        expect(page.get_by_text("Nothing is running or waiting")).to_be_visible()

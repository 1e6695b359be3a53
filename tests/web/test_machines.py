"""The page Machines, in a real browser: a run is drawn as it goes, looked at from any point, forked and answered."""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from driving import LIMIT
from operating import ADA, KEYS, Server, own_database, until
from peers import environment, free_port, wait_for
from web_browser import AXE, Open, overflow, serious_findings, shoot, web_server
from web_machines import HOSTILE, STAGES

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)

BOB = "bob-0123456789abcdef"
CHAIR = {"item": "a chair", "amount": 120}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("office"), target="web_machines:hub") as serving:
        yield serving


@pytest.fixture
def database() -> Iterator[str]:
    """Made in another thread: Playwright has the event loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        made = own_database()
        yield thread.submit(made.__enter__).result()
        thread.submit(made.__exit__, None, None, None).result()


def begun(server: Server, machine: str, given: Any, token: str | None = None) -> str:
    """The id of a run that somebody else has begun."""
    answer = server.post(f"/fsm/{machine}/run", given, token, prefer="respond-async")
    return str(answer.json["call"])


def open_run(page: Page, server: Server, machine: str, given: Any) -> str:
    run = begun(server, machine, given)
    page.goto(f"{server.url}/machines?machine={machine}&run={run}")
    return run


def lit(page: Page) -> Locator:
    return page.locator('.state[data-kind="now"]')


def at(page: Page, state: str) -> None:
    expect(lit(page)).to_have_attribute("data-state", state)


def trail(page: Page) -> Locator:
    return page.locator(".trail-entry")


def slider(page: Page) -> Locator:
    return page.get_by_label("Point of the trail")


def stands(page: Page, status: str) -> None:
    expect(page.locator(".run-state")).to_have_text(status)


def answer(page: Page, label: str) -> None:
    question = page.locator(".question")
    question.get_by_label(label).check()
    question.get_by_role("button", name="Answer").click()


# --- where it is --------------------------------------------------------------------------------


def test_the_page_is_there_only_where_the_hub_has_machines(page: Page, site: Server, office: Server) -> None:
    page.goto(site.url)
    expect(page.get_by_role("link", name="Tools")).to_be_visible()
    expect(page.get_by_role("link", name="Machines")).to_have_count(0)
    assert site.get("/machines", accept="text/html").status == 404
    page.goto(office.url)
    page.get_by_role("link", name="Machines").click()
    page.get_by_role("navigation", name="Machines").get_by_role("link", name=re.compile("^approval")).click()
    expect(page.get_by_role("heading", name="approval")).to_be_visible()
    expect(page.locator(".state")).to_have_count(7)
    expect(page.locator(".way")).to_have_count(10)
    page.reload()
    expect(page.get_by_role("heading", name="approval")).to_be_visible()
    page.goto(f"{office.url}/machines?machine=nothing")
    expect(page.get_by_text("There is no machine nothing.")).to_be_visible()


# --- live ---------------------------------------------------------------------------------------


def test_a_run_is_started_and_seen_going_through_its_states(page: Page, office: Server) -> None:
    page.goto(f"{office.url}/machines?machine=loop")
    page.get_by_label("Question", exact=True).fill("What do I wear?")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(trail(page)).to_have_count(3)  # it waits for the model there
    at(page, "llm")
    stands(page, "Running")
    expect(page.locator('.way[data-kind="last"]')).to_have_count(1)
    expect(page.locator(".trail-event")).to_contain_text("rain in Bergen")
    shoot(page, "machines-loop")
    office.call("gates.open", name="What do I wear?")
    at(page, "end")
    stands(page, "Ended")
    expect(page.locator(".trail-event")).to_contain_text("Take an umbrella.")
    expect(page.locator('.state[data-kind="been"]')).to_have_count(3)


def test_what_does_not_fit_is_said_beside_the_form(page: Page, office: Server) -> None:
    page.goto(f"{office.url}/machines?machine=approval")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".field-fault")).to_have_text(["Required"] * 2)
    page.get_by_role("button", name="Edit as JSON").click()
    page.get_by_label("JSON", exact=True).fill('{"item": "a chair", "amount": 1, "id": 7}')
    page.get_by_role("button", name="Run", exact=True).click()
    stands(page, "Ended")


def test_a_question_is_answered_in_place(page: Page, office: Server) -> None:
    open_run(page, office, "approval", CHAIR)
    expect(page.locator(".question")).to_contain_text("May they buy a chair for 120?")
    stands(page, "Asks you")
    at(page, "boss")
    expect(lit(page)).to_have_attribute("data-asking", "true")
    shoot(page, "machines-asks")
    answer(page, "Yes, buy it")
    stands(page, "Ended")
    at(page, "end")
    expect(page.locator(".question")).to_have_count(0)
    expect(page.locator(".trail-event")).to_contain_text("a chair: 120.00 paid")
    expect(trail(page)).to_have_count(5)
    shoot(page, "machines-ended")


def test_two_people_look_at_one_run_and_one_of_them_answers(open_page: Open, office: Server) -> None:
    first, second = open_page(), open_page()
    run = open_run(first, office, "approval", CHAIR)
    second.goto(f"{office.url}/machines?machine=approval&run={run}")
    for page in (first, second):
        expect(page.locator(".question")).to_be_visible()
    answer(first, "Yes, buy it")
    for page in (first, second):
        stands(page, "Ended")
        expect(page.locator(".question")).to_have_count(0)


def test_what_is_answered_elsewhere_is_not_asked_any_more(page: Page, office: Server) -> None:
    run = open_run(page, office, "approval", CHAIR)
    expect(page.locator(".question")).to_be_visible()
    office.post(f"/fsm/approval/runs/{run}", {"answers": {"boss": "approved"}})
    expect(page.locator(".question")).to_have_count(0)
    stands(page, "Ended")
    expect(page.locator(".trail-event")).to_contain_text("a chair: 120.00 paid")


# --- the trail ----------------------------------------------------------------------------------


def test_a_slider_leads_through_the_trail_and_each_point_lights_its_state(page: Page, office: Server) -> None:
    run = open_run(page, office, "walk", {"left": 5, "stop": 3, "gate": "slider"})
    expect(trail(page)).to_have_count(5)
    at(page, "tick")
    slider(page).focus()
    page.keyboard.press("ArrowLeft")
    at(page, "tock")
    expect(slider(page)).to_have_attribute("aria-valuetext", "4 of 5: at tock")
    page.keyboard.press("Home")
    at(page, "tick")
    expect(page.locator('.way[data-kind="taken"]')).to_have_count(0)
    expect(page.locator(".trail-event")).to_contain_text('"gate": "slider"')
    office.call("gates.open", name="slider")  # it goes on, but what is looked at stays
    expect(page.locator(".trail-count")).to_have_text("1 of 12")
    stands(page, "Ended")
    at(page, "tick")
    trail(page).nth(3).click()
    at(page, "tock")
    page.keyboard.press("ArrowDown")
    expect(trail(page).nth(4)).to_be_focused()
    at(page, "tick")
    page.keyboard.press("End")
    at(page, "end")
    page.goto(f"{office.url}/machines?machine=walk&run={run}")
    at(page, "end")


def test_a_run_is_forked_from_the_middle_and_ends_otherwise(page: Page, office: Server) -> None:
    run = open_run(page, office, "approval", CHAIR)
    answer(page, "Yes, buy it")
    stands(page, "Ended")
    fork = page.get_by_role("button", name="Fork from here")
    expect(fork).to_be_disabled()  # nothing comes after the end
    trail(page).nth(1).click()
    at(page, "boss")
    fork.click()
    expect(page).not_to_have_url(re.compile(run))
    stands(page, "Asks you")
    at(page, "boss")
    expect(trail(page)).to_have_count(2)
    answer(page, "No")
    page.get_by_role("textbox", name=re.compile("Note")).fill("Too dear after all")
    page.get_by_role("button", name="Answer").click()
    stands(page, "Ended")
    expect(page.locator(".trail-event")).to_contain_text("Too dear after all")
    shoot(page, "machines-forked")
    runs = page.get_by_role("navigation", name="Runs of approval").get_by_role("link")
    expect(runs.first).to_contain_text("ended")
    page.goto(f"{office.url}/machines?machine=approval&run={run}")
    expect(trail(page)).to_have_count(5)  # the other one is as it was
    trail(page).first.click()
    page.get_by_role("button", name="Fork from here").click()  # from the very beginning
    expect(page).not_to_have_url(re.compile(run))
    stands(page, "Asks you")


def test_a_run_with_thousands_of_entries_is_shown_in_parts(page: Page, office: Server) -> None:
    open_run(page, office, "walk", {"left": 500})
    stands(page, "Ended")
    expect(page.locator(".trail-count")).to_have_text("1002 of 1002")
    expect(trail(page)).to_have_count(200)
    page.get_by_role("button", name="802 earlier").click()
    expect(page.locator(".trail-count")).to_have_text("802 of 1002")
    expect(trail(page)).to_have_count(200)
    slider(page).focus()
    page.keyboard.press("Home")
    expect(trail(page).first).to_contain_text("start")
    expect(page.get_by_role("button", name="802 later")).to_be_visible()


# --- what may happen to it ----------------------------------------------------------------------


def test_a_run_is_found_again_after_a_reload_and_answered(page: Page, office: Server) -> None:
    open_run(page, office, "approval", CHAIR)
    expect(page.locator(".question")).to_be_visible()
    page.reload()
    at(page, "boss")
    expect(trail(page)).to_have_count(2)
    answer(page, "Yes, buy it")
    stands(page, "Ended")
    page.reload()
    at(page, "end")
    expect(trail(page)).to_have_count(5)


def test_a_run_is_followed_through_a_restart_of_the_server(page: Page, tmp_path: Path) -> None:
    with web_server(tmp_path, target="web_machines:hub") as server:
        open_run(page, server, "approval", CHAIR)
        expect(page.locator(".question")).to_be_visible()
        server.kill()
        expect(page.get_by_text("Connection lost. Reconnecting…")).to_be_visible()
        server.start()
        expect(page.get_by_text("Connection lost")).to_have_count(0)
        answer(page, "Yes, buy it")
        stands(page, "Ended")
        expect(trail(page)).to_have_count(5)


def test_a_run_is_followed_at_one_worker_at_a_time_and_answered_there(
    open_page: Open, database: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one, two = (
        web_server(folder, "--journal", database, target="web_machines:hub", journal=False)
        for folder in folders
    )
    with one, two:
        first, second = open_page(), open_page()
        run = open_run(first, one, "approval", CHAIR)
        expect(first.locator(".question")).to_be_visible()
        second.goto(f"{two.url}/machines?machine=approval&run={run}")
        expect(second.locator(".question")).to_be_visible()
        stands(first, "Followed elsewhere")
        expect(first.locator(".question")).to_have_count(0)
        first.get_by_role("button", name="Follow it here").click()
        expect(first.locator(".question")).to_be_visible()
        stands(second, "Followed elsewhere")
        answer(first, "Yes, buy it")
        stands(first, "Ended")
        second.get_by_role("button", name="Follow it here").click()
        stands(second, "Ended")
        expect(trail(second)).to_have_count(5)


def test_a_run_that_gives_up_says_why(page: Page, office: Server) -> None:
    open_run(page, office, "stubborn", {})
    stands(page, "Gave up")
    at(page, "end")
    expect(lit(page)).to_have_attribute("data-troubled", "true")
    expect(page.locator(".trail-list .badge-danger")).to_have_text(["refused"] * 3 + ["gave up"])
    expect(page.locator(".trail-error")).to_contain_text("max-retries-exceeded")
    trail(page).nth(1).click()
    at(page, "stubborn")
    expect(page.locator(".trail-error")).to_contain_text("Legal ids here")
    shoot(page, "machines-gave-up")


def test_a_run_is_stopped_and_stays_stopped(page: Page, office: Server) -> None:
    open_run(page, office, "approval", CHAIR)
    expect(page.locator(".question")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    stands(page, "Failed")
    expect(page.get_by_role("alert").filter(has_text="Stopped on the page")).to_be_visible()
    expect(page.locator(".question")).to_have_count(0)
    page.reload()
    stands(page, "Failed")


def test_a_person_who_does_not_answer_in_time_ends_a_run(page: Page, office: Server) -> None:
    open_run(page, office, "hurry", {})
    expect(page.locator(".question-time")).to_contain_text("s left")
    stands(page, "Gave up")
    expect(page.locator(".question")).to_have_count(0)
    expect(page.locator(".trail-error")).to_contain_text("timeout")


def test_a_run_that_nobody_came_back_to_has_expired(page: Page, tmp_path: Path) -> None:
    with web_server(tmp_path, "--wait", "1", target="web_machines:hub") as server:
        run = begun(server, "approval", CHAIR)
        until(lambda: server.get(f"/calls/{run}").json["status"] == "waiting")
        server.kill()
        server.start()
        until(lambda: server.get(f"/calls/{run}").json["status"] == "expired")
        page.goto(f"{server.url}/machines?machine=approval&run={run}")
        stands(page, "Failed")
        expect(page.get_by_role("alert").filter(has_text="expired")).to_be_visible()


def test_a_run_of_somebody_else_is_not_to_be_seen(open_page: Open, tmp_path: Path) -> None:
    with web_server(tmp_path, target="web_machines:hub", MIDCALL_TOKENS=f"{KEYS} bob={BOB}") as server:
        run = begun(server, "approval", CHAIR, ADA)
        for token, own in ((ADA, True), (BOB, False)):
            page = open_page()
            page.goto(f"{server.url}/machines?machine=approval&run={run}")
            page.get_by_label("Key", exact=True).fill(token)
            page.keyboard.press("Enter")
            if own:
                expect(page.locator(".question")).to_be_visible()
                expect(page.locator(".run-link")).to_have_count(1)
            else:
                expect(page.get_by_role("alert").filter(has_text="There is no such run")).to_be_visible()
                expect(page.locator(".run-link, .question")).to_have_count(0)


def test_a_run_that_another_program_has_started_is_looked_at(page: Page, office: Server) -> None:
    asked = office.call("machines.approval", item="a desk", amount=99)
    run = asked["_meta"]["dev.midcall/callId"]
    page.goto(f"{office.url}/machines?machine=approval&run={run}")
    at(page, "boss")
    expect(page.get_by_text("Another program has started this run")).to_be_visible()
    expect(page.locator(".trail-event")).to_contain_text("a desk")
    expect(page.locator(".question")).to_have_count(0)
    chosen = {"boss": {"action": "accept", "content": {"choice": "approved"}}}
    office.call("machines.approval", state=asked, answers=chosen, item="a desk", amount=99)
    stands(page, "Ended")
    at(page, "end")


# --- large, and hostile -------------------------------------------------------------------------


def test_a_machine_of_twenty_states_is_led_by_a_person(page: Page, office: Server) -> None:
    open_run(page, office, "ticket", {})
    expect(page.locator(".state")).to_have_count(22)
    way = ["intake", "triage", "urgent", "assign", "diagnose", "reproduce", "fix", "review", "test", "stage"]
    for state, after in itertools.pairwise(way):
        at(page, state)
        if len(STAGES[state]) > 1:
            answer(page, f"to {after}")
        else:
            page.get_by_role("button", name="Yes").click()
    at(page, "stage")
    box, frame = lit(page).bounding_box(), page.locator(".drawing-frame").bounding_box()
    assert box is not None
    assert frame is not None
    assert frame["y"] <= box["y"]
    assert box["y"] + box["height"] <= frame["y"] + frame["height"]
    shoot(page, "machines-twenty")
    page.get_by_role("button", name="Fit").click()
    frame = page.locator(".drawing-frame").bounding_box()
    for name in ("start", "end"):
        box = page.locator(f'.state[data-state="{name}"]').bounding_box()
        assert box is not None
        assert frame is not None
        assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]
    shoot(page, "machines-twenty-fit")


def test_a_machine_of_two_hundred_states_is_drawn_and_run(page: Page, office: Server) -> None:
    open_run(page, office, "huge", {})
    stands(page, "Gave up")
    expect(page.locator(".state")).to_have_count(202)
    expect(page.locator(".trail-error")).to_contain_text("too-many-transitions")
    trail(page).nth(99).click()
    at(page, "s99")
    expect(lit(page)).to_be_in_viewport()
    shoot(page, "machines-huge")


def test_names_and_events_are_text_whatever_they_are(page: Page, office: Server) -> None:
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.add_init_script("window.alert = () => { throw new Error('a script has run'); }")
    open_run(page, office, "hostile", {"note": "<script>alert(5)</script>", "__proto__": {"x": HOSTILE[0]}})
    at(page, HOSTILE[0])
    question = page.locator(".question")
    expect(question).to_contain_text("<script>alert(2)</script>")
    expect(page.locator(".trail-event")).to_contain_text("<script>alert(5)</script>")
    assert page.locator("main img, main script, .drawing svg svg").count() == 0
    shoot(page, "machines-hostile")
    question.get_by_role("combobox").select_option(label=f"__proto__ {HOSTILE[0]}")
    question.get_by_role("button", name="Answer").click()
    at(page, "__proto__")
    expect(page.locator(".question")).to_contain_text("Is it")
    page.get_by_role("button", name="Yes").click()
    at(page, HOSTILE[0])
    page.get_by_text("8 states, 16 transitions").click()
    expect(page.locator(".drawing-text")).to_contain_text("]]></text></svg>")


# --- for everybody ------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_machines_fit_every_screen_and_axe_finds_nothing_serious(
    open_page: Open, office: Server, scheme: str, width: int
) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make web, which needs Node.js")
    page = open_page(width=width, height=820 if width > 400 else 740, scheme=scheme)

    def check(name: str) -> None:
        shoot(page, f"machines-{scheme}-{width}-{name}")
        assert serious_findings(page) == []
        assert overflow(page) == 0

    page.goto(f"{office.url}/machines")
    expect(page.locator(".machine-link").first).to_be_visible()
    check("list")
    page.goto(f"{office.url}/machines?machine=approval")
    expect(page.locator(".state").first).to_be_visible()
    page.locator(".drawing-text summary").click()
    check("start")
    open_run(page, office, "approval", CHAIR)
    expect(page.locator(".question")).to_be_visible()
    check("asks")
    answer(page, "Yes, buy it")
    stands(page, "Ended")
    check("ended")
    open_run(page, office, "stubborn", {})
    stands(page, "Gave up")
    check("gave-up")
    open_run(page, office, "ticket", {})
    at(page, "intake")
    check("ticket")


def test_a_run_is_started_answered_and_forked_by_keyboard_alone(page: Page, office: Server) -> None:
    page.goto(f"{office.url}/machines?machine=approval")
    expect(page.get_by_label("Item")).to_be_visible()

    def tab_to(locator: Locator) -> None:
        expect(locator).to_be_visible()
        for _ in range(60):
            if locator.evaluate("element => element === document.activeElement"):
                return
            page.keyboard.press("Tab")
        pytest.fail("It is not reached")

    tab_to(page.get_by_label("Item"))
    page.keyboard.type("a chair")
    page.keyboard.press("Tab")
    page.keyboard.type("120")
    page.keyboard.press("Enter")
    choice = page.get_by_label("Yes, buy it")
    expect(choice).to_be_focused()  # the question has come
    expect(page.get_by_test_id("announcer")).to_contain_text("May they buy a chair")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    stands(page, "Ended")
    tab_to(slider(page))
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    at(page, "boss")
    tab_to(page.locator('.trail-entry[aria-current="step"]'))
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Fork from here")).to_be_focused()
    page.keyboard.press("Enter")
    stands(page, "Asks you")
    expect(choice).to_be_focused()


def test_machines_work_below_a_path(page: Page) -> None:
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
        wait_for(f"http://127.0.0.1:{port}/office/health")
        page.goto(f"http://127.0.0.1:{port}/office/machines?machine=approval")
        page.get_by_label("Item").fill("a chair")
        page.get_by_label("Amount").fill("120")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(".question")).to_be_visible()
        page.reload()
        answer(page, "Yes, buy it")
        stands(page, "Ended")
    finally:
        mounted.terminate()
        mounted.wait(timeout=LIMIT)

"""Forms with null, enums, dates, nested models and files; and results that are shown. In Tools and in questions."""

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("web"), target="tools_app:hub") as serving:
        yield serving


def open_method(page: Page, site: Server, name: str) -> None:
    page.goto(f"{site.url}/tools?method={name}")
    expect(page.get_by_role("heading", name=name)).to_be_visible()


def run(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()


def result(page: Page) -> Any:
    shown = page.locator(".item-data")
    expect(shown).to_have_count(1)
    return json.loads(shown.locator("code").inner_text())


NOTHING = {
    "note": None,
    "gift": None,
    "colours": [],
    "colour": None,
    "size": None,
    "either": None,
    "pause": None,
    "day": "2030-12-31",
}


@pytest.mark.parametrize(("method", "send"), [("forms.order", "Run"), ("forms.asked", "Answer")])
def test_optional_fields_stay_null_and_can_be_set_and_unset(
    open_page: Open, site: Server, method: str, send: str
) -> None:
    page = open_page(timezone_id="Europe/Oslo")
    open_method(page, site, method)
    if send == "Answer":
        run(page)
    form: Locator = page.locator("form").last
    form.get_by_label("Day").fill("2030-12-31")
    form.get_by_label("At", exact=True).fill("2030-12-31T10:00:05")
    # Each is set, and unset again.
    form.get_by_label("Note").fill("x")
    form.get_by_label("Note").fill("")
    form.get_by_label("Gift").select_option("No")
    form.get_by_label("Gift").select_option("Not set")
    form.get_by_role("button", name="Add Size").click()
    form.get_by_role("button", name="Leave out Size").click()
    form.get_by_label("Kind of Either").select_option("Text")
    form.get_by_label("Kind of Either").select_option("Not set")
    form.get_by_label("blue").check()
    form.get_by_label("blue").uncheck()
    page.get_by_role("button", name=send, exact=True).click()
    got = result(page)
    assert got.pop("at") == "2030-12-31T10:00:05+01:00"
    assert got == NOTHING


def test_every_field_is_filled_in(page: Page, site: Server) -> None:
    open_method(page, site, "forms.order")
    page.get_by_label("Note").fill("fragile")
    page.get_by_label("Gift").select_option("Yes")
    page.get_by_label("red").check()
    page.get_by_label("blue").check()
    page.get_by_label("Colour optional").select_option("blue")
    page.get_by_label("Day").fill("2031-01-02")
    page.get_by_label("At", exact=True).fill("2031-01-02T08:30:00")
    page.get_by_role("button", name="Add Size").click()
    page.get_by_label("Width").fill("3")
    page.get_by_label("Kind of Either").select_option("Whole number")
    page.get_by_label("Either", exact=True).last.fill("7")
    page.get_by_label("Pause").fill("soon")
    run(page)
    expect(page.get_by_text("Must be a duration")).to_be_visible()
    page.get_by_label("Pause").fill("PT1H30M")
    shoot(page, "forms-order")
    run(page)
    got = result(page)
    assert (got["note"], got["gift"], got["colours"], got["colour"]) == (
        "fragile",
        True,
        ["red", "blue"],
        "blue",
    )
    assert (got["size"], got["either"], got["pause"]) == ({"width": 3, "height": None}, 7, "PT1H30M")


def test_a_file_is_chosen_removed_and_sent(page: Page, site: Server, tmp_path: Path) -> None:
    open_method(page, site, "forms.measure")
    run(page)
    expect(page.locator(".field-fault")).to_have_text("Required")
    file = tmp_path / "photo.bin"
    file.write_bytes(b"\xff\xd8\xff" + bytes(2997))
    chooser = page.get_by_label("File", exact=True)
    chooser.set_input_files(file)
    expect(page.locator(".file")).to_contain_text("photo.bin")
    expect(page.locator(".file")).to_contain_text("3.0 kB")
    shoot(page, "forms-file")
    page.get_by_role("button", name="Remove File").click()
    expect(page.locator(".file")).to_have_count(0)
    chooser.set_input_files(file)
    run(page)
    expect(page.locator(".item-data")).to_contain_text("3000 bytes, begins with b'\\xff\\xd8\\xff', one file")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(
    page: Page, site: Server, tmp_path: Path
) -> None:
    open_method(page, site, "forms.measure")
    file = tmp_path / "large.bin"
    file.write_bytes(bytes(10_000_001))
    page.get_by_label("File", exact=True).set_input_files(file)
    run(page)
    expect(page.locator(".field-fault")).to_contain_text("10 MB is the most")
    expect(page.locator(".run")).to_have_count(0)


def test_a_file_answers_a_question_on_a_phone(open_page: Open, site: Server, tmp_path: Path) -> None:
    page = open_page(width=360, height=740)
    open_method(page, site, "forms.upload")
    run(page)
    file = tmp_path / f"{'long-name-' * 12}.txt"
    file.write_text("hello")
    page.locator(".question").get_by_label("File").set_input_files(file)
    assert overflow(page) <= 0
    shoot(page, "narrow-question-file")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".item-data")).to_contain_text("5 bytes were answered")


# --- results ----------------------------------------------------------------------------------


def test_content_of_every_kind_is_shown_and_no_base64(page: Page, site: Server, tmp_path: Path) -> None:
    open_method(page, site, "results.all")
    run(page)
    shown = page.locator(".item-data")
    image = shown.locator("img")
    expect(image).to_be_visible()
    page.wait_for_function("() => document.querySelector('.item-data img').naturalWidth === 64")
    expect(shown.locator("audio")).to_be_visible()
    page.wait_for_function("() => document.querySelector('audio').readyState > 0")
    link = shown.get_by_role("link", name="The report")
    expect(link).to_have_attribute("href", "https://example.com/report")
    expect(shown).to_contain_text("numbers.bin")
    expect(shown).to_contain_text("application/octet-stream, 2.5 kB")
    expect(shown).to_contain_text("Read me")
    expect(shown).to_contain_text("Some text")
    assert "AAAAAAAA" not in shown.inner_text()
    shoot(page, "results-content")
    with page.expect_download() as saved:
        shown.get_by_role("button", name="Download numbers.bin").click()
    saved.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == bytes(2500)
    assert saved.value.suggested_filename == "numbers.bin"
    page.get_by_role("button", name="Items").click()
    expect(page.get_by_role("region", name="items")).to_contain_text("of base64")


def test_a_stream_of_pictures_and_bytes_are_shown(page: Page, site: Server) -> None:
    open_method(page, site, "results.stream")
    run(page)
    expect(page.locator(".item-data img")).to_have_count(2)
    open_method(page, site, "results.bytes")
    run(page)
    expect(page.locator(".run .file")).to_contain_text("bytes.bin")
    expect(page.locator(".run .file")).to_contain_text("1.5 kB")


def test_hostile_results_do_no_harm(page: Page, site: Server) -> None:
    dialogs = list[str]()
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    open_method(page, site, "results.hostile")
    run(page)
    expect(page.locator(".run-status")).to_contain_text("done")
    shown = page.locator(".item-data")
    expect(shown).to_contain_text("<img src=x onerror=alert(4)>")
    assert shown.locator("a").count() == 0
    assert shown.locator("script, iframe, img:not([src^='data:image/'])").count() == 0
    expect(shown.locator(".file-name").last).to_have_text("b>gnp.html")  # and not turned round
    with page.expect_download() as saved:
        shown.get_by_role("button", name="Download").last.click()
    assert "/" not in saved.value.suggested_filename
    assert dialogs == []


def test_a_huge_result_is_cut_and_the_page_stays_alive(page: Page, site: Server) -> None:
    open_method(page, site, "results.huge")
    run(page)
    expect(page.get_by_text("Copy gives all of it")).to_be_visible()
    expect(page.locator(".run-status")).to_contain_text("done")
    page.get_by_role("button", name="Items").click()
    expect(page.get_by_text("Copy gives all of it")).to_be_visible()

"""A server with the web client, and a real browser to look at it: a plugin of pytest."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from operating import Server
from web_browser import PATIENCE, Open, chromium, note, web_server


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a module."""
    with web_server(tmp_path_factory.mktemp("web")) as serving:
        yield serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens pages, each in a browser of its own; all must be without errors at the end."""
    faults: list[str] = []
    contexts: list[Any] = []

    def opened(width: int = 1280, height: int = 820, scheme: str = "light", **options: Any) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            **options,
        )
        context.set_default_timeout(PATIENCE)
        context.on("console", lambda message: note(message, faults))
        context.on("weberror", lambda error: faults.append(f"uncaught: {error.error}"))
        contexts.append(context)
        return context.new_page()

    yield opened
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def page(open_page: Open) -> Page:
    return open_page()

"""What the tests of the web client share; `web_fixtures` has what pytest gives to them.

Chromium is the one that the system has (or `MIDCALL_CHROMIUM` names), driven by Playwright. Each page must end
without an error in its console, also none of the Content-Security-Policy. Pictures go to `tests/screenshots`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from driving import LIMIT
from midcall.transports.web import BUILT
from operating import Server

HERE = Path(__file__).parent
SCREENSHOTS = HERE.parent / "screenshots"
AXE = HERE.parents[1] / "web" / "node_modules" / "axe-core" / "axe.min.js"

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 1000 * LIMIT
"""Milliseconds for anything to appear, on a machine that has other things to do."""

expect.set_options(timeout=PATIENCE)

Open = Callable[..., Page]


def chromium() -> str:
    found = os.environ.get("MIDCALL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("No Chromium: apt-get install chromium, or name one in MIDCALL_CHROMIUM")
    return found


def web_server(
    folder: Path, *options: str, target: str = "web_app:hub", journal: bool = True, **more: str
) -> Server:
    """A server with the web client, which must have been built."""
    if not (BUILT / "index.html").is_file():
        pytest.skip("The web client is not built: make web, which needs Node.js")
    module = ("--web-module", str(HERE / "web_rating.js"))
    state = str(folder / "state")
    return Server(folder, *module, *options, target=target, journal=journal, MIDCALL_STATE=state, **more)


def note(message: ConsoleMessage, faults: list[str]) -> None:
    """Remember a fault that a page has written to its console."""
    if message.type != "error":
        return
    lost_line = "Failed to load resource" in message.text or "WebSocket connection" in message.text
    if not lost_line:  # what the server answers, and that it is gone, is the business of the test
        faults.append(message.text)


def shoot(page: Page, name: str) -> None:
    """Keep a picture, for people to look at."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def serious_findings(page: Page) -> list[str]:
    """What axe-core finds against accessibility that keeps people from using the page."""
    page.evaluate(AXE.read_text())
    result = page.evaluate(
        "() => axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
    )
    return [
        f"{violation['impact']}: {violation['id']}: {node['html'][:150]}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def focused(page: Page) -> str:
    """What has the focus, as a person hears it."""
    return str(
        page.evaluate(
            """() => {
                const e = document.activeElement;
                const label = e.getAttribute("aria-label") ?? e.labels?.[0]?.textContent;
                return label ?? e.textContent.slice(0, 80);
            }"""
        )
    )

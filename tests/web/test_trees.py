"""A tree in the page Tools, in a real browser: threads on a line, branches that open and close."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from driving import drive
from midcall import connect
from operating import Server
from web_browser import Open, overflow, serious_findings, shoot, web_server

pytest_plugins = ("web_fixtures",)
pytestmark = pytest.mark.timeout(300)

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(tmp_path_factory.mktemp("trees"), target="midcall.activations:hub") as serving:
        yield serving


def grown(server: Server, *nodes: tuple[str, int | None, str]) -> str:
    """The id of a tree with these nodes, each with the place of its parent among them, and who says it."""

    async def grow() -> str:
        async with connect(f"{server.url}/mcp") as client:

            async def arbor(method: str, **given: Any) -> Any:
                return (await client.call(f"arbor_{method}", given)).structured

            tree = (await arbor("tree_create", owner_id="test"))["tree_id"]
            made: list[str] = []
            for text, parent, role in nodes:
                above = {} if parent is None else {"parent": made[parent]}
                given = {"tree_id": tree, "content": text, "metadata": {"role": role}, **above}
                made.append((await arbor("node_create_text", **given))["node_id"])
            return str(tree)

    with ThreadPoolExecutor(1) as thread:  # Playwright has the event loop of this one
        return thread.submit(drive, grow()).result()


def show(page: Page, server: Server, tree: str, method: str = "tree_get") -> None:
    page.goto(f"{server.url}/tools?method=arbor.{method}")
    page.get_by_label("Tree id").fill(tree)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".run")).to_contain_text("done after")


def test_a_conversation_is_drawn_with_its_branches(open_page: Open, built_in: Server) -> None:
    tree = grown(
        built_in,
        ("Where shall we go?", None, "user"),
        ("To the sea, or to the hills?", 0, "assistant"),
        ("To the sea.", 1, "user"),
        ("Then take the train.", 2, "assistant"),
        ("To the hills.", 1, "user"),
        (f"Mind the {HOSTILE} " + "and more " * 40, 4, "assistant"),
    )
    page = open_page()
    show(page, built_in, tree)
    drawing = page.get_by_role("region", name=f"Tree {tree}")
    expect(drawing.locator(".tree-node")).to_have_count(7)  # with the root
    expect(drawing).to_contain_text("active 7 nodes")
    branches = drawing.locator(".tree-branch")
    expect(branches).to_have_count(2)
    left = branches.first
    expect(left).to_contain_text("Then take the train.")
    left.locator("> summary").click()
    expect(drawing.get_by_text("Then take the train.")).to_be_hidden()
    expect(left.locator("> summary")).to_have_text("To the sea.")
    expect(drawing).to_contain_text("To the hills.")
    long = drawing.locator("details.tree-text")
    expect(long).not_to_have_attribute("open", "")
    long.locator("summary").press("Enter")
    expect(long).to_contain_text(HOSTILE)
    shoot(page, "tree")
    assert serious_findings(page) == []
    page.get_by_role("button", name="Items").click()
    expect(page.locator(".run")).to_contain_text('"tree_data"')


def test_a_long_thread_stays_on_one_line_and_is_shown_in_parts(open_page: Open, built_in: Server) -> None:
    tree = grown(built_in, *[(f"word {n}", n - 1 if n else None, "user") for n in range(150)])
    page = open_page(width=390)
    show(page, built_in, tree, "tree_get_skeleton")
    nodes = page.locator(".tree-node")
    expect(nodes).to_have_count(100)
    page.get_by_role("button", name="Show more").click()
    expect(nodes).to_have_count(151)
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)
    assert overflow(page) == 0

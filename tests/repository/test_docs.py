"""The documentation is true: links lead somewhere, what it shows runs, and the site builds."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import midcall
from docs_page import ROOT, read_blocks
from driving import LIMIT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CHECKED = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *PAGES]
PLAYED = [path for path in CHECKED if any(read_blocks(path.read_text()))]

_LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(path: Path) -> Iterator[str]:
    for one in _LINK.finditer(_CODE.sub("", path.read_text())):
        link = unquote(one[1] or one[2])
        if not re.match(r"[a-z][a-z0-9+.-]*:", link):
            yield link


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as the site and GitHub make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    made = set()
    for heading in _HEADING.findall(text):
        words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        made.add(re.sub(r"[-\s]+", "-", words))
    return made


def pages_of(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case list():
            for one in nav:
                yield from pages_of(one)
        case dict():
            for one in nav.values():
                yield from pages_of(one)


@pytest.mark.parametrize("path", CHECKED, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for link in links(path):
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{link}: no such file"
        if path in PAGES:
            assert file.is_relative_to(DOCS), f"{link}: leads out of the site"
        if anchor:
            assert anchor in anchors(file), f"{link}: no such heading"


@pytest.mark.parametrize("path", CHECKED, ids=name_of)
def test_no_page_has_the_markers_of_an_unfinished_merge(path: Path) -> None:
    assert not re.search(r"^(<{7}|={7}|>{7})", path.read_text(), re.MULTILINE)


def test_the_navigation_has_every_page_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    listed = list(pages_of(config["project"]["nav"]))
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_every_page_is_linked_from_the_first_one() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(DOCS / "index.md")}
    assert {name_of(page) for page in PAGES if page not in linked} == {"docs/index.md"}


COMMANDS = [
    ["serve"], ["dev"], ["proxy"], ["call"], ["tools"], ["inspect"], ["install"], ["demo"], ["completion"],
    *(["fsm", action] for action in ("list", "show", "check", "draw", "run")),
    *(["calls", action] for action in ("list", "show", "answer", "abort", "fork", "export", "import")),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_of_a_command_is_in_the_reference(command: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "midcall", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ran.stdout.partition("examples:")[0]))
    page = (DOCS / "reference" / "command-line.md").read_text()
    assert options - set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) == set()


def test_every_public_name_is_in_the_reference() -> None:
    words = set(re.findall(r"\w+", "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))))
    assert set(midcall.__all__) - words == set()


@pytest.fixture(scope="module")
def played() -> Iterator[dict[Path, Future[subprocess.CompletedProcess[str]]]]:
    """All pages, being played side by side."""
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        yield {path: pool.submit(play, path) for path in PLAYED}


def play(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "docs_page.py"), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("path", PLAYED, ids=name_of)
def test_what_a_page_shows_is_what_happens(
    path: Path, played: dict[Path, Future[subprocess.CompletedProcess[str]]]
) -> None:
    ran = played[path].result()
    assert ran.returncode == 0, ran.stdout


def test_the_site_builds_without_a_warning_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs")
    ran = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    built = list((tmp_path / "site").rglob("*.html"))
    assert len(built) >= len(PAGES)
    for page in built:
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="((?:https?:)?//[^"]+)"', text)
        assert not loaded, f"{page.name} loads {loaded}"
        assert "```" not in text, f"{page.name}: a fence was not understood"

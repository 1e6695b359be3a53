"""The wheel, installed where there is neither Node.js nor this checkout, serves the page.

The wheel and the source distribution are made by the build backend itself; what is installed comes from the
package index. Where that cannot be reached nothing of this can be shown, and the tests are skipped.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chatting import Person, only
from peers import HERE, free_port, wait_for

ROOT = HERE.parents[1]
PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"
DEMO = "midcall.activations.demo:hub"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the build backend, from the package index."""
    if _page_of(ROOT).returncode != 0:
        without = _page_of(ROOT, "--optional")
        assert without.returncode == 0, without.stderr
        pytest.skip("The web client is not built of these sources: make web, which needs Node.js")
    folder = tmp_path_factory.mktemp("backend")
    done = _pip("install", "--retries", "1", "--target", folder, "hatchling>=1.27")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        pytest.skip(f"Nothing can be installed: the package index does not give hatchling ({said[-1]})")
    return folder


@pytest.fixture(scope="module")
def wheel(backend: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return _build(backend, "wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    done = _pip("--python", folder, "install", "--no-compile", wheel)
    assert done.returncode == 0, done.stderr
    return folder


def test_an_installed_wheel_serves_the_page_and_the_chat_where_there_is_no_node(
    installed: Path, wheel: Path, tmp_path: Path
) -> None:
    bare = _bare(installed, tmp_path)
    assert shutil.which("node", path=bare["PATH"]) is None
    assert _says(installed, bare, "import midcall; print(midcall.__file__)").is_relative_to(installed)
    with _served(installed, bare) as port:
        page = _fetch(port, "/", PAGE).decode()
        assert '<div id="root">' in page
        assets = _files_of(wheel, "midcall/web/assets/")
        assert set(re.findall(r'(?:src|href)="/assets/([^"]+)"', page)) <= assets.keys()
        for name, content in assets.items():
            assert _fetch(port, f"/assets/{name}") == content, name
        assert b'"scripted":true' in _fetch(port, "/chat/info")
        events = asyncio.run(Person(port).say("Book a flight from Paris to Rome"))
        assert only(events, "plugin_elicit_request")["component"]["name"] == "FlightList"


def test_a_source_distribution_is_enough_to_build_the_same_wheel_without_node(
    backend: Path, wheel: Path, tmp_path: Path
) -> None:
    archive = _build(backend, "sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("midcall-*")
    whole = _page_of(
        unpacked, PATH="/nowhere"
    )  # which fails unless the page is made of the sources beside it
    assert whole.returncode == 0, whole.stderr
    assert not (unpacked / "web" / "node_modules").exists()
    again = _build(backend, "wheel", unpacked, tmp_path / "wheel", PATH="/nowhere")
    assert _files_of(again).keys() == _files_of(wheel).keys()
    assert _files_of(again, "midcall/web/") == _files_of(wheel, "midcall/web/")


def _pip(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def _page_of(source: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Have the page built, unless it is there and made of the sources that are there."""
    return subprocess.run(
        [sys.executable, source / "scripts" / "web.py", "build", *flags],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def _build(backend: Path, what: str, source: Path, folder: Path, **environment: str) -> Path:
    """Let the build backend make a distribution of the source; give its path."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", what, "--directory", folder],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(backend), **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (made,) = (path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    return made


def _bare(installed: Path, folder: Path) -> dict[str, str]:
    """An environment in which nothing but the installation can be found."""
    return {"PATH": str(installed / "bin"), "HOME": str(folder), "MIDCALL_STATE": str(folder)}


def _says(installed: Path, bare: dict[str, str], code: str) -> Path:
    """The path that a program prints which runs in the installation."""
    done = subprocess.run(
        [installed / "bin" / "python", "-c", code],
        env=bare,
        cwd=bare["HOME"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return Path(done.stdout.strip())


@contextmanager
def _served(installed: Path, bare: dict[str, str]) -> Iterator[int]:
    """The port at which the demo is served by the command of the installation."""
    port = free_port()
    server = subprocess.Popen(
        [installed / "bin" / "midcall", "serve", DEMO, "--port", str(port), "--journal", "memory"],
        env=bare,
        cwd=bare["HOME"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield port
    finally:
        server.terminate()
        _, said = server.communicate(timeout=60)
    assert server.returncode == 0, said


def _files_of(wheel: Path, folder: str = "") -> dict[str, bytes]:
    """The files in a folder of a wheel, by their names there."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name.removeprefix(folder): archive.read(name)
            for name in archive.namelist()
            if name.startswith(folder)
        }


def _fetch(port: int, path: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())

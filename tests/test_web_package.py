"""The wheel has the web client, and needs no Node.js to serve it."""

import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from midcall.transports.web import BUILT
from peers import HERE, environment, free_port, wait_for

PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.timeout(600)
def test_the_wheel_serves_the_page_where_there_is_no_node(tmp_path: Path) -> None:
    if not (BUILT / "index.html").is_file():
        pytest.skip("The web client is not built: make web, which needs Node.js")
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, HERE.parent],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    port = free_port()
    bare = {**environment(), "PYTHONPATH": str(unpacked), "PATH": "/nowhere", "MIDCALL_STATE": str(tmp_path)}
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "midcall", "serve", "--port", str(port), "--journal", "memory"],
        env=bare,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        located = subprocess.run(
            [sys.executable, "-P", "-c", "import midcall; print(midcall.__file__)"],
            env=bare,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert str(unpacked) in located.stdout
        answer = _fetch(port, "/", PAGE)
        assert '<div id="root">' in answer
        for part in re.findall(r'(?:src|href)="(/assets/[^"]+)"', answer):
            assert _fetch(port, part, "*/*")
    finally:
        server.terminate()
        server.communicate(timeout=20)


def _fetch(port: int, path: str, accept: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as response:
        return str(response.read().decode())

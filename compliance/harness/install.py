"""Puts Node and both versions of the conformance suite into a folder, once."""

import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

OLDEST_NODE = 22
NODE_FROM_NPM = "24"
CONFORMANCE = "@modelcontextprotocol/conformance"


class InstallError(Exception):
    """Something that the suites need cannot be had on this machine."""


@dataclass(frozen=True)
class Tool:
    """One installed version of the conformance suite."""

    version: str
    node: Path
    script: Path

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs it."""
        return [str(self.node), str(self.script), *arguments]


def install(folder: Path, version: str, say: Callable[[str], None]) -> Tool:
    """Return this version of the suite, installing what is not there yet."""
    node = _node(folder, say)
    prefix = folder / f"conformance-{version}"
    package = prefix / "node_modules" / CONFORMANCE
    _npm_install(prefix, package, CONFORMANCE, version, say)
    return Tool(version, node, package / "dist" / "index.js")


def _node(folder: Path, say: Callable[[str], None]) -> Path:
    found = shutil.which("node")
    if found and _major(found) >= OLDEST_NODE:
        return Path(found)
    name = f"node-{platform.system().lower()}-{_architecture()}"
    prefix = folder / "node"
    package = prefix / "node_modules" / name
    _npm_install(prefix, package, name, NODE_FROM_NPM, say)
    node = package / "bin" / "node"
    if not node.exists() or _major(str(node)) < OLDEST_NODE:
        raise InstallError(f"{name} has no Node {OLDEST_NODE} or later. Install one by hand and try again.")
    return node


def _npm_install(prefix: Path, package: Path, name: str, version: str, say: Callable[[str], None]) -> None:
    if _is_installed(package, version):
        return
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("npm is not installed. The conformance suites need Node 18 or later with npm.")
    say(f"installing {name}@{version}")
    prefix.mkdir(parents=True, exist_ok=True)
    wanted = f"{name}@{version}"
    done = subprocess.run(
        [npm, "install", "--prefix", str(prefix), "--no-audit", "--no-fund", "--loglevel=error", wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not _is_installed(package, version):
        raise InstallError(f"npm could not install {wanted}:\n{done.stderr.strip()}")


def _is_installed(package: Path, version: str) -> bool:
    try:
        found: str = json.loads((package / "package.json").read_text())["version"]
    except (OSError, ValueError, KeyError):
        return False
    return found == version or found.startswith(f"{version}.")


def _major(node: str) -> int:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    digits = done.stdout.strip().removeprefix("v").split(".")[0]
    return int(digits) if digits.isdigit() else 0


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(machine, machine)

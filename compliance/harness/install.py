"""Puts Node, and packages of npm and PyPI, into a folder, once."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST_NODE = 22
NODE_FROM_NPM = "24"
CONFORMANCE = "@modelcontextprotocol/conformance"


class InstallError(Exception):
    """Something that is needed cannot be had on this machine."""


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
    prefix = npm_package(folder, CONFORMANCE, version, say)
    return Tool(version, node(folder, say), prefix / "node_modules" / CONFORMANCE / "dist" / "index.js")


def npm_package(folder: Path, name: str, version: str, say: Callable[[str], None]) -> Path:
    """Return the folder whose `node_modules` has this package, installing it if it is not there yet."""
    prefix = folder / f"{name.rpartition('/')[2]}-{version}"
    _npm_install(prefix, prefix / "node_modules" / name, name, version, say)
    return prefix


def python_package(
    folder: Path,
    name: str,
    version: str,
    overrides: Sequence[str],
    say: Callable[[str], None],
    also: Sequence[str] = (),
) -> Path:
    """Return the Python of an environment that has this package, making it if it is not there yet.

    `overrides` replace what packages require of others, which uv can do and pip cannot. `also` are installed
    with it.
    """
    prefix = folder / f"{name}-{version}"
    python = prefix / "bin" / "python"
    folder_name = f"{name.replace('-', '_')}-{version}.dist-info"
    if not any(prefix.glob(f"lib/python*/site-packages/{folder_name}")):
        say(f"installing {name} {version}")
        shutil.rmtree(prefix, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(prefix)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"])
        replaced = prefix / "overrides.txt"
        replaced.write_text("".join(f"{override}\n" for override in overrides))
        uv = [str(python), "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
        _run([*uv, "--override", str(replaced), f"{name}=={version}", *also])
    return python


def node(folder: Path, say: Callable[[str], None]) -> Path:
    """Return a Node that is new enough, installing one if this machine has none."""
    found = shutil.which("node")
    if found and _major(found) >= OLDEST_NODE:
        return Path(found)
    name = f"node-{platform.system().lower()}-{_architecture()}"
    prefix = folder / "node"
    package = prefix / "node_modules" / name
    _npm_install(prefix, package, name, NODE_FROM_NPM, say)
    script = package / "bin" / "node"
    if not script.exists() or _major(str(script)) < OLDEST_NODE:
        raise InstallError(f"{name} has no Node {OLDEST_NODE} or later. Install one by hand and try again.")
    return script


def _npm_install(prefix: Path, package: Path, name: str, version: str, say: Callable[[str], None]) -> None:
    if _is_installed(package, version):
        return
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("npm is not installed. Compliance needs Node 18 or later with npm.")
    say(f"installing {name}@{version}")
    prefix.mkdir(parents=True, exist_ok=True)
    wanted = f"{name}@{version}"
    _run([npm, "install", "--prefix", str(prefix), "--no-audit", "--no-fund", "--loglevel=error", wanted])
    if not _is_installed(package, version):
        raise InstallError(f"npm did not install {wanted}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


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

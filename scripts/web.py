#!/usr/bin/env python3
"""Build and check the web client: scripts/web.py build|check|format [--optional]

`build` puts it into src/midcall/web, from where it is served and packed into the wheel; if it is of these
sources already, as the one that the repository carries should be, it does nothing. `check` is style, types,
unit tests, and whether the page that is there is what the sources build. Both need Node.js 20.19 or later,
and npm; with `--optional` it is only said that there is none.

Only the standard library is used, as the build of the wheel runs this too.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
BUILT = ROOT / "src" / "midcall" / "web"
MARK = BUILT / "built-from.txt"
OLDEST_NODE = (20, 19)

CHECKS = {
    "style": ("biome", "ci", "--log-level=warn", "."),
    "types": ("tsc", "--noEmit"),
    "unit tests": ("vitest", "run", "--reporter=dot"),
}


class NoNode(Exception):
    """There is no Node.js, or none that is new enough."""


def say(text: str) -> None:
    print(f"web: {text}", file=sys.stderr, flush=True)


def check_node() -> None:
    """Raise `NoNode` unless there is what is needed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NoNode("Node.js and npm are not installed")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    found = tuple(int(part) for part in said.lstrip("v").split(".")[:2])
    if found < OLDEST_NODE:
        raise NoNode(f"Node.js {said} is too old: {'.'.join(map(str, OLDEST_NODE))} or later is needed")


def sources() -> str:
    """A digest of everything that the page is made of."""
    digest = hashlib.sha256()
    for path in sorted(path for path in WEB.rglob("*") if path.is_file()):
        name = path.relative_to(WEB)
        if name.parts[0] != "node_modules" and ".test." not in name.name:
            digest.update(f"{name.as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def is_built() -> bool:
    """Whether the page that lies there was made of these sources."""
    return MARK.is_file() and MARK.read_text() == sources() and (BUILT / "index.html").is_file()


def install() -> None:
    """Get the packages that are written down in the lock file, if they are others than last time."""
    wanted = hashlib.sha256(
        (WEB / "package.json").read_bytes() + (WEB / "package-lock.json").read_bytes()
    ).hexdigest()
    mark = WEB / "node_modules" / ".installed"
    if mark.is_file() and mark.read_text() == wanted:
        return
    say("installing packages (a minute, the first time)")
    subprocess.run(["npm", "ci", "--loglevel=error"], cwd=WEB, check=True, stdout=sys.stderr)
    mark.write_text(wanted)


def tool(name: str) -> str:
    return str(WEB / "node_modules" / ".bin" / name)


def build() -> None:
    """Build the page, unless it is there."""
    if is_built():
        return
    check_node()
    made_of = sources()
    install()
    bundle(BUILT)
    MARK.write_text(made_of)
    say(f"built into {BUILT.relative_to(ROOT)}")


def bundle(folder: Path) -> None:
    """Build the page into a folder, which has nothing else then."""
    command = [tool("vite"), "build", "--logLevel", "warn", "--outDir", str(folder), "--emptyOutDir"]
    subprocess.run(command, cwd=WEB, check=True, stdout=sys.stderr)


def is_as_built() -> bool:
    """Whether the page that is there is what the sources build; tells what is not."""
    with tempfile.TemporaryDirectory() as folder:
        bundle(Path(folder))
        made, there = files_in(Path(folder)), files_in(BUILT)
    for name in (MARK.name, "sizes.json"):  # how well files can be packed depends on the version of zlib
        made.pop(name, None)
        there.pop(name, None)
    wrong = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    say(f"the page differs from what the sources build: {', '.join(wrong)}" if wrong else "page passed")
    return not wrong


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def check() -> bool:
    """Style, types and unit tests, at once; tells which fail."""
    check_node()
    install()
    running = {
        what: subprocess.Popen(
            [tool(command[0]), *command[1:]],
            cwd=WEB,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for what, command in CHECKS.items()
    }
    passed = True
    for what, process in running.items():
        output, _ = process.communicate()
        if process.returncode:
            passed = False
            say(f"{what} failed\n{output}")
        else:
            say(f"{what} passed")
    return is_as_built() and passed


def reshape() -> None:
    """Put the code into shape."""
    check_node()
    install()
    subprocess.run([tool("biome"), "check", "--write", "."], cwd=WEB, check=True)


def main(arguments: list[str]) -> int:
    optional = "--optional" in arguments
    words = [word for word in arguments if word != "--optional"]
    try:
        match words:
            case ["build"]:
                build()
            case ["check"]:
                return 0 if check() else 1
            case ["format"]:
                reshape()
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except NoNode as error:
        served = "The page that is there is served" if MARK.is_file() else "The server shows a plain page"
        say(f"{error}. {served} instead of one of these sources")
        return 0 if optional else 1
    except subprocess.CalledProcessError as error:
        say(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

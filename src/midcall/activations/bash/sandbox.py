"""Sandboxes: what a command sees, what it can write, and whether it has the network.

A command sees the programs of the system, the folder in which the server was started, and what the settings
name: nothing else of the file system is there, neither homes nor `/run` nor `/var`. What runs without a
question can write nothing at all, but a `/tmp` of its own, and has no network, whatever the settings say.
Only what a person has permitted gets the folders and the network of the settings.

bubblewrap if it works here, else Landlock, else none; whether it works is found out by trying. With none,
every command is asked about.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from midcall.activations.bash import launcher
from midcall.activations.bash.rules import ConfigError, SandboxSettings, expanded, resolved
from midcall.journal.seal import state_directory

TRYING = 20.0
"""Seconds that a sandbox has to show that it works."""

PYTHON = os.path.realpath(sys.executable)
LAUNCH = (PYTHON, "-I", "-S", "-c", Path(launcher.__file__).read_text())
"""Starts the launcher. Its text is read once: no command can change what the next one is started by."""
INNER = (PYTHON, "-I", "-S", "-c", (Path(launcher.__file__).parent / "inner.py").read_text())

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/nix/store")
"""Where programs are, and what they need."""


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder, or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def system_program(name: str) -> str | None:
    """Where a program of the system is. One that a command has put on `PATH` is none."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.realpath(os.path.join(folder, name))  # noqa: PTH118
        if any(is_below(path, one) for one in SYSTEM) and os.access(path, os.X_OK):
            return path
    return None


SERVER = tuple(
    dict.fromkeys(
        os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, Path(__file__).parent.parent.parent)
    )
)
"""What the server runs from: no command may write it, wherever it is."""

GIT = ("config", "hooks")
"""What no command may write of a repository: git runs what stands there, also out of the sandbox, and no diff
shows it."""

HIDDEN = (
    "~", "~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.netrc", "~/.npmrc",
    "~/.pypirc", "~/.pgpass", "~/.my.cnf", "~/.git-credentials", "~/.config", "~/.cargo/credentials",
    "~/.cargo/credentials.toml", "~/.gem/credentials", "~/.m2/settings.xml", "~/.gradle/gradle.properties",
    "~/.vault-token", "~/.terraform.d", "~/.terraformrc", "~/.boto", "~/.s3cfg", "~/.password-store",
    "~/.local/share", "~/.local/state", "~/.mozilla", "~/.thunderbird", "~/.bash_history", "~/.zsh_history",
    "~/.python_history", "~/.node_repl_history", "~/.psql_history", "~/.mysql_history", "~/.sqlite_history",
    "~/.lesshst", "~/.viminfo", "~/.claude", "~/.claude.json", "~/.codex", "~/.gemini", "~/.huggingface",
    "~/.cache/huggingface", "~/.kaggle", "~/.databrickscfg", "~/.snowflake", "~/.oci", "~/.fly",
    "~/.Xauthority", "~/.ICEauthority", "/run", "/var/run", "/etc/shadow", "/etc/shadow-", "/etc/gshadow",
    "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssl/private", "/etc/ssh", "/etc/krb5.keytab",
    "/etc/wireguard", "/etc/openvpn", "/etc/NetworkManager/system-connections",
)  # fmt: skip
"""Where secrets usually are. They stay hidden if what they are in is shown."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

Kind = Literal["bwrap", "landlock", "none"]


class Sandbox(Struct, frozen=True, dict=True):
    """What commands are run in."""

    kind: Kind
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False
    hidden: tuple[str, ...] = ()
    megabytes: int = 1024
    """How much there may be in a `/tmp` of its own."""
    why: str = ""
    """Why it is none, or not the best one."""

    @property
    def shown(self) -> str:
        """For the person who is asked."""
        if self.kind == "none":
            return "without a sandbox" + (f" ({self.why})" if self.why else "")
        where = ", ".join(self.write) if self.write else "nowhere"
        return f"in a sandbox ({self.kind}): writes {where}; {'has the' if self.network else 'no'} network"

    @property
    def read_only(self) -> "Sandbox":
        """The same for what no person has permitted."""
        return replace(self, read=(*self.read, *self.write), write=(), network=False)

    def without(self, files: Iterable[str]) -> "Sandbox":
        """The same, but for these files. Raises `ConfigError` if one is where commands could change it."""
        for path in files:
            refuse_writable(path, self.write)
        return replace(self, hidden=(*self.hidden, *(one for path in files for one in (path, f"{path}-wal"))))

    def hides(self, path: str) -> bool:
        """Whether a path is of what commands are not to see."""
        return self._nearest(path) == "hide"

    def sees(self, path: str) -> bool:
        """Whether commands see a path."""
        return self._nearest(path) in ("read", "write") or (self.kind == "none" and not self.hides(path))

    def _nearest(self, path: str) -> str | None:
        real = resolved(path)
        if real is None:
            return "hide"
        found = [place for place in self._places if is_below(real, place)]
        return self._places[max(found, key=len)] if found else None

    @cached_property
    def _places(self) -> dict[str, str]:
        """What is hidden, read and written, by path; what is deeper in another one counts more."""
        made = {**dict.fromkeys(self.hidden, "hide"), **dict.fromkeys((*SYSTEM, *self.read), "read")}
        made |= dict.fromkeys(self.write, "write")
        for path in (*SERVER, *(f"{folder}/.git/{name}" for folder in self.write for name in GIT)):
            for folder in (str(one) for one in Path(path).parents):
                if any(is_below(folder, one) for one in self.write):
                    made.setdefault(folder, "write")  # a mount of its own, so that nobody moves it away
            made[path] = "read"
        return made

    @contextlib.contextmanager
    def entered(self, cwd: str) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """What the launcher is told of it, and the variables that it needs; until the command has ended."""
        match self.kind:
            case "bwrap":
                described = {
                    "kind": "bwrap",
                    "argv": self._bwrap(cwd),
                    "inner": INNER,
                    "frozen": not self.write,
                }
                yield described, {"TMPDIR": "/tmp"}  # noqa: S108  its own
            case "landlock":
                with tempfile.TemporaryDirectory(prefix="midcall-bash-", ignore_cleanup_errors=True) as own:
                    yield self._landlock(own), {"TMPDIR": own}
            case _:
                yield {"kind": "none"}, {}

    def _bwrap(self, cwd: str) -> list[str]:
        argv = [system_program("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--unshare-all"]
        argv += ["--share-net"] if self.network else []
        argv += ["--cap-drop", "ALL"]
        places = self._places
        if "/" in places:
            argv += ["--bind" if places["/"] == "write" else "--ro-bind", "/", "/"]
        own = ["--size", str(self.megabytes * 2**20), "--tmpfs"]
        argv += ["--dev", "/dev", *own, "/dev/shm", "--remount-ro", "/dev", *own, "/tmp"]  # noqa: S108
        argv += ["--proc", "/proc", "--remount-ro", "/proc"]  # there root could change the kernel
        masks: list[str] = []
        for path in sorted(places.keys() - {"/"}):
            around = max((one for one in places if one != path and is_below(path, one)), key=len, default="")
            if places[path] == "hide" and places.get(around, "hide") == "hide":
                continue  # it is not there anyway
            if os.path.islink(path):  # noqa: PTH114  as /bin; others have become links since, and lead nowhere
                argv += ["--symlink", os.readlink(path), path] if path in SYSTEM and "/" not in places else []  # noqa: PTH115
            elif not os.path.exists(path):  # noqa: PTH110
                continue
            elif places[path] != "hide":
                argv += ["--bind" if places[path] == "write" else "--ro-bind", path, path]
            elif os.path.isdir(path):  # noqa: PTH112
                argv += ["--tmpfs", path]
                masks += ["--remount-ro", path]
            else:
                argv += ["--ro-bind", "/dev/null", path]
        return [*argv, *masks, "--remount-ro", "/", "--chdir", cwd]

    def _landlock(self, own: str) -> dict[str, Any]:
        places = {path: how for path, how in self._places.items() if not os.path.islink(path)}  # noqa: PTH114
        shown = [path for path, how in places.items() if how == "read"]
        hidden = [*self.hidden, "/dev"]  # disks are there
        return {
            "kind": "landlock",
            "network": self.network,
            "list": shown,
            "read": ["/proc", *(one for path in shown for one in readable(path, hidden))],
            "use": DEVICES,
            "write": [*self.write, own],
            "frozen": not self.write,
        }


def readable(folder: str, hidden: Sequence[str]) -> Iterator[str]:
    """The folders and files that have all of a folder in them but what is hidden in it."""
    below = [path for path in hidden if is_below(path, folder) and path != folder]
    if not below:
        yield folder
        return
    try:
        entries = [entry.path for entry in os.scandir(folder) if not entry.is_symlink()]
    except OSError:
        return
    for path in entries:
        if path not in below:
            yield from readable(path, below)


def find_sandbox(settings: SandboxSettings, folder: Path, config: Path, megabytes: int = 1024) -> Sandbox:
    """The sandbox that there is here. Raises `ConfigError` if the one that is wanted does not work."""
    wanted = list(_writable(settings, folder))
    write = tuple(path for path in wanted if not any(is_below(path, one) for one in wanted if one != path))
    refuse_writable(os.path.realpath(config), write)
    home = os.path.realpath(Path.home())
    programs = [path for path in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(path)]  # noqa: PTH117
    programs = [os.path.realpath(path) for path in programs]
    programs = [p for p in programs if not is_below(home, p) and not any(is_below(p, one) for one in SYSTEM)]
    network = [os.path.realpath("/etc/resolv.conf")] if settings.network else []
    named = [*settings.read, "~/.gitconfig"]
    read = [os.path.realpath(folder / expanded(path)) for path in (str(folder), *programs, *named, *network)]
    read = [path for path in dict.fromkeys(read) if not any(is_below(path, one) for one in write)]
    hide = (*HIDDEN, *settings.hide, str(state_directory()), str(config))
    hidden = dict.fromkeys(os.path.realpath(folder / expanded(path)) for path in hide)
    found = Sandbox("none", tuple(read), write, settings.network, tuple(hidden), megabytes)
    if settings.use == "none":
        return replace(found, why="the settings say so")
    reasons: list[str] = []
    kinds: tuple[Kind, ...] = ("bwrap", "landlock") if settings.use == "auto" else (settings.use,)
    for kind in kinds:
        made = replace(found, kind=kind, why="; ".join(reasons))
        problem = _problem(made)
        if problem is None:
            return made
        reasons.append(f"{kind}: {problem}")
    if settings.use != "auto":
        raise ConfigError(f"The sandbox {settings.use} does not work here: {'; '.join(reasons)}")
    return replace(found, why="; ".join(reasons))


def refuse_writable(path: str, write: Sequence[str]) -> None:
    """Raise `ConfigError` if a file of the server is in a folder that may be written."""
    for folder in write:
        if is_below(path, folder):
            raise ConfigError(f"{path} is in {folder}, where commands could change it: keep it elsewhere")


def _writable(settings: SandboxSettings, folder: Path) -> Iterator[str]:
    """The folders that may be written. Raises `ConfigError`."""
    if settings.write is None:
        here, home = os.path.realpath(folder), os.path.realpath(Path.home())
        if not is_below(home, here):
            yield here  # a project, and not all that there is
        return
    for one in settings.write:
        path = os.path.realpath(folder / expanded(one))
        if not os.path.isdir(path):  # noqa: PTH112
            raise ConfigError(f"sandbox.write: there is no folder {path}")
        yield path


def _problem(sandbox: Sandbox) -> str | None:
    """Why a sandbox cannot be used here; nothing if it can."""
    if not sys.platform.startswith("linux"):
        return "it is for Linux"
    if sandbox.kind == "bwrap" and system_program("bwrap") is None:
        return "it is not installed"
    if sandbox.kind == "landlock":
        if launcher.landlock_version() < launcher.LEAST_LANDLOCK:
            return "this kernel has none that is good enough"
        if os.uname().machine not in launcher.MACHINES:
            return f"it cannot keep a command from the network on {os.uname().machine}"
        within = [p for p in (*sandbox.hidden, *SERVER) for w in sandbox.write if is_below(p, w)]
        if within:
            return f"it cannot protect {within[0]} in a folder that may be written"
    return _try(sandbox) or _try(sandbox.read_only)


def _try(sandbox: Sandbox) -> str | None:
    """Run something in it that does nothing."""
    with sandbox.entered("/") as (described, env):
        spec = {
            "argv": ["/bin/sh", "-c", ":"],
            "cwd": "/",
            "env": env,
            "limit": 4096,
            "limits": {},
            "processes": 16,
            "grace": 1.0,
            "sandbox": described,
        }
        with subprocess.Popen(  # noqa: S603  our own
            LAUNCH, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as trial:
            assert trial.stdin is not None  # noqa: S101  they are pipes
            assert trial.stdout is not None  # noqa: S101  as above
            patience = threading.Timer(TRYING, trial.kill)
            patience.start()
            try:
                trial.stdin.write(json.dumps(spec).encode() + b"\n")
                trial.stdin.flush()  # and not closed: that would end it
                said_all = trial.stdout.read()
            except OSError as error:
                return str(error)
            finally:
                patience.cancel()
    events = [json.loads(line) for line in said_all.splitlines()]
    if events and events[-1] == {"type": "exit", "code": 0}:
        return None
    said = [event.get("line") or event.get("message", "") for event in events[:1]]
    return said[0] if said and said[0] else "it does not start"

"""Supervisor: the process between the server and Claude Code. It is started as a file of its own.

    server ── lifeline ──> supervisor ──> Claude Code ──> whatever that starts
           <────── standard input and output ──────>

It ends Claude Code and all that was started from there, also what has left its process group, when Claude
Code ends, when the server lets go of the lifeline, and when the server is gone: a pipe that nobody has open
for writing any more says so. Claude Code is killed at once, so that it does nothing more; what it has started
is asked to end first.

Claude Code gets only those variables of the server's environment that it needs: what is in the others may be
secrets, and it can have any command print them.

Imports nothing but the standard library, as little as possible of it: it is started for each run.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

LIFELINE = "MIDCALL_LIFELINE"
"""Names a pipe: whoever has it open for writing wants Claude Code to run."""

SERVER = "MIDCALL_SERVER"
"""The process of the server: one that dies before the lifeline is opened could not be told by it."""

PROGRAM = "MIDCALL_CLAUDE"
"""Names the program."""

PASSED = "MIDCALL_PASSED"
"""Names more variables that are passed on, with commas between them."""

CONFIG = "MIDCALL_CLAUDE_CONFIG"
"""Names the folder of Claude Code's settings, if it has one of its own."""

RESUMED = "claude-resume-"
"""How the name of a folder begins that the SDK makes for a session which goes on: it has logins in it."""

NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "PWD"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    )
)
PREFIXES = ("LC_", "ANTHROPIC_", "CLAUDE_", "DISABLE_", "ENABLE_")
CLOUDS = {
    "CLAUDE_CODE_USE_BEDROCK": ("AWS_",),
    "CLAUDE_CODE_USE_VERTEX": ("CLOUD_ML_", "GOOGLE_", "VERTEX_"),
    "CLAUDE_CODE_USE_FOUNDRY": ("AZURE_",),
}
"""What Claude Code reads, and what it needs if it has its models from a cloud."""

GRACE = 2.0
"""Seconds between TERM and KILL."""

PATIENCE = 10.0
"""Seconds after which what cannot be ended is left behind."""

LOOK = 5.0
"""Seconds between two looks at whether the server is still there."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Ask the kernel for something that only Linux has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def environment(given: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """What of the server's environment is passed on."""
    names = NAMES.union(given.get(PASSED, "").split(","))
    clouds = (prefix for cloud, used in CLOUDS.items() if given.get(cloud) for prefix in used)
    prefixes = (*PREFIXES, *clouds)
    return {name: value for name, value in given.items() if name in names or name.startswith(prefixes)}


def descendants() -> list[int]:
    """All processes that come from this one, as far as the system tells."""
    parents: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208  pathlib is slow to import
            if name.isdigit():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123  as above
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                    parents.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


class Supervisor:
    """One run of Claude Code."""

    def __init__(self) -> None:
        self.lifeline = os.open(os.environ[LIFELINE], os.O_RDONLY | os.O_NONBLOCK)
        self.parent = int(os.environ[SERVER])
        self.woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        self.told = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.child = 0
        self.status: int | None = None

    def _end(self, *_: Any) -> None:
        self.told = True

    def run(self) -> int:
        """Start Claude Code, and stay until it and all others have ended; gives its exit code."""
        if os.getppid() != self.parent:
            self.tidy_up()
            return 128 + signal.SIGTERM
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.child = os.fork()
        if not self.child:
            self._become_program()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        while self.status is None and not self.told:
            ready = select.poll()
            ready.register(self.lifeline, select.POLLIN)
            ready.register(self.woken, select.POLLIN)
            for fd, _ in ready.poll(LOOK * 1000):
                if fd == self.lifeline:
                    self.told = True
                else:
                    os.read(self.woken, 4096)
            self.told = self.told or os.getppid() != self.parent
            self.reap()
        self.end_all()
        if os.getppid() != self.parent:
            self.tidy_up()
        if self.told or self.status is None:
            return 128 + signal.SIGTERM
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    def _become_program(self) -> NoReturn:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            program = os.environ[PROGRAM]
            os.execve(program, [program, *sys.argv[1:]], environment(os.environ))  # noqa: S606
        except BaseException as error:  # noqa: BLE001  this must not go on as a second supervisor
            os.write(2, f"Claude Code cannot be started: {error}\n".encode())
        os._exit(127)

    def reap(self) -> bool:
        """Take leave of those that have ended. False if nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.status = status

    def end_all(self) -> None:
        """End Claude Code, and then all others: first they are asked to."""
        if self.status is None:
            self._signal([self.child], signal.SIGKILL)
        start = time.monotonic()
        self._signal(descendants(), signal.SIGTERM)
        while self.reap() and (passed := time.monotonic() - start) < PATIENCE:
            if passed > GRACE:
                self._signal(descendants(), signal.SIGKILL)
            time.sleep(0.01 if passed < GRACE else 0.1)

    def tidy_up(self) -> None:
        """Remove what the SDK would have, if the server were still there."""
        folder = os.environ.get("CLAUDE_CONFIG_DIR", "")
        if os.path.basename(folder).startswith(RESUMED) and folder != os.environ.get(CONFIG):  # noqa: PTH119
            import shutil  # noqa: PLC0415  as rarely as it is needed

            shutil.rmtree(folder, ignore_errors=True)

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            if pid != self.child or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        if number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child, number)  # where there is no /proc


if __name__ == "__main__":
    sys.exit(Supervisor().run())

"""Launcher: the process between the server and a command. Its text is run by a Python of its own (see `run`).

    server ── what to run, then its end ──> launcher ── in a sandbox ──> command
           <── events, one JSON a line ───          <── two pipes ─────

It has three tasks, all of which are better done outside of the server. It puts the command into a sandbox.
It reads its output as soon as there is some, and passes on only so much of it: the beginning, and at the
end the last lines. And it ends whatever the command has started, also what has left its process group, when
the command ends, when the server says so, and when the server is gone: then the pipe that it reads from
comes to its end.

Imports nothing but the standard library, as little as possible of it: it is started for each command.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

LINE = 16 * 1024
"""How many bytes of one line go into one event."""

READ = 64 * 1024
HELD = 256 * 1024
"""How many bytes may wait for a server that is behind, before the command has to."""

LINGER = 0.3
"""Seconds to wait, when the command has ended, for others that still hold its output open."""

LOOK = 0.5
"""Seconds between two looks at how many processes there are."""

FLUSH = 5.0
"""Seconds that the server has to take what is left, once it has told the launcher to end."""


# --- sandbox ------------------------------------------------------------------------------------------

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << n for n in range(4))
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ALL_OF = {3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights to files that Landlock knows from a version on."""
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Those of them that make sense for what is no folder."""
LEAST_LANDLOCK = 3
"""Earlier versions let everybody cut off any file."""

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The name of a machine for a filter of system calls."""
SOCKETS = {"x86_64": (41, 425), "aarch64": (198, 425)}
"""The calls by which sockets are made: `socket`, and `io_uring_setup`."""
AF_UNIX = 1
KEYS = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}
"""The calls for keys that the kernel keeps for a user."""
CHANGES = {
    "x86_64": (
        90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, 452, 463, 466, 469,
        141, 142, 144, 203, 251, 314,
    ),
    "aarch64": (
        5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, 452, 463, 466, 469, 30, 118, 119, 122, 140, 274,
    ),
}  # fmt: skip
"""The calls for rights, owners, times and attributes of files, of which Landlock knows nothing, and those
for the priority of processes, also of others."""
SIGNALS = {"x86_64": (62, 129, 200, 234, 297, 424), "aarch64": (129, 130, 131, 138, 240, 424)}
"""The calls that signal processes, which Landlock does not stop before version 6."""


class CannotStart(Exception):
    """The command cannot be started; its text says why."""


def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """The version of Landlock that this system has; 0 for none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def call(number: int, *arguments: Any) -> int:
    made = int(libc().syscall(number, *arguments))
    if made < 0:
        raise CannotStart(f"Landlock: {os.strerror(ctypes.get_errno())}")
    return made


def restrict(rules: dict[str, Any]) -> None:
    """Put this process into a sandbox of Landlock; no way leads out."""
    version = landlock_version()
    everything = ALL_OF[5] if version >= 5 else ALL_OF[3]
    network = bool(rules["network"])
    attributes = [everything, 0 if network or version < 4 else 3, 3 if version >= 6 else 0]
    size = 8 if version < 4 else 16 if version < 6 else 24
    packed = b"".join(one.to_bytes(8, sys.byteorder) for one in attributes)[:size]
    ruleset = call(CREATE_RULESET, packed, ctypes.c_size_t(size), 0)
    reading = EXECUTE | READ_FILE | READ_DIR
    for path in rules["list"]:
        allow(ruleset, path, READ_DIR)
    for path in rules["read"]:
        allow(ruleset, path, reading)
    for path in rules["use"]:
        allow(ruleset, path, (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & everything)
    for path in rules["write"]:
        allow(ruleset, path, everything & ~IOCTL_DEV)
    for capability in range(64):  # those of root, who could read the memory of others
        prctl(PR_CAPBSET_DROP, capability)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    machine = os.uname().machine
    refused = [*KEYS[machine], *(SOCKETS[machine][1:] if network else SOCKETS[machine])]
    if rules["frozen"]:
        refused += CHANGES[machine]
        refused += SIGNALS[machine] if version < 6 else ()
    refuse(call_filter(refused, services=False))  # Landlock does not keep anybody from them


def allow(ruleset: int, path: str, rights: int) -> None:
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # what is not there cannot be reached either
    try:
        mode = os.fstat(found).st_mode
        if mode & 0o170000 == 0o120000:
            return  # a link: where it leads to counts
        if mode & 0o170000 != 0o040000:
            rights &= OF_FILES
        if rights:
            rule = rights.to_bytes(8, sys.byteorder) + found.to_bytes(4, sys.byteorder)
            call(ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(found)


def call_filter(numbers: list[int], *, services: bool = True) -> bytes:
    """A program for the kernel that refuses these system calls, and without `services` their sockets."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06

    def step(code: int, yes: int, no: int, value: int) -> bytes:
        return code.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)

    families = (
        step(equal, 0, 2, SOCKETS[os.uname().machine][0]),
        step(load, 0, 0, 16),  # the first argument
        step(equal, 1, 0, AF_UNIX),
    )
    last = len(numbers) + (0 if services else len(families))
    return b"".join(
        (
            step(load, 0, 0, 4),
            step(equal, 0, last + 3, MACHINES[os.uname().machine]),  # another machine: refuse all
            step(load, 0, 0, 0),
            step(at_least, last + 1, 0, 0x40000000),  # the other way to number calls on x86-64
            *(step(equal, last - place, 0, number) for place, number in enumerate(numbers)),
            *(() if services else families),
            step(give, 0, 0, 0x7FFF0000),
            step(give, 0, 0, 0x00050000 | errno.EACCES),
        )
    )


def filter_options(*, sockets: bool) -> list[str]:
    """Have bubblewrap refuse keys, and sockets, also those of services in folders that are shown."""
    machine = os.uname().machine
    if machine not in MACHINES:
        return []
    return ["--seccomp", handed_on(call_filter([*KEYS[machine], *(() if sockets else SOCKETS[machine])]))]


def handed_on(data: bytes) -> str:
    """Data for another program, as the number of a file that is open there."""
    file = os.memfd_create("data", 0)
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return str(file)


def refuse(program: bytes) -> None:
    """From now on system calls are refused to this process as the program says."""
    kept = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    described = Program(len(program) // 8, ctypes.addressof(kept))
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(described))


def prctl(option: int, *values: Any) -> None:
    if not sys.platform.startswith("linux"):
        return
    given = [value if not isinstance(value, int) else ctypes.c_ulong(value) for value in values]
    given += [ctypes.c_ulong(0)] * (4 - len(given))
    if libc().prctl(option, *given) != 0 and option in (PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP):
        raise CannotStart(f"the sandbox cannot be made: {os.strerror(ctypes.get_errno())}")


# --- output -------------------------------------------------------------------------------------------


def piece(stream: str, line: bytes, *, goes_on: bool = False) -> dict[str, Any]:
    event: dict[str, Any] = {"type": stream, "line": line.decode(errors="replace")}
    return {**event, "continues": True} if goes_on else event


class OutputLines:
    """The lines of one stream. A long one comes in pieces."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], int]]:
        """Each line with how many bytes it took; what has no end yet waits."""
        self.rest += data
        while self.rest:
            end = self.rest.find(b"\n", 0, LINE + 1)
            if end >= 0:
                line, self.rest = self.rest[:end], self.rest[end + 1 :]
                yield piece(self.stream, line), end + 1
            elif len(self.rest) > LINE:
                cut = LINE
                while cut > LINE - 4 and self.rest[cut] & 0xC0 == 0x80:
                    cut -= 1  # not within a character
                line, self.rest = self.rest[:cut], self.rest[cut:]
                yield piece(self.stream, line, goes_on=True), cut
            else:
                return

    def end(self) -> Iterator[dict[str, Any]]:
        """What is left without an end."""
        rest, self.rest = self.rest, b""
        if rest:
            yield piece(self.stream, rest)


class CommandOutput:
    """What of the output is passed on: all of it, or its beginning and its end."""

    def __init__(self, limit: int) -> None:
        self._first = limit * 3 // 4
        self._last = limit - self._first
        self._lines = {stream: OutputLines(stream) for stream in ("stdout", "stderr")}
        self._tail: deque[tuple[str, bytes]] = deque()
        self._held = 0
        self._dropped = 0
        self._broken: set[str] = set()
        """The streams of which what is kept begins in the middle of a line."""
        self._full = False

    def feed(self, stream: str, data: bytes) -> Iterator[dict[str, Any]]:
        if self._full:
            self._keep(stream, data)
            return
        lines = self._lines[stream]
        for event, size in lines.feed(data):
            self._first -= size
            yield event
            if self._first <= 0:
                self._full = True
                for other in self._lines.values():
                    rest, other.rest = other.rest, b""
                    self._keep(other.stream, rest)
                return

    def _keep(self, stream: str, data: bytes) -> None:
        self._tail.append((stream, data))
        self._held += len(data)
        while self._held - len(self._tail[0][1]) >= self._last:
            self._drop(*self._tail.popleft())

    def _drop(self, stream: str, data: bytes) -> None:
        self._held -= len(data)
        self._dropped += len(data)
        if data.endswith(b"\n"):
            self._broken.discard(stream)
        elif data:
            self._broken.add(stream)

    def end(self) -> Iterator[dict[str, Any]]:
        """What is left; where something was left out before it, that is said."""
        too_much = self._held - self._last
        if too_much > 0:
            stream, data = self._tail.popleft()
            self._drop(stream, data[:too_much])
            self._tail.appendleft((stream, data[too_much:]))
        kept = []
        for stream, data in self._tail:
            whole = data.find(b"\n") + 1 if stream in self._broken else 0
            self._drop(stream, data[:whole])
            self._broken.discard(stream)
            kept.append((stream, data[whole:]))
        if self._dropped:
            message = f"[{self._dropped} bytes of output were left out here]"
            yield {"type": "cut", "bytes": self._dropped, "message": message}
        for stream, data in kept:
            for event, _ in self._lines[stream].feed(data):
                yield event
        for lines in self._lines.values():
            yield from lines.end()


# --- processes ----------------------------------------------------------------------------------------


class Launcher:
    """Runs one command to its end."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._output = CommandOutput(spec["limit"])
        self._unsent = bytearray()
        self._pid = 0
        self._status: int | None = None
        self._told: int | None = None
        """The status of the command as the inside of the sandbox has it, where that one knows better."""
        self._left = 0
        self._ending: float | None = None
        """Since when it is being ended."""
        self._warned: set[int] = set()
        """The processes that were told to end."""
        self._server_gone = False
        self._counted = 0.0
        self._crowd = False
        """Whether it was ended because there were too many processes."""

    def run(self) -> None:
        wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(signalled, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        os.set_blocking(1, False)
        pipes = {"stdout": os.pipe(), "stderr": os.pipe(), "status": os.pipe()}
        self._start(pipes)
        streams: dict[int, str] = {}
        for name, (reading, writing) in pipes.items():
            os.close(writing)
            os.set_blocking(reading, False)
            streams[reading] = name
        linger: float | None = None
        while True:
            self._reap()
            if self._status is not None and linger is None:
                linger = time.monotonic() + LINGER
            is_over = linger is not None and (not streams or time.monotonic() > linger)
            if self._status is not None and (is_over or self._ending is not None) and not self._end_others():
                break
            self._end_a_crowd()
            self._end_if_told()
            poll = select.poll()
            poll.register(wake, select.POLLIN)
            if not self._server_gone and self._ending is None:
                poll.register(0, select.POLLIN)
            if len(self._unsent) < HELD:
                for fd in streams:
                    poll.register(fd, select.POLLIN)
            if self._unsent and not self._server_gone:
                poll.register(1, select.POLLOUT)
            ends = self._status is not None or self._ending is not None
            for fd, _ in poll.poll(50 if ends else LOOK * 1000):
                if fd == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 512)
                elif fd == 0:
                    self._ending = self._ending or time.monotonic()
                elif fd == 1:
                    self._send()
                elif fd in streams and not self._take(fd, streams[fd]):
                    os.close(fd)
                    del streams[fd]
        for fd, name in streams.items():
            while self._take(fd, name, whole=False):
                pass
        self._finish()

    def _start(self, pipes: dict[str, tuple[int, int]]) -> None:
        failed, failing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(failed)
            self._become_command(pipes, failing)
        os.close(failing)
        problem = b""
        while more := os.read(failed, 4096):
            problem += more
        os.close(failed)
        if problem:
            os.waitpid(self._pid, 0)
            raise CannotStart(problem.decode())

    def _become_command(self, pipes: dict[str, tuple[int, int]], failing: int) -> NoReturn:
        try:
            prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            prctl(PR_SET_DUMPABLE, 1)
            os.setsid()
            signal.set_wakeup_fd(-1)
            usual_signals()
            status = pipes["status"][1]
            for fd, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(pipes[name][1], fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(self._spec["cwd"])
            sandbox = self._spec["sandbox"]
            argv, env = list(self._spec["argv"]), self._spec["env"]
            for name, most in self._spec["limits"].items():
                limit(getattr(resource, f"RLIMIT_{name}"), most)
            if sandbox["kind"] == "bwrap":
                os.set_inheritable(status, True)
                filtered = filter_options(sockets=not sandbox["frozen"])
                inner = [*sandbox["inner"], str(status), handed_on(json.dumps(env).encode())]
                argv, env = [*sandbox["argv"], *filtered, "--", *inner, *argv], {}
            elif sandbox["kind"] == "landlock":
                restrict(sandbox)
            os.execve(argv[0], argv, env)  # noqa: S606  what it is for
        except BaseException as error:  # noqa: BLE001  nothing of this process may go on elsewhere
            os.write(failing, f"{self._spec['argv'][0]}: {describe(error)}".encode(errors="replace"))
        finally:
            os._exit(127)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status

    def _end_a_crowd(self) -> None:
        """Kill all of them if there are too many: no limit of the system is for one command alone."""
        if self._ending is not None or time.monotonic() < self._counted + LOOK:
            return
        self._counted = time.monotonic()
        if len(descendants()) > self._spec["processes"]:
            self._crowd, self._ending = True, float("-inf")

    def _end_if_told(self) -> None:
        if self._ending is None:
            return
        late = time.monotonic() - self._ending > self._spec["grace"]
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if late:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in self._warned and not self._is_sandbox(pid):
                    self._warned.add(pid)
                    os.kill(pid, signal.SIGTERM)
        if not sys.platform.startswith("linux") and self._status is None:  # pragma: no cover
            os.killpg(self._pid, signal.SIGKILL if late else signal.SIGTERM)

    def _is_sandbox(self, pid: int) -> bool:
        """Whether a process is the sandbox itself: if that ends, all in it are killed, and cannot tidy up."""
        if self._spec["sandbox"]["kind"] != "bwrap":
            return False
        try:
            with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123
                return file.read() == b"bwrap\n"
        except OSError:
            return False

    def _end_others(self) -> bool:
        """End what the command has left behind. False if there is nothing any more."""
        if not children():
            return False
        if self._ending is None:
            self._ending = time.monotonic()
            if self._told is None:  # else all of them are inside, and end with it
                self._left = len(descendants())
        return True

    # --- what goes to the server ---------------------------------------------------------------------

    def _take(self, fd: int, name: str, *, whole: bool = True) -> bool:
        """Read what there is. False at its end."""
        try:
            data = os.read(fd, READ)
        except BlockingIOError:
            return whole
        if name == "status":
            if data and self._told is None:
                self._told, self._left = (int(number) for number in data.split())
            return bool(data)
        for event in self._output.feed(name, data):
            self._tell(event)
        return bool(data)

    def _tell(self, event: dict[str, Any]) -> None:
        self._unsent += json.dumps(event).encode() + b"\n"

    def _send(self) -> None:
        try:
            sent = os.write(1, memoryview(self._unsent)[:READ])
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._server_gone = True
            self._unsent.clear()
            self._ending = self._ending or time.monotonic()

    def _finish(self) -> None:
        for event in self._output.end():
            self._tell(event)
        if self._crowd:
            message = f"It had more than {self._spec['processes']} processes at once, and was ended"
            self._tell({"type": "notice", "message": message})
        elif self._left:
            what = "process that still ran was" if self._left == 1 else "processes that still ran were"
            self._tell({"type": "notice", "message": f"{self._left} {what} ended"})
        status = self._status if self._told is None else self._told
        self._tell(exit_event(status or 0))
        until: float | None = None
        while self._unsent and (until is None or time.monotonic() < until):
            poll = select.poll()
            poll.register(1, select.POLLOUT)
            if until is None:
                poll.register(0, select.POLLIN)
            for fd, _ in poll.poll(100):
                if fd == 1:
                    self._send()
                else:
                    until = time.monotonic() + FLUSH


def exit_event(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"SIG{number}"
        return {"type": "exit", "code": -1, "signal": name}
    return {"type": "exit", "code": os.WEXITSTATUS(status)}


def children() -> list[int]:
    """The children of this process, and those that were handed to it."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def descendants() -> list[int]:
    found: list[int] = []
    waiting = children()
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123
                    waiting += [int(one) for one in file.read().split()]
        except OSError:
            continue
    return found


def usual_signals() -> None:
    """Have signals do what they usually do: Python ignores some of them, and programs inherit that."""
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def limit(kind: int, most: int) -> None:
    """Have this process, and all that it starts, take no more."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def describe(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return str(error)


def read_spec() -> dict[str, Any]:
    text = b""
    while not text.endswith(b"\n"):
        more = os.read(0, READ)
        if not more:
            sys.exit(1)
        text += more
    spec: dict[str, Any] = json.loads(text)
    return spec


def main() -> None:
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    spec = read_spec()
    try:
        Launcher(spec).run()
    except (CannotStart, OSError) as error:
        os.set_blocking(1, True)
        message = f"It cannot be started: {describe(error)}"
        os.write(1, json.dumps({"type": "error", "message": message}).encode() + b"\n")


if __name__ == "__main__":
    main()

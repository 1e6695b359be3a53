"""Runs the command inside of bubblewrap, which does not tell signals from codes. See `launcher`.

How the command ended goes to a pipe that the command cannot reach: it is closed when the command starts, and
as this process cannot be dumped, `/proc` does not give it away either. The variables of the command come by a
file: they are not for bubblewrap, nor for this process.
"""

import ctypes
import json
import os
import signal
import sys

PR_SET_DUMPABLE = 4


def main(status: int, variables: int, argv: list[str]) -> None:
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, *([ctypes.c_ulong(0)] * 4)) != 0:
        os._exit(126)
    os.set_inheritable(status, False)
    with os.fdopen(variables) as file:
        env = json.load(file)
    pid = os.fork()
    if pid == 0:
        try:
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.execve(argv[0], argv, env)  # noqa: S606  what it is for
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode(errors="replace"))
        finally:
            os._exit(127)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # for the command; this one ends with it
    _, ended = os.waitpid(pid, 0)
    running = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    others = [one for one in running if one not in (1, os.getpid())]
    os.write(status, f"{ended} {len(others)}\n".encode())
    os._exit(os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

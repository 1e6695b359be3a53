"""A server process on pipes, and the load that is put on it. The client does as little as it can."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

FLOOR = [sys.executable, str(HERE / "floor.py")]
MIDCALL = [
    sys.executable,
    "-m",
    "midcall",
    "serve",
    f"{HERE / 'app.py'}:hub",
    "--stdio",
    "--log-level",
    "error",
]

PLAIN = b'{"jsonrpc":"2.0","id":12,"method":"bench.once","params":{"message":"hello"}}\n'
ASK = b'{"jsonrpc":"2.0","id":1,"method":"plexus_subscribe","params":["bench.%b"]}\n'
ANSWER = (
    b'{"jsonrpc":"2.0","id":2,"method":"plexus.respond","params":{"request_id":"%b","response_data":true}}\n'
)
REQUEST_ID = re.compile(rb'"request_id":"([^"]+)"')


class Server:
    """A server process, and what it costs."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        while os.read(self._out, 1 << 20):
            pass
        self._process.stdout.close()
        self._process.wait()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._in, view) :]

    def read(self) -> bytes:
        return os.read(self._out, 1 << 20)

    def cpu(self) -> float:
        """Seconds of CPU that the process has used."""
        return cpu_of(self._process.pid)

    def memory(self) -> int:
        """Bytes of memory that the process holds."""
        return memory_of(self._process.pid)

    def plain(self, count: int, in_flight: int) -> None:
        """So many plain calls, with so many on their way at once."""
        sent = min(in_flight, count)
        self.write(PLAIN * sent)
        done = 0
        while done < count:
            responses = self.read().count(b"\n")
            done += responses
            more = min(responses, count - sent)
            if more > 0:
                self.write(PLAIN * more)
                sent += more

    def ask(self, count: int, in_flight: int) -> None:
        """So many calls that ask once and are answered."""
        start = ASK % b"timed"
        sent = min(in_flight, count)
        self.write(start * sent)
        done = 0
        rest = b""
        while done < count:
            data, _, rest = (rest + self.read()).rpartition(b"\n")
            answers = b"".join(ANSWER % id for id in REQUEST_ID.findall(data))
            ended = data.count(b'"type":"done"')
            done += ended
            more = max(0, min(ended, count - sent))
            sent += more
            if answers or more:
                self.write(answers + start * more)

    def wait(self, count: int) -> None:
        """So many calls that ask and are left waiting."""
        self.write((ASK % b"ask") * count)
        waiting = 0
        rest = b""
        while waiting < count:
            data, _, rest = (rest + self.read()).rpartition(b"\n")
            waiting += data.count(b'"type":"request"')


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_of(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def rate(server: Server, load: Callable[[int, int], None], count: int, in_flight: int) -> tuple[float, float]:
    """Calls a second, and microseconds of the server's CPU for each."""
    cpu, start = server.cpu(), time.perf_counter()
    load(count, in_flight)
    return count / (time.perf_counter() - start), (server.cpu() - cpu) / count * 1e6

"""The load on pipes: a legacy session with so many calls in flight."""

import itertools
import time
from typing import Self

from bench.peers import wire
from bench.peers.meter import Meter, Pace
from bench.stdio import Server

IN_FLIGHT = 64
MESSAGE = {"message": "hello"}


class StdioLoad(Server):
    """A server process that speaks MCP on its pipes, or that echoes."""

    def __init__(self, command: list[str], once: str, ask: str, *, echo: bool = False) -> None:
        super().__init__(command)
        self._once = wire.call(once, MESSAGE) + b"\n"
        self._ask = wire.call(ask, {}) + b"\n"
        self._number = itertools.count(2)
        self._echo = echo

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        if not self._echo:
            self.write(wire.initialize() + b"\n")
            self._expect_line()
            self.write(wire.INITIALIZED + b"\n")
            self._check_call()

    def _check_call(self) -> None:
        """One call whose answer is looked at, before many of which only the number counts."""
        self.write(self._once % (next(self._number),))
        if b"hello" not in self._expect_line():
            raise wire.Broken("once does not say it back")

    def _expect_line(self) -> bytes:
        data = b""
        while b"\n" not in data:
            part = self.read()
            if not part:
                raise wire.Broken("the server has ended")
            data += part
        wire.check(data)
        return data

    def _batch(self, request: bytes, count: int) -> bytes:
        return request * count % tuple(itertools.islice(self._number, count))

    def plain_for(self, seconds: float) -> Pace:
        """Plain calls."""
        meter = Meter(self._process.pid, seconds)
        self.write(self._batch(self._once, IN_FLIGHT))
        done, waiting = 0, IN_FLIGHT
        while waiting:
            data = self.read()
            if not data:
                raise wire.Broken("the server has ended")
            wire.check(data)
            ended = data.count(b"\n")
            done += ended
            waiting -= ended
            if ended and meter.going():
                self.write(self._batch(self._once, ended))
                waiting += ended
        return meter.pace(done)

    def ask_for(self, seconds: float) -> Pace:
        """Round trips: a call, its question, the answer, the result."""
        meter = Meter(self._process.pid, seconds)
        self.write(self._batch(self._ask, IN_FLIGHT))
        done, waiting = 0, IN_FLIGHT
        rest = b""
        while waiting:
            lines = self._lines(rest)
            rest = lines.pop()
            out = []
            ended = 0
            for line in lines:
                if wire.QUESTION in line:
                    out.append(wire.ANSWER % wire.question_id(line))
                elif b'"result"' in line:
                    ended += 1
            done += ended
            waiting -= ended
            answers = b"".join(answer + b"\n" for answer in out)
            if ended and meter.going():
                self.write(answers + self._batch(self._ask, ended))
                waiting += ended
            elif answers:
                self.write(answers)
        return meter.pace(done)

    def waiting_memory(self, count: int) -> float:
        """Bytes that each of so many waiting calls costs the server."""
        self._leave_waiting(count // 4)  # what is allocated once
        time.sleep(0.3)
        before = self.memory()
        self._leave_waiting(count)
        time.sleep(0.3)
        return (self.memory() - before) / count

    def _leave_waiting(self, count: int) -> None:
        for _ in range(count // 50):  # a few at a time: neither side may block on a full pipe
            self.write(self._batch(self._ask, 50))
            asked = 0
            rest = b""
            while asked < 50:
                lines = self._lines(rest)
                rest = lines.pop()
                asked += sum(wire.QUESTION in line for line in lines)

    def _lines(self, rest: bytes) -> list[bytes]:
        data = self.read()
        if not data:
            raise wire.Broken("the server has ended")
        wire.check(data)
        return (rest + data).split(b"\n")

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # some wait for their calls
        self._process.communicate()

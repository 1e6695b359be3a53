"""Counts how many files of midcall a call passes through, in real servers.

    .venv/bin/python scripts/walks.py
    .venv/bin/python scripts/walks.py --list            with the files, in the order of their first use
    .venv/bin/python scripts/walks.py --tree ../other   another checkout, for instance an older one

Six walks are counted: a plain call over HTTP; a question over MRTR (revision 2026-07-28) with its retry; the
same with the server killed (`kill -9`) between the two; a chat turn that asks, with its answer; a question of
a server that is mounted, over MRTR with its retry; and `call_tools` of a client over HTTP. Each runs in
`midcall serve` with SQLite, the last in the client. The functions are observed from the arrival of the
request until nothing happens any more; imports and start-up do not count. A *hop* is a pair of files of which
one calls into the other. Each walk is taken until five more take nothing away from what all have in common,
and that is counted: a timer that happens to run meanwhile is no part of it, nor what a walk passes through
only where the machine is busy.

It knows midcall only from outside, so that it can compare checkouts.
"""

import argparse
import functools
import http.client
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

HERE = Path(__file__).parent.parent
TIMES = 5
"""How many walks in a row are to take nothing away from what all have in common."""
QUIET = 0.3
"""Seconds without a call of a function after which a walk is over."""
IDLE = 0.5, 0.7, 0.9
"""For so many seconds a server that has nothing to do is observed: what runs each time is ignored."""
LIMIT = 60.0
EVENT_LOOP = ("asyncio/runners.py", "asyncio/base_events.py")

APP = '''
from midcall import Ask, Hub, method
from midcall.chat import ChatEngine
from midcall.models.scripted import Rule, Scripted


class Hotel:
    """A hotel."""

    @method
    async def price(self, nights: int) -> int:
        """What some nights cost."""
        return 80 * nights

    @method
    async def book(self, nights: int, ask: Ask) -> str:
        """Book some nights."""
        name = await ask.prompt("In whose name?")
        return f"{nights} nights are booked for {name}"


hub = Hub("walks").register(Hotel())
ChatEngine(hub, Scripted([Rule(pattern=r"book (?P<nights>\\d+)", tool="book")]))
'''

FRONT = """
import os
import sys

from midcall import Hub

behind = [sys.executable, "-m", "midcall", "serve", "app:hub", "--stdio", "--mcp-only", "--journal", "memory"]
env = {"PYTHONPATH": os.environ["PYTHONPATH"]}
hub = Hub("front").mount("", [*behind, "--log-level", "error"], env=env)
"""

CALLER = """
import asyncio
import json
import sys

from midcall.client import connect


async def main():
    async with connect(sys.argv[1]) as client:
        while await asyncio.to_thread(sys.stdin.readline):
            calls = [{"id": id, "name": "hotel.price", "arguments": {"nights": 2}} for id in "abc"]
            print(json.dumps(await client.call_tools(calls, parallel=True)), flush=True)


asyncio.run(main())
"""


# --- inside the server ----------------------------------------------------------------------------


class Observer:
    """Notes which files of a package are called into, while it is told to."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}{os.sep}"
        self._on = False
        self._calls = 0
        self._files: dict[str, None] = {}
        self._hops: dict[tuple[str, str], None] = {}
        self._functions: set[CodeType] = set()
        self._idle: list[set[CodeType]] = []
        self._ignored: set[CodeType] = set()

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        if not self._on or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._package) or code.co_name == "<module>":
            return
        self._functions.add(code)
        if code in self._ignored:
            return
        self._calls += 1
        here = code.co_filename.removeprefix(self._package)
        self._files.setdefault(here)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._package):
            if caller.f_code.co_filename.endswith(EVENT_LOOP):
                return  # a callback: nobody has called it
            caller = caller.f_back
        if caller is not None:
            there = caller.f_code.co_filename.removeprefix(self._package)
            if there != here:
                self._hops.setdefault((there, here))

    def serve(self, listener: socket.socket) -> None:
        """Take orders, one a line, and answer each."""
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as orders:
            for order in orders:
                orders.write(f"{json.dumps(self._take(order.strip()))}\n")
                orders.flush()

    def _take(self, order: str) -> Any:
        match order:
            case "on":
                self._calls, self._files, self._hops, self._functions = 0, {}, {}, set()
                self._on = True
            case "off":
                self._on = False
                return [list(self._files), list(self._hops)]
            case "idle":  # there was nothing to do since it is on
                self._idle.append(self._functions)
            case "ignore":
                self._ignored = set.intersection(*self._idle)
            case "count":
                return self._calls
        return None


def observed(port: int, package: Path, arguments: list[str]) -> None:
    """Run a program (`midcall`, or a file) with an observer, which takes orders at this port."""
    observer = Observer(package)
    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=observer.serve, args=(listener,), daemon=True).start()
        threading.setprofile(observer.profile)
        sys.setprofile(observer.profile)
        sys.argv = arguments
        if arguments[0] == "midcall":
            runpy.run_module("midcall", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")


# --- outside --------------------------------------------------------------------------------------


class Walk(NamedTuple):
    """What is passed through, in the order of first use."""

    files: dict[str, None]
    hops: dict[tuple[str, str], None]


class Observed:
    """A program in a folder, with an observer."""

    def __init__(self, tree: Path, folder: Path, arguments: list[str]) -> None:
        port = _free_port()
        package = tree / "src" / "midcall"
        places = os.pathsep.join((str(tree / "src"), str(folder)))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--observe", str(port), str(package), *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": places},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._socket = _connected(port, self.process)
        self._orders = self._socket.makefile("rw")

    def do(self) -> None:
        """What it is observed in."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Do it once, and see what runs although nothing is to be done."""
        self.do()
        for seconds in IDLE:
            self._order("on")
            time.sleep(seconds)
            self._order("idle")
            self._order("off")
        self._order("ignore")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._orders.close()
        self._socket.close()

    def _order(self, order: str) -> Any:
        self._orders.write(f"{order}\n")
        self._orders.flush()
        return json.loads(self._orders.readline())

    @contextmanager
    def observed(self, walk: Walk) -> Iterator[None]:
        """Add what is passed through in here, and until nothing happens any more, to a walk."""
        self._order("on")
        yield
        before = -1
        while before != (now := self._order("count")):
            before = now
            time.sleep(QUIET)
        files, hops = self._order("off")
        walk.files.update(dict.fromkeys(files))
        walk.hops.update(dict.fromkeys((there, here) for there, here in hops))


Program = TypeVar("Program", bound=Observed)


class Caller(Observed):
    """A client of a server, which calls three tools at once."""

    def __init__(self, tree: Path, folder: Path, port: int) -> None:
        super().__init__(tree, folder, [str(folder / "caller.py"), f"http://127.0.0.1:{port}/mcp"])

    def do(self) -> None:
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise SystemExit("The client has no pipes")
        stdin.write(b"\n")
        stdin.flush()
        results = json.loads(stdout.readline())
        _expect(all(one["success"] for one in results), results)


class Server(Observed):
    """`midcall serve` in a folder."""

    def __init__(self, tree: Path, folder: Path, app: str = "app") -> None:
        self.port = _free_port()
        options = ["--port", str(self.port), "--journal", str(folder / f"{app}.db"), "--log-level", "error"]
        super().__init__(tree, folder, ["midcall", "serve", f"{app}:hub", *options])
        _connected(self.port, self.process).close()
        self._http = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)

    def do(self) -> None:
        result = self.call("price")
        _expect(result["content"][0]["text"] == "160", result)

    def kill(self) -> None:
        super().kill()
        self._http.close()

    def post(self, path: str, body: Any, headers: dict[str, str]) -> bytes:
        headers = {"Content-Type": "application/json", **headers}
        self._http.request("POST", path, json.dumps(body), headers)
        response = self._http.getresponse()
        data = response.read()
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {data.decode()}")
        return data

    def call(self, tool: str, **more: Any) -> Any:
        """`tools/call` of the revision 2026-07-28."""
        prefix = "io.modelcontextprotocol/"
        meta = {
            f"{prefix}protocolVersion": "2026-07-28",
            f"{prefix}clientCapabilities": {"elicitation": {"form": {}}},
            f"{prefix}clientInfo": {"name": "walks", "version": "1"},
        }
        params = {"name": f"hotel.{tool}", "arguments": {"nights": 2}, "_meta": meta, **more}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": f"hotel.{tool}",
        }
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        data = self.post("/mcp", request, headers)
        lines = [
            line.removeprefix(b"data:") for line in data.splitlines() if line.startswith((b"{", b"data:"))
        ]
        return json.loads(lines[-1])["result"]

    def ask(self) -> dict[str, Any]:
        """Book, and be asked; gives what the retry carries."""
        result = self.call("book")
        _expect(result.get("resultType") == "input_required", result)
        (key,) = result["inputRequests"]
        answer = {"action": "accept", "content": {"text": "Ada"}}
        return {"requestState": result["requestState"], "inputResponses": {key: answer}}

    def retry(self, answers: dict[str, Any]) -> None:
        result = self.call("book", **answers)
        _expect("booked for Ada" in result["content"][0]["text"], result)

    def chat(self, **body: Any) -> list[dict[str, Any]]:
        lines = self.post("/chat", body, {}).splitlines()
        return [json.loads(line)["event"] for line in lines]

    def chat_turn(self) -> None:
        events = self.chat(message="book 2")
        conversation = events[0]["conversationId"]
        question = next((event for event in events if "elicitId" in event), None)
        _expect(question is not None, events)
        named = {key: question[key] for key in ("sessionId", "callId", "elicitId")} if question else {}
        result = {"action": "accept", "content": {"text": "Ada"}}
        events = self.chat(conversationId=conversation, pluginElicitResponses=[{**named, "result": result}])
        _expect("booked for Ada" in json.dumps(events), events)


def once(program: Observed, walk: Walk) -> None:
    with program.observed(walk):
        program.do()


def mrtr(server: Server, walk: Walk) -> None:
    with server.observed(walk):
        answers = server.ask()
    with server.observed(walk):
        server.retry(answers)


def chat(server: Server, walk: Walk) -> None:
    with server.observed(walk):
        server.chat_turn()


def walks(tree: Path) -> dict[str, Walk]:
    """All walks, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module, text in (("app", APP), ("front", FRONT), ("caller", CALLER)):
            (folder / f"{module}.py").write_text(text)
        with _running(Server(tree, folder)) as server:
            plain = _common(server, once)
            asking = _common(server, mrtr)
            turn = _common(server, chat)
            asked = [_new_walk() for _ in range(2 * TIMES)]
            answers = []
            for walk in asked:
                with server.observed(walk):
                    answers.append(server.ask())
            with _running(Caller(tree, folder, server.port)) as caller:
                calling = _common(caller, once)
        with _running(Server(tree, folder)) as server:
            mrtr(server, _new_walk())  # what is loaded and opened once
            for walk, answer in zip(asked, answers, strict=True):
                with server.observed(walk):
                    server.retry(answer)
        with _running(Server(tree, folder, "front")) as server:
            mounted = _common(server, mrtr)
    return {
        "a plain call over HTTP": plain,
        "MRTR: a question with its retry": asking,
        "the same, killed between the two": functools.reduce(_shared, asked),
        "a chat turn that asks, with its answer": turn,
        "a mounted server's question, with its retry": mounted,
        "a client's call_tools over HTTP": calling,
    }


@contextmanager
def _running(program: Program) -> Iterator[Program]:
    try:
        program.warm_up()
        yield program
    finally:
        program.kill()


def _common(program: Program, take: Callable[[Program, Walk], None]) -> Walk:
    take(program, _new_walk())  # in the first one, things are loaded and opened
    common, same = _new_walk(), 0
    take(program, common)
    while same < TIMES:
        walk = _new_walk()
        take(program, walk)
        before, common = common, _shared(common, walk)
        same = same + 1 if common == before else 0
    return common


def _shared(one: Walk, other: Walk) -> Walk:
    return Walk(
        {file: None for file in one.files if file in other.files},
        {hop: None for hop in one.hops if hop in other.hops},
    )


def _new_walk() -> Walk:
    return Walk({}, {})


def _expect(holds: bool, got: object) -> None:
    if not holds:
        raise SystemExit(f"An unexpected answer: {got}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _connected(port: int, process: "subprocess.Popen[bytes]") -> socket.socket:
    end = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < end:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise SystemExit("The server did not start")


def table(found: dict[str, Walk]) -> Iterable[str]:
    width = max(map(len, found))
    yield f"{'':{width}}  files  hops"
    for name, walk in found.items():
        yield f"{name:{width}}  {len(walk.files):5}  {len(walk.hops):4}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the files of midcall that a call passes through.")
    parser.add_argument(
        "--tree", type=Path, default=Path(__file__).parent.parent, help="the checkout to count in"
    )
    parser.add_argument("--list", action="store_true", help="show the files, in the order of their first use")
    options = parser.parse_args()
    found = walks(options.tree.resolve())
    print("\n".join(table(found)))
    if options.list:
        for name, walk in found.items():
            print(f"\n{name}\n" + "\n".join(f"  {file}" for file in walk.files))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--observe"]:
        observed(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    else:
        main()

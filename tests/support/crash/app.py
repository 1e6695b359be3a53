"""What is run while it crashes: a wizard with three questions and four steps, in several shapes.

Some begin with a question that nobody need answer: it times out, or is given up.

The effect of a step is a line in a ledger, which says what did it. Every `await` of a body ticks before and
after, and so does every effect. What the outside world could see of values that must stay the same is in the
questions, in the ledger and in the result.
"""

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from crash.script import Script
from crash.ticks import clock, tick
from midcall import Ask, Hub, Question, method
from midcall.chat import ChatEngine, Plugin, PluginContext, PluginQuestion
from midcall.errors import StepInterrupted, TimedOut
from midcall.journal import admin
from midcall.journal.durable import DurableCalls
from midcall.mcp import CALL_KINDS, mcp_of

T = TypeVar("T")

STEPS = ("open", "name", "pay", "close")
PAY = "pay"
"""The step that may be repeated: it has a key, so that the outside world can tell."""
INTERRUPTED = "interrupted"
SIZES = ("small", "medium", "large")
PAUSE = 0.001
SHORT = 0.03
"""Seconds that the question waits that nobody need answer."""
SILENCE = "silence"

pick_size = Question("size", str)


async def at(work: Awaitable[T]) -> T:
    """An await point of a body."""
    tick()
    value = await work
    tick()
    return value


def write(ledger: str, run: str, step: str, key: str | None = None, token: str | None = None) -> str:
    """The effect of a step. Gives what nobody else can know."""
    tick()
    made = uuid.uuid4().hex
    line = json.dumps({"run": run, "step": step, "made": made, "key": key, "token": token}) + "\n"
    fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    tick()
    return made


async def write_here(ledger: str, run: str, step: str) -> str:
    """The same, in the event loop."""
    await asyncio.sleep(0)
    return write(ledger, run, step)


class Steps:
    """The steps of one body, and what came of them."""

    def __init__(self, ask: Ask, ledger: str, run: str) -> None:
        self._ask = ask
        self._about = (ledger, run)
        self.made: dict[str, str] = {}

    async def do(self, step: str, effect: Callable[..., Any] = write) -> None:
        try:
            self.made[step] = await at(self._ask.step(effect, *self._about, step))
        except StepInterrupted:
            self.made[step] = INTERRUPTED
            tick()

    async def pay(self) -> None:
        key, token = self._ask.step_key, str(self._ask.uuid())
        step = self._ask.step(write, *self._about, PAY, key, token, retry_safe=True)
        self.made[PAY] = await at(step)


class Wizard:
    """Three questions and four steps."""

    @method
    async def line(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """One after the other."""
        steps = Steps(ask, ledger, run)
        values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]
        await steps.do("open")
        name = await at(ask.prompt(f"Name? {values}"))
        await steps.do("name", write_here)
        size = await at(ask.select("Size?", SIZES))
        await at(ask.sleep(PAUSE))
        await steps.pay()
        late = str(ask.uuid())
        sure = await at(ask.confirm(f"Sure? {late}"))
        await steps.do("close")
        return {"answers": [name, size, sure], "made": steps.made, "seen": [*values, late]}

    @method
    async def round(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """Two questions in one round."""
        steps = Steps(ask, ledger, run)
        values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]
        await steps.do("open", write_here)
        name, size = await at(ask.all(ask.prompt(f"Name? {values}"), ask.select("Size?", SIZES)))
        await steps.do("name")
        await steps.pay()
        late = str(ask.uuid())
        await at(ask.sleep(PAUSE))
        sure = await at(ask.confirm(f"Sure? {late}"))
        await steps.do("close", write_here)
        return {"answers": [name, size, sure], "made": steps.made, "seen": [*values, late]}

    @method
    async def beside(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """Questions and steps beside each other."""
        steps = Steps(ask, ledger, run)
        values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]

        async def named() -> str:
            name = await at(ask.prompt(f"Name? {values}"))
            await steps.do("name")
            return name

        async def sized() -> str:
            await at(ask.sleep(PAUSE))
            return await at(ask.select("Size?", SIZES))

        name, size, _ = await at(asyncio.gather(named(), sized(), steps.do("open")))
        late = str(ask.uuid())
        sure, _ = await at(asyncio.gather(at(ask.confirm(f"Sure? {late}")), steps.pay()))
        await steps.do("close", write_here)
        return {"answers": [name, size, sure], "made": steps.made, "seen": [*values, late]}

    @method
    async def stream(self, run: str, ledger: str, ask: Ask) -> AsyncIterator[dict[str, Any]]:
        """Items on the way."""
        steps = Steps(ask, ledger, run)
        values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]
        yield {"item": 1, "seen": values}
        await steps.do("open")
        name = await at(ask.prompt(f"Name? {values}"))
        yield {"item": 2, "answer": name}
        await steps.do("name")
        yield {"item": 3}
        size = await at(ask.select("Size?", SIZES))
        await steps.pay()
        yield {"item": 4, "answer": size}
        late = str(ask.uuid())
        sure = await at(ask.confirm(f"Sure? {late}"))
        await steps.do("close", write_here)
        yield {"item": 5, "answer": sure, "made": steps.made, "late": late}

    @method
    async def hurried(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """A question that times out, and another one at once."""

        async def early() -> str:
            try:
                return await at(ask.prompt("Early?", timeout=SHORT))
            except TimedOut:
                return SILENCE

        return await self._after(early, run, ledger, ask)

    @method
    async def raced(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """The same, by the means of asyncio."""

        async def early() -> str:
            try:
                async with asyncio.timeout(SHORT):
                    return await at(ask.prompt("Early?"))
            except TimeoutError:
                return SILENCE

        return await self._after(early, run, ledger, ask)

    @method
    async def slow(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """A call that takes its time to come to its questions again."""

        async def early() -> str:
            await asyncio.sleep(SHORT)
            return SILENCE

        return await self._after(early, run, ledger, ask)

    async def _after(
        self, early: Callable[[], Awaitable[str]], run: str, ledger: str, ask: Ask
    ) -> dict[str, Any]:
        steps = Steps(ask, ledger, run)
        values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]
        first = await early()
        name = await at(ask.prompt(f"Name? {values}"))
        await steps.do("open")
        await steps.do("name", write_here)
        size = await at(ask.select("Size?", SIZES))
        await steps.pay()
        late = str(ask.uuid())
        sure = await at(ask.confirm(f"Sure? {late}"))
        await steps.do("close")
        return {"answers": [name, size, sure], "made": steps.made, "seen": [*values, late], "early": first}

    @method
    async def given_up(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """A branch whose question is given up when another one is answered."""
        steps = Steps(ask, ledger, run)
        values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]

        async def early() -> str:
            return await at(ask.prompt("Early?"))

        beside = asyncio.ensure_future(early())
        beside.add_done_callback(lambda done: done.cancelled() or done.exception())  # if the call is ended
        name, _ = await at(asyncio.gather(at(ask.prompt(f"Name? {values}")), steps.do("open")))
        beside.cancel()
        (first,) = await asyncio.gather(beside, return_exceptions=True)
        await steps.do("name", write_here)
        size = await at(ask.select("Size?", SIZES))
        await steps.pay()
        late = str(ask.uuid())
        sure = await at(ask.confirm(f"Sure? {late}"))
        await steps.do("close")
        said = first if isinstance(first, str) else SILENCE
        return {"answers": [name, size, sure], "made": steps.made, "seen": [*values, late], "early": said}

    @method(elicits=[pick_size])
    async def picked(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """A question that a plugin shows in the chat."""
        steps = Steps(ask, ledger, run)
        values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]
        await steps.do("open")
        name = await at(ask.prompt(f"Name? {values}"))
        await steps.do("name", write_here)
        size = await at(ask(pick_size, "Size?"))
        await steps.pay()
        late = str(ask.uuid())
        sure = await at(ask.confirm(f"Sure? {late}"))
        await steps.do("close")
        return {"answers": [name, size, sure], "made": steps.made, "seen": [*values, late]}

    @method
    async def deadly(self, run: str, ledger: str, ask: Ask) -> str:
        """Bring down whoever runs it."""
        name = await ask.prompt("Name? []")
        await ask.step(write, ledger, run, "open")
        os.kill(os.getpid(), signal.SIGKILL)
        return name


VARIANTS = ("line", "round", "beside", "stream", "hurried", "raced", "slow", "given_up", "machine")


async def show_sizes(question: PluginQuestion, ctx: PluginContext) -> Any:
    """Have the person pick a size, and look at it."""
    picked = await at(ctx.render("Sizes", sizes=SIZES))
    await at(ctx.render("Look", size=picked["size"]))
    return picked["size"]


class Admin:
    """What the tests ask of a worker."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @method
    async def calm(self) -> int:
        """Die no more; gives the ticks so far."""
        return clock.calm()

    @method
    async def calls(self) -> list[dict[str, Any]]:
        """The calls of the journal."""
        durable: DurableCalls = self._hub.durable
        page = await durable.journal.list(limit=1000)
        return [
            {"run": json.loads(c.arguments).get("run"), "status": c.status, "id": c.id} for c in page.calls
        ]

    @method
    async def look(self, run: str) -> list[dict[str, Any]]:
        """The calls of a run as an administrator sees them: where they stand, and what they ask."""
        durable = mcp_of(self._hub).resumption.durable
        found = await admin.Admin(durable.journal, CALL_KINDS, durable=durable, calls=self._hub.calls).list(
            limit=1000
        )
        kept = {one["id"] for one in await self.calls() if one["run"] == run}
        return [
            {"status": call["status"], "asks": [one["message"] for one in call["questions"]]}
            for call in found["calls"]
            if call["id"] in kept
        ]


def make_hub() -> Hub:
    from crash.machine import add_machine  # it is made of this

    hub = add_machine(Hub("crash").register(Wizard()))
    ChatEngine(hub, Script(), plugins=[Plugin(Wizard.picked).on(pick_size, show_sizes)])
    return hub.register(Admin(hub))

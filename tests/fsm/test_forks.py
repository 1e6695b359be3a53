"""Forks of runs, after questions that nobody answered and time limits that have passed."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

from driving import LIMIT, drive
from midcall import Hub, MidcallError
from midcall.fsm import MachineBuilder
from midcall.journal.admin import Admin
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite.journal import SqliteJournal
from midcall.mcp import CALL_KINDS
from midcall.questions import PERSON_KINDS

TIMES = (0.3, 3.0, 30.0)
"""Seconds, of which the first that are enough for what is to happen within them are taken."""


def play(folder: Path, machine: MachineBuilder, scene: Any, **options: Any) -> bool:
    """Run a machine, and look at its call; whether there was time for that."""

    async def main() -> bool:
        inner = MachineBuilder("inner").ask("x", "x?").ask("y", "y?")
        inner.to("start", "x").to("x", "y").to("y", "end")
        hub = Hub().register_machine(inner).register_machine(machine, **options)
        journal = SqliteJournal(folder / f"{uuid.uuid4()}.db")
        hub.durable = durable = DurableCalls(hub, journal)
        await hub.open()
        admin = Admin(journal, CALL_KINDS, durable=durable, calls=hub.calls)
        call = await durable.subscriptions.start(f"machines.{machine.id}", b"{}", PERSON_KINDS, None)
        await admin.settled(call)
        try:
            return bool(await scene(admin, call))
        finally:
            await hub.close()

    return bool(drive(main(), 3 * LIMIT))


async def ended(admin: Admin, call: str) -> Any:
    async with asyncio.timeout(LIMIT):
        while (found := await admin.settled(call, values=True))["status"] != "completed":
            await asyncio.sleep(0.01)
    return found["outcome"]["contents"][-1]["event"]


def test_a_question_that_timed_out_is_asked_anew_by_a_fork(tmp_path: Path) -> None:
    machine = MachineBuilder("boss").ask("boss", "ok?").to("start", "boss").to("boss", "end")

    async def scene(admin: Admin, call: str) -> bool:
        assert (await ended(admin, call))["reason"] == "timeout"
        entries = (await admin.show(call))["entries"]
        question = next(n for n, one in enumerate(entries) if one["state"] == "withdrawn")
        fork = await admin.fork(call, question + 1)
        return [one["key"] for one in fork["questions"]] == ["boss"]

    assert any(play(tmp_path, machine, scene, time_limit=seconds) for seconds in TIMES)


def test_a_fork_within_a_state_has_the_time_of_that_state_anew(tmp_path: Path) -> None:
    def machine(seconds: float) -> MachineBuilder:
        made = MachineBuilder("outer").machine("inner", "inner", timeout=seconds)
        return made.to("start", "inner").to("inner", "end")

    async def scene(admin: Admin, call: str) -> bool:
        try:
            await admin.answer(call, {"x": True})
        except MidcallError:  # it has passed already
            return False
        await ended(admin, call)  # the limit of the state, which is in the journal, has passed
        entries = (await admin.show(call))["entries"]
        answered = next(n for n, one in enumerate(entries) if one["state"] == "answered")
        fork = await admin.fork(call, answered + 1)
        return [one["key"] for one in fork["questions"]] == ["y"]

    assert any(play(tmp_path, machine(seconds), scene) for seconds in TIMES)

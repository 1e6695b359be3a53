"""One call from its start to its exit code, with a person or with answers given beforehand.

It reads the call's items and shows them. A question is answered from `GivenAnswers` where they have one for
it, else the person is asked: the most urgent question first, one at a time. A question that is
withdrawn takes its prompt away. Where nobody can answer, the call is ended.
"""

import asyncio
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from midcall.cli.answers import GivenAnswers
from midcall.cli.command import Exit, Interrupted
from midcall.cli.output import Screen, Tone
from midcall.errors import Cancelled, InvalidArguments, NotSupported, TimedOut, UnknownQuestion, WrongAnswer
from midcall.invocation import Invocation
from midcall.items import (
    UNSENDABLE,
    Error,
    Item,
    Log,
    Request,
    RequestCancelled,
    why_unsendable,
)
from midcall.open_questions import TIMED_OUT
from midcall.questions import CANCELLED, PRIORITIES, read_answer

if TYPE_CHECKING:
    from midcall.cli.prompts import Prompts

log = logging.getLogger("midcall.cli")


_EXIT_BY_CODE = {
    "aborted": Exit.CANCELLED,
    "cancelled": Exit.CANCELLED,
    "declined": Exit.CANCELLED,
    InvalidArguments.code: Exit.USAGE,  # the server behind has refused them
    TimedOut.code: Exit.NOT_ANSWERED,
    NotSupported.code: Exit.NOT_ANSWERED,
}
_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_SEVERITY = (Exit.SUCCESS, Exit.FAILED, Exit.USAGE, Exit.NOT_ANSWERED, Exit.CANCELLED)
_WORDS = {
    Exit.FAILED: "Failed",
    Exit.USAGE: "Refused",
    Exit.CANCELLED: "Cancelled",
    Exit.NOT_ANSWERED: "Not answered",
}


class InteractiveCall:
    """One call. `person` says whether there is one who can be asked."""

    def __init__(
        self, invocation: Invocation, screen: Screen, answers: GivenAnswers, *, person: bool
    ) -> None:
        self._invocation = invocation
        self._screen = screen
        self._answers = answers
        self._person = person
        self._asked: dict[str, Request] = {}
        self._until: dict[str, float] = {}
        """When it is too late to answer, on the clock of the event loop."""
        self._open: dict[str, Request] = {}  # those of them that wait for the person
        self._on_screen: Request | None = None
        self._prompt: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()
        self._ending: asyncio.Task[None] | None = None  # set when this side ends the call
        self._exit = Exit.SUCCESS
        self._last_words = ""

    async def run(self) -> Exit:
        """Have it to its end. Raises what the hub refuses the call with."""
        try:
            with interrupts_to(self.interrupt):
                items = aiter(self._invocation)
                first = await anext(items)  # a refusal is raised here, bare, outside of the group
                async with self._group:
                    await self._take(first)
                    async for item in items:
                        await self._take(item)
                if self._ending is not None:
                    await self._ending
        finally:
            self._screen.close()
        if self._last_words:
            self._screen.say(self._last_words, "error")
        return self._exit

    def interrupt(self, by: str = "Ctrl-C") -> None:
        """End the call because the person, or the system, does not want it any more."""
        self._end(Exit.CANCELLED, f"The call was stopped by {by}")

    # --- items -------------------------------------------------------------------------------

    async def _take(self, item: Item) -> None:
        match item:
            case Request():
                await self._show(item)
                await self._take_question(item)
                return
            case RequestCancelled():
                await self._take_back(item)
            case Error() if self._ending is None:
                exit = _EXIT_BY_CODE.get(item.code, Exit.FAILED)
                if item.code == Cancelled.code and self._exit is Exit.NOT_ANSWERED:
                    exit = self._exit  # so an MCP server hears of a question whose time is up here
                self._close_with(exit, self._with_hint(item))
        await self._show(item)

    async def _take_question(self, request: Request) -> None:
        self._asked[request.request_id] = request
        if request.timeout_ms is not None:
            self._until[request.request_id] = asyncio.get_running_loop().time() + request.timeout_ms / 1000
        question = request.request_type
        given = self._answers.find(request, len(self._asked))
        if given is not None:
            await self._say(f"? {question.message} {given.text} [{given.source}]", "quiet")
            try:
                await self._answer(request, given.answer)
            except WrongAnswer as error:
                if not self._person:
                    refused = f"{given.source} {given.text!r} does not fit {self._name(request)}"
                    self._end(Exit.NOT_ANSWERED, f"{refused}, expected {error.expected}")
                    return
                await self._say(str(error), "warning")
            else:
                return
        if not self._person:
            self._end(Exit.NOT_ANSWERED, f"No --answer matches {self._name(request)}")
            return
        self._open[request.request_id] = request
        self._ask_next()

    async def _take_back(self, item: RequestCancelled) -> None:
        request = self._asked[item.request_id]
        self._open.pop(item.request_id, None)
        if request is self._on_screen and self._prompt is not None:
            self._prompt.cancel()
            await asyncio.wait((self._prompt,))
        if self._ending is not None:
            return
        if item.reason == TIMED_OUT:
            self._note(Exit.NOT_ANSWERED)
        await self._say(f"Question withdrawn, {item.reason}: {request.request_type.message}", "warning")

    # --- asking ------------------------------------------------------------------------------

    def _ask_next(self) -> None:
        if self._open and self._prompt is None and self._ending is None:
            self._prompt = self._group.create_task(self._ask_most_urgent())

    async def _ask_most_urgent(self) -> None:
        """Ask one question; which one is decided when all that came together are known."""
        request = max(self._open.values(), key=_urgency, default=None)
        self._on_screen = request
        self._screen.pause()
        try:
            if request is not None:
                id = request.request_id
                answer = await self._prompts.ask(id, request.request_type, self._until.get(id))
                await self._answer(request, answer)
                self._open.pop(request.request_id, None)
        except WrongAnswer as error:
            self._screen.say(str(error), "warning")
        except Interrupted:
            self.interrupt()
        finally:
            self._on_screen = self._prompt = None
            self._ask_next()
            if self._prompt is None:
                self._screen.resume()

    @functools.cached_property
    def _prompts(self) -> "Prompts":
        from midcall.cli.prompts import Prompts  # slow to import: only when something is asked

        return Prompts(self._screen.say)

    async def _answer(self, request: Request, answer: Any) -> None:
        """Give an answer. Raises `WrongAnswer`."""
        try:
            await self._invocation.answer(request.request_id, answer)
        except UnknownQuestion:  # withdrawn in this moment: the item that says so is on its way
            return
        if read_answer(request.request_type, answer) == CANCELLED:
            self._note(Exit.CANCELLED)

    # --- the end -----------------------------------------------------------------------------

    def _end(self, exit: Exit, why: str) -> None:
        """End the call from this side."""
        if self._ending is None:
            self._close_with(exit, why)
            self._ending = asyncio.create_task(self._invocation.cancel(why))

    def _close_with(self, exit: Exit, why: str) -> None:
        self._note(exit)
        self._last_words = f"{_WORDS[exit]}: {why}"

    def _note(self, exit: Exit) -> None:
        self._exit = max(self._exit, exit, key=_SEVERITY.index)

    def _name(self, request: Request) -> str:
        question = request.request_type
        return f'question {len(self._asked)} ({question.kind}): "{question.message}"'

    def _with_hint(self, item: Error) -> str:
        if item.code == NotSupported.code and not self._person:
            return f"{item.message} (without a terminal, answer with --yes or --answer KEY=VALUE)"
        return item.message

    # --- writing -----------------------------------------------------------------------------

    async def _show(self, item: Item) -> None:
        if isinstance(item, Log) and item.level == "debug" and not log.isEnabledFor(logging.DEBUG):
            return
        try:
            await self._write(lambda: self._screen.show(item))
        except UNSENDABLE as error:  # the tool gave something that is not JSON
            self._end(Exit.FAILED, why_unsendable(error))

    async def _say(self, text: str, tone: Tone) -> None:
        await self._write(lambda: self._screen.say(text, tone))

    async def _write(self, write: Callable[[], None]) -> None:
        """Write, above the prompt if there is one."""
        if self._prompt is None:
            write()
            return
        from prompt_toolkit.application import run_in_terminal

        await run_in_terminal(write)


@contextmanager
def interrupts_to(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` in the event loop at the first Ctrl-C or SIGTERM; at the second, leave at once.

    Also if that comes afterwards, while the process waits for a thread that does not end.
    """
    loop = asyncio.get_running_loop()
    pressed = False

    def noticed(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h")  # the bar hides the cursor
            os._exit(Exit.CANCELLED)
        pressed = True
        loop.call_soon_threadsafe(stop, _NAMES[signum])

    before = {number: signal.signal(number, noticed) for number in _NAMES}
    try:
        yield
    finally:
        if not pressed:
            for number, handler in before.items():
                signal.signal(number, handler)


def _urgency(request: Request) -> int:
    return PRIORITIES.index(request.priority)

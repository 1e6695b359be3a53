"""What a person is asked about a command, and what the answers mean.

Texts are the same for the same plan, so that a call which is run again asks the same. A command is always
shown whole, with nothing in it that hides: who says yes has seen it.
"""

from collections.abc import Sequence
from enum import StrEnum

from midcall.activations.bash.judge import Plan
from midcall.activations.bash.parse import in_one_line, visible
from midcall.activations.bash.rules import Approved, written
from midcall.ask import Ask
from midcall.errors import AskError
from midcall.questions import Option

LAST_LINES = 20
"""How many lines of its output are shown of a command that was cut off."""

LONGEST_LINE = 300


class CommandRefused(Exception):
    """The person has said no; the text is for the model."""


class Permitted(StrEnum):
    """For how long a command is permitted."""

    ONCE = "once"
    SESSION = "session"
    ALWAYS = "always"


async def ask_permission(
    ask: Ask, command: str, plan: Plan, circumstances: str, approved: Approved | None
) -> Permitted:
    """Ask whether a command may run; gives for how long. Raises `CommandRefused` or `AskError`.

    `approved` is what would be kept, if it can be permitted for good.
    """
    again = "in this session" if ask.session is not None else "in this call, should it have to be run again"
    options = [
        Option("once", "Yes, once"),
        Option("session", "Yes, and the same command again", f"Without a question, {again}"),
    ]
    if approved is not None:
        options.append(Option("always", "Yes, always", "Just this command, in this folder"))
    options += [Option("no", "No"), Option("reason", "No, because ...", "The model is told why")]
    match await ask.select(_shown(command, plan, circumstances), options, key="permission", timeout=None):
        case "once":
            return Permitted.ONCE
        case "session":
            return Permitted.SESSION
        case "always" if approved is not None:
            return await _ask_to_keep(ask, approved)
        case "reason":
            why = await ask.prompt("Why not? The model is told.", key="reason", timeout=None)
            raise CommandRefused(f"Not run: the person said no: {visible(why)}")
        case _:
            raise CommandRefused("Not run: the person said no")


async def _ask_to_keep(ask: Ask, approved: Approved) -> Permitted:
    """Show what would be kept, exactly, and have it confirmed."""
    message = (
        f"Keep this in your rules?\n\n{_indented(visible(written(approved)))}\n\n"
        "Then this command, exactly, runs in this folder without a question, whatever its files are by then."
    )
    options = [
        Option("keep", "Keep it"),
        Option("once", "Keep nothing, run it once"),
        Option("no", "Do not run it"),
    ]
    match await ask.select(message, options, key="rule", timeout=None):
        case "keep":
            return Permitted.ALWAYS
        case "once":
            return Permitted.ONCE
        case _:
            raise CommandRefused("Not run: the person said no")


async def ask_to_leave(ask: Ask, command: str, refused: str) -> bool:
    """Ask whether a command may run again without its sandbox."""
    message = (
        f"The sandbox may have refused something to this command:\n\n{_indented(visible(command))}\n\n"
        f"It said:\n\n{_indented(_cut(refused))}\n\n"
        "Run it again without the sandbox? Then it can do whatever you can. "
        "What it has done already, it does again."
    )
    options = [Option("no", "No, leave it at that"), Option("leave", "Yes, without the sandbox, once")]
    return await _chosen(ask, message, options, "sandbox") == "leave"


async def ask_what_now(ask: Ask, command: str, lines: Sequence[str]) -> bool:
    """A command was cut off by a crash: ask whether it is to be run again."""
    last = [_cut(line) for line in lines[-LAST_LINES:]]
    printed = (
        f"The last that it printed:\n\n{_indented(chr(10).join(last))}" if last else "It had printed nothing."
    )
    message = (
        f"The server stopped while this command ran, so it may have been cut off anywhere:\n\n"
        f"{_indented(visible(command))}\n\n{printed}\n\nRun it again, from its beginning?"
    )
    options = [Option("stop", "No, give up"), Option("again", "Yes, run it again")]
    return await _chosen(ask, message, options, "interrupted") == "again"


async def _chosen(ask: Ask, message: str, options: Sequence[Option], key: str) -> str:
    """The answer about a command that has run already: who does not answer wants nothing more."""
    try:
        return await ask.select(message, options, key=key, timeout=None)
    except AskError:
        return ""


def _shown(command: str, plan: Plan, circumstances: str) -> str:
    parts = [
        f"{number}. {part.verdict.upper()}  {part.shown}\n   {in_one_line(part.why)}"
        for number, part in enumerate(plan.parts, 1)
    ]
    listed = _indented("\n".join(parts))
    shown = _indented(visible(command))
    where = _indented(in_one_line(circumstances))
    return f"Run this command?\n\n{shown}\n\nWhat it does:\n\n{listed}\n\nWhere:\n\n{where}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _cut(line: str) -> str:
    shown = in_one_line(line)
    return shown if len(shown) <= LONGEST_LINE else f"{shown[:LONGEST_LINE]}..."

"""What each action of `midcall calls` does, and how it is shown.

Lists and calls go to standard output; what is said beside them, to standard error.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text as RichText

from midcall.cli.answers import GivenAnswers
from midcall.cli.command import Exit, Interrupted, UsageError
from midcall.cli.output import console, has_person, readable, say, span_text, styled, table, write_out
from midcall.cli.remote_admin import Refused, RemoteAdmin
from midcall.errors import JournalError, MidcallError, NotWaiting, UnknownQuestion, WrongAnswer
from midcall.items import Metadata, Request
from midcall.journal.admin import Admin
from midcall.journal.trees import is_tree_export
from midcall.questions import (
    CANCELLED,
    DECLINED,
    Answer,
    AnyQuestion,
    CustomAnswer,
    Prompt,
    Roots,
    Sample,
    Text,
    answer_to_wire,
    question_from_wire,
    read_answer,
)

CallsAdmin: TypeAlias = Admin | RemoteAdmin
"""What is done with calls, here or through a server."""

PAGE = 1000

TOGETHER = 64
"""How many calls are imported side by side: a journal writes together what comes together."""

LOOK = 1.0
"""Seconds between two looks at a call that runs on."""

_ENDED = ("completed", "failed", "aborted", "expired", "poisoned")
_FAILED = ("failed", "poisoned", "diverged", "expired")


async def list_calls(admin: CallsAdmin, args: argparse.Namespace) -> Exit:
    """`midcall calls list`."""
    calls: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        left = args.limit - len(calls)
        page = await admin.list(
            status=args.status, name=args.name, principal=args.principal, after=after, limit=min(left, PAGE)
        )
        calls += page["calls"]
        after = page["next"]
        if after is None or len(calls) >= args.limit:
            break
    more = after is not None or len(calls) > args.limit
    calls = calls[: args.limit]
    if args.json:
        for call in calls:
            _write_json(call)
    elif calls:
        _show_table(calls)
    else:
        say("There are no such calls.")
    if more:
        say(f"There are more: --limit {2 * args.limit}")
    return Exit.SUCCESS


async def show_calls(admin: CallsAdmin, args: argparse.Namespace) -> Exit:
    """`midcall calls show`."""
    call = await admin.show(args.id, values=args.values)
    if args.json:
        _write_json(call)
    else:
        _show_call(call)
    return Exit.SUCCESS


async def abort_calls(admin: CallsAdmin, args: argparse.Namespace) -> Exit:
    """`midcall calls abort`."""
    call = await admin.abort(args.id, args.reason)
    say(f"Call {args.id} is {call['status']}.")
    return Exit.SUCCESS


async def fork_calls(admin: CallsAdmin, args: argparse.Namespace) -> Exit:
    """`midcall calls fork`."""
    call = await admin.fork(args.id, args.at)
    try:
        if args.answers:
            answers = _given(_questions(call), args.answers, None)
            call = await admin.answer(call["id"], {key: answer_to_wire(one) for key, one in answers.items()})
    except (NotWaiting, UnknownQuestion, WrongAnswer, UsageError, Refused):
        with contextlib.suppress(NotWaiting, Refused):
            await admin.abort(call["id"], "It could not be answered as it was to be")
        raise
    return _tell(call, f"Forked as {call['id']}, which is {call['status']}.", args)


async def export_calls(admin: CallsAdmin, args: argparse.Namespace) -> Exit:
    """`midcall calls export`."""
    if args.all == (args.id is not None):
        raise UsageError("Nothing to export: pass an ID, or --all")
    running = count = 0
    if args.id is not None:
        _write_json(await admin.export(args.id))
        return Exit.SUCCESS
    if isinstance(admin, Admin) and (keys := await admin.export_keys()):
        _write_json(keys)
    async for exported in admin.export_all(args.status):
        _write_json(exported)
        count += 1
        running += exported["call"]["status"] == "running" and exported["call"]["owner"] is not None
    talks = trees = 0
    if not args.status and isinstance(admin, Admin):
        async for exported in admin.export_conversations():
            _write_json(exported)
            talks += 1
        async for exported in admin.export_trees():
            _write_json(exported)
            trees += "tree" in exported
    told = _counted(count, talks, trees)
    say(f"{told} exported, with all arguments, answers, results and keys: keep them safe.")
    if running:
        say(f"{_calls(running)} of them run right now: stop the server before you import them elsewhere.")
    return Exit.SUCCESS


async def import_calls(admin: CallsAdmin, args: argparse.Namespace) -> Exit:
    """`midcall calls import`."""
    if args.file == "-":
        return await _import_from(admin, sys.stdin)
    try:
        file = Path(args.file).open(encoding="utf-8", errors="surrogateescape")  # noqa: ASYNC230, SIM115  nothing else runs
    except OSError as error:
        raise UsageError(f"Cannot read {args.file}: {error.strerror or error}") from None
    with file:
        return await _import_from(admin, file)


async def _import_from(admin: CallsAdmin, lines: Iterable[str]) -> Exit:
    taken = known = talks = trees = 0
    left_out = False
    in_order = asyncio.Lock()  # a tree comes before its nodes

    async def restore(line: str) -> bool | None:
        nonlocal talks, trees, left_out
        exported = msgspec.json.decode(line, type=dict[str, Any])
        if "conversation" in exported or is_tree_export(exported):
            if isinstance(admin, RemoteAdmin):
                left_out = True
                return None
            if "conversation" in exported:
                new = await admin.restore_conversation(exported)
                talks += new
                return None if new else False
            async with in_order:
                new = await admin.restore_tree(exported)
            trees += new
            return None if new or "tree" not in exported else False
        if "keys" not in exported:
            return await admin.restore(exported)
        if isinstance(admin, RemoteAdmin) or not await admin.restore_keys(exported):
            say("This journal has keys of its own: who waits for an imported call cannot come back to it.")
        return None

    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while some := list(itertools.islice(numbered, TOGETHER)):
        done = await asyncio.gather(*(restore(line) for _, line in some), return_exceptions=True)
        taken += done.count(True)
        known += done.count(False)
        for (number, _), one in zip(some, done, strict=True):
            if isinstance(one, MidcallError | ValueError | RecursionError):  # of the decoder too
                again = f"{_calls(taken)} imported; what is known is left alone if you try again"
                raise JournalError(f"Line {number}: {one}. {again}")
            if isinstance(one, BaseException):
                raise one
    say(f"{_counted(taken, talks, trees)} imported" + (f", {known} known already." if known else "."))
    if left_out:
        say("A server takes no conversations or trees over HTTP: import them with --journal.")
    return Exit.SUCCESS


# --- answering ----------------------------------------------------------------------------------


async def answer_calls(admin: CallsAdmin, args: argparse.Namespace) -> Exit:
    """`midcall calls answer`."""
    call = await admin.show(args.id)
    refusal = DECLINED if args.decline else CANCELLED if args.cancel else None
    asks = not args.answers and refusal is None
    if asks and not has_person():
        raise UsageError("Without a terminal, pass answers: KEY=VALUE, --decline or --cancel")
    person = _Person() if asks else None
    while True:
        questions = _questions(call)
        if person is not None:
            try:
                answers = await person.ask(questions)
            except Interrupted:
                say("Nothing was answered.")
                return Exit.CANCELLED
        else:
            answers = _given(questions, args.answers, refusal)
        call = await admin.answer(args.id, {key: answer_to_wire(one) for key, one in answers.items()})
        if person is not None and call["status"] == "running":
            say("The call runs on.")
            while call["status"] == "running":
                await asyncio.sleep(LOOK)
                call = await admin.show(args.id)
        if person is None or call["status"] != "waiting":
            break
    return _tell(call, f"Answered. Call {call['id']} is {call['status']}.", args)


def _questions(call: Mapping[str, Any]) -> dict[str, AnyQuestion]:
    if not call["kept"]:
        raise NotWaiting(
            call["id"], call["status"], "This call is not in a journal: only its caller can answer"
        )
    if call["status"] not in ("waiting", "diverged"):
        raise NotWaiting(call["id"], call["status"])
    return {one["key"]: question_from_wire(one["question"]) for one in call["questions"]}


def _tell(call: Mapping[str, Any], done: str, args: argparse.Namespace) -> Exit:
    """Where a call stands after it has gone on."""
    if args.json:
        _write_json(call)
    else:
        say(done)
        for one in call["questions"]:
            say(f"It asks: {one['message']}  ({one['key']}, {one['kind']})")
    return Exit.FAILED if call["status"] in _FAILED else Exit.SUCCESS


def _given(
    questions: Mapping[str, AnyQuestion], pairs: Sequence[str], refusal: Answer | None
) -> dict[str, Answer]:
    """The answers of a command line, by key. Raises `UnknownQuestion` or `WrongAnswer`."""
    answers: dict[str, Answer] = {}
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"An answer is KEY=VALUE, as in 1=yes or prompt=Ada, not {pair!r}")
        key, answer = _match(questions, pair)
        answers[key] = answer
    if refusal is not None:
        answers = {key: answers.get(key, refusal) for key in questions}
    return answers


def _match(questions: Mapping[str, AnyQuestion], pair: str) -> tuple[str, Answer]:
    """The question that is meant, by its key or as with `midcall call --answer`, and the answer."""
    word, _, value = pair.partition("=")
    for number, (key, question) in enumerate(questions.items(), 1):
        own = GivenAnswers([f"{number}={value}" if word.strip() == key else pair])
        found = own.find(Request(_NOWHEN, key, question), number)
        if found is not None:
            try:
                return key, read_answer(question, found.answer)
            except WrongAnswer as error:
                raise WrongAnswer(f'{error.expected} for "{question.message}"') from None
    raise _NoSuchQuestion(word, questions)


class _NoSuchQuestion(UnknownQuestion):
    def __init__(self, word: str, questions: Mapping[str, AnyQuestion]) -> None:
        asked = ", ".join(f"{key} ({one.kind}: {one.message})" for key, one in questions.items())
        MidcallError.__init__(self, f"No open question is {word!r}, only: {asked}")


_NOWHEN = Metadata((), "", 0)


class _Person:
    """Whoever sits at this terminal, and answers in the place of another."""

    def __init__(self) -> None:
        from midcall.cli.prompts import Prompts  # slow to import: only when something is asked

        self._prompts = Prompts(say)

    async def ask(self, questions: Mapping[str, AnyQuestion]) -> dict[str, Answer]:
        """Answers to all of them. Raises `Interrupted`."""
        return {key: await self._ask(key, question) for key, question in questions.items()}

    async def _ask(self, key: str, question: AnyQuestion) -> Answer:
        match question:
            case Sample():
                said = await self._prompts.ask(key, Prompt(f"A model is asked: {question.message}"))
                return CustomAnswer({"text": said.value if isinstance(said, Text) else ""})
            case Roots():
                raise UsageError(f'Folders are not asked for here: give {key}=\'[{{"uri": "file:///..."}}]\'')
        return await self._prompts.ask(key, question)


# --- showing ------------------------------------------------------------------------------------


def _show_table(calls: Sequence[Mapping[str, Any]]) -> None:
    titles = ("age", "id", "method", "status", "principal", "asks", "expires in")
    rows = table(*titles, wraps=titles[2:])
    now = dt.datetime.now(dt.UTC)
    for call in calls:
        asks = "; ".join(one["message"] for one in call["questions"])
        ends = call["status"] in ("running", "waiting", "diverged") and call["kept"]
        rows.add_row(
            span_text(now - _time(call["created"])),
            styled(call["id"], style="bold"),
            styled(call["method"]),
            styled(call["status"] if call["kept"] else f"{call['status']}, not kept", style=_style(call)),
            styled(call["principal"] or "-"),
            styled(" ".join(asks.split()) or "-"),
            span_text(_time(call["expires"]) - now) if ends else "-",
        )
    console().print(rows)


def _show_call(call: Mapping[str, Any]) -> None:
    out = console()
    now = dt.datetime.now(dt.UTC)
    facts = {
        "call": call["id"],
        "method": call["method"],
        "status": call["status"] if call["kept"] else f"{call['status']}, not kept: it ends with its process",
        "principal": call["principal"],
        "created": f"{call['created']}, {span_text(now - _time(call['created']))} ago",
    }
    if call["kept"]:
        facts |= {
            "changed": f"{call['updated']}, {span_text(now - _time(call['updated']))} ago",
            "forgotten" if call["status"] in _ENDED else "expires": (
                f"{call['expires']}, in {span_text(_time(call['expires']) - now)}"
            ),
            "segment": call["segment"],
            "worker": call["worker"],
            "arguments": readable(call["arguments"]),
        }
    if call.get("outcome") is not None:
        facts["outcome"] = readable(call["outcome"])
    _grid(out, [(styled(name, style="dim"), styled(str(v))) for name, v in facts.items() if v is not None])
    if call["questions"]:
        out.print(styled("\nasks", style="dim"))
        _grid(
            out,
            [
                (
                    styled(_one_line(f"  {one['key']}"), style="bold"),
                    styled(one["kind"]),
                    styled(one["message"]),
                )
                for one in call["questions"]
            ],
        )
    if call.get("entries"):
        out.print(styled("\ndone so far", style="dim"))
        _grid(out, [_entry_row(entry) for entry in call["entries"]])


def _entry_row(entry: Mapping[str, Any]) -> tuple[RichText, ...]:
    value = readable(entry["value"]) if "value" in entry else ""
    cells = (f"  {entry['place']}", entry["type"], entry["what"], entry["state"])
    return (*(styled(_one_line(cell)) for cell in cells), styled(value))


def _one_line(text: str) -> str:
    """What stands at the beginning of a line must not begin others."""
    return text.replace("\n", "\\n")


def _grid(out: Console, rows: Sequence[tuple[RichText, ...]]) -> None:
    grid = Table.grid(padding=(0, 3, 0, 0))
    for row in rows:
        grid.add_row(*row)
    out.print(grid)


def _style(call: Mapping[str, Any]) -> str:
    return {"waiting": "yellow", "running": "cyan", "completed": "green"}.get(
        call["status"], "red" if call["status"] in _FAILED else ""
    )


def _time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def _calls(number: int) -> str:
    return f"{number} call{'s' * (number != 1)}"


def _counted(calls: int, conversations: int, trees: int) -> str:
    """How many of each: of what there is none, only calls are told."""
    others = [
        f"{number} {what}{'s' * (number != 1)}"
        for number, what in ((conversations, "conversation"), (trees, "tree"))
        if number
    ]
    *first, last = [_calls(calls), *others]
    return f"{', '.join(first)} and {last}" if first else last


def _write_json(value: Any) -> None:
    write_out(msgspec.json.encode(value).decode())

"""What a person is asked when Claude Code wants to use a tool, and what the answers mean.

Texts are the same for the same tool use, so that a call which is run again asks the same. An input is always
shown whole, with nothing in it that hides, and indented, so that no line of it looks like one of midcall's:
who says yes has seen what it is for. What is too long for that can be refused only.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from midcall.ask import Ask
from midcall.errors import Cancelled, Declined, NotSupported
from midcall.logs import printable
from midcall.questions import Option

MOST_SHOWN = 32 * 1024
"""How many characters of an input a person is shown. A longer one is not asked about."""

MOST_EDITED = 8 * 1024
"""How many characters a text may have that can be changed in a form."""

_NOTHING = r"[ \t\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c\u200d\u2800\u3164\ufe00-\ufe0f\uffa0]"
BLANK = re.compile(rf"{_NOTHING}{{80,}}|\n({_NOTHING}*\n){{10,}}")
"""So much of nothing that what comes after it might be overlooked."""

MOST_QUESTIONS = 20
"""How many questions of Claude's are asked in one form; it may ask four."""

QUESTIONS = "AskUserQuestion"
"""The tool by which Claude asks the person something."""

UNASKED = "Not run: a person has to permit it, and nobody can be asked here."
REFUSED = "Not run: the person said no."


class PendingTool(Struct, frozen=True):
    """A tool use that waits for a decision."""

    id: str
    tool: str
    input: dict[str, Any] = {}


class PermissionAsked(Struct, frozen=True):
    """Claude Code asks whether a tool may be used."""

    pending: PendingTool
    reason: str = ""
    description: str = ""
    path: str = ""
    """The file or folder because of which it asks."""
    always: Sequence[dict[str, Any]] = ()
    """What may be kept, so that it need not ask again (see `kept_in_words`): first of all, `exactly` this."""
    again: bool = False
    """Whether it was permitted before, and may have run: the server stopped meanwhile."""


class Decision(Struct, frozen=True, omit_defaults=True):
    """What was decided about a tool use."""

    allow: bool
    input: dict[str, Any] | None = None
    """The input in the place of the one that was asked about."""
    message: str = ""
    """What Claude is told, if it is not allowed."""
    stop: bool = False
    """Whether the turn ends with it."""
    always: Sequence[dict[str, Any]] = ()
    """What is kept for the rest of the session."""


async def decide(ask: Ask, asked: PermissionAsked) -> Decision:
    """Ask the caller. Nobody who can be asked means no; so does a person who goes away."""
    try:
        if asked.pending.tool == QUESTIONS and (questions := _questions(asked.pending.input)):
            return await _ask_questions(ask, asked.pending.input, questions)
        return await _ask_permission(ask, asked)
    except NotSupported:
        return Decision(allow=False, message=UNASKED)
    except Declined:
        return Decision(allow=False, message=REFUSED)
    except Cancelled:
        return Decision(allow=False, message=REFUSED, stop=True)


# --- may it be used? ------------------------------------------------------------------------------------


def unshowable(asked: PermissionAsked) -> str:
    """Why a person cannot be shown what is asked; nothing if they can."""
    try:
        size = len(json.dumps(asked.pending.input, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return "Not run: its input has halves of characters, which cannot be shown."
    if size > MOST_SHOWN or len(_shown(asked)) > MOST_SHOWN:
        return f"Not run: its input is longer than the {MOST_SHOWN} characters that are shown."
    return ""


async def _ask_permission(ask: Ask, asked: PermissionAsked) -> Decision:
    fields = _editable(asked.pending.input)
    options = [Option("once", "Yes, once")]
    if fields and "form" in ask.supported:
        options.append(Option("edit", "Yes, but changed ...", "You change the input first"))
    options += [
        Option("always", "Yes, always", "What is kept for this session is shown first"),
        Option("no", "No"),
        Option("reason", "No, because ...", "Claude is told why"),
        Option("stop", "No, and stop", "Claude does nothing more"),
    ]
    match await ask.select(_shown(asked), options, key="permission", timeout=None):
        case "once":
            return Decision(allow=True)
        case "edit":
            return await _ask_for_input(ask, asked.pending, fields)
        case "always":
            return await _ask_for_always(ask, asked)
        case "reason":
            why = await ask.prompt("Why not? Claude is told.", key="reason", timeout=None)
            return Decision(allow=False, message=f"{REFUSED} They said: {why[:MOST_SHOWN]}")
        case "stop":
            return Decision(allow=False, message=REFUSED, stop=True)
    return Decision(allow=False, message=REFUSED)


async def _ask_for_input(ask: Ask, pending: PendingTool, fields: Mapping[str, Any]) -> Decision:
    schema = {"type": "object", "properties": dict(fields), "required": list(fields)}
    changed = await ask.form(schema, f"Change the input of {_line(pending.tool)}", key="input", timeout=None)
    return Decision(allow=True, input={name: changed.get(name, one) for name, one in pending.input.items()})


async def _ask_for_always(ask: Ask, asked: PermissionAsked) -> Decision:
    kept = "\n".join(f"    {line}" for one in asked.always for line in kept_in_words(one))
    if "*" in kept:
        kept += "\n\nIn a rule, * stands for anything."
    options = [Option("always", "Yes, all of this"), Option("once", "Only once"), Option("no", "No")]
    if len(asked.always) > 1:
        options.insert(1, Option("exactly", "Only the first line"))
    match await ask.select(f"Keep this for this session?\n\n{kept}", options, key="always", timeout=None):
        case "always":
            return Decision(allow=True, always=asked.always)
        case "exactly":
            return Decision(allow=True, always=asked.always[:1])
        case "once":
            return Decision(allow=True)
    return Decision(allow=False, message=REFUSED)


def exactly(tool: str, input: Mapping[str, Any]) -> dict[str, Any]:
    """What may be kept of every tool use: that just this is permitted, whatever Claude Code thinks of it."""
    written = json.dumps([tool, input], sort_keys=True)
    return {"type": "exactly", "digest": hashlib.sha256(written.encode()).hexdigest()}


def kept_in_words(suggestion: Mapping[str, Any]) -> list[str]:
    """What may be kept, for a person: `exactly`, or what Claude Code suggests; nothing if it is unknown."""
    match suggestion:
        case {"type": "exactly"}:
            return ["Use without asking: this tool, with exactly this input"]
        case {"type": "addRules", "behavior": "allow", "rules": [*rules]}:
            return [f"Use without asking: {_line(rule_of(rule))}" for rule in rules]
        case {"type": "addDirectories", "directories": [*folders]}:
            return [f"Work in this folder too: {_line(str(folder))}" for folder in folders]
        case {"type": "setMode", "mode": "acceptEdits"}:
            return ["Make, change and remove files in its folders without asking"]
    return []


def rule_of(rule: Mapping[str, Any]) -> str:
    """A rule as Claude Code writes it: `Bash(npm test *)`."""
    content = rule.get("ruleContent")
    return f"{rule.get('toolName')}({content})" if content else str(rule.get("toolName"))


def _shown(asked: PermissionAsked) -> str:
    pending = asked.pending
    parts = [f"Claude wants to use {_line(pending.tool)}:", _indented(_listed(pending.input))]
    if asked.again:
        parts.append(
            "It was permitted before, and then the server stopped: it may have run already, or in part."
        )
    parts += [
        f"{label}: {_line(text)}"
        for label, text in (
            ("What for", asked.description),
            ("Why you are asked", asked.reason),
            ("Path", asked.path),
        )
        if text and text not in pending.input.values()
    ]
    return "\n\n".join([*parts, "May it?"])


def _listed(input: Mapping[str, Any]) -> str:
    lines = []
    for name, value in input.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        shown = _unhidden(text)
        lines.append(f"{_line(name)}:" + (f"\n{_indented(shown)}" if "\n" in shown else f" {shown}"))
    return "\n".join(lines) or "(no input)"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _line(text: str) -> str:
    """Text of others, in one line."""
    return _unhidden(text).replace("\n", "\\n")


def _unhidden(text: str) -> str:
    """Text of others, with nothing in it that hides."""
    return BLANK.sub(lambda found: f" [{len(found[0])} blank characters] ", printable(text))


def _editable(input: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of what can be changed in a form: texts, numbers, yes and no."""
    fields: dict[str, Any] = {}
    for name, value in input.items():
        match value:
            case bool():
                fields[name] = {"type": "boolean", "default": value}
            case int():
                fields[name] = {"type": "integer", "default": value}
            case float():
                fields[name] = {"type": "number", "default": value}
            case str() if len(value) <= MOST_EDITED:
                fields[name] = {"type": "string", "default": value}
    return fields


# --- what Claude asks -----------------------------------------------------------------------------------


class ClaudeQuestion(Struct, frozen=True):
    """One question of Claude's."""

    question: str
    header: str
    options: Mapping[str, str]
    """What each stands for, by its label."""
    multi: bool


def _questions(input: Mapping[str, Any]) -> list[ClaudeQuestion]:
    """The questions of a tool use; none if they are not what they should be."""
    listed = input.get("questions")
    if not isinstance(listed, list) or len(listed) > MOST_QUESTIONS:
        return []
    found = []
    for one in listed:
        match one:
            case {"question": str(question), "options": [*options]}:
                labels = {
                    _line(str(option["label"])): _line(str(option.get("description") or ""))
                    for option in options
                    if isinstance(option, Mapping) and option.get("label")
                }
                header = _line(str(one.get("header") or question))
                found.append(ClaudeQuestion(question, header, labels, one.get("multiSelect") is True))
            case _:
                return []
    return found


async def _ask_questions(ask: Ask, input: dict[str, Any], questions: Sequence[ClaudeQuestion]) -> Decision:
    """Ask all of them in one form. Each can be answered in other words as well."""
    properties: dict[str, Any] = {}
    for number, one in enumerate(questions, 1):
        properties[f"answer_{number}"] = _choice(one)
        properties[f"other_{number}"] = {
            "type": "string",
            "title": f"{one.header}, in other words",
            "default": "",
        }
    schema = {"type": "object", "title": "Claude asks", "properties": properties, "required": []}
    message = "\n\n".join(_asked_in_words(number, one) for number, one in enumerate(questions, 1))
    given = await ask.form(schema, f"Claude asks:\n\n{message}", key="questions", timeout=None)
    answers = {}
    for number, one in enumerate(questions, 1):
        answer = given.get(f"answer_{number}") or []
        chosen = [answer] if isinstance(answer, str) else list(answer)
        if other := str(given.get(f"other_{number}") or "").strip():
            chosen = [*chosen, other] if one.multi else [other]
        if chosen:
            answers[one.question] = ", ".join(chosen)
    if not answers:
        return Decision(allow=False, message="The person did not answer.")
    return Decision(allow=True, input={**input, "answers": answers})


def _choice(one: ClaudeQuestion) -> dict[str, Any]:
    about = {"title": one.header, "description": printable(one.question)}
    chosen = {"type": "string", "enum": list(one.options)} if one.options else {"type": "string"}
    return {**about, "type": "array", "items": chosen} if one.multi else {**about, **chosen}


def _asked_in_words(number: int, one: ClaudeQuestion) -> str:
    options = [f"   - {label}: {about}" if about else f"   - {label}" for label, about in one.options.items()]
    several = " (several are possible)" if one.multi else ""
    return "\n".join([f"{number}. {_line(one.question)}{several}", *options])

"""Prompts: asks one question of a person at a terminal, with questionary.

One prompt is on the screen at a time; cancelling the task that waits for it closes it. Below a question that
has a limit, the time that is left counts down. A form is asked field by field, from its schema. Prompts are
drawn on standard error, so that standard output carries data alone.
"""

import asyncio
import datetime as dt
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import questionary
from prompt_toolkit.application import Application
from prompt_toolkit.filters import Always, is_done
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Window
from prompt_toolkit.output import create_output

from midcall.cli.command import Interrupted, UsageError
from midcall.cli.output import readable, span_text
from midcall.cli.schema_fields import MISSING, SchemaField, fields_of, file_text, read_json
from midcall.logs import printable
from midcall.questions import (
    DECLINED,
    Answer,
    AnyQuestion,
    Confirm,
    Confirmed,
    Custom,
    CustomAnswer,
    Form,
    Prompt,
    Select,
    Selected,
    Text,
    Url,
)

LEAVE_OUT = "(leave out)"

DAY = 24 * 3600
"""Seconds. A longer limit is no reason to hurry: it is not shown."""


class Prompts:
    """Asks in this terminal; `say` prints a line above the prompt."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._output = create_output(stdout=sys.stderr)
        self._entered: dict[str, dict[str, Any]] = {}
        self._until: float | None = None

    async def ask(self, request_id: str, question: AnyQuestion, until: float | None = None) -> Answer:
        """The person's answer; `until` is when it is too late, on the clock of the event loop.

        Raises `Interrupted`.
        """
        self._until = until
        match question:
            case Confirm():
                return Confirmed(await self._confirm(question.message, bool(question.default)))
            case Prompt():
                return Text(await self._text(question.message, question.default, question.placeholder))
            case Select():
                return await self._select(question)
            case Form():
                return await self._form(request_id, question)
            case Url():
                self._say(f"{question.message}\n  {question.url}")
                return CustomAnswer(True) if await self._confirm("Done?", True) else DECLINED
            case Custom():
                return await self._custom(question)
        raise AssertionError(f"A terminal does not ask questions of kind {question.kind}")

    # --- kinds of question -------------------------------------------------------------------

    async def _select(self, question: Select) -> Answer:
        choices = [
            _choice(option.label, option.value, description=option.description) for option in question.options
        ]
        if question.multi_select:
            return Selected(tuple(await self._checkbox(question.message, choices)))
        return Selected((await self._choose(question.message, choices),))

    async def _custom(self, question: Custom) -> Answer:
        data = question.data
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if value != question.message}
        if data:
            self._say(readable(data))
        fields = ", ".join(f"{field.name}: {field.type}" for field in fields_of(question.schema or {}))
        hint = f"JSON, {{{fields}}}" if fields else "JSON"
        text = await self._text(question.message, placeholder=hint, validate=_is_json)
        return CustomAnswer(read_json(text))

    async def _form(self, request_id: str, question: Form) -> Answer:
        """Each field in turn; asked again, it starts from what was entered before."""
        self._say(question.message)
        entered = self._entered.setdefault(request_id, {})
        await self._fields(fields_of(question.schema), entered, "")
        return CustomAnswer(dict(entered))

    async def _fields(self, fields: Iterable[SchemaField], entered: dict[str, Any], path: str) -> None:
        for field in fields:
            before = entered.get(field.name, field.default)
            value = await self._field(field, None if before is MISSING else before, path + field.name)
            if value is MISSING:
                entered.pop(field.name, None)
            else:
                entered[field.name] = value

    async def _field(self, field: SchemaField, before: Any, path: str) -> Any:
        label = f"{path} ({field.description})" if field.description else path
        optional = field.nullable or (not field.required and field.default is MISSING)
        blank = None if field.nullable else MISSING
        if field.fields:
            if (optional or not field.required) and not await self._confirm(
                f"Fill in {label}?", bool(before)
            ):
                return blank if optional else MISSING
            inside = dict(before) if isinstance(before, dict) else {}
            await self._fields(field.fields, inside, f"{path}.")
            return inside
        if field.kind == "boolean" and not optional:
            return await self._confirm(label, bool(before))
        if field.kind in ("boolean", "choice"):
            named = (
                {"yes": True, "no": False} if field.kind == "boolean" else {str(c): c for c in field.choices}
            )
            choices = [_choice(name, value) for name, value in named.items()]
            if optional:
                choices.append(_choice(LEAVE_OUT, LEAVE_OUT))
            first = before if before in named.values() else LEAVE_OUT if optional else None
            chosen = await self._choose(label, choices, first)
            return blank if chosen == LEAVE_OUT and LEAVE_OUT not in named else chosen
        if field.item is not None:
            listed = await self._list(field, field.item, before, label)
            if listed is not MISSING:
                return blank if not listed and optional else listed
        if field.kind == "file":
            text = await self._path(label, optional or before is not None)
            return file_text(text) if text else blank if before is None else before
        text = await self._text(
            label,
            _as_text(before),
            f"{_hint(field)}, may be empty" if optional else _hint(field),
            lambda text: (optional and not text) or _fault(field, text) or True,
        )
        return blank if optional and not text else field.read(text)

    async def _list(self, field: SchemaField, item: SchemaField, before: Any, label: str) -> Any:
        """The elements of a list, or `MISSING` if it can only be asked for as JSON."""
        if item.kind == "choice":
            checked = before or ()
            choices = [_choice(str(c), c, checked=c in checked) for c in item.choices]
            return await self._checkbox(label, choices)
        if item.kind in ("string", "integer", "number", "decimal"):
            text = await self._text(
                label,
                _with_commas(before or ()),
                f"{field.type}, with commas",
                lambda text: next(filter(None, (_fault(item, one) for one in _commas(text))), True),
            )
            return [item.read(one) for one in _commas(text)]
        if item.kind != "file" and not item.fields:
            return MISSING
        made: list[Any] = list(before or ())
        if made and not await self._confirm(f"Keep the {len(made)} that {label} has?", True):
            made = []
        if item.kind == "file":
            while text := await self._path(f"{label}, file {len(made) + 1}", True):
                made.append(file_text(text))
            return made
        if item.fields:
            while await self._confirm(f"Add {'another' if made else 'one'} to {label}?", False):
                one: dict[str, Any] = {}
                await self._fields(item.fields, one, f"{field.name}.{len(made) + 1}.")
                made.append(one)
            return made
        return MISSING

    async def _path(self, label: str, optional: bool) -> str:
        hint = "path of a file, may be empty" if optional else "path of a file"
        return await self._text(
            label, None, hint, lambda text: (optional and not text) or _no_file(text) or True
        )

    # --- questionary -------------------------------------------------------------------------

    async def _confirm(self, message: str, default: bool) -> bool:
        return bool(
            await self._run(questionary.confirm(printable(message), default=default, output=self._output))
        )

    async def _text(
        self,
        message: str,
        default: str | None = None,
        placeholder: str | None = None,
        validate: Callable[[str], bool | str] | None = None,
    ) -> str:
        hint = [("class:instruction", printable(placeholder))] if placeholder else None
        shown = printable(default or "")
        prompt = questionary.text(
            printable(message),
            default=shown,
            validate=validate,
            placeholder=hint,
            output=self._output,
            validate_while_typing=False,
        )
        text = str(await self._run(prompt))
        return text if default is None or text != shown else default

    async def _choose(self, message: str, choices: list[questionary.Choice], first: Any = None) -> Any:
        prompt = questionary.select(printable(message), choices, default=first, output=self._output)
        return await self._run(prompt)

    async def _checkbox(self, message: str, choices: list[questionary.Choice]) -> list[Any]:
        keys = "(space to select, enter when done)"
        prompt = questionary.checkbox(printable(message), choices, instruction=keys, output=self._output)
        return list(await self._run(prompt))

    async def _run(self, prompt: questionary.Question) -> Any:
        for window in prompt.application.layout.find_all_windows():
            window.wrap_lines = Always()  # of a choice that is longer than a line too
        if self._until is not None:
            _count_down(prompt.application, self._until)
        try:
            return await prompt.application.run_async(handle_sigint=False)
        except (KeyboardInterrupt, EOFError):
            raise Interrupted from None


def _count_down(application: Application[Any], until: float) -> None:
    """Show below a prompt how much time is left."""
    clock = asyncio.get_running_loop().time
    if until - clock() > DAY:
        return

    def left() -> str:
        return f"  {span_text(dt.timedelta(seconds=until - clock()))} left"

    shown = Window(FormattedTextControl(left), height=1, style="class:instruction")
    layout = application.layout
    layout.container = HSplit([layout.container, ConditionalContainer(shown, ~is_done)])
    application.refresh_interval = 1.0


def _choice(
    title: str, value: Any, *, description: str | None = None, checked: bool = False
) -> questionary.Choice:
    shown = None if description is None else printable(description)
    return questionary.Choice(printable(title), value, checked=checked, description=shown)


def _is_json(text: str) -> bool | str:
    return "This is not JSON" if read_json(text) is MISSING else True


def _fault(field: SchemaField, text: str) -> str | None:
    """Why a text cannot be the value of a field, as far as its kind tells."""
    value = field.read(text)
    if field.kind == "integer" and not isinstance(value, int):
        return "This is not a whole number"
    if field.kind == "number" and not isinstance(value, int | float):
        return "This is not a number"
    if field.kind == "decimal" and not isinstance(read_json(text), int | float):
        return "This is not a number"
    if field.format in _TIMES and not _is_time(field.format, text):
        return f"This is not a {_hint(field)}"
    if field.kind in ("json", "array") and read_json(text) is MISSING and "string" not in field.type:
        return "This is not JSON"
    return None


_TIMES: dict[str, Callable[[str], object]] = {
    "date": dt.date.fromisoformat,
    "date-time": dt.datetime.fromisoformat,
    "time": dt.time.fromisoformat,
}
_HINTS = {
    "date": "date, as in 2026-07-28",
    "date-time": "date and time, as in 2026-07-28T16:30:00Z",
    "time": "time, as in 16:30",
    "duration": "duration, as in PT1H30M",
}


def _hint(field: SchemaField) -> str:
    return _HINTS.get(field.format, field.type)


def _is_time(format: str, text: str) -> bool:
    try:
        _TIMES[format](text)
    except ValueError:
        return False
    return True


def _no_file(path: str) -> str | None:
    """Why there is no such file to be sent."""
    try:
        file_text(path)
    except UsageError as error:
        return str(error)
    return None


def _commas(text: str) -> list[str]:
    """The elements of a list that is written with commas, or as JSON."""
    given = read_json(text) if text.lstrip().startswith("[") else MISSING
    if isinstance(given, list):
        return [_as_text(one) for one in given]
    return [one.strip() for one in text.split(",") if one.strip()]


def _with_commas(elements: Sequence[Any]) -> str:
    """A list as text that `_commas` reads: as JSON, if that is needed."""
    text = ", ".join(map(str, elements))
    return text if _commas(text) == list(map(str, elements)) else msgspec.json.encode(elements).decode()


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

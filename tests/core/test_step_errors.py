"""The error of a step, when its call is run again: a journal holds data, never code."""

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driving import drive
from midcall import steps
from midcall.errors import StepFailed, StepInterrupted, ToolError
from midcall.replay import Entry, Trace


class Plain(Exception):
    """As most authors write them."""


class Detailed(Exception):
    """One that makes its own message, and has attributes."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(f"{left} of {item} left")
        self.item = item
        self.left = left


class Launcher(Exception):
    """One whose making does something."""

    made: ClassVar[list[Any]] = []

    def __new__(cls, *arguments: Any) -> Self:
        cls.made.append(arguments)
        return super().__new__(cls, *arguments)

    def __init__(self, *arguments: Any) -> None:
        self.made.append(arguments)
        super().__init__(*arguments)


class Unkeepable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.line = object()


class Holder:
    class Inside(ValueError):
        pass

    def method(self) -> None: ...


async def _entries(trace: Trace, step: Callable[[], Any]) -> list[Entry]:
    with pytest.raises(Exception):  # noqa: B017  whatever it raises
        await steps.run(trace, step, (), {}, retry_safe=False)
    return trace.take_fresh()


def replayed(error: Exception) -> Exception:
    """What a step that failed with an error raises when its call is run again."""

    def step() -> None:
        raise error

    async def run() -> Exception:
        kept = await _entries(Trace("c", kept=True), step)
        with pytest.raises(Exception) as raised:
            await steps.run(Trace("c", kept, kept=True), step, (), {}, retry_safe=False)
        return raised.value

    found = drive(run())
    assert isinstance(found, Exception)
    return found


def recalled(**failure: Any) -> Exception:
    """What a step raises if this is what the journal says of it."""

    def step() -> None:
        raise AssertionError("it has failed before, and is not done again")

    async def run() -> Exception:
        (*_, kept) = await _entries(Trace("c", kept=True), step)
        kept = Entry(kept.key, kept.fingerprint, "failed", json.dumps({"message": "m", **failure}).encode())
        with pytest.raises(Exception) as raised:
            await steps.run(Trace("c", [kept], kept=True), step, (), {}, retry_safe=False)
        return raised.value

    found = drive(run())
    assert isinstance(found, Exception)
    return found


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("k"),
        KeyError(3),
        ZeroDivisionError(),
        FileNotFoundError(2, "No such file", "notes.txt"),
        Plain("so it is"),
        Plain("two", "parts"),
        Detailed("tea", 2),
        Holder.Inside("nested"),
        ToolError("sold out", code="sold_out", recoverable=True),
        sqlite3.IntegrityError("twice"),
        json.JSONDecodeError("bad", "{", 1),
    ],
    ids=repr,
)
def test_the_error_of_a_step_comes_back_as_it_was(error: Exception) -> None:
    found = replayed(error)
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    if isinstance(error, OSError):
        assert (found.errno, found.filename) == (2, "notes.txt")  # type: ignore[attr-defined]


def test_the_interruption_of_a_step_comes_back_with_what_it_was() -> None:
    def step() -> None:
        raise AssertionError("not done again")

    async def run() -> None:
        begun = Trace("c", kept=True)
        (*_, kept) = await _entries(begun, step)
        cut = Trace("c", [Entry(kept.key, kept.fingerprint, "begun")], kept=True)
        for trace in (cut, None):
            trace = trace or Trace("c", cut.take_fresh(), kept=True)
            with pytest.raises(StepInterrupted, match="may have happened") as raised:
                await steps.run(trace, step, (), {}, retry_safe=False)
            assert (raised.value.key, raised.value.data["key"]) == ("c:1", "c:1")

    drive(run())


def test_an_error_that_json_cannot_carry_comes_back_with_its_text() -> None:
    found = replayed(Unkeepable("so it is"))
    assert (type(found), str(found)) == (Unkeepable, "so it is")


def test_an_error_that_cannot_be_made_from_text_is_a_step_failed() -> None:
    class Local(Exception):
        pass

    for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), Local("here")):
        found = replayed(error)
        assert (type(found), str(found)) == (StepFailed, str(error))


def test_no_code_of_the_class_is_run_to_make_an_error_again() -> None:
    Launcher.made.clear()
    found = recalled(module=__name__, name="Launcher", arguments=["rm -rf"])
    assert (type(found), found.args) == (Launcher, ("rm -rf",))
    assert Launcher.made == []


def test_a_journal_imports_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = recalled(module="planted", name="Anything", arguments=[])
    assert (type(found), str(found)) == (StepFailed, "m")
    assert "planted" not in sys.modules
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("subprocess", "Popen"),
        ("subprocess", "getoutput"),
        ("builtins", "exec"),
        ("builtins", "eval"),
        ("builtins", "open"),
        ("builtins", "SystemExit"),
        ("builtins", "KeyboardInterrupt"),
        ("builtins", "type"),
        ("pathlib", "Path.unlink"),
        ("pathlib", "os.system"),
        (__name__, "sys.exit"),
        (__name__, "Holder"),
        (__name__, "Holder.method"),
        (__name__, "Holder.method.__globals__"),
        (__name__, "Holder.Inside.__subclasses__"),
        (__name__, "pytest.raises"),
        (__name__, "StepInterrupted"),  # it is at home elsewhere
        ("", ""),
        ("midcall.steps", ""),
        (__name__, ".Plain"),
    ],
)
def test_a_journal_calls_nothing_by_name(module: str, name: str, tmp_path: Path) -> None:
    target = tmp_path / "made"
    found = recalled(module=module, name=name, arguments=[f"touch {target}"])
    assert (type(found), str(found)) == (StepFailed, "m")
    assert not target.exists()


_NAMES = st.sampled_from([name for name in sys.modules if "." not in name]) | st.text(max_size=20)


@given(
    module=_NAMES,
    name=st.lists(
        st.sampled_from(["system", "Error", "__class__", "__init__", "error", "x"]) | st.text()
    ).map(".".join),
    arguments=st.lists(st.none() | st.integers() | st.text() | st.lists(st.text()), max_size=4),
)
def test_whatever_a_journal_says_it_is_an_error_of_a_class_that_is_there(
    module: str, name: str, arguments: list[Any]
) -> None:
    before = set(sys.modules)
    found = recalled(module=module, name=name, arguments=arguments)
    assert type(found) is StepFailed or type(found).__qualname__ == name
    assert set(sys.modules) == before

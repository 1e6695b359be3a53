"""Characters of others that act on a terminal instead of being read: none of them gets there."""

import io
import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import SUCCESS
from driving import LIMIT
from midcall.logs import JsonFormatter, TextFormatter, printable
from peers import HERE, command
from terminals import ENTER, midcall

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\x08\r\u202etxt\u2066\u200f"
"""Sets the title, clears the screen, colours, deletes, goes back, and writes from right to left."""
MARKUP = "[red]not red[/red] [link=file:///etc/passwd]here[/link]"
BAD = re.compile("\x1b\\]|\x1b\\[2J|[\x07\x08\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
WORD = {"type": "object", "properties": {"w\x1b]0;": {"type": "string", "description": f"Word {EVIL}"}}}

pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")

Script = Callable[..., str]


@pytest.fixture
def server(tmp_path: Path) -> Script:
    """The command of a server that says what it is told, as one text."""

    def made(**script: Any) -> str:
        place = tmp_path / "script.json"
        place.write_text(json.dumps(script))
        return shlex.join([sys.executable, str(HERE / "hostile_server.py"), "modern", str(place)])

    return made


def tool(name: str = "ask", **more: Any) -> dict[str, Any]:
    listed = {"name": name, "description": f"Evil {EVIL} {MARKUP}", "inputSchema": WORD, **more}
    return {"tools/list": {"tools": [listed]}}


def asks(method_params: dict[str, Any]) -> dict[str, Any]:
    return {"ask": ("k", "elicitation/create", method_params)}


def in_a_terminal(*argv: str, types: tuple[tuple[str, str], ...] = ()) -> str:
    """What a command writes to a terminal; all of it must be harmless."""
    with midcall(*argv) as session:
        for text, keys in types:
            session.sees(text)
            session.types(keys)
        session.ends()
        assert BAD.search(session.written) is None, repr(session.written)
        return session.text


def test_what_acts_is_shown_as_it_is_written_in_json() -> None:
    assert printable("a\x1b[2Jb\u202ec\x9bd\x7f") == "a\\u001b[2Jb\\u202ec\\u009bd\\u007f"
    assert printable("one\ttwo\nthree\r\nfour ä 漢 🙂") == "one\ttwo\nthree\nfour ä 漢 🙂"
    assert json.loads(printable(json.dumps(EVIL, ensure_ascii=False))) == EVIL


def test_the_list_of_tools_is_harmless(server: Script) -> None:
    text = in_a_terminal("tools", server(lists=tool("ask\x1b]0;")))
    assert "Evil" in text
    assert "[red]not red[/red]" in " ".join(text.split())
    assert "Evil" in in_a_terminal("tools", server(lists=tool()), "--json")


def test_one_tool_and_its_help_are_harmless(server: Script) -> None:
    assert "Word" in in_a_terminal("tools", server(lists=tool()), "ask")
    assert "Word" in in_a_terminal("call", server(lists=tool()), "ask", "--help")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_results_are_harmless_in_a_terminal(server: Script, options: tuple[str, ...]) -> None:
    said = server(lists=tool(), says={"ask": f"Result {EVIL} {MARKUP}"})
    assert "Result" in in_a_terminal("call", said, "ask", *options)


def test_results_are_untouched_where_no_terminal_reads_them(server: Script) -> None:
    argv = command("call", server(lists=tool(), says={"ask": EVIL}), "ask")
    done = subprocess.run(argv, capture_output=True, timeout=LIMIT, check=True)
    assert done.stdout == f"{EVIL}\n".encode()


def test_errors_progress_and_log_are_harmless(server: Script) -> None:
    notes = [
        ("notifications/progress", {"progress": 1, "total": 2, "message": f"Half {EVIL} {MARKUP}"}),
        ("notifications/message", {"level": "error", "data": f"Trouble {EVIL} {MARKUP}"}),
        ("notifications/message", {"level": "error", "data": {f"k{EVIL}": EVIL}}),
    ]
    error = {"code": -32000, "message": f"Broken {EVIL} {MARKUP}"}
    text = in_a_terminal("call", server(lists=tool(), notes={"ask": notes}, fails={"ask": error}), "ask")
    assert "Trouble" in text
    assert "Broken" in text


def test_lines_for_pipes_are_harmless_too(server: Script) -> None:
    error = {"code": -32000, "message": f"Broken {EVIL}"}
    target = server(lists=tool(), fails={"ask": error})
    for name in ("ask", EVIL):
        argv = command("call", target, name)
        done = subprocess.run(argv, capture_output=True, timeout=LIMIT, text=True, check=False)
        assert done.stderr
        assert BAD.search(done.stderr) is None, repr(done.stderr)


CHOICE = {"oneOf": [{"const": f"c{n}{EVIL}", "title": f"Choice {n} {EVIL}"} for n in (1, 2)]}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (
            {"properties": {"confirmed": {"type": "boolean"}}, "required": ["confirmed"]},
            (("(y/N)", "y"),),
        ),
        ({"properties": {"text": {"type": "string", "default": f"d{EVIL}"}}}, (("Evil", ENTER),)),
        ({"properties": {"choice": {"type": "string", **CHOICE}}}, (("c2", ENTER),)),
        ({"properties": {f"f{EVIL}": {"type": "string", "enum": [f"e{EVIL}", "x"]}}}, (("(Use", ENTER),)),
        (WORD, (("Word", f"x{ENTER}"),)),
    ],
    ids=["confirm", "prompt", "select", "enum", "form"],
)
def test_questions_are_harmless(server: Script, schema: Any, types: Any) -> None:
    form = {
        "mode": "form",
        "message": f"Evil? {EVIL} {MARKUP}",
        "requestedSchema": {"type": "object", **schema},
    }
    target = server(lists=tool(inputSchema={"type": "object"}), asks=asks(form))
    with midcall("call", target, "ask") as session:
        for text, keys in types:
            session.sees(text)
            session.types(keys)
        assert session.ends() == SUCCESS
        shown = session.written.replace("\x07", "")  # a prompt may ring by itself
        assert BAD.search(shown) is None, repr(shown)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_lines_of_log_are_harmless(formatter: logging.Formatter) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError(f"inside {EVIL}")
    except ValueError:
        logger.exception("failed %s", EVIL, extra={"method": f"m{EVIL}"})
    written = stream.getvalue()
    assert "inside" in written
    assert BAD.search(written) is None, repr(written)

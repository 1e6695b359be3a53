"""`--only` and `--without`: the same for every command, and over every transport."""

import json
import subprocess
from pathlib import Path

import pytest

from command_line import SUCCESS, USAGE, midcall
from driving import LIMIT, drive
from http_peers import serving
from midcall import connect
from midcall.client.websocket import connect_websocket
from midcall.errors import MidcallError
from peers import HERE, command, environment

APP = "tagged_app:hub"


def test_tools_and_inspect_show_tags_and_leave_out_what_they_are_told_to() -> None:
    shown = midcall("tools", APP).stdout
    assert "asks, #admin, #danger, #files" in " ".join(shown.split())
    left = midcall("tools", APP, "--without", "tag:admin,inner.*").stdout
    assert "wipe" not in left
    assert "inner" not in left
    assert "files.show" in left
    listed = json.loads(midcall("inspect", APP, "--json", "--only", "tag:read").stdout)
    assert [one["name"] for one in listed["tools"]] == ["knock"]
    assert listed["prompts"] == listed["resources"] == []


def test_what_is_left_out_cannot_be_called() -> None:
    done = midcall("call", APP, "--only", "tag:read", "knock")
    assert (done.returncode, done.stdout.strip()) == (SUCCESS, "who?")
    refused = midcall("call", APP, "--only", "tag:read", "files.show")
    assert refused.returncode == USAGE
    assert "files.show" in refused.stderr


@pytest.mark.parametrize("words", [("tools", APP), ("inspect", APP), ("serve", APP, "--port", "0")])
def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is(words: tuple[str, ...]) -> None:
    refused = midcall(*words, "--without", "tag:admn")
    assert refused.returncode == USAGE
    assert refused.stderr.startswith("midcall: --without: 'tag:admn' matches nothing. Tags: admin, danger,")

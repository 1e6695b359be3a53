"""`--only` and `--without`: the same for every command, and over every transport."""

import json
import sys

import pytest

from command_line import SUCCESS, USAGE, midcall
from driving import drive
from midcall import connect
from midcall.client.websocket import connect_hub
from midcall.errors import MidcallError
from peers import HERE, http_server

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


@pytest.mark.parametrize("option", ["--only", "--without"])
def test_an_option_without_a_pattern_is_refused_and_does_not_serve_everything(option: str) -> None:
    refused = midcall("serve", APP, "--port", "0", option, " , ")
    assert refused.returncode == USAGE
    assert refused.stderr.startswith(f"midcall: {option}: '' is not a pattern")


def test_a_server_neither_lists_nor_calls_it_over_mcp_or_its_websocket() -> None:
    async def tried() -> None:
        async with http_server(APP, options=("--without", "tag:admin", "--journal", "memory")) as url:
            async with connect(url.replace("ws://", "http://").replace("/ws", "/mcp")) as client:
                found = [one["name"] for one in await client.tools()]
                assert found == ["files.show", "knock", "inner.more.show"]
                with pytest.raises(MidcallError):
                    await client.call("files.wipe")
            async with connect_hub(url) as remote:
                assert await remote.call("files.show") == "a, b"
                with pytest.raises(MidcallError):
                    await remote.call("files.wipe")
                assert "wipe" not in str(await remote.call("tagged.schema"))

    drive(tried())


def test_a_proxy_leaves_out_a_part_of_the_server_behind() -> None:
    behind = [sys.executable, "-m", "midcall", "serve", APP, "--stdio", "--mcp-only"]
    front = [sys.executable, "-m", "midcall", "proxy", "--stdio", "--inherit-env", "--journal", "memory"]

    async def tried() -> None:
        async with connect(
            [*front, "--only", "tag:read", "--", *behind], inherit_env=True, cwd=HERE
        ) as client:
            assert [one["name"] for one in await client.tools()] == ["knock"]
            assert (await client.call("knock")).structured == {"result": "who?"}
            with pytest.raises(MidcallError):
                await client.call("files.show")

    drive(tried())

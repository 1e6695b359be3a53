"""The chat on the command line: which model answers, and where conversations are kept."""

import argparse
from typing import TYPE_CHECKING

from midcall.cli.exits import UsageError

if TYPE_CHECKING:
    from midcall.hub import Hub


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the flag that chooses the model."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="over HTTP, serve a chat at / in which this model calls the methods: openai:NAME, "
        "anthropic:NAME, ollama:NAME, local, or scripted (default: MIDCALL_MODEL); keys come from the "
        "environment",
    )


def prepare_chat(name: str | None, hub: "Hub") -> None:
    """Give the hub a chat if a model is named, and its chat what it lacks. Raises `UsageError`."""
    from midcall.models.choose import choose_model

    try:
        model = choose_model(name)
    except ValueError as error:
        raise UsageError(f"--model: {error}") from None
    if hub.chat is None and model is None:
        return
    from midcall.chat.engine import ChatEngine

    engine: ChatEngine = hub.chat or ChatEngine(hub)
    if model is not None:
        engine.chosen_model = model
    if engine.chosen_model is None:
        raise UsageError("The hub has a chat, which needs a model: --model NAME, or MIDCALL_MODEL")

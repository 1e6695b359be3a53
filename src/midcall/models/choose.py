"""Which model: from what a person writes on the command line or in the environment."""

import os

from midcall.models.base import Model

VARIABLE = "MIDCALL_MODEL"

KNOWN = "openai:NAME, anthropic:NAME, ollama:NAME, local, or scripted"


def choose_model(name: str | None = None) -> Model | None:
    """The model of this name, or the one that the environment names; nothing if neither does.

    A name is `provider:model`. Raises `ValueError` for one that is unknown, or lacks its key.
    """
    name = name or os.environ.get(VARIABLE)
    if not name:
        return None
    provider, _, model = name.partition(":")
    match provider:
        case "scripted":
            from midcall.models.scripted import Scripted  # noqa: PLC0415  only the one that is chosen

            return Scripted()
        case "local":
            from midcall.models.local import Local  # noqa: PLC0415  as above

            return Local(model or None)
        case "openai" | "ollama" if model:
            from midcall.models.openai import openai_model  # noqa: PLC0415  as above

            return openai_model(provider, model)
        case "anthropic" if model:
            from midcall.models.anthropic import Anthropic  # noqa: PLC0415  as above

            return Anthropic(model)
    raise ValueError(f"{name!r} is no model: use {KNOWN}")

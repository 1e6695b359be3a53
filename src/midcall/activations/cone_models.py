"""The models that a cone can have: those that an author names, or those that this process can reach.

A caller names a model, and the server pays for it, with its own keys. So an author may say which there are;
and a file of this machine (`local:PATH`) is never one that a caller chooses.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from midcall.errors import ToolError
from midcall.models import anthropic, openai
from midcall.models.base import VARIABLE, Model, choose_model
from midcall.registry import Registry

DEFAULT = "default"
"""The model of the hub's chat, or the one that the environment names."""


KEPT = 32
"""How many models are kept, with their connections."""


class ModelEntry(Struct, omit_defaults=True):
    """A model, or with `*` as its name every model of a provider; `needs` says why it is not available."""

    id: str
    provider: str
    available: bool
    needs: str = ""
    name: str = ""
    """Which model it is, if its id does not say."""


class ConeModels:
    """Finds models by their ids, and keeps them."""

    def __init__(self, given: Mapping[str, Model] | Sequence[str] | None) -> None:
        self._given: dict[str, Model] = dict(given) if isinstance(given, Mapping) else {}
        self._named: tuple[str, ...] | None = None if given is None else tuple(given)
        self._made: dict[str, Model] = {}
        self.hub: Registry | None = None

    def find(self, model_id: str) -> Model:
        """A model by its id. Raises `ToolError`."""
        if model_id in self._given:
            return self._given[model_id]
        if self._named is not None and model_id not in self._named:
            known = ", ".join(self._named)
            raise ToolError(f"There is no model {model_id}: use {known}", code="unknown_model")
        if model_id == DEFAULT:
            found = self._default()
            if found is None:
                raise ToolError(f"There is no default model: set {VARIABLE}", code="unknown_model")
            return found
        if self._named is None and model_id.startswith("local:"):
            raise ToolError("A local model is named `local`, without a path", code="unknown_model")
        if model_id not in self._made:
            try:
                made = choose_model(model_id)
            except ValueError as error:
                raise ToolError(str(error), code="unknown_model") from None
            if made is None:
                raise ToolError("A model has a name", code="unknown_model")
            while len(self._made) >= KEPT:  # a chat that still uses it goes on
                del self._made[next(iter(self._made))]
            self._made[model_id] = made
        return self._made[model_id]

    def entries(self) -> Sequence[ModelEntry]:
        """All of them."""
        if self._named is not None:
            return [self._entry(name) for name in self._named]
        default = self._default()
        here = importlib.util.find_spec("xllamacpp") is not None
        entries = [
            _needing("openai", openai.KEY, openai.BASE),
            _needing("anthropic", anthropic.KEY),
            ModelEntry("ollama:*", "ollama", True),
            ModelEntry("local", "local", here, "" if here else "pip install 'midcall[local]'"),
            ModelEntry("scripted", "scripted", True),
        ]
        if default is not None:
            entries.insert(0, ModelEntry(DEFAULT, "", True, name=default.name))
        return entries

    async def close(self) -> None:
        """Let go of connections. What was given by the author stays as it is."""
        made, self._made = self._made, {}
        for model in made.values():
            await model.close()

    def _default(self) -> Model | None:
        chat = getattr(self.hub.root if self.hub is not None else None, "chat", None)
        model: Model | None = None if chat is None else chat.chosen_model
        if model is not None:
            return model
        if DEFAULT not in self._made:
            try:
                made = choose_model()
            except ValueError:
                made = None
            if made is None:
                return None
            self._made[DEFAULT] = made
        return self._made[DEFAULT]

    def _entry(self, name: str) -> ModelEntry:
        provider = name.partition(":")[0]
        try:
            model = self.find(name)
        except ToolError as error:
            return ModelEntry(name, provider, False, str(error))
        return ModelEntry(name, provider, True, name="" if model.name == name else model.name)


def _needing(provider: str, *variables: str) -> ModelEntry:
    known = any(os.environ.get(variable) for variable in variables)
    return ModelEntry(f"{provider}:*", provider, known, "" if known else variables[0])

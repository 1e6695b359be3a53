"""Options: how a client is set up."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from midcall.client.greeting import Era
from midcall.version import __version__

INFO: Mapping[str, Any] = MappingProxyType({"name": "midcall", "version": __version__})
"""What a server is told about the client, unless a caller says something else."""


class Options(Struct, frozen=True):
    """How a client is set up (see `connect`)."""

    era: Era = "auto"
    revision: str | None = None
    log_level: str | None = None
    on_log: Callable[[dict[str, Any]], Any] | None = None
    give_up_after: float | None = 60.0
    info: Mapping[str, Any] = INFO

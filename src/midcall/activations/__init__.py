"""Activations that come with midcall, and `hub`, which serves them: `midcall serve` without an app.

Those that can do no harm are always there. The others are there when they are named, as in
`midcall serve --with bash`.
"""

import importlib
from collections.abc import Sequence

from midcall.activations.arbor import Arbor
from midcall.activations.cone import Cone
from midcall.activations.echo import Echo
from midcall.activations.health import Health
from midcall.activations.interactive import Interactive
from midcall.errors import RegistrationError
from midcall.hub import Hub

__all__ = ["Arbor", "Cone", "Echo", "Health", "Interactive", "add_named", "hub"]

NAMED = {"bash": "Bash", "claudecode": "ClaudeCode"}
"""The class of each, in the module of its name: imported when it is wanted, as it may need an extra."""


def add_named(hub: Hub, names: Sequence[str]) -> None:
    """Register activations of `NAMED` in a hub. Raises `RegistrationError`."""
    for name in names:
        if name not in NAMED:
            known = ", ".join(NAMED)
            raise RegistrationError(f"There is no activation {name!r}; choose from: {known}")
    made = {
        name: getattr(importlib.import_module(f"midcall.activations.{name}"), NAMED[name])() for name in names
    }
    for name, activation in made.items():
        hub.register(activation, namespace=name)


hub = (
    Hub("plexus", description="The activations that come with midcall.")
    .register(Health())
    .register(Echo())
    .register(Interactive())
    .register(Arbor())
    .register(Cone())
)

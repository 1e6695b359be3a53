"""Activations that come with midcall, and `hub`, which serves them: `midcall serve` without an app."""

from midcall.activations.echo import Echo
from midcall.activations.health import Health
from midcall.activations.interactive import Interactive
from midcall.hub import Hub

__all__ = ["Echo", "Health", "Interactive", "hub"]

hub = (
    Hub("plexus", description="The activations that come with midcall.")
    .register(Health())
    .register(Echo())
    .register(Interactive())
)

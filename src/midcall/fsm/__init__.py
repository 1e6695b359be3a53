"""State machines that models, tools and people drive: data, checked, durable, drawn, served as methods."""

from midcall.fsm.definition import (
    Event,
    Machine,
    MachineBuilder,
    MachineError,
    State,
    Transition,
    read_machine,
)
from midcall.fsm.run import Entry, Limits, Moment

__all__ = [
    "Entry",
    "Event",
    "Limits",
    "Machine",
    "MachineBuilder",
    "MachineError",
    "Moment",
    "State",
    "Transition",
    "read_machine",
]

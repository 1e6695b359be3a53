"""State machines that models, tools and people drive: data, checked, durable, drawn, served as methods."""

from midcall.fsm.definition import (
    Event,
    Machine,
    MachineBuilder,
    MachineError,
    State,
    Transition,
    chain,
    read_machine,
)
from midcall.fsm.run import Moment, TrailEntry

__all__ = [
    "Event",
    "Machine",
    "MachineBuilder",
    "MachineError",
    "Moment",
    "State",
    "TrailEntry",
    "Transition",
    "chain",
    "read_machine",
]

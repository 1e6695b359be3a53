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
from midcall.fsm.run import Moment, RunLimits, TrailEntry

__all__ = [
    "Event",
    "Machine",
    "MachineBuilder",
    "MachineError",
    "Moment",
    "RunLimits",
    "State",
    "TrailEntry",
    "Transition",
    "read_machine",
]

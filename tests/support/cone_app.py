"""A hub with trees and cones, whose models answer by a script: at once, or a word at a time."""

from midcall import Hub
from midcall.activations import Arbor, Cone
from midcall.models.scripted import Scripted

hub = (
    Hub()
    .register(Arbor())
    .register(Cone(models={"quick": Scripted(), "slow": Scripted(sampled="tick " * 60, pace=0.05)}))
)

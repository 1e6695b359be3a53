"""The loop in pydantic-graph, which keeps nothing.

By classes, as its documentation has it: steps and a decision are slower. Without its spans, which are on
unless it is told otherwise.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext, StepContext
from rounds import TRANSITIONS, answer


@dataclass
class A(BaseNode[None, None, int]):
    count: int

    async def run(self, ctx: GraphRunContext[None, None]) -> B:
        return B(self.count + 1)


@dataclass
class B(BaseNode[None, None, int]):
    count: int

    async def run(self, ctx: GraphRunContext[None, None]) -> C:
        return C(self.count + 1)


@dataclass
class C(BaseNode[None, None, int]):
    count: int

    async def run(self, ctx: GraphRunContext[None, None]) -> A | End[int]:
        count = self.count + 1
        return A(count) if count < TRANSITIONS else End(count)


builder = GraphBuilder(input_type=int, output_type=int, auto_instrument=False)


@builder.step
async def start(ctx: StepContext[None, None, int]) -> A:
    return A(ctx.inputs)


builder.add(
    builder.node(A), builder.node(B), builder.node(C), builder.edge_from(builder.start_node).to(start)
)
graph = builder.build()
asyncio.run(answer(lambda: graph.run(inputs=0)))

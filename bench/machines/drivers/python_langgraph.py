"""The loop in LangGraph, with the saver, the way to run it and the durability mode that are given.

python python_langgraph.py none|memory|sqlite invoke|ainvoke [sync|async] [FILE]
"""

import asyncio
import itertools
import sys
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from rounds import TRANSITIONS, answer


class Counted(TypedDict):
    count: int


def step(state: Counted) -> Counted:
    return {"count": state["count"] + 1}


async def astep(state: Counted) -> Counted:
    return {"count": state["count"] + 1}


def way(state: Counted) -> str:
    return "a" if state["count"] < TRANSITIONS else END


def loop_graph(saver: Any, *, is_async: bool) -> Any:
    builder = StateGraph(Counted)
    for name in ("a", "b", "c"):
        builder.add_node(name, astep if is_async else step)
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    builder.add_conditional_edges("c", way, ["a", END])
    return builder.compile(checkpointer=saver)


async def measure(saver: Any, how: str, **options: str) -> None:
    graph = loop_graph(saver, is_async=how == "ainvoke")
    threads = itertools.count()

    def config() -> dict[str, Any]:
        return {"recursion_limit": TRANSITIONS + 1, "configurable": {"thread_id": str(next(threads))}}

    def run() -> int:
        return int(graph.invoke({"count": 0}, config(), **options)["count"])

    async def arun() -> int:
        return int((await graph.ainvoke({"count": 0}, config(), **options))["count"])

    await answer(arun if how == "ainvoke" else run)


async def main() -> None:
    match sys.argv[1:]:
        case ["none", how]:
            await measure(None, how)
        case ["memory", how, mode]:
            await measure(InMemorySaver(), how, durability=mode)
        case ["sqlite", "ainvoke", mode, path]:
            async with AsyncSqliteSaver.from_conn_string(path) as saver:
                await measure(saver, "ainvoke", durability=mode)
        case ["sqlite", how, mode, path]:
            with SqliteSaver.from_conn_string(path) as plain_saver:
                await measure(plain_saver, how, durability=mode)


asyncio.run(main())

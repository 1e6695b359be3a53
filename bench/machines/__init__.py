"""State machines beside LangGraph and pydantic-graph, without a model: `python -m bench.machines`."""

"""Benchmarks: everything is measured in one run, beside a bare asyncio echo loop as the floor."""

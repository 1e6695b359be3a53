"""The client beside others, against the same server: `python -m bench.callers`."""

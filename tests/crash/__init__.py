"""The fault injector: workers that are killed at a given point of a call, and a client that comes back.

`ticks` counts the points, `app` is what is run and `kept` its journal, both ticking. `zygote` forks workers
in milliseconds; `person` is the client, `runs` plays a schedule of crashes and checks what came of it.
Used by `tests/test_crash.py` and `python -m soak`.
"""

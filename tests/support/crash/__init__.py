"""The fault injector: workers that are killed at a given point of a call or a chat, and a client that comes back.

`ticks` counts the points; `app` is what is run, `script` the model of its chat and `kept` its journal, all
ticking. `zygote` forks workers in milliseconds, `person` is a line to one. `calls` and `chats` play a schedule
of crashes on a `stage`, and check what came of it; a `pool` plays many. Used by `tests/journal/test_crash.py` and
`python -m soak`. `inside` and `followers` do the like within one process.
"""

"""The harness around the official conformance suites and clients: install, run, and judge what they say.

    run.py ────── install   Node, both versions of the suite, the clients, into .cache/compliance
           │  ├── fixture   the server under test, started on a free port
           │  ├── suites    which scenarios there are, and one run of one of them
           │  └── verdict   the table, the allow list, the exit code
    clients.py ── clients   which clients there are, one run of one of them, what they must see

It knows the suites and the clients only by their command lines and what they write, and knows nothing of
midcall.
"""

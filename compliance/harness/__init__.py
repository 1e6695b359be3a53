"""The harness around the official conformance suites: install them, run them, judge what they say.

    run.py ── install   Node and both versions of the suite, into .cache/compliance
           ├─ fixture   compliance/server.py, started on a free port
           ├─ suites    which scenarios there are, and one run of one of them
           └─ verdict   the table, the allow list, the exit code

It knows the suites only by their command line and the files that they write, and knows nothing of midcall.
"""

"""The harness around the official conformance suites, clients and servers: install, run, and judge.

    run.py ────── install   Node, both versions of the suite, clients, servers, into .cache/compliance
           │  ├── fixture   a server under test, started on a free port
           │  ├── suites    which scenarios there are, and one run of one of them
           │  └── verdict   the table, the allow list, the exit code
    clients.py ── clients   which clients there are, one run of one of them, what they must see
    foreign.py ── foreign   a server of others in its folder, the steps that are taken with it, one run
              └── servers   which servers there are, the steps for each, what is to be seen

It knows the suites, clients and servers only by their command lines and what they write, and knows nothing of
midcall.
"""

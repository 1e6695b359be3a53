"""`make bench-mcp`: midcall's MCP beside other servers, in one run on one machine.

    __main__ ── contenders   what is measured: how each is installed and started, and what it can do
             ├── stdio       the load on pipes: a legacy session
             ├── http        the load on sockets: modern requests, legacy sessions
             │   ├─ calls.lua     what wrk sends for it
             │   └─ wire, meter   what both say and read; how fast it went
             ├── report      the table, and what was hoped for
             └── chart       the bars, as SVG

`servers/` has the servers: two tools each, `once(message)` and one that asks, written with the
public API of the library, as its own documentation has it. The load knows the servers only by what
they say on the wire.
"""

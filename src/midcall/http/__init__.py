"""The HTTP client of everything that calls a server: the MCP client, OAuth, models, JWKS, the CLI.

The protocol is aiohttp's; the bounds are ours. `HttpClient` keeps connections, limits what a server can make
us do, and turns whatever goes wrong into an `HttpError`, which says whether the request may have reached the
server. It follows no redirect unless told to. This package knows nothing of MCP or JSON.

    message.py      URLs, headers, errors
    coding.py       compressed bodies
    proxies.py      which proxy the environment names
    slots.py        how many requests an origin has at once
    connections.py  what is changed of aiohttp, and its errors in our words
    client.py       the client, and its responses. It imports aiohttp, which takes a while: import it late
"""

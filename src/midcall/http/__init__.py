"""The HTTP client of everything that calls a server: the MCP client, OAuth, models, JWKS, the CLI.

The protocol is aiohttp's; the bounds are ours. `HttpClient` keeps connections, limits what a server can make
us do, and turns whatever goes wrong into an `HttpError`, which says whether the request may have reached the
server. It follows no redirect unless told to. This package knows nothing of MCP or JSON.

    message.py      URLs, headers, compressed bodies, errors
    sse.py          server-sent events
    connections.py  proxies, how many requests an origin has at once, what is changed of aiohttp
    client.py       the client, and its responses. It imports aiohttp, which takes a while: import it late
"""

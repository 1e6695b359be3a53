"""HTTP/1.1 for the client: small, and as fast as Python allows.

`HttpClient.send` is the way for calls: the response goes to a `Sink`, by plain calls from the event loop's
reader, with no coroutine and no copy. `HttpClient.request` is the way for everything else.

Below are asyncio transports and the parser of `httptools`; above is whatever wants a response. This package
knows nothing of MCP or JSON. It never follows a redirect unless told to, and never sends a request twice:
an `HttpError` says whether the request may have reached the server.

    message.py      URLs, headers, errors
    connection.py   one connection: one request at a time, its response parsed
    coding.py       compressed bodies
    proxies.py      which proxy the environment names
    dialling.py     names, sockets, tunnels and TLS
    pool.py         the connections to one origin, and the requests that wait for them
    client.py       the client itself, and the response as an object
"""

from midcall.client.http1.client import HttpClient, Response
from midcall.client.http1.connection import Sending, Sink
from midcall.client.http1.message import HeaderBlock, Headers, HttpError, Url, encode_headers

__all__ = [
    "HeaderBlock",
    "Headers",
    "HttpClient",
    "HttpError",
    "Response",
    "Sending",
    "Sink",
    "Url",
    "encode_headers",
]

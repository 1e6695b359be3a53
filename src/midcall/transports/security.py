"""Who may connect: checks that come before anything is read.

A web page may open a WebSocket to any server, also to one on the reader's own machine; the browser
sends the page's origin along. Only pages of the server's own origin are let in. Programs other than
browsers send no origin.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit


def same_origin(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request comes from no web page, or from one of this server's own."""
    found = {name.lower(): value for name, value in headers}
    origin = found.get(b"origin")
    return origin is None or urlsplit(origin.decode("latin-1")).netloc == found.get(b"host", b"").decode(
        "latin-1"
    )

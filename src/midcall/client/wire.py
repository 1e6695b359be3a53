"""Wire: how messages travel between a client's session and a server.

Below it are bytes: a child process, HTTP, a hub in this process. Above it is the `ClientSession`, which knows
what the messages mean. A wire knows which of them are requests, since HTTP answers each on a stream of its
own; beyond that it knows nothing of MCP.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from midcall.errors import MidcallError

MAX_MESSAGE = 64 * 1024 * 1024
"""The largest message that is read from a server, in bytes; a larger one is skipped."""


class About(Struct, frozen=True, gc=False):
    """What a request says of itself beside its body, for wires that have headers."""

    method: str
    name: str = ""
    """Of the tool or prompt, or the URI of the resource."""
    headers: tuple[tuple[str, str], ...] = ()
    """Arguments that are mirrored into headers."""


class Reader(Protocol):
    """Who takes what comes from a server."""

    def receive(self, data: bytes, related: int | None = None) -> None:
        """Take one message. `related` is the request on whose stream it came, if the wire has such."""

    def waits(self, id: int) -> bool:
        """Whether somebody still waits for the response to this request."""

    def failed(self, ids: Sequence[int], error: MidcallError) -> None:
        """These requests get no response; of some it is known that they were not sent (see `Unreachable`)."""

    def lost(self, error: MidcallError) -> None:
        """Nothing more comes, and nothing more can be sent."""


class Wire(Protocol):
    """The way to one server."""

    async def open(self, reader: Reader) -> None:
        """Make it ready. Raises `Unreachable`."""

    def agreed(self, revision: str, *, modern: bool) -> None:
        """From here on this revision is spoken."""

    def request(self, ids: Sequence[int], message: bytes, about: About) -> None:
        """Send a request, or a batch of them. Never raises: `Reader.failed` tells."""

    def send(self, message: bytes) -> None:
        """Send a notification or a response. What cannot be sent is dropped."""

    def cancel(self, id: int) -> bool:
        """Nobody waits for this request any more. True if the server is told by that alone."""

    @property
    def waits_for_person(self) -> bool:
        """Whether somebody is logging in: that takes as long as it takes."""
        return False

    async def close(self) -> None:
        """Let go of the server, and end what was started for it."""

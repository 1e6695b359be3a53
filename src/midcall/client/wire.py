"""Wire: how messages travel between a client's session and a server.

Below it are bytes: a child process, HTTP, a hub in this process. Above it is the `ClientSession`, which knows
what the messages mean. A wire knows which of them are requests, since HTTP answers each on a stream of its
own; beyond that it knows nothing of MCP.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from midcall.errors import RemoteError

if TYPE_CHECKING:
    from midcall.client.session import ClientSession

MAX_MESSAGE = 64 * 1024 * 1024
"""The largest message that is read from a server, in bytes; a larger one is skipped."""


class About(Struct, frozen=True, gc=False):
    """What a request says of itself beside its body, for wires that have headers."""

    method: str
    name: str = ""
    """Of the tool or prompt, or the URI of the resource."""
    headers: tuple[tuple[str, str], ...] = ()
    """Arguments that are mirrored into headers."""


class Unusable(RemoteError):
    """What came back cannot be used: at the beginning, that there is no MCP server to speak with."""


class Wire(Protocol):
    """The way to one server."""

    async def open(self, session: "ClientSession") -> None:
        """Make it ready. Raises `Unreachable`."""

    def agreed(self, revision: str, *, modern: bool) -> None:
        """From here on this revision is spoken."""

    def request(self, ids: Sequence[int], message: bytes, about: About) -> None:
        """Send a request, or a batch of them. Never raises: `ClientSession.failed` tells."""

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

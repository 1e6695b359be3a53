"""How far inside a network an address is, and a `Fetch` that follows no stranger further in.

What an MCP server says of itself is a stranger's word: it may name the address of a machine that only this
one can reach. So it may lead to the outside, or to where it is itself.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Sequence
from enum import IntEnum

from midcall.client.oauth.exchange import Fetch, Reply, origin_of
from midcall.errors import LoginFailed
from midcall.http.message import Url

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Reach(IntEnum):
    """From where an address can be reached, the inner ones last."""

    EVERYWHERE = 0
    NETWORK = 1
    LINK = 2
    MACHINE = 3


class Guarded:
    """Sends requests for the logins at one server, but not further into this network than that server is.

    `trusted` are origins that the caller has named.
    """

    def __init__(self, fetch: Fetch, server: str, trusted: Collection[str] = ()) -> None:
        self._fetch = fetch
        self._server = server
        self._trusted = {origin_of(server), *trusted}

    async def request(
        self, verb: str, url: Url, *, headers: Sequence[tuple[str, str]], body: bytes, timeout: float
    ) -> Reply:
        """The response to a request. Raises `LoginFailed` instead of sending it where it may not go."""
        if url.origin not in self._trusted:
            there = max(await _reaches(url.host), default=Reach.EVERYWHERE)
            if there and there > min(await _reaches(Url(self._server).host), default=there):
                raise LoginFailed(
                    f"{url} is in a private network where {self._server} is not: refused "
                    "(allow_private=True allows it)",
                    server=self._server,
                )
        return await self._fetch.request(verb, url, headers=headers, body=body, timeout=timeout)


async def _reaches(host: str) -> list[Reach]:
    """From where the addresses of a host can be reached. A name that is not known leads nowhere."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return [Reach.EVERYWHERE]
    return [_reach(str(address[0])) for *_, address in found]


def _reach(text: str) -> Reach:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):  # it may stand for an address of version 4
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = inner or address
    if address.is_loopback or address.is_unspecified:
        return Reach.MACHINE
    if address.is_link_local:
        return Reach.LINK
    return Reach.EVERYWHERE if address.is_global and not address.is_multicast else Reach.NETWORK

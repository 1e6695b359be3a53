"""Metadata of a server somewhere else that lead into this network: nothing is sent there."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from driving import drive
from midcall.client.oauth import ClientCredentials, MemoryStore, OAuth
from midcall.errors import LoginFailed
from midcall.http.message import HttpUrl

PUBLIC = "https://93.184.216.34"
OTHER = "https://1.1.1.1"

INSIDE = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0.0.0.0",
    "localhost",
    "[::1]",
    "[::]",
    "10.0.0.1",
    "172.16.3.4",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "[fe80::1]",
    "[fd00::1]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b::a00:1]",
    "[2002:a00:1::]",
]


class Headers:
    def get(self, name: str) -> str | None:
        return None


class Page:
    """What is found at a URL."""

    headers = Headers()

    def __init__(self, document: Any) -> None:
        self.status = 404 if document is None else 200
        self._data = json.dumps(document).encode()

    async def read(self, limit: int) -> bytes:
        return self._data


class Net:
    """All that there is, by URL; and which of it was asked for."""

    def __init__(self, **documents: Any) -> None:
        self.documents = documents
        self.seen: list[str] = []

    async def request(
        self, verb: str, url: HttpUrl, *, headers: Sequence[tuple[str, str]], body: bytes, timeout: float
    ) -> Page:
        self.seen.append(url.full)
        return Page(self.documents.get(url.full))


def net(server: str, **places: str) -> Net:
    """A server whose metadata lead to these places: `issuer`, `token_endpoint`, `registration_endpoint`."""
    issuer = places.pop("issuer", OTHER)
    metadata = {
        "issuer": issuer,
        "token_endpoint": f"{issuer}/token",
        "authorization_endpoint": f"{OTHER}/authorize",
        "code_challenge_methods_supported": ["S256"],
        **places,
    }
    resource = {"resource": f"{server}/mcp", "authorization_servers": [issuer]}
    return Net(
        **{
            f"{server}/.well-known/oauth-protected-resource/mcp": resource,
            f"{issuer}/.well-known/oauth-authorization-server": metadata,
            metadata["token_endpoint"]: {"access_token": "t", "token_type": "Bearer"},
        }
    )


async def log_in(found: Net, server: str = PUBLIC, header: str = "Bearer", **options: Any) -> None:
    auth = ClientCredentials("us", "our-secret", **options)
    assert await auth.challenged(f"{server}/mcp", 401, header, found)


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("where", ["metadata", "issuer", "token_endpoint"])
def test_nothing_is_sent_into_a_network_that_the_server_is_not_in(inside: str, where: str) -> None:
    private = f"https://{inside}"
    header = f'Bearer resource_metadata="{private}/metadata"' if where == "metadata" else "Bearer"
    found = net(PUBLIC, **({} if where == "metadata" else {where: f"{private}/it"}))

    async def main() -> None:
        with pytest.raises(LoginFailed, match="private network") as caught:
            await log_in(found, header=header)
        assert not caught.value.recoverable
        assert not [url for url in found.seen if inside in url]

    drive(main())


def test_nobody_registers_at_a_private_address() -> None:
    found = net(PUBLIC, registration_endpoint="https://10.0.0.1/register")

    async def visit(address: str) -> str:
        raise AssertionError("nobody is asked to log in")

    async def main() -> None:
        with pytest.raises(LoginFailed, match="private network"):
            await OAuth(redirect=visit, store=MemoryStore()).challenged(f"{PUBLIC}/mcp", 401, "Bearer", found)
        assert "https://10.0.0.1/register" not in found.seen

    drive(main())


@pytest.mark.parametrize(
    ("server", "issuer"),
    [
        (PUBLIC, OTHER),
        ("https://10.1.2.3", "https://192.168.7.7"),
        ("https://10.1.2.3", OTHER),
        ("https://127.0.0.1", "https://10.0.0.1"),
        ("https://localhost", "https://127.0.0.1"),
        ("https://169.254.1.1", "https://169.254.2.2"),
    ],
)
def test_a_server_in_a_network_may_lead_to_another_one_there_or_outside(server: str, issuer: str) -> None:
    found = net(server, issuer=issuer)
    drive(log_in(found, server))
    assert found.seen[-1] == f"{issuer}/token"


@pytest.mark.parametrize(
    ("server", "issuer"),
    [("https://10.1.2.3", "https://127.0.0.1"), ("https://10.1.2.3", "https://169.254.169.254")],
)
def test_a_server_in_a_network_may_not_lead_further_in(server: str, issuer: str) -> None:
    async def main() -> None:
        with pytest.raises(LoginFailed, match="private network"):
            await log_in(net(server, issuer=issuer), server)

    drive(main())


@pytest.mark.parametrize("options", [{"allow_private": True}, {"issuer": "https://10.0.0.1"}])
def test_whoever_says_so_is_led_into_a_network(options: dict[str, Any]) -> None:
    found = net(PUBLIC, issuer="https://10.0.0.1")
    drive(log_in(found, **options))
    assert found.seen[-1] == "https://10.0.0.1/token"

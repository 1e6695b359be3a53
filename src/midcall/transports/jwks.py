"""The public keys of an OAuth server (JWKS), from a URL or a file.

They are read when the first token comes, again after an hour, and again for a key that is not known,
as servers change their keys; but never more often than every ten seconds, so that tokens with
made-up keys cannot make this server bother that one. If they cannot be read again, the old ones stay.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec

from midcall.http.message import HttpError, HttpUrl
from midcall.transports.security import is_loopback

log = logging.getLogger("midcall.auth")

FRESH = 3600.0
"""Seconds after which keys are read again."""

PAUSE = 10.0
"""Seconds between two readings, at least."""

TIME_LIMIT = 10.0
LARGEST = 1024 * 1024


class UnknownKey(Exception):
    """The server has no such key."""


class KeysUnavailable(Exception):
    """The keys cannot be read, and none are known from before."""


class Keys:
    """The keys of one server."""

    def __init__(self, source: str | Path, *, fresh: float = FRESH, pause: float = PAUSE) -> None:
        self._source = _checked(source)
        self._fresh = fresh
        self._pause = pause
        self._keys: list[dict[str, Any]] = []
        self._made: dict[tuple[str | None, str], jwt.PyJWK] = {}
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._failure = "they were never read"
        self._reading: asyncio.Task[None] | None = None
        """It is for all who wait: who leaves does not end it."""

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK:
        """The key of this id for this algorithm. Raises `UnknownKey` or `KeysUnavailable`."""
        if time.monotonic() - self._read_at > self._fresh:
            await self._read_again()
        key = self._known(kid, algorithm)
        if key is None:
            await self._read_again()
            key = self._known(kid, algorithm)
        if key is not None:
            return key
        if not self._keys:
            raise KeysUnavailable(f"{self._source}: {self._failure}")
        raise UnknownKey(kid)

    def _known(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        made = self._made.get((kid, algorithm))
        if made is not None:
            return made
        fitting = [key for key in self._keys if _fits(key, kid, algorithm)]
        if len(fitting) != 1:
            return None  # without an id, only a single key is beyond doubt
        try:
            made = jwt.PyJWK(fitting[0], algorithm)
        except jwt.PyJWTError:
            return None  # a key for another algorithm
        self._made[kid, algorithm] = made
        return made

    async def _read_again(self) -> None:
        if self._reading is None:
            if time.monotonic() - self._tried_at < self._pause:
                return  # somebody else has just done it
            self._reading = asyncio.get_running_loop().create_task(self._read_now())
        await asyncio.shield(self._reading)

    async def _read_now(self) -> None:
        try:
            data = await _read(self._source)
            self._keys = _read_keys(data)
            self._made = {}
            self._read_at = time.monotonic()
        except (HttpError, OSError, ValueError) as error:
            self._failure = str(error)
            log.warning("Cannot read the keys at %s: %s", self._source, error)
        finally:
            self._tried_at = time.monotonic()
            self._reading = None


def _fits(key: dict[str, Any], kid: str | None, algorithm: str) -> bool:
    return (
        (kid is None or key.get("kid") == kid)
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and key.get("kty") != "oct"
    )


def _read_keys(data: bytes) -> list[dict[str, Any]]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    keys = document.get("keys") if isinstance(document, dict) else None
    usable = [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []
    if not usable:
        raise ValueError("no keys in it")
    return usable


def _checked(source: str | Path) -> str | Path:
    if isinstance(source, str) and "://" in source:
        parts = urlsplit(source)
        local = parts.scheme == "http" and is_loopback(parts.hostname or "")
        if parts.scheme != "https" and not local:
            raise ValueError(
                f"{source}: keys are read over https, because others could change them on the way"
            )
        return source
    return Path(source)


async def _read(source: str | Path) -> bytes:
    """The keys, from where they were said to be: no redirect is followed."""
    if isinstance(source, Path):
        return await asyncio.to_thread(source.read_bytes)
    from midcall.http.client import HttpClient  # noqa: PLC0415  aiohttp takes a while to import

    async with HttpClient() as http:
        response = await http.request(
            "GET", HttpUrl(source), [("Accept", "application/json")], timeout=TIME_LIMIT
        )
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        return await response.read(LARGEST)

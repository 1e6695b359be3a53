"""What is kept of logins between two runs, and where: the system's keyring, or a file of its owner alone.

To a store it is opaque: an object for each MCP server. Two processes must not renew the same tokens at
once, as the second would show a refresh token that is used up; `alone` keeps them apart.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from midcall.client.oauth.registration import Registered
from midcall.client.oauth.tokens import Tokens
from midcall.errors import LoginFailed
from midcall.journal import files
from midcall.journal.seal import state_directory

log = logging.getLogger("midcall.oauth")

SERVICE = "midcall"
PAUSE = 0.05
LONGEST_WAIT = 60.0
"""Seconds that one process waits for another to be done with a server's tokens."""

Record = dict[str, Any]


class Grant(Struct, frozen=True):
    """What one authorization server has given us for one MCP server."""

    client: Registered | None = None
    tokens: Tokens | None = None
    resource: str | None = None
    """What the tokens are for, in the server's own words."""
    legacy: bool = False
    """It was found by the rules of 2025-03-26."""


class SavedLogin(Struct, frozen=True):
    """All that is kept for an MCP server. Nothing of one issuer is ever shown to another."""

    issuer: str = ""
    """The authorization server that was used last."""
    grants: dict[str, Grant] = {}
    """By issuer."""
    given: dict[str, str] = {}
    """Which issuer the client ids that callers gave belong to."""

    @property
    def tokens(self) -> Tokens | None:
        """The tokens for the server."""
        grant = self.grants.get(self.issuer)
        return None if grant is None else grant.tokens

    def grant(self, issuer: str) -> Grant:
        """What this issuer has given."""
        return self.grants.get(issuer, Grant())

    def having(self, issuer: str, grant: Grant) -> "SavedLogin":
        """The same with another grant of this issuer, which becomes the one that is used."""
        return SavedLogin(issuer, {**self.grants, issuer: grant}, self.given)

    def bound(self, client_id: str, issuer: str) -> "SavedLogin":
        """The same, and a client id that the caller gave belongs to this issuer."""
        return SavedLogin(self.issuer, self.grants, {**self.given, client_id: issuer})


def to_plain(login: SavedLogin) -> Record:
    """As a store gets it, ready for JSON."""
    plain: Record = msgspec.to_builtins(login)
    return plain


def from_plain(plain: Record | None) -> SavedLogin:
    """From what a store has; what cannot be read counts as nothing."""
    if plain is None:
        return SavedLogin()
    try:
        return msgspec.convert(plain, SavedLogin)
    except msgspec.ValidationError:
        return SavedLogin()


class TokenStore(Protocol):
    """Keeps what logins have brought. The records hold secrets."""

    async def load(self, server: str) -> Record | None:
        """What is kept for this server."""

    async def save(self, server: str, record: Record | None) -> None:
        """Keep this for the server, in the place of what was kept; `None` is nothing."""

    def alone(self, server: str) -> AbstractAsyncContextManager[None]:
        """Nobody else is in here for this server, in no process that uses the same store."""


def default_store() -> TokenStore:
    """The system's keyring if there is one, otherwise the file `oauth.json` in the user's state directory."""
    return KeyringStore() if _has_keyring() else FileStore()


class MemoryStore:
    """Forgets when the process ends."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def load(self, server: str) -> Record | None:
        """What is kept for this server."""
        return self._records.get(server)

    async def save(self, server: str, record: Record | None) -> None:
        """Keep this."""
        if record is None:
            self._records.pop(server, None)
        else:
            self._records[server] = record

    def alone(self, server: str) -> AbstractAsyncContextManager[None]:
        """One at a time."""
        return self._locks.setdefault(server, asyncio.Lock())


class FileStore:
    """A JSON file that only its owner can read, replaced as a whole."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = Path(path) if path is not None else state_directory() / "oauth.json"

    async def load(self, server: str) -> Record | None:
        """What is kept for this server."""
        return (await asyncio.to_thread(self._read)).get(server)

    async def save(self, server: str, record: Record | None) -> None:
        """Keep this; of two that write at once, none is lost."""
        async with _locked(self._beside("lock")):
            await asyncio.to_thread(self._change, server, record)

    def alone(self, server: str) -> AbstractAsyncContextManager[None]:
        """One at a time, of all processes."""
        return _locked(self._beside(_turn(server)))

    def _beside(self, what: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{what}")

    def _read(self) -> dict[str, Record]:
        try:
            data = self._path.read_bytes()
            files.keep_private(self._path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LoginFailed(f"Logins cannot be read from {self._path}: {error}") from error
        try:
            found = json.loads(data)
        except ValueError:
            raise LoginFailed(f"{self._path} is damaged: remove it to log in again") from None
        if not isinstance(found, dict) or not all(isinstance(record, dict) for record in found.values()):
            raise LoginFailed(f"{self._path} is not a file of logins: remove it to log in again")
        return found

    def _change(self, server: str, record: Record | None) -> None:
        records = self._read()
        if record is None:
            records.pop(server, None)
        else:
            records[server] = record
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(records, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise LoginFailed(f"Logins cannot be kept in {self._path}: {error}") from error
        finally:
            draft.unlink(missing_ok=True)


class KeyringStore:
    """The system's keyring, by the package `keyring`: an entry for each server."""

    def __init__(self, service: str = SERVICE) -> None:
        self._service = service

    async def load(self, server: str) -> Record | None:
        """What is kept for this server."""
        import keyring  # noqa: PLC0415  an extra

        text = await self._ask(lambda: keyring.get_password(self._service, server))
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    async def save(self, server: str, record: Record | None) -> None:
        """Keep this."""
        import keyring  # noqa: PLC0415  an extra
        from keyring.errors import PasswordDeleteError  # noqa: PLC0415

        if record is not None:
            await self._ask(lambda: keyring.set_password(self._service, server, json.dumps(record)))
            return
        with contextlib.suppress(PasswordDeleteError):  # there was none
            await asyncio.to_thread(keyring.delete_password, self._service, server)

    def alone(self, server: str) -> AbstractAsyncContextManager[None]:
        """One at a time: keyrings have no locks, so a file beside the user's state has it."""
        return _locked(state_directory() / f"oauth.{_turn(server)}")

    async def _ask(self, what: Callable[[], str | None]) -> str | None:
        try:
            return await asyncio.to_thread(what)
        except Exception as error:  # each system's keyring has its own
            raise LoginFailed(f"The keyring cannot be used: {error or type(error).__name__}") from error


def _has_keyring() -> bool:
    """Whether there is a keyring in which something would be kept, and kept safe."""
    try:
        import keyring  # noqa: PLC0415  an extra
    except ModuleNotFoundError:
        return False
    return bool(keyring.get_keyring().priority >= 1)


def _turn(server: str) -> str:
    return f"turn-{hashlib.sha256(server.encode()).hexdigest()[:8]}"


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a file's lock, which the system lets go of if the process dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LoginFailed(f"Logins cannot be kept in {path.parent}: {error}") from error
    try:
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                while not files.lock(fd):  # noqa: ASYNC110  another process has it
                    await asyncio.sleep(PAUSE)
        except TimeoutError:
            raise LoginFailed(f"Another process has held {path} for too long", recoverable=True) from None
        try:
            yield
        finally:
            files.unlock(fd)
    finally:
        os.close(fd)

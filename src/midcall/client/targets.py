"""Targets: what a client can be connected to, in the ways in which people name it.

A command (text, or a list of words), a URL, a hub in this process, or the settings of other clients
(`mcpServers`, as Claude Desktop, Cursor and VS Code write them), as a mapping or as the file that they are
in.
"""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from midcall.client.wire import About, Wire
from midcall.hub import Hub
from midcall.mcp.server import mcp_of
from midcall.plexus.protocol import Connection
from midcall.principal import Principal

if TYPE_CHECKING:
    from midcall.client.session import ClientSession


class HubWire:
    """The way to a hub that is here."""

    waits_for_person = False

    def __init__(self, hub: Hub, principal: Principal | None = None, *, owned: bool = False) -> None:
        """An `owned` hub was made for this, and is closed with it."""
        self._hub = hub
        self._principal = principal
        self._owned = owned
        self._connection: Connection | None = None

    async def open(self, session: "ClientSession") -> None:
        mcp_of(self._hub)
        loop = asyncio.get_running_loop()

        def later(data: bytes) -> None:  # an answer does not come while the request is still being sent
            loop.call_soon(session.receive, data)

        self._connection = Connection(self._hub, later, raw=False, principal=self._principal)
        await self._hub.open()

    def agreed(self, revision: str, *, modern: bool) -> None:
        """A message is the same in all revisions."""

    def request(self, ids: Sequence[int], message: bytes, about: About) -> None:
        self.send(message)

    def send(self, message: bytes) -> None:
        if self._connection is not None:
            self._connection.receive(message)

    def cancel(self, id: int) -> bool:
        return False

    async def close(self) -> None:
        """End what runs for this client. A hub that is the caller's stays open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
            if self._owned:
                await self._hub.close()


Named: TypeAlias = "str | os.PathLike[str] | Sequence[str] | Mapping[str, Any] | Hub"
"""A server, as a caller names it."""

SERVERS = ("mcpServers", "servers")
"""Where the settings of other clients have their servers: most of them, and VS Code."""

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Target(Struct, frozen=True):
    """A server that can be connected to, as often as need be."""

    label: str
    """How messages name it."""
    wire: Callable[[], Wire]
    has_headers: bool = False


def target_of(
    named: Named,
    *,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
) -> Target:
    """The target that is named. Raises `ValueError` for what is none."""
    if isinstance(named, Hub):
        return Target(f"hub {named.name}", lambda: HubWire(named))
    if isinstance(named, Mapping):
        return _configured(named, inherit_env=inherit_env)
    if isinstance(named, str | os.PathLike):
        text = os.fspath(named)
        scheme = urlsplit(text).scheme if "://" in text else ""
        if scheme in ("http", "https"):
            return _url(text, headers, auth)
        if scheme in ("ws", "wss"):
            raise ValueError(f"{text} is a hub's WebSocket: use connect_hub")
        if scheme:
            raise ValueError(f"A server is reached by http:// or https://, not by {scheme}://")
        path = Path(text)
        if path.suffix == ".json" and path.is_file():
            return _configured(read_settings(path), path.parent, inherit_env=inherit_env)
        is_program = path.suffix in _PROGRAMS and path.is_file()
        words = [_PROGRAMS[path.suffix], text] if is_program else _split(text)
    else:
        words = [str(word) for word in named]
    if not words:
        raise ValueError("Name a server: a command, a URL, a hub, or a file with mcpServers")
    return _command(words, env, cwd, inherit_env=inherit_env)


_PROGRAMS = {".py": sys.executable, ".js": "node", ".mjs": "node"}


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, posix=sys.platform != "win32")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a command: {error}") from None


def _command(
    words: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    *,
    inherit_env: bool,
) -> Target:
    from midcall.client.child import ChildWire  # noqa: PLC0415  only what is needed is imported

    return Target(shlex.join(words), lambda: ChildWire(words, env=env, inherit_env=inherit_env, cwd=cwd))


def _url(url: str, headers: Mapping[str, str] | None, auth: Any, *, sse: bool = False) -> Target:
    from midcall.client.streamable import HttpWire, authorizer, check  # noqa: PLC0415  as above
    from midcall.http.message import HttpUrl  # noqa: PLC0415  as above

    allowed = authorizer(auth)
    check(url, headers)
    return Target(
        str(HttpUrl(url)), lambda: HttpWire(url, headers=headers, auth=allowed, sse=sse), has_headers=True
    )


# --- settings of other clients --------------------------------------------------------------


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a file. Raises `ValueError`."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{os.fspath(path)} has no mcpServers")  # noqa: TRY004  a value of a file
    return found


def servers_in(settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The servers of a client's settings, by name. Raises `ValueError` if there are none."""
    found = next((settings[key] for key in SERVERS if isinstance(settings.get(key), Mapping)), None)
    if found is None and ("command" in settings or "url" in settings):
        found = {"server": settings}
    servers = {
        str(name): entry
        for name, entry in (found or {}).items()
        if isinstance(entry, Mapping) and not entry.get("disabled")
    }
    if not servers:
        raise ValueError("There is no server under mcpServers")
    return servers


def target_in(entry: Mapping[str, Any], folder: Path | None = None, *, inherit_env: bool = False) -> Target:
    """The target of one entry: a command with `args`, `env` and `cwd`, or a `url` with `headers`."""
    expand = _Expander(folder)
    if "url" in entry:
        headers = {str(key): expand(value) for key, value in (entry.get("headers") or {}).items()}
        return _url(expand(entry["url"]), headers, None, sse=entry.get("type") == "sse")
    if not isinstance(entry.get("command"), str):
        raise ValueError(f"A server has a command or a url: {dict(entry)!r}")  # noqa: TRY004  as above
    words = [expand(entry["command"]), *(expand(word) for word in entry.get("args") or ())]
    env = {str(key): expand(value) for key, value in (entry.get("env") or {}).items()}
    cwd = expand(entry["cwd"]) if entry.get("cwd") else None
    return _command(words, env, cwd, inherit_env=inherit_env)


def _configured(settings: Mapping[str, Any], folder: Path | None = None, *, inherit_env: bool) -> Target:
    """One server, or a hub in which all of them are mounted under their names."""
    servers = servers_in(settings)
    if len(servers) == 1:
        (entry,) = servers.values()
        return target_in(entry, folder, inherit_env=inherit_env)
    targets = {
        _namespace(name): target_in(entry, folder, inherit_env=inherit_env) for name, entry in servers.items()
    }
    if len(targets) < len(servers):
        raise ValueError(f"Two of these servers have the same name: {', '.join(servers)}")

    def wire() -> Wire:
        hub = Hub("midcall-servers")
        for namespace, target in targets.items():
            hub.mount(namespace, target)
        return HubWire(hub, owned=True)

    return Target(f"the servers {', '.join(targets)}", wire)


def _namespace(name: str) -> str:
    """A name of a server that can stand before a dot."""
    word = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "server"
    return word if word[0].isascii() and word[0].isalpha() else f"server_{word}"


class _Expander:
    """Fills in `${NAME}`, `${NAME:-default}`, `${env:NAME}`, and the folders that editors know."""

    def __init__(self, folder: Path | None) -> None:
        here = str(folder or Path.cwd())
        self._known = {
            "workspaceFolder": here,
            "userHome": str(Path.home()),
            "pathSeparator": os.sep,
            "workspaceFolderBasename": Path(here).name,
        }

    def __call__(self, value: Any) -> str:
        return _VARIABLE.sub(self._fill, str(value))

    def _fill(self, found: re.Match[str]) -> str:
        name, default = found.groups()
        value = self._known.get(name) or os.environ.get(name) or default
        if value is None:
            raise ValueError(f"{found[0]}: the environment has no {name}")
        return value

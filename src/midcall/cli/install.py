"""`midcall install CLIENT TARGET`: prints the configuration that has an MCP client start a hub, or writes it.

A client's file also has what others wrote. So it is merged, never made anew: what is there stays, a
copy of the old file is kept, and the new one takes its place in one step.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from midcall.cli.command import Exit, UsageError, add_command

_EXAMPLES = """\
examples:
  midcall install claude-code app:hub               print it
  midcall install claude-code app:hub --write       add it to ./.mcp.json
  midcall install vscode --http http://127.0.0.1:8000/mcp --name tools --write

Where --write writes:
  claude-code      .mcp.json in this folder
  claude-desktop   claude_desktop_config.json of this user
  cursor           .cursor/mcp.json in this folder
  vscode           .vscode/mcp.json in this folder
"""


class ClientSettings(NamedTuple):
    """How one client wants it."""

    title: str
    servers: str
    """The key under which its servers stand."""
    file: str | None
    """Its file in the folder of a project; `None` if it has one for each user."""
    after: str
    """What a person does next."""
    typed: bool = True
    """Whether a server names its transport."""
    takes_urls: bool = True


CLIENTS = {
    "claude-code": ClientSettings(
        "Claude Code", "mcpServers", ".mcp.json", "Start claude in this folder and approve it."
    ),
    "claude-desktop": ClientSettings(
        "Claude Desktop",
        "mcpServers",
        None,
        "Quit Claude Desktop and start it again.",
        typed=False,
        takes_urls=False,
    ),
    "cursor": ClientSettings(
        "Cursor", "mcpServers", ".cursor/mcp.json", "Open this folder in Cursor and switch it on."
    ),
    "vscode": ClientSettings(
        "VS Code", "servers", ".vscode/mcp.json", "Open this folder in VS Code and start it."
    ),
}


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "install",
        run,
        help="add a hub to an MCP client",
        description="Print the configuration with which an MCP client starts a hub, or add it to "
        "the client with --write.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("client", metavar="CLIENT", choices=CLIENTS, help=" | ".join(CLIENTS))
    parser.add_argument("target", metavar="TARGET", nargs="?", help="where the hub is, as in app:hub")
    parser.add_argument(
        "--http", metavar="URL", help="connect to a server at this URL instead of starting one"
    )
    parser.add_argument(
        "--name", help="the name of the server in the client (default: the name of the hub or its module)"
    )
    parser.add_argument("--write", action="store_true", help="add it to the client's configuration file")
    parser.add_argument(
        "--config", metavar="PATH", help="path of the client's configuration file, if it is not the usual one"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing server with the same name")


def run(args: argparse.Namespace) -> Exit:
    """Print the configuration, or merge it into the client's file."""
    from midcall.cli.output import say

    client = CLIENTS[args.client]
    name, server = _entry(client, args)
    path = Path(args.config) if args.config else config_path(client, sys.platform, os.environ, Path.cwd())
    if not args.write:
        sys.stdout.write(_as_json({client.servers: {name: server}}))
        say(f"This goes into {path}: add it there, or run the same with --write.")
    elif merge(path, client.servers, name, server, force=args.force):
        say(f"{client.title} now knows {name!r}, by {path}. {client.after}")
    else:
        say(f"{client.title} knows {name!r} already, by {path}. Nothing was changed.")
    return Exit.SUCCESS


def config_path(client: ClientSettings, platform: str, environment: Mapping[str, str], folder: Path) -> Path:
    """Where a client has its configuration on this system."""
    if client.file is not None:
        return folder / client.file
    home = Path(environment.get("USERPROFILE" if platform == "win32" else "HOME") or Path.home())
    if platform == "win32":
        base = Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    elif platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return base / "Claude" / "claude_desktop_config.json"


# --- what is written ------------------------------------------------------------------------


def _entry(client: ClientSettings, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The name of the server, and how to reach it."""
    if args.http is None and args.target is None:
        raise UsageError("Name the hub, as in app:hub, or a server with --http URL")
    hub_name = _name_of(args.target) if args.target else "midcall"
    name = args.name or hub_name
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
        raise UsageError(
            f"{name!r} is not a name for a server: letters, digits, - and _ only. Choose another with --name"
        )
    if args.http is not None:
        return name, _remote(client, args.http)
    command = {"command": sys.executable, "args": _arguments(args.target)}
    return name, {"type": "stdio", **command} if client.typed else command


def _arguments(target: str) -> list[str]:
    """The rest of the command. Clients start it in a folder of their own choice, so it names this one."""
    from midcall.cli.load_target import split_target

    where, attribute = split_target(target)
    if where.endswith(".py"):
        where = str(Path(where).resolve())
    serve = ["serve", f"{where}:{attribute}", "--stdio", "--mcp-only", "--cwd", str(Path.cwd())]
    return ["-m", "midcall", *serve]


def _remote(client: ClientSettings, url: str) -> dict[str, Any]:
    if not client.takes_urls:
        raise UsageError(
            f"The file of {client.title} only has servers that it starts itself. "
            "Add a URL in its settings, under Connectors"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--http: {url!r} is not a URL, as http://127.0.0.1:8000/mcp")
    if parts.path in ("", "/"):
        url = parts._replace(path="/mcp").geturl()
    return {"type": "http", "url": url}


def _name_of(target: str) -> str:
    """The hub's own name; for one that has none, the name of its module."""
    from midcall.cli.load_target import load_hub, split_target
    from midcall.hub import Hub

    hub = load_hub(target)  # a wrong target is noticed here, and not by the client later
    if hub.name != Hub().name:
        return hub.name
    where, _ = split_target(target)
    return Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]


# --- the client's file ----------------------------------------------------------------------


def merge(path: Path, servers: str, name: str, server: dict[str, Any], *, force: bool = False) -> bool:
    """Add a server to a client's file; false if it is there already. Raises `UsageError`."""
    try:
        path = path.resolve()  # a link stays a link
        config = _read(path)
        known = config.setdefault(servers, {})
        if not isinstance(known, dict):
            raise UsageError(f"{path}: {servers!r} is not an object. Nothing was changed")
        if known.get(name) == server:
            return False
        if name in known and not force:
            raise UsageError(
                f"{path} has another server {name!r}: {_short(known[name])}. "
                "Choose another name with --name, or replace it with --force"
            )
        known[name] = server
        _replace(path, _as_json(config))
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error}") from None
    return True


def _read(path: Path) -> dict[str, Any]:
    import json

    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}. Nothing was changed") from None
    if not text.strip():
        return {}
    try:
        config = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}, line {error.lineno}, column {error.colno}: {error.msg}. It is not plain JSON "
            "(a comment, or a comma too many?), so nothing was changed. Without --write it is printed, "
            "to be added by hand"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error or 'nested too deeply'}. Nothing was changed") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not a JSON object. Nothing was changed")
    return config


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # one of the two would be lost
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"{twice!r} occurs twice")
    return found


def _replace(path: Path, text: str) -> None:
    """Put a new text in the place of a file, in one step; a copy of the old one stays beside it.

    Both have the mode of the old one from the start: it may hold secrets.
    """
    import functools
    import shutil
    import stat

    from midcall.cli.output import say

    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666
    try:
        opener = functools.partial(os.open, mode=mode)
        with open(fresh, "x", encoding="utf-8", newline="\n", opener=opener) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, fresh)  # also what the umask has taken away
            backup = _free_name(path)
            backup.touch(mode=0o600, exist_ok=False)
            shutil.copy2(path, backup)
            say(f"The old file is kept as {backup}.")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _free_name(path: Path) -> Path:
    number = 1
    while (backup := path.with_name(f"{path.name}.bak{number}")).exists():
        number += 1
    return backup


def _as_json(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _short(server: Any) -> str:
    """What a server is, without what may hold a secret: arguments, environment, headers, a query."""
    if not isinstance(server, dict):
        return "not an object"
    return str(server.get("url") or server.get("command") or "no command")[:100].partition("?")[0]

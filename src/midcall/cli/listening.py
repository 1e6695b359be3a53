"""Where a server listens: its port, its sockets, and what a person is told of them."""

import argparse
import contextlib
import errno
import logging
import os
import socket
import sys
from urllib.parse import urlsplit

from midcall.cli.command import CannotListen

BACKLOG = 2048
"""Connections that wait while every worker is busy."""

MOST_PORT = 65535

_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104

NO_MODEL = "none (--model NAME adds a chat to the page)"
NO_MODEL_NAMED = "none, unless the hub has its own (--model NAME adds a chat to the page)"

log = logging.getLogger("midcall.serve")


def port_number(text: str) -> int:
    """Reads `--port`; 0 is any port that is free."""
    if not text.isdecimal() or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: it must be 0 to {MOST_PORT}")
    return int(text)


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets at every address of a host. Raises `CannotListen`, with a hint."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with contextlib.ExitStack() as opened:
            sockets = [
                opened.enter_context(socket.create_server(address, family=family, backlog=BACKLOG))
                for family, _, _, _, address in dict.fromkeys(found)
            ]
            for one in sockets:
                one.setblocking(False)
            opened.pop_all()
    except OSError as error:
        raise CannotListen(f"Cannot listen on {host}:{port}: {_reason(error)}") from None
    return sockets


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    hint = "; stop what listens there, or choose another port with --port"
    return f"{os.strerror(error.errno)}{hint if error.errno == errno.EADDRINUSE else ''}"


def page_url(host: str, port: int) -> str:
    """Where the page is, for a browser."""
    return f"http://{_place(host, port)}/"


def open_page(url: str) -> bool:
    """Show a page in the person's browser. Where there is none, as over ssh, say where the page is."""
    from midcall.client.oauth.login import open_browser

    remote = any(name in os.environ for name in ("SSH_CONNECTION", "SSH_TTY"))
    if ("BROWSER" in os.environ or not remote) and open_browser(url):  # an editor's server sets the first
        return True
    print(f"Open {url} in a browser.", file=sys.stderr, flush=True)  # noqa: T201
    return False


def _place(host: str, port: int) -> str:
    """As a client on this machine writes it: all addresses are no name."""
    name = "localhost" if host in _EVERYWHERE else host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def announce(host: str, port: int, *, journal: str, model: str) -> None:
    """Log where the page, MCP and the WebSocket are, where calls are kept, and which model chats."""
    place = _place(host, port)
    log.info("Page:    http://%s/%s", place, " (on all addresses)" if host in _EVERYWHERE else "")
    log.info("MCP:     http://%s/mcp (WebSocket: ws://%s/ws)", place, place)
    log.info("Journal: %s", shown_place(journal))
    log.info("Model:   %s", model)


def shown_place(journal: str) -> str:
    """The place of a journal as it may be shown: without what lets somebody in."""
    if "://" not in journal:
        return journal
    url = urlsplit(journal)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"

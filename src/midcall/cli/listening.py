"""Where a server listens: its port, its sockets, and what a person is told of them."""

import argparse
import contextlib
import errno
import logging
import os
import socket
from urllib.parse import urlsplit

from midcall.cli.command import CannotListen

BACKLOG = 2048
"""Connections that wait while every worker is busy."""

MOST_PORT = 65535

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


def announce(host: str, port: int, *, journal: str, model: str | None) -> None:
    """Log where the page, MCP and the WebSocket are, where calls are kept, and which model chats."""
    place = f"[{host}]:{port}" if ":" in host else f"{host or 'localhost'}:{port}"
    log.info("Page:    http://%s/", place)
    log.info("MCP:     http://%s/mcp (WebSocket: ws://%s/ws)", place, place)
    log.info("Journal: %s", shown_place(journal))
    log.info("Model:   %s", model or "none (--model NAME adds a chat to the page)")


def shown_place(journal: str) -> str:
    """The place of a journal as it may be shown: without what lets somebody in."""
    if "://" not in journal:
        return journal
    url = urlsplit(journal)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"

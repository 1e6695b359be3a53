"""The options of a server, the same for `midcall serve` and `midcall proxy`; and the model of its chat."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from midcall.cli.command import UsageError, add_selection, seconds
from midcall.cli.listening import port_number
from midcall.cli.notify_options import add_notify

if TYPE_CHECKING:
    from midcall.hub import Hub

MOST_WORKERS = 1000
MOST_CONNECTIONS = 1_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_number, default=8000, help="port to listen on; 0 for any (default: %(default)s)"
    )
    parser.add_argument(
        "--stdio", action="store_true", help="serve standard input and output instead of HTTP"
    )
    parser.add_argument(
        "--sse",
        action="store_true",
        help="over HTTP, also serve the deprecated MCP transport HTTP+SSE at /sse, for old clients",
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=seconds,
        default=5.0,
        help="how long calls may keep running after a stop signal or the end of the input (default: 5)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_up_to(MOST_WORKERS),
        default=None,
        help="number of worker processes, which share the address and the journal; SIGHUP replaces them, "
        "one at a time",
    )
    parser.add_argument(
        "--max-connections",
        metavar="N",
        type=_up_to(MOST_CONNECTIONS),
        default=None,
        help="over HTTP, maximum number of open connections per process (default: 10000)",
    )
    parser.add_argument(
        "--with",
        dest="named",
        metavar="NAMES",
        type=_names,
        action="extend",
        default=[],
        help="also serve activations that can do harm, such as bash,claudecode; over HTTP, only on "
        "a loopback address or with keys",
    )
    add_selection(parser)
    parser.add_argument("--as-worker", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--cwd", metavar="DIR", help="work in this folder, and look for the target there")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="how much to log (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        default="text",
        choices=("text", "json"),
        help="plain lines, or one JSON object per line (default: %(default)s)",
    )
    parser.add_argument(
        "--metrics",
        action="store_true",
        help="expose Prometheus metrics at /metrics: with keys, to callers with the scope "
        "midcall:admin; without, to programs on this machine",
    )
    parser.add_argument(
        "--web-module",
        metavar="FILE",
        type=_module,
        action="append",
        default=[],
        help="JavaScript module for the page at /, with components for questions; may be repeated",
    )
    add_model(parser)
    _add_journal(parser)
    add_notify(parser)
    _add_protection(parser)


def _add_journal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "waiting calls", "Calls that wait for a person are stored in a journal and survive a restart."
    )
    group.add_argument(
        "--journal",
        metavar="PLACE",
        help="a file, postgresql://..., or memory to store nothing "
        "(default: MIDCALL_JOURNAL, or a file in the user's state directory)",
    )
    group.add_argument(
        "--engine",
        choices=("dbos",),
        default=None,
        help="run the work between two questions as DBOS Transact workflows, on the same PostgreSQL "
        "(default: midcall runs it itself)",
    )
    group.add_argument(
        "--encrypt-journal",
        action="store_true",
        help="encrypt arguments, answers and results with the keys in MIDCALL_KEYS",
    )
    group.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=None,
        help="how long a call waits for a person (default: 7 days)",
    )
    group.add_argument(
        "--public-url",
        metavar="URL",
        type=_address,
        default=None,
        help="address at which people reach this server, for links to questions, such as "
        "https://tools.example.com "
        "(default: MIDCALL_PUBLIC_URL, or the address that it listens on)",
    )
    group.add_argument(
        "--respond-tool",
        choices=("always", "declared", "never"),
        default=None,
        help="which MCP clients before 2026-07-28 that cannot show questions get the tool _plexus_respond to "
        "answer them: all, those that declare plexus.bidir, or none (default: always)",
    )
    group.add_argument(
        "--dev",
        action="store_true",
        help="warn about files, connections and programs that a call uses outside a step",
    )
    group.add_argument(
        "--replay-check",
        action="store_true",
        help="for tests: rerun each call from its journal at every answer, to reveal what does not replay",
    )


def _add_protection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "who may call", "Over HTTP. On stdio, whoever starts the server is the caller."
    )
    group.add_argument(
        "--auth-tokens",
        metavar="FILE",
        help="keys of the callers, one name=token[:scope,scope] per line (default: those in MIDCALL_TOKENS)",
    )
    group.add_argument("--oauth-issuer", metavar="URL", help="accept tokens from this OAuth server")
    group.add_argument(
        "--oauth-audience",
        metavar="URL",
        help="audience that tokens must have: the URL of this server, such as https://tools.example.com/mcp",
    )
    group.add_argument("--oauth-jwks", metavar="URL|FILE", help="public keys of the OAuth server")
    group.add_argument(
        "--allow-host",
        metavar="HOST",
        action="append",
        default=[],
        help="host name by which this server is reached, or origin (https://...) of a site whose "
        "pages may call it; may be repeated",
    )
    group.add_argument(
        "--admin",
        action="store_true",
        help="without keys, on a loopback address: let programs on this machine manage calls at "
        "/admin; with keys, callers with the scope midcall:admin always can",
    )
    group.add_argument(
        "--rate-limit",
        metavar="CALLS",
        type=_rate,
        default=None,
        help="calls per second that each caller may start, in bursts of up to ten seconds' worth; 0 "
        "for no limit "
        "(default: 1000, and 50000 for all anonymous callers together; no limit on stdio)",
    )
    group.add_argument("--no-auth", action="store_true", help="accept calls from anyone")
    group.add_argument(
        "--allow-public",
        action="store_true",
        help="with --no-auth: allow an address that others can reach",
    )


def _up_to(most: int) -> Callable[[str], int]:
    """What reads a number of things of which there are some, and so many at most."""

    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {most}")
        return int(text)

    return read


def _names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _rate(text: str) -> float:
    """A number of calls a second."""
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of calls per second")
    return rate


def _address(text: str) -> str:
    """The URL of a server."""
    from midcall.http.message import HttpError, HttpUrl

    try:
        url = HttpUrl(text)
    except HttpError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an http:// or https:// URL") from None
    parts = urlsplit(text)
    if parts.query or parts.fragment or parts.username is not None:
        raise argparse.ArgumentTypeError("the URL of a server has no query, fragment or password")
    return str(url).rstrip("/")


def public_url(args: argparse.Namespace) -> str | None:
    """Where people reach the server, if that is known. Raises `UsageError`."""
    from midcall.transports.http_server import names_of

    given: str | None = args.public_url
    if given is None and (said := os.environ.get("MIDCALL_PUBLIC_URL")):
        try:
            given = _address(said)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"MIDCALL_PUBLIC_URL: {error}") from None
    if given is None and not args.stdio:
        given = next((f"http://{name}:{args.port}" for name in names_of(args.host)), None)
    return given


def _module(text: str) -> Path:
    """A file of JavaScript."""
    path = Path(text).absolute()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    if path.suffix not in (".js", ".mjs"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JavaScript file (.js)")
    return path


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the flag that chooses the model."""
    parser.add_argument(
        "--model",
        metavar="NAMES",
        type=_names,
        action="extend",
        default=[],
        help="over HTTP, serve a chat at / in which this model calls the methods: openai:NAME, "
        "anthropic:NAME, ollama:NAME, local, or scripted (default: MIDCALL_MODEL); keys come from the "
        "environment. Separate several with commas, or repeat the option: people choose one",
    )


def prepare_chat(names: Sequence[str], hub: "Hub") -> None:
    """Give the hub a chat if models are named, and its chat what it lacks. Raises `UsageError`."""
    from midcall.models.base import choose_model, model_names

    try:
        models = [model for name in model_names(names) if (model := choose_model(name)) is not None]
    except ValueError as error:
        raise UsageError(f"--model: {error}") from None
    if hub.chat is None and not models:
        return
    from midcall.chat.engine import ChatEngine

    engine: ChatEngine = hub.chat or ChatEngine(hub)
    if models:
        engine.chosen_model, *more = models
        engine.more_models = tuple(more)
    if engine.chosen_model is None:
        raise UsageError("The hub has a chat, which needs a model: --model NAME, or MIDCALL_MODEL")

"""`midcall serve [TARGET]`: serves a hub over HTTP and WebSocket, or over standard input and output."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from midcall.cli.command import Exit, UsageError, add_command, reason, restrict, with_details, work_in
from midcall.cli.listening import NO_MODEL, NO_MODEL_NAMED, announce, listen, open_page, page_url
from midcall.cli.notify_options import notify_from
from midcall.cli.reload import refuse_reload
from midcall.cli.serve_options import add_options, prepare_chat, public_url

if TYPE_CHECKING:
    import asyncio

    from midcall.hub import Hub
    from midcall.transports.auth import Authenticator

BUILT_IN = "midcall.activations:hub"
_WORKER = "midcall-worker"
_M_MMAP_THRESHOLD = -3
"""As in `malloc.h`."""
_EXAMPLES = """\
examples:
  midcall serve                             the built-in examples
  midcall serve app:hub --host 0.0.0.0 --port 9000 --auth-tokens keys.txt --allow-host tools.example.com
  midcall serve app:hub --workers 4 --journal postgresql://user@db/calls
  midcall serve app:hub --journal postgresql://user@db/calls --engine dbos
  midcall serve app:hub --reload            reload when a file changes
  midcall serve app:hub --stdio             JSON-RPC 2.0, one message per line
  midcall serve app:hub --stdio --mcp-only  for an MCP client that starts the server

Logs go to standard error. Stop the server with Ctrl-C or SIGTERM.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "serve",
        run,
        help="serve a hub over HTTP (MCP, WebSocket, a page) or stdio",
        description="Serve a hub over HTTP: MCP at /mcp, a WebSocket at /ws, a page at /.\n"
        "With --stdio, on standard input and output: JSON-RPC 2.0, MCP, or both.",
        epilog=_EXAMPLES,
    )
    add_serve_options(parser)


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """The options of `midcall serve` and `midcall dev`."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        default=BUILT_IN,
        help="where the hub is (default: %(default)s)",
    )
    add_options(parser)
    parser.add_argument(
        "--reload",
        action="store_true",
        help="reload the code when a Python file below this folder, or the target's, changes",
    )
    parser.add_argument(
        "--mcp", action="store_true", help="with --stdio: speak MCP alongside the raw protocol"
    )
    parser.add_argument("--mcp-only", action="store_true", help="with --stdio: speak MCP and nothing else")


def run(args: argparse.Namespace) -> int:
    """Serve until the end of the input, Ctrl-C or SIGTERM."""
    from midcall.cli.load_target import load_hub

    return serve(args, lambda: load_hub(args.target))


def serve(args: argparse.Namespace, load: "Callable[[], Hub]") -> int:
    """Serve a hub, as the options say; it is loaded in the process that serves."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from midcall.cli.workers import WorkerPlace
    from midcall.errors import JournalError, LifespanError
    from midcall.logs import set_up

    place = None if args.as_worker is None else WorkerPlace.taken(args.as_worker)
    set_up(args.log_format, args.log_level, "" if place is None else str(place))
    folder = os.getcwd()  # noqa: PTH109
    work_in(args.cwd)
    if args.reload:
        refuse_reload(stdio=args.stdio, workers=args.workers)
    if args.metrics:
        _check_metrics(is_worker=place is not None)
    if args.reload and place is None:
        return _run_reloading(args, folder)
    if args.workers is not None and args.as_worker is None:
        return _run_workers(args, folder)
    hub = load()
    if args.named:
        _add_named(args.named, hub)
    restrict(hub, args)
    if args.dev:
        from midcall.dev import watch

        watch()
    journal = _keep_calls(args, hub)
    hosts = list(args.allow_host)
    if hub.durable is not None:
        links = hub.durable.links
        links.base = links.base or public_url(args)
        if links.base is not None:
            public = urlsplit(links.base)
            hosts += [public.netloc, f"{public.scheme}://{public.netloc}"]  # a proxy may send its own `Host`
        notify = notify_from(args)
        if notify is not None:
            hub.durable.notify_by(notify)
    if args.respond_tool is not None:
        from midcall.mcp import mcp_of

        mcp_of(hub).respond_tool = args.respond_tool
    if not args.stdio:
        prepare_chat(args.model, hub)
    serving: Coroutine[Any, Any, None]
    if args.stdio:
        from midcall.transports.stdio import serve_stdio

        if args.mcp or args.mcp_only:
            from midcall.mcp import mcp_of

            mcp_of(hub)
        if args.rate_limit is not None:
            from midcall.calls import RateLimit

            hub.calls.rate = RateLimit(args.rate_limit)
        serving = serve_stdio(hub, raw=not args.mcp_only, grace=args.grace)
    else:
        from midcall.transports.connection_limits import DEFAULTS, Limits
        from midcall.transports.http_server import server

        logging.getLogger("uvicorn.error").addFilter(_is_not_startup)
        listeners = listen(args.host, args.port) if place is None else place.listeners()
        model = NO_MODEL if hub.chat is None else ", ".join(hub.chat.models)
        ready = partial(announce, args.host, listeners[0].getsockname()[1], journal=journal, model=model)
        serving = server(
            hub,
            args.host,
            args.port,
            args.log_level,
            auth=_checked_authenticator(args, hub.name, _protected(hub)),
            hosts=hosts,
            allow_public=args.no_auth and args.allow_public,
            sse=args.sse,
            grace=args.grace,
            label="" if place is None else str(place),
            is_ready=ready if place is None else place.is_ready,
            admin=args.admin,
            metrics=args.metrics,
            rate_limit=args.rate_limit,
            parts=hub.parts(),
            web_modules=args.web_module,
            own_log=args.log_format == "text",
            limits=DEFAULTS if args.max_connections is None else Limits(connections=args.max_connections),
        ).serve(listeners)
    _calm_collector()
    _give_back_large_blocks()
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        threads = ThreadPoolExecutor(thread_name_prefix=_WORKER)
        runner.get_loop().set_default_executor(threads)
        try:
            runner.run(until_stopped(serving))
        except (JournalError, LifespanError) as error:
            print(f"midcall: {with_details(error)}", file=sys.stderr)  # noqa: T201
            return Exit.FAILED
        threads.shutdown(wait=False, cancel_futures=True)
        _leave_behind_what_cannot_be_stopped()
    return Exit.SUCCESS


def _is_not_startup(record: "logging.LogRecord") -> bool:
    """Whether a line of uvicorn's log is none of those that only say that it starts."""
    said = ("Started server", "Waiting for application startup", "Application startup", "Uvicorn running")
    return not str(record.msg).startswith(said)


def _run_reloading(args: argparse.Namespace, folder: str) -> int:
    """Check what can be checked without the hub, and have it served by a process that can be replaced."""
    from pathlib import Path

    from midcall.cli.load_target import split_target
    from midcall.cli.reload import run_reloading
    from midcall.journal.choose import choose_journal, place_of
    from midcall.models.base import model_names

    _check_engine(args)
    _checked_authenticator(args, "", args.named)
    try:
        choose_journal(args.journal, args.target)
    except ValueError as error:  # no change of a file would mend that
        raise UsageError(f"--journal: {error}") from None
    where, _ = split_target(args.target)
    beside = Path(where).resolve().parent if where.endswith(".py") else Path.cwd()
    here = Path.cwd()
    return run_reloading(
        args.host,
        args.port,
        [here] if beside.is_relative_to(here) else [here, beside],
        grace=args.grace,
        argv=args.command_line,
        folder=folder,
        listening=partial(
            announce,
            args.host,
            journal=place_of(args.journal, args.target),
            model=", ".join(model_names(args.model)) or NO_MODEL_NAMED,
        ),
        is_ready=partial(_show_page, args),
    )


def _show_page(args: argparse.Namespace, port: int) -> None:
    """Open the page for whoever wants that; where there is no browser, say where it is."""
    if getattr(args, "opens", False) and not args.no_browser:
        open_page(page_url(args.host, port))


def _run_workers(args: argparse.Namespace, folder: str) -> int:
    """Check what can be checked without the hub, and have it served by several processes."""
    import tempfile

    from midcall.cli.workers import refuse_workers, run_workers
    from midcall.journal.choose import place_of
    from midcall.metrics import FOLDER, forget_process
    from midcall.models.base import model_names

    refuse_workers(stdio=args.stdio, journal=args.journal)
    _check_engine(args)
    notify_from(args)
    _checked_authenticator(args, "", args.named)
    with tempfile.TemporaryDirectory(prefix="midcall-", ignore_cleanup_errors=True) as figures:
        if args.metrics:
            os.environ[FOLDER] = figures
        return run_workers(
            args.workers,
            args.host,
            args.port,
            grace=args.grace,
            argv=args.command_line,
            folder=folder,
            listening=partial(
                announce,
                args.host,
                journal=place_of(args.journal, args.target),
                model=", ".join(model_names(args.model)) or NO_MODEL_NAMED,
            ),
            ended=forget_process,
        )


def _protected(hub: "Hub") -> list[str]:
    """The methods that are never for everybody: what a person has to permit could be permitted by anybody."""
    return [name for name, method in hub.methods() if method.extras.get("person_only")]


def _checked_authenticator(
    args: argparse.Namespace, name: str, protected: Sequence[str]
) -> "Authenticator | None":
    """Who may call, if it is safe to listen where it is said."""
    from midcall.transports.security import Gate, is_loopback, refuse_public_bind

    auth = _authenticator(args, name)
    fault = refuse_public_bind(args.host, auth is not None, args.no_auth and args.allow_public)
    if fault is not None:
        raise UsageError(fault)
    if protected and auth is None and not is_loopback(args.host):
        raise UsageError(
            f"Refused to serve {' and '.join(protected)} on {args.host or 'all addresses'} without "
            "authentication: give --auth-tokens FILE or --oauth-issuer"
        )
    if args.admin and auth is None and not is_loopback(args.host):
        raise UsageError("--admin without keys is for a loopback address: give --auth-tokens FILE")
    try:
        Gate(args.allow_host)
    except ValueError as error:
        raise UsageError(f"--allow-host: {error}") from None
    return auth


def _add_named(names: list[str], hub: "Hub") -> None:
    """Add the activations of `--with`. Raises `UsageError`."""
    from midcall.activations import add_named
    from midcall.errors import RegistrationError

    try:
        add_named(hub, names)
    except (RegistrationError, ValueError, OSError) as error:
        raise UsageError(f"--with: {reason(error)}") from None


def _keep_calls(args: argparse.Namespace, hub: "Hub") -> str:
    """Give the hub its journal, unless its author has; gives the place of it."""
    from midcall.journal.choose import choose_journal, place_of
    from midcall.journal.durable import WEEK, DurableCalls
    from midcall.journal.seal import default_ring

    if hub.durable is not None and args.journal is None:
        if args.engine is not None:
            raise UsageError(
                "--engine: the hub has a journal of its own; give it the engine too, or --journal"
            )
        return "the hub's own"
    _check_engine(args)
    try:
        seal = default_ring() if args.encrypt_journal else None
        journal = choose_journal(args.journal, args.target, seal)
    except ValueError as error:
        raise UsageError(f"--journal: {error}") from None
    engine = None
    if args.engine is not None:
        from midcall.journal.dbos import DbosEngine
        from midcall.journal.postgres import PostgresJournal

        if isinstance(journal, PostgresJournal):
            engine = DbosEngine(journal, place_of(args.journal, args.target))
    hub.durable = DurableCalls(
        hub, journal, time_limit=args.wait or WEEK, replay_check=args.replay_check, engine=engine
    )
    return place_of(args.journal, args.target)


def _check_engine(args: argparse.Namespace) -> None:
    """Say why there cannot be an engine. Raises `UsageError`."""
    from importlib.util import find_spec

    from midcall.journal.choose import is_postgres, place_of

    if args.engine is None:
        return
    if not is_postgres(place_of(args.journal, args.target)):
        raise UsageError("--engine dbos needs a journal in PostgreSQL: --journal postgresql://...")
    if find_spec("dbos") is None:
        raise UsageError("--engine dbos needs `pip install 'midcall[dbos]'`")


def _check_metrics(*, is_worker: bool) -> None:
    """Say why figures cannot be kept. Raises `UsageError`."""
    from importlib.util import find_spec
    from pathlib import Path

    from midcall.journal.files import private_folder
    from midcall.metrics import FOLDER, NEEDS

    if find_spec("prometheus_client") is None:
        raise UsageError(f"--metrics: {NEEDS}")
    if is_worker:  # what tidies up temporary files may have taken away what its parent has made
        try:
            private_folder(Path(os.environ[FOLDER]))
        except OSError as error:
            raise UsageError(f"--metrics: {error}") from None


def _leave_behind_what_cannot_be_stopped() -> None:
    """End the process at once if plain functions still run in worker threads, as nothing can cancel these.

    Their calls have had their time, and are answered; Python would wait for them for ever.
    """
    import threading

    named = (_WORKER, "dbos-executor-")  # those wait for a database that is away, for ever
    workers = [thread for thread in threading.enumerate() if thread.name.startswith(named)]
    for thread in workers:
        thread.join(0.2 / len(workers))
    busy = sum(thread.is_alive() for thread in workers)
    if busy:
        logging.getLogger("midcall.serve").warning("Left behind: %d functions that still run", busy)
        logging.shutdown()
        os._exit(Exit.SUCCESS)


def _calm_collector() -> None:
    """Let the garbage collector pass over what stays for ever, and look at the rest less often.

    Calls leave no cycles behind, so there is little to find: a fifth of the time of a call was spent
    on looking.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _give_back_large_blocks() -> None:
    """Have the C library give each block of a megabyte or more back to the system when it is free.

    glibc stops to do so for a size once such a block was freed, and a server keeps what large results took.
    """
    import contextlib
    import ctypes

    with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1024 * 1024)


def _authenticator(args: argparse.Namespace, name: str) -> "Authenticator | None":
    """Who may call, as the options and the environment say."""
    from midcall.transports.auth import OAuthResourceServer, StaticKeys

    oauth = {f"--oauth-{one}": getattr(args, f"oauth_{one}") for one in ("issuer", "audience", "jwks")}
    given = [option for option, value in oauth.items() if value is not None]
    if args.no_auth and (args.auth_tokens or given):
        raise UsageError("--no-auth turns authentication off: use it without the other options")
    if args.auth_tokens and given:
        raise UsageError("Use either --auth-tokens or --oauth-issuer, not both")
    if given and len(given) < len(oauth):
        raise UsageError(f"{given[0]} needs {' and '.join(o for o in oauth if o not in given)} too")
    try:
        if args.no_auth:
            return None
        if given:
            return OAuthResourceServer(
                issuer=args.oauth_issuer, resource=args.oauth_audience, jwks=args.oauth_jwks, name=name
            )
        if args.auth_tokens:
            return StaticKeys.from_file(args.auth_tokens)
        return StaticKeys.from_environment()
    except (OSError, ValueError) as error:
        raise UsageError(reason(error)) from None


def _fast_loop() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """The event loop of uvloop where there is one, a fifth faster; else the usual one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    """Run until it ends by itself or a signal stops it; either is a good end.

    Plain signal handlers, because an HTTP server puts its own in their place and raises the signal
    again afterwards.
    """
    import asyncio
    import contextlib
    import signal

    loop = asyncio.get_running_loop()
    task = loop.create_task(serving)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(task.cancel))
    with contextlib.suppress(asyncio.CancelledError):
        await task

"""Client: what a caller of an MCP server meets. `connect` makes one.

A request that is known not to have reached the server is sent again; one that may have fails, as doing it
twice may be worse than not knowing.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

from msgspec import Struct

from midcall.client.cache import Cache, ServerChanges, Updated
from midcall.client.handshake import Era, Handshake
from midcall.client.header_params import HeaderParams
from midcall.client.reconnect import Reconnect
from midcall.client.rounds import Exchange, Handle
from midcall.client.server_requests import Answering, Folders, Sampler
from midcall.client.session import ClientSession, Waiter, in_time
from midcall.client.targets import Named, Target, target_of
from midcall.client.tool_call import ClientCall, OnResult, Outcome, ToolBatch, ToolLine, refuse, tool_params
from midcall.client.wire import About
from midcall.errors import MidcallError, TimedOut, TransportLost
from midcall.invocation import Answerer, Invocation
from midcall.items import to_json
from midcall.mcp import revisions
from midcall.mcp.results import objects_in
from midcall.version import __version__

log = logging.getLogger("midcall.client")

SILENCE = 300.0
"""Seconds that a server may say nothing about a call, not even progress, before it is given up."""

IN_FLIGHT = 256
"""How many calls of a parallel batch are on their way at once."""

FAREWELL = 5.0
"""Seconds for which the end of a client waits until servers know of calls that nobody comes back for."""

ASKING = frozenset(("tools/call", "prompts/get", "resources/read"))
"""In the course of which requests a server may ask."""


INFO: Mapping[str, Any] = MappingProxyType({"name": "midcall", "version": __version__})
"""What a server is told about the client, unless a caller says something else."""


class Options(Struct, frozen=True):
    """How a client is set up (see `connect`)."""

    era: Era = "auto"
    revision: str | None = None
    log_level: str | None = None
    on_log: Callable[[dict[str, Any]], Any] | None = None
    give_up_after: float | None = 60.0
    info: Mapping[str, Any] = INFO


def connect(
    target: "Named | Target",
    *,
    answer: Answerer | None = None,
    sample: Sampler | None = None,
    roots: Folders | None = None,
    by_hand: bool = False,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    era: Era = "auto",
    revision: str | None = None,
    log_level: str | None = None,
    on_log: Callable[[dict[str, Any]], Any] | None = None,
    give_up_after: float | None = 60.0,
    info: Mapping[str, Any] | None = None,
) -> "Client":
    """A client of an MCP server; use it with `async with`.

    `target` is a command (`"npx -y some-server"`, or a list of words), a URL, a `Hub`, or the settings of
    another client (`{"mcpServers": ...}`, or the path of the file). Of several servers there, all are mounted
    in one hub, and their tools are called `server.tool`.

    A server may ask: `answer` is a function (plain or async) from a `Request` to the answer, as for
    `Hub.call`; `by_hand` lets questions come as items of a call instead. `sample` asks a model for the
    server, and `roots` are the folders that it may know of. What is not given here is not offered to the
    server.

    `headers` and `auth` (a token, or an `OAuth`) are for a URL, `env` and `cwd` for a command. A command gets
    `PATH` and a few more variables of this process; with `inherit_env` it gets all of them. `era` is found
    out unless it is given; `revision` is the legacy one to ask for. With `log_level`, the server's log comes
    as items of calls, and to `on_log` where it belongs to none. `give_up_after` is how many seconds a call
    waits for a server that cannot be reached; `None` is for ever.
    """
    if not isinstance(target, Target):
        target = target_of(target, headers=headers, auth=auth, env=env, inherit_env=inherit_env, cwd=cwd)
    options = Options(era, revision, log_level, on_log, give_up_after, info or INFO)
    return Client(target, Answering(answer, sample, roots, by_hand=by_hand), options)


class Client:
    """An MCP server, whatever it speaks. Use it with `async with`."""

    def __init__(self, target: Target, answering: Answering, options: Options) -> None:
        self._target = target
        self.answering = answering
        self._options = options
        self._reconnect = Reconnect(target, self, self._opened, options)
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._header_params = HeaderParams() if target.has_headers else None
        self._cache = Cache(self._fetch, self._header_params)
        self._changes = ServerChanges(self, self._cache)

    # --- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and stay connected until `close`. Raises what the first try fails with."""
        self._closing = False
        await self._reconnect.open()

    def keep_open(self) -> None:
        """Connect, as often as it takes, and stay connected until `close`."""
        self._closing = False
        self._reconnect.keep_open()

    async def close(self) -> None:
        """Let go of the server; what still runs fails."""
        self._closing = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=FAREWELL)
            if self._farewells:
                await asyncio.wait(self._farewells, timeout=FAREWELL)
        finally:
            await self._reconnect.close()  # also if a handler of one of these tasks has asked for the end
        left = [*(task for task in tasks if not task.done()), *self._farewells]
        if left:
            await asyncio.wait(left)

    async def session(self) -> ClientSession:
        """The session that is open now, or soon. Raises `Unreachable`."""
        return await self._reconnect.session()

    async def _opened(self, session: ClientSession) -> None:
        self._cache.stale()
        await self._changes.reopened(session)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for a call, owned by this client; if that is closed meanwhile, it is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        if self._closing:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def abandon(self, about: About, params: bytes, handle: Handle) -> None:
        """Nobody comes back for a call that waits at the server: it is ended there, if there is a session."""
        session = self._reconnect.current
        if session is not None and session.ended is None:
            task = asyncio.get_running_loop().create_task(_told(refuse(session, about, params, handle)))
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)

    shared = False
    """Whether its calls are of several callers, none of whom may see what belongs to another."""

    # --- what the server is ------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether there is a session now."""
        return self._reconnect.connected

    @property
    def failure(self) -> MidcallError | None:
        """Why there is no session, if there is none."""
        return None if self.connected else self._reconnect.failure

    @property
    def label(self) -> str:
        """The server, as messages name it."""
        return self._target.label

    @property
    def patience(self) -> float | None:
        """For how many seconds a call waits for a server that cannot be reached."""
        return self._options.give_up_after

    @property
    def _handshake(self) -> Handshake:
        session = self._reconnect.current
        return session.handshake if session is not None else Handshake()

    @property
    def modern(self) -> bool:
        """Whether the server speaks the stateless revision."""
        return self._handshake.modern

    @property
    def revision(self) -> str:
        """The revision of MCP that is spoken."""
        return self._handshake.revision

    @property
    def server_info(self) -> dict[str, Any]:
        """The name and version of the server."""
        return self._handshake.server_info

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server can do."""
        return self._handshake.capabilities

    @property
    def instructions(self) -> str | None:
        """What the server tells a model about itself."""
        return self._handshake.instructions

    # --- tools -------------------------------------------------------------------------------

    async def call_tools(
        self,
        calls: Sequence[Mapping[str, Any]],
        timeout: float | None = 30.0,
        parallel: bool = False,
        *,
        limit: int = IN_FLIGHT,
        array: bool = False,
        on_result: OnResult | None = None,
    ) -> list[dict[str, Any]]:
        """Call tools; gives `{"call_id", "success", "result" or "error"}` for each, in the order of the
        calls.

        A call is `{"id", "name", "arguments"}`; ids are made by the caller, and are all different. They are
        called one after the other, or with `parallel` all at once, `limit` at a time. One deadline holds for
        all: what is not there in time has the error `timeout`. `on_result` gets each result as it comes.
        With `array` they go out as one JSON-RPC batch, if the server speaks the one revision that has it.
        """
        batch = ToolBatch(calls, self._make_tool_call, limit=limit if parallel else 1, on_result=on_result)
        began = time.monotonic()
        try:
            session = await in_time(self.session(), timeout, "The server")
        except TimedOut:
            return batch.results("timeout")
        except MidcallError as error:
            return batch.results(str(error))
        left = None if timeout is None else max(0.0, began + timeout - time.monotonic())
        await batch.run(session, left, array=array and session.revision == revisions.BATCHES)
        return batch.results("timeout")

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        answer: Answerer | None = None,
        timeout: float | None = SILENCE,
        meta: Mapping[str, Any] | None = None,
    ) -> Invocation:
        """Call one tool: await it for its `ToolResult`, or iterate it for progress, log and questions too.

        `answer` is asked what this call asks, instead of the client's. `timeout` is for how long the server
        may be silent; while a person thinks, it does not count. `meta` goes into `_meta`.
        """
        about = About("tools/call", name, self._headers(name, arguments))
        return self._invocation(about, tool_params(name, arguments), answer, timeout, meta)

    def resume(
        self, handle: Handle, *, answer: Answerer | None = None, timeout: float | None = SILENCE
    ) -> Invocation:
        """Go on with a call that has asked or become a task, perhaps of a process that is gone.

        The handle is `invocation.handle` as it was then. Raises `ValueError` for what is none.
        """
        params = handle.get("params")
        if not isinstance(params, dict) or not isinstance(handle.get("method"), str):
            raise ValueError(f"This is not the handle of a call: {handle!r}")  # noqa: TRY004  a stored value
        name = str(params.get("name") or params.get("uri") or "")
        about = About(handle["method"], name, self._headers(name, params.get("arguments")))
        return self._invocation(about, to_json(params)[1:-1], answer, timeout, None, handle)

    def _invocation(
        self,
        about: About,
        params: bytes,
        answer: Answerer | None,
        timeout: float | None,
        meta: Mapping[str, Any] | None,
        handle: Handle | None = None,
    ) -> Invocation:
        if answer is not None and not (self.answering.answer or self.answering.by_hand):
            raise ValueError(
                "Use connect(..., by_hand=True): a client says once, when it connects, that it can be asked"
            )
        asks = answer is not None or (self.answering.by_hand and self.answering.answer is None)
        line = ToolLine(self, about, params, asks=asks, silence=timeout, meta=meta, handle=handle)
        return Invocation(line, answer)

    def _make_tool_call(
        self, name: str, arguments: Any, params: bytes, done: Callable[[Outcome], None]
    ) -> ClientCall:
        return ClientCall(self, About("tools/call", name, self._headers(name, arguments)), params, done)

    def _headers(self, name: str, arguments: Any) -> tuple[tuple[str, str], ...]:
        return self._header_params.headers(name, arguments) if self._header_params is not None else ()

    async def better_headers(self, about: About, arguments: Any) -> tuple[tuple[str, str], ...]:
        """The headers for a call of a tool that was refused for them, after another look at the tools."""
        if self._headers(about.name, arguments) == about.headers:
            self._cache.stale("tools")
        await self._cache.get("tools")
        return self._headers(about.name, arguments)

    # --- what else a server offers -----------------------------------------------------------

    async def tools(self) -> list[dict[str, Any]]:
        """The tools, as MCP lists them; from the cache while that holds."""
        return await self._list("tools")

    async def prompts(self) -> list[dict[str, Any]]:
        """The prompts, as MCP lists them."""
        return await self._list("prompts")

    async def resources(self) -> list[dict[str, Any]]:
        """The resources, as MCP lists them."""
        return await self._list("resources")

    async def templates(self) -> list[dict[str, Any]]:
        """The templates of resources, as MCP lists them."""
        return await self._list("templates")

    async def request_schema(self) -> dict[str, Any]:
        """One JSON Schema for the calls of all tools of the server: `{"name", "arguments"}`."""
        from midcall.client.toolbox import request_schema  # noqa: PLC0415  seldom needed

        return request_schema(await self.tools())

    async def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise `MethodNotFound` or `InvalidArguments` if a call does not fit what the server lists."""
        from midcall.client.toolbox import check_call  # noqa: PLC0415  as above

        check_call(await self.tools(), name, arguments)

    async def _list(self, part: Any) -> list[dict[str, Any]]:
        session = await self.session()
        capability = "resources" if part == "templates" else part
        if capability not in session.handshake.capabilities:
            return []
        if session.modern:
            await self._changes.listen()
        return await self._cache.get(part)

    async def read(self, uri: str, *, timeout: float | None = SILENCE) -> list[dict[str, Any]]:
        """The contents of a resource, as MCP gives them."""
        result = await self.settle(About("resources/read", uri), {"uri": uri}, timeout)
        return objects_in(result.get("contents"))

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = SILENCE
    ) -> dict[str, Any]:
        """A prompt, as MCP gives it: `messages`, and perhaps a `description`."""
        params = {"name": name, "arguments": dict(arguments or {})}
        return await self.settle(About("prompts/get", name), params, timeout)

    async def complete(
        self, ref: Mapping[str, Any], argument: str, value: str, context: Mapping[str, str] | None = None
    ) -> list[str]:
        """Values for an argument that is being typed. `ref` says of what, as MCP does."""
        params: dict[str, Any] = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        completion = (await self.request("completion/complete", params)).get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [str(one) for one in values] if isinstance(values, list) else []

    async def subscribe(self, uri: str, handler: Updated) -> None:
        """Call the handler with the URI whenever this resource has changed."""
        await self._changes.add(uri, handler)

    async def unsubscribe(self, uri: str) -> None:
        """Hear of this resource no more."""
        await self._changes.remove(uri)

    def on_change(self, watcher: Callable[[str], None]) -> None:
        """Call this with `tools`, `prompts` or `resources` when the server says that the list has changed."""
        self._changes.on_change.append(watcher)

    async def ping(self, timeout: float = 5.0) -> bool:
        """Whether the server answers."""
        try:
            async with asyncio.timeout(timeout):
                try:
                    await self._ping()
                except TransportLost:  # on a connection that was about to be closed: twice does no harm
                    await self._ping()
        except (MidcallError, TimeoutError):
            return False
        return True

    async def _ping(self) -> None:
        session = await self.session()
        await session.request("server/discover" if session.modern else "ping")

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = SILENCE
    ) -> dict[str, Any]:
        """Any request; gives the result as it came. Raises `RemoteError`."""
        wanted = dict(params or {})
        about = About(method, str(wanted.get("name") or wanted.get("uri") or wanted.get("taskId") or ""))
        found: dict[str, Any] = await in_time(self.settle(about, wanted, None), timeout, method)
        return found

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        (await self.session()).notify(method, dict(params or {}))

    async def settle(self, about: About, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        """A request that may take rounds, to its result."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def settled(outcome: Outcome) -> None:
            if not done.done():  # whoever waited may have been cancelled in the same turn
                done.set_result(outcome)

        call = ClientCall(self, about, to_json(dict(params))[1:-1], settled, silence=timeout)
        try:
            call.start(await self.session())
            outcome = await done
        except asyncio.CancelledError:
            call.cancel("The caller gave up")
            raise
        if isinstance(outcome, MidcallError):
            raise outcome
        return outcome

    async def _fetch(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self.request(method, params)

    # --- what the server wants, by its session -----------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        """The name and version of this client."""
        return dict(self._options.info)

    def capabilities_for(self, *, modern: bool) -> dict[str, Any]:
        """What this client can do for the server."""
        return self.answering.capabilities(modern=modern)

    async def asked(self, method: str, params: dict[str, Any], related: Waiter | None) -> dict[str, Any]:
        """Answer a request of the server; `related` is the request that caused it, if that is known."""
        if not isinstance(related, Exchange):
            return await self.answering.asked(method, params)
        call = _call_of(related)
        with related.asking(method, params):
            return await self.answering.asked(method, params, None if call is None else call.asker)

    def cause(self) -> Waiter | None:
        """The call that a question belongs to, where the server does not say.

        If it is the only one, that is clear. If there are several, the client's own handler is asked; where
        it has none, the newest call whose reader takes questions.
        """
        session = self._reconnect.current
        waiting = session.waiting if session is not None else ()
        found = [(one, call) for one in waiting if (call := _call_of(one)) and call.about.method in ASKING]
        if len(found) == 1:
            return found[0][0]
        if self.answering.answer is not None:
            return None
        return next((one for one, call in reversed(found) if call.asker is not None), None)

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        """A notification that belongs to no request."""
        if method == "notifications/message" and self._options.on_log is not None:
            try:
                self._options.on_log(params)
            except Exception:
                log.exception("on_log failed")
        else:
            self._changes.noticed(method, params)

    def lost(self, session: ClientSession, error: MidcallError) -> None:
        """The line of a session is gone; all its requests have failed already."""
        self._reconnect.lost(session, error)


def _call_of(waiter: Waiter | None) -> ClientCall | None:
    owner = waiter.owner if isinstance(waiter, Exchange) else None
    return owner if isinstance(owner, ClientCall) else None


async def _told(farewell: Coroutine[Any, Any, None]) -> None:
    try:
        await farewell
    except MidcallError as error:
        log.info("a call was not ended at its server: %s", error)

"""Client: what a caller of an MCP server meets. `connect` makes one.

It keeps a session open: a lost one is opened again with growing pauses. A request that is known not to have
reached the server is sent again; one that may have fails, as doing it twice may be worse than not knowing.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from midcall.client.answering import Answering
from midcall.client.batch import Batch, OnResult
from midcall.client.cache import Cache
from midcall.client.calling import Calling, Handle, Outcome
from midcall.client.line import ToolLine
from midcall.client.mirrored import Mirrored
from midcall.client.session import Era, Session, Waiter, in_time
from midcall.client.subscriptions import Subscriptions, Updated
from midcall.client.targets import Target
from midcall.client.wire import About
from midcall.errors import MidcallError, TimedOut, TransportLost, Unreachable
from midcall.invocation import Answerer, Invocation
from midcall.items import to_json
from midcall.mcp import revisions
from midcall.version import __version__

log = logging.getLogger("midcall.client")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0

STARTING = 60.0
"""Seconds that a server has to start and to say what it speaks; some are installed when first started."""

SILENCE = 300.0
"""Seconds that a server may say nothing about a call, not even progress, before it is given up."""

IN_FLIGHT = 256
"""How many calls of a parallel batch are on their way at once."""


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


class Client:
    """An MCP server, whatever it speaks. Use it with `async with`."""

    def __init__(self, target: Target, answering: Answering, options: Options) -> None:
        self._target = target
        self.answering = answering
        self._options = options
        self._era: Era = options.era
        self._session: Session | None = None
        self._opened = asyncio.Event()
        self._lost = asyncio.Event()
        self._failure: MidcallError | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._mirrored = Mirrored() if target.has_headers else None
        self._cache = Cache(self._fetch, self._mirrored)
        self._subscriptions = Subscriptions(self, self._cache)

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
        await self._connect()
        self.keep_open()

    def keep_open(self) -> None:
        """Connect, as often as it takes, and stay connected until `close`."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_open())

    async def close(self) -> None:
        """Let go of the server; what still runs fails."""
        tasks = [*self._tasks, *([self._keeper] if self._keeper is not None else [])]
        self._keeper = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        session, self._session = self._session, None
        self._opened.clear()
        if session is not None:
            await session.close()

    async def _keep_open(self) -> None:
        pause = FIRST_PAUSE
        while True:
            if self._session is None:
                try:
                    await self._connect()
                    pause = FIRST_PAUSE
                except MidcallError as error:
                    log.info("%s; trying again in %.1f s", error, pause)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter, no secret
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
            await self._lost.wait()
            session, self._session = self._session, None
            if session is not None:
                await session.close()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  as above

    async def _connect(self) -> None:
        """Try once to have a session."""
        self._lost.clear()
        try:
            session = await self._new_session(self._era)
        except TransportLost as error:
            # Some servers end at a greeting that they do not know.
            if self._era != "auto":
                raise self._unreachable(error) from None
            try:
                session = await self._new_session("legacy")
            except MidcallError as second:
                raise self._unreachable(second) from None
        except MidcallError as error:
            if self._era != self._options.era:
                self._era = self._options.era  # it may have become another server
            raise self._unreachable(error) from None
        self._era = "modern" if session.modern else "legacy"
        self._session = session
        self._failure = None
        self._cache.stale()
        self._opened.set()
        await self._subscriptions.reopened(session)

    async def _new_session(self, era: Era) -> Session:
        session = Session(self._target.wire(), self, log_level=self._options.log_level)
        try:
            await in_time(session.open(era, self._options.revision), STARTING, self._target.label)
        except BaseException:
            await session.close()
            raise
        return session

    def _unreachable(self, error: MidcallError) -> MidcallError:
        self._failure = error
        if isinstance(error, Unreachable):
            return error
        return Unreachable(f"{self._target.label} cannot be used: {error}")

    async def session(self) -> Session:
        """The session that is open now, or soon. Raises `Unreachable`."""
        session = self._session
        if session is not None and session.ended is None:
            return session
        if self._keeper is None:
            raise Unreachable("This client is closed")
        try:
            async with asyncio.timeout(self._options.give_up_after):
                while self._session is None or self._session.ended is not None:
                    self._opened.clear()
                    await self._opened.wait()
        except TimeoutError:
            why = f": {self._failure}" if self._failure is not None else ""
            raise Unreachable(f"{self._target.label} cannot be reached{why}") from None
        return self._session

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for a call, owned by this client."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- what the server is ------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether there is a session now."""
        return self._session is not None and self._session.ended is None

    @property
    def failure(self) -> MidcallError | None:
        """Why there is no session, if there is none."""
        return None if self.connected else self._failure

    @property
    def label(self) -> str:
        """The server, as messages name it."""
        return self._target.label

    @property
    def modern(self) -> bool:
        """Whether the server speaks the stateless revision."""
        return self._session is not None and self._session.modern

    @property
    def revision(self) -> str:
        """The revision of MCP that is spoken."""
        return self._session.revision if self._session is not None else ""

    @property
    def server_info(self) -> dict[str, Any]:
        """The name and version of the server."""
        return self._session.greeting.server_info if self._session is not None else {}

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server can do."""
        return self._session.greeting.capabilities if self._session is not None else {}

    @property
    def instructions(self) -> str | None:
        """What the server tells a model about itself."""
        return self._session.greeting.instructions if self._session is not None else None

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
        batch = Batch(calls, self._make_tool_call, limit=limit if parallel else 1, on_result=on_result)
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
        self._check_can_ask(answer)
        params = _tool_params(name, arguments)
        about = About("tools/call", name, self._headers(name, arguments))
        return self._invocation(about, params, answer, timeout, meta)

    def resume(
        self, handle: Handle, *, answer: Answerer | None = None, timeout: float | None = SILENCE
    ) -> Invocation:
        """Go on with a call that has asked or become a task, perhaps of a process that is gone.

        The handle is `invocation.handle` as it was then.
        """
        self._check_can_ask(answer)
        params = handle["params"]
        about = About(handle["method"], str(params.get("name") or params.get("uri") or ""))
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
        def make(done: Any, report: Any, asker: Any) -> Calling:
            inside = to_json(dict(meta))[1:-1] if meta else b""
            calling = Calling(
                self, about, params, done, asker=asker, report=report, silence=timeout, meta=inside
            )
            calling.handle = handle
            return calling

        asks = answer is not None or (self.answering.by_hand and self.answering.answer is None)
        return Invocation(ToolLine(about.name, make, self._start, asks=asks), answer)

    def _check_can_ask(self, answer: Answerer | None) -> None:
        if answer is not None and not (self.answering.answer or self.answering.by_hand):
            raise ValueError("Say connect(..., by_hand=True) first: servers are told once that they may ask")

    def _make_tool_call(self, name: str, arguments: Any, done: Callable[[Outcome], None]) -> Calling:
        about = About("tools/call", name, self._headers(name, arguments))
        return Calling(self, about, _tool_params(name, arguments), done)

    def _headers(self, name: str, arguments: Any) -> tuple[tuple[str, str], ...]:
        return self._mirrored.headers(name, arguments) if self._mirrored is not None else ()

    async def _start(self, calling: Calling) -> None:
        calling.start(await self.session())

    def again(self, calling: Calling, error: MidcallError) -> None:
        """Start a call once there is a line again, as this one did not reach the server."""
        self.spawn(self._again(calling, error))

    async def _again(self, calling: Calling, error: MidcallError) -> None:
        now, limit = time.monotonic(), self._options.give_up_after
        if not calling.tries:
            calling.first_failed = now
        if limit is not None and now - calling.first_failed > limit:
            calling.give_up(error)
            return
        await asyncio.sleep(min(FIRST_PAUSE * 2**calling.tries, LONGEST_PAUSE))
        calling.tries += 1
        try:
            calling.start(await self.session())
        except MidcallError as gone:
            calling.give_up(gone)

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
        """What a request to this server looks like (`{"method", "params"}`), made from all that it lists."""
        from midcall.client.request_schema import request_schema  # noqa: PLC0415  seldom needed

        return request_schema(
            await self.tools(), await self.resources(), await self.templates(), await self.prompts()
        )

    async def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise `MethodNotFound` or `InvalidArguments` if a call does not fit what the server lists."""
        from midcall.client.request_schema import check_call  # noqa: PLC0415  as above

        check_call(await self.tools(), name, arguments)

    async def _list(self, part: Any) -> list[dict[str, Any]]:
        session = await self.session()
        capability = "resources" if part == "templates" else part
        if capability not in session.greeting.capabilities:
            return []
        if session.modern:
            self._subscriptions.listen()
        return await self._cache.get(part)

    async def read(self, uri: str, *, timeout: float | None = SILENCE) -> list[dict[str, Any]]:
        """The contents of a resource, as MCP gives them."""
        result = await self.settle(About("resources/read", uri), {"uri": uri}, timeout)
        return list(result.get("contents", ()))

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
        result = await self.request("completion/complete", params)
        return [str(one) for one in result.get("completion", {}).get("values", ())]

    async def subscribe(self, uri: str, handler: Updated) -> None:
        """Call the handler with the URI whenever this resource has changed."""
        await self._subscriptions.add(uri, handler)

    async def unsubscribe(self, uri: str) -> None:
        """Hear of this resource no more."""
        await self._subscriptions.remove(uri)

    def on_change(self, watcher: Callable[[str], None]) -> None:
        """Call this with `tools`, `prompts` or `resources` when the server says that the list has changed."""
        self._subscriptions.on_change.append(watcher)

    async def ping(self, timeout: float = 5.0) -> bool:
        """Whether the server answers."""
        try:
            async with asyncio.timeout(timeout):
                session = await self.session()
                await session.request("server/discover" if session.modern else "ping")
        except (MidcallError, TimeoutError):
            return False
        return True

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = SILENCE
    ) -> dict[str, Any]:
        """Any request; gives the result as it came. Raises `RemoteError`."""
        about = About(method, str((params or {}).get("name") or (params or {}).get("uri") or ""))
        session = await self.session()
        work = session.request(method, to_json(dict(params or {}))[1:-1], about)
        found: dict[str, Any] = msgspec.json.decode(await in_time(work, timeout, method))
        return found

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        (await self.session()).notify(method, dict(params or {}))

    async def settle(self, about: About, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        """A request that may take rounds, to its result."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        calling = Calling(self, about, to_json(dict(params))[1:-1], done.set_result, silence=timeout)
        await self._start(calling)
        try:
            outcome = await done
        except asyncio.CancelledError:
            calling.cancel("The caller gave up")
            raise
        if isinstance(outcome, MidcallError):
            raise outcome
        return outcome

    async def _fetch(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self.request(method, params)

    # --- what the server wants (as its `Host`) -----------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._options.info)

    def capabilities_for(self, *, modern: bool) -> dict[str, Any]:
        return self.answering.capabilities(modern=modern)

    async def asked(self, method: str, params: dict[str, Any], related: Waiter | None) -> dict[str, Any]:
        calling = related if isinstance(related, Calling) else self._asking()
        if calling is None:
            return await self.answering.asked(method, params)
        found: dict[str, Any] = await calling.while_asked(self.answering.asked(method, params, calling.asker))
        return found

    def _asking(self) -> Calling | None:
        """The call that a question belongs to, where the server does not say.

        If it is the only one, that is clear. If there are several, the client's own handler is asked; where
        it has none, the newest call whose reader takes questions.
        """
        waiting = self._session.waiting if self._session is not None else ()
        calls = [one for one in waiting if isinstance(one, Calling)]
        if len(calls) == 1:
            return calls[0]
        if self.answering.answer is not None:
            return None
        return next((one for one in reversed(calls) if one.asker is not None), None)

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/message" and self._options.on_log is not None:
            self._options.on_log(params)
        else:
            self._subscriptions.noticed(method, params)

    def lost(self, error: MidcallError) -> None:
        self._failure = error
        self._opened.clear()
        self._lost.set()


def _tool_params(name: str, arguments: Any) -> bytes:
    """The inside of the parameters of `tools/call`."""
    return b'"name":%b,"arguments":%b' % (to_json(name), to_json(arguments) if arguments else b"{}")

"""PostgreSQL, as far as it can be reached: connections, patience, and words for what went wrong.

When the database goes away, what is asked for is tried again for a while, and then refused with a
`JournalError`. So a restart is hardly noticed. What was under way when the line broke may have been done or
not; whoever asks is told that it is tried `again`, and must be able to tell.

Knows no table. What a server says of values is not repeated: values are nobody's business.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import asyncpg

from midcall.errors import JournalError
from midcall.journal.commit import CommitTask, StoreAway
from midcall.journal.trouble import trouble

if TYPE_CHECKING:
    from asyncpg.pool import Pool, PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

P = ParamSpec("P")
T = TypeVar("T")
Ask = TypeVar("Ask")
S = TypeVar("S", bound="OnReach")

CONNECTING = 5.0
"""Seconds that a connection may take to be made."""

ANSWERING = 30.0
"""Seconds that a statement may take."""

CLOSING = 2.0
"""Seconds that connections may take to be closed in good order."""

SETTINGS = {
    "jit": "off",  # takes longer than any of our statements
    "plan_cache_mode": "force_generic_plan",  # they find rows by their keys, however many are asked for
    # A plan from when the tables were empty must not go through all of them when they have grown.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "random_page_cost": "1.1",
    # A process that is stopped in the middle of a transaction does not keep others from its rows for ever.
    "idle_in_transaction_session_timeout": "15s",
}

# What is said to be written is on the disk, also where the server is set up to be hasty.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', {local})"
    " WHERE current_setting('synchronous_commit') = 'off'"
)

BROKEN = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Whatever a statement can fail with. What takes too long is an `OSError` too."""

_AWAY = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_ONCE_MORE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class _PooledConnection(asyncpg.Connection):
    """One that is not cleaned when it is given back, by a round trip: nothing of ours stays on it."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        return ""


class Reach:
    """The connections of one worker: with `pooled`, through a pooler that deals out transactions."""

    def __init__(self, dsn: str, *, connections: int, patience: float, pooled: bool) -> None:
        self._dsn = dsn
        self._connections = connections
        self._patience = patience
        self._pooled = pooled
        self._settings = [*SETTINGS.items(), ("lock_timeout", f"{max(patience, 0.1) * 1000:.0f}ms")]
        self._pool: Pool[asyncpg.Record] | None = None
        self._queues: dict[object, tuple[CommitTask[Any], asyncio.Task[None]]] = {}

    async def open(self) -> None:
        """Get ready. Connections are made when they are needed."""
        self._pool = asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self._connections,
            connection_class=_PooledConnection,
            timeout=CONNECTING,
            command_timeout=ANSWERING,
            statement_cache_size=0 if self._pooled else 100,
            server_settings={"application_name": "midcall"},
            init=None if self._pooled else self._set,
        )
        await self._pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        running = [task for _, task in self._queues.values()]
        self._queues.clear()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        if pool is not None:
            with contextlib.suppress(*BROKEN):
                async with asyncio.timeout(CLOSING):
                    await pool.close()
            pool.terminate()

    async def run(self, work: "Callable[[Connection, bool], Awaitable[T]]") -> T:
        """Do something on a connection, as soon as there is one; `work` is told if it may have been done."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        pause = 0.01
        maybe = False
        while True:
            begun = False
            try:
                async with self._connection() as connection:
                    begun = True
                    return await self._do(connection, work, maybe)
            except _ONCE_MORE as error:
                if loop.time() > until:
                    raise explain(error) from error
            except _AWAY as error:
                if isinstance(error, ValueError):  # a value that it cannot take, a wrong DSN
                    raise explain(error) from error
                maybe = maybe or begun
                if loop.time() > until:
                    raise StoreAway(str(explain(error)), maybe=maybe) from error
            except asyncpg.PostgresError as error:
                raise explain(error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def together(
        self,
        work: "Callable[[Connection, Sequence[Ask], bool], Awaitable[Sequence[Any]]]",
        ask: Ask,
        *,
        key: str,
        size: int = 0,
        undo: Callable[[Any], Awaitable[None]] | None = None,
    ) -> Any:
        """Have something done with what others ask of the same `work` meanwhile (see `CommitQueue.do`)."""
        if self._pool is None:
            raise _not_open()
        if work not in self._queues:
            queue: CommitTask[Ask] = CommitTask(
                lambda asked: self.run(lambda connection, again: work(connection, asked, again))
            )
            self._queues[work] = queue, asyncio.create_task(queue.run())
        return await self._queues[work][0].do(ask, key=key, size=size, undo=undo)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator["Connection"]:
        """A connection of the pool. One that is left in the middle of a statement is not used again."""
        pool = self._pool
        if pool is None:
            raise _not_open()
        async with asyncio.timeout(max(self._patience, CONNECTING)):  # all of them may stand still
            connection = await pool.acquire()
        try:
            with _dropped_midway(connection):
                yield connection
        finally:
            await pool.release(connection)

    async def _set(self, connection: "Connection") -> None:
        """A pooler refuses settings that are made at the start, so they are made here."""
        how = "SET LOCAL" if self._pooled else "SET"
        settings = [f"{how} {name} = '{value}'" for name, value in self._settings]
        with _dropped_midway(connection):
            await connection.execute("; ".join([*settings, _DURABLE.format(local=self._pooled)]))

    async def _do(
        self, connection: "Connection", work: "Callable[[Connection, bool], Awaitable[T]]", maybe: bool
    ) -> T:
        if not self._pooled:
            return await work(connection, maybe)
        # Behind a pooler only a transaction is sure to stay on one session, which has other settings.
        async with transaction(connection):
            await self._set(connection)
            return await work(connection, maybe)


def _not_open() -> JournalError:
    return JournalError("The journal is not open")


class OnReach(Protocol):
    """What has methods that are work on a connection (`on_connection`)."""

    @property
    def reach(self) -> Reach: ...


def on_connection(
    work: "Callable[Concatenate[S, Connection, P], Awaitable[T]]",
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes of a method that is work on a connection one that gets the connection itself."""

    async def done(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.reach.run(lambda connection, _: work(self, connection, *args, **kwargs))

    return done


@contextlib.asynccontextmanager
async def transaction(connection: "Connection") -> AsyncIterator[None]:
    """All of it or nothing. One that is given up ends with its connection: nobody waits for its rollback."""
    block = connection.transaction()
    with _dropped_midway(connection):
        await block.start()
        try:
            yield
        except (asyncio.CancelledError, TimeoutError):
            raise
        except BaseException:
            await block.rollback()
            raise
        await block.commit()


@contextlib.contextmanager
def _dropped_midway(connection: "Connection") -> Iterator[None]:
    """Drop a connection on which a statement was given up.

    The pool would wait until the server has confirmed that, and one that stands still never does.
    """
    try:
        yield
    except (asyncio.CancelledError, TimeoutError):
        with contextlib.suppress(asyncpg.InterfaceError):  # it is gone already
            connection.terminate()
        raise
    except (RuntimeError, AttributeError) as error:  # of uvloop or asyncpg, about a socket that is closed
        if not _is_gone(connection):
            raise
        raise asyncpg.InterfaceError(f"the connection was lost: {error}") from error


def _is_gone(connection: "Connection") -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken it back
        return True


def explain(error: Exception) -> JournalError:
    """What went wrong, in words for callers; whoever runs the database finds the rest in the log."""
    match error:
        case asyncpg.DiskFullError():
            said, final = "PostgreSQL has no space left on its disk", False
        case asyncpg.ReadOnlySQLTransactionError():
            said, final = "PostgreSQL is read-only: give the address of the primary server", False
        case asyncpg.InsufficientPrivilegeError():
            said, final = "PostgreSQL does not let this user", True
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            said, final = "PostgreSQL does not know this user", True
        case asyncpg.InvalidCatalogNameError():
            said, final = "PostgreSQL has no such database", True
        case asyncpg.LockNotAvailableError():
            said, final = "Somebody else keeps rows of the journal locked in PostgreSQL", False
        case (
            asyncpg.PostgresConnectionError()
            | OSError()
            | asyncpg.InterfaceError()
            | asyncpg.InternalClientError()
        ):
            said, final = "PostgreSQL cannot be reached", False
        case _:
            said, final = "PostgreSQL could not do it", False
    why: Any = error.args[0] if error.args and not isinstance(error, OSError) else error
    if isinstance(error, ValueError) and not isinstance(error, asyncpg.ClientConfigurationError):
        why = type(error).__name__  # the rest would be a value that it cannot take
    return trouble(said, "PostgreSQL", str(why) or type(error).__name__, final=final)

"""Segments as workflows of DBOS Transact, on the PostgreSQL of the journal: `--engine dbos`.

A workflow is one segment: it begins when the segment is claimed, and ends when it is settled. Its body only
waits for that, as the call itself lives in the event loop of the hub; so nothing of a call is in DBOS that
is not in the journal, and while a person thinks, DBOS holds nothing of it.

An executor of DBOS has the name of a worker of the journal, and is gone when that is: its advisory lock
says so. Any live worker then hands its workflows back to the queue of DBOS, which gives each to one worker:
the body claims the segment there, and runs it to its end. That may be done by several at once, and to
workflows that are long over: the journal's claim decides.

DBOS gets a thread with an event loop of its own. It keeps to one of each in a process, and makes its
threads the default ones of the loop that it is called from.
"""

import asyncio
import contextlib
import contextvars
import itertools
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID, error
from dbos._serialization import DBOSDefaultSerializer
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from midcall.errors import JournalError, TooManyCalls
from midcall.journal.contract import CallRecord
from midcall.journal.dialect import PAUSES, Detached
from midcall.journal.postgres import PostgresJournal
from midcall.journal.trouble import trouble

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls

T = TypeVar("T")

log = logging.getLogger("midcall.journal")

NAME = "midcall"
"""The application, as DBOS calls it, and its version, always the same: replay tells whether code fits."""

WORKFLOW = "midcall.segment"

CONNECTIONS = 8
"""How many connections DBOS has to the database, and how many threads that use them."""

PATIENCE = 5.0
"""Seconds that a segment waits for its workflow to be written down; DBOS itself would wait for ever."""

CLOSING = 2.0
"""Seconds that are left, at the end of the process, to write that workflows have ended."""

IDLE = "15s"
"""How long a transaction of DBOS may stand still before PostgreSQL ends it."""

KEPT = 3600.0
"""Seconds that a workflow is kept that has ended, for people who look into DBOS."""

TIDY = 60.0
"""Seconds between two looks for workflows that are kept no longer."""

_FAULTS = (error.DBOSException, SQLAlchemyError)
_UNENDED = ["PENDING", "ENQUEUED"]
_ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


class DbosEngine:
    """DBOS in this process, for the durable calls of a journal in PostgreSQL."""

    def __init__(self, journal: PostgresJournal, url: str, *, schema: str = "midcall_dbos") -> None:
        self._journal = journal
        self._url = url
        self._schema = schema
        """Of the tables of DBOS: not its usual one, which may be that of another program."""
        self._executor = ""
        self._works: dict[str, Work] = {}
        self._closing = False
        self._tidied = 0.0

    async def open(self, durable: "DurableCalls") -> None:
        """Make it ready, once the journal is. Raises `JournalError`."""
        self._durable = durable
        self._home = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="midcall-dbos", daemon=True)
        self._thread.start()
        try:
            await self._there(self._launch())
        except BaseException:
            await asyncio.to_thread(self._end_loop)
            raise

    async def close(self) -> None:
        """Let go of it. What has not ended is for others to go on with."""
        self._closing = True
        logging.getLogger("dbos").setLevel(
            logging.CRITICAL
        )  # it tells of each workflow that is left to others
        for work in self._works.values():
            work.ended.cancel()
        await self._there(self._last_words())
        destroy = asyncio.create_task(asyncio.to_thread(DBOS.destroy, destroy_registry=True))
        _, left = await asyncio.wait((destroy,), timeout=CLOSING)
        if left:
            log.warning("DBOS does not end: its database is away")
        else:
            await asyncio.to_thread(self._end_loop)

    def work(self, record: CallRecord) -> "Work":
        """The workflow of a segment that this worker has claimed."""
        return Work(self, f"{record.id}:{record.segment}:{record.fence}", record.id, record.segment)

    async def look_after(self, due: Sequence[CallRecord]) -> Sequence[CallRecord]:
        """Go on with the workflows of workers that are gone. Raises `JournalError`.

        Of calls that are `due`, gives those that it has no workflow of: they are left to the sweeper.
        """
        try:
            await self._recover(
                [record for record in due if record.status == "running" and record.owner is not None]
            )
            known = await self._known([record for record in due if record.status == "running"])
            if time.monotonic() - self._tidied > TIDY:
                self._tidied = time.monotonic()
                await self._tidy()
        except _FAULTS as fault:
            raise trouble("DBOS could not do it", "DBOS", fault) from fault
        return [record for record in due if f"{record.id}:{record.segment}" not in known]

    # --- a workflow --------------------------------------------------------------------------

    async def start(self, work: "Work") -> None:
        """Write down that a segment runs."""
        self._works[work.id] = work
        start = asyncio.run_coroutine_threadsafe(self._start(work), self._loop)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(asyncio.wrap_future(start))  # once it is written, its body must run
        except (TimeoutError, *_FAULTS) as fault:
            why = str(fault) or "it does not answer"
            log.warning("DBOS does not know of a segment: %s", why, extra={"call": work.call_id})

    async def run(self, workflow_id: str, call_id: str, segment: int) -> None:
        """The body of a workflow, on the hub's own loop. If it is cancelled, others are to go on with it."""
        if self._closing:
            raise asyncio.CancelledError
        work = self._works.get(workflow_id)
        if work is None:
            work = self._works[workflow_id] = Work(self, workflow_id, call_id, segment, known=True)
            await self._take_over(work)
        try:
            await work.ended
        finally:
            self._works.pop(workflow_id, None)

    async def _take_over(self, work: "Work") -> None:
        """The workflow was that of a worker which is gone. If the journal is away, wait until it is back."""
        for tries in itertools.count():
            try:
                claimed = await self._durable.claim(work.call_id, work.segment, work=work)
                break
            except JournalError as fault:
                log.warning("cannot take over yet: %s", fault, extra={"call": work.call_id})
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            if self._closing:
                raise asyncio.CancelledError
        if not isinstance(claimed, Detached):
            work.end()  # somebody else goes on with it, or it is over
            return
        try:
            self._durable.resume(claimed)
        except TooManyCalls as fault:
            log.warning("cannot take over: %s", fault, extra={"call": work.call_id})
            work.end()

    # --- looking after -----------------------------------------------------------------------

    async def _recover(self, due: Sequence[CallRecord]) -> None:
        """Hand back the workflows of executors whose worker is gone, or stands still."""
        found = await self._there(
            DBOS.list_workflows_async(status="PENDING", load_input=False, load_output=False)
        )
        executors = {one.executor_id for one in found if one.executor_id is not None} - {self._executor}
        if executors:
            living = await self._journal.living(sorted(executors))
            gone = (executors - living) | (executors & {str(record.owner) for record in due})
            if gone:
                await self._there(asyncio.to_thread(_hand_back, sorted(gone)))

    async def _known(self, running: Sequence[CallRecord]) -> set[str]:
        """Which of these segments have a workflow that goes on with them."""
        if not running:
            return set()
        found = await self._there(
            DBOS.list_workflows_async(
                status=_UNENDED,
                workflow_id_prefix=[f"{record.id}:{record.segment}:" for record in running],
                load_input=False,
                load_output=False,
            )
        )
        return {one.workflow_id.rpartition(":")[0] for one in found}

    async def _tidy(self) -> None:
        before = datetime.fromtimestamp(time.time() - KEPT, UTC).isoformat()
        old = await self._there(
            DBOS.list_workflows_async(
                status=_ENDED, end_time=before, limit=10_000, load_input=False, load_output=False
            )
        )
        if old:
            await self._there(DBOS.delete_workflows_async([one.workflow_id for one in old]))

    # --- the thread of DBOS ------------------------------------------------------------------

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the thread of DBOS."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _launch(self) -> None:
        self._executor = self._journal.worker
        logger = logging.getLogger("dbos")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())  # else it writes to standard error by itself
        config: DBOSConfig = {
            "name": NAME,
            "application_version": NAME,
            "executor_id": self._executor,
            "system_database_url": with_time_limit(self._url),
            "dbos_system_schema": self._schema,
            "sys_db_pool_size": CONNECTIONS,
            "max_executor_threads": CONNECTIONS,
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "ERROR",  # while the database is away, it would say so ten times a second
            "enable_otlp": False,
        }
        try:
            if DBOS(config=config)._launched:
                raise JournalError("DBOS is already in use in this process, and can be used only once")
            DBOSDefaultSerializer.deserialize = _refuse_pickle  # type: ignore[assignment, method-assign]
            self._segment = DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)(self._body())
            DBOS.launch()
        except _FAULTS as fault:
            DBOS.destroy(destroy_registry=True)
            raise trouble("DBOS does not start", "DBOS", fault) from fault

    def _body(self) -> Any:
        async def segment(call_id: str, segment: int) -> None:
            ran = self.run(str(DBOS.workflow_id), call_id, segment)
            plain = contextvars.Context()  # what DBOS knows by its context is not for the hub's calls
            await asyncio.wrap_future(plain.run(asyncio.run_coroutine_threadsafe, ran, self._home))

        return segment

    async def _start(self, work: "Work") -> None:
        with SetWorkflowID(work.id):
            await DBOS.start_workflow_async(self._segment, work.call_id, work.segment)

    async def _last_words(self) -> None:
        """Let those workflows that have ended be written down."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=CLOSING)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        with contextlib.suppress(RuntimeError):
            self._loop.close()


class Work:
    """A segment that runs as a workflow."""

    def __init__(
        self, engine: DbosEngine, id: str, call_id: str, segment: int, *, known: bool = False
    ) -> None:
        self.id = id
        self.call_id = call_id
        self.segment = segment
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._known = known
        """Whether there is a workflow."""

    async def begin(self) -> None:
        """Have DBOS know it, before the segment goes on; which it does even if DBOS is away."""
        if not self._known:
            self._known = True
            await self._engine.start(self)

    def end(self) -> None:
        """The segment does not run here any more; once is enough."""
        if not self.ended.done():
            self.ended.set_result(None)


def with_time_limit(url: str) -> str:
    """The address, such that an executor that is stopped in the middle of a transaction loses its locks."""
    made = make_url(url.replace("postgres://", "postgresql://", 1))
    options = f"{made.query.get('options', '')} -c idle_in_transaction_session_timeout={IDLE}".strip()
    rest, _, query = made.update_query_dict({"options": options}).render_as_string(False).rpartition("?")
    return f"{rest}?{query.replace('+', '%20')}"  # libpq does not read a plus as a space


def _refuse_pickle(_: str) -> Any:
    """DBOS reads each row in the way that the row says: one that says pickle would run code."""
    raise ValueError("Pickled values are not read: a database holds data, never code")


def _hand_back(executors: list[str]) -> None:
    """What DBOS' own conductor would do; a workflow that is not theirs any more is left alone."""
    DBOS._recover_pending_workflows(executors)

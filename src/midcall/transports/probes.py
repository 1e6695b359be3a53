"""Probes: what load balancers and monitors ask: whether it can be called, and how it goes.

`/ready` is asked often and by anybody, and `/metrics` may be asked by many: what they need of the journal is
remembered for a moment.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from midcall.errors import JournalError
from midcall.hub import Hub
from midcall.journal.admin import STATUSES
from midcall.journal.durable import durable_calls
from midcall.journal.measured import refused_lately
from midcall.metrics import FOLDER, Metrics
from midcall.version import __version__

PATIENCE = 2.0
"""Seconds that the journal has to answer."""

FRESH = 1.0
"""Seconds for which it is believed that the journal can be reached, or cannot."""

REFUSED = 10.0
"""Seconds for which a refused write counts, if nothing was written since: a full disk may take a little."""

COUNTING = 5.0
"""Seconds that it has to count all its calls."""

COUNTED = 5.0
"""Seconds for which the calls of the journal are not counted again."""

log = logging.getLogger("midcall.journal")

OFTEN = 2.0
"""Seconds after which processes that serve together tell each other what there is."""

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """The probes of one hub."""

    def __init__(self, hub: Hub, metrics: Metrics | None = None) -> None:
        self._hub = hub
        self._metrics = metrics
        self._looking = asyncio.Lock()
        self._looked = 0.0
        self._fault: str | None = None
        self._counting = asyncio.Lock()
        self._counted = 0.0
        self._counts: Mapping[str, int] | None = None

    async def ready(self, request: Request) -> Response:
        """200, or 503 with the reason why no new call should come here."""
        fault = await self._why_not()
        body = {"status": "ready"} if fault is None else {"status": "not ready", "reason": fault}
        return Response(
            msgspec.json.encode(body), 200 if fault is None else 503, media_type="application/json"
        )

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Let the processes that serve together know what there is, as long as this lasts."""
        if self._metrics is None or FOLDER not in os.environ:
            yield
            return
        telling = asyncio.ensure_future(self._tell(self._metrics))
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait((telling,))

    async def _tell(self, metrics: Metrics) -> None:
        while True:
            self._look_here(metrics)
            await asyncio.sleep(OFTEN)

    def _look_here(self, metrics: Metrics) -> None:
        """What there is in this process at this moment."""
        calls, durable = self._hub.calls, self._hub.durable
        metrics.active.set(len(calls))
        metrics.open.set(calls.open_questions)
        metrics.parked.set(0 if durable is None else durable.parked)

    async def metrics(self, request: Request) -> Response:
        """All figures, for Prometheus."""
        from prometheus_client.metrics_core import GaugeMetricFamily  # noqa: PLC0415  an extra

        if self._metrics is None:
            return PlainTextResponse("No figures are kept\n", 404)
        self._look_here(self._metrics)
        info = GaugeMetricFamily("midcall_info", "What runs here.", labels=("version", "hub"))
        info.add_metric((__version__, self._hub.name), 1)
        looked_up = [info]
        if self._hub.durable is not None:
            fault = await self._fault_of_journal()
            up = GaugeMetricFamily("midcall_journal_up", "Whether the journal answers.", value=fault is None)
            looked_up.append(up)
            counts = None if fault is not None else await self._count()
            if counts is not None:
                kept = GaugeMetricFamily("midcall_calls_kept", "Calls in the journal.", labels=("status",))
                for status in STATUSES:
                    kept.add_metric((status,), counts.get(status, 0))
                looked_up.append(kept)
        text = await asyncio.to_thread(self._metrics.text, looked_up)  # of many workers it takes a while
        return Response(text, media_type=TEXT_FORMAT)

    async def _why_not(self) -> str | None:
        durable = self._hub.durable
        if durable is None:
            return None
        if durable.stopping:
            return "The server is closing"
        return await self._fault_of_journal()

    async def _fault_of_journal(self) -> str | None:
        """Why the journal cannot be used; without what only its owner should know."""
        async with self._looking:
            if time.monotonic() - self._looked > FRESH:
                fault = await self._look()
                if fault != self._fault and fault is not None:
                    log.warning("the server is not ready: %s", fault)
                self._fault = fault
                self._looked = time.monotonic()
        return None if self._fault is None else "The journal cannot be reached"

    async def _look(self) -> str | None:
        durable = durable_calls(self._hub)
        try:
            async with asyncio.timeout(PATIENCE):
                await durable.open()
                await durable.journal.probe()
        except TimeoutError:
            return f"the journal does not answer within {PATIENCE:g} seconds"
        except JournalError as error:
            return str(error)
        if refused_lately(durable.journal, REFUSED):
            return "the journal has refused what was to be written"
        return None

    async def _count(self) -> Mapping[str, int] | None:
        """How many calls the journal has; nothing if it does not answer."""
        async with self._counting:
            if time.monotonic() - self._counted > COUNTED:
                try:
                    async with asyncio.timeout(COUNTING):
                        self._counts = await durable_calls(self._hub).journal.count()
                except (TimeoutError, JournalError):
                    self._counts = None
                self._counted = time.monotonic()
            return self._counts

"""Probes: what load balancers and monitors ask: whether it can be called, and how it goes.

`/ready` is asked often and by anybody, and `/metrics` may be asked by many: what they need of the journal is
remembered for a moment.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from midcall.errors import JournalError
from midcall.hub import Hub
from midcall.journal.admin import STATUSES
from midcall.journal.durable import durable_calls
from midcall.journal.measured import refused_lately
from midcall.metrics import Family, by_label, families_of, render, single
from midcall.transports.siblings import Siblings
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

_PRESENT = {
    "midcall_calls_active": "Calls that run, or wait in memory.",
    "midcall_questions_open": "Open questions of those.",
    "midcall_calls_parked": "Those of them that are in the journal, and wait.",
}

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """The probes of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._looking = asyncio.Lock()
        self._looked = 0.0
        self._fault: str | None = None
        self._counting = asyncio.Lock()
        self._counted = 0.0
        self._counts: Mapping[str, int] | None = None
        self.siblings = Siblings(self.present)

    async def ready(self, request: Request) -> Response:
        """200, or 503 with the reason why no new call should come here."""
        fault = await self._why_not()
        body = {"status": "ready"} if fault is None else {"status": "not ready", "reason": fault}
        return Response(
            msgspec.json.encode(body), 200 if fault is None else 503, media_type="application/json"
        )

    def present(self) -> dict[str, int]:
        """What there is at this moment."""
        hub, durable = self._hub, self._hub.durable
        return {
            "midcall_calls_active": len(hub.calls),
            "midcall_questions_open": hub.calls.open_questions,
            "midcall_calls_parked": 0 if durable is None else durable.parked,
        }

    async def metrics(self, request: Request) -> Response:
        """All figures, for Prometheus."""
        hub, durable = self._hub, self._hub.durable
        total, present = self.siblings.figures()
        families = [
            Family(
                "midcall_info", "gauge", "What runs here.", [({"version": __version__, "hub": hub.name}, 1)]
            ),
            *(single(name, "gauge", help, present.get(name, 0)) for name, help in _PRESENT.items()),
        ]
        if durable is not None:
            fault = await self._fault_of_journal()
            families.append(
                single("midcall_journal_up", "gauge", "Whether the journal answers.", fault is None)
            )
            counts = None if fault is not None else await self._count()
            if counts is not None:
                every: dict[str, float] = {status: counts.get(status, 0) for status in STATUSES}
                families.append(
                    by_label("midcall_calls_kept", "gauge", "Calls in the journal.", "status", every)
                )
        return PlainTextResponse(render((*families, *families_of(total))), media_type=TEXT_FORMAT)

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

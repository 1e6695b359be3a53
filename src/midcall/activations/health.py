"""health: is the hub alive, and since when."""

import time

from msgspec import Struct

from midcall.decorators import method


class HealthStatus(Struct, tag_field="type", tag="status"):
    """How the hub is doing."""

    status: str
    uptime_seconds: float
    timestamp: int


class Health:
    """Check the health of the hub."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @method
    async def check(self) -> HealthStatus:
        """Check the health of the hub and return its uptime."""
        return HealthStatus("healthy", round(time.monotonic() - self._started, 3), int(time.time()))

"""A hub that tells what it is told of who calls."""

from typing import Any

from midcall import Hub, Principal, RequestInfo

hub = Hub()


@hub.method
async def told(request: RequestInfo | None, who: Principal | None) -> dict[str, Any]:
    """Tell."""
    return {"request": request, "who": who}

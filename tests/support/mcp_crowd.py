"""A hub with more tools than fit on a page: `mcp_crowd:hub`."""

from typing import Any

from midcall import Hub, method


class Many:
    """More tools than fit on a page."""


def _numbered(number: int) -> Any:
    async def body(self: Many) -> int:
        """Give a number."""
        return number

    body.__name__ = f"tool_{number:04}"
    return method(body)


for _number in range(1001):
    setattr(Many, f"tool_{_number:04}", _numbered(_number))

hub = Hub("plexus").register(Many())

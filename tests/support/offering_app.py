"""A hub that offers something of every kind."""

from midcall import Hub

hub = Hub("offers")


@hub.method
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@hub.method
async def stumble() -> str:
    """Fail by a mistake in its code."""
    return {}["missing"]  # type: ignore[no-any-return]


@hub.resource("notes://today", mime_type="text/plain")
async def today() -> str:
    """What is on today."""
    return "Nothing"


@hub.resource("notes://{day}")
async def note(day: str) -> str:
    """What is on some day."""
    return day


@hub.prompt
async def review(title: str) -> str:
    """Ask for a review."""
    return f"Review {title}"

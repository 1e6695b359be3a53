"""The hub that the benchmarks call."""

from midcall import Ask, Hub, method


class Bench:
    """As little work as possible, so that what is measured is midcall."""

    @method
    async def once(self, message: str) -> str:
        """Say it back."""
        return message

    @method
    async def ask(self, ask: Ask) -> bool:
        """Ask once, with no limit of time."""
        return await ask.confirm("Go on?", timeout=None)

    @method
    async def timed(self, ask: Ask) -> bool:
        """Ask once, with the usual limit of time."""
        return await ask.confirm("Go on?", timeout=3600)


hub = Hub("plexus").register(Bench())

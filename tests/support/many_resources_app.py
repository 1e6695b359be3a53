"""A hub with more resources than a list has on one page: `many_resources_app:hub`."""

from midcall import Hub

hub = Hub("plexus")

for number in range(1200):

    @hub.resource(f"numbers://{number}", title=f"Number {number}")
    async def read(number: int = number) -> str:
        """A number."""
        return str(number)

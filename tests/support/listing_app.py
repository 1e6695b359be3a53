"""A hub whose resources and prompts only its code can list."""

from midcall import CallerName, Hub, Listing, UnknownResource, listing, method, prompt, resource

BOOKS = ("1", "2", "3")
PAGE = 2


def _page(items: list[dict[str, str]], after: str | None) -> Listing:
    start = int(after or 0)
    more = start + PAGE < len(items)
    return Listing(items[start : start + PAGE], str(start + PAGE) if more else None)


class Shelf:
    """A shelf."""

    @method
    async def whoami(self, caller: CallerName) -> str:
        """Tell who calls."""
        return str(caller)

    @resource("book://about")
    def about(self) -> str:
        """What this is."""
        return "A shelf."

    @resource("book://{number}")
    def book(self, number: str) -> str:
        """A book."""
        if number not in BOOKS:
            raise UnknownResource(f"There is no {number}")
        return f"Book {number}"

    @listing("book://{number}")
    def books(self, after: str | None) -> Listing:
        """All books."""
        return _page([{"uri": f"book://{number}", "name": number} for number in BOOKS], after)

    @resource("song://{name}", scopes=["music"])
    def song(self, name: str) -> str:
        """A song."""
        return name

    @listing("song://{name}")
    def songs(self, after: str | None) -> Listing:
        """All songs."""
        return Listing([{"uri": "song://a", "name": "a"}])

    @prompt
    def plain(self) -> str:
        """A prompt as any other."""
        return "plain"

    @prompt("tell-{number}")
    def tell(self, number: str, tone: str = "soft") -> str:
        """Tell of a book."""
        if number not in BOOKS:
            raise UnknownResource(f"There is no {number}")
        return f"tell {number}, {tone}"

    @listing("tell-{number}")
    def tales(self, after: str | None) -> Listing:
        """All that can be told."""
        return _page([{"name": f"tell-{number}"} for number in BOOKS], after)


hub = Hub().register(Shelf())

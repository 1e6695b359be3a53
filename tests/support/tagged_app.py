"""A hub with tags: `tagged_app:hub`."""

from midcall import Ask, Hub, completion, method, prompt, resource
from midcall.content import Listing
from midcall.decorators import listing


class Files:
    """Work with files."""

    tags = frozenset({"files"})

    @method
    def show(self) -> str:
        """List them."""
        return "a, b"

    @method(tags={"admin", "danger"})
    async def wipe(self, ask: Ask) -> str:
        """Delete them all."""
        return "gone" if await ask.confirm("Really?") else "kept"

    @resource("files://secret/{name}", tags={"admin"})
    def secret(self, name: str) -> str:
        return f"secret {name}"

    @listing("files://secret/{name}")
    def secrets(self, after: str | None = None) -> Listing:
        return Listing([{"uri": "files://secret/a", "name": "a"}])

    @completion("files://secret/{name}", "name")
    def secret_names(self, value: str) -> list[str]:
        return ["a"]

    @resource("files://readme")
    def readme(self) -> str:
        return "read me"

    @prompt("clean", tags={"admin"})
    def clean(self) -> str:
        return "Clean up."


def make() -> Hub:
    """A new one each time, as `restrict` changes it."""
    made = Hub("tagged").register(Files())

    @made.method(tags={"read"})
    def knock() -> str:
        """Say so."""
        return "who?"

    nested = Hub("inner").register(Files(), namespace="more")
    return made.register_hub(nested)


hub = make()

"""The hubs that are attacked: `attacks_app:hub`, and `attacks_app:front`, behind which stands a hostile server."""

import sys
from typing import Annotated, Any

from pydantic import BaseModel, Field

from midcall import Ask, Hub, ToolError, completion, method, prompt, resource
from midcall.chat import ChatEngine
from midcall.models.scripted import Rule, Scripted
from peers import HERE


class Address(BaseModel):
    """Where to?"""

    street: str
    floor: int = Field(0, ge=0)


def fail() -> None:
    """A step that fails."""
    raise ValueError("The step failed")


class Box:
    """Tools that take anything."""

    @method
    async def say(self, text: str) -> str:
        """Say it again."""
        return text

    @method
    async def take(self, value: Any = None) -> str:
        """Take anything; tell what it is."""
        return type(value).__name__

    @method
    async def form(self, address: Address, count: int = 1) -> str:
        """Take what has a schema."""
        return f"{count} to {address.street}"

    @method
    async def ask(self, ask: Ask, name: str = "you") -> str:
        """Ask for a word; give it back beside the name, so that a mix-up shows."""
        return f"{name}: {await ask.prompt(f'A word for {name}?', key='word')}"

    @method(long_running=True)
    async def job(self, ask: Ask, name: str = "you") -> str:
        """Work for long, and ask in the middle."""
        return f"{name}: {await ask.prompt(f'A word for {name}?', key='word')}"

    @method
    async def stumble(self, ask: Ask) -> str:
        """Do a step that fails, ask, and tell how it failed."""
        try:
            await ask.step(fail)
        except Exception as error:
            failure = type(error).__name__
        word = await ask.prompt("A word?", key="word")
        return f"{word} after {failure}"

    @method
    async def narrate(self, ask: Ask) -> str:
        """Report progress."""
        ask.progress("half way", 50)
        ask.log("a line", "error")
        return "told"


class Vault:
    """For those who may."""

    @method(scopes=["vault:open"])
    async def open(self, name: str) -> str:
        """Open it."""
        return f"the vault of {name}"

    @resource("vault://{a}-{b}-{c}-{d}-{e}/{f}.txt", scopes=["vault:open"])
    async def note(self, a: str, b: str, c: str, d: str, e: str, f: str) -> str:
        """A note in the vault."""
        return a + b + c + d + e + f


class Library:
    """What can be read, and templates of messages."""

    namespace = ""

    @resource("notes://all")
    async def notes(self) -> str:
        """All notes."""
        return "# Notes"

    @resource("notes://{folder}/{name}")
    async def note(self, folder: str, name: str) -> dict[str, str]:
        """One note."""
        return {"folder": folder, "name": name}

    @resource("files://{a}-{b}-{c}-{d}-{e}/{f}.txt")
    async def file(self, a: str, b: str, c: str, d: str, e: str, f: str) -> str:
        """A name of many parts."""
        return " ".join((a, b, c, d, e, f))

    @prompt
    async def greet(self, name: Annotated[str, Field(description="Whom")], tone: str = "kind") -> str:
        """Greet somebody."""
        return f"Greet {name}, be {tone}"

    @completion("greet", "name")
    async def names(self, value: str) -> list[str]:
        """Names that begin so."""
        return [name for name in ("alice", "albert", "bob") if name.startswith(value)]

    @completion("notes://{folder}/{name}", "name")
    async def note_names(self, value: str, arguments: dict[str, str]) -> list[str]:
        """Names in this folder."""
        return [arguments.get("folder", "none"), value]

    @resource("torn://it")
    async def torn(self) -> str:
        """What cannot be read."""
        raise ToolError("It is torn")


def hub() -> Hub:
    """A hub with a chat."""
    made = Hub("plexus", version="1")
    made.register(Box()).register(Vault()).register(Library())
    rules = [Rule("^ask (?P<name>.*)", "ask", "Let me ask. ", {"name": "somebody"})]
    ChatEngine(made, Scripted(rules, otherwise="I see."))
    return made


KINDS = ("names", "texts", "schemas", "resources", "answers", "forms", "surroundings")
"""The hostile servers, which are mounted under these names."""


def front() -> Hub:
    """A hub with hostile servers behind it."""
    made = Hub("plexus", version="1").register(Box())
    for kind in KINDS:
        made.mount(kind, [sys.executable, str(HERE / "attacks_server.py"), kind])
    return made

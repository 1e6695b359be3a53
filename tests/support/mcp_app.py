"""The hub that the tests of MCP talk to: `mcp_app:hub`, and variants of it with other settings."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from driving import call_tasks
from midcall import (
    Ask,
    Hub,
    MidcallError,
    ProtocolError,
    Question,
    ToolError,
    completion,
    method,
    prompt,
    resource,
)
from midcall.mcp import McpExtension


class Sum(BaseModel):
    """A result with a schema."""

    total: int


class Person(BaseModel):
    """Who are you?"""

    name: str = Field(min_length=2)
    age: int = Field(18, ge=0)
    role: Literal["user", "admin"] = "user"


class Nested(BaseModel):
    """A form that is not flat."""

    person: Person


class People(BaseModel):
    """A form with a list of objects."""

    people: list[Person]


class Topping(Enum):
    """What goes on top."""

    CHEESE = "cheese"
    OLIVES = "olives"


class Order(BaseModel):
    """A form of which most may be left out."""

    dish: str
    toppings: list[Topping]
    note: str | None = None
    plates: Annotated[int, Field(ge=1, le=9)] | None
    day: date | None = None
    size: Literal[1, 2, 3] = 2
    first: Topping | None = None


flight = Question("pickFlight", Person)


class Gates(dict[str, asyncio.Event]):
    """What keeps methods at work until it is opened, by name."""

    def __missing__(self, name: str) -> asyncio.Event:
        return self.setdefault(name, asyncio.Event())


class Give:
    """One method for each row of the table of results."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    @method
    async def nothing(self) -> None:
        """Give nothing."""

    @method
    async def word(self) -> str:
        """Give a text."""
        return "hello"

    @method
    async def number(self) -> int:
        """Give a number."""
        return 42

    @method
    async def record(self) -> dict[str, Any]:
        """Give an object without a schema of its fields."""
        return {"a": 1}

    @method
    async def sum(self, a: int, b: int) -> Sum:
        """Add two numbers."""
        return Sum(total=a + b)

    @method
    async def words(self, count: int = 3) -> AsyncIterator[str]:
        """Give texts, one by one."""
        for number in range(count):
            yield f"w{number} "

    @method
    async def rows(self, count: int = 2) -> AsyncIterator[dict[str, int]]:
        """Give objects, one by one."""
        for number in range(count):
            yield {"row": number}

    @method
    async def failure(self) -> None:
        """Fail with a message for the caller."""
        raise ToolError("The disk is full", code="disk_full")

    @method
    async def late_failure(self) -> AsyncIterator[str]:
        """Give something, then fail."""
        yield "half"
        raise ToolError("The disk is full")

    @method
    async def unsendable(self) -> Any:
        """Give something that JSON cannot carry."""
        return object()

    @method
    async def large(self, size: int) -> str:
        """Give a long text."""
        return "x" * size

    @method
    async def slow(self, seconds: float) -> str:
        """Take a while."""
        await asyncio.sleep(seconds)
        return "slept"

    @method
    async def held(self, gate: str) -> str:
        """Work until a gate is opened."""
        await self._gates[gate].wait()
        return "worked"

    @method
    async def open(self, gate: str) -> str:
        """Open a gate."""
        self._gates[gate].set()
        return "opened"

    @method
    async def narrate(self, ask: Ask, level: str = "info") -> str:
        """Report progress, also backwards, and write to the log at each level."""
        for percentage in (10, 5, 10, 60, 100):
            ask.progress(f"at {percentage}", percentage)
        for one in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
            ask.log(f"a line of {one}", one)
        asyncio.get_running_loop().call_later(0.05, ask.progress, "too late", 100)
        return "told"

    @method
    async def plain_progress(self, ask: Ask) -> str:
        """Report progress without numbers."""
        for word in ("one", "two", "three"):
            ask.progress(word)
        return "told"


class Seek:
    """Methods that ask in every way."""

    def __init__(self, gates: Gates | None = None) -> None:
        self.trail: list[str] = []
        self._gates = Gates() if gates is None else gates

    @method
    async def confirm(self, ask: Ask, default: bool | None = None) -> str:
        """Ask for a yes."""
        return f"confirmed: {await ask.confirm('Sure?', default=default)}"

    @method(person_only=True)
    async def permission(self, ask: Ask) -> str:
        """Ask what a model must not answer."""
        return f"permitted: {await ask.confirm('May it?')}"

    @method
    async def prompt(self, ask: Ask, name: str = "you", timeout: float = 30.0) -> str:
        """Ask for a word; give it back beside the name, so that a mix-up shows."""
        try:
            return f"{name}: {await ask.prompt(f'A word for {name}?', default='none', timeout=timeout)}"
        except asyncio.CancelledError:
            self.trail.append(f"{name} was cancelled")
            raise

    @method
    async def select(self, ask: Ask) -> str:
        """Ask for one of three."""
        options = [("r", "Red"), ("g", "Green", "as grass"), "blue"]
        return f"chose {await ask.select('Colour?', options)}"

    @method
    async def several(self, ask: Ask) -> str:
        """Ask for any of three."""
        chosen = await ask.select("Colours?", ["red", "green", "blue"], multi_select=True)
        return f"chose {' '.join(chosen)}"

    @method
    async def form(self, ask: Ask) -> str:
        """Ask for a person."""
        person = await ask.form(Person)
        return f"{person.name} {person.age} {person.role}"

    @method
    async def nested(self, ask: Ask) -> str:
        """Ask for what no flat form can hold."""
        return (await ask.form(Nested)).person.name

    @method
    async def several_people(self, ask: Ask) -> int:
        """Ask for what no form of MCP can hold."""
        return len((await ask.form(People)).people)

    @method(long_running=True)
    async def order(self, ask: Ask) -> dict[str, Any]:
        """Ask for an order."""
        return (await ask.form(Order)).model_dump(mode="json")

    @method
    async def url(self, ask: Ask) -> str:
        """Send the person to a page."""
        await ask.url("https://example.com/login", "Please log in")
        return "visited"

    @method(elicits=[flight])
    async def custom(self, ask: Ask) -> str:
        """Ask a typed question."""
        return (await ask(flight, "Who flies?")).name

    @method
    async def sample(self, ask: Ask) -> str:
        """Ask the client's model."""
        said = await ask.sample("Say hi", system="Be short", max_tokens=10, temperature=0.5)
        return f"{said.model} said {said.text}"

    @method
    async def roots(self, ask: Ask) -> str:
        """Ask for the folders."""
        return " ".join(root.uri for root in await ask.roots())

    @method
    async def careful(self, ask: Ask) -> str:
        """Say which error a question ended with."""
        try:
            return f"answer: {await ask.prompt('A word?', timeout=20)}"
        except MidcallError as error:
            return f"error: {error.code}"

    @method
    async def fallback(self, ask: Ask) -> str:
        """Do without an answer if nobody can be asked."""
        return f"used {await ask.or_else(prompt='nothing').prompt('A word?')}"

    @method
    async def wizard(self, ask: Ask, run: str = "") -> str:
        """Ask three things, with work before, between and after."""
        self.trail.append(f"{run} before")
        name = await ask.prompt("Project name?")
        self.trail.append(f"{run} named {name}")
        kind = await ask.select("Template?", ["minimal", "full"])
        self.trail.append(f"{run} chose {kind}")
        sure = await ask.confirm("Create it?")
        self.trail.append(f"{run} done")
        return f"{name} {kind} {sure}"

    @method
    async def slow_wizard(self, ask: Ask, run: str = "", seconds: float = 0.3) -> str:
        """Ask, then work for a while."""
        name = await ask.prompt("Name?")
        self.trail.append(f"{run} works")
        await asyncio.sleep(seconds / 2)
        ask.progress("half of it", 50)
        await asyncio.sleep(seconds / 2)
        self.trail.append(f"{run} worked")
        return name

    @method
    async def held_wizard(self, ask: Ask, run: str) -> str:
        """Ask, then work until the gate of the run is opened."""
        name = await ask.prompt("Name?")
        self.trail.append(f"{run} works")
        await self._gates[run].wait()
        ask.progress("half of it", 50)
        self.trail.append(f"{run} worked")
        return name

    @method
    async def unhurried(self, ask: Ask, run: str) -> str:
        """Ask, work until the gate of the run is opened, and ask again."""
        first = await ask.prompt("First?")
        self.trail.append(f"{run} {first}")
        await self._gates[run].wait()
        return f"{first} {await ask.prompt('Second?')}"

    @method
    async def together(self, ask: Ask) -> str:
        """Ask two things in one round."""
        name, sure = await ask.all(ask.prompt("Name?", key="name"), ask.confirm("Sure?", key="sure"))
        return f"{name} {sure}"

    @method
    async def gathered(self, ask: Ask) -> str:
        """Ask two things side by side, one of which leads to a third."""

        async def first() -> str:
            one = await ask.prompt("One?", key="one")
            return f"{one}{await ask.prompt('And after one?', key='after')}"

        return " ".join(await asyncio.gather(first(), ask.prompt("Two?", key="two")))

    @method
    async def again(self, ask: Ask) -> str:
        """Ask by the same key three times."""
        return " ".join([await ask.prompt(f"Word {n}?", key="word") for n in range(3)])

    @method(long_running=True)
    async def job(self, ask: Ask, fail: bool = False) -> str:
        """Work for long, and ask in the middle."""
        ask.progress("working", 10)
        word = await ask.prompt("A word?", key="word")
        if fail:
            raise ToolError("It broke")
        return f"job done: {word}"

    @method(long_running=True)
    async def endless(self) -> str:
        """Work for ever."""
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.trail.append("endless was cancelled")
            raise
        return "never"

    @method(long_running=True)
    async def doomed(self, ask: Ask) -> str:
        """Work for long, ask, and fail as a request, not as a tool."""
        word = await ask.prompt("A word?", key="word")
        raise ProtocolError(f"There is no {word}")

    @method(requires=["sampling"])
    async def needs_model(self) -> str:
        """Need a client with a model."""
        return "has one"

    @method
    async def count(self, name: str) -> str:
        """Leave a trace, ask nothing."""
        self.trail.append(name)
        return f"counted {self.trail.count(name)}"


class Library:
    """What can be read, and templates of messages."""

    namespace = ""

    @resource("notes://all", mime_type="text/markdown")
    async def notes(self) -> str:
        """All notes."""
        return "# Notes"

    @resource("notes://raw")
    async def raw(self) -> bytes:
        """Bytes."""
        return b"\x00\x01"

    @resource("notes://{folder}/{name}")
    async def note(self, folder: str, name: str) -> dict[str, str]:
        """One note."""
        return {"folder": folder, "name": name}

    @resource("secret://{name}")
    async def secret(self, name: str, ask: Ask) -> str:
        """A note that is shown only after a yes."""
        return f"the secret of {name}" if await ask.confirm(f"Show {name}?") else "nothing to see"

    @resource("broken://it")
    async def broken(self) -> str:
        """A note that cannot be read."""
        raise ToolError("It is torn")

    @prompt
    async def greet(self, name: Annotated[str, Field(description="Whom")], tone: str = "kind") -> str:
        """Greet somebody."""
        return f"Greet {name}, be {tone}"

    @prompt
    async def interview(self, topic: str, ask: Ask) -> list[dict[str, Any]]:
        """Ask before there is a prompt."""
        depth = await ask.prompt(f"How deep into {topic}?")
        return [{"role": "user", "content": f"Explain {topic}"}, {"role": "assistant", "content": depth}]

    @completion("greet", "name")
    async def names(self, value: str) -> list[str]:
        """Names that begin so."""
        return [name for name in ("alice", "albert", "bob") if name.startswith(value)]

    @completion("notes://{folder}/{name}", "name")
    async def note_names(self, value: str, arguments: dict[str, str]) -> list[str]:
        """Names in this folder."""
        return [f"{arguments.get('folder', 'none')}-{number}" for number in range(150)]


class Extra:
    """What comes and goes."""

    @method
    async def hello(self) -> str:
        """Say hello."""
        return "hello"

    @resource("extra://it")
    async def it(self) -> str:
        """A resource that comes and goes."""
        return "it"

    @prompt
    async def more(self) -> str:
        """A prompt that comes and goes."""
        return "more"


class Admin:
    """Looks into the server, and changes what it offers."""

    def __init__(self, hub: Hub, seek: Seek) -> None:
        self._hub = hub
        self._seek = seek
        self._extra: object | None = None

    @method
    async def state(self) -> dict[str, Any]:
        """What is left running in the server beside this very call, and what its methods did."""
        return {
            "calls": sum(not call.method.endswith(".state") for call in self._hub.calls.list()),
            "questions": self._hub.calls.open_questions,
            "tasks": len(call_tasks()),
            "running": [call.method for call in self._hub.calls.list()],
            "trail": self._seek.trail,
        }

    @method
    async def change(self) -> str:
        """Add the extra activation, or take it out."""
        if self._extra is None:
            self._extra = Extra()
            self._hub.register(self._extra)
            return "added"
        self._hub.unregister(self._extra)
        self._extra = None
        return "removed"

    @method
    async def touch(self, uri: str) -> str:
        """Say that what is read there has changed."""
        self._hub.updated(uri)
        return "touched"


def make_hub(**settings: Any) -> Hub:
    made = Hub("plexus", version="9.8.7")
    gates = Gates()
    seek = Seek(gates)
    made.register(Give(gates)).register(seek).register(Library()).register(Admin(made, seek))
    return made.with_extension(McpExtension(**settings)) if settings else made


hub = make_hub()

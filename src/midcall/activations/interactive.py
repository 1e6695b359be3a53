"""interactive: the examples of asking, from one confirmation to a wizard."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeAlias

from msgspec import Struct

from midcall.ask import Ask
from midcall.decorators import method
from midcall.errors import AskError, NotSupported
from midcall.questions import Option


class StepStarted(Struct, tag_field="type", tag="step_started"):
    """The wizard goes on to another step."""

    step: int
    description: str


class Created(Struct, tag_field="type", tag="created"):
    """The wizard has made the project."""

    name: str
    template: str


class Deleted(Struct, tag_field="type", tag="deleted"):
    """One item is gone."""

    id: str


class ConfirmedEvent(Struct, tag_field="type", tag="confirmed"):
    """The person said yes."""

    message: str


class CancelledEvent(Struct, tag_field="type", tag="cancelled"):
    """The person said no."""


class ErrorEvent(Struct, tag_field="type", tag="error"):
    """It could not be done."""

    message: str
    recoverable: bool = False


WizardEvent: TypeAlias = StepStarted | Created | CancelledEvent | ErrorEvent
DeleteEvent: TypeAlias = Deleted | CancelledEvent | ErrorEvent
ConfirmEvent: TypeAlias = ConfirmedEvent | CancelledEvent | ErrorEvent

TEMPLATES = [
    Option("minimal", "Minimal", "One file and a README"),
    Option("full", "Full", "Package, tests and docs"),
]


class Interactive:
    """Methods that stop in the middle and ask."""

    @method
    async def wizard(self, ask: Ask) -> AsyncIterator[WizardEvent]:
        """Set up a project in three questions."""
        try:
            yield StepStarted(1, "Project name")
            quiet = ask.or_else(prompt="default-project", select="minimal", confirm=True)
            name = await quiet.prompt("Project name:", placeholder="my-project")

            yield StepStarted(2, "Template")
            template = await quiet.select("Template:", TEMPLATES)

            yield StepStarted(3, "Confirm")
            if not await quiet.confirm(f"Create '{name}' with '{template}'?", default=True):
                yield CancelledEvent()
                return

            for percentage, what in ((30, "Making folders"), (70, "Writing files"), (100, "Done")):
                ask.progress(what, percentage)
                await asyncio.sleep(0.05)
            yield Created(name, template)
        except AskError as error:
            yield ErrorEvent(str(error), error.recoverable)

    @method
    async def delete(self, ids: list[str], ask: Ask) -> AsyncIterator[DeleteEvent]:
        """Delete items, after a confirmation.

        Args:
            ids: the items to delete
        """
        try:
            if not await ask.confirm(f"Delete {len(ids)} items?", default=False):
                yield CancelledEvent()
                return
        except NotSupported:
            yield ErrorEvent("Interactive mode required")
            return
        except AskError as error:
            yield ErrorEvent(str(error), error.recoverable)
            return
        for number, id in enumerate(ids, 1):
            ask.progress(f"{id} deleted", 100 * number / len(ids))
            yield Deleted(id)

    @method
    async def confirm(self, message: str, ask: Ask) -> ConfirmEvent:
        """Ask one yes-or-no question.

        Args:
            message: the question
        """
        try:
            return ConfirmedEvent(message) if await ask.confirm(message) else CancelledEvent()
        except AskError as error:
            return ErrorEvent(str(error), error.recoverable)

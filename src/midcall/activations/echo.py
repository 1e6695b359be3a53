"""echo: say it back, for trying a connection."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from msgspec import Struct
from pydantic import Field

from midcall.decorators import method


class EchoEvent(Struct, tag_field="type", tag="echo"):
    """One echo; `count` says which."""

    message: str
    count: int


class Pong(Struct, tag_field="type", tag="pong"):
    """The answer to a ping."""

    message: str = "pong"


class Echo:
    """Echo messages back."""

    @method
    async def echo(
        self,
        message: str,
        count: Annotated[int, Field(ge=1, le=10_000)] = 1,
        delay_ms: Annotated[int, Field(ge=0, le=60_000)] = 0,
    ) -> AsyncIterator[EchoEvent]:
        """Echo a message several times.

        Args:
            message: what to say back
            count: how many times
            delay_ms: how long to wait between two of them
        """
        for number in range(1, count + 1):
            if number > 1 and delay_ms:
                await asyncio.sleep(delay_ms / 1000)
            yield EchoEvent(message, number)

    @method
    async def once(self, message: str) -> EchoEvent:
        """Echo a message once.

        Args:
            message: what to say back
        """
        return EchoEvent(message, 1)

    @method
    async def ping(self) -> Pong:
        """Answer at once."""
        return Pong()

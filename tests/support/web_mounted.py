"""The hub of the web client's tests, mounted in another application below a path."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from web_app import hub

inner = hub()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    await inner.open()
    await inner.chat.open()
    yield
    await inner.chat.close()
    await inner.close()


app = Starlette(routes=[Mount("/deep/inside", inner.asgi())], lifespan=lifespan)

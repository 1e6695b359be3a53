"""The hubs of the web client's tests, mounted in another application below paths."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from web_app import hub
from web_machines import hub as office

inner = hub()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    await inner.open()
    await inner.chat.open()
    await office.open()
    yield
    await office.close()
    await inner.chat.close()
    await inner.close()


app = Starlette(
    routes=[Mount("/deep/inside", inner.asgi()), Mount("/office", office.asgi())], lifespan=lifespan
)

"""The chat as a part of a hub's ASGI application: its wires, and its beginning and end."""

from starlette.routing import Route

from midcall.chat.agui import Agui
from midcall.chat.engine import ChatEngine
from midcall.chat.ndjson import Ndjson


class ChatPart:
    """The pages of a chat (see `transports.http.Part`)."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        return [*Ndjson(self._engine).routes(), *Agui(self._engine).routes()]

    async def open(self) -> None:
        await self._engine.open()

    def stop(self) -> None:
        self._engine.stop_all()

    async def close(self) -> None:
        await self._engine.close()

"""Relay: requests of a legacy session that reach another worker than the one that has it.

A legacy session lives in one worker, its home, whose name its id begins with. A worker that gets a request
for somebody else's session posts it there, through the journal that they share, and writes what comes back
to its own client: streams that stay open and streams that are resumed included. So a load balancer may send
any request to any worker. If the home is gone, so is the session, and the client begins a new one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp, Receive, Send

from midcall.errors import JournalError
from midcall.journal.bus import Channel
from midcall.principal import Principal

log = logging.getLogger("midcall.relay")

WAITING = 256
"""How many messages of a response may wait for a slow client before it is given up."""


SILENCE = 5.0
"""Seconds of silence after which it is asked whether the home of a session is still there."""


class RelayMessage(Struct, omit_defaults=True):
    """What one worker tells another of a request."""

    id: str
    sender: str
    kind: str
    """`request`, `start`, `body`, `end` (of a response), `gone` (the client has left), `there?`."""
    method: str = ""
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""
    status: int = 0
    principal: Principal | None = None
    client: tuple[str, int] | None = None
    """The address of whoever is connected, and the port."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RelayMessage).decode


class Relay:
    """The way to the other workers, and from them."""

    def __init__(self, post: Channel, endpoint: ASGIApp) -> None:
        self._post = post
        self._endpoint = endpoint
        self._count = 0
        self._responses: dict[str, asyncio.Queue[RelayMessage]] = {}
        self._serving: dict[tuple[str, str], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- where the client is -----------------------------------------------------------------

    async def forward(
        self,
        home: str,
        method: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        principal: Principal | None,
        client: tuple[str, int] | None,
        receive: Receive,
        send: Send,
    ) -> bool:
        """Let the home of a session serve a request. False if there is no such worker any more."""
        self._count += 1
        id = f"{self._post.worker}-{self._count}"
        responses = self._responses[id] = asyncio.Queue(WAITING)
        request = RelayMessage(
            id, self._post.worker, "request", method, headers, body, principal=principal, client=client
        )
        leaving: asyncio.Task[None] | None = None
        try:
            if not await self._post.post(home, _encode(request)):
                return False
            leaving = asyncio.create_task(self._watch(home, id, receive))
            started = False
            while True:
                letter = await self._next(home, id, responses)
                match letter.kind:
                    case "lost":
                        if not started:
                            return False
                        await send({"type": "http.response.body", "body": b""})
                        return True
                    case "start":
                        started = True
                        start = {"status": letter.status, "headers": letter.headers}
                        await send({"type": "http.response.start", **start})
                    case "body":
                        await send({"type": "http.response.body", "body": letter.body, "more_body": True})
                    case _:
                        await send({"type": "http.response.body", "body": letter.body})
                        return True
        finally:
            del self._responses[id]
            if leaving is not None:
                leaving.cancel()

    async def _next(self, home: str, id: str, responses: asyncio.Queue[RelayMessage]) -> RelayMessage:
        """What comes next; `lost` if the home is gone."""
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    return await responses.get()
            except TimeoutError:
                if not await self._post.post(home, _encode(RelayMessage(id, self._post.worker, "there?"))):
                    return RelayMessage(id, home, "lost")

    async def _watch(self, home: str, id: str, receive: Receive) -> None:
        """Tell the home when the client leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        responses = self._responses.get(id)
        if responses is not None:
            await self._post.post(home, _encode(RelayMessage(id, self._post.worker, "gone")))
            responses.put_nowait(RelayMessage(id, home, "end"))

    # --- where the session is ----------------------------------------------------------------

    def take(self, message: bytes) -> None:
        """Take a letter of another worker."""
        letter = _decode(message)
        match letter.kind:
            case "request":
                task = asyncio.get_running_loop().create_task(self._serve(letter))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case "gone":
                gone = self._serving.get((letter.sender, letter.id))
                if gone is not None:
                    gone.set()
            case "there?":
                pass  # that it could be posted is the answer
            case _:
                responses = self._responses.get(letter.id)
                if responses is not None:
                    if responses.full():
                        responses.get_nowait()
                        letter = RelayMessage(letter.id, letter.sender, "end")  # too slow: it may resume
                    responses.put_nowait(letter)

    async def _serve(self, letter: RelayMessage) -> None:
        gone = self._serving[letter.sender, letter.id] = asyncio.Event()
        scope: dict[str, Any] = {
            "type": "http",
            "method": letter.method,
            "path": "/mcp",
            "headers": letter.headers,
            "client": letter.client,
            "midcall.principal": letter.principal,
            "midcall.relayed": True,
        }
        given = [{"type": "http.request", "body": letter.body}]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._endpoint(scope, receive, self._answerer(letter, gone))
        except (OSError, JournalError) as error:
            log.info("a relayed request was left without its response: %s", error)
        finally:
            del self._serving[letter.sender, letter.id]

    def _answerer(self, letter: RelayMessage, gone: asyncio.Event) -> Callable[[Any], Awaitable[None]]:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
                answer = RelayMessage(
                    letter.id, self._post.worker, "start", status=message["status"], headers=headers
                )
            else:
                kind = "body" if message.get("more_body") else "end"
                answer = RelayMessage(letter.id, self._post.worker, kind, body=message.get("body", b""))
            if not await self._post.post(letter.sender, _encode(answer)):
                gone.set()
                raise OSError("The worker with the client is gone")
            if answer.kind == "end":
                gone.set()

        return send

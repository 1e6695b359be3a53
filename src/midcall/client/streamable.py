"""Streamable HTTP: each message is a request of its own, and each answer comes on its response.

In the modern era that is all there is. In the legacy one the server may name a session, has a stream for what
belongs to no request, and takes up a lost stream after the last event that came. A server from before that,
which answers everything on one stream (HTTP+SSE), is found out when it refuses the first message, and is
spoken to by `legacy_sse`.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midcall.client.header_params import header_value
from midcall.client.http_post import HttpPost, ResumedStream
from midcall.client.wire import About
from midcall.errors import MidcallError, TransportLost
from midcall.http.client import HttpClient, Prepared, prepare
from midcall.http.message import Headers, HttpError, HttpUrl, checked_headers

if TYPE_CHECKING:
    from midcall.client.legacy_sse import LegacySse
    from midcall.client.oauth.access import Auth
    from midcall.client.session import ClientSession

log = logging.getLogger("midcall.client")

MAX_UNSENT = 1000
"""How many answers to a server may wait until it takes them; those beyond are dropped."""

MAX_SENDING = 100
"""How many messages are sent at once."""

HANDSHAKE = 5.0
"""Seconds that a server has to take the end of the handshake before requests are sent anyway."""

REFUSING = 1.0
"""Seconds in which requests of a session that is over are refused one by one, and can be sent again."""

FAREWELL = 2.0
"""Seconds that a server has to end a session."""

_ACCEPT = ("Accept", "application/json, text/event-stream")
_JSON = ("Content-Type", "application/json")
_NAMED = frozenset(
    ("tools/call", "prompts/get", "resources/read", "tasks/get", "tasks/update", "tasks/cancel")
)
"""The methods whose name is repeated in a header."""


class HttpWire:
    """The way to a server behind a URL."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: "Auth | None" = None,
        sse: bool = False,
    ) -> None:
        self.url = HttpUrl(url)
        self._given = list((headers or {}).items())
        self._auth = auth
        self._sse = sse
        self.http = HttpClient(max_connections=MAX_SENDING)
        self.back = HttpClient(max_connections=MAX_SENDING)
        """For answers and notifications: they do not wait behind the calls that wait for them."""
        self.session: ClientSession
        self._modern = False
        self._revision = ""
        self._session_id: str | None = None
        self._prepared: dict[tuple[str, str], Prepared] = {}
        """The headers of requests of one kind, made once."""
        self._posts: dict[int, HttpPost] = {}
        """The requests that are under way."""
        self._answers: set[HttpPost] = set()
        """The answers and notifications that are under way."""
        self._queue: deque[HttpPost] = deque()
        """The messages that are to be sent."""
        self._senders: set[asyncio.Task[None]] = set()
        self._sending = 0
        """How many of them send; the others listen to a stream."""
        self._starting = 0
        """How many of them have not taken a message yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.legacy: LegacySse | None = None
        """The transport of before, if that is what the server has."""
        self._streaming = False
        self._held: list[HttpPost] | None = None
        """Requests that wait until the server has taken the end of the handshake; none once it has."""
        self._initialized = False
        self._dropped = False
        self._over = False
        """Whether the server does not know the session any more."""
        self._closed = False
        self._logins = 0

    # --- as a wire ---------------------------------------------------------------------------

    async def open(self, session: "ClientSession") -> None:
        self.session = session
        if self._sse:
            await self._open_legacy()

    def agreed(self, revision: str, *, modern: bool) -> None:
        self._revision, self._modern = revision, modern
        self._prepared.clear()

    def request(self, ids: Sequence[int], message: bytes, about: About) -> None:
        post = HttpPost(self, ids, message, about)
        for id in ids:
            self._posts[id] = post
        if self._held is None:
            post.send()
        else:
            self._held.append(post)

    def send(self, message: bytes) -> None:
        if self._closed:
            return
        if len(self._answers) + len(self._tasks) > MAX_UNSENT:
            if not self._dropped:
                self._dropped = True
                log.warning("%s does not take what is sent: messages to it are dropped", self.url)
            return
        self._dropped = False
        if not self._initialized and self._revision and not self._modern:
            self._initialized = True
            self._held = []  # each message has a connection of its own: a request could overtake this one
            asyncio.get_running_loop().call_later(HANDSHAKE, self.release)
        post = HttpPost(self, (), message, None)
        self._answers.add(post)
        post.send()

    def cancel(self, id: int) -> bool:
        post = self._posts.get(id)
        if post is not None and len(post.ids) == 1:
            post.cancel()
        return self._modern

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        tasks = self._senders | self._tasks
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
            if self.in_session and not self._over:
                await self._leave()
        finally:
            await asyncio.gather(self.http.close(), self.back.close())

    async def _leave(self) -> None:
        """Tell the server that the session is over."""
        with contextlib.suppress(HttpError, MidcallError, TimeoutError):
            pairs = [*await self.access("DELETE"), *self.pairs()]
            response = await self.http.request("DELETE", self.url, pairs, timeout=FAREWELL)
            response.close()

    # --- for its messages --------------------------------------------------------------------

    def pairs(self) -> list[tuple[str, str]]:
        """The headers of every request."""
        pairs = list(self._given)
        if self._revision:
            pairs.append(("MCP-Protocol-Version", self._revision))
        if self._session_id is not None and not self._modern:
            pairs.append(("Mcp-Session-Id", self._session_id))
        return pairs

    def headers(self, about: About | None) -> Prepared:
        """The headers of a message, without those that give access."""
        method, name = ("", "") if about is None else (about.method, about.name)
        prepared = self._prepared.get((method, name))
        if prepared is None:
            pairs = [*self.pairs(), _ACCEPT, _JSON]
            if self._modern and method:
                pairs.append(("Mcp-Method", method))
                if name and method in _NAMED:
                    pairs.append(("Mcp-Name", header_value(name)))
            if len(self._prepared) > 1000:
                self._prepared.clear()
            prepared = self._prepared[method, name] = prepare(pairs)
        if about is not None and about.headers and self._modern:
            prepared = prepared.copy()
            prepared.extend(prepare(about.headers))
        return prepared

    @property
    def needs_access(self) -> bool:
        return self._auth is not None

    @property
    def in_session(self) -> bool:
        return self._session_id is not None and not self._modern

    @property
    def resumes(self) -> bool:
        """Whether lost streams can be taken up again."""
        return not self._modern and not self._closed

    async def access(self, verb: str) -> list[tuple[str, str]]:
        """The headers that give access."""
        if self._auth is None:
            return []
        return list((await self._auth.headers(self.url.full, self.http, verb=verb)).items())

    async def challenged(self, status: int, headers: Headers, sent: Sequence[tuple[str, str]]) -> bool:
        """Whether to send a request again that was refused; `sent` is what gave it access."""
        if self._auth is None:
            return False
        self._logins += 1
        try:
            return await self._auth.challenged(
                self.url.full,
                status,
                ", ".join(headers.get_all("www-authenticate")) or None,
                self.http,
                sent=dict(sent),
                nonce=headers.get("dpop-nonce"),
            )
        finally:
            self._logins -= 1

    @property
    def waits_for_person(self) -> bool:
        """Whether somebody is logging in."""
        return self._logins > 0

    def queue(self, post: HttpPost) -> None:
        """Send a message as soon as it has its turn; an answer at once, as calls wait for it."""
        if not post.ids:
            task = asyncio.get_running_loop().create_task(post.run())
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)
            return
        self._queue.append(post)
        self._start_senders()

    def _start_senders(self) -> None:
        while self._queue and self._sending < MAX_SENDING and len(self._queue) > self._starting:
            self._sending += 1
            self._starting += 1
            task = asyncio.get_running_loop().create_task(self._send_queued())
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)

    async def _send_queued(self) -> None:
        """Send one message after another: a task for each of ten thousand would cost more than sending it."""
        self._starting -= 1
        try:
            while self._queue:
                post = self._queue.popleft()
                if not post.cancelled:
                    await post.run()
        finally:
            self._sending -= 1
            self._start_senders()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Meanwhile, a message that was sent only waits for events, and does not hold up the others."""
        self._sending -= 1
        self._start_senders()
        try:
            yield
        finally:
            self._sending += 1

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something else, owned by the wire."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def named(self, headers: Headers) -> None:
        """The server may have named a session."""
        session_id = headers.get("mcp-session-id")
        if session_id is not None and not self._modern:
            self._session_id = session_id
            self._prepared.clear()

    def moved(self, headers: Headers) -> bool:
        """The server wants messages at another address. True if that is on the same host, and as safe."""
        try:
            there = self.url.join(headers.get("location") or "")
        except HttpError:
            return False
        safer = self.url.scheme == "http" and there.scheme == "https" and there.host == self.url.host
        if there == self.url or (there.origin != self.url.origin and not safer):
            return False
        self.url = there
        return True

    def expired(self) -> None:
        """The server does not know the session any more.

        What else is under way will be refused, too: each can be sent again once that is known.
        """
        if self._over:
            return
        self._over = True
        asyncio.get_running_loop().call_later(REFUSING if self._posts else 0.0, self._lose)

    def _lose(self) -> None:
        self.session.lost(TransportLost(f"{self.url} has ended the session"))

    def forget(self, ids: Sequence[int]) -> None:
        for id in ids:
            self._posts.pop(id, None)
        if self._over and not self._posts:
            asyncio.get_running_loop().call_soon(self._lose)

    def settled(self, post: HttpPost) -> None:
        """A message is not under way any more."""
        self._answers.discard(post)

    def accepted(self) -> None:
        """A notification was taken:

        the first one ends the handshake, and the server may now speak by itself.
        """
        if not self._modern and not self._streaming and self.legacy is None:
            self._streaming = True
            self.spawn(self._listen())
        if self._held is not None:
            asyncio.get_running_loop().call_soon(self.release)  # after the stream, if there is one

    def release(self) -> None:
        """The handshake is over: send what was held back."""
        held, self._held = self._held, None
        for post in held or ():
            post.send()

    async def _listen(self) -> None:
        """Keep the stream open by which a legacy server sends what belongs to no request."""
        stream = ResumedStream(self, None)
        with contextlib.suppress(MidcallError):
            await stream.follow()

    # --- the transport of before -------------------------------------------------------------

    async def fall_back(self, post: HttpPost) -> bool:
        """Try the transport of before. False if the server has not that either."""
        try:
            legacy = await self._open_legacy()
        except MidcallError as error:
            log.debug("no HTTP+SSE either: %s", error)
            return False
        legacy.post(post.ids, post.message)
        self.forget(post.ids)
        return True

    async def _open_legacy(self) -> "LegacySse":
        from midcall.client.legacy_sse import LegacySse  # noqa: PLC0415  seldom needed

        self.legacy = await LegacySse.open(self)
        return self.legacy


def check(url: str, headers: Mapping[str, str] | None) -> None:
    """Raise `ValueError` for what cannot be a URL, or headers."""
    try:
        HttpUrl(url)
        checked_headers((headers or {}).items())
    except HttpError as error:
        raise ValueError(str(error)) from None


def authorizer(auth: Any) -> "Auth | None":
    """What gives access, from what a caller of `connect` says."""
    if auth is None:
        return None
    if isinstance(auth, str):
        from midcall.client.oauth import Token  # noqa: PLC0415  seldom needed

        auth = Token(auth)
    if not hasattr(auth, "challenged"):
        raise ValueError("auth is a token, or an OAuth")
    found: Auth = auth
    return found

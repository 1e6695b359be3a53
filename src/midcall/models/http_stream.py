"""What providers over HTTP have in common: a request that answers with server-sent events, tried again where
that helps.

What goes wrong is told in words for a person, and never with a key in it.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from midcall.http.message import HttpError, HttpUrl, retry_after
from midcall.http.sse import EventReader
from midcall.models.base import ModelError

if TYPE_CHECKING:
    from midcall.http.client import HttpClient, HttpResponse

TRIES = 4
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 20.0
AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
"""What a provider answers that may be otherwise in a moment."""

HEAD = 120.0
"""Seconds until an answer must have begun."""

SILENCE = 120.0
"""Seconds that an answer may stand still."""

SECRET = 8
"""Letters that a key has at least; what is shorter is a placeholder, for servers that want none."""

MAX_SAID = 500
"""Letters of what a provider says of an error."""

NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises for what is no JSON, or too deep."""


class HttpStream:
    """Requests to one provider."""

    def __init__(
        self, name: str, url: str, headers: Mapping[str, str], *, key: str | None = None, hint: str = ""
    ) -> None:
        """`key` is the secret in the headers; `hint` is added where the provider cannot be reached."""
        self.name = name
        self._url = HttpUrl(url)
        self._headers = [
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream"),
            *headers.items(),
        ]
        self._key = key or ""
        self._hint = hint
        self._http: HttpClient | None = None

    async def objects(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Send a request; gives the JSON objects in the events of its answer, up to `[DONE]`.

        Raises `ModelError`, also for what is no JSON, and for errors in it.
        """
        response = await self._send(msgspec.json.encode(body))
        reader = EventReader()
        try:
            while (data := await self._next(response)) is not None:
                for event in reader.feed(data):
                    if event.data == b"[DONE]":
                        return
                    if event.data and (found := self._object(event.data)) is not None:
                        yield found
        finally:
            response.close()

    async def _next(self, response: "HttpResponse") -> bytes | None:
        """The next piece of an answer, or nothing after the last."""
        try:
            return await asyncio.wait_for(anext(response, None), SILENCE)
        except TimeoutError:
            raise ModelError(f"{self.name} stopped in the middle of its answer") from None
        except HttpError as error:
            raise ModelError(f"The answer of {self.name} broke off: {error}", recoverable=True) from None

    def _object(self, data: bytes) -> dict[str, Any] | None:
        try:
            found = msgspec.json.decode(data)
        except NO_JSON as error:
            raise ModelError(f"{self.name} sent invalid JSON: {error}") from None
        if not isinstance(found, dict):
            return None
        if found.get("error"):
            said = self._shown(_message_in(data)) or "error"
            raise ModelError(f"{self.name}: {said}", recoverable=True)
        return found

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _send(self, body: bytes) -> "HttpResponse":
        if self._http is None:
            from midcall.http.client import HttpClient  # noqa: PLC0415  aiohttp takes a while to import

            self._http = HttpClient()
        pause = FIRST_PAUSE
        for number in range(TRIES):
            last = number == TRIES - 1
            wait: float | None = None
            try:
                response = await self._http.request("POST", self._url, self._headers, body, timeout=HEAD)
            except HttpError as error:
                if last or error.sent:
                    hint = "" if error.sent else self._hint
                    raise ModelError(f"{self.name}: {error}{hint}", recoverable=True) from None
            else:
                if response.status == 200:
                    return response
                refusal = await self._refusal(response)
                if last or response.status not in AGAIN or not refusal.recoverable:
                    raise refusal
                wait = retry_after(response.headers)
            await asyncio.sleep(min(wait, LONGEST_PAUSE) if wait else pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter, no secret
            pause = min(pause * 2, LONGEST_PAUSE)
        raise AssertionError("the last try returns or raises")

    async def _refusal(self, response: "HttpResponse") -> ModelError:
        try:
            text = self._shown(_message_in(await response.read()))
        except HttpError:
            text = ""
        finally:
            response.close()
        status = response.status
        said = f": {text}" if text else ""
        match status:
            case 401 | 403:
                what = f"{self.name} does not accept the key{said}"
            case 404:
                what = f"{self.name} does not know this model or address{said}"
            case 429:
                what = f"{self.name} has too many requests, or the account has no more credit{said}"
            case _ if status >= 500:
                what = f"{self.name} is in trouble (HTTP {status}){said}"
            case _:
                what = f"{self.name} refused the request (HTTP {status}){said}"
        spent = "insufficient_quota" in text or "credit balance" in text
        return ModelError(what, recoverable=status in AGAIN and not spent, status=status)

    def _shown(self, text: str) -> str:
        """What a provider says, which may repeat the key that it does not accept."""
        text = text.replace(self._key, "***") if len(self._key) >= SECRET else text
        return text.strip()[:MAX_SAID]


def _message_in(body: bytes) -> str:
    """What a provider says of an error, in one of the forms that providers have."""
    try:
        found = msgspec.json.decode(body)
    except NO_JSON:
        return body.decode(errors="replace")
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        code = error.get("code") or error.get("type")
        text = str(error.get("message") or error.get("detail") or "")
        return f"{text} ({code})" if code == "insufficient_quota" else text
    return str(error)

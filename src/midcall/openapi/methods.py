"""Operations as methods: checked arguments, a question if wanted, a request that is a step, data or an error.

What the API answers is bounded. Credentials are the author's: they are added when a request is sent, so that
neither a caller nor a journal sees them, and they go to the API's own origin only.
"""

import http
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from midcall.activation import Activation, Method, digest, own_method
from midcall.ask import Ask
from midcall.call import Call
from midcall.content import Audio, Content, Document, Embedded, Image
from midcall.errors import Declined, InvalidArguments, RegistrationError, StepInterrupted, ToolError
from midcall.http.message import HttpError, HttpUrl, checked_headers
from midcall.json_schema import compiled
from midcall.lifespan import RunningLifespan
from midcall.openapi.document import Source, load
from midcall.openapi.operations import Operation, OperationReader, base_of
from midcall.openapi.send import ApiRequest, build
from midcall.selection import check_matched, checked_tags, selection

if TYPE_CHECKING:
    from midcall.http.client import HttpClient

MAX_REPLY = 4 * 1024 * 1024
"""Bytes of an answer."""
MAX_ERROR = 2000
"""Characters of an answer that says what is wrong."""
MOST_FAULTS = 20

_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_SHOWN = 200
"""Characters of an argument in a question."""

log = logging.getLogger("midcall.openapi")

GivenHeaders = (
    Mapping[str, str] | Callable[[str | None], Mapping[str, str] | Awaitable[Mapping[str, str]]] | None
)
Confirming = Literal["unsafe"] | Sequence[str] | None


class ApiReply(Struct, frozen=True):
    """What the API has answered, as it is kept."""

    status: int
    media: str
    body: bytes


class OpenApi(Activation):
    """The operations of a document, in one namespace."""

    def __init__(
        self,
        source: Source,
        *,
        namespace: str,
        base_url: str | None = None,
        headers: GivenHeaders = None,
        query: Mapping[str, str] | None = None,
        only: Sequence[str] | str = (),
        without: Sequence[str] | str = (),
        tags: Collection[str] = (),
        names: Mapping[str, str] | None = None,
        confirm: Confirming = None,
        scopes: Sequence[str] = (),
        check_results: bool = True,
        timeout: float = 30.0,
    ) -> None:
        """As `Hub.from_openapi` says. Raises `RegistrationError`."""
        document = load(source)
        info = document.part("info")
        self.begin(namespace, str(info.get("description") or info.get("title") or ""))
        self.version = str(info.get("version") or "1.0.0")
        self.base = base_of(document, base_url)
        self._headers = headers
        self._query = dict(query or {})
        self._timeout = timeout
        self._client = RunningLifespan(namespace, http_client, None)
        fixed = headers if isinstance(headers, Mapping) else {}
        try:
            checked_headers(fixed.items())
        except HttpError as error:
            raise RegistrationError(str(error)) from None
        given = {name.lower() for name in (*fixed, *self._query)}
        reader = OperationReader(document, given=given, names=names)
        listed = reader.listed()
        there = [one for one, _, _ in listed]
        wanted = selection(only, without)
        asked = selection(() if confirm in (None, "unsafe") else confirm, ())
        for one in (wanted, asked):
            check_matched(one, there)
        for which, item, operation in listed:
            if not wanted.takes(which):
                continue
            made = reader.read(which, item, operation, results=check_results)
            if made is not None:
                confirms = (confirm == "unsafe" and not made.safe) or (
                    bool(asked.only) and asked.takes(which)
                )
                self.methods[made.name] = OpenApiMethod(self, made, tags, scopes, confirms=confirms)
        if not self.methods:
            raise RegistrationError(f"{document.place} has no operation that can be called")
        self.hash = self._hash()
        if namespace and "schema" not in self.methods:
            self.methods["schema"] = own_method(self.schema, "The schema of this API.")
        log.info("%s: %d methods, which call %s", document.place, len(self.visible), self.base)

    async def close(self) -> None:
        await self._client.leave()

    async def send(self, request: ApiRequest, key: str, caller: str | None) -> ApiReply:
        """Send a request with the author's credentials. Raises `HttpError` if there is no answer."""
        path, _, query = request.path.partition("?")
        pairs = [query] if query else []
        pairs += [f"{_quoted(name)}={_quoted(value)}" for name, value in self._query.items()]
        url = HttpUrl(
            self.base.full.partition("?")[0].rstrip("/") + path + ("?" + "&".join(pairs) if pairs else "")
        )
        url.credentials = self.base.credentials
        own = await self._own_headers(caller)
        taken = {name.lower() for name in own}
        headers = [pair for pair in request.headers if pair[0].lower() not in taken]
        if key:
            headers.append(("Idempotency-Key", key))
        headers += [("Accept", "application/json, */*;q=0.5"), ("User-Agent", "midcall"), *own.items()]
        client: HttpClient = await self._client.value()
        for _ in range(_MAX_REDIRECTS):
            response = await client.request(request.verb, url, headers, request.body, timeout=self._timeout)
            target = response.headers.get("location")
            if request.verb != "GET" or response.status not in _REDIRECTS or not target:
                body = await response.read(MAX_REPLY)
                return ApiReply(response.status, response.headers.get("content-type") or "", body)
            response.close()
            there = url.join(target)
            if there.origin != self.base.origin:
                raise HttpError(f"{url} leads to {there}, which is not followed", sent=True)
            url = there
        raise HttpError(f"{url} redirects too often", sent=True)

    async def _own_headers(self, caller: str | None) -> Mapping[str, str]:
        if self._headers is None or isinstance(self._headers, Mapping):
            return self._headers or {}
        made = self._headers(caller)
        return await made if inspect.isawaitable(made) else made


def http_client() -> "HttpClient":
    """Of the event loop in which it is first used: it is closed with that, or with the hub."""
    from midcall.http.client import HttpClient  # noqa: PLC0415  aiohttp takes a while

    return HttpClient()


class OpenApiMethod(Method):
    """One operation, ready to be called."""

    __slots__ = ("_api", "_confirms", "_operation", "extras")

    def __init__(
        self,
        api: OpenApi,
        operation: Operation,
        tags: Collection[str],
        scopes: Sequence[str],
        *,
        confirms: bool,
    ) -> None:
        self._api = api
        self._operation = operation
        self._confirms = confirms
        self.describe(operation.name, operation.description, operation.params, operation.returns, self.invoke)
        self.interactive = confirms
        self.extras = {
            "tags": checked_tags({*tags, *operation.tags}),
            "scopes": tuple(scopes),
            "annotations": {
                "readOnlyHint": operation.safe,
                "destructiveHint": operation.verb == "DELETE",
                "idempotentHint": operation.verb in ("GET", "PUT", "DELETE"),
                "openWorldHint": True,
            },
        }
        if operation.title:
            self.extras["title"] = operation.title
        self.hash = digest(self._schema())

    def read_arguments(self, raw: bytes, name: str = "") -> dict[str, Any]:
        name = name or self.name
        try:
            given = msgspec.json.decode((self._by_name(raw) if raw.lstrip()[:1] == b"[" else raw) or b"{}")
            given = {} if given is None else given
            faults = compiled(self.params).faults(given, MOST_FAULTS)
        except (ValueError, RecursionError) as error:
            faults = [{"path": "", "message": str(error)}]
        if faults:
            raise InvalidArguments(name, faults)
        build(self._operation, given)  # what cannot be sent is refused before anybody is asked
        return given  # type: ignore[no-any-return]

    async def invoke(self, call: Call, arguments: dict[str, Any]) -> Any:
        operation, ask = self._operation, Ask(call)
        request = build(operation, arguments)
        if self._confirms and not await ask.confirm(self._question(request, arguments)):
            raise Declined(f"Not confirmed: {operation.verb} {operation.path} was not sent")
        key = ask.step_key if operation.takes_key else ""
        try:
            reply = await ask.step(self._send, request, key, call.principal, retry_safe=operation.safe)
        except StepInterrupted as error:
            raise StepInterrupted(f"{operation.verb} {operation.path}", error.key) from error
        return self._result(reply)

    async def _send(self, request: ApiRequest, key: str, caller: str | None) -> ApiReply:
        return await self._api.send(request, key, caller)

    def _question(self, request: ApiRequest, arguments: Mapping[str, Any]) -> str:
        """What is about to be done, an argument a line: as JSON, so that none can look like another one."""
        operation = self._operation
        lines = [
            (operation.title or operation.description.partition("\n")[0]).rstrip(".?!")[:_MAX_SHOWN] + "?",
            f"{operation.verb} {self._api.base.shown.rstrip('/')}{request.path}"[: 2 * _MAX_SHOWN],
        ]
        for name, value in arguments.items():
            text = msgspec.json.encode(value).decode()
            lines.append(f"{name}: {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '…'}")
        return "\n".join(lines)

    def _result(self, reply: ApiReply) -> Any:
        """What the API gave. Raises `ToolError` if it did not do what it was to do."""
        operation = self._operation
        where = f"{operation.verb} {operation.path}"
        if not 200 <= reply.status < 300:
            raise ToolError(
                f"{where} answered {_status(reply.status)}.{_excerpt(reply)}",
                code=f"http_{reply.status}",
                recoverable=reply.status in (408, 429, 502, 503, 504),
            )
        value = _value(reply)
        if self.returns is not None:
            try:
                fault = (
                    compiled(self.returns).fault(value) if not isinstance(value, Content) else "it is a file"
                )
            except ValueError as error:
                fault = str(error)
            if fault is not None:
                done = "" if operation.safe else " It was done."
                raise ToolError(
                    f"{where} answered {_status(reply.status)}, but not as its document says: "
                    f"{fault}.{done}{_excerpt(reply)}",
                    code="unexpected_answer",
                )
        return value


def _value(reply: ApiReply) -> Any:
    """An answer as a value: JSON, text, or a file."""
    media, _, rest = reply.media.partition(";")
    media = media.strip().lower()
    if not reply.body:
        return None
    if media.endswith(("/json", "+json")):
        try:
            return msgspec.json.decode(reply.body)
        except (ValueError, RecursionError):
            return reply.body.decode(errors="replace")
    if media.startswith("image/"):
        return Image(reply.body, media)
    if media.startswith("audio/"):
        return Audio(reply.body, media)
    if media.startswith("text/") or not media or media.endswith(("/xml", "+xml", "/yaml", "+yaml")):
        return reply.body.decode("latin-1" if "iso-8859-1" in rest.lower() else "utf-8", errors="replace")
    return Embedded(Document("file:///response", media, blob=reply.body))


def _excerpt(reply: ApiReply) -> str:
    text = reply.body[: 4 * MAX_ERROR].decode(errors="replace").strip()
    if not text or "\0" in text:
        return ""
    return f" It said: {text if len(text) <= MAX_ERROR else text[:MAX_ERROR] + '…'}"


def _status(status: int) -> str:
    try:
        return f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _quoted(text: str) -> str:
    from urllib.parse import quote  # noqa: PLC0415  for the few that have a key in the query

    return quote(text, safe="")

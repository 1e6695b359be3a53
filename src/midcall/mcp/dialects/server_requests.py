"""Questions as requests of the server: `elicitation/create`, `sampling/createMessage`, `roots/list`.

For legacy callers who declare them. The call stays on the line; the client's response is the answer.
"""

import msgspec

from midcall import jsonrpc
from midcall.errors import Cancelled, NotSupported, UnknownQuestion, WrongAnswer, WrongType
from midcall.items import Request, RequestCancelled, to_json
from midcall.jsonrpc import Envelope
from midcall.mcp import revisions
from midcall.mcp.dialects.base import Dialect, Finish
from midcall.mcp.elicitation import QUESTION_KEY, answer_from, inexpressible, request_for, wants_tools
from midcall.mcp.exchange import Exchange
from midcall.mcp.legacy import Session


class ServerRequests(Dialect):
    """The outlet of a call that asks by requests to the client."""

    __slots__ = ("_session", "_waiting")

    def __init__(self, exchange: Exchange, finish: Finish, session: Session) -> None:
        super().__init__(exchange, finish)
        self._session = session
        self._waiting: dict[str, int] = {}

    @property
    def supported(self) -> frozenset[str]:
        return self.exchange.caller.kinds if self.exchange is not None else frozenset()

    def ask(self, request: Request) -> None:
        if self.exchange is None:
            return
        reason = inexpressible(request.request_type)
        if reason is not None:
            self._fail(request, NotSupported(reason))
            return
        if wants_tools(request.request_type) and not self.exchange.caller.gives_tools:
            self._fail(request, NotSupported("The model of this client cannot be given tools"))
            return
        method, params = request_for(request.request_type)
        if self.exchange.caller.revision < revisions.URL_ELICITATION:
            params.pop("mode", None)
        elif params.get("mode") == "url":
            params["elicitationId"] = request.request_id
        if request.key is not None:
            params["_meta"] = {QUESTION_KEY: request.key}
        id = self._session.requests.add(lambda response: self._answered(request, response))
        self._waiting[request.request_id] = id
        self.exchange.line.send(jsonrpc.request(id, method, to_json(params)))

    def withdraw(self, cancelled: RequestCancelled) -> None:
        self._withdraw(cancelled.request_id, cancelled.reason)

    def drop(self, exchange: Exchange, reason: str, *, cancelled: bool) -> None:
        for request_id in list(self._waiting):
            self._withdraw(request_id, reason)  # whoever shows the question can close it
        super().drop(exchange, reason, cancelled=cancelled)

    def _withdraw(self, request_id: str, reason: str) -> None:
        id = self._waiting.pop(request_id, None)
        if id is not None and self._session.requests.take(id) is not None and self.exchange is not None:
            self.exchange.notify("notifications/cancelled", {"requestId": id, "reason": reason})

    def _answered(self, request: Request, response: Envelope) -> None:
        self._waiting.pop(request.request_id, None)
        if self.call is None:
            return
        if response.error is not msgspec.UNSET:
            self._fail(request, Cancelled(response.error.message))
            return
        try:
            result = msgspec.json.decode(response.result)
            self.call.answer(request.request_id, answer_from(request.request_type, result))
        except WrongAnswer as error:
            self._fail(request, WrongType(f"The client's answer does not fit: expected {error.expected}"))
        except (msgspec.DecodeError, RecursionError):
            self._fail(request, WrongType("The client's answer does not fit: it has no result"))
        except UnknownQuestion:
            pass  # it came too late

    def _fail(self, request: Request, error: Exception) -> None:
        if self.call is not None and self.call.questions is not None:
            self.call.questions.fail(request.request_id, error)

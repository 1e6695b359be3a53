"""The caller stays on the line: questions are requests of the server, and the response is the answer.

`elicitation/create`, `sampling/createMessage` and `roots/list`, for legacy callers who declare them. The
person of a client without elicitation is asked by notifications instead (see `respond_tool`). A caller who
cannot be asked, as a modern one cannot in this way, is not asked.
"""

from typing import Any

import msgspec

from midcall import jsonrpc
from midcall.call import Call
from midcall.errors import Cancelled, NotSupported, UnknownQuestion, WrongAnswer, WrongType
from midcall.items import Done, Item, Progress, Request, RequestCancelled, to_json
from midcall.jsonrpc import Envelope
from midcall.mcp import revisions
from midcall.mcp.dialects import respond_tool
from midcall.mcp.elicitation import QUESTION_KEY, answer_from, inexpressible, rounds_for, together
from midcall.mcp.request import Caller, McpRequest, Outcome, Session
from midcall.mcp.results import Finish, McpReply, text_block
from midcall.open_questions import TIMED_OUT
from midcall.questions import PERSON_KINDS


class Attached(McpReply):
    """The outlet of a call whose caller waits for its result."""

    takes_passed = True
    """Whether it takes what another MCP server gave as it is (see `content.Passed`)."""

    __slots__ = ("_notified", "_session", "_unanswered", "_waiting", "call")

    def __init__(self, request: McpRequest, finish: Finish, name: str, session: Session) -> None:
        super().__init__(request, finish, name)
        self.call: Call | None = None
        self._session = session
        self._waiting: dict[str, int] = {}
        self._notified: dict[str, Request] = {}
        """What a client without elicitation is asked."""
        self._unanswered = ""
        """Why nobody has answered, and what to do."""

    def put(self, item: Item) -> None:
        if isinstance(item, Done):
            self._done()
        elif isinstance(item, Request):
            self._ask(item)
        elif isinstance(item, RequestCancelled):
            self._withdraw(item.request_id, item.reason)
            self._give_up(item)
        else:
            self.add(item)

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """The caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        for request_id in list(self._waiting):
            self._withdraw(request_id, reason)  # whoever shows the question can close it
        self.request = None
        if self.call is not None:
            self.call.abort(reason)

    def _done(self) -> None:
        """The call has ended: answer the request, unless its caller has cancelled it."""
        if self.request is not None:
            self.request.deliver(self._explained(self.request.caller))
        self.call = None  # they know each other: only the collector would free them

    def _explained(self, caller: Caller) -> Outcome:
        """The outcome; if nobody was or could be asked because of what the client lacks, it says so."""
        outcome, why = self.outcome(), self._unanswered
        if not why and caller.model_answers and self.failure is not None:
            cannot = self.failure.code == NotSupported.code
            why = respond_tool.unanswered(None, responds=caller.responds) if cannot else ""
        if why and isinstance(outcome, dict) and isinstance(outcome.get("content"), list):
            outcome["content"] = [*outcome["content"], text_block(why)]
        return outcome

    def _give_up(self, item: RequestCancelled) -> None:
        """A question is closed: if nobody answered it in time, the result is to say why."""
        asked = self._notified.pop(item.request_id, None)
        if asked is not None and item.reason == TIMED_OUT and self.request is not None:
            responds = self.request.caller.responds
            self._unanswered = respond_tool.unanswered(asked.link, responds=responds)

    def _ask(self, asked: Request) -> None:
        if self.request is None:
            return
        caller = self.request.caller
        if asked.request_type.kind in PERSON_KINDS and not caller.elicits:
            if asked.link is None and not caller.responds:
                self._fail(
                    asked, NotSupported("This client cannot be asked: its questions could not be kept")
                )
                return
            self._notified[asked.request_id] = asked
            self.request.notify("notifications/message", respond_tool.notice(asked, responds=caller.responds))
            if asked.link is not None:
                self.add(Progress(asked.metadata, respond_tool.waiting_at(asked)))
            return
        reason = inexpressible(asked.request_type, tools=self.request.caller.gives_tools)
        if reason is not None:
            self._fail(asked, NotSupported(reason))
            return
        self._ask_rounds(asked, rounds_for(asked.request_type), {})

    def _ask_rounds(
        self, asked: Request, rounds: dict[str, tuple[str, dict[str, Any]]], results: dict[str, Any]
    ) -> None:
        """Ask the first round of a question that has no result yet."""
        if self.request is None:
            return
        path = next(path for path in rounds if path not in results)
        method, params = rounds[path]
        if self.request.caller.revision < revisions.URL_ELICITATION:
            params.pop("mode", None)
        elif params.get("mode") == "url":
            params["elicitationId"] = asked.request_id
        if asked.key is not None:
            params["_meta"] = {QUESTION_KEY: asked.key}
        id = self._session.requests.add(
            lambda response: self._answered(asked, response, path, rounds, results)
        )
        self._waiting[asked.request_id] = id
        self.request.stream.send(jsonrpc.request(id, method, to_json(params)))

    def _withdraw(self, request_id: str, reason: str) -> None:
        id = self._waiting.pop(request_id, None)
        if id is not None and self._session.requests.take(id) is not None and self.request is not None:
            self.request.notify("notifications/cancelled", {"requestId": id, "reason": reason})

    def _answered(
        self,
        asked: Request,
        response: Envelope,
        path: str,
        rounds: dict[str, tuple[str, dict[str, Any]]],
        results: dict[str, Any],
    ) -> None:
        self._waiting.pop(asked.request_id, None)
        if self.call is None:
            return
        if response.error is not msgspec.UNSET:
            self._fail(asked, Cancelled(response.error.message))
            return
        try:
            result = results[path] = msgspec.json.decode(response.result)
            accepted = isinstance(result, dict) and result.get("action") == "accept"
            if accepted and len(results) < len(rounds):
                self._ask_rounds(asked, rounds, results)
                return
            given = together(asked.request_type, results)
            self.call.answer(asked.request_id, answer_from(asked.request_type, given))
        except WrongAnswer as error:
            self._fail(asked, WrongType(f"The client's answer does not fit: expected {error.expected}"))
        except (msgspec.DecodeError, RecursionError):
            self._fail(asked, WrongType("The client's answer does not fit: it has no result"))
        except UnknownQuestion:
            pass  # it came too late

    def _fail(self, asked: Request, error: Exception) -> None:
        if self.call is not None and self.call.questions is not None:
            self.call.questions.fail(asked.request_id, error)

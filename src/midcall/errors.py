"""Every exception of midcall, as a tree.

    MidcallError
    ├── RegistrationError      a method or namespace cannot be registered
    ├── LifespanError          the lifespan of a hub cannot be entered
    ├── MethodNotFound         there is no method with that name
    ├── InvalidArguments       the arguments do not match the method's parameters
    ├── UnknownResource        raised by your code: there is no such resource or prompt
    ├── NotAllowed             the caller lacks a scope that the method needs
    ├── TooLong                a name or an id is longer than allowed
    ├── TooManyCalls           a limit on running calls is reached
    ├── RateLimited            the caller exceeds its rate limit
    ├── ToolError              raised by your code: the tool failed, with a message for the caller
    ├── ProtocolError          raised by your code: the request failed, not the tool
    ├── Aborted                the call was stopped from outside
    ├── NotDurable             the server keeps no calls
    ├── UnknownCall            no such call is kept for this caller
    ├── BadFork                the call has not reached the point to fork at, or is not kept
    ├── NotWaiting             the call is not waiting for an answer (any more)
    ├── AttachedElsewhere      the durable call is now followed at another worker
    ├── AskError               what a tool gets when its question is not answered
    │   ├── NotSupported       this caller cannot be asked
    │   ├── TimedOut           nobody answered in time
    │   ├── Cancelled          the person, or the tool itself, cancelled the question
    │   ├── Declined           the person declined to answer
    │   ├── WrongType          the client's answer does not match the question
    │   └── TransportLost      the connection to the caller was lost
    ├── BranchLimit            a conversation with the model is too deep, or over its token budget
    ├── AnswerError            an answer is rejected; only the sender sees it, not the tool
    │   ├── UnknownLink        a link is not valid: already used, expired, or for somebody else
    │   ├── UnknownQuestion    no such question is open
    │   └── WrongAnswer        the answer does not match; the question stays open
    ├── StepInterrupted        the process died in the middle of a step, which may or may not have happened
    ├── StepFailed             a step failed before, with an error that cannot be recreated
    ├── Diverged               a replayed call does something else than before: its code has changed
    ├── JournalError           the journal cannot be read or written
    │   ├── Fenced             another worker has taken over the call
    │   ├── BadExport          the data to import is not an exported call
    │   ├── BadPage            a list is requested from a position where no page ends
    │   └── JournalFull        the caller has used up its share of the journal
    ├── Conflict               somebody else has changed a conversation or a tree, or written lines of a run
    ├── TreeError              a tree cannot be read or changed in this way
    │   ├── UnknownTree        the caller has no such tree
    │   └── UnknownNode        the tree has no such node
    ├── RemoteError            a call through a client failed on the other side
    ├── Unreachable            a client cannot reach its server: nothing was sent
    └── LoginFailed            a client was not given access to its server

`code` is the short word that goes into an error item; `recoverable` says whether trying again
may help. This module imports nothing of midcall.
"""

from collections.abc import Sequence
from typing import Any


class MidcallError(Exception):
    """The root: catch this to catch everything that midcall raises on purpose."""

    code: str = "error"
    recoverable: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """What a machine may want beside the message and the code, ready for JSON."""
        return {}


class RegistrationError(MidcallError):
    """A method, activation, hub or extension cannot be registered; nothing was changed."""

    code = "registration"


class LifespanError(MidcallError):
    """What a hub needs to be served cannot be had (see `Hub.lifespan`)."""

    code = "lifespan"


class MethodNotFound(MidcallError):
    """No method has this name."""

    code = "method_not_found"

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        self.name = name
        self.near = list(near)
        hint = f". Did you mean {_either(self.near)}?" if self.near else ""
        super().__init__(f"Unknown method: {name}{hint}")

    @property
    def data(self) -> dict[str, Any]:
        return {"name": self.name, "near": self.near}


class InvalidArguments(MidcallError):
    """The arguments do not fit the method. `errors` has one `{"path", "message"}` for each fault."""

    code = "invalid_arguments"

    def __init__(self, method: str, errors: Sequence[dict[str, str]]) -> None:
        self.method = method
        self.errors = list(errors)
        lines = "; ".join(f"{e['path']}: {e['message']}" if e["path"] else e["message"] for e in errors)
        super().__init__(f"Invalid arguments for {method}: {lines}")

    @property
    def data(self) -> dict[str, Any]:
        return {"method": self.method, "errors": self.errors}


class UnknownResource(MidcallError):
    """A `@resource` or a `@prompt` raises this for what fits its template, but is not there."""

    code = "unknown_resource"


class NotAllowed(MidcallError):
    """The caller lacks scopes that the method needs. `needed` has all of the method's."""

    code = "insufficient_scope"

    def __init__(self, method: str, missing: Sequence[str], needed: Sequence[str] = ()) -> None:
        self.method = method
        self.missing = list(missing)
        self.needed = list(needed or missing)
        super().__init__(f"Not allowed to call {method}: it needs the scope {' '.join(self.missing)}")

    @property
    def data(self) -> dict[str, Any]:
        return {"method": self.method, "scopes": self.needed}


class TooLong(MidcallError):
    """A name or an id has more characters than any that there is."""

    code = "too_long"


class TooManyCalls(MidcallError):
    """The limit on calls at once is reached; try again when some have ended."""

    code = "too_many_calls"
    recoverable = True


class RateLimited(MidcallError):
    """The caller starts calls faster than it may; `retry_after` is in how many seconds it may again."""

    code = "rate_limited"
    recoverable = True

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def data(self) -> dict[str, Any]:
        return {"retry_after": self.retry_after}


class ToolError(MidcallError):
    """Raise this in a method to fail with a message that is meant for the caller."""

    def __init__(self, message: str, *, code: str = "tool_error", recoverable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.recoverable = recoverable


class ProtocolError(MidcallError):
    """Raise this in a method to fail the request itself: an MCP client gets an error, not a result."""

    code = "protocol_error"


class Aborted(MidcallError):
    """The call was stopped from outside: by its caller, an operator or a closing server."""

    code = "aborted"


class NotDurable(MidcallError):
    """The server keeps no calls."""

    code = "not_durable"


class UnknownCall(MidcallError):
    """There is no such call, or it is not this caller's, or it is over and forgotten."""

    code = "unknown_call"

    def __init__(self, call_id: str, why: str = "") -> None:
        self.call_id = call_id
        super().__init__(f"Unknown call: {call_id}" + (f" ({why})" if why else ""))

    @property
    def data(self) -> dict[str, Any]:
        return {"call": self.call_id}


class BadFork(MidcallError):
    """A call cannot be forked there."""

    code = "bad_fork"


class NotWaiting(MidcallError):
    """The call does not wait for this: it runs, has ended, or somebody else was faster."""

    code = "not_waiting"

    def __init__(self, call_id: str, status: str, why: str = "") -> None:
        self.call_id = call_id
        self.status = status
        super().__init__(why or f"Call {call_id} does not wait for an answer: it is {status}")

    @property
    def data(self) -> dict[str, Any]:
        return {"call": self.call_id, "status": self.status}


class AttachedElsewhere(MidcallError):
    """Somebody follows the call on a connection to another worker now; it can be attached to again."""

    code = "attached_elsewhere"
    recoverable = True

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        super().__init__(f"Call {call_id} is followed at another worker now: attach again to follow it here")


class AskError(MidcallError):
    """A question brought no answer. Its text is fit to be shown to a person."""


class NotSupported(AskError):
    """This caller cannot be asked, or not this kind of question. `ask.or_else` covers only this."""

    code = "not_supported"

    def __init__(self, message: str = "This caller cannot be asked: interactive mode required") -> None:
        super().__init__(message)


class TimedOut(AskError):
    """Nobody answered in time."""

    code = "timed_out"
    recoverable = True


class Cancelled(AskError):
    """The question was cancelled, by the person or by `ask.cancel_question`."""

    code = "cancelled"


class Declined(AskError):
    """The person declined to answer."""

    code = "declined"


class WrongType(AskError):
    """The client's answer was not of the kind that was asked for, and it cannot be asked again."""

    code = "wrong_type"


class TransportLost(AskError):
    """The line to the caller broke before an answer came."""

    code = "transport_lost"
    recoverable = True


class BranchLimit(MidcallError):
    """A tool's conversation with the model is as deep, or has cost as much, as it may."""

    code = "branch_limit"


class AnswerError(MidcallError):
    """An answer was refused, and changed nothing."""


class UnknownLink(AnswerError):
    """A link to a question leads nowhere. Why is not said: who guesses must learn nothing."""

    code = "unknown_link"

    def __init__(self) -> None:
        super().__init__("This link is not valid: it was used, its time is up, or it is for somebody else")


class UnknownQuestion(AnswerError):
    """No such question is open for this answerer: unknown, answered, timed out or cancelled."""

    code = "unknown_request"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(
            f"Unknown request ID: {request_id}. The request may have timed out or been cancelled."
        )

    @property
    def data(self) -> dict[str, Any]:
        return {"request_id": self.request_id}


class WrongAnswer(AnswerError):
    """The answer does not fit its question, which stays open."""

    code = "wrong_answer"

    def __init__(self, expected: str) -> None:
        self.expected = expected
        super().__init__(f"Wrong answer: expected {expected}. The question is still open.")

    @property
    def data(self) -> dict[str, Any]:
        return {"expected": self.expected}


class StepInterrupted(MidcallError):
    """The process died in the middle of this step: what it does may have happened, or not.

    Check with the outside world (by `key`, the step's `ask.step_key`), or ask the person. A step that
    may be done twice says so (`retry_safe=True`), and is repeated instead.
    """

    code = "step_interrupted"

    def __init__(self, step: str, key: str) -> None:
        self.step = step
        self.key = key
        super().__init__(f"{step} was interrupted: it may have happened, or not")

    @property
    def data(self) -> dict[str, Any]:
        return {"step": self.step, "key": self.key}


class StepFailed(MidcallError):
    """A step failed, before the call was run again from its journal; the message is that of its error."""

    code = "step_failed"


class Diverged(MidcallError):
    """A call that is run again from its journal does something else than before: its code has changed.

    The call is kept. With the old code, or one that does the same up to here, it goes on.
    """

    code = "diverged"

    def __init__(self, expected: str, got: str, line: str) -> None:
        self.expected = expected
        self.got = got
        self.line = line
        where = f" at {line}" if line else ""
        super().__init__(f"The code of this call has changed{where}: expected {expected}, but got {got}")

    @property
    def data(self) -> dict[str, Any]:
        return {"expected": self.expected, "got": self.got, "line": self.line}


class JournalError(MidcallError):
    """The journal cannot be read or written: the disk is full, the database is away."""

    code = "journal_error"
    recoverable = True


class Fenced(JournalError):
    """Another worker has taken the call over: this one must not act for it any more."""

    code = "fenced"
    recoverable = False


class BadExport(JournalError):
    """What is to be imported is not an exported call, or one that cannot be."""

    code = "bad_export"
    recoverable = False


class BadPage(JournalError):
    """A list is asked for from a place where no page ends."""

    code = "bad_page"
    recoverable = False

    def __init__(self, after: str) -> None:
        super().__init__(f"This is not the mark of a page: {after}")


class JournalFull(JournalError):
    """The caller has as much in the journal as it may: when some of its calls are forgotten, it may again."""

    code = "journal_full"


class Conflict(MidcallError):
    """Somebody else has changed the conversation or the tree since it was read, or has written other lines of
    the run."""

    code = "conflict"
    recoverable = True


class TreeError(MidcallError):
    """A tree cannot be read or changed in this way (see `midcall.journal.trees`); nothing is changed."""

    code = "tree_error"


class UnknownTree(TreeError):
    """There is no such tree, or it is another caller's."""

    code = "unknown_tree"

    def __init__(self, tree_id: str) -> None:
        super().__init__(f"Tree not found: {tree_id[:100]}")


class UnknownNode(TreeError):
    """The tree has no such node."""

    code = "unknown_node"

    def __init__(self, node_id: str) -> None:
        super().__init__(f"Node not found: {node_id[:100]}")


class RemoteError(MidcallError):
    """The other side refused a client's request: `rpc_code` and `rpc_data` are what it sent."""

    code = "remote_error"

    def __init__(self, message: str, *, rpc_code: int, rpc_data: Any = None) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code
        self.rpc_data = rpc_data


class Unreachable(MidcallError):
    """A server cannot be reached, or is none: what was to be sent was not sent, and may be tried again."""

    code = "unreachable"
    recoverable = True


class LoginFailed(MidcallError):
    """A client was not given access: nobody logged in, a token is refused, a scope is not granted.

    `reason` is the word of OAuth for it, if there is one: `access_denied`, `invalid_grant`.
    """

    code = "login_failed"

    def __init__(
        self, message: str, *, server: str = "", reason: str = "", recoverable: bool = False
    ) -> None:
        super().__init__(message)
        self.server = server
        self.reason = reason
        self.recoverable = recoverable

    def again(self) -> "LoginFailed":
        """The same error, for another one who has waited for the same login."""
        return LoginFailed(str(self), server=self.server, reason=self.reason, recoverable=self.recoverable)

    @property
    def data(self) -> dict[str, Any]:
        return {"server": self.server, "reason": self.reason}


def _either(names: Sequence[str]) -> str:
    return " or ".join(names)

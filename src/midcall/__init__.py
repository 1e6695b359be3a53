"""midcall: a tool that can stop in the middle and ask.

from midcall import Ask, Hub, method
"""

from typing import TYPE_CHECKING, Any

from midcall.ask import Ask, Asking
from midcall.branch import Branch
from midcall.call import Call, CallerName, CallInfo, Lifespan, Status
from midcall.calls import Calls
from midcall.content import Listing
from midcall.decorators import completion, listing, method, prompt, resource
from midcall.dependencies import Depends
from midcall.errors import (
    Aborted,
    AnswerError,
    AskError,
    BranchLimit,
    Cancelled,
    Declined,
    Diverged,
    Fenced,
    InvalidArguments,
    JournalError,
    JournalFull,
    LifespanError,
    MethodNotFound,
    MidcallError,
    NotAllowed,
    NotDurable,
    NotSupported,
    ProtocolError,
    RateLimited,
    RegistrationError,
    RemoteError,
    StepFailed,
    StepInterrupted,
    TimedOut,
    ToolError,
    TooLong,
    TooManyCalls,
    TransportLost,
    UnknownCall,
    UnknownQuestion,
    UnknownResource,
    Unreachable,
    WrongAnswer,
    WrongType,
)
from midcall.hub import Hub
from midcall.invocation import Invocation
from midcall.items import Data, Done, Error, Item, Log, Progress, Request, RequestCancelled
from midcall.middleware import CallContext, Next
from midcall.principal import Principal, RequestInfo
from midcall.questions import CANCELLED, DECLINED, Option, Question, Sampled, ToolUse
from midcall.version import __version__

if TYPE_CHECKING:
    from midcall.client import Client, ToolResult, connect, connect_hub

__all__ = [
    "CANCELLED",
    "DECLINED",
    "Aborted",
    "AnswerError",
    "Ask",
    "AskError",
    "Asking",
    "Branch",
    "BranchLimit",
    "Call",
    "CallContext",
    "CallInfo",
    "CallerName",
    "Calls",
    "Cancelled",
    "Client",
    "Data",
    "Declined",
    "Depends",
    "Diverged",
    "Done",
    "Error",
    "Fenced",
    "Hub",
    "InvalidArguments",
    "Invocation",
    "Item",
    "JournalError",
    "JournalFull",
    "Lifespan",
    "LifespanError",
    "Listing",
    "Log",
    "MethodNotFound",
    "MidcallError",
    "Next",
    "NotAllowed",
    "NotDurable",
    "NotSupported",
    "Option",
    "Principal",
    "Progress",
    "ProtocolError",
    "Question",
    "RateLimited",
    "RegistrationError",
    "RemoteError",
    "Request",
    "RequestCancelled",
    "RequestInfo",
    "Sampled",
    "Status",
    "StepFailed",
    "StepInterrupted",
    "TimedOut",
    "TooLong",
    "TooManyCalls",
    "ToolError",
    "ToolResult",
    "ToolUse",
    "TransportLost",
    "UnknownCall",
    "UnknownQuestion",
    "UnknownResource",
    "Unreachable",
    "WrongAnswer",
    "WrongType",
    "__version__",
    "completion",
    "connect",
    "connect_hub",
    "listing",
    "method",
    "prompt",
    "resource",
]


def __getattr__(name: str) -> Any:
    if name in ("Client", "ToolResult", "connect", "connect_hub"):  # loaded when it is first used
        from midcall import client  # noqa: PLC0415

        return getattr(client, name)
    raise AttributeError(f"module 'midcall' has no attribute {name!r}")

"""What comes in with MCP requests, as structs: unknown fields are ignored, raw parts stay raw."""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, field

from midcall.limits import Key, Name, Uri

META = "io.modelcontextprotocol/"

Uris: TypeAlias = Annotated[list[Uri], msgspec.Meta(max_length=1000)]
"""Of how many resources one request can hear."""


class Elicitation(Struct):
    """Which ways of being asked a client knows; an empty object means forms."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class Capabilities(Struct):
    """What a client can do."""

    elicitation: Elicitation | None = None
    sampling: dict[str, Any] | None = None
    roots: dict[str, Any] | None = None
    experimental: Any = None
    """An object, if it is anything."""
    extensions: dict[str, Any] = {}


class Meta(Struct, frozen=True):
    """The `_meta` of a request. The modern revision says there what a legacy one said at the start."""

    revision: Name | None = field(default=None, name=f"{META}protocolVersion")
    client_info: dict[str, Any] | None = field(default=None, name=f"{META}clientInfo")
    capabilities: Capabilities | None = field(default=None, name=f"{META}clientCapabilities")
    log_level: Name | None = field(default=None, name=f"{META}logLevel")
    progress_token: Key | int | float | None = field(default=None, name="progressToken")
    idempotency_key: Key | None = field(default=None, name="dev.midcall/idempotencyKey")
    traceparent: Any = None
    """Where the caller stands in a trace, with the next two; what is no text there does no harm."""
    tracestate: Any = None
    baggage: Any = None


class Params(Struct):
    """The parameters that any request may have."""

    meta: Meta = field(default=Meta(), name="_meta")


class Initialize(Struct):
    """`initialize`."""

    revision: Name = field(name="protocolVersion")
    capabilities: Capabilities = field(default_factory=Capabilities)
    client_info: dict[str, Any] = field(default_factory=dict, name="clientInfo")


class RetryParams(Params):
    """What a request carries that comes back with answers."""

    input_responses: dict[Key, Raw] | None = field(default=None, name="inputResponses")
    request_state: Any = field(default=UNSET, name="requestState")
    """Whatever is there is checked as a state, also `null`."""


class Named(RetryParams, kw_only=True):
    """`tools/call` and `prompts/get`."""

    name: Name
    arguments: Raw = Raw()


class Located(RetryParams, kw_only=True):
    """`resources/read`, and subscribing to one."""

    uri: Uri


class ListParams(Params):
    """A list."""

    cursor: Key | None = None


class Level(Params, kw_only=True):
    """`logging/setLevel`."""

    level: Name


class Reference(Struct):
    """What a completion is for."""

    type: Name
    name: Name = ""
    uri: Uri = ""


class Argument(Struct):
    """The argument that is being typed."""

    name: Name
    value: str


class CompletionContext(Struct):
    """What is known already."""

    arguments: dict[str, str] = {}


class CompleteParams(Params, kw_only=True):
    """`completion/complete`."""

    ref: Reference
    argument: Argument
    context: CompletionContext = field(default_factory=CompletionContext)


class Filter(Struct, omit_defaults=True):
    """Which changes a modern client wants to hear of."""

    tools: bool = field(default=False, name="toolsListChanged")
    prompts: bool = field(default=False, name="promptsListChanged")
    resources: bool = field(default=False, name="resourcesListChanged")
    uris: Uris = field(default_factory=list, name="resourceSubscriptions")


class Listen(Params, kw_only=True):
    """`subscriptions/listen`."""

    notifications: Filter


class TaskParams(Params, kw_only=True):
    """`tasks/get`, `tasks/update` and `tasks/cancel`."""

    task_id: Key = field(name="taskId")
    input_responses: dict[Key, Raw] | None = field(default=None, name="inputResponses")


class CancelledParams(Struct):
    """`notifications/cancelled`."""

    request_id: Key | int | float = field(name="requestId")
    reason: str = ""

"""Dialects: how questions and answers travel, one file for each way.

A dialect is the outlet of a call that an MCP request started. All of them have a reply in the making (see
`results.McpReply`); they differ in what they do with a question. What stands here has no way to ask.
"""

from midcall.call import Call
from midcall.items import Done, Item, Request, RequestCancelled
from midcall.mcp.request import McpRequest
from midcall.mcp.results import Finish, McpReply


class Dialect(McpReply):
    """The outlet of a call whose caller is not asked."""

    takes_passed = True
    """Whether it takes what another MCP server gave as it is (see `content.Passed`)."""

    __slots__ = ("call",)

    def __init__(self, request: McpRequest, finish: Finish, name: str) -> None:
        super().__init__(request, finish, name)
        self.call: Call | None = None

    def put(self, item: Item) -> None:
        if isinstance(item, Done):
            self.done()
        elif isinstance(item, Request):
            self.ask(item)
        elif isinstance(item, RequestCancelled):
            self.withdraw(item)
        else:
            self.add(item)

    def ask(self, asked: Request) -> None:
        """Put a question to the caller."""
        raise AssertionError("a caller who cannot be asked is not asked")

    def withdraw(self, cancelled: RequestCancelled) -> None:
        """Take a question back."""

    def done(self) -> None:
        """The call has ended: answer the request, unless its caller has cancelled it."""
        if self.request is not None:
            self.request.deliver(self.outcome())
        self.call = None  # they know each other: only the collector would free them

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """A caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        self.request = None
        if self.call is not None:
            self.call.abort(reason)

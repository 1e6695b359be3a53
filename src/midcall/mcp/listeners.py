"""Listeners: modern callers with an open `subscriptions/listen`, and what each wants to hear of."""

from collections.abc import Iterable
from typing import Any

from midcall import jsonrpc
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.messages import META, Filter
from midcall.metrics import counts
from midcall.shares import Shares

SUBSCRIBED = 64 * 1024 * 1024
"""How many bytes all subscriptions may take; those of a caller with a name, a tenth."""

LISTENER = 4096
"""How many bytes an open `subscriptions/listen` counts for, beside its URIs."""

SUBSCRIPTION = 256
"""How many bytes a URI counts for, beside its own."""


def size_of(uris: Iterable[str]) -> int:
    """What subscriptions to these count for."""
    return sum(len(uri) + SUBSCRIPTION for uri in uris)


class Listeners:
    """All open subscriptions of a server."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Exchange, Filter]] = {}
        """By the identity of the exchange."""
        self.taken = Shares()
        """What subscriptions count for, those of legacy sessions included."""

    def check_room(self, principal: str | None, size: int) -> None:
        """Raise `McpError` if so much more of this caller is too much."""
        if self.taken.is_full(principal, SUBSCRIBED, size):
            counts.refused["too_many_subscriptions"] += 1
            text = "More subscriptions than there is room for; end some of them first"
            raise McpError(jsonrpc.CALL_FAILED, text)

    def add(self, exchange: Exchange, wanted: Filter) -> None:
        """Open a subscription, and acknowledge what it will hear of."""
        self._open[id(exchange)] = (exchange, wanted)
        self.taken.take(exchange.caller.principal, LISTENER + size_of(wanted.uris))
        flags = {
            "toolsListChanged": wanted.tools,
            "promptsListChanged": wanted.prompts,
            "resourcesListChanged": wanted.resources,
            "resourceSubscriptions": wanted.uris,
        }
        accepted = {name: value for name, value in flags.items() if value}
        self._send(exchange, "notifications/subscriptions/acknowledged", {"notifications": accepted})

    def remove(self, exchange: Exchange) -> None:
        """The caller has closed its subscription."""
        closed = self._open.pop(id(exchange), None)
        if closed is not None:
            self.taken.give_back(exchange.caller.principal, LISTENER + size_of(closed[1].uris))

    def changed(self, part: str) -> None:
        """The list of tools, prompts or resources has changed."""
        for exchange, wanted in tuple(self._open.values()):
            if getattr(wanted, part):
                self._send(exchange, f"notifications/{part}/list_changed", {})

    def updated(self, uri: str) -> None:
        """What is read at this URI has changed."""
        for exchange, wanted in tuple(self._open.values()):
            if uri in wanted.uris:
                self._send(exchange, "notifications/resources/updated", {"uri": uri})

    def close(self) -> None:
        """The server ends: so do all subscriptions, in good order."""
        for exchange, _ in tuple(self._open.values()):
            self.remove(exchange)
            exchange.result({"_meta": {f"{META}subscriptionId": exchange.id}})

    @staticmethod
    def _send(exchange: Exchange, method: str, params: dict[str, Any]) -> None:
        exchange.notify(method, {"_meta": {f"{META}subscriptionId": exchange.id}, **params})

"""Listeners: modern callers with an open `subscriptions/listen`, and what each wants to hear of."""

from typing import Any

from midcall.mcp.exchange import Exchange
from midcall.mcp.messages import META, Filter


class Listeners:
    """All open subscriptions of a server."""

    def __init__(self) -> None:
        self._open: list[tuple[Exchange, Filter]] = []

    def add(self, exchange: Exchange, wanted: Filter) -> None:
        """Open a subscription, and acknowledge what it will hear of."""
        self._open.append((exchange, wanted))
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
        self._open = [entry for entry in self._open if entry[0] is not exchange]

    def changed(self, part: str) -> None:
        """The list of tools, prompts or resources has changed."""
        for exchange, wanted in self._open:
            if getattr(wanted, part):
                self._send(exchange, f"notifications/{part}/list_changed", {})

    def updated(self, uri: str) -> None:
        """What is read at this URI has changed."""
        for exchange, wanted in self._open:
            if uri in wanted.uris:
                self._send(exchange, "notifications/resources/updated", {"uri": uri})

    def close(self) -> None:
        """The server ends: so do all subscriptions, in good order."""
        closing, self._open = self._open, []
        for exchange, _ in closing:
            exchange.result({"_meta": {f"{META}subscriptionId": exchange.id}})

    @staticmethod
    def _send(exchange: Exchange, method: str, params: dict[str, Any]) -> None:
        exchange.notify(method, {"_meta": {f"{META}subscriptionId": exchange.id}, **params})

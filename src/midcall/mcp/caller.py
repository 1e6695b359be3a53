"""Caller: who sends a request, and what it can do.

A legacy caller said so once, when its session began; a modern one says so in every request. The best
way of asking is chosen from here, and nothing is sent that a caller did not declare.
"""

import functools
from typing import Any

from msgspec import Struct

from midcall.mcp import revisions
from midcall.mcp.messages import Capabilities, Elicitation

TASKS = "io.modelcontextprotocol/tasks"
NESTED = "dev.midcall/nestedForms"
"""Of a client that can show any form, where the protocol has only flat ones."""

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

_FORM_KINDS = frozenset(("confirm", "prompt", "select", "form", "custom"))


class Caller(Struct, frozen=True):
    """One caller, as far as the protocol knows it."""

    revision: str
    capabilities: Capabilities
    log_level: str | None = None
    """The least level of log that it wants; `None` for no log at all."""
    client_info: dict[str, Any] | None = None
    principal: str | None = None
    """Whoever the transport has found out that it is."""
    modern: bool = False

    @property
    def knows_tasks(self) -> bool:
        return self.modern and TASKS in self.capabilities.extensions

    @property
    def shows_any_form(self) -> bool:
        return NESTED in self.capabilities.extensions

    @property
    def gives_tools(self) -> bool:
        """Whether its model may be given tools."""
        return self.capabilities.sampling is not None and "tools" in self.capabilities.sampling

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of question that it can answer by the protocol's own means."""
        can = self.capabilities
        return _kinds(
            self.revision,
            can.elicitation is not None and (can.elicitation.form is not None or can.elicitation.url is None),
            can.elicitation is not None and can.elicitation.url is not None,
            can.sampling is not None,
            can.roots is not None,
        )

    @property
    def elicits(self) -> bool:
        """Whether it declares any way to ask its person."""
        return bool(self.kinds & (_FORM_KINDS | {"url"}))

    def hears(self, level: str) -> bool:
        """Whether it wants log of this level."""
        return self.log_level is not None and LEVELS.index(level) >= LEVELS.index(self.log_level)


@functools.cache  # the same few callers come again and again
def _kinds(revision: str, form: bool, url: bool, sample: bool, roots: bool) -> frozenset[str]:
    kinds: set[str] = set()
    if form and revision >= revisions.ELICITATION:
        kinds |= _FORM_KINDS
    if url and revision >= revisions.URL_ELICITATION:
        kinds.add("url")
    if sample:
        kinds.add("sample")
    if roots:
        kinds.add("roots")
    return frozenset(kinds)


NOBODY = Capabilities()

__all__ = ["LEVELS", "NOBODY", "TASKS", "Caller", "Capabilities", "Elicitation"]

"""The revisions of MCP, and from which on a client can be asked in which way and be given what.

They are dates, so they compare as text.

*Legacy* revisions open with an `initialize` handshake, and the server may send requests to the
client. The *modern* one is stateless: each request carries its own metadata.
"""

R2024_11_05 = "2024-11-05"
R2025_03_26 = "2025-03-26"
R2025_06_18 = "2025-06-18"
R2025_11_25 = "2025-11-25"
R2026_07_28 = "2026-07-28"

LEGACY = (R2024_11_05, R2025_03_26, R2025_06_18, R2025_11_25)
MODERN = (R2026_07_28,)
ALL = (*LEGACY, *MODERN)

LATEST_LEGACY = R2025_11_25

BATCHES = R2025_03_26
"""The only revision with JSON-RPC batches."""

ELICITATION = R2025_06_18
URL_ELICITATION = R2025_11_25

AUDIO = R2025_03_26
LINKS = R2025_06_18
"""From which revisions on there are these kinds of content."""


def negotiate(requested: str) -> str:
    """The revision for a legacy session: the one asked for, or else the newest that we know."""
    return requested if requested in LEGACY else LATEST_LEGACY

"""Content: pictures, sound and documents that a method gives beside text and data.

A method may give one of these, a list that mixes them with text, or a stream of them. They are
encoded as MCP's content blocks; bytes become base64. What another MCP server gave goes through as it came
(`Passed`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field


class Content(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What all content has in common."""


class Image(Content, tag_field="type", tag="image", frozen=True):
    """A picture."""

    data: bytes
    mime_type: str = field(default_factory=lambda: "image/png")  # always written, unlike the optionals
    annotations: dict[str, Any] | None = None


class Audio(Content, tag_field="type", tag="audio", frozen=True):
    """Sound."""

    data: bytes
    mime_type: str = field(default_factory=lambda: "audio/wav")
    annotations: dict[str, Any] | None = None


class Link(Content, tag_field="type", tag="resource_link", frozen=True):
    """A resource that can be read elsewhere."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: dict[str, Any] | None = None


class Document(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The contents of a resource: text or bytes."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None


class Embedded(Content, tag_field="type", tag="resource", frozen=True):
    """A resource, with its contents."""

    resource: Document
    annotations: dict[str, Any] | None = None


class Listing(Struct, frozen=True):
    """A page of what there is of a template of resources or prompts (see `midcall.listing`).

    An item is as MCP lists it: `{"uri": .., "name": .., ..}` or `{"name": .., "arguments": .., ..}`.
    """

    items: Sequence[Mapping[str, Any]] = ()
    next: str | None = None
    """Where the next page begins, if there is one."""


class PassedError(Struct, frozen=True):
    """An error of the protocol that another server answered with."""

    code: int
    message: str
    data: Any = None


class Passed(Struct, frozen=True):
    """What another MCP server answered, for a caller who is to get it as it came."""

    result: dict[str, Any] = {}
    """Of a tool, a resource, a prompt or a completion; its parts may be raw JSON."""
    error: PassedError | None = None

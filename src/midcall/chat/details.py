"""What a conversation keeps beside its messages: how each tool call went, what the person answered in it, and
the files that tools gave or the person sent.

Files are in the conversation, and so sealed and deleted with it. What is told of them is a name, a type and
a size; whoever wants to see one asks for it by its id.
"""

import base64
import binascii
import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from midcall.models.base import Attachment

MAX_FILE = 4 * 1024 * 1024
"""How large a file may be that is kept; of a larger one, the name and the size are."""

MAX_FILES = 16 * 1024 * 1024
"""How large all files of a conversation may be, together."""

MAX_PARTS = 50
"""How many parts of a result are shown that are no text."""

MAX_NAME = 200

SHOWN_TYPES = frozenset(
    (
        *("image/png", "image/jpeg", "image/gif", "image/webp"),
        *("audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp4", "audio/ogg", "audio/flac", "audio/webm"),
    )
)
"""What a page may show by itself. SVG is not in it: opened alone, it is a page with scripts."""

Action: TypeAlias = Literal["accept", "decline", "cancel", "dropped"]


class AnsweredQuestion(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A question that is over, and what the person did with it: `dropped` if they did something else."""

    elicit_id: str
    message: str
    action: Action
    content: Any = None
    schema: dict[str, Any] | None = None
    time: float = 0.0


class ContentPart(Struct, frozen=True, omit_defaults=True):
    """A part of a tool's result that is no text."""

    kind: Literal["image", "audio", "file", "link"]
    name: str
    type: str = ""
    size: int = 0
    file: str = ""
    """Under which its data are kept, if they are."""
    uri: str = ""
    """Where a link leads."""


class KeptFile(Struct, frozen=True):
    """A file of a conversation."""

    name: str
    type: str
    data: bytes


class ToolDetails(Struct, omit_defaults=True):
    """How a tool call went."""

    began: float = 0.0
    seconds: float = 0.0
    """How long it has run, without the time that it waited for the person."""
    code: str = ""
    """Of its error, if it failed: `declined` and `cancelled` are the person's doing."""
    answered: dict[str, AnsweredQuestion] = {}
    """By `elicit_id`, in their order."""
    parts: list[ContentPart] = []

    def note(self, answered: AnsweredQuestion) -> None:
        """The person has done something with a question."""
        self.answered[answered.elicit_id] = answered


class Files:
    """The files of one conversation, as they are added to."""

    def __init__(self, kept: dict[str, KeptFile]) -> None:
        self._kept = kept

    def add(self, name: str, type: str, data: bytes) -> str:
        """Keep a file; gives its id, or nothing if it is too large, or there are too many."""
        id = hashlib.sha256(b"\0".join((name.encode(), type.encode(), data))).hexdigest()[:32]
        if id in self._kept:
            return id
        if len(data) > MAX_FILE or sum(len(one.data) for one in self._kept.values()) + len(data) > MAX_FILES:
            return ""
        self._kept[id] = KeptFile(name, type, data)
        return id

    def take_parts(self, blocks: Sequence[dict[str, Any]]) -> list[ContentPart]:
        """The parts of a result that are no text; their data are kept, as far as there is room."""
        parts = []
        for block in blocks[:MAX_PARTS]:
            match block.get("type"):
                case "image" | "audio" as kind:
                    parts.append(self._file(kind, kind, block.get("mimeType"), block.get("data")))
                case "resource_link":
                    parts.append(_link(block))
                case "resource" if isinstance(block.get("resource"), dict):
                    parts.append(self._resource(block["resource"]))
        return parts

    def _resource(self, resource: dict[str, Any]) -> ContentPart:
        name, type = _name_in(resource.get("uri")), resource.get("mimeType")
        text = resource.get("text")
        if isinstance(text, str):
            data = text.encode(errors="replace")
            return self._part("file", name, str(type or "text/plain"), data)
        return self._file("file", name, type, resource.get("blob"))

    def _file(self, kind: Literal["image", "audio", "file"], name: str, type: Any, data: Any) -> ContentPart:
        """A part whose data are base64; what is none is a file that is not there."""
        named = type if isinstance(type, str) else ""
        try:
            read = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
        except (binascii.Error, ValueError):
            read = b""
        return self._part(kind, name, named, read)

    def _part(
        self, kind: Literal["image", "audio", "file"], name: str, type: str, data: bytes
    ) -> ContentPart:
        type = type.lower()[:MAX_NAME]
        if kind == "file" and type.startswith("image/"):
            kind = "image"
        if kind != "file" and type not in SHOWN_TYPES:
            kind = "file"
        if name in ("image", "audio"):
            name = f"{name}.{type.partition('/')[2].removeprefix('x-') or 'bin'}"
        name = name[:MAX_NAME]
        return ContentPart(kind, name, type, len(data), self.add(name, type, data) if data else "")


def _link(block: dict[str, Any]) -> ContentPart:
    uri, size = str(block.get("uri") or ""), block.get("size")
    name = str(block.get("title") or block.get("name") or uri)
    return ContentPart(
        "link",
        name[:MAX_NAME],
        str(block.get("mimeType") or "")[:MAX_NAME],
        size if isinstance(size, int) and size > 0 else 0,
        uri=uri[:2000],
    )


def _name_in(uri: Any) -> str:
    """A name for a document: the last part of its URI."""
    return str(uri or "").rstrip("/").rpartition("/")[2].partition("?")[0] or "document"


def image_type(data: bytes) -> str | None:
    """The media type of a picture, by how it begins; nothing if it is none that models take."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def with_data(files: Iterable[Attachment], kept: dict[str, KeptFile]) -> Iterator[Attachment]:
    """Attachments with what is in them; those that are not kept any more are left out."""
    for one in files:
        if one.id in kept:
            yield Attachment(one.id, one.name, one.type, one.size, kept[one.id].data)


def now() -> float:
    """Seconds since 1970, to the millisecond."""
    return round(time.time(), 3)

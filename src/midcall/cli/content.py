"""Pictures, sound and files in a terminal: shown where it can, or named with their size, and saved.

What a call gave is read from its JSON, so that it does not matter whether a method of this process gave it or
a server elsewhere. Names, types and bytes are others': no name leads out of a folder, and no bytes reach a
terminal but as base64 in a sequence that it knows.
"""

import base64
import mimetypes
import os
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from midcall.cli.command import UsageError
from midcall.content import Content, take_bytes
from midcall.items import to_builtins

Protocol = Literal["kitty", "iterm2", ""]

MAX_PICTURE = 8 * 1024 * 1024
"""Bytes of a picture that a terminal is given; a larger one is named."""

_CHUNK = 4096
_MAX_NAME = 100
_BYTES = "application/octet-stream"
_UNSAFE = re.compile(r"[^\w.+ -]+")
_MAGIC = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
_SHORT = {"audio/x-wav": ".wav", "audio/wav": ".wav", "image/jpeg": ".jpg", "text/markdown": ".md"}


class Block(NamedTuple):
    """A picture, sound or file."""

    kind: str
    name: str
    """For a file; nothing else than a name."""
    mime_type: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.name} ({self.mime_type}, {size_text(len(self.data))})"


def parts_of(content: Any, returns: Any = None) -> list[Any]:
    """What a call gave, as blocks and values: one, unless there is content in it.

    `returns` is its schema, which says what is bytes in it.
    """
    listed = content if isinstance(content, list | tuple) else [content]
    parts = [_part(one, number) for number, one in enumerate(listed, 1)]
    is_plain = all(new is old for new, old in zip(parts, listed, strict=True))
    if not is_plain:
        return parts
    value, files = take_bytes(to_builtins(content), returns, "file-1")
    blocks = [Block("file", file_name(f"{name}.bin", _BYTES), _BYTES, data) for name, data in files]
    return [content] if not blocks else blocks if isinstance(value, str) else [value, *blocks]


def _part(value: Any, number: int) -> Any:
    if isinstance(value, bytes):
        return Block("file", f"file-{number}.bin", _BYTES, value)
    match to_builtins(value) if isinstance(value, Content) else value:
        case {"type": "image" | "audio" as kind, "data": str(data), **more}:
            mime_type = _mime_type(more, "image/png" if kind == "image" else "audio/wav")
            decoded = _decoded(data)
            if decoded is not None:
                return Block(kind, f"{kind}-{number}{_suffix(mime_type)}", mime_type, decoded)
        case {"type": "resource", "resource": {"uri": str(uri), **more}}:
            text, blob = more.get("text"), more.get("blob")
            known = _decoded(blob) if isinstance(blob, str) else None
            decoded = text.encode(errors="replace") if isinstance(text, str) else known
            if decoded is not None:
                mime_type = _mime_type(more, _BYTES if text is None else "text/plain")
                return Block("file", file_name(uri, mime_type), mime_type, decoded)
        case {"type": "resource_link", "uri": str(uri), "name": str(name), **more}:
            texts = (more.get("title") or name, more.get("description"), uri)
            return ": ".join(text for text in texts if isinstance(text, str) and text)
    return value


def _mime_type(said: Mapping[Any, Any], default: str) -> str:
    mime_type = said.get("mimeType")
    return mime_type if isinstance(mime_type, str) and mime_type else default


def _decoded(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        return None


def file_name(uri: str, mime_type: str) -> str:
    """A name for what is at a URI: its last part, without anything that could lead elsewhere."""
    try:
        path = urlsplit(uri).path or urlsplit(uri).netloc
    except ValueError:
        path = uri
    last = unquote(path.rstrip("/")).replace("\\", "/").rpartition("/")[2]
    name = _UNSAFE.sub("_", last).strip(" .")[-_MAX_NAME:].lstrip(" .-") or "file"
    return name if "." in name else name + _suffix(mime_type)


def _suffix(mime_type: str) -> str:
    plain = mime_type.partition(";")[0].strip().lower()
    return _SHORT.get(plain) or mimetypes.guess_extension(plain) or ".bin"


def size_text(size: int) -> str:
    """A number of bytes, as people read it."""
    if size < 1000:
        return f"{size} bytes" if size != 1 else "1 byte"
    number = size / 1000
    for unit in ("kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


# --- files ----------------------------------------------------------------------------------


class Folder:
    """Where the content of a call is saved. Nothing that is there already is written over."""

    def __init__(self, path: str) -> None:
        """Raises `UsageError` if it cannot be had."""
        self._path = Path(path)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--output: {path}: {error.strerror}") from None

    def save(self, block: Block) -> str:
        """Save a block, and say where. Raises `ValueError` if it cannot be."""
        stem, dot, suffix = block.name.rpartition(".")
        number = 1
        while True:
            name = block.name if number == 1 else f"{stem}-{number}{dot}{suffix}"
            try:
                with (self._path / name).open("xb") as file:  # also of two processes, one makes it
                    file.write(block.data)
            except FileExistsError:
                number += 1
            except OSError as error:
                raise ValueError(f"Cannot save {self._path / name}: {error.strerror}") from None
            else:
                return f"Saved {block._replace(name=str(self._path / name))}"


# --- pictures -------------------------------------------------------------------------------


def pictures() -> Protocol:
    """How the terminal behind standard output shows pictures, as far as its environment tells.

    A multiplexer passes on neither protocol. `MIDCALL_IMAGES` says it for a terminal that is not known here.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        return ""
    said = os.environ.get("MIDCALL_IMAGES", "")
    if said:
        return "kitty" if said == "kitty" else "iterm2" if said == "iterm2" else ""
    term, program = os.environ.get("TERM", ""), os.environ.get("TERM_PROGRAM", "")
    if "TMUX" in os.environ or "STY" in os.environ or term.startswith(("screen", "tmux")) or term == "dumb":
        return ""
    if "KITTY_WINDOW_ID" in os.environ or term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty") or os.environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    return ""


def drawn(block: Block, protocol: Protocol) -> str | None:
    """What a terminal shows as this picture, if it can."""
    known = next((kind for magic, kind in _MAGIC.items() if block.data.startswith(magic)), None)
    if block.kind != "image" or known is None or not protocol or len(block.data) > MAX_PICTURE:
        return None
    encoded = base64.b64encode(block.data).decode()
    if protocol == "iterm2":
        name = base64.b64encode(block.name.encode()).decode()
        return f"\x1b]1337;File=inline=1;name={name};size={len(block.data)}:{encoded}\x07"
    if known != "png":
        return None
    chunks = [encoded[at : at + _CHUNK] for at in range(0, len(encoded), _CHUNK)]
    # q=2: the terminal does not answer, as nobody would read that but the next prompt.
    keys = [f"a=T,f=100,q=2{_fit(block.data)}", *("q=2" for _ in chunks[1:])]
    more = [*("m=1" for _ in chunks[1:]), "m=0"]
    return "".join(
        f"\x1b_G{key},{rest};{chunk}\x1b\\" for key, rest, chunk in zip(keys, more, chunks, strict=True)
    )


def _fit(png: bytes) -> str:
    """How many columns a PNG takes, if it is wider than the terminal."""
    if len(png) < 24:
        return ""
    (width,) = struct.unpack(">I", png[16:20])
    try:
        import fcntl
        import termios

        _, columns, pixels, _ = struct.unpack(
            "HHHH", fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
        )
    except (ImportError, OSError, ValueError):
        return ""
    return f",c={columns}" if columns and 0 < pixels < width else ""

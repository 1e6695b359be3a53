"""What was said before: to search through it, and to take it along as JSON or Markdown.

Conversations may be sealed where they are kept, so a search reads them here, and no query reaches the store.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from midcall.chat.conversation import BadRequest, Conversation, Listed
from midcall.chat.details import ToolDetails
from midcall.journal.contract import ConversationRecord, Conversations
from midcall.models.base import Message

MAX_QUERY = 200
"""How many letters a query may have."""

MAX_WORDS = 10

FOUND = 50
"""How many conversations a search gives."""

SEARCH_SECONDS = 5.0
"""How long a search may take; then it gives what it has."""

SEARCHES = 4
"""How many searches run at once in a process."""

AROUND = 40
"""How many letters are shown on each side of what was found."""


class _SaidText(Struct, frozen=True):
    role: str = ""
    content: str = ""


class _SearchedBody(Struct, frozen=True):
    """Of a conversation as it is kept, what is searched."""

    messages: list[_SaidText] = []


_decode = msgspec.json.Decoder(_SearchedBody).decode


async def search(
    store: Conversations, principal: str | None, query: str, most: int
) -> tuple[Sequence[Listed], bool]:
    """The conversations of a person that have all words of a query in their title or in what was said, of the
    newest so many; and whether that is all of them. Raises `BadRequest`."""
    words = query.casefold().split()
    if not words or len(words) > MAX_WORDS or len(query) > MAX_QUERY:
        raise BadRequest(f"A search has between 1 and {MAX_WORDS} words, and {MAX_QUERY} letters at most")
    until = time.monotonic() + SEARCH_SECONDS
    found: list[Listed] = []
    listed = await store.list(principal, most)
    for one in listed:
        if len(found) >= FOUND or time.monotonic() > until:
            return found, False
        hit = await _look_into(store, one, words)
        if hit is not None:
            found.append(hit)
        await asyncio.sleep(0)  # others have their turn
    return found, len(listed) < most


async def _look_into(store: Conversations, one: ConversationRecord, words: Sequence[str]) -> Listed | None:
    snippet = ""
    title = one.title.casefold()
    if not all(word in title for word in words):
        record = await store.load(one.id, one.principal)
        try:
            said = [] if record is None else _decode(record.body).messages
        except msgspec.MsgspecError:
            return None  # whoever opens it is told
        texts = [message.content for message in said if message.role in ("user", "assistant")]
        folded = "\n".join((title, *(text.casefold() for text in texts)))
        if not all(word in folded for word in words):
            return None
        snippet = next(filter(None, (_around(text, words) for text in texts)), "")
    return Listed(one.id, one.title, one.updated, one.waiting, one.run is not None, snippet)


def _around(text: str, words: Iterable[str]) -> str:
    """The first word that is in a text, with what stands around it."""
    for word in words:
        found = re.search(re.escape(word), text, re.IGNORECASE)
        if found is not None:
            start, end = max(0, found.start() - AROUND), found.end() + AROUND
            part = " ".join(text[start:end].split())
            return f"{'…' if start else ''}{part}{'…' if end < len(text) else ''}"
    return ""


# --- to take along ----------------------------------------------------------------------------------


def as_json(conversation: Conversation) -> bytes:
    """All of a conversation, with its files in base64."""
    exported = {
        "id": conversation.id,
        "title": conversation.title,
        "created": conversation.created,
        "updated": conversation.updated,
        "messages": conversation.messages,
        "calls": conversation.details,
        "pending": conversation.questions,
        "files": conversation.files,
    }
    return msgspec.json.format(msgspec.json.encode(exported), indent=2)


def as_markdown(conversation: Conversation) -> str:
    """A conversation to be read by people."""
    parts = [f"# {conversation.title or 'Untitled'}", _day(conversation.created)]
    results = {one.tool_call_id: one for one in conversation.messages if one.role == "tool"}
    for message in conversation.messages:
        if message.role == "user":
            parts += [_heading("You", message), message.content]
            parts += [f"*Attached: {one.name}, {size_text(one.size)}*" for one in message.files]
        elif message.role == "assistant":
            parts += [_heading("Assistant", message), message.content]
            for call in message.tool_calls:
                details = conversation.details.get(call.id, ToolDetails())
                parts += [f"**Tool `{call.name}`**", _fenced(call.arguments, "json")]
                parts += [_asked(one.message, one.action, one.content) for one in details.answered.values()]
                parts += [
                    f"*{one.kind.title()}: {one.name}{f', {size_text(one.size)}' if one.size else ''}"
                    f"{f', {one.uri}' if one.uri else ''}*"
                    for one in details.parts
                ]
                if call.id in results:
                    parts.append(_fenced(results[call.id].content))
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(who: str, message: Message) -> str:
    return f"## {who}" + (f", {_day(message.time)}" if message.time else "")


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def _asked(question: str, action: str, content: Any) -> str:
    quoted = "\n".join(f"> {line}" for line in question.splitlines())
    said = {"decline": "declined", "cancel": "cancelled", "dropped": "not answered"}.get(action)
    answer = f"*{said}*" if said else f"`{msgspec.json.encode(content).decode()}`"
    return f"{quoted}\n>\n> {answer}"


def _fenced(text: str, language: str = "") -> str:
    """A text as it is: the fence is longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def size_text(size: int) -> str:
    """How large something is, for people."""
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"

"""Conversation: what was said, and which tool calls wait for the person.

The rule that all of the chat keeps: every tool call of the assistant has its result in the messages, or is
pending, before anything else is said.
"""

import time
import uuid
from typing import Any

import msgspec
from msgspec import Struct, field

from midcall.chat.messages import ElicitRequest, Failure
from midcall.errors import JournalError, MidcallError
from midcall.journal.contract import ConversationRecord, Conversations
from midcall.models.base import Message, ToolCall

MESSAGE_ID = "id"
"""Under which a message of the person keeps the id that its sender gave it."""


MAX_ID = 200


class Pending(Struct, omit_defaults=True):
    """A tool call that waits for the person."""

    call: ToolCall
    call_id: str = ""
    """The id of the call in the journal."""
    questions: dict[str, ElicitRequest] = {}
    """What is asked, by the key under which it is to be answered."""
    rendered: dict[str, list[Any]] = {}
    """What the person has answered to the components of a question's handler, by key."""
    answers: dict[str, Any] = {}
    """What is answered already, by key."""
    round: int = 1
    places: dict[str, str] = {}
    """Where in the call it is asked, by key: another question may have the same key soon."""

    @property
    def unanswered(self) -> dict[str, ElicitRequest]:
        """What the person is still asked."""
        return {key: question for key, question in self.questions.items() if key not in self.answers}


class Conversation(Struct):
    """A conversation of one person with the model."""

    id: str
    principal: str | None = None
    title: str = ""
    created: float = 0.0
    updated: float = 0.0
    messages: list[Message] = field(default_factory=list)
    pending: dict[str, Pending] = field(default_factory=dict)
    """The tool calls that wait, by their ids."""
    run: str | None = None
    """The run that is under way, if one is."""
    lsn: int = 0
    """The last line of that run whose event is in the messages: whoever reads these goes on after it."""
    failure: Failure | None = None
    """How the last turn failed, if it did: it can be gone on with."""
    version: int = 0

    def say(self, message: Message) -> None:
        """Add a message."""
        self.messages.append(message)
        self.updated = time.time()
        if not self.title and message.role == "user":
            self.title = _title(message.content)

    def key_of(self, call: ToolCall) -> str:
        """The idempotency key under which a tool is called, and found again in the journal.

        Of another conversation that had the same id and was deleted, nothing is found: models count anew.
        """
        return f"{self.id}:{self.created}:{call.id}"

    def unanswered(self) -> list[ToolCall]:
        """The tool calls that have no result yet, in the order in which they were made."""
        answered = {message.tool_call_id for message in self.messages if message.role == "tool"}
        return [call for message in self.messages for call in message.tool_calls if call.id not in answered]

    def awaits_answer_to(self, message_id: str | None) -> bool:
        """Whether the person's last message is this one, and has no whole answer yet."""
        said = next((message for message in reversed(self.messages) if message.role == "user"), None)
        if message_id is None or said is None or said.extra.get(MESSAGE_ID) != message_id:
            return False
        return self.messages[-1].role != "assistant" or bool(self.unanswered())

    def has_said(self, message_id: str | None) -> bool:
        """Whether the person has said this."""
        return message_id is not None and any(
            message.extra.get(MESSAGE_ID) == message_id for message in self.messages if message.role == "user"
        )

    def name_of(self, call_id: str) -> str:
        """The name of a tool that was called."""
        return next((c.name for message in self.messages for c in message.tool_calls if c.id == call_id), "")

    @property
    def questions(self) -> list[ElicitRequest]:
        """What the person is asked, in the order of the calls."""
        return [question for pending in self.pending.values() for question in pending.unanswered.values()]


class Listed(Struct, frozen=True):
    """A conversation, for a list."""

    id: str
    title: str
    updated: float
    waiting: bool
    running: bool


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Conversation).decode


async def load(store: Conversations, id: str, principal: str | None) -> Conversation | None:
    """A conversation of this person, as it is kept."""
    record = await store.load(id, principal)
    try:
        return None if record is None else _decode(record.body)
    except msgspec.MsgspecError:
        raise JournalError("The conversation cannot be read: the journal was changed") from None


async def save(store: Conversations, conversation: Conversation) -> None:
    """Write a conversation down, durably. Raises `Conflict`; counts its version up."""
    conversation.version += 1
    record = ConversationRecord(
        id=conversation.id,
        principal=conversation.principal,
        version=conversation.version,
        updated=conversation.updated,
        waiting=bool(conversation.pending),
        run=conversation.run,
        title=conversation.title,
        body=_encode(conversation),
    )
    try:
        await store.save(record)
    except MidcallError:
        conversation.version -= 1
        raise


def is_id(text: str) -> bool:
    """Whether a conversation may have this id: some front ends make ids themselves."""
    return 0 < len(text) <= MAX_ID and text.isprintable()


def new_conversation(principal: str | None, id: str | None = None) -> Conversation:
    """An empty conversation; unless it is named, under a name that nobody can guess."""
    now = time.time()
    return Conversation(id or str(uuid.uuid4()), principal, created=now, updated=now)


def _title(text: str) -> str:
    line = " ".join(text.replace("\0", " ").split())
    return line if len(line) <= 60 else line[:57].rstrip() + "..."

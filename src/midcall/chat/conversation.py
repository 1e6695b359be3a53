"""Plain values of the chat: what a person sends, what a turn tells, and the conversation as it is kept.

Names and fields of requests and events are those of `POST /chat`; another wire, as AG-UI, translates them.

The rule that all of the chat keeps: every tool call of the assistant has its result in the messages, or is
pending, before anything else is said.
"""

import time
import uuid
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from midcall.chat.details import (
    MAX_FILE,
    MAX_NAME,
    AnsweredQuestion,
    ContentPart,
    Files,
    KeptFile,
    ToolDetails,
    image_type,
    now,
)
from midcall.errors import Conflict, JournalError, MidcallError
from midcall.journal.contract import ConversationRecord, Conversations
from midcall.journal.seal import unguessable
from midcall.limits import Key
from midcall.models.base import Attachment, Message, ToolCall

T = TypeVar("T")

MAX_TEXT = 200_000

MESSAGE_ID = "id"
"""Under which a message of the person keeps the id that its sender gave it."""

MAX_ID = 200

MAX_TITLE = 200

MAX_ATTACHED = 4
"""How many files may come with a message."""


# --- requests -------------------------------------------------------------------------------


class BadRequest(MidcallError):
    """A request that makes no sense; nothing was changed."""

    code = "bad_request"


class ElicitResult(Struct, frozen=True):
    """What the person did with a question."""

    action: Literal["accept", "decline", "cancel"]
    content: Any = None


class ElicitResponse(Struct, frozen=True, rename="camel"):
    """An answer to a question. The session id is the id of the tool call."""

    session_id: Key
    elicit_id: Key
    result: ElicitResult
    call_id: Key = ""


class Abort(Struct, frozen=True, rename="camel"):
    """A tool call that waits is to be ended."""

    session_id: Key
    reason: str | None = None


class StopRequest(Struct, frozen=True, rename="camel"):
    """The turn of a conversation is to be stopped."""

    conversation_id: Key


class Rename(Struct, frozen=True):
    """A conversation gets another title."""

    title: str


class Edit(Struct, frozen=True):
    """The place of a message of the person, counted from 0, in a conversation that has so many.

    It and all after it is forgotten, and what is said now takes its place.
    """

    message: int
    of: int


class SentFile(Struct, frozen=True):
    """A file that comes with a message, in base64."""

    name: str
    data: bytes


class Said(Struct, frozen=True):
    """A message as callers give it who keep the history themselves."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""


class ChatRequest(Struct, frozen=True, rename="camel"):
    """Something said, answers, an end of something; or nothing, to go on with what was cut off."""

    conversation_id: Key | None = None
    message: str | None = None
    message_id: Key | None = None
    """Of what is said now, if the caller gives it one: sent again, as its answer was lost, it is not said
    twice."""
    messages: tuple[Said, ...] = ()
    plugin_elicit_responses: tuple[ElicitResponse, ...] = ()
    plugin_abort: Abort | None = None
    resume: bool = False
    aside: bool = False
    """What is said is no end of the questions that wait: the model answers, and they wait on."""
    edit: Edit | None = None
    retry: Key | None = None
    """A tool call that has ended, which is to be made again with the same arguments."""
    model: Key | None = None
    """Who is to answer from now on, of those that the chat has."""
    attachments: tuple[SentFile, ...] = ()

    @property
    def text(self) -> str | None:
        """What the person says now."""
        if self.message is not None:
            return self.message
        if self.messages and self.messages[-1].role == "user":
            return self.messages[-1].content
        return None


def read_json(body: bytes, kind: type[T], what: str = "request") -> T:
    """Read what was sent. Raises `BadRequest`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"Invalid {what}: {error}") from None


def read_request(body: bytes) -> ChatRequest:
    """Read a request. Raises `BadRequest`."""
    request = read_json(body, ChatRequest)
    text = request.text
    if text is not None and (not text.strip() or len(text) > MAX_TEXT):
        raise BadRequest(f"A message has between 1 and {MAX_TEXT} letters")
    answers = request.plugin_elicit_responses or request.plugin_abort
    if text is None and not (answers or request.resume or request.retry):
        raise BadRequest("Say something: message, pluginElicitResponses, pluginAbort, retry or resume")
    if request.conversation_id is None and (text is None or request.edit is not None):
        raise BadRequest("Which conversation? conversationId is missing")
    if text is None and (request.edit is not None or request.aside or request.attachments):
        raise BadRequest("edit, aside and attachments belong to a message")
    if answers and (request.edit is not None or request.aside or request.retry):
        raise BadRequest("Answers cannot come together with edit, aside or retry")
    if request.retry and (text is not None or request.resume):
        raise BadRequest("retry stands alone")
    _check_attached(request.attachments)
    return request


def _check_attached(attachments: tuple[SentFile, ...]) -> None:
    if len(attachments) > MAX_ATTACHED:
        raise BadRequest(f"A message has {MAX_ATTACHED} attachments at most")
    for one in attachments:
        if not 0 < len(one.name) <= MAX_NAME or not one.name.isprintable():
            raise BadRequest(f"The name of an attachment has between 1 and {MAX_NAME} printable letters")
        if not 0 < len(one.data) <= MAX_FILE:
            raise BadRequest(f"{one.name} is empty, or larger than {MAX_FILE} bytes")
        if image_type(one.data) is None:
            raise BadRequest(f"{one.name} is not a PNG, JPEG, GIF or WebP image")


def read_title(body: bytes) -> str:
    """Read the title that a conversation is to have. Raises `BadRequest`."""
    given = read_json(body, Rename, "title").title
    title = _one_line(given[: 2 * MAX_TITLE])
    if not title or len(given) > MAX_TITLE:
        raise BadRequest(f"A title has between 1 and {MAX_TITLE} letters")
    return title


# --- events ---------------------------------------------------------------------------------


class _Told(Struct, frozen=True, tag_field="type", rename="camel", omit_defaults=True):
    """An event, with the fields that the wire has."""


class SessionInfo(_Told, frozen=True, tag="session_info"):
    """The first event of a run: which run of which conversation, and who answers."""

    session_id: str
    conversation_id: str
    model: dict[str, Any]


class TextEvent(_Told, frozen=True, tag="text"):
    """A piece of the answer."""

    content: str


class Thinking(_Told, frozen=True, tag="thinking"):
    """A piece of what the model thinks."""

    content: str


class ToolCalls(_Told, frozen=True, tag="tool_calls"):
    """The model calls tools: `id`, `name` and `arguments` of each."""

    calls: list[dict[str, Any]]


class ToolProgress(_Told, frozen=True, tag="tool_progress"):
    """How far a tool is."""

    call_id: str
    tool_name: str
    message: str
    percentage: float | None = None


class ToolResultEvent(_Told, frozen=True, tag="tool_result"):
    """What a tool gave."""

    call_id: str
    tool_name: str
    content: str
    structured: Any = None
    parts: list[ContentPart] = []
    """What of it is no text: pictures, sound, files and links."""
    seconds: float = 0.0


class ToolErrorEvent(_Told, frozen=True, tag="tool_error"):
    """A tool failed."""

    call_id: str
    tool_name: str
    message: str
    code: str = ""
    """`declined` or `cancelled` if the person did not want to answer, `dropped` if they went on without."""
    seconds: float = 0.0


class ElicitRequest(_Told, frozen=True, tag="plugin_elicit_request"):
    """A tool asks the person. The session id is the id of the tool call."""

    session_id: str
    call_id: str
    tool_name: str
    elicit_id: str
    key: str
    message: str
    schema: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    """What the question brings along (`x-model-context`)."""
    component: dict[str, Any] | None = None
    """The component that shows it, `name` and `props`; without one the page makes a form from the schema."""
    mode: str | None = None
    url: str | None = None
    until: str | None = None
    """When it is too late for an answer."""


class SessionStatus(_Told, frozen=True, tag="plugin_session_status"):
    """Where a tool call stands that asks."""

    session_id: str
    call_id: str
    tool_name: str
    status: str


class SessionError(_Told, frozen=True, tag="plugin_session_error"):
    """An answer or an abort that cannot be followed."""

    session_id: str
    call_id: str
    error: str
    message: str


class ConversationState(_Told, frozen=True, tag="conversation_state"):
    """The conversation as it stands while the person is asked."""

    conversation_id: str
    messages: list[Message]
    pending: list[ElicitRequest]
    usage: dict[str, int] = {}
    message_count: int = 0
    """Of a line that is kept: how many messages of the conversation belong here. Each resume has such a line,
    so they are put in only where it is read."""


class Complete(_Told, frozen=True, tag="complete"):
    """The turn has ended, and why: `stop`, `stopped`, `length`, `iterations`, `budget`."""

    reason: str
    usage: dict[str, int]


class Failure(_Told, frozen=True, tag="error", omit_defaults=False):
    """The turn has failed."""

    message: str
    code: str
    recoverable: bool = False


Event: TypeAlias = (
    SessionInfo
    | TextEvent
    | Thinking
    | ToolCalls
    | ToolProgress
    | ToolResultEvent
    | ToolErrorEvent
    | ElicitRequest
    | SessionStatus
    | SessionError
    | ConversationState
    | Complete
    | Failure
)


# --- conversations --------------------------------------------------------------------------


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
    responses: list[ElicitResponse] = field(default_factory=list)
    """What the person has answered that is not taken yet: the handlers of its questions are to look at it."""
    unsaid: list[Message] = field(default_factory=list)
    """What the person has said instead of answering: it comes after the results of all tool calls."""
    run: str | None = None
    """The run that is under way, if one is."""
    lsn: int = 0
    """The last line of that run whose event is in the messages: whoever reads these goes on after it."""
    failure: Failure | None = None
    """How the last turn failed, if it did: it can be gone on with."""
    version: int = 0
    model: str = ""
    """Who answers, if the person has chosen one."""
    details: dict[str, ToolDetails] = field(default_factory=dict)
    """How tool calls went, by their ids."""
    files: dict[str, KeptFile] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    """The ids of tool calls that were cut off with what was edited: no new call has one of them."""
    ending: list[ToolCall] = field(default_factory=list)
    """Those of them that have not ended, and are to be ended."""

    def say(self, message: Message) -> None:
        """Add a message."""
        self.updated = time.time()
        self.messages.append(msgspec.structs.replace(message, time=round(self.updated, 3)))
        if not self.title and message.role == "user":
            self.title = _title(message.content)

    def details_of(self, call_id: str) -> ToolDetails:
        """How a tool call goes, to be added to."""
        if call_id not in self.details:
            self.details[call_id] = ToolDetails(began=now())
        return self.details[call_id]

    def attach(self, attachments: Iterable[SentFile]) -> tuple[Attachment, ...]:
        """Keep files that come with a message. Raises `BadRequest` if there is no room."""
        files, kept = Files(self.files), []
        for one in attachments:
            type = image_type(one.data) or ""
            id = files.add(one.name, type, one.data)
            if not id:
                raise BadRequest("There is no room for more files in this conversation")
            kept.append(Attachment(id, one.name, type, len(one.data)))
        return tuple(kept)

    def check_edit(self, edit: Edit) -> None:
        """Raise `Conflict` or `BadRequest` if there is no such message to be edited."""
        if edit.of != len(self.messages):
            raise Conflict("The conversation was changed meanwhile")
        if not 0 <= edit.message < edit.of or self.messages[edit.message].role != "user":
            raise BadRequest("You have no message at that position")

    def cut(self, index: int) -> None:
        """Forget a message and all after it; tool calls of that which have no result yet are to be ended."""
        kept, gone = self.messages[:index], self.messages[index:]
        if self.title == _title(gone[0].content):
            self.title = ""
        unfinished = self.unanswered()
        lost = [call for message in gone for call in message.tool_calls]
        # A result may have come after something that was said meanwhile: a call keeps the one that it has.
        made = {call.id for message in kept for call in message.tool_calls}
        self.messages = kept + [message for message in gone if message.tool_call_id in made]
        self.forgotten += [call.id for call in lost]
        for call in lost:
            self.pending.pop(call.id, None)
            self.details.pop(call.id, None)
        self.responses, self.unsaid = [], []
        self.ending += [call for call in unfinished if call in lost]

    def drop_files(self) -> None:
        """Forget the files that nothing in the conversation speaks of any more."""
        used = {file.id for message in (*self.messages, *self.unsaid) for file in message.files}
        used |= {part.file for one in self.details.values() for part in one.parts}
        self.files = {id: file for id, file in self.files.items() if id in used}

    def drop_questions(self, pending: Pending) -> None:
        """The person does something else than to answer what a call asks."""
        details = self.details_of(pending.call.id)
        for one in pending.unanswered.values():
            details.note(answered_question(one, "dropped"))

    def owes_aside(self) -> bool:
        """Whether the person has said something while a call waits, and the model has not answered yet."""
        spoken = (message.role for message in reversed(self.messages) if message.role != "tool")
        return bool(self.pending) and next(spoken, "") == "user"

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
        """Whether the person's last message is this one, and has an incomplete response yet."""
        if message_id is not None and _has(message_id, self.unsaid):
            return True
        said = next((message for message in reversed(self.messages) if message.role == "user"), None)
        if message_id is None or said is None or said.extra.get(MESSAGE_ID) != message_id:
            return False
        return self.messages[-1].role != "assistant" or bool(self.unanswered())

    def has_said(self, message_id: str | None) -> bool:
        """Whether the person has said this."""
        return message_id is not None and _has(message_id, (*self.messages, *self.unsaid))

    def name_of(self, call_id: str) -> str:
        """The name of a tool that was called."""
        return next((c.name for message in self.messages for c in message.tool_calls if c.id == call_id), "")

    @property
    def questions(self) -> list[ElicitRequest]:
        """What the person is asked, in the order of the calls; nothing once they said something instead."""
        if self.unsaid:
            return []
        answered = {response.elicit_id for response in self.responses}
        asked = (question for pending in self.pending.values() for question in pending.unanswered.values())
        return [question for question in asked if question.elicit_id not in answered]


def answered_question(
    asked: ElicitRequest, action: Literal["accept", "decline", "cancel", "dropped"], content: Any = None
) -> AnsweredQuestion:
    """A question that is over. What a component gave needs no schema to be shown."""
    schema = asked.schema if asked.component is None else None
    return AnsweredQuestion(asked.elicit_id, asked.message, action, content, schema, now())


class Listed(Struct, frozen=True, omit_defaults=True):
    """A conversation, for a list."""

    id: str
    title: str
    updated: float
    waiting: bool
    running: bool
    snippet: str = ""
    """What was found in it, with what stands around it."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Conversation).decode


async def load(store: Conversations, id: str, principal: str | None) -> Conversation | None:
    """A conversation of this person, as it is kept. Whose it is, the record says, and not its body."""
    record = await store.load(id, principal)
    if record is None:
        return None
    try:
        conversation = _decode(record.body)
    except msgspec.MsgspecError:
        raise JournalError("The conversation cannot be read: the journal was changed") from None
    conversation.id, conversation.principal, conversation.version = (
        record.id,
        record.principal,
        record.version,
    )
    return conversation


def record_of(conversation: Conversation) -> ConversationRecord:
    """A conversation as it is kept, in its next version."""
    return ConversationRecord(
        id=conversation.id,
        principal=conversation.principal,
        version=conversation.version + 1,
        updated=conversation.updated,
        waiting=bool(conversation.pending),
        run=conversation.run,
        title=conversation.title,
        body=_encode(conversation),
    )


async def save(store: Conversations, conversation: Conversation) -> None:
    """Write a conversation down, durably. Raises `Conflict`; counts its version up if it was written."""
    record = record_of(conversation)
    await store.save(record)
    conversation.version = record.version


def _has(message_id: str, messages: Iterable[Message]) -> bool:
    """Whether one of these is what the person said under an id."""
    return any(one.extra.get(MESSAGE_ID) == message_id for one in messages if one.role == "user")


def is_id(text: str) -> bool:
    """Whether a conversation may have this id: some front ends make ids themselves."""
    return 0 < len(text) <= MAX_ID and text.isprintable()


def new_id() -> str:
    """An id that nobody can guess."""
    return str(uuid.UUID(bytes=unguessable(16), version=4))


def new_conversation(principal: str | None, id: str | None = None) -> Conversation:
    """An empty conversation; unless it is named, under a name that nobody can guess."""
    now = time.time()
    return Conversation(id or new_id(), principal, created=now, updated=now)


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _title(text: str) -> str:
    line = _one_line(text[:1000])
    return line if len(line) <= 60 else line[:57].rstrip() + "..."

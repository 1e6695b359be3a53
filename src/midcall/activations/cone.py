"""cone: a model that talks along a tree.

A cone is a tree of its own (see `tree_store`) with a name, a model, and a **head**: the node that the
conversation has come to. A chat adds what the person says below the head, and the answer below that; then
the head moves to the answer. So `set_head` to an earlier node begins another branch, and nothing is lost of
the one before.

What the person says is written before the model is asked, and the answer when it is whole. A chat that is
cut off leaves what was said as a leaf, and the head where it was. Of two chats at once, both are written,
each below the head that it began from; the head moves to the answer that comes first, and the other one is a
branch beside it, which its `chat_complete` says. Whoever sets the head meanwhile comes before both.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType
from pydantic import Field

from midcall.activations.arbor import After, Id, Object
from midcall.activations.cone_models import ConeModels, ModelEntry
from midcall.activations.tree_store import (
    MAX_OWNER,
    MAX_TEXT,
    NewNode,
    StoredNode,
    StoredTree,
    TreeStore,
    new_id,
)
from midcall.call import CallerName
from midcall.content import Listing
from midcall.decorators import listing, method, prompt
from midcall.errors import Conflict, TreeError, UnknownResource
from midcall.models.base import Message, Model, ModelRequest, Stopped, TextPart, Usage, cost
from midcall.registry import Registry

KIND = "cone"
OWNER = "cone"
"""Has the reference to the tree."""

LISTED = 100
"""How many cones are listed at once, at most."""

MAX_SYSTEM = 32 * 1024
"""How many characters a system prompt may have."""

TRIES = 5
"""How often a change is tried that others are faster with."""

_READ_ONLY = {"readOnlyHint": True}


class ByName(Struct, frozen=True, tag_field="type", tag="by_name"):
    """A cone by its name."""

    name: str


class ById(Struct, frozen=True, tag_field="type", tag="by_id"):
    """A cone by its id."""

    id: str


Identifier: TypeAlias = str | ByName | ById
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_OWNER)]


class _Settings(Struct, frozen=True):
    """The note of a cone's tree."""

    model_id: str
    head: str
    system_prompt: str | None = None
    metadata: Object | None = None


class Position(Struct, frozen=True):
    """A node of a tree."""

    tree_id: str
    node_id: str


class ConeInfo(Struct, omit_defaults=True):
    """A cone. Its id is that of its tree."""

    id: str
    name: str
    model_id: str
    head: Position
    created_at: int
    updated_at: int
    system_prompt: str | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET


# --- events ---------------------------------------------------------------------------------------------


class ConeCreated(Struct, tag_field="type", tag="cone_created"):
    cone_id: str
    head: Position


class ConeData(Struct, tag_field="type", tag="cone_data"):
    cone: ConeInfo


class ConeList(Struct, tag_field="type", tag="cone_list", omit_defaults=True):
    """`next` is the `after` of the next page, if there is one."""

    cones: Sequence[ConeInfo]
    next: str | UnsetType = UNSET


class ConeDeleted(Struct, tag_field="type", tag="cone_deleted"):
    cone_id: str


class HeadUpdated(Struct, tag_field="type", tag="head_updated"):
    cone_id: str
    old_head: Position
    new_head: Position


class ChatStart(Struct, tag_field="type", tag="chat_start", omit_defaults=True):
    """The person's words are `user_position`, unless the chat is ephemeral."""

    cone_id: str
    user_position: Position | UnsetType = UNSET


class ChatContent(Struct, tag_field="type", tag="chat_content"):
    """A piece of the answer."""

    cone_id: str
    content: str


class ChatUsage(Struct):
    """What a chat has cost, in tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class ChatComplete(Struct, tag_field="type", tag="chat_complete", omit_defaults=True):
    """The answer is whole: it is at `position`, unless the chat is ephemeral.

    `new_head` is the cone's head now. It is another one than the position if somebody else has moved it since
    the chat began; the answer is on a branch of its own then.
    """

    cone_id: str
    usage: ChatUsage
    stopped: str
    position: Position | UnsetType = UNSET
    new_head: Position | UnsetType = UNSET


class ModelRegistry(Struct, tag_field="type", tag="registry", omit_defaults=True):
    """The models that a cone can have."""

    models: Sequence[ModelEntry]


ChatEvent: TypeAlias = ChatStart | ChatContent | ChatComplete


class Cone:
    """Talk to a model along a tree."""

    def __init__(self, models: Mapping[str, Model] | Sequence[str] | None = None) -> None:
        """`models` are those that a cone can have: names as of `--model`, or models by a name of your choice.

        Without, all can be had for which this process has what they need.
        """
        self._hub: Registry | None = None
        self._models = ConeModels(models)

    def attach(self, hub: Registry) -> None:
        """Use the journal, and the chat's model, of this hub."""
        self._hub = hub
        self._store = TreeStore.of(hub)
        self._models.hub = hub

    async def detach(self) -> None:
        """The hub is closed."""
        await self._models.close()

    @method
    async def create(
        self,
        name: Name,
        model_id: Name,
        system_prompt: Annotated[str, Field(max_length=MAX_SYSTEM)] | None = None,
        metadata: Object | None = None,
        *,
        caller: CallerName,
    ) -> ConeCreated:
        """Create a cone with a tree of its own.

        Args:
            name: a name, unique among the caller's cones
            model_id: the model that answers; `registry` lists them
            system_prompt: instructions for the model
            metadata: any data to store with it
        """
        self._models.find(model_id)
        root = new_id()
        note = _Settings(model_id, root, system_prompt, metadata)
        tree = await self._store.create(
            caller, OWNER, kind=KIND, name=name, metadata={"cone": name}, note=note, root=root
        )
        self._relisted(caller)
        return ConeCreated(tree.id, Position(tree.id, tree.root))

    @method(annotations=_READ_ONLY)
    async def get(self, identifier: Identifier, *, caller: CallerName) -> ConeData:
        """Get a cone and the current node of its conversation.

        Args:
            identifier: its name, `{"type": "by_name", "name": ..}` or `{"type": "by_id", "id": ..}`
        """
        return ConeData(_info(*await self._find(caller, identifier)))

    @method(annotations=_READ_ONLY)
    async def list(
        self,
        limit: Annotated[int, Field(ge=1, le=LISTED)] = LISTED,
        after: After | None = None,
        *,
        caller: CallerName,
    ) -> ConeList:
        """List the caller's cones, newest first.

        Args:
            limit: maximum number of them
            after: the `next` of the previous page
        """
        found, more = await self._store.list(caller, kind=KIND, after=after, limit=limit)
        cones = [_info(tree, settings) for tree in found if (settings := _settings(tree)) is not None]
        return ConeList(cones, UNSET if more is None else more)

    @method
    async def delete(self, identifier: Identifier, *, caller: CallerName) -> ConeDeleted:
        """Delete a cone. If nothing else refers to its tree, that is archived after 7 days.

        Args:
            identifier: its name, `{"type": "by_name", "name": ..}` or `{"type": "by_id", "id": ..}`
        """
        tree, _ = await self._find(caller, identifier)
        held = tree.owners.get(OWNER, 0)
        if held:
            await self._store.release(caller, tree.id, OWNER, held)
        await self._store.unname(caller, tree.id)
        self._relisted(caller)
        return ConeDeleted(tree.id)

    @method
    async def set_head(self, identifier: Identifier, node_id: Id, *, caller: CallerName) -> HeadUpdated:
        """Continue from another node: the next chat starts a branch there.

        Args:
            identifier: its name, `{"type": "by_name", "name": ..}` or `{"type": "by_id", "id": ..}`
            node_id: a node of its tree
        """
        for _ in range(TRIES):
            tree, settings = await self._find(caller, identifier)
            await self._store.path(caller, tree.id, node_id, limit=1, bare=True)  # it must be there
            moved = msgspec.structs.replace(settings, head=node_id)
            try:
                await self._store.add(caller, tree.id, note=moved, version=tree.version)
            except Conflict:
                continue
            return HeadUpdated(tree.id, Position(tree.id, settings.head), Position(tree.id, node_id))
        raise Conflict("The cone changes too often: try again")

    @method
    async def chat(
        self,
        identifier: Identifier,
        prompt: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)],
        ephemeral: bool = False,
        *,
        caller: CallerName,
    ) -> AsyncIterator[ChatEvent]:
        """Say something to the model and get its answer.

        Args:
            identifier: the cone's name, `{"type": "by_name", "name": ..}` or `{"type": "by_id", "id": ..}`
            prompt: what to say
            ephemeral: store nothing in the tree
        """
        tree, settings = await self._find(caller, identifier)
        model = self._models.find(settings.model_id)
        path = await self._store.path(caller, tree.id, settings.head)
        request = ModelRequest(conversation(path, prompt), system=settings.system_prompt)
        said = NewNode(prompt, settings.head, {"role": "user"})
        if ephemeral:
            yield ChatStart(tree.id)
        else:
            await self._store.add(caller, tree.id, [said])
            yield ChatStart(tree.id, Position(tree.id, said.id))
        answer, size, stopped = list[str](), 0, Stopped()
        events = model.stream(request)
        try:
            async for event in events:
                match event:
                    case TextPart(text):
                        size += len(text.encode(errors="replace"))
                        if size > MAX_TEXT:  # it talks without end
                            stopped = Stopped("length")
                            break
                        answer.append(text)
                        yield ChatContent(tree.id, text)
                    case Stopped():
                        stopped = event
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()  # so that the model stops with the chat
        text = "".join(answer)
        usage = _usage(cost(request, text, (), stopped.usage))
        complete = ChatComplete(tree.id, usage, stopped.reason)
        if not ephemeral:
            about = {"role": "assistant", "model": settings.model_id, "usage": msgspec.to_builtins(usage)}
            head = await self._answered(caller, tree, settings, NewNode(text, said.id, about))
            complete.position, complete.new_head = Position(tree.id, head[0]), Position(tree.id, head[1])
        yield complete

    @method(annotations=_READ_ONLY)
    async def registry(self) -> ModelRegistry:
        """List the models that a cone can have."""
        return ModelRegistry(self._models.entries())

    # --- prompts -----------------------------------------------------------------------------

    @prompt("{name}", description="A conversation with a model, up to its current node.")
    async def conversation_of(
        self, name: str, caller: CallerName, prompt: str | None = None
    ) -> Sequence[Mapping[str, str]]:
        """A conversation with a model, up to its current node.

        Args:
            prompt: what to say next
        """
        try:
            tree, settings = await self._find(caller, name)
        except TreeError as error:
            raise UnknownResource(f"Unknown prompt: {name}") from error
        messages = conversation(await self._store.path(caller, tree.id, settings.head), prompt or "")
        shown = [{"role": message.role, "content": message.content} for message in messages]
        if settings.system_prompt:
            shown.insert(0, {"role": "user", "content": settings.system_prompt})
        return shown or [{"role": "user", "content": "(Nothing was said yet.)"}]

    @listing("{name}")
    async def list_conversations(self, after: str | None, caller: CallerName) -> Listing:
        """The cones of the caller."""
        found = await self.list(after=after, caller=caller)
        argument = {"name": "prompt", "description": "what to say next", "required": False}
        items = [
            {
                "name": cone.name,
                "description": f"The conversation with {cone.model_id}",
                "arguments": [argument],
            }
            for cone in found.cones
        ]
        return Listing(items, None if isinstance(found.next, UnsetType) else found.next)

    # --- inside ------------------------------------------------------------------------------

    async def _find(self, caller: str | None, identifier: Identifier) -> tuple[StoredTree, _Settings]:
        """A cone's tree and settings. Raises `TreeError`."""
        match identifier:
            case ById(id):
                tree: StoredTree | None = await self._store.load(caller, id)
                name = id
            case ByName(name) | name:
                tree = await self._store.find(caller, KIND, name)
        settings = None if tree is None else _settings(tree)
        if tree is None or settings is None:
            raise TreeError(f"Cone not found: {name[:100]}")
        return tree, settings

    async def _answered(
        self, caller: str | None, tree: StoredTree, settings: _Settings, answer: NewNode
    ) -> tuple[str, str]:
        """Write the answer, and move the head there if nobody has moved it; gives both."""
        moved = msgspec.structs.replace(settings, head=answer.id)
        try:
            await self._store.add(caller, tree.id, [answer], note=moved, version=tree.version)
        except Conflict:
            await self._store.add(caller, tree.id, [answer])
            now = _settings(await self._store.load(caller, tree.id))
            return answer.id, settings.head if now is None else now.head
        return answer.id, answer.id

    def _relisted(self, caller: str | None) -> None:
        if self._hub is not None:
            self._hub.relisted("prompts", principals=(caller,))


def conversation(path: Sequence[StoredNode], prompt: str) -> tuple[Message, ...]:
    """What was said on the way to a node, and what is said next, as messages that take turns.

    A node says in its metadata whose words it has (`role`); without, they are the person's. What is kept
    elsewhere, and nodes without text, are passed over.
    """
    messages = list[Message]()
    spoken = [(_role(node), node.text) for node in path] + [("user", prompt)]
    for role, text in spoken:
        if not text:
            continue
        if messages and messages[-1].role == role:
            text, _ = f"{messages[-1].content}\n\n{text}", messages.pop()
        messages.append(Message(role, text))
    return tuple(messages)


def _role(node: StoredNode) -> Literal["user", "assistant"]:
    return "assistant" if (node.metadata or {}).get("role") == "assistant" else "user"


def _settings(tree: StoredTree) -> _Settings | None:
    """Those of a cone; nothing if it is none."""
    if tree.kind != KIND:
        return None
    try:
        return msgspec.convert(tree.note, _Settings)
    except msgspec.ValidationError:
        return None


def _info(tree: StoredTree, settings: _Settings) -> ConeInfo:
    return ConeInfo(
        id=tree.id,
        name=tree.name or "",
        model_id=settings.model_id,
        head=Position(tree.id, settings.head),
        created_at=int(tree.created),
        updated_at=int(tree.updated),
        system_prompt=UNSET if settings.system_prompt is None else settings.system_prompt,
        metadata=UNSET if settings.metadata is None else settings.metadata,
    )


def _usage(usage: Usage) -> ChatUsage:
    return ChatUsage(usage.input, usage.output, usage.input + usage.output)

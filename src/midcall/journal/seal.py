"""Seals: what is handed to a client, and what a journal keeps, unread and unchanged.

AES-256-GCM under a ring of keys: the first key seals, each of them opens, so that keys can be changed while
sealed state is still on its way. Keys come from `MIDCALL_KEYS` (base64, separated by commas, the newest
first), or are made once and kept in a file of the user's state directory.

The first byte of a value in a journal says whether it is sealed. A sealed value is bound to its place: one
that was moved to another call, or to another column, does not open. A journal that is sealed takes nothing
that is not, so that whoever can write to it, but has no key, cannot say what was called, answered or said.
`plain_too` takes both, to bring what was plain before into a sealed journal.
"""

import base64
import binascii
import contextlib
import hashlib
import os
import re
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import msgpack

from midcall.errors import JournalError
from midcall.journal.contract import ConversationRecord
from midcall.journal.files import keep_private
from midcall.journal.trees import LISTED_CHILDREN, NodeRecord, TreeRecord, TreeState

_encode = msgpack.Encoder().encode
_decode_lines = msgpack.Decoder(list[bytes]).decode

_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_+/=", b"+/   ")
"""What is safe in URLs only, so that each sealed text has one form."""
_NONCE = 12
_KEY = 32
_KEY_ID = 4


class BadSeal(Exception):
    """It was not sealed here, or has been changed since."""


def unguessable(size: int) -> bytes:
    """Bytes for a name that nobody can guess.

    `os.urandom` lets other threads go first: in a busy server that costs a chat 4 % of its turns.
    """
    return ssl.RAND_bytes(size)


class KeyRing:
    """Seals with the newest key, opens with any."""

    def __init__(self, keys: list[bytes]) -> None:
        if not keys or any(len(key) != _KEY for key in keys):
            raise ValueError("A key ring needs keys of 32 bytes")
        self._ciphers = {_key_id(key): AESGCM(key) for key in reversed(keys)}
        self._newest = _key_id(keys[0])
        self._nonces = hashlib.sha256(b"midcall nonces" + keys[0]).digest()

    def seal(self, payload: bytes, about: bytes = b"") -> str:
        """Sealed text, safe in JSON and in URLs: the same one for the same payload.

        It opens only with the same `about`, of 16 bytes at most: what it is.
        """
        nonce = hashlib.blake2b(payload, key=self._nonces, digest_size=_NONCE, person=about).digest()
        text = binascii.b2a_base64(self._seal(payload, nonce, about), newline=False)
        return text.translate(_TO_URL).rstrip(b"=").decode()

    def open(self, text: str, about: bytes = b"") -> bytes:
        """What was sealed. Raises `BadSeal`."""
        try:
            padded = text.encode("ascii").translate(_FROM_URL) + b"=" * (-len(text) % 4)
            data = binascii.a2b_base64(padded, strict_mode=True)
        except ValueError as error:
            raise BadSeal from error
        return self.open_bytes(data, about)

    def seal_bytes(self, payload: bytes, about: bytes = b"") -> bytes:
        """Sealed bytes, for a store. They open only with the same `about`: what they are, and whose."""
        return self._seal(payload, secrets.token_bytes(_NONCE), about)

    def _seal(self, payload: bytes, nonce: bytes, about: bytes) -> bytes:
        sealed = self._ciphers[self._newest].encrypt(nonce, payload, self._newest + about)
        return self._newest + nonce + sealed

    def open_bytes(self, data: bytes, about: bytes = b"") -> bytes:
        """What was sealed as bytes. Raises `BadSeal`."""
        key_id, nonce, sealed = data[:_KEY_ID], data[_KEY_ID : _KEY_ID + _NONCE], data[_KEY_ID + _NONCE :]
        try:
            return self._ciphers[key_id].decrypt(nonce, sealed, key_id + about)
        except (ValueError, KeyError, InvalidTag) as error:
            raise BadSeal from error


def default_ring() -> KeyRing:
    """The keys of the environment, or else the ones of this user's state directory."""
    return _environment_ring() or KeyRing([_kept_key(state_directory() / "key")])


def _environment_ring() -> KeyRing | None:
    given = os.environ.get("MIDCALL_KEYS")
    if not given:
        return None
    try:
        return KeyRing([base64.b64decode(key, validate=True) for key in given.split(",")])
    except ValueError as error:
        raise ValueError(f"MIDCALL_KEYS: {error}; each key is 32 bytes in base64") from None


PERIOD = 30 * 24 * 3600
"""Seconds after which a journal gets a new key. The one before still opens what it has sealed."""


async def shared_ring(secret: Callable[[str, bytes], Awaitable[bytes]]) -> KeyRing:
    """The keys of the environment, or else those that all workers of a journal share by `secret`."""
    ring = _environment_ring()
    if ring is not None:
        return ring
    return KeyRing(list((await shared_keys(secret)).values()))


def is_key(name: str, key: bytes) -> bool:
    """Whether this can be one of the keys that workers share (`shared_keys`)."""
    return re.fullmatch(r"seal-[0-9]{1,9}", name, re.ASCII) is not None and len(key) == _KEY


async def shared_keys(secret: Callable[[str, bytes], Awaitable[bytes]]) -> dict[str, bytes]:
    """The keys that all workers of a journal share, by name: that of this period, and the one before."""
    number = int(time.time() // PERIOD)
    names = (f"seal-{number}", f"seal-{number - 1}")
    return {name: await secret(name, secrets.token_bytes(_KEY)) for name in names}


def state_directory() -> Path:
    """Where midcall keeps what must outlive a process."""
    base = os.environ.get("MIDCALL_STATE") or os.environ.get("XDG_STATE_HOME")
    return Path(base) / "midcall" if base else Path.home() / ".local" / "state" / "midcall"


def _kept_key(path: Path) -> bytes:
    """The key in the file, which is made once; of two processes at a time, both get the same."""
    with contextlib.suppress(FileNotFoundError):
        return _read_key(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600)
    draft.write_bytes(base64.b64encode(secrets.token_bytes(_KEY)))
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        pass  # another process was faster
    finally:
        draft.unlink()
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    key = base64.b64decode(path.read_bytes())
    keep_private(path)
    if len(key) != _KEY:
        raise ValueError(f"{path} is not a key: remove it to have a new one made")
    return key


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"midcall key id" + key).digest()[:_KEY_ID]


# --- the values of a journal ------------------------------------------------------------------

_PLAIN, _SEALED = b"\0", b"\1"

NOTHING = _PLAIN
"""What `b""` is, unsealed: there is nothing to hide, and nothing to be said by it."""


class Values:
    """Closes what is written, and opens what is read."""

    def __init__(self, ring: KeyRing | None, *, plain_too: bool = False) -> None:
        self._ring = ring
        self.plain_too = plain_too or ring is None

    def close(self, data: bytes, what: str, whose: str) -> bytes:
        if self._ring is None:
            return _PLAIN + data
        return _SEALED + self._ring.seal_bytes(data, f"{what} {whose}".encode())

    def open(self, data: bytes, what: str, whose: str) -> bytes:
        if data[:1] == _PLAIN:
            if data != NOTHING:
                self.check(data, f"The {what} of {whose}")
            return data[1:]
        if self._ring is None:
            raise JournalError("The journal is encrypted: give the keys that it was written with")
        try:
            return self._ring.open_bytes(data[1:], f"{what} {whose}".encode())
        except BadSeal:
            raise JournalError(
                f"The {what} of {whose} cannot be decrypted: a key is missing, or the journal was changed"
            ) from None

    def check(self, data: bytes, name: str) -> None:
        """Raise `JournalError` if this is plain, and must not be."""
        if data[:1] == _PLAIN and not self.plain_too:
            error = JournalError(
                f"{name} is not encrypted, but the journal is to be: export it without --encrypt-journal, and"
                " import it with --encrypt-journal into a new one"
            )
            error.recoverable = False
            raise error


class ConversationValues:
    """Closes what is written of conversations and runs, and opens what is read, the same for every store."""

    def __init__(self, values: Values) -> None:
        self._close = values.close
        self._open = values.open
        self.check = values.check

    def close(self, record: ConversationRecord) -> tuple[bytes, bytes]:
        """The title and the body of a conversation."""
        whose = _whose(record.id, record.principal)
        return self._close(record.title.encode(), "title", whose), self._close(record.body, "body", whose)

    def record(
        self,
        id: str,
        principal: str | None,
        version: int,
        updated: float,
        waiting: bool,
        run: str | None,
        title: bytes,
        body: bytes = NOTHING,
    ) -> ConversationRecord:
        whose = _whose(id, principal)
        return ConversationRecord(
            id=id,
            principal=principal,
            version=version,
            updated=updated,
            waiting=bool(waiting),
            run=run,
            title=self._open(title, "title", whose).decode(),
            body=self._open(body, "body", whose),
        )

    def close_lines(self, run: str, first: int, lines: Sequence[bytes]) -> bytes:
        """Lines of a run, of which the first has this number."""
        return self._close(_encode(lines), "lines", f"{run} {first}")

    def open_lines(self, run: str, rows: Iterable[tuple[int, bytes]], after: int) -> list[bytes]:
        """The lines of a run after a number, of rows that may begin before it."""
        found: list[bytes] = []
        for first, closed in rows:
            lines = _decode_lines(self._open(closed, "lines", f"{run} {first}"))
            found += lines[max(after + 1 - first, 0) :]
        return found


class TreeValues:
    """Closes what is written of trees and nodes, and opens what is read, the same for every store."""

    def __init__(self, values: Values) -> None:
        self._close = values.close
        self._open = values.open
        self.check = values.check

    def close(self, tree_id: str, what: str, value: bytes) -> bytes:
        """The `metadata` or the `note` of a tree."""
        return self._close(value, what, f"the tree {tree_id}")

    def tree(
        self,
        owners: Mapping[str, int],
        id: str,
        principal: str | None,
        kind: str,
        name: str | None,
        root: str,
        state: TreeState,
        due: float | None,
        created: float,
        updated: float,
        version: int,
        nodes: int,
        size: int,
        metadata: bytes,
        note: bytes,
    ) -> TreeRecord:
        return TreeRecord(
            id=id,
            principal=principal,
            kind=kind,
            name=name,
            root=root,
            state=state,
            due=due,
            created=created,
            updated=updated,
            version=version,
            nodes=nodes,
            size=size,
            metadata=self._open(metadata, "metadata", f"the tree {id}"),
            note=self._open(note, "note", f"the tree {id}"),
            owners=owners,
        )

    def close_body(self, tree_id: str, node: NodeRecord) -> bytes:
        return self._close(node.body, "body", f"the node {node.id} of the tree {tree_id}")

    def node(
        self,
        tree_id: str,
        children: Sequence[str],
        id: str,
        parent: str | None,
        external: bool,
        created: float,
        body: bytes,
    ) -> NodeRecord:
        """A node; of its children, up to one more is given than are told."""
        return NodeRecord(
            id=id,
            parent=parent,
            external=bool(external),
            created=created,
            body=self._open(body, "body", f"the node {id} of the tree {tree_id}"),
            children=tuple(children[:LISTED_CHILDREN]),
            more_children=len(children) > LISTED_CHILDREN,
        )


def _whose(id: str, principal: str | None) -> str:
    """Others may have a conversation with the same id."""
    return f"the conversation {id} of {principal!r}"

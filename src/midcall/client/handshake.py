"""Handshake: how a session begins. It finds out which era the server is of, and what it says of itself.

A modern server is greeted with `server/discover`, a legacy one with `initialize`. Which it is cannot be seen
from outside: the modern handshake is tried first, and any answer that a modern server would not give means a
legacy one.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from midcall import jsonrpc
from midcall.client.wire import Unusable
from midcall.errors import RemoteError
from midcall.items import to_json
from midcall.mcp import revisions
from midcall.mcp.messages import META

if TYPE_CHECKING:
    from midcall.client.session import ClientSession

Era: TypeAlias = Literal["auto", "legacy", "modern"]

PROBE = 5.0
"""Seconds that a server has to answer the modern handshake before the legacy one is tried beside it."""

UNSUPPORTED_REVISION = -32022

_MODERN_ERRORS = frozenset((-32020, -32021, UNSUPPORTED_REVISION))
"""What only a modern server answers."""


class Handshake(Struct, frozen=True):
    """What a server says of itself."""

    revision: str = ""
    """The revision that is spoken from here on."""
    modern: bool = False
    capabilities: dict[str, Any] = {}
    server_info: dict[str, Any] = {}
    instructions: str | None = None


async def shake_hands(session: "ClientSession", era: Era, revision: str | None) -> Handshake:
    """Greet a server, in the way of its era. Raises `RemoteError`, or what the line fails with.

    `revision` is the legacy revision to ask for; the server may choose an older one.
    """
    if era == "legacy":
        handshake = await _initialize(session, revision)
    elif era == "modern":
        handshake = await _discover(session)
    else:
        handshake = await _find_out(session, revision)
    session.speak(handshake.revision, modern=handshake.modern)
    return handshake


async def _find_out(session: "ClientSession", revision: str | None) -> Handshake:
    """Greet in the modern way first.

    A server that says nothing may be slow to start, or may ignore what it does not know: after a while it is
    greeted in the legacy way too, and whichever handshake it answers tells.
    """
    probe = asyncio.ensure_future(_discover(session))
    legacy: asyncio.Future[Handshake] | None = None
    try:
        await asyncio.wait((probe,), timeout=PROBE)
        if not probe.done():
            legacy = asyncio.ensure_future(_initialize(session, revision))
            await asyncio.wait((probe, legacy), return_when=asyncio.FIRST_COMPLETED)
            if legacy.done() and legacy.exception() is None:
                return legacy.result()
        try:
            return await probe
        except RemoteError as error:
            if error.rpc_code in _MODERN_ERRORS and not _knows_legacy(error):
                raise
        return await (legacy or _initialize(session, revision))
    finally:
        await _end(probe)
        if legacy is not None:
            await _end(legacy)


async def _discover(session: "ClientSession", tries: int = 2) -> Handshake:
    revision = revisions.MODERN[-1]
    session.speak(revision, modern=True)
    try:
        found = await session.request("server/discover")
    except RemoteError as error:
        # It may even name the revision that it has just refused, and take it the second time.
        if error.rpc_code != UNSUPPORTED_REVISION:
            raise
        if tries > 1 and any(one in revisions.MODERN for one in _supported(error)):
            return await _discover(session, tries - 1)
        raise _no_revision(_supported(error)) from None
    named = _texts(found.get("supportedVersions"))
    if not named:  # it has a result for whatever it is asked
        raise RemoteError("The server did not name a revision", rpc_code=jsonrpc.METHOD_NOT_FOUND)
    known = [one for one in revisions.MODERN if one in named]
    if not known:
        raise _no_revision(named)
    return _read(found, known[-1], modern=True)


async def _initialize(session: "ClientSession", revision: str | None) -> Handshake:
    session.speak("", modern=False)
    asked = {
        "protocolVersion": revision or revisions.LATEST_LEGACY,
        "capabilities": session.offers(modern=False),
        "clientInfo": session.client_info,
    }
    found = await session.request("initialize", to_json(asked)[1:-1])
    chosen = found.get("protocolVersion")
    if chosen not in revisions.LEGACY:
        raise Unusable(
            f"The server chose an unknown revision: {chosen or '(none)'}",
            rpc_code=jsonrpc.INVALID_PARAMS,
        )
    return _read(found, chosen, modern=False)


def _read(found: dict[str, Any], revision: str, *, modern: bool) -> Handshake:
    info = found.get("serverInfo") or _object(found.get("_meta")).get(f"{META}serverInfo")
    instructions = found.get("instructions")
    return Handshake(
        revision,
        modern,
        _object(found.get("capabilities")),
        _object(info),
        instructions if isinstance(instructions, str) else None,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _supported(error: RemoteError) -> Sequence[str]:
    return _texts(_object(error.rpc_data).get("supported"))


def _knows_legacy(error: RemoteError) -> bool:
    return any(one in revisions.LEGACY for one in _supported(error))


def _no_revision(named: Sequence[str]) -> RemoteError:
    return Unusable(
        f"The server speaks {', '.join(named) or 'no revision that it names'}, not {revisions.MODERN[-1]}",
        rpc_code=UNSUPPORTED_REVISION,
        rpc_data={"supported": list(named)},
    )


async def _end(task: "asyncio.Future[Handshake]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # looked at: whoever it concerns knows

"""What is for a call that another worker holds goes to that worker: answers, which it writes down, saying so,
and that somebody has ended the call.

A call that waits may be at work all the same, in another branch: then only the worker that has its coroutine
may go on with it (see `dialect`). Whoever answers it elsewhere does not have to know.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from midcall.errors import JournalError, MidcallError, UnknownQuestion, WrongAnswer
from midcall.journal.bus import Channel
from midcall.journal.contract import CallRecord, Journal
from midcall.journal.dialect import Detached

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls

PATIENCE = 10.0
"""Seconds that a worker has to say whether it has taken answers."""


class Forwarded(Struct, frozen=True):
    """The worker that holds the call has taken the answers."""


class _ForwardedAnswers(Struct, tag="answers"):
    number: int
    sender: str
    call_id: str
    answers: dict[str, Any]
    by_caller: bool = True


class _ForwardedEnd(Struct, tag="end"):
    call_id: str
    reason: str


class _ForwardReply(Struct, tag="reply", omit_defaults=True):
    number: int
    taken: bool = False
    unknown: str | None = None
    """The id of a question that is not asked any more."""
    wrong: str | None = None
    """What was expected of an answer."""


_CHANNEL = "answers"

_decode = msgspec.json.Decoder(_ForwardedAnswers | _ForwardedEnd | _ForwardReply).decode


async def stop_elsewhere(journal: Journal, record: CallRecord, reason: str) -> None:
    """Tell the worker that held a call that it has been ended. Else that finds out when it next writes."""
    if record.owner is not None:
        with contextlib.suppress(JournalError):
            sent = msgspec.json.encode(_ForwardedEnd(record.id, reason))
            await Channel(journal, _CHANNEL).post(record.owner, sent)


class Forwarding:
    """What this worker forwards, and what is forwarded to it."""

    def __init__(self, durable: "DurableCalls") -> None:
        self._durable = durable
        self._channel = durable.bus.channel(_CHANNEL, self._take)
        self._numbers = itertools.count()
        self._replies: dict[int, asyncio.Future[_ForwardReply]] = {}

    async def answer(self, record: CallRecord, answers: Mapping[str, Any], *, by_caller: bool) -> bool:
        """Give answers to the worker that holds a call. False if it has not taken them, or is gone.

        Raises `UnknownQuestion` or `WrongAnswer`, as there, and `JournalError`.
        """
        if record.status != "waiting" or record.owner is None:
            return False
        number = next(self._numbers)
        reply: asyncio.Future[_ForwardReply] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            sent = msgspec.json.encode(
                _ForwardedAnswers(number, self._channel.worker, record.id, dict(answers), by_caller)
            )
            if not await self._channel.post(record.owner, sent):
                return False
            async with asyncio.timeout(PATIENCE):
                told = await reply
        except TimeoutError:
            return False
        finally:
            del self._replies[number]
        if told.unknown is not None:
            raise UnknownQuestion(told.unknown)
        if told.wrong is not None:
            raise WrongAnswer(told.wrong)
        return told.taken

    def _take(self, message: bytes) -> None:
        try:
            came = _decode(message)
        except msgspec.DecodeError:
            return  # of another version of midcall
        if isinstance(came, _ForwardedAnswers):
            self._durable.spawn(self._give(came))
        elif isinstance(came, _ForwardedEnd):
            self._durable.stop(came.call_id, came.reason)
        elif (reply := self._replies.get(came.number)) is not None and not reply.done():
            reply.set_result(came)

    async def _give(self, came: _ForwardedAnswers) -> None:
        reply = _ForwardReply(came.number)
        try:
            reply.taken = isinstance(
                await self._durable.answer(came.call_id, came.answers, patience=0, by_caller=came.by_caller),
                Detached,
            )
        except UnknownQuestion as error:
            reply.unknown = error.request_id
        except WrongAnswer as error:
            reply.wrong = error.expected
        except MidcallError:
            pass  # it is not taken
        with contextlib.suppress(JournalError):  # whoever waits gives up
            await self._channel.post(came.sender, msgspec.json.encode(reply))

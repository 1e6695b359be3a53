"""Bus: what workers post to each other through their journal, told apart by what it is about.

Whoever has something to post has a **channel**, under a word that the other workers know it by; what is
posted on one that a worker does not have is thrown away there. Knows no message.
"""

from collections.abc import Callable

from midcall.journal.contract import Journal


class Channel:
    """What workers post to each other about one thing."""

    def __init__(self, journal: Journal, word: str, take: Callable[[bytes], None] | None = None) -> None:
        self._journal = journal
        self._word = word.encode() + b" "
        self.take = take
        """Gets what is posted to this worker."""

    @property
    def worker(self) -> str:
        """The name of this worker."""
        return self._journal.worker

    async def post(self, worker: str, message: bytes) -> bool:
        """Give a message to another worker; false if that is gone. Raises `JournalError`."""
        return await self._journal.post(worker, self._word + message)


class Bus:
    """The channels of this worker."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._channels: dict[bytes, Channel] = {}

    def open(self) -> None:
        """From now on, what is posted to this worker is taken."""
        self._journal.on_post = self._take

    def channel(self, word: str, take: Callable[[bytes], None] | None = None) -> Channel:
        """A channel for what is posted under this word."""
        channel = self._channels[word.encode()] = Channel(self._journal, word, take)
        return channel

    def _take(self, message: bytes) -> None:
        word, _, rest = message.partition(b" ")
        channel = self._channels.get(word)
        if channel is not None and channel.take is not None:
            channel.take(rest)

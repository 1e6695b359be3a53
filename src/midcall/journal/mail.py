"""Mail: what workers post to each other through their journal, told apart by what it is about.

Whoever has something to post has a **box**, under a word that the other workers know it by; what is posted
for a word that nobody has a box for is thrown away. Knows no message.
"""

from collections.abc import Callable

from midcall.journal.contract import Journal


class Box:
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


class Mail:
    """The boxes of this worker."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._boxes: dict[bytes, Box] = {}

    def open(self) -> None:
        """From now on, what is posted to this worker is taken."""
        self._journal.on_post = self._take

    def box(self, word: str, take: Callable[[bytes], None] | None = None) -> Box:
        """A box for what is posted under this word."""
        box = self._boxes[word.encode()] = Box(self._journal, word, take)
        return box

    def _take(self, message: bytes) -> None:
        word, _, rest = message.partition(b" ")
        box = self._boxes.get(word)
        if box is not None and box.take is not None:
            box.take(rest)

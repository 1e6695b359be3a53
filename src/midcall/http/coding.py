"""Bodies that a server has compressed, although it was asked not to. Bounded: a piece at a time."""

import zlib
from collections.abc import Iterator

from midcall.http.message import Headers

PIECE = 256 * 1024
"""The largest piece that is given on at once, however much a few bytes unfold to."""


MAX_EMPTY = 100
"""How many gzip files without a content may follow each other."""


class Decoder:
    """Undoes `gzip` or `deflate`. Raises `zlib.error` for what is neither."""

    def __init__(self, coding: str) -> None:
        self._gzip = coding != "deflate"
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16) if self._gzip else None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these bytes bring, as it is asked for."""
        if self._stream is None:
            # "deflate" should be zlib's format, but some servers send the bare one, which has no header.
            zlib_format = data[0] & 0x0F == 8
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if zlib_format else -zlib.MAX_WBITS)
        empty = 0
        while True:
            piece = self._stream.decompress(data, PIECE)
            if piece:
                empty = 0
                yield piece
            if self._stream.eof:
                data = self._stream.unused_data
                if not self._gzip or not data.strip(b"\0"):
                    return  # the rest is padding
                empty += 1
                if empty > MAX_EMPTY:
                    raise zlib.error("nothing but empty parts")
                self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)  # one gzip file may follow another
            else:
                data = self._stream.unconsumed_tail
                if not data and len(piece) < PIECE:
                    return

    def complete(self) -> bool:
        """Whether what was compressed has come to its end."""
        return self._stream is None or self._stream.eof


def decoder(headers: Headers) -> Decoder | None:
    """What a body with these headers needs. Raises `ValueError` for a coding that is not known."""
    codings = [
        word.strip().lower() for value in headers.get_all("content-encoding") for word in value.split(",")
    ]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(", ".join(codings))
    return Decoder(codings[0])

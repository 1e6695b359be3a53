"""The floor: a bare asyncio loop that echoes each line, with no JSON, no methods and no calls."""

import asyncio
import os


class Echo(asyncio.Protocol):
    def __init__(self, write, ended: asyncio.Future[None]) -> None:
        self.write = write
        self.ended = ended
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.write(line + b"\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def main() -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    output, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(1, "wb", 0))
    await loop.connect_read_pipe(lambda: Echo(output.write, ended), os.fdopen(0, "rb", 0))
    await ended


asyncio.run(main())

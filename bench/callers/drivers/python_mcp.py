"""The official client: so many calls at once as it goes fastest with. Prints what it took, as JSON."""

import asyncio
import json
import sys
import time

from mcp import Client, StdioServerParameters

AT_ONCE = 64


async def main(count: int, target: list[str]) -> None:
    stdio = StdioServerParameters(command=target[0], args=target[1:])
    async with Client(target[0] if target[0].startswith("http") else stdio) as client:
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                result = await client.call_tool("bench.once", {"message": "hello"})
                assert not result.is_error

        await client.call_tool("bench.once", {"message": "hello"})
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        print(json.dumps({"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}))


asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))

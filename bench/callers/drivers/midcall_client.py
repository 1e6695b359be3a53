"""midcall's client: one parallel batch. Prints what it took, as JSON."""

import asyncio
import json
import sys
import time
from typing import Any

from midcall import connect


async def main(count: int, target: list[str]) -> None:
    server: Any = target[0] if target[0].startswith("http") else target
    calls = [{"id": str(n), "name": "bench.once", "arguments": {"message": "hello"}} for n in range(count)]
    async with connect(server) as client:
        await client.call_tools(calls[:100], parallel=True)
        began, cpu = time.perf_counter(), time.process_time()
        results = await client.call_tools(calls, timeout=600, parallel=True)
        spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    assert all(result["success"] for result in results)
    print(json.dumps(spent))


def run() -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
    else:
        uvloop.run(main(int(sys.argv[1]), sys.argv[2:]))


run()

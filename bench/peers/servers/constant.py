"""The floor over HTTP: uvicorn as it comes; the body is parsed, and the answer is always the same.

A call of `ask` is never answered: its stream begins with a question and stays open, with no call behind it.
"""

import asyncio
import sys

import msgspec
import uvicorn
import uvloop

ANSWER = (
    b'{"jsonrpc":"2.0","id":1000001,"result":{"content":[{"type":"text","text":"hello"}],'
    b'"structuredContent":{"result":"hello"},"isError":false,"resultType":"complete"}}'
)
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(ANSWER)),
        (b"mcp-session-id", b"1"),
    ],
}
BODY = {"type": "http.response.body", "body": ANSWER}
EVENTS = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream")],
}
QUESTION = {
    "type": "http.response.body",
    "body": b'data: {"jsonrpc":"2.0","id":1,"method":"elicitation/create"}\n\n',
    "more_body": True,
}


async def app(scope, receive, send) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    message = msgspec.json.decode(body)
    if message.get("params", {}).get("name") == "ask":
        await send(EVENTS)
        await send(QUESTION)
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send(START)
    await send(BODY)


def main() -> None:
    config = uvicorn.Config(app, port=int(sys.argv[1]), log_level="error", lifespan="off")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve())


main()

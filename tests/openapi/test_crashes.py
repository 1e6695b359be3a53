"""A request that changes something is sent once, whatever becomes of the server that sends it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crash.person import SAID
from driving import LIMIT, drive, until
from peers import HERE, command, environment
from shop_api import Shop, served


class Server:
    """A midcall server on standard input and output, which can be killed and started again."""

    def __init__(self, url: str, journal: Path) -> None:
        self._words = command("serve", "shop_hub:hub", "--stdio", "--mcp-only", "--journal", str(journal))
        self._environment = {**environment(), "SHOP_URL": f"{url}/v2"}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._words,
            cwd=HERE,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": SAID}}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        while "id" not in (message := json.loads(self.process.stdout.readline())):
            pass
        return message["result"]

    def call(self, **params: Any) -> Any:
        self.send(**params)
        return self.receive()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def server(shop: Shop, tmp_path: Path) -> Iterator[Server]:
    with served(shop) as url:
        made = Server(url, tmp_path / "journal.db")
        yield made
        made.kill()


def answered(asked: Any) -> dict[str, Any]:
    (key,) = asked["inputRequests"]
    answers = {key: {"action": "accept", "content": {"confirmed": True}}}
    return {"requestState": asked["requestState"], "inputResponses": answers}


CALL = {"name": "shop.deleteProduct", "arguments": {"productId": "1"}}


def test_a_confirmed_request_is_sent_by_another_process_after_a_crash_and_only_once(
    server: Server, shop: Shop
) -> None:
    asked = server.call(**CALL)
    assert asked["resultType"] == "input_required"
    server.kill()
    server.start()
    for _ in range(2):
        assert not server.call(**CALL, **answered(asked)).get("isError")
    assert [(one["verb"], one["path"]) for one in shop.seen] == [("DELETE", "/v2/products/1")]
    assert shop.seen[0]["headers"]["authorization"] == "Bearer s3cret"


def test_a_request_in_the_middle_of_which_the_server_died_is_not_sent_again(
    server: Server, shop: Shop, tmp_path: Path
) -> None:
    shop.held = True
    asked = server.call(**CALL)
    server.send(**CALL, **answered(asked))
    drive(until(lambda: shop.seen))
    server.kill()
    server.start()
    told = server.call(**CALL, **answered(asked))
    assert told["isError"]
    assert (
        "DELETE /products/{productId} was interrupted: it may have happened, or not"
        in told["content"][0]["text"]
    )
    assert len(shop.seen) == 1
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"s3cret" not in kept
    assert os.environ.get("SHOP_URL") is None

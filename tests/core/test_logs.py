"""Logs: lines for people and for machines, that say which call they are about and never what was said in it."""

import asyncio
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from midcall import connect_hub
from midcall.items import Request
from midcall.logs import JsonFormatter, TextFormatter, is_no_frame
from operating import ADMIN, KEYS, Server, accept

SECRETS = ("my-argument", "my-answer", "my-other-answer", "my-note", ADMIN)


def lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def busy(server: Server) -> Any:
    """Calls over HTTP and a WebSocket, with answers, a failure and an administrator; gives the id of one."""
    asked = server.call("shop.order", ADMIN, item="my-argument")
    call = server.only(ADMIN)
    asked = server.call(
        "shop.order", ADMIN, state=asked, answers={"address": accept(text="my-answer")}, item="my-argument"
    )
    path = f"/admin/calls/{call['id']}/answers"
    assert server.post(path, {"answers": {"question-4": True}}, ADMIN).json["status"] == "completed"
    server.call("shop.faulty", ADMIN, note="my-note")

    async def talk() -> None:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws", headers=headers) as remote:
            invocation = remote.call("shop.broken", {"note": "my-note"}, supports={"prompt"})
            async for item in invocation:
                if isinstance(item, Request):
                    await invocation.answer(item.request_id, "my-other-answer")

    drive(talk())
    return call


@pytest.mark.parametrize("level", ["debug", "info"])
def test_lines_of_json_say_which_call_they_are_about(tmp_path: Path, level: str) -> None:
    with Server(tmp_path, "--log-format", "json", "--log-level", level, MIDCALL_TOKENS=KEYS) as server:
        call = busy(server)
        found = lines(server.stop())
    assert {"time", "level", "logger", "message"} <= found[0].keys()
    (own,) = [line for line in found if line["logger"] == "shop"]
    assert own["message"] == "between the questions"
    assert (own["call"], own["method"], own["segment"]) == (call["id"], "shop.order", 1)
    answered = [line for line in found if line["logger"] == "midcall.admin"]
    assert [(line["message"], line["call"]) for line in answered] == [("answered by root", call["id"])]
    at_once, after = [line for line in found if line["logger"] == "midcall.call"]
    assert at_once["method"] == "shop.faulty"
    assert "RuntimeError: it broke at once" in at_once["error"]
    assert (after["level"], after["message"], after["method"]) == (
        "warning",
        "shop.broken failed",
        "shop.broken",
    )
    assert after["call"]
    assert any(line["logger"] == "uvicorn.access" for line in found)
    for secret in SECRETS:
        assert secret not in json.dumps(found), "what people say is nobody else's business"


def test_lines_of_text_do_so_too(tmp_path: Path) -> None:
    with Server(tmp_path, "--log-level", "debug", MIDCALL_TOKENS=KEYS) as server:
        call = busy(server)
        log = server.stop()
    about = f"[call={call['id']} method=shop.order segment=1]"
    assert f"INFO shop: between the questions {about}" in log
    assert f"INFO midcall.admin: answered by root [call={call['id']}]" in log
    assert "WARNING midcall.call: shop.broken failed [call=" in log
    for secret in SECRETS:
        assert secret not in log


def test_workers_say_who_they_are(tmp_path: Path) -> None:
    with Server(tmp_path, "--log-format", "json", "--workers", "2") as server:
        server.call("shop.order", item="tea")
        found = lines(server.stop())
    assert {line.get("process") for line in found} >= {None, "worker 1"}, (
        "the parent, and the first that came"
    )


# --- one line -------------------------------------------------------------------------------------


def logged(formatter: logging.Formatter, *args: Any, **kwargs: Any) -> str:
    stream = io.StringIO()
    logger = logging.Logger("some.where", logging.DEBUG)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(is_no_frame)
    logger.addHandler(handler)
    logger.log(*args, **kwargs)
    return stream.getvalue()


def test_a_line_may_hold_anything() -> None:
    extra = {"call": "c1", "method": "a.b", "segment": 0, "other": "not told"}
    line = json.loads(logged(JsonFormatter(), logging.ERROR, "a \udcff\n%s", object, extra=extra))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "error", "logger": "some.where", "message": "a ?\n<class 'object'>",
        "call": "c1", "method": "a.b", "segment": 0,
    }  # fmt: skip
    assert logged(TextFormatter(), logging.INFO, "hello", extra=extra).endswith(
        "INFO some.where: hello [call=c1 method=a.b segment=0]\n"
    )
    assert "worker 1 some.where: hello\n" in logged(TextFormatter("worker 1"), logging.INFO, "hello")


def test_frames_and_headers_of_websockets_are_left_out() -> None:
    for message in ("< %s", "> %s", "< Authorization: Bearer x"):
        assert logged(JsonFormatter(), logging.DEBUG, message, *("x",) * message.count("%s")) == ""
    assert logged(JsonFormatter(), logging.WARNING, "< 3 of them") != ""


def test_what_runs_beside_a_call_is_not_about_it() -> None:
    async def main() -> str:
        return logged(JsonFormatter(), logging.INFO, "hello")

    assert "call" not in json.loads(asyncio.run(main()))

"""What says that it is JSON is JSON, in and out; on each path that takes a body."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from operating import Server

PATHS = {
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    "/messages?session_id=x": {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    "/chat": {"conversationId": "c", "resume": True},
    "/chat/stop": {"conversationId": "c"},
    "/agui": {"threadId": "t", "resume": []},
    "/agui/connect": {"threadId": "t"},
    "/admin/calls/x/abort": {},
    "/admin/calls/x/answers": {"answers": {}},
    "/admin/import": {},
    "/calls/x/abort": {},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("server")
    with Server(folder, "--admin", "--sse", "--model", "scripted", "--log-level", "warning") as serving:
        yield serving


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith("/messages")])
@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "text/plain; application/json",
        "text/plain; charset=application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "application/jsonp",
        "x/application/json",
        "",
    ],
)
def test_a_body_that_is_said_to_be_something_else_than_json_is_refused(
    server: Server, path: str, kind: str
) -> None:
    came = server.post(path, PATHS[path], content_type=kind)
    refused = 400 if path.startswith(("/admin", "/calls")) else 415
    assert came.status == refused, came.text
    assert "Content-Type must be" in came.text


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/admin/import"])
@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON", "application/json;charset=UTF-8", " application/json ; x=y"],
)
def test_the_type_of_json_may_be_written_in_any_case_and_with_parameters(
    server: Server, path: str, kind: str
) -> None:
    came = server.post(path, PATHS[path], content_type=kind, accept="application/json, text/event-stream")
    assert "Content-Type must be" not in came.text


@pytest.mark.parametrize("path", [*PATHS, "/nowhere"])
def test_no_browser_may_take_a_response_for_something_else(server: Server, path: str) -> None:
    came = server.post(path, PATHS.get(path, {}))
    assert came.headers["x-content-type-options"] == "nosniff", came.headers


@pytest.mark.parametrize(
    "path",
    ["/health", "/ready", "/calls", "/chat/info", "/chat/conversations", "/admin/calls", "/web-modules.json"],
)
def test_nor_what_is_read(server: Server, path: str) -> None:
    assert server.get(path).headers["x-content-type-options"] == "nosniff"
    foreign = server.get(path, origin="https://evil.example.com").headers
    assert foreign["x-content-type-options"] == "nosniff"

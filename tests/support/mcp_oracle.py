"""The oracle: whether each message that a server sends is one of the official types of its revision.

The types are those of the package `mcp-types`, by the maintainers of MCP. It checks all legacy
revisions by the shapes of the last one; with `MCP_SCHEMAS` set to the folder `schema/` of the
specification's repository, every message is checked by the JSON Schema of its own revision too.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any, Literal, get_args

import jsonschema_rs
from mcp_types import jsonrpc, methods
from pydantic import BaseModel, ConfigDict, TypeAdapter

SCHEMAS = os.environ.get("MCP_SCHEMAS")
MODERN = "2026-07-28"


class _Task(BaseModel):
    """A task as SEP-2663 has it: the package does not know this extension."""

    model_config = ConfigDict(extra="forbid", strict=True)

    taskId: str  # noqa: N815  as on the wire
    createdAt: str  # noqa: N815
    lastUpdatedAt: str  # noqa: N815
    ttlMs: int | None  # noqa: N815
    pollIntervalMs: int  # noqa: N815
    meta: dict[str, Any]


class _Created(_Task):
    resultType: Literal["task"]  # noqa: N815
    status: Literal["working"]


class _Complete(_Task):
    resultType: Literal["complete"]  # noqa: N815


class _Working(_Complete):
    status: Literal["working", "cancelled"]


class _Asking(_Complete):
    status: Literal["input_required"]
    inputRequests: dict[str, Any]  # noqa: N815


class _Completed(_Complete):
    status: Literal["completed"]
    result: dict[str, Any]


class _Failed(_Complete):
    status: Literal["failed"]
    error: dict[str, Any]


class _Acknowledged(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    resultType: Literal["complete"]  # noqa: N815
    meta: dict[str, Any]


_TASK = TypeAdapter[Any](_Working | _Asking | _Completed | _Failed)
_CREATED = TypeAdapter[Any](_Created)
_ACKNOWLEDGED = TypeAdapter[Any](_Acknowledged)
_ERROR = TypeAdapter[Any](jsonrpc.JSONRPCError)


class Oracle:
    """Knows what was asked, so that it can tell what an answer must look like."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self._asked: dict[Any, tuple[str, str]] = {}
        self.checked = 0

    def asked(self, message: dict[str, Any]) -> None:
        """A request goes to the server."""
        meta = (message.get("params") or {}).get("_meta", {})
        revision = meta.get("io.modelcontextprotocol/protocolVersion", self.revision)
        self._asked[message["id"]] = (message["method"], revision)

    def check(self, message: Any) -> None:
        """A message has come from the server: fails unless it is a good one."""
        self.checked += 1
        if isinstance(message, list):
            assert message, "an empty batch"
            for one in message:
                self.check(one)
        elif "method" in message:
            self._check_own(message)
        elif "error" in message:
            assert message.keys() == {"jsonrpc", "id", "error"}, message
            assert isinstance(message["error"]["code"], int)
            if message["id"] is not None:
                _ERROR.validate_python(message)
        else:
            assert message.keys() == {"jsonrpc", "id", "result"}, message
            method, revision = self._asked.pop(message["id"])
            if method == "initialize":
                revision = message["result"]["protocolVersion"]
            _check_result(method, revision, message["result"])

    def _check_own(self, message: dict[str, Any]) -> None:
        method, revision = message["method"], self.revision
        if "id" in message:
            methods.parse_server_request(method, revision, message.get("params"))
            by_schema(revision, methods.SERVER_REQUESTS[method, revision], message)
        else:
            methods.parse_server_notification(method, revision, message.get("params"))
            by_schema(revision, methods.SERVER_NOTIFICATIONS[method, revision], message)


def _check_result(method: str, revision: str, result: dict[str, Any]) -> None:
    if revision == MODERN:
        assert result["resultType"] in ("complete", "input_required", "task"), "every result has a type"
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]
    named = {"meta" if name == "_meta" else name: value for name, value in result.items()}
    if result.get("resultType") == "task":
        _CREATED.validate_python(named)
    elif method == "tasks/get":
        _TASK.validate_python(named)
        if result["status"] == "completed":
            _check_result("tools/call", "2025-11-25", result["result"])
    elif method.startswith("tasks/"):
        _ACKNOWLEDGED.validate_python(named)
    else:
        methods.parse_server_result(method, revision, result)
        by_schema(revision, methods.SERVER_RESULTS[method, revision], result)


# --- the JSON Schemas, where they are at hand ------------------------------------------------


def by_schema(revision: str, kind: Any, message: Any) -> None:
    """Check by the official JSON Schema, if there is one here."""
    if SCHEMAS is None:
        return
    names = [one.__name__ for one in (get_args(kind) or (kind,))]
    faults = {}
    for name in names:
        fault = next(iter(_validator(revision, name).iter_errors(message)), None)
        if fault is None:
            return
        faults[name] = f"{fault.message} at {list(fault.instance_path)}"
    raise AssertionError(f"{json.dumps(message)[:2000]} is none of {revision}: {faults}")


@functools.cache
def _validator(revision: str, name: str) -> Any:
    schema = json.loads(Path(str(SCHEMAS), revision, "schema.json").read_text())
    place = "$defs" if "$defs" in schema else "definitions"
    assert name in schema[place], f"{revision} has no {name}"
    return jsonschema_rs.validator_for({**schema, "$ref": f"#/{place}/{name}"})

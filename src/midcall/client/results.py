"""What tools give, as a caller of an MCP server meets it."""

from typing import Any

from msgspec import Struct

from midcall.errors import MidcallError, ToolError
from midcall.mcp.results import ERROR_CODE, objects_in, text_of


class ToolResult(Struct, frozen=True):
    """The result of a tool: content for a model, and perhaps data for a program."""

    content: list[dict[str, Any]] = []
    """Blocks as MCP has them: `{"type": "text", "text": ...}`, pictures, sound, resources."""
    structured: Any = None
    """What a tool with an output schema gives."""
    meta: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """All text blocks, one below the other."""
        return text_of(self.content)

    @property
    def value(self) -> Any:
        """The structured result if there is one, else the text."""
        return self.text if self.structured is None else self.structured


def tool_result(result: dict[str, Any]) -> ToolResult:
    """A result as it came. Raises `ToolError` if the tool says that it failed."""
    blocks = objects_in(result.get("content"))
    if result.get("isError"):
        raise failure_of(result)
    meta = result.get("_meta")
    return ToolResult(blocks, result.get("structuredContent"), meta if isinstance(meta, dict) else {})


def failure_of(result: dict[str, Any]) -> ToolError:
    """Why a tool failed, as its result says; a midcall server also says the error's code."""
    meta = result.get("_meta")
    code = meta.get(ERROR_CODE) if isinstance(meta, dict) else None
    text = text_of(result.get("content")) or "The tool failed"
    return ToolError(text, code=code) if isinstance(code, str) else ToolError(text)


def batch_result(call_id: str, outcome: dict[str, Any] | MidcallError) -> dict[str, Any]:
    """One entry of what `call_tools` gives."""
    if isinstance(outcome, MidcallError):
        return {"call_id": call_id, "success": False, "error": str(outcome)}
    if outcome.get("isError"):
        error = str(failure_of(outcome))
        return {"call_id": call_id, "success": False, "error": error, "result": outcome}
    return {"call_id": call_id, "success": True, "result": outcome}

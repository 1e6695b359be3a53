"""Coding agents as clients: how each is configured, and driven as the programs around it drive it.

An agent gets a server, a model on loopback, and prompts. It is asked by the server through whoever drives it,
in the place of a person: Claude Code by its stream of JSON lines, Codex by its app server.
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from harness.install import npm_package

SERVER = "pizzeria"
RUN_SECONDS = 120

Answer = Mapping[str, Any] | None
"""The content of an accepted form, or none if it is declined."""


class AgentError(Exception):
    """The agent ended, or did not do what it was told."""


@dataclass
class Turn:
    """What came of a prompt: what the person was asked, and what the model was told."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    said: str = ""


class Lines:
    """A child process that speaks JSON lines; it is ended when it takes too long."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, log: IO[str]) -> None:
        self._log = log
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **env},
            cwd=folder,
            text=True,
        )
        self._timer = threading.Timer(RUN_SECONDS, self._process.kill)
        self._timer.start()

    def send(self, message: Any) -> None:
        print(f"> {json.dumps(message)}", file=self._log, flush=True)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what it said of that comes next
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def __iter__(self) -> Iterator[Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(f"< {line.rstrip()}", file=self._log, flush=True)
            yield json.loads(line)
        raise AgentError(f"ended with {self._process.wait()}: see {self._log.name}")

    def close(self) -> None:
        self._timer.cancel()
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@dataclass(frozen=True)
class ClaudeCode:
    """Claude Code, without a terminal: what a program sees that embeds it."""

    name: ClassVar[str] = "claude-code"
    package: ClassVar[str] = "@anthropic-ai/claude-code"
    version: ClassVar[str] = "2.1.326"
    prefix: ClassVar[str] = f"mcp__{SERVER}__"
    """What it puts before the name of a tool."""
    lines: Lines

    @staticmethod
    def command(program: Path, server: Sequence[str]) -> list[str]:
        match server:
            case [url]:
                config: dict[str, Any] = {"type": "http", "url": url}
            case [first, *rest]:
                config = {"command": first, "args": rest}
        return [
            str(program),
            *("--print", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"),
            *("--permission-prompt-tool", "stdio", "--setting-sources", ""),
            *("--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": {SERVER: config}})),
        ]

    @staticmethod
    def prepare(home: Path, model: str, server: Sequence[str]) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": model,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(home),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "false",
        }

    def begin(self) -> None:
        request = {"subtype": "initialize", "hooks": None}
        self.lines.send({"type": "control_request", "request_id": "first", "request": request})

    def play(self, prompt: str, answer: Answer) -> Turn:
        turn = Turn()
        message = {"role": "user", "content": prompt}
        self.lines.send({"type": "user", "message": message, "parent_tool_use_id": None})
        for line in self.lines:
            match line:
                case {"type": "control_request", "request_id": id, "request": request}:
                    self._answer(id, self._decide(request, answer, turn))
                case {"type": "result", "is_error": failed, "result": said}:
                    if failed:
                        raise AgentError(str(said))
                    turn.said = said
                    break
        return turn

    def _decide(self, request: dict[str, Any], answer: Answer, turn: Turn) -> dict[str, Any]:
        match request["subtype"]:
            case "can_use_tool":
                return {"behavior": "allow", "updatedInput": request["input"]}
            case "elicitation":
                turn.asked.append({"message": request["message"], "schema": request["requested_schema"]})
                return {"action": "decline"} if answer is None else {"action": "accept", "content": answer}
        raise AgentError(f"asks for {request['subtype']}")

    def _answer(self, id: str, answer: Any) -> None:
        response = {"subtype": "success", "request_id": id, "response": answer}
        self.lines.send({"type": "control_response", "response": response})


@dataclass(frozen=True)
class Codex:
    """Codex, by its app server: what an editor sees that embeds it."""

    name: ClassVar[str] = "codex"
    package: ClassVar[str] = "@openai/codex"
    version: ClassVar[str] = "0.169.0"
    prefix: ClassVar[str] = f"mcp__{SERVER}/"
    lines: Lines
    thread: list[str] = field(default_factory=list)

    @staticmethod
    def command(program: Path, server: Sequence[str]) -> list[str]:
        return [str(program), "app-server"]

    @staticmethod
    def prepare(home: Path, model: str, server: Sequence[str]) -> dict[str, str]:
        match server:
            case [url]:
                target = f"url = {json.dumps(url)}"
            case [first, *rest]:
                target = f"command = {json.dumps(first)}\nargs = {json.dumps(rest)}"
        (home / "config.toml").write_text(
            f"""
            model = "loopback"
            model_provider = "loopback"
            sandbox_mode = "read-only"
            check_for_update_on_startup = false
            [analytics]
            enabled = false
            [model_providers.loopback]
            name = "Loopback"
            base_url = "{model}/v1"
            wire_api = "responses"
            [mcp_servers.{SERVER}]
            {target}
            """
        )
        return {"CODEX_HOME": str(home)}

    def begin(self) -> None:
        self._request("initialize", {"clientInfo": {"name": "midcall", "version": "1"}})
        self.lines.send({"method": "initialized"})
        thread = self._request("thread/start", {})
        for line in self.lines:
            match line:
                case {"method": "mcpServer/startupStatus/updated", "params": {"status": "ready"}}:
                    break
                case {"method": "mcpServer/startupStatus/updated", "params": {"error": str(reason)}}:
                    raise AgentError(reason)
        self.thread.append(thread["thread"]["id"])

    def play(self, prompt: str, answer: Answer) -> Turn:
        turn = Turn()
        said = {"type": "text", "text": prompt}
        self.lines.send(
            {"id": prompt, "method": "turn/start", "params": {"threadId": self.thread[0], "input": [said]}}
        )
        for line in self.lines:
            match line:
                case {"id": id, "method": "mcpServer/elicitation/request", "params": request}:
                    self.lines.send({"id": id, "result": self._decide(request, answer, turn)})
                case {"method": "item/completed", "params": {"item": {"type": "agentMessage", "text": text}}}:
                    turn.said = text
                case {"method": "turn/completed", "params": {"turn": {"error": None}}}:
                    break
                case {"method": "turn/completed", "params": {"turn": {"error": error}}} | {"error": error}:
                    raise AgentError(str(error))
        return turn

    def _decide(self, request: dict[str, Any], answer: Answer, turn: Turn) -> dict[str, Any]:
        if (request["_meta"] or {}).get("codex_approval_kind"):  # may the tool be called at all?
            return {"action": "accept", "content": {}}
        turn.asked.append({"message": request["message"], "schema": request["requestedSchema"]})
        if answer is None:
            return {"action": "decline", "content": None}
        return {"action": "accept", "content": answer}

    def _request(self, method: str, params: Any) -> Any:
        self.lines.send({"id": method, "method": method, "params": params})
        for line in self.lines:
            match line:
                case {"id": id, "result": result} if id == method:
                    return result
                case {"id": id, "error": error} if id == method:
                    raise AgentError(str(error))
        raise AssertionError("the lines end with an error")


Agent = ClaudeCode | Codex
AGENTS: tuple[type[Agent], ...] = (ClaudeCode, Codex)


def program_of(kind: type[Agent], folder: Path, say: Callable[[str], None]) -> Path:
    """The agent's program, which is installed if it is not there yet."""
    program = Path(kind.package).name.removesuffix("-code")
    return npm_package(folder, kind.package, kind.version, say) / "node_modules" / ".bin" / program


@contextmanager
def running(
    kind: type[Agent], program: Path, server: Sequence[str], model: str, log: Path
) -> Iterator[Agent]:
    """An agent that is ready for prompts, in an empty folder, with an empty home."""
    home = Path(tempfile.mkdtemp(prefix=f"midcall-{kind.name}-"))
    try:
        (home / "work").mkdir()
        with log.open("w") as written:
            lines = Lines(
                kind.command(program, server), kind.prepare(home, model, server), home / "work", written
            )
            try:
                agent = kind(lines)
                agent.begin()
                yield agent
            finally:
                lines.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)

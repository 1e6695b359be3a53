"""Which foreign servers there are, what is done with each, and what is to be seen."""

import subprocess
from pathlib import Path
from typing import Any

from harness.foreign import SAMPLE, Scene, Server, call, listed, prompt, read


def _everything(folder: Path, page: str) -> Scene:
    weather = {"temperature": 33, "conditions": "Cloudy", "humidity": 82}
    return Scene(
        (),
        (
            listed(
                "echo", "get-sum", "trigger-elicitation-request", "trigger-sampling-request", "get-roots-list"
            ),
            call("echo", {"message": "hello"}, text="Echo: hello"),
            call("get-sum", {"a": 2, "b": 3}, text="The sum of 2 and 3 is 5."),
            call("get-structured-content", {"location": "New York"}, structured=weather),
            call("get-tiny-image", kinds=["text", "image", "text"]),
            call("get-resource-links", {"count": 2}, kinds=["text", "resource_link", "resource_link"]),
            call("get-resource-reference", {"resourceType": "Text"}, kinds=["text", "resource", "text"]),
            call(
                "trigger-long-running-operation",
                {"duration": 1, "steps": 4},
                text="Long running operation completed",
                progress=[0.25, 0.5, 0.75, 1.0],
            ),
            call("trigger-elicitation-request", text="- Name: Ada", asked=["form"]),
            call("trigger-url-elicitation", {"url": page}, text="User completed the URL", asked=["url"]),
            # By an error that wants a page to be visited first; then it asks in the usual way.
            call(
                "trigger-url-elicitation",
                {"url": page, "elicitationId": "1", "errorPath": True},
                text="User completed the URL",
                asked=["url", "url"],
            ),
            call("trigger-sampling-request", {"prompt": "How is it?"}, text=SAMPLE, asked=["sample"]),
            call("get-roots-list", text=folder.as_uri()),
            call("get-sum", {"a": "two", "b": 3}, failed=True),
            read("demo://resource/static/document/features.md", "Everything Server"),
            read("demo://resource/dynamic/text/1", "Resource 1"),
            prompt("simple-prompt", "This is a simple prompt"),
            prompt("args-prompt", "Berlin", city="Berlin"),
        ),
    )


def _filesystem(folder: Path, page: str) -> Scene:
    notes, moved = str(folder / "notes.txt"), str(folder / "moved.txt")
    edit = {"oldText": "two", "newText": "2"}
    return Scene(
        (str(folder),),
        (
            listed("write_file", "read_text_file"),
            call("list_allowed_directories", text=str(folder)),
            call("write_file", {"path": notes, "content": "one\ntwo\nthree\n"}, text="Successfully wrote"),
            call("read_text_file", {"path": notes, "head": 2}, text="one\ntwo"),
            call("edit_file", {"path": notes, "edits": [edit]}, text="+2"),
            call("move_file", {"source": notes, "destination": moved}, text="Successfully moved"),
            call("list_directory", {"path": str(folder)}, text="[FILE] moved.txt"),
            call("search_files", {"path": str(folder), "pattern": "**/*.txt"}, text=moved),
            call("get_file_info", {"path": moved}, text="isFile: true"),
            call("read_text_file", {"path": "/etc/hostname"}, failed=True, text="Access denied"),
        ),
    )


def _memory(folder: Path, page: str) -> Scene:
    ada = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    engine = {"name": "Engine", "entityType": "machine", "observations": ["has a mill"]}
    relation = {"from": "Ada", "to": "Engine", "relationType": "programs"}
    return Scene(
        (),
        (
            listed("create_entities", "read_graph"),
            call("create_entities", {"entities": [ada, engine]}, structured={"entities": [ada, engine]}),
            call("create_relations", {"relations": [relation]}, structured={"relations": [relation]}),
            call("search_nodes", {"query": "mill"}, text="Engine"),
            call("open_nodes", {"names": ["Ada"]}, text="writes programs"),
            call("delete_entities", {"entityNames": ["Engine"]}, text="deleted"),
            call("read_graph", structured={"entities": [ada], "relations": []}),
            read("memory://knowledge-graph", "writes programs"),
        ),
        {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
    )


def _thinking(folder: Path, page: str) -> Scene:
    def thought(number: int) -> dict[str, Any]:
        words = f"Thought {number}"
        more = number < 2
        return {"thought": words, "thoughtNumber": number, "totalThoughts": 2, "nextThoughtNeeded": more}

    return Scene(
        (),
        (
            listed("sequentialthinking"),
            call("sequentialthinking", thought(1), structured={"thoughtHistoryLength": 1}),
            call("sequentialthinking", thought(2), structured={"thoughtHistoryLength": 2}),
            call("sequentialthinking", {"thought": "Nothing else"}, failed=True),
        ),
    )


def _time(folder: Path, page: str) -> Scene:
    tokyo = {"source_timezone": "Asia/Tokyo", "time": "16:30", "target_timezone": "Asia/Kolkata"}
    return Scene(
        ("--local-timezone", "Etc/UTC"),
        (
            listed("get_current_time", "convert_time"),
            call("get_current_time", {"timezone": "Etc/UTC"}, text="Etc/UTC"),
            call("convert_time", tokyo, text="13:00"),
            call("get_current_time", {"timezone": "Moon/Base"}, failed=True),
        ),
    )


def _sqlite(folder: Path, page: str) -> Scene:
    def query(text: str) -> dict[str, str]:
        return {"query": text}

    return Scene(
        ("--db-path", str(folder / "test.db")),
        (
            listed("read_query", "write_query"),
            call("create_table", query("CREATE TABLE pizza (name TEXT, price REAL)"), text="successfully"),
            call("write_query", query("INSERT INTO pizza VALUES ('margherita', 8.5)"), text="affected_rows"),
            call("read_query", query("SELECT name FROM pizza WHERE price < 9"), text="margherita"),
            call("list_tables", text="pizza"),
            call("describe_table", {"table_name": "pizza"}, text="REAL"),
            call("append_insight", {"insight": "Pizza is cheap"}, text="added"),
            read("memo://insights", "Pizza is cheap"),
            prompt("mcp-demo", "pizza", topic="pizza"),
        ),
    )


def _git(folder: Path, page: str) -> Scene:
    repository = folder / "repository"
    repository.mkdir(exist_ok=True)
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("config", "user.name", "Ada"),
        ("config", "user.email", "ada@example.com"),
    ):
        subprocess.run(("git", "-C", str(repository), *command), check=True, capture_output=True)
    (repository / "notes.txt").write_text("one\n")
    here = {"repo_path": str(repository)}
    return Scene(
        ("--repository", str(repository)),
        (
            listed("git_status", "git_commit"),
            call("git_status", here, text="notes.txt"),
            call("git_add", {**here, "files": ["notes.txt"]}, text="staged"),
            call("git_commit", {**here, "message": "First note"}, text="committed"),
            call("git_log", here, text="First note"),
            call("git_create_branch", {**here, "branch_name": "other"}, text="other"),
            call("git_branch", {**here, "branch_type": "local"}, text="other"),
            call("git_show", {**here, "revision": "HEAD"}, text="+one"),
            call("git_status", {"repo_path": str(folder / "nowhere")}, failed=True),
        ),
    )


def _fetch(folder: Path, page: str) -> Scene:
    return Scene(
        ("--ignore-robots-txt", "--allow-private-ips"),
        (
            listed("fetch"),
            call("fetch", {"url": page, "raw": True}, text="A page to be fetched"),
            call("fetch", {"url": f"{page}/missing", "raw": True}, failed=True),
            prompt("fetch", "A page to be fetched", url=page),
        ),
    )


SERVERS = (
    Server("everything", "@modelcontextprotocol/server-everything", "2026.8.31", _everything),
    Server("filesystem", "@modelcontextprotocol/server-filesystem", "2026.8.31", _filesystem),
    Server("memory", "@modelcontextprotocol/server-memory", "2026.8.31", _memory),
    Server("thinking", "@modelcontextprotocol/server-sequential-thinking", "2026.8.31", _thinking),
    Server("time", "mcp-server-time", "2026.10.19", _time),
    Server("git", "mcp-server-git", "2026.10.19", _git),
    Server("fetch", "mcp-server-fetch", "2026.10.24", _fetch),
    # It does not run with an mcp of today, and does not say so.
    Server("sqlite", "mcp-server-sqlite", "2025.4.25", _sqlite, overrides=("mcp==1.30.0",)),
)

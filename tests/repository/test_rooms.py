"""The rooms of the house: a module imports only from its own room and from rooms above it."""

import ast
from pathlib import Path

from source import SOURCE, modules

# From the inside out. The modules of the core are rooms of their own, so their order is kept too.
ROOMS = [
    "version", "errors", "limits", "telemetry", "principal", "docstrings", "questions", "metrics", "decorators", "content", "items", "json_schema", "schema", "open_questions", "replay", "logs", "steps", "dev", "call", "calls", "branch", "ask", "activation",
    "registry", "invocation", "hub", "testing", "jsonrpc", "http",
    "journal", "plexus", "mcp", "transports", "client", "mount", "models", "chat", "fsm", "activations", "cli",
]  # fmt: skip

# The doors that open upwards, each inside a function: conveniences that the design asks for.
DOORS = {("journal", "plexus"), ("hub", "transports"), ("hub", "mount"), ("midcall", "client")}

# What some have of rooms further out: they only name their types.
NAMED = {("hub", "journal"), ("hub", "chat"), ("open_questions", "call"), ("plexus", "mcp")}


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [
                f"{node.module}.{alias.name}" if node.module == "midcall" else str(node.module)
                for alias in node.names
            ]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("midcall.")}
    return rooms


def test_every_module_belongs_to_a_room() -> None:
    assert {room for room, _ in modules()} - set(ROOMS) == {"midcall", "__main__"}


def test_a_module_imports_only_from_its_own_room_and_from_rooms_above() -> None:
    wrong = []
    for room, path in modules():
        place = (
            len(ROOMS)
            if room == "__main__"
            else ROOMS.index("jsonrpc")
            if room == "midcall"
            else ROOMS.index(room)
        )
        wrong += [
            f"{path.relative_to(SOURCE)} imports {other}"
            for other in imported_rooms(path)
            if other in ROOMS and ROOMS.index(other) > place and (room, other) not in DOORS | NAMED
        ]
    assert wrong == []


def test_no_module_starts_a_task_that_nobody_owns() -> None:
    """A created task is kept: the statement is never a bare `create_task(...)`."""
    bare = []
    for _, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = ast.unparse(node.value.func)
                owned = called.startswith("group.")  # a task group waits for its tasks
                if called.endswith(("create_task", "ensure_future")) and not owned:
                    bare.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert bare == []


def test_no_class_name_is_used_twice_in_the_middle_of_the_house() -> None:
    seen: dict[str, list[str]] = {}
    for room, path in modules():
        if room in ("journal", "plexus", "mcp", "chat"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    seen.setdefault(node.name.removeprefix("_"), []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in seen.items() if len(paths) > 1} == {}

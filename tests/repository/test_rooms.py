"""The rooms of the house: a module imports only from its own room and from rooms above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from source import SOURCE, modules

# From the inside out. The modules of the core are rooms of their own, so their order is kept too.
ROOMS = [
    "version", "errors", "limits", "telemetry", "principal", "docstrings", "questions", "metrics", "selection", "decorators", "content", "binary", "items", "json_schema", "schema", "open_questions", "replay", "logs", "call", "calls", "steps", "dev", "branch", "ask", "dependencies", "lifespan", "activation", "middleware",
    "registry", "invocation", "hub", "testing", "jsonrpc", "http", "openapi",
    "journal", "plexus", "mcp", "transports", "notify", "client", "mount", "models", "chat", "fsm", "activations", "cli",
]  # fmt: skip

# The doors that open upwards, each inside a function: conveniences that the design asks for.
DOORS = {
    ("journal", "plexus"),
    ("hub", "transports"),
    ("hub", "mount"),
    ("hub", "fsm"),
    ("hub", "openapi"),
    ("midcall", "client"),
}

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


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for _, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield str(path.relative_to(SOURCE)), node


def test_no_class_name_is_used_twice() -> None:
    seen: dict[str, list[str]] = {}
    for path, node in classes():
        seen.setdefault(node.name.removeprefix("_"), []).append(path)
    assert {name: paths for name, paths in seen.items() if len(paths) > 1} == {}


def test_every_protocol_has_two_classes_that_fulfil_it_or_more() -> None:
    """With one, a reader is led past the class that is meant. A class fulfils it if it has all its names."""
    named = {node.name: node for _, node in classes()}
    members = {name: _members(name, named) for name in named}
    protocols = [name for name, node in named.items() if "Protocol" in _bases(node)]
    counts = {
        protocol: sum(members[protocol] <= has for name, has in members.items() if name not in protocols)
        for protocol in protocols
    }
    assert {name: count for name, count in counts.items() if count < 2} == {}


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0] for base in node.bases]


def _members(name: str, named: dict[str, ast.ClassDef]) -> set[str]:
    """What objects of a class have: methods, fields, what a method sets, and what it inherits."""
    node = named.get(name)
    if node is None:
        return set()
    found = set().union(*(_members(base, named) for base in _bases(node)))
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name), *_]):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found

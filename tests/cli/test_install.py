"""`midcall install`: what it prints, and what it does to a client's file."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT
from midcall.cli.install import CLIENTS, config_path
from midcall.cli.load_target import split_target
from peers import HERE, command, environment

TARGET = str(HERE / "lines_app.py") + ":hub"


def install(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("install", *arguments),
        cwd=folder,
        env=environment() | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def written(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- printing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "key", "typed"),
    [
        ("claude-code", "mcpServers", True),
        ("claude-desktop", "mcpServers", False),
        ("cursor", "mcpServers", True),
        ("vscode", "servers", True),
    ],
)
def test_each_client_gets_the_form_that_it_reads(tmp_path: Path, client: str, key: str, typed: bool) -> None:
    done = install(tmp_path, client, TARGET)
    assert done.returncode == 0, done.stderr
    server = {
        "command": sys.executable,
        "args": ["-m", "midcall", "serve", TARGET, "--stdio", "--mcp-only", "--cwd", str(tmp_path)],
    }
    assert json.loads(done.stdout) == {key: {"lines_app": {"type": "stdio", **server} if typed else server}}
    assert "--write" in done.stderr
    assert files(tmp_path) == set(), "nothing is written"


def test_the_printed_command_serves_mcp_from_any_folder(tmp_path: Path) -> None:
    project = tmp_path / "my project"
    project.mkdir()
    (project / "app.py").write_text(
        "from pathlib import Path\n"
        "from midcall import Hub, method\n"
        "class Here:\n"
        "    @method\n"
        "    def folder(self) -> str:\n"
        '        """Where it runs."""\n'
        "        return str(Path.cwd())\n"
        'hub = Hub("here").register(Here(), namespace="here-too")\n'
    )
    done = install(project, "claude-code", "app:hub")
    assert done.returncode == 0, done.stderr
    server = json.loads(done.stdout)["mcpServers"]["here"]
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "here-too.folder"}},
    ]
    ran = subprocess.run(
        [server["command"], *server["args"]],
        cwd="/",
        input="".join(json.dumps(message) + "\n" for message in messages),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answers = {answer["id"]: answer for answer in map(json.loads, ran.stdout.splitlines()) if "id" in answer}
    assert answers[2]["result"]["content"][0]["text"] == str(project)


def test_a_relative_file_becomes_an_absolute_one(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from midcall import Hub\nhub = Hub('tools')\n")
    done = install(tmp_path, "cursor", "./app.py")
    assert json.loads(done.stdout)["mcpServers"]["tools"]["args"][3] == f"{tmp_path / 'app.py'}:hub"


def test_a_server_at_a_url_is_connected_to(tmp_path: Path) -> None:
    done = install(tmp_path, "vscode", "--http", "https://tools.example.com/mcp", "--name", "tools")
    assert json.loads(done.stdout) == {
        "servers": {"tools": {"type": "http", "url": "https://tools.example.com/mcp"}}
    }
    done = install(tmp_path, "claude-code", "--http", "http://127.0.0.1:8000")
    assert json.loads(done.stdout)["mcpServers"]["midcall"]["url"] == "http://127.0.0.1:8000/mcp"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["claude-code"], "Name the hub"),
        (["claude-code", "missing:hub"], "no module named 'missing'"),
        (["claude-code", TARGET, "--name", "a b"], "is not a name for a server"),
        (["claude-code", "missing:hub", "--name", "x"], "no module named 'missing'"),
        (["claude-code", "--http", "tools.example.com"], "is not a URL"),
        (["claude-desktop", "--http", "https://a.com/mcp"], "under Connectors"),
        (["emacs", TARGET], "invalid choice"),
    ],
)
def test_what_cannot_be_installed_is_a_usage_error(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = install(tmp_path, *arguments, "--write")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == set()


# --- where ----------------------------------------------------------------------------------


def test_the_file_of_claude_desktop_is_where_each_system_has_it() -> None:
    client, folder = CLIENTS["claude-desktop"], Path("/project")
    home = {"HOME": "/home/ada", "USERPROFILE": "/users/ada"}
    name = "Claude/claude_desktop_config.json"
    assert config_path(client, "linux", home, folder) == Path("/home/ada/.config", name)
    assert config_path(client, "linux", home | {"XDG_CONFIG_HOME": "/x"}, folder) == Path("/x", name)
    assert config_path(client, "darwin", home, folder) == Path("/home/ada/Library/Application Support", name)
    assert config_path(client, "win32", home | {"APPDATA": "/roaming"}, folder) == Path("/roaming", name)
    assert config_path(client, "win32", home, folder) == Path("/users/ada/AppData/Roaming", name)


@pytest.mark.parametrize(
    ("client", "file"),
    [
        ("claude-code", ".mcp.json"),
        ("cursor", ".cursor/mcp.json"),
        ("vscode", ".vscode/mcp.json"),
        ("claude-desktop", "config/Claude/claude_desktop_config.json"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the last one is elsewhere on other systems")
def test_write_makes_the_clients_file(tmp_path: Path, client: str, file: str) -> None:
    done = install(tmp_path, client, TARGET, "--write")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert files(tmp_path) == {file}
    assert written(tmp_path / file) == json.loads(install(tmp_path, client, TARGET).stdout)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("app", ("app", "hub")),
        ("app:", ("app", "hub")),
        ("app:make.hub", ("app", "make.hub")),
        ("C:\\code\\app.py", ("C:\\code\\app.py", "hub")),
        ("C:\\code\\app.py:tools", ("C:\\code\\app.py", "tools")),
        ("/code/app.py:tools", ("/code/app.py", "tools")),
    ],
)
def test_the_colon_of_a_drive_does_not_part_a_target(target: str, parts: tuple[str, str]) -> None:
    assert split_target(target) == parts


# --- merging --------------------------------------------------------------------------------

OLD = '{\n    "mcpServers": {"other": {"command": "x", "env": {"KEY": "grüße"}}},\n    "theme": [1, 2.50, null]\n}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / ".mcp.json"
    path.write_text(OLD, encoding="utf-8")
    path.chmod(0o640)
    return path


def test_what_others_wrote_stays_and_the_old_file_is_kept(config: Path) -> None:
    done = install(config.parent, "claude-code", TARGET, "--write")
    assert done.returncode == 0, done.stderr
    merged = written(config)
    assert merged.pop("theme") == [1, 2.5, None]
    assert list(merged["mcpServers"]) == ["other", "lines_app"]
    assert merged["mcpServers"]["other"] == {"command": "x", "env": {"KEY": "grüße"}}
    assert "grüße" in config.read_text(encoding="utf-8")
    assert stat.S_IMODE(config.stat().st_mode) == 0o640
    backup = config.with_name(".mcp.json.bak1")
    assert backup.read_text(encoding="utf-8") == OLD
    assert files(config.parent) == {".mcp.json", ".mcp.json.bak1"}


def test_the_same_again_changes_nothing(config: Path) -> None:
    install(config.parent, "claude-code", TARGET, "--write")
    before = config.read_bytes()
    done = install(config.parent, "claude-code", TARGET, "--write")
    assert done.returncode == 0
    assert "Nothing was changed" in done.stderr
    assert config.read_bytes() == before
    assert files(config.parent) == {".mcp.json", ".mcp.json.bak1"}


def test_another_server_of_the_same_name_is_replaced_only_by_force(config: Path) -> None:
    secret = {"command": "x", "args": ["--key", "s3cret"], "env": {"KEY": "s3cret"}}
    config.write_text(json.dumps({"mcpServers": {"tools": secret}}))
    before = config.read_bytes()
    done = install(config.parent, "claude-code", TARGET, "--name", "tools", "--write")
    assert done.returncode == 2
    assert "has another server 'tools'" in done.stderr
    assert "s3cret" not in done.stderr
    assert config.read_bytes() == before
    assert files(config.parent) == {".mcp.json"}
    done = install(config.parent, "claude-code", TARGET, "--name", "tools", "--write", "--force")
    assert done.returncode == 0, done.stderr
    assert written(config)["mcpServers"]["tools"]["command"] == sys.executable
    assert config.with_name(".mcp.json.bak1").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"mcpServers": {},}', "line 1, column 1"),
        ('{\n  // a comment\n  "mcpServers": {}\n}', "line 2, column 3"),
        ("[]", "is not a JSON object"),
        ('{"mcpServers": []}', "'mcpServers' is not an object"),
        ('{"mcpServers": {"a": 1, "a": 2}}', "'a' occurs twice"),
        ("[" * 100_000, "Nothing was changed"),
    ],
)
def test_a_file_that_cannot_be_merged_is_left_as_it_is(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    done = install(config.parent, "claude-code", TARGET, "--write")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert config.read_text() == text
    assert files(config.parent) == {".mcp.json"}


def test_a_file_that_is_not_utf8_is_left_as_it_is(config: Path) -> None:
    config.write_bytes(b'{"a": "\xff"}')
    done = install(config.parent, "claude-code", TARGET, "--write")
    assert done.returncode == 2
    assert "is not UTF-8" in done.stderr
    assert config.read_bytes() == b'{"a": "\xff"}'


@pytest.mark.parametrize("text", ["", " \n", "{}", "\ufeff{}"])
def test_an_empty_file_is_filled(config: Path, text: str) -> None:
    config.write_text(text, encoding="utf-8")
    assert install(config.parent, "claude-code", TARGET, "--write").returncode == 0
    assert list(written(config)) == ["mcpServers"]


def test_a_link_stays_a_link(config: Path) -> None:
    real = config.with_name("dotfiles.json")
    config.rename(real)
    config.symlink_to(real)
    assert install(config.parent, "claude-code", TARGET, "--write").returncode == 0
    assert config.is_symlink()
    assert "lines_app" in written(real)["mcpServers"]


def test_another_file_can_be_named(tmp_path: Path) -> None:
    elsewhere = tmp_path / "new" / "folder" / "mcp.json"
    done = install(tmp_path, "vscode", TARGET, "--write", "--config", str(elsewhere))
    assert done.returncode == 0, done.stderr
    assert list(written(elsewhere)["servers"]) == ["lines_app"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_a_usage_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = install(tmp_path, "claude-code", TARGET, "--write")
    tmp_path.chmod(0o700)
    assert done.returncode == 2
    assert "Cannot write" in done.stderr


def test_a_path_that_is_a_folder_is_a_usage_error(tmp_path: Path) -> None:
    done = install(tmp_path, "claude-code", TARGET, "--write", "--config", str(tmp_path))
    assert done.returncode == 2
    assert "Cannot write" in done.stderr
    assert "Traceback" not in done.stderr

"""Pictures, sound and files on the command line: shown, named or saved; and files that a method is given."""

import base64
import json
import random
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Struct
from pydantic import BaseModel, Field

from command_line import FAILED, SUCCESS, USAGE
from command_line import midcall as run
from midcall import Ask, Hub
from midcall.cli.command import UsageError
from midcall.cli.content import MAX_PICTURE, Block, Folder, drawn, file_name, parts_of, size_text
from midcall.cli.schema_fields import MAX_FILE, file_text
from midcall.content import Audio, Document, Embedded, Image, Link
from terminals import ENTER, midcall

pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")

HUB = f"{__file__}:hub"
SERVER = f"{sys.executable} -m midcall serve {HUB} --stdio --mcp-only"
hub = Hub()


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    noise = random.Random(1).randbytes(3 * width * height)
    rows = b"".join(b"\0" + noise[3 * width * row : 3 * width * (row + 1)] for row in range(height))
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


PICTURE = png(64, 48)
JPEG = b"\xff\xd8\xff\xe0jpeg"


class Scan(BaseModel):
    """What was scanned."""

    page: bytes
    others: list[bytes] = []
    note: str | None = None


class Pages(Struct):
    first: bytes


@hub.method
async def give() -> list[Any]:
    """Give one of each."""
    return [
        "words",
        Image(PICTURE),
        Audio(b"RIFF"),
        Embedded(Document("file:///../../tmp/%2e%2e%2fevil\x1b]0;x\x07.txt", text="hello")),
        Embedded(Document("data://day/sold.csv", "text/csv", blob=b"a,b")),
        Link("notes://all", "all"),
        {"a": 1},
        b"raw",
    ]


class Scans(BaseModel):
    title: str
    page: bytes
    back: bytes | None = None
    more: list[Scan] = []


@hub.method
async def raw() -> bytes:
    """Give bytes."""
    return b"hello"


@hub.method
async def scans() -> Scans:
    """Give bytes in fields."""
    return Scans(title="aGk=", page=b"page", more=[Scan(page=b"1", others=[b"23"])])


@hub.method
async def photo() -> Image:
    """Give a picture."""
    return Image(JPEG, "image/jpeg")


@hub.method
async def measure(
    file: bytes,
    others: list[bytes] = [],  # noqa: B006  it is not changed
    small: Annotated[bytes, Field(max_length=4)] = b"",
    pages: Pages | None = None,
) -> list[int]:
    """Say how large files are."""
    return [len(one) for one in (file, *others, small, *([pages.first] if pages else ()))]


@hub.method
async def scan(ask: Ask) -> list[int]:
    """Ask for files."""
    given = await ask.form(Scan)
    return [len(given.page), *map(len, given.others)]


def in_a_terminal(*argv: str, **environment: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TMUX", "STY", "KITTY_WINDOW_ID", "TERM_PROGRAM", "LC_TERMINAL", "MIDCALL_IMAGES"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        with midcall("call", HUB, *argv) as session:
            assert session.ends() == SUCCESS
            return session.written


# --- what is given --------------------------------------------------------------------------


@pytest.mark.parametrize("target", [HUB, SERVER])
def test_a_pipe_gets_names_and_sizes_and_never_base64(target: str) -> None:
    done = run("call", target, "give")
    assert done.returncode == SUCCESS, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:6] == [
        "words",
        f"image-2.png (image/png, {size_text(len(PICTURE))})",
        "audio-3.wav (audio/wav, 4 bytes)",
        "evil_0_x_.txt (text/plain, 5 bytes)",
        "sold.csv (text/csv, 3 bytes)",
        "all: notes://all",
    ]
    assert "\x1b" not in done.stdout


def test_content_is_saved_under_names_that_lead_nowhere_else_and_nothing_is_written_over(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        done = run("call", HUB, "give", "-o", str(folder))
        assert done.returncode == SUCCESS
    assert f"Saved {folder / 'sold-2.csv'} (text/csv, 3 bytes)" in done.stdout
    names = ["audio-3", "evil_0_x_", "file-8", "image-2", "sold"]
    assert sorted(path.name.partition(".")[0] for path in folder.iterdir()) == sorted(
        [*names, *(f"{name}-2" for name in names)]
    )
    assert (folder / "image-2.png").read_bytes() == PICTURE
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    done = run("call", HUB, "give", "--json", "--output", str(folder))
    assert "sold-3.csv" in done.stderr
    assert base64.b64encode(b"a,b").decode() in done.stdout


@pytest.mark.parametrize("target", [HUB, SERVER])
def test_bytes_are_told_by_their_size_and_saved(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    assert run("call", target, "raw").stdout == "file-1.bin (application/octet-stream, 5 bytes)\n"
    shown = run("call", target, "scans", "-o", str(folder)).stdout
    value, _, saved = shown.partition("\nSaved")
    assert json.loads(value) == {
        "title": "aGk=",
        "page": "[a file of 4 bytes]",
        "back": None,
        "more": [{"page": "[a file of 1 byte]", "others": ["[a file of 2 bytes]"], "note": None}],
    }
    assert saved.count("application/octet-stream") == 3
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "page.bin": b"page",
        "page-2.bin": b"1",
        "others-1.bin": b"23",
    }
    assert json.loads(run("call", target, "raw", "--json").stdout.splitlines()[0])["content"] == "aGVsbG8="


@pytest.mark.parametrize(
    "returns",
    [
        None,
        True,
        {"type": "string", "contentEncoding": "base16"},
        {"anyOf": 1, "$defs": []},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}},
    ],
)
@pytest.mark.parametrize("content", ["no base64", {"a": "aGk="}, ["aGk="], 1])
def test_what_is_not_said_to_be_bytes_or_is_none_is_shown_as_it_is(content: Any, returns: Any) -> None:
    assert parts_of(content, returns) == [content]
    assert parts_of("no base64", {"contentEncoding": "base64"}) == ["no base64"]


def test_a_folder_that_cannot_be_had_is_refused_before_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("call", HUB, "give", "-o", str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "File exists" in done.stderr


def test_what_cannot_be_saved_ends_the_call_with_the_reason(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match=r"Cannot save .*image-1\.png: No such file"):
        folder.save(Block("image", "image-1.png", "image/png", b""))
    (tmp_path / "long").mkdir()
    done = run("call", f"{__file__}:too_long", "name", "-o", str(tmp_path / "long"))
    assert done.returncode == SUCCESS, done.stderr  # a name is cut


too_long = Hub()


@too_long.method
async def name() -> Embedded:
    """Give a file with a long name."""
    return Embedded(Document(f"a://b/{'x' * 5000}.txt", text=""))


def test_a_terminal_of_kitty_gets_the_picture_in_chunks_that_are_not_answered() -> None:
    written = in_a_terminal("give", KITTY_WINDOW_ID="1")
    parts = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", written)
    assert parts[0][0].startswith("a=T,f=100,q=2")
    assert all("q=2" in keys and len(chunk) <= 4096 for keys, chunk in parts)
    assert [keys[-3:] for keys, _ in parts] == ["m=1"] * (len(parts) - 1) + ["m=0"]
    assert base64.b64decode("".join(chunk for _, chunk in parts)) == PICTURE
    assert "image-2.png (image/png" in written
    assert "\x1b_G" not in in_a_terminal("photo", KITTY_WINDOW_ID="1")  # it takes PNG alone


def test_a_terminal_of_iterm2_gets_the_picture_inline() -> None:
    for environment in (
        {"TERM_PROGRAM": "iTerm.app"},
        {"LC_TERMINAL": "iTerm2"},
        {"MIDCALL_IMAGES": "iterm2"},
    ):
        written = in_a_terminal("photo", **environment)
        (found,) = re.findall(r"\x1b\]1337;File=inline=1;name=\S+;size=8:(\S+)\x07", written)
        assert base64.b64decode(found) == JPEG


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TERM_PROGRAM": "Apple_Terminal"},
        {"TERM_PROGRAM": "iTerm.app", "TMUX": "/tmp/tmux"},
        {"KITTY_WINDOW_ID": "1", "MIDCALL_IMAGES": "none"},
    ],
)
def test_other_terminals_and_multiplexers_get_names_and_sizes(environment: dict[str, str]) -> None:
    written = in_a_terminal("photo", **environment)
    assert "image-1.jpg (image/jpeg, 8 bytes)" in written
    assert "\x1b]1337" not in written
    assert "\x1b_G" not in written


def test_what_only_says_that_it_is_a_picture_is_not_drawn() -> None:
    fake = Block("image", "x.png", "image/png", b"\x1b]0;owned\x07")
    assert drawn(fake, "kitty") is None
    assert drawn(fake._replace(data=PICTURE + bytes(MAX_PICTURE)), "iterm2") is None
    assert drawn(fake._replace(data=PICTURE, kind="audio"), "iterm2") is None
    assert drawn(fake._replace(data=b"\x89PNG\r\n\x1a\n"), "kitty") is not None


def test_data_that_only_look_like_content_are_shown_as_they_are() -> None:
    for value in (
        {"type": "image", "data": "not base64!"},
        {"type": "image"},
        {"type": "resource", "resource": {"uri": "a://b"}},
        [1, 2],
        {"type": "text", "text": "x"},
    ):
        assert parts_of(value) == [value]


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("a://b/c.txt", "c.txt"),
        ("a://b/c/", "c.bin"),
        ("a://b/..%2f..%2f.bashrc", "bashrc.bin"),
        ("a://b/..\\..\\x.exe", "x.exe"),
        ("a://b/-rf", "rf.bin"),
        ("a://b/%00%0a", "_.bin"),
        ("a://host", "host.bin"),
        ("", "file.bin"),
        ("http://[", "_.bin"),
    ],
)
def test_a_name_is_nothing_but_a_name(uri: str, name: str) -> None:
    assert file_name(uri, "unknown/type") == name


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (74_123, "74.1 kB"),
        (5_000_000, "5 MB"),
    ],
)
def test_sizes_are_said_as_people_read_them(size: int, said: str) -> None:
    assert size_text(size) == said
    assert size_text(3 * 10**9) == "3.0 GB"


# --- what is taken --------------------------------------------------------------------------


@pytest.mark.parametrize("target", [HUB, SERVER])
def test_a_file_is_given_by_its_path_or_on_standard_input(tmp_path: Path, target: str) -> None:
    (tmp_path / "a").write_bytes(b"\xff" * 100)
    (tmp_path / "b").write_bytes(b"\0")
    files = ("--file", f"@{tmp_path / 'a'}", "--others", f"@{tmp_path / 'b'}", "--others", "@-")
    done = run("call", target, "measure", *files, "--small", base64.b64encode(b"abc").decode(), stdin="12345")
    assert (done.returncode, done.stdout) == (SUCCESS, "[100, 1, 5, 3]\n"), done.stderr


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--file", "@nowhere"), "Cannot read nowhere: No such file"),
        (("--file", "@."), "Cannot read .: Is a directory"),
        (("--file", "@/dev/zero"), f"Cannot send /dev/zero: a file may have {MAX_FILE} bytes at most"),
        (("--file", "@@home"), "file: Data should be valid base64"),
        (("--file", "words!"), "file: Data should be valid base64"),
        (("--file", "", "--small", "@/etc/hostname@"), "Cannot read"),
        (("--file", "", "--small", base64.b64encode(b"12345").decode()), "at most 4 bytes"),
        (("--file", "", "--pages", '{"first": "!"}'), "base64"),
        ((), "file: is required"),
    ],
)
def test_what_is_no_file_is_refused_with_the_reason(flags: tuple[str, ...], why: str) -> None:
    done = run("call", HUB, "measure", *flags)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert why in done.stderr


def test_a_path_with_a_null_is_no_file() -> None:
    with pytest.raises(UsageError, match="Cannot read"):
        file_text("a\0b")


def test_a_form_asks_for_files_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"12345678")
    with midcall("call", HUB, "scan") as session:
        session.sees("What was scanned.", "page")
        session.types("/nowhere" + ENTER)
        session.sees("Cannot read /nowhere")
        session.types("\x15" + str(tmp_path / "page") + ENTER)
        session.sees("others, file 1")
        session.types(str(tmp_path / "page") + ENTER)
        session.sees("others, file 2")
        session.types(ENTER)
        session.sees("note")
        session.types(ENTER)
        session.sees("[8, 8]")
        assert session.ends() == SUCCESS


def test_a_tool_that_fails_saves_nothing(tmp_path: Path) -> None:
    done = run("call", f"{__file__}:failing", "fail", "-o", str(tmp_path / "x"))
    assert (done.returncode, list((tmp_path / "x").iterdir())) == (FAILED, [])


failing = Hub()


@failing.method
async def fail() -> Image:
    """Fail."""
    raise ValueError("no")

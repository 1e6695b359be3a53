"""Rules for commands, and the file that they are in: what may run, what is asked about, what never runs.

A rule is a table of a TOML file. It looks at the words of a command as they are parsed, never at a line of
text. A word that is not known before the command runs (`$x`, `*.py`) may be anything: no rule that allows
holds unless it holds for all that it may be.

In the same file are commands that a person has permitted for good. They are compared as they are.
"""

import fnmatch
import os
import posixpath
import re
import sys
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from midcall.activations.bash.parse import Word

Verdict: TypeAlias = Literal["allow", "ask", "deny"]

SHIPPED = Path(__file__).parent / "rules.toml"

CONFIG = "MIDCALL_BASH_CONFIG"
"""The variable that says where the file of the user is."""


class BashRule(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One rule. It holds if all that it says does. Patterns are as for file names, or `re:` and a regex."""

    verdict: Verdict
    command: str | list[str]
    """The names of programs."""
    args: list[str] | None = None
    """A pattern for each word behind the name; `**` stands for any number of words."""
    options: list[str] = []
    """Options that must be there, alternatives with `|` between them."""
    only: list[str] | None = None
    """The only options that may be there: `-x`, `--long`, and `-x=` if the rest of the word is its value."""
    operands: list[str] = []
    """Patterns of which one must fit a word that is no option."""
    reason: str = ""

    @cached_property
    def names(self) -> Sequence[str]:
        return [self.command] if isinstance(self.command, str) else self.command

    def is_for(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, one) for one in self.names)

    def holds(self, words: Sequence[Word], cwd: str) -> bool:
        """Whether it surely holds for the words behind the name of a program that it is for."""
        if self.only is not None and not all(_is_among(self.only, word) for word in words):
            return False
        given = [word.text for word in words if word.known or word.text]
        for one in self.options:
            if not any(_is_option(option, text) for option in one.split("|") for text in given):
                return False
        if self.operands:
            paths = [_operand(word, cwd) for word in words if word.text and not word.text.startswith("-")]
            if not any(_fits(pattern, path) for pattern in self.operands for path in paths):
                return False
        return self.args is None or _align(self.args, words)


def expanded(path: str) -> str:
    """A path with the home of the user in the place of `~`."""
    return os.path.expanduser(path)  # noqa: PTH111  patterns are no paths


def resolved(path: str) -> str | None:
    """Where a path leads to, through all links; nothing if that cannot be found out."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return None


def _is_option(option: str, text: str) -> bool:
    """Whether a word is this option: also `-xvf` for `-v`, and `--out=x` for `--output`."""
    if re.search(r"[*?\[]", option):
        return fnmatch.fnmatchcase(text, option)
    given = text.partition("=")[0]
    if option.startswith("--"):
        return len(given) > 2 and given.startswith("--") and option.startswith(given)
    if re.fullmatch(r"-\w", option):
        return text.startswith("-") and not text.startswith("--") and option[1] in text[1:]
    return given == option


def _is_among(options: Sequence[str], word: Word) -> bool:
    """Whether a word is surely one of these options, or several of them in one (`-la`), or no option."""
    if not word.may_be_option or word in (Word("-"), Word("--")):
        return True
    if not word.known:
        return False
    name = word.text.partition("=")[0] if word.text.startswith("--") else word.text
    if name in options or any(_fits(one, word.text) for one in options if one.startswith("re:")):
        return True
    for letter in word.text[1:]:
        if f"-{letter}=" in options:
            return True
        if f"-{letter}" not in options:
            return False
    return True


def _operand(word: Word, cwd: str) -> str:
    """A word as the path that it is, if it is one; all that is in a folder (`/*`) as the folder."""
    if not word.known and not re.fullmatch(r".*/[*]", word.source):
        return ""
    is_path = "/" in word.text and "=" not in word.text
    return (resolved(posixpath.join(cwd, word.text)) or "") if is_path else word.text


def _fits(pattern: str, text: str) -> bool:
    if pattern.startswith("re:"):
        return re.fullmatch(pattern[3:], text, re.ASCII) is not None
    return fnmatch.fnmatchcase(text, expanded(pattern))


def _align(patterns: Sequence[str], words: Sequence[Word]) -> bool:
    """Whether each word has its pattern, with `**` for any number of words, known or not."""
    if not patterns:
        return not words
    first, *rest = patterns
    if first == "**":
        return not rest or any(_align(rest, words[place:]) for place in range(len(words) + 1))
    return bool(words) and words[0].known and _fits(first, words[0].text) and _align(rest, words[1:])


# --- the file of the user -----------------------------------------------------------------------------


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What commands can reach. What no person has permitted can write nothing, and has no network."""

    use: Literal["auto", "bwrap", "landlock", "none"] = "auto"
    read: list[str] = []
    """What they see, beside programs of the system and the folder in which the server was started."""
    write: list[str] | None = None
    """The folders that they may write; by default the one in which the server was started."""
    network: bool = False
    hide: list[str] = []
    """What they do not see, beside the usual places of secrets."""
    leave: bool = True
    """Whether a person may be asked to let a command out, when the sandbox has refused something to it."""


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What one command may take."""

    timeout: Annotated[float, Meta(gt=0)] = 120.0
    """Seconds, if the caller does not say."""
    longest: Annotated[float, Meta(gt=0)] = 3600.0
    """Seconds, whatever the caller says."""
    output: Annotated[int, Meta(ge=4096, le=8 * 1024 * 1024)] = 128 * 1024
    """Bytes of output that are passed on."""
    memory: Annotated[int, Meta(ge=256)] = 8 * 1024
    """Megabytes of address space that each process has."""
    file_size: Annotated[int, Meta(ge=1)] = 2 * 1024
    """Megabytes that a file may have, and all of /tmp."""
    open_files: Annotated[int, Meta(ge=64)] = 4096
    """How many files a process may have open."""
    cpu: Annotated[int, Meta(ge=1)] = 3600
    """Seconds of computing that each process has."""
    processes: Annotated[int, Meta(ge=16)] = 1000
    """How many there may be at once; more of them are ended, with the command."""


class Approved(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command that a person has permitted for good: just this one, in this folder, for this caller."""

    command: str
    cwd: str
    principal: str | None = None


class BashConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What is in a file."""

    defaults: bool = True
    """Whether the rules that come with midcall count too."""
    pass_env: list[str] = []
    """Variables of the server that commands get."""
    sandbox: SandboxSettings = SandboxSettings()
    limits: LimitSettings = LimitSettings()
    rule: list[BashRule] = []
    approved: list[Approved] = []


class ConfigError(ValueError):
    """A file with rules cannot be used; the text says where and why."""


def config_path() -> Path:
    """Where the file of the user is, or would be."""
    named = os.environ.get(CONFIG)
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "midcall" / "bash.toml"


def read_config(path: Path) -> BashConfig:
    """Read a file; one that is not there is empty. Raises `ConfigError`."""
    try:
        return _read_text(path.read_text(), str(path))
    except FileNotFoundError:
        return BashConfig()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_text(text: str, name: str) -> BashConfig:
    try:
        found = msgspec.convert(tomllib.loads(text), BashConfig)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {str(error).replace('`$.', '`').replace('`$`', 'the file')}") from None
    for variable in found.pass_env:
        if variable.startswith("MIDCALL_"):
            raise ConfigError(f"{name}: pass_env: {variable} is for the server alone")
    for number, rule in enumerate(found.rule, 1):
        problem = _problem(rule)
        if problem is not None:
            raise ConfigError(f"{name}: rule {number}: {problem}")
    return found


def _problem(rule: BashRule) -> str | None:
    if not rule.names or any(not name or "/" in name for name in rule.names):
        return "`command` is the name of a program, without a folder"
    if any(set(name) <= {"*", "?"} for name in rule.names) and rule.verdict == "allow":
        return "a rule cannot allow every program"
    for pattern in (*(rule.args or ()), *(rule.only or ()), *rule.operands):
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as error:
            return f"{pattern!r} is no regular expression: {error}"
    return None


# --- what is permitted for good -------------------------------------------------------------------------


def written(approved: Approved) -> str:
    """How it stands in a file."""
    return "\n".join(
        (
            "[[approved]]",
            *(f"{name} = {_toml(value)}" for name, value in msgspec.to_builtins(approved).items()),
        )
    )


def _toml(value: Any) -> str:
    text = msgspec.json.encode(value).decode()  # strings of JSON are strings of TOML, but for one character
    return text.replace("\x7f", "\\u007f")


def keep(path: Path, approved: Approved) -> None:
    """Add it to the file of the user, unless it is there. Raises `ConfigError` or `OSError`."""
    if sys.platform == "win32":
        raise ConfigError("it cannot be kept on this system")
    import fcntl  # noqa: PLC0415  not everywhere

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        text = path.read_text() if path.exists() else ""
        if approved in _read_text(text, str(path)).approved:
            return
        text = text.rstrip("\n") + ("\n\n" if text.strip() else "") + written(approved) + "\n"
        if _read_text(text, str(path)).approved[-1:] != [approved]:
            raise ConfigError(f"{path}: nothing can be added there")
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text)
        fresh.chmod(0o600)
        os.replace(fresh, path)  # noqa: PTH105  what is there is whole at any moment

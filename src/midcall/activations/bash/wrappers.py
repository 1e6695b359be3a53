"""Programs that run others: what is behind `env`, `xargs`, `timeout`, `find -exec`, `bash -c` and others.

Only those are here that may be allowed when what they run is, and only with options that are known here. All
others (`sudo`, `ssh`, `watch`, `parallel`) have no rule, and are asked about as they are.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from midcall.activations.bash.parse import UNKNOWN, Assigns, Word

RUNNERS = frozenset(
    (
        "builtin", "chroot", "command", "coproc", "doas", "env", "eval", "exec", "fakeroot", "find", "flock",
        "ionice", "nice", "nohup", "nsenter", "parallel", "pkexec", "runuser", "script", "setpriv", "setsid",
        "ssh", "stdbuf", "strace", "su", "sudo", "systemd-run", "time", "timeout", "unshare", "watch",
        "xargs",
    )
)  # fmt: skip
"""Programs that run what stands somewhere behind them: that is looked through for what is denied."""

SHELLS = frozenset(("bash", "sh", "dash", "zsh", "ksh"))

_BEFORE: Mapping[str, str] = {
    "command": "",
    "nohup": "",
    "time": r"(-p\0)?",
    "nice": r"(-n\0\d+\0)?",
    "stdbuf": r"(-[ioe](L|0)\0)*",
    "timeout": r"((-k|-s)\0\w+\0|--foreground\0|--preserve-status\0)*[\d.]+[smhd]?\0",
    "env": r"([A-Za-z_]\w*=[^\0]*\0)*",
    "xargs": r"(-[0rt]\0|-[nLP]\0?\d+\0|-I\0?[^\0-]+\0)*",
}
"""What may stand between a program and the command that it runs, with NUL behind each word."""


class Wrapped(Struct, frozen=True):
    """What a program runs."""

    commands: tuple[tuple[Word, ...], ...] = ()
    texts: tuple[str, ...] = ()
    """Scripts that bash is to run."""
    assigns: tuple[Assigns, ...] = ()
    own: tuple[Word, ...] | None = None
    """What it does itself, if there are rules for that."""
    problem: str = ""
    """Why it has to be asked about, whatever it runs."""


def unwrap(name: str, words: Sequence[Word]) -> Wrapped | None:
    """What a program runs, from the words behind its name; nothing if it is none of those known here."""
    if name == "find":
        return _find(words)
    if name == "eval":
        texts = (" ".join(word.text for word in words),) if all(word.known for word in words) else ()
        return Wrapped(texts=texts, problem="it runs a text")
    if name in SHELLS:
        match words:
            case [Word(text="-c", known=True), Word(text=text, known=True)]:
                other = "" if name == "bash" else "it may read that in another way than bash"
                return Wrapped(texts=(text,), problem=other)
        return None
    if name == "command" and words and words[0] in (Word("-v"), Word("-V")):
        return Wrapped(own=tuple(words))
    if name == "git" and words and words[0] == Word("--no-pager"):
        return Wrapped(own=tuple(words[1:]))
    if name not in _BEFORE:
        return None
    given = "".join(f"{word.text if word.known else chr(1)}\0" for word in words)
    found = re.match(_BEFORE[name], given, re.ASCII)
    count = found[0].count("\0") if found else 0
    before, command = words[:count], words[count:]
    if found is None or not command or command[0].may_be_option:
        return Wrapped(problem="what it runs is not understood")
    if name == "env":
        pairs = (word.text.split("=", 1) for word in before)
        return Wrapped((tuple(command),), assigns=tuple(Assigns(n, Word(v), exported=True) for n, v in pairs))
    if name == "xargs":
        placed = re.findall(r"-I\0?([^\0-]+)\0", found[0])
        filled = [_filled(word, placed[-1]) for word in command] if placed else [*command, UNKNOWN]
        return Wrapped((tuple(filled),))
    return Wrapped((tuple(command),))


def _filled(word: Word, placed: str) -> Word:
    """A word in which something unknown takes the place of `{}`."""
    return word if word.known and placed not in word.text else Word("", False, source=word.shown)


def _find(words: Sequence[Word]) -> Wrapped:
    own: list[Word] = []
    commands: list[tuple[Word, ...]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.text not in ("-exec", "-execdir"):
            own.append(word)
            continue
        command: list[Word] = []
        while rest and rest[0].text != ";" and not (rest[0].text == "+" and command[-1:] == [Word("{}")]):
            command.append(rest.pop(0))
        if not rest or not command or not all(one.known for one in words):
            return Wrapped(problem="what it runs is not understood")
        rest.pop(0)
        commands.append(tuple(_filled(one, "{}") for one in command))
    return Wrapped(tuple(commands), own=tuple(own))

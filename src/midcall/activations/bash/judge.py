"""Judges a command line: the plan of what it does, each part with a verdict, and the worst of them.

Every act that `parse` finds is a part of the plan, and so is what is behind wrappers (see `wrappers`). Deny
is worse than ask, and ask is worse than allow. What is not understood is asked about, and so is what no
rule is for. What cannot be looked through is denied: a part of it might be.
"""

import os
import posixpath
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import cache

from msgspec import Struct

from midcall.activations.bash.parse import Assigns, Opens, Runs, Unclear, Word, in_one_line, read_script
from midcall.activations.bash.rules import SHIPPED, BashConfig, BashRule, Verdict, read_config, resolved
from midcall.activations.bash.sandbox import SYSTEM, Sandbox, is_below
from midcall.activations.bash.wrappers import RUNNERS, unwrap

MOST_PARTS = 200
"""How many parts a plan may have; more of them nobody reads."""

MOST_WORDS = 300
"""How many words there may be in which a command may hide, each as often as it is looked at."""

MOST_SHOWN = 1000
"""How many characters of a part are shown; the command itself is shown whole."""

MOST_NESTING = 3
"""How deep scripts in scripts are looked into (`bash -c "bash -c ..."`)."""

_WORST: Mapping[Verdict, int] = {"allow": 0, "ask": 1, "deny": 2}

_BUILTINS = frozenset(
    (
        ":", "[", "break", "cd", "command", "continue", "echo", "exit", "false", "printf", "pwd", "set",
        "test", "time", "true", "type",
    )
)  # fmt: skip
"""Those of bash that rules may allow; of all others a program of that name is not meant."""

_HARMLESS_VARIABLES = re.compile(
    r"(?:NO_COLOR|FORCE_COLOR|COLUMNS|LINES|TZ|CI)=[\w/.-]*|TERM=(?:dumb|xterm)|(?:LC_ALL|LANG)=(?:C|POSIX|C\.UTF-8)",
    re.ASCII,
)
"""What changes only how output looks, where programs get it."""

_PLAIN_VARIABLE = re.compile(r"(?!histchars$|auto_resume$)[a-z][a-z0-9_]*", re.ASCII)
"""Names that mean nothing to bash."""

_HARMLESS_FILES = re.compile(r"/dev/(?:null|zero|full|stdin|stdout|stderr|fd/[012])")

_SYSTEM_FILES = re.compile(r"/+(?:dev|proc|sys)/.*", re.DOTALL)

_TESTS = frozenset(f"-{letter}" for letter in "bcdefghknprsuwxzLOGS")
_COMPARISONS = frozenset(("=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"))


class Part(Struct, frozen=True):
    """One thing that a command does, and what the rules say to it."""

    verdict: Verdict
    shown: str
    why: str


class Plan(Struct, frozen=True):
    """What a command does."""

    verdict: Verdict
    parts: tuple[Part, ...]

    @property
    def worst(self) -> list[Part]:
        """The parts that have led to the verdict."""
        return [part for part in self.parts if part.verdict == self.verdict]


class Surroundings(Struct, frozen=True):
    """What a command is judged in."""

    cwd: str
    env: Mapping[str, str]
    """The variables that it gets."""
    sandbox: Sandbox
    bash: str | None = "bash"
    """The shell, which parses the command too (see `parse`)."""
    programs: Sequence[str] = SYSTEM
    """Where programs are that rules may mean."""


def judge(
    command: str, where: Surroundings, config: BashConfig, extra_env: Mapping[str, str] | None = None
) -> Plan:
    """The plan of a command. `extra_env` are variables that its caller wants to be set."""
    judging = _Judging(where, [config.rule, _shipped().rule] if config.defaults else [config.rule])
    for name, value in (extra_env or {}).items():
        judging.assigned(Assigns(name, Word(value), exported=True))
    judging.script(command, 0)
    parts = judging.parts
    if where.sandbox.kind == "none":
        judging.add("ask", "the whole command", "there is no sandbox, so every command is asked about")
    verdicts: list[Verdict] = [part.verdict for part in parts]
    verdict: Verdict = max(verdicts, key=_WORST.__getitem__, default="allow")
    if judging.acts > MOST_PARTS:
        denied = Part("deny", "...", "it does more than can be shown: give it in several commands")
        return Plan("deny", (*parts[:MOST_PARTS], denied))
    return Plan(verdict, tuple(parts))


@cache
def _shipped() -> BashConfig:
    return read_config(SHIPPED)


class _Judging:
    def __init__(self, where: Surroundings, rules: Sequence[Sequence[BashRule]]) -> None:
        self._where = where
        self._rules = rules
        self._words = 0
        """How many words were looked at in which a command may hide."""
        self.acts = 0
        """How many things it does, as far as they were looked at."""
        self.parts: list[Part] = []

    def add(self, verdict: Verdict, shown: str, why: str) -> None:
        shown = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."
        if verdict == "allow" or Part(verdict, shown, why) not in self.parts[-1:]:
            self.parts.append(Part(verdict, shown, why))

    def script(self, text: str, depth: int) -> None:
        if depth > MOST_NESTING:
            self.add("deny", in_one_line(text), "scripts in scripts in scripts")
            return
        for act in read_script(text, self._where.env.get("HOME", ""), bash=self._where.bash):
            self.acts += 1
            if self.acts > MOST_PARTS:
                return  # it is denied
            match act:
                case Runs(words):
                    self._runs(words, depth)
                case Assigns():
                    self.assigned(act)
                case Opens():
                    self._opened(act)
                case Unclear(why, shown, too_much):
                    self.add("deny" if too_much else "ask", shown or "the whole command", why)

    # --- programs --------------------------------------------------------------------------------------

    def _runs(self, words: Sequence[Word], depth: int, *, builtin: bool = True) -> None:
        """A command; a `builtin` is meant by its name unless another program runs it."""
        shown = " ".join(word.shown for word in words)
        name, rest = words[0].text, words[1:]
        denied = self._denied(words) or self._hidden(rest)
        if denied:
            self.add("deny", shown, denied)
            return
        wrapped = unwrap(posixpath.basename(name), rest) if words[0].known else None
        problem = (wrapped.problem if wrapped else "") or self._problem(words[0], builtin=builtin)
        if problem:
            self.add("ask", shown, problem)
        elif wrapped is None or wrapped.own is not None:
            self.add(*self._ruled(name, rest if wrapped is None else wrapped.own or (), shown))
        elif any(rule.verdict == "ask" for rule in self._rules_for(name)):
            self.add("ask", shown, "a rule says so")
        if wrapped is not None:
            for assigned in wrapped.assigns:
                self.assigned(assigned)
            for command in wrapped.commands:
                self._runs(command, depth, builtin=name in ("command", "time"))
            for text in wrapped.texts:
                self.script(text, depth + 1)

    def _problem(self, name: Word, *, builtin: bool) -> str:
        """Why rules cannot know a program by its name."""
        if not name.known:
            return "which program it is cannot be known before it runs"
        if "/" in name.text or not name.text.isascii():
            return "it is no plain name of a program"
        if builtin and name.text in _BUILTINS:
            return ""
        path = shutil.which(name.text, path=self._where.env.get("PATH", os.defpath))
        if path is None:
            return "no rule is for it"
        trusted = any(is_below(os.path.realpath(path), os.path.realpath(one)) for one in self._where.programs)
        return "" if trusted else "it is no program of the system"

    def _denied(self, words: Sequence[Word]) -> str:
        """Why something is denied: the program, or what it may run."""
        runs = words[0].known and posixpath.basename(words[0].text) in RUNNERS
        self._words += len(words) if runs else 0
        if runs and self._words > MOST_WORDS:
            return "it has too many words to be looked through"
        for start in range(len(words) if runs else 1):
            for rule in self._rules_for(posixpath.basename(words[start].text)):
                surely = words[start].known and rule.holds(words[start + 1 :], self._where.cwd)
                if surely and rule.verdict == "deny":
                    return rule.reason or "a rule denies it"
        return ""

    def _rules_for(self, name: str) -> list[BashRule]:
        return [rule for rules in self._rules for rule in rules if rule.is_for(name)]

    def _ruled(self, name: str, rest: Sequence[Word], shown: str) -> tuple[Verdict, str, str]:
        if not all(word.known for word in rest) and any(r.verdict != "allow" for r in self._rules_for(name)):
            return "ask", shown, "a rule may be against it, depending on what is not known yet"
        if name in ("test", "[") and not _is_plain_test(rest):
            return "ask", shown, "bash may run what such a test is given"
        for rules in self._rules:
            held = [rule for rule in rules if rule.is_for(name) and rule.holds(rest, self._where.cwd)]
            if held:
                worst = max(held, key=lambda rule: _WORST[rule.verdict])
                return worst.verdict, shown, worst.reason or "a rule says so"
        return "ask", shown, "no rule is for it"

    def _hidden(self, words: Sequence[Word]) -> str:
        """Which word is a path of what is hidden, if one is. (The sandbox hides it in any case.)"""
        for word in words:
            for text in (word.text, word.text.partition("=")[2]):
                if text and self._where.sandbox.hides(posixpath.join(self._where.cwd, text)):
                    return f"{word.shown} is hidden from commands"
        return ""

    # --- variables and files -------------------------------------------------------------------------------

    def assigned(self, act: Assigns) -> None:
        exported = act.exported or act.name in self._where.env
        if not exported and _PLAIN_VARIABLE.fullmatch(act.name):
            return
        if exported and act.value.known and _HARMLESS_VARIABLES.fullmatch(f"{act.name}={act.value.text}"):
            self.add("allow", act.shown, "changes only how output looks")
        else:
            self.add("ask", act.shown, "a variable may change what programs do")

    def _opened(self, act: Opens) -> None:
        path = act.path
        if not path.known:
            self.add("ask", act.shown, "which file it is cannot be known before it runs")
            return
        whole = resolved(posixpath.join(self._where.cwd, path.text)) or path.text
        if _HARMLESS_FILES.fullmatch(path.text):
            self.add("allow", act.shown, "no file")
        elif re.match(r"/+dev/+(?:tcp|udp)/", path.text):
            self.add("deny", act.shown, "opens a connection")
        elif act.writes and (_SYSTEM_FILES.fullmatch(path.text) or _SYSTEM_FILES.fullmatch(whole)):
            self.add("deny", act.shown, "writes to a device, or to the kernel")
        elif self._hidden([path]):
            self.add("deny", act.shown, self._hidden([path]))
        elif act.writes:
            self.add("ask", act.shown, "writes a file")
        else:
            self.add("allow", act.shown, "reads")


def _is_plain_test(words: Sequence[Word]) -> bool:
    """Whether it is known what is tested: `-v` evaluates what it is given, and a variable may hold it."""
    words = words[:-1] if words and words[-1] == Word("]") else words
    words = words[1:] if words and words[0] == Word("!") else words
    match words:
        case [word]:
            return word.known or not word.splits
        case [Word(text=operator, known=True), word]:
            return operator in _TESTS and not word.splits
        case [left, Word(text=operator, known=True), right]:
            return operator in _COMPARISONS and not left.splits and not right.splits
    return False

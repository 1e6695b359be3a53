"""What a command line does, as far as that can be read from it: programs, variables, and files it opens.

The text is parsed by `tree-sitter-bash`, and every node of the tree is looked at, wherever it is: in pipes,
lists, substitutions, here-documents, functions. What runs is an `Act`. What is not surely understood is an
`Unclear`, and somebody is to be asked; so is every kind of node that is not known here to be harmless.

Bash has the last word: two parsers rarely agree on what is meant to mislead one of them. So bash, too,
parses the text (`--pretty-print` runs nothing), and if what it prints does not come to the same acts, that
is unclear.

Knows no rules: see `judge`. Imports nothing of midcall: it is also run as a program of its own (see `_read`).
"""

import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

MOST_TEXT = 64 * 1024
"""How many characters a command may have."""

MOST_NODES = 20_000
MOST_DEPTH = 80
"""How large and how deep a tree is looked at."""

PARSING = 5.0
"""Seconds that another process has to parse a text."""

SHORT_TEXT = 4096
FEW_SIGNS = 600
"""How many characters, and signs of the shell, a text has at most that is parsed in this process: others take
the parser seconds."""


# --- words, and how people see them -------------------------------------------------------------------


class Word(Struct, frozen=True):
    """One word of a command. If it is not known before it runs, `text` is how it surely begins."""

    text: str
    known: bool = True
    splits: bool = False
    """Whether it may become several words, or none."""
    source: str = ""
    """As it is written, if it is not known."""

    @property
    def shown(self) -> str:
        """For people, who are to see what is there."""
        return quoted(self.text) if self.known else in_one_line(self.source)

    @property
    def may_be_option(self) -> bool:
        return self.text.startswith("-") or (not self.known and not self.text)


UNKNOWN = Word("", False, splits=True, source="...")
"""Words that a program reads, or makes up."""


def visible(text: str) -> str:
    """A text in which no character hides, or turns others around."""
    return "".join(c if c in "\n\t" or _shows(c) else code_of(c) for c in text)


def _shows(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    plain = character.isalnum() and unicodedata.bidirectional(character) == "L"
    return plain and "FILLER" not in unicodedata.name(character, "")


def in_one_line(text: str) -> str:
    """The same, without anything that could be taken for another line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def code_of(character: str) -> str:
    number = ord(character)
    return (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )


def quoted(text: str) -> str:
    """A known word, as somebody would type it."""
    if re.fullmatch(r"[\w@%+=:,./{}~^-]+", text, re.ASCII):
        return text
    if in_one_line(text) != text:
        return "$'" + in_one_line(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"
    return "'" + text.replace("'", "'\\''") + "'"


def unescaped(text: str) -> str | None:
    """What is between the quotes of `$'...'`; nothing if it is not plain enough."""
    if not re.fullmatch(r"(?:[^\\]|\\x[0-9a-fA-F]{2}|\\[0-3][0-7]{2}|\\u[0-9a-fA-F]{4}|\\[nt\\'])*", text):
        return None
    if not text.isascii():
        return None
    made = text.encode().decode("unicode_escape")
    return made if made.isascii() and "\0" not in made else None


# --- acts ---------------------------------------------------------------------------------------------


class Runs(Struct, frozen=True, tag=True):
    """A program, a function or a builtin is run."""

    words: tuple[Word, ...]


class Assigns(Struct, frozen=True, tag=True):
    """A variable is set; if it is `exported`, programs that are run see it."""

    name: str
    value: Word
    exported: bool = False

    @property
    def shown(self) -> str:
        return f"{visible(self.name)}={self.value.shown}"


class Opens(Struct, frozen=True, tag=True):
    """A file is opened by a redirection."""

    writes: bool
    path: Word

    @property
    def shown(self) -> str:
        return f"{'>' if self.writes else '<'} {self.path.shown}"


class Unclear(Struct, frozen=True, tag=True):
    """Something that is not understood well enough."""

    why: str
    shown: str = ""
    too_much: bool = False
    """Whether there may be more that was not looked at."""


Act: TypeAlias = Runs | Assigns | Opens | Unclear


# --- parsing ------------------------------------------------------------------------------------------


def read_script(text: str, home: str = "", *, bash: str | None = "bash") -> list[Act]:
    """What a command line does. `bash` is asked too, unless it is `None`."""
    if len(text) > MOST_TEXT:
        return [Unclear(f"it has more than {MOST_TEXT} characters", too_much=True)]
    acts = _read(text, home)
    hidden = next((c for c in text if c not in "\n\t" and not c.isprintable()), None)
    if hidden is not None:
        acts.append(Unclear(f"it has a character that does not show: {code_of(hidden)}"))
    if bash is None or any(isinstance(act, Unclear) for act in acts):
        return acts
    second = _as_bash_reads(text, bash)
    if second is None:
        return [*acts, Unclear("bash does not parse it")]
    if _read(second, home, printed=True) != acts:
        return [*acts, Unclear("bash may read it in another way")]
    return acts


def _read(text: str, home: str, *, printed: bool = False) -> list[Act]:
    """Read it here, or in a process that can be ended: some texts take the parser minutes."""
    if len(text) <= SHORT_TEXT and sum(map(text.count, "|&;()<>{}$`")) <= FEW_SIGNS:
        return _Reader(text, home, printed=printed).read()
    try:
        ran = subprocess.run(  # noqa: S603  this module
            [sys.executable, "-P", __file__],
            input=msgspec.json.encode((text, home, printed)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PARSING,
            check=True,
        )
        return msgspec.json.decode(ran.stdout, type=list[Act])
    except (OSError, ValueError, subprocess.SubprocessError):
        return [Unclear("it takes too long to parse", too_much=True)]


def _as_bash_reads(text: str, bash: str) -> str | None:
    """The same text, as bash prints what it has parsed; nothing if it cannot."""
    try:
        ran = subprocess.run(  # noqa: S603  nothing of the text is run
            [bash, "--noprofile", "--norc", "--pretty-print", "/dev/stdin"],
            input=text.encode(),
            capture_output=True,
            env={"LC_ALL": "C.UTF-8"},
            timeout=PARSING,
            check=False,
        )
        return ran.stdout.decode() if ran.returncode == 0 and not ran.stderr else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


@cache
def _language() -> Any:
    try:
        import tree_sitter  # noqa: PLC0415  an extra
        import tree_sitter_bash  # noqa: PLC0415  as above
    except ImportError:
        raise ImportError("bash needs `pip install 'midcall[bash]'`") from None
    return tree_sitter.Parser, tree_sitter.Language(tree_sitter_bash.language())


def check_parser() -> None:
    """Raise `ImportError` if the parser is not installed."""
    _language()


_PLAIN = frozenset(
    (
        "program", "list", "pipeline", "subshell", "compound_statement", "negated_command", "if_statement",
        "elif_clause", "else_clause", "while_statement", "do_group", "case_statement", "case_item",
        "redirected_statement", "variable_assignments", "command_name", "comment",
        # words, which are read where they are used
        "word", "number", "string", "string_content", "raw_string", "ansi_c_string", "concatenation",
        "command_substitution", "process_substitution", "brace_expression", "extglob_pattern",
        "variable_name", "special_variable_name", "file_descriptor", "simple_expansion", "test_operator",
        "regex", "heredoc_start", "heredoc_body", "heredoc_content", "heredoc_end", "herestring_redirect",
        # in tests, and in numbers, which are looked at as a whole
        "binary_expression", "unary_expression", "postfix_expression", "parenthesized_expression",
        "ternary_expression",
    )
)  # fmt: skip

_UNKNOWN = frozenset(
    (
        "simple_expansion", "expansion", "command_substitution", "process_substitution",
        "arithmetic_expansion", "brace_expression",
    )
)  # fmt: skip
"""Words of which nothing is known before they are needed."""

_LITERAL = frozenset(
    ("raw_string", "ansi_c_string", "string_content", "heredoc_content", "heredoc_body", "comment")
)
"""What may have the signs of a substitution in it: it is looked at elsewhere, or is none."""

_EXPANSION = re.compile(
    r"\$\{#?\w+\}|\$\{[A-Za-z_]\w*(?::?[-+]|##?|%%?|//?|\^\^?|,,?)[\w .,/*?:@%+=~-]*\}", re.ASCII
)
"""What only cuts or replaces text, with nothing in it that could be more."""

_NUMBERS = re.compile(r"[\s\d+*/%()<>=!&|^~?:,;-]*", re.ASCII)
"""A number without variables: bash evaluates what is in them, and that may run something."""

_TESTS = frozenset(("-d", "-e", "-f", "-h", "-L", "-n", "-r", "-s", "-w", "-x", "-z"))
"""What `[[ ... ]]` may test: others evaluate what they are given."""

_HEREDOC = frozenset(
    ("file_descriptor", "heredoc_start", "heredoc_body", "heredoc_end", "file_redirect", "pipeline")
)
"""What a here-document may consist of: in the same line may be more."""

_SPACE = re.compile(rb"(?:[ \t\n]|\\\n)*")


class _Reader:
    """Reads one text."""

    def __init__(self, text: str, home: str, *, printed: bool = False) -> None:
        self._source = text.encode(errors="replace")
        self._home = home if re.fullmatch(r"/[\w./@+-]+", home, re.ASCII) else ""
        self._printed = printed
        self._acts: list[Act] = []

    def read(self) -> list[Act]:
        parser, language = _language()
        stack = [(parser(language).parse(self._source).root_node, 0)]
        count = 0
        while stack:
            node, depth = stack.pop()
            count += 1
            if count > MOST_NODES or depth > MOST_DEPTH:
                self._acts.append(Unclear("it is too long, or too deep, to be looked through", too_much=True))
                break
            self._look_at(node)
            stack.extend((child, depth + 1) for child in reversed(node.children))
        return self._acts

    def _unclear(self, why: str, node: Any) -> None:
        text = self._text(node)
        self._acts.append(Unclear(why, in_one_line(text if len(text) <= 60 else f"{text[:60]}...")))

    def _text(self, node: Any) -> str:
        return self._source[node.start_byte : node.end_byte].decode(errors="replace")

    def _look_at(self, node: Any) -> None:
        if node.is_error or node.is_missing:
            self._unclear("it does not parse", node)
            return
        if not node.is_named:
            return
        match node.type:
            case "command":
                self._command(node)
            case "test_command":
                self._test(node)
            case "variable_assignment":
                name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
                self._assign(name, value, exported=node.parent.type == "command")
            case "for_statement":
                self._assign(node.child_by_field_name("variable"), None)
            case "file_redirect":
                self._file_redirect(node)
            case "heredoc_redirect":
                self._heredoc(node)
            case "arithmetic_expansion" | "compound_statement" if b"((" in node.text[:3]:
                if not _NUMBERS.fullmatch(self._text(node).removeprefix("$")):
                    self._unclear("bash may run what is in the variables of a number", node)
            case "expansion":
                if not _EXPANSION.fullmatch(self._text(node)):
                    self._unclear("an expansion is not understood", node)
            case "command_substitution" if node.text.startswith(b"`") and b"\\" in node.text:
                self._unclear("quotes in backquotes are not understood", node)
            case "comment" if self._printed:
                self._unclear("what looks like a comment is none", node)  # bash does not print any
            case kind if kind not in _PLAIN:
                self._unclear(f"it has a {kind.replace('_', ' ')}", node)
        if not node.children and node.type not in _LITERAL and re.search(rb"`|[$<>]\(|\$[\[{]", node.text):
            self._unclear("something is hidden", node)
        self._check_gaps(node)

    def _check_gaps(self, node: Any) -> None:
        """What is between the parts of a node, and is no part itself, must be blank."""
        if node.type in ("string", "heredoc_body", "heredoc_redirect") or not node.children:
            return
        end = node.start_byte
        for start, next_end in (*((c.start_byte, c.end_byte) for c in node.children), (node.end_byte, 0)):
            blank = node.type != "concatenation" and _SPACE.fullmatch(self._source, end, start)
            if start > end and not blank:
                self._unclear("it does not parse", node)
                return
            end = next_end

    # --- what is run, set and opened --------------------------------------------------------------------

    def _command(self, node: Any) -> None:
        words: list[Word] = []
        end = -1
        for index, child in enumerate(node.children):
            field = node.field_name_for_child(index)
            if field in ("name", "argument"):
                words.append(self._word(child))
            elif child.type == "variable_assignment":
                continue
            elif field != "redirect":
                self._unclear("it does not parse", node)
            if end >= 0 and not re.search(rb"[ \t]", self._source[end : child.start_byte]):
                self._unclear("words run into each other", node)
            end = child.end_byte
        if words:
            self._acts.append(Runs(tuple(words)))
        elif not any(child.type == "file_redirect" for child in node.children):
            self._unclear("it does not parse", node)

    def _assign(self, name: Any, value: Any, *, exported: bool = False) -> None:
        if name.type != "variable_name" or (value is not None and value.type == "array"):
            self._unclear("arrays are not understood", name.parent)
            return
        word = UNKNOWN if value is None else self._word(value)
        self._acts.append(Assigns(self._text(name), word, exported))

    def _test(self, node: Any) -> None:
        match self._text(node.children[0]):
            case "[":
                self._acts.append(Runs(tuple(self._tested(node))))
            case "[[":
                stack = list(node.children)
                while stack:
                    one = stack.pop()
                    stack += one.children
                    if one.type == "test_operator" and self._text(one) not in _TESTS:
                        self._unclear("bash may run what such a test is given", node)
            case _ if not _NUMBERS.fullmatch(self._text(node)):
                self._unclear("bash may run what is in the variables of a number", node)

    def _tested(self, node: Any) -> Iterator[Word]:
        """The words of `[ ... ]`, which is a command as others are."""
        stack = [node]
        while stack:
            one = stack.pop()
            if one is node or (one.type.endswith("_expression") and one.type != "brace_expression"):
                stack += reversed(one.children)
            elif not one.is_named or one.type == "test_operator":
                yield Word(self._text(one))
            else:
                yield self._word(one)

    def _file_redirect(self, node: Any) -> None:
        places = node.children_by_field_name("destination")
        operator = next(self._text(child) for child in node.children if not child.is_named)
        if operator in ("<&-", ">&-") and not places:
            return
        named = self._source[: node.start_byte].endswith(b"}")  # `{x}>` sets a variable
        if named or len(places) != 1 or operator not in ("<", ">", ">>", ">|", "&>", "&>>", ">&", "<&"):
            self._unclear("a redirection is not understood", node)
        for place in places:
            path = self._word(place)
            if operator in (">&", "<&") and path.known and re.fullmatch(r"\d-?|-", path.text, re.ASCII):
                continue
            self._acts.append(Opens(operator != "<", path))

    def _heredoc(self, node: Any) -> None:
        """A here-document ends where bash says it does: at the first line that is its delimiter."""
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        end = next((child for child in node.children if child.type == "heredoc_end"), None)
        delimiter = start and re.fullmatch(rb"(\w+)|'(\w+)'|\"(\w+)\"", start.text)
        others = {child.type for child in node.children if child.is_named} - _HEREDOC
        if start is None or end is None or not delimiter or others:
            self._unclear("a here-document is not understood", node)
            return
        first = self._source.find(b"\n", start.end_byte) + 1
        after = self._source.find(b"\n", end.start_byte)
        lines = self._source[first : after if after >= 0 else len(self._source)].split(b"\n")
        if node.children[0].type == "<<-":
            lines = [line.lstrip(b"\t") for line in lines]
        name = delimiter[1] or delimiter[2] or delimiter[3]
        if lines[-1] != name or name in lines[:-1]:
            self._unclear("a here-document does not end where it seems to", node)
        elif delimiter[1] and re.search(rb"[`\\]|\$[({\[]", b"\n".join(lines)):
            self._unclear("a here-document has something that bash may run", node)

    # --- words ------------------------------------------------------------------------------------------

    def _word(self, node: Any, *, quoted: bool = False) -> Word:
        """One word, or a part of one. Nothing is split if it is `quoted`."""
        source = self._text(node)
        unknown = Word("", False, splits=not quoted, source=source)
        match node.type:
            case "command_name" if node.children:
                return self._word(node.children[0])
            case "word" | "number" | "extglob_pattern" | "command_name" if not node.children:
                return self._bare(source, node)
            case "raw_string":
                return Word(source[1:-1])
            case "ansi_c_string":
                text = unescaped(source[2:-1])
                return Word("", False, source=source) if text is None else Word(text)
            case "string":
                return self._joined(self._string_parts(node), source)
            case "concatenation":
                if all(child.type == "word" for child in node.children):
                    return self._bare(source, node)
                bare = b"".join(child.text for child in node.children if child.type == "word")
                if re.search(rb"[{}]", bare) or any(c.text.startswith(b"~") for c in node.children[1:]):
                    return unknown
                return self._joined([self._word(child) for child in node.children], source)
            case "simple_expansion" | "expansion" if source.strip("${}") == "HOME" and self._home:
                return Word(self._home)
            case "simple_expansion" if source in ("$@", "$*"):
                return Word("", False, splits=True, source=source)
            case kind if kind in _UNKNOWN:
                return unknown
        self._unclear("a word is not understood", node)
        return unknown

    def _string_parts(self, node: Any) -> list[Word]:
        """What is between double quotes: expansions, and the text between them, also where no node has it."""
        parts: list[Word] = []
        end = node.start_byte + 1
        for child in node.children[1:-1]:
            if child.is_named and child.type != "string_content":
                parts += (self._quoted_text(end, child.start_byte, node), self._word(child, quoted=True))
                end = child.end_byte
        return [*parts, self._quoted_text(end, node.end_byte - 1, node)]

    def _quoted_text(self, start: int, end: int, node: Any) -> Word:
        text = self._source[start:end].decode(errors="replace")
        if re.search(r"`|\$[\w({\[@*#?$!-]", re.sub(r"\\.", "", text, flags=re.DOTALL)):
            self._unclear("a string is not understood", node)
        return Word(re.sub(r"\\([$`\"\\\n])", lambda found: found[1].replace("\n", ""), text))

    def _joined(self, parts: list[Word], source: str) -> Word:
        text = ""
        for part in parts:
            text += part.text
            if not part.known:
                splits = any(one.splits for one in parts)
                return Word("" if splits else text, False, splits=splits, source=source)
        return Word(text)

    def _bare(self, source: str, node: Any) -> Word:
        """A word without quotes: escapes, globs, braces, a tilde."""
        if re.search(r"[$`\"'()<>|&; \t\n]", re.sub(r"\\[^\n]", "", source)) or source.endswith("\\"):
            self._unclear("a word is not understood", node)
            return Word("", False, splits=True, source=source)
        if source == "[" and node.parent.type == "command_name":
            return Word(source)
        parts = re.findall(r"\\.|.", source)
        globs = [place for place, part in enumerate(parts) if part in ("*", "?", "[")]
        text = "".join(part[-1] for part in (parts[: globs[0]] if globs else parts))
        if re.search(r"[{}]", source.replace("{}", "")):
            return Word("", False, splits=True, source=source)
        if source.startswith("~"):
            if not re.match(r"~(?:/|$)", source) or not self._home:
                return Word("", False, source=source)
            text = self._home + text[1:]
        return Word(text, False, splits=True, source=source) if globs else Word(text)


if __name__ == "__main__":  # see `_read`
    _text, _home, _printed = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, str, bool])
    sys.stdout.buffer.write(msgspec.json.encode(_Reader(_text, _home, printed=_printed).read()))

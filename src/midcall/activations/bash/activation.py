"""The activation: `bash.execute`, from a command line to its last event."""

import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from midcall.activations.bash.judge import Plan, Surroundings, judge
from midcall.activations.bash.parse import MOST_TEXT, check_parser, visible
from midcall.activations.bash.questions import (
    CommandRefused,
    Permitted,
    ask_permission,
    ask_to_leave,
    ask_what_now,
)
from midcall.activations.bash.rules import (
    CONFIG,
    Approved,
    BashConfig,
    ConfigError,
    LimitSettings,
    config_path,
    expanded,
    keep,
    read_config,
    resolved,
)
from midcall.activations.bash.run import (
    BashError,
    BashEvent,
    BashExit,
    BashNotice,
    CommandRun,
    StderrLine,
    StdoutLine,
)
from midcall.activations.bash.sandbox import Sandbox, find_sandbox, system_program
from midcall.ask import Ask
from midcall.call import CallerName
from midcall.decorators import method
from midcall.errors import AskError, NotSupported, RegistrationError, StepInterrupted
from midcall.journal.files import PRIVATE

MOST_VARIABLES = 100
MOST_VALUE = 32 * 1024

PASSED = ("HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ")
"""What commands get of the server's environment, beside `PATH`: in what else is there may be secrets."""

FIXED: Mapping[str, str] = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    # A repository that came from somewhere must not have a program run just because it is looked at.
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "safe.bareRepository",
    "GIT_CONFIG_VALUE_1": "explicit",
}

_REFUSALS = re.compile(
    r"permission denied|read-only file system|operation not permitted|network is unreachable|no route to host"
    r"|could not resolve|name resolution|name or service not known|unable to resolve"
    r"|bad interpreter|required file not found|device or resource busy",
    re.IGNORECASE,
)
"""What programs say when a sandbox refuses something to them."""


_MISREAD = re.compile(r"\w+=\(\)|(LANG|LC_\w+)=(?!(C|POSIX)$)(?!.*utf-?8)", re.IGNORECASE)
"""A function; or a locale other than UTF-8, in which bash may read another command than was judged."""

LOST = "It is not known how the command ended: the server stopped while it ran"


class Prepared(Struct, frozen=True):
    """What is known of a command before it runs; kept, so that a call which is run again knows the same."""

    problem: str = ""
    plan: Plan = Plan("allow", ())
    cwd: str = ""
    circumstances: str = ""
    timeout: float = 0.0
    may_leave: bool = False
    """Whether a person may be asked to let it out of the sandbox: not what only reads."""
    kept: bool = False
    """Whether a person has permitted it for good."""
    principal: str | None = None


class Bash:
    """Run commands in a shell: by rules, in a sandbox, and with a person's permission where it is needed."""

    def __init__(self, config: str | Path | None = None, *, folder: str | Path | None = None) -> None:
        """`config` is the file with rules and settings, `folder` where commands run unless they say.

        By default `~/.config/midcall/bash.toml`, or what `MIDCALL_BASH_CONFIG` names; and the present folder.
        Raises `ConfigError`, and `RegistrationError` if something is not installed.
        """
        try:
            check_parser()
        except ImportError as error:
            raise RegistrationError(str(error)) from None
        bash = system_program("bash")
        if bash is None:
            raise RegistrationError("bash is not installed")
        self._bash = bash
        named = config is not None or bool(os.environ.get(CONFIG))
        path = config_path() if config is None else Path(config).expanduser()
        self._config = path.resolve()  # a link to it may be where commands can turn it elsewhere
        if named and not self._config.is_file():
            raise ConfigError(f"There is no file {self._config}")
        self._folder = Path.cwd() if folder is None else Path(folder).absolute()
        self._sandbox: Sandbox | None = None
        self._finding = threading.Lock()
        settings = read_config(self._config)
        find_sandbox(replace(settings.sandbox, use="none"), self._folder, self._config)  # are they all right?
        if settings.sandbox.use in ("bwrap", "landlock"):
            self._found_sandbox(settings)
        self._granted: WeakKeyDictionary[object, set[bytes]] = WeakKeyDictionary()

    @method(
        title="Run a command",
        person_only=True,
        scopes=["bash"],
        annotations={"destructiveHint": True, "openWorldHint": True, "readOnlyHint": False},
    )
    async def execute(
        self,
        command: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)],
        ask: Ask,
        cwd: str | None = None,
        timeout: Annotated[float, Field(gt=0)] | None = None,  # noqa: ASYNC109  the word of the seed
        env: dict[str, str] | None = None,
        *,
        caller: CallerName,
    ) -> AsyncIterator[BashEvent]:
        """Run a command in bash, and stream its output.

        Reading is allowed; a person is asked about all else, and about what is not understood. It runs in a
        sandbox, without input. Events: `stdout` and `stderr` with a `line`, `cut` where output is left out,
        `notice`, and at the end `exit` with a `code`, or `error` with a `message` if it was not run.

        Args:
            command: what to run
            cwd: the folder to run it in
            timeout: after how many seconds it is ended
            env: variables to set
        """
        given = await ask.step(self._prepare, command, cwd, timeout, env, caller, retry_safe=True)
        prepared = msgspec.convert(given, Prepared)
        outside = False
        try:
            again = await self._permit(ask, command, env, prepared)
            while True:
                run = self._run(command, env, prepared, outside=outside)
                lines: list[str] = []
                last: BashEvent | None = None
                try:
                    async with aclosing(_output(ask, run)) as output:
                        async for last in output:
                            if isinstance(last, StdoutLine | StderrLine):
                                lines.append(last.line)
                            if not isinstance(last, BashExit):
                                yield last
                except StepInterrupted:
                    if not again and not await ask_what_now(ask, command, lines):
                        raise CommandRefused(LOST) from None
                    yield BashNotice("The server stopped while the command ran. It is run again")
                    continue
                if not isinstance(last, BashExit):
                    return
                if outside or not await self._may_leave(ask, command, prepared, last, lines):
                    yield last
                    return
                outside = True
                yield BashNotice("The command is run again, without the sandbox")
        except CommandRefused as refusal:
            yield BashError(str(refusal))
        except NotSupported:
            yield BashError(f"Not run: nobody can be asked here whether it may ({_why(prepared.plan)})")
        except AskError as error:
            yield BashError(f"Not run: {error}")

    # --- before it runs ----------------------------------------------------------------------------------

    def _prepare(
        self,
        command: str,
        cwd: str | None,
        timeout: float | None,
        env: dict[str, str] | None,
        principal: str | None,
    ) -> dict[str, Any]:
        """Judge a command, in a worker thread. Gives a `Prepared`, as JSON has it."""
        try:
            prepared = self._judged(command, cwd, timeout, env, principal)
        except (ConfigError, _BadArguments) as error:
            prepared = Prepared(problem=str(error))
        made: dict[str, Any] = msgspec.to_builtins(prepared)
        return made

    def _judged(
        self,
        command: str,
        cwd: str | None,
        timeout: float | None,
        env: Mapping[str, str] | None,
        principal: str | None,
    ) -> Prepared:
        if "\0" in command or command.encode(errors="replace").decode() != command:
            raise _BadArguments("A command cannot have the character NUL, or half of a character")
        config = read_config(self._config)
        sandbox = self._found_sandbox(config)
        where = self._cwd(cwd, sandbox)
        _check_variables(env or {})
        seconds = min(timeout or config.limits.timeout, config.limits.longest)
        plan = judge(command, self._surroundings(config, sandbox, where), config, env)
        kept = not env and Approved(command, where, principal) in config.approved
        circumstances = f"in {visible(where)}, {sandbox.shown}, for {seconds:g} s at most"
        may_leave = config.sandbox.leave and plan.verdict == "ask" and sandbox.kind != "none"
        return Prepared("", plan, where, circumstances, seconds, may_leave, kept, principal)

    def _surroundings(self, config: BashConfig, sandbox: Sandbox, cwd: str) -> Surroundings:
        return Surroundings(cwd, self._environment(config), sandbox, self._bash)

    def _found_sandbox(self, config: BashConfig) -> Sandbox:
        with self._finding:
            if self._sandbox is None:
                size = config.limits.file_size
                self._sandbox = find_sandbox(config.sandbox, self._folder, self._config, size)
            return self._sandbox.without(sorted(PRIVATE))

    def _cwd(self, cwd: str | None, sandbox: Sandbox) -> str:
        path = resolved(str(self._folder / expanded(cwd or ""))) or ""
        if not os.path.isdir(path):  # noqa: PTH112
            raise _BadArguments(f"There is no folder {visible(cwd or path)}")
        if not sandbox.sees(path):
            raise _BadArguments(
                f"Commands do not see {visible(path)}; sandbox.read of the settings can show it"
            )
        return path

    def _environment(self, config: BashConfig) -> dict[str, str]:
        """The variables of a command."""
        passed = (*PASSED, *config.pass_env)
        found = {name: os.environ[name] for name in passed if name in os.environ}
        found = {name: value for name, value in found.items() if not _MISREAD.match(f"{name}={value}")}
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        found["PATH"] = os.pathsep.join(folder for folder in folders if os.path.isabs(folder))  # noqa: PTH117
        found["SHELL"] = self._bash
        return {"LANG": "C.UTF-8", **found, **FIXED}

    # --- permission ----------------------------------------------------------------------------------------

    async def _permit(
        self, ask: Ask, command: str, env: Mapping[str, str] | None, prepared: Prepared
    ) -> bool:
        """Come back if the command may run; gives whether it may again.

        Raises `CommandRefused` or `AskError`.
        """
        if prepared.problem:
            raise CommandRefused(f"Not run: {prepared.problem}")
        plan = prepared.plan
        if plan.verdict == "deny":
            raise CommandRefused(f"Not run: it is denied ({_why(plan)})")
        if plan.verdict == "allow":
            return False
        grant = msgspec.json.encode([command, prepared.cwd, env or {}], order="sorted")
        if prepared.kept or (ask.session is not None and grant in self._granted.get(ask.session, ())):
            return False  # a call with a session is never run again from a journal, so this need not be kept
        approved = None if env else Approved(command, prepared.cwd, prepared.principal)
        how_long = await ask_permission(ask, command, plan, prepared.circumstances, approved)
        if how_long is Permitted.SESSION and ask.session is not None:
            self._granted.setdefault(ask.session, set()).add(grant)
        if how_long is Permitted.ALWAYS and approved is not None:
            problem = await ask.step(self._keep, msgspec.to_builtins(approved), retry_safe=True)
            if problem:
                ask.log(problem, "warning")
        return how_long is Permitted.SESSION

    def _keep(self, approved: dict[str, Any]) -> str:
        """Keep what a person has permitted; gives why that is not possible, if it is not."""
        try:
            keep(self._config, msgspec.convert(approved, Approved))
        except (ConfigError, OSError) as error:
            return f"It cannot be kept: {error}"
        return ""

    async def _may_leave(
        self, ask: Ask, command: str, prepared: Prepared, ended: BashExit, lines: Sequence[str]
    ) -> bool:
        """Whether the command is to run again without the sandbox: only if a person says so."""
        if not prepared.may_leave or ended.code <= 0:
            return False
        refused = next((line for line in reversed(lines) if _REFUSALS.search(line)), None)
        if refused is None:
            return False
        return await ask_to_leave(ask, command, refused)

    # --- running -------------------------------------------------------------------------------------------

    def _run(
        self, command: str, env: Mapping[str, str] | None, prepared: Prepared, *, outside: bool
    ) -> CommandRun:
        def begin() -> tuple[Sandbox, dict[str, str], LimitSettings]:
            """What it is run in, now: rules and sandbox may have changed while somebody thought."""
            config = read_config(self._config)
            sandbox = self._found_sandbox(config)
            now = judge(command, self._surroundings(config, sandbox, prepared.cwd), config, env).verdict
            if now == "deny":
                raise ConfigError("a rule now denies it")
            if sandbox.shown not in prepared.circumstances:
                raise ConfigError(f"it would run {sandbox.shown} by now")
            if prepared.plan.verdict == "allow":  # so nobody has seen it
                if now != "allow":
                    raise ConfigError("the rules have changed")
                sandbox = sandbox.read_only
            if outside:
                sandbox = Sandbox("none")
            return sandbox, {**self._environment(config), **(env or {})}, config.limits

        return CommandRun(command, self._bash, prepared.cwd, prepared.timeout, begin)


class _BadArguments(Exception):
    """The arguments are no good; the text says why."""


async def _output(ask: Ask, run: CommandRun) -> AsyncGenerator[BashEvent, None]:
    """All events of one run, each chunk of them a step. Raises `StepInterrupted`."""
    number = 0
    event: BashEvent | None = None
    try:
        while not isinstance(event, BashExit | BashError):
            for event in msgspec.convert(await ask.step(run.next, number), list[BashEvent]):
                yield event
            number += 1
    finally:
        await run.close()


def _why(plan: Plan) -> str:
    return "; ".join(f"{part.shown}: {part.why}" for part in plan.worst[:5])


def _check_variables(env: Mapping[str, str]) -> None:
    if len(env) > MOST_VARIABLES:
        raise _BadArguments(f"There are more than {MOST_VARIABLES} variables")
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise _BadArguments(f"{visible(name)!r} is not the name of a variable")
        if name.startswith("MIDCALL_"):
            raise _BadArguments(f"{name} is a variable of the server")
        if "\0" in value or len(value) > MOST_VALUE:
            raise _BadArguments(f"The value of {name} cannot be used")

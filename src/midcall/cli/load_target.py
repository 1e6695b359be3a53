"""Loads what a command is about: a hub (`app:hub`, `package.module:hub`, `path/app.py:hub`) or an MCP server.

A server is mounted in a hub of its own, under plain names, so that all else is the same for both.
"""

import contextlib
import importlib
import importlib.util
import operator
import shutil
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

from midcall.cli.command import UsageError
from midcall.hub import Hub

_HERE = str(Path(__file__).parent.parent)


CONNECTING = 60.0
"""Seconds that servers have to start and tell what they offer; some are installed when first started."""


@asynccontextmanager
async def opened(target: str) -> AsyncIterator[Hub]:
    """The hub at `target`, or one with the server there, ready to be called. Raises `UsageError`."""
    hub = load_target(target)
    try:
        await hub.open_mounts(CONNECTING)
        if is_server(target):
            (mount,) = hub.mounts
            if not mount.activation.known:
                raise UsageError(f"Cannot use {target!r}: {mount.failure or 'it does not answer'}")
        yield hub
    finally:
        await hub.close_mounts()
        await hub.stop_lifespans()


def load_target(target: str) -> Hub:
    """The hub at `target`, or one with the MCP server that it names. Raises `UsageError`."""
    if not is_server(target):
        return load_hub(target)
    try:
        return Hub("servers").mount("", target)
    except ValueError as error:
        raise UsageError(f"Cannot use {target!r}: {error}") from None


def is_server(target: str) -> bool:
    """Whether a target is an MCP server: a URL, a command, or the settings of a client."""
    where, _ = split_target(target)
    if where.endswith(".py") and Path(where).is_file():
        return False
    if "://" in target or " " in target.strip() or Path(target).suffix in (".json", ".js", ".mjs"):
        return True
    if ":" in target or target.isidentifier():
        return False
    return not target.endswith(".py") and shutil.which(target) is not None


def load_hub(target: str) -> Hub:
    """The hub at `target`; a function that makes one is called. Raises `UsageError`."""
    where, attribute = split_target(target)
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
        found = operator.attrgetter(attribute)(module)
        if callable(found):
            found = found()
    except UsageError as error:
        raise UsageError(f"Cannot load {target!r}: {error}") from None
    except AttributeError as error:
        if error.name not in attribute.split("."):
            raise _broken(target, error) from error
        raise UsageError(f"Cannot load {target!r}: {where} has no {attribute!r}{_hint(module)}") from None
    except Exception as error:  # an app may raise anything while it is imported
        raise _broken(target, error) from error
    if not isinstance(found, Hub):
        raise UsageError(f"Cannot load {target!r}: it is a {type(found).__name__}, not a Hub")
    return found


def split_target(target: str) -> tuple[str, str]:
    """The module or file, and the name in it. The colon of a drive (`C:\\app.py`) is no separator."""
    where, colon, attribute = target.rpartition(":")
    if not colon or "/" in attribute or "\\" in attribute:
        where, attribute = target, ""
    return where, attribute or "hub"


def _load_module(name: str) -> ModuleType:
    if not all(name.split(".")):  # Python would take `.app` for a part of a package
        raise UsageError("a target is a module or a file, as in app:hub or path/app.py:hub")
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another one that is not
        hint = f"; for a file write {name}.py" if Path(f"{name}.py").is_file() else ""
        raise UsageError(f"no module named {error.name!r} in {Path.cwd()} or installed{hint}") from None


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {path}")
    if path.stem in sys.stdlib_module_names:  # whoever imports that one is not to get this file
        with contextlib.suppress(ImportError):
            importlib.import_module(path.stem)
    _search(Path.cwd())
    _search(path.resolve().parent)
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    name = f"midcall_target_{path.stem}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _hint(module: ModuleType) -> str:
    hubs = [name for name, value in vars(module).items() if isinstance(value, Hub)]
    return f"; it has {', '.join(hubs)}" if hubs else ""


def _broken(target: str, error: Exception) -> UsageError:
    """One line about an app that fails while it is imported, with the place in its own code."""
    if isinstance(error, SyntaxError):
        return UsageError(f"Cannot load {target!r}: {error.filename}, line {error.lineno}: {error.msg}")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", _HERE)) and "importlib" not in frame.filename
    ]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    text = " ".join(str(error).split())
    return UsageError(f"Cannot load {target!r}: {place}{type(error).__name__}: {text}")

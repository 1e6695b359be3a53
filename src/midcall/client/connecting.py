"""`connect`: a client of any MCP server."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from midcall.client.answering import Answering, Folders, Sampler
from midcall.client.client import Client
from midcall.client.greeting import Era
from midcall.client.options import INFO, Options
from midcall.client.targets import Named, Target, target_of
from midcall.invocation import Answerer


def connect(
    target: "Named | Target",
    *,
    answer: Answerer | None = None,
    sample: Sampler | None = None,
    roots: Folders | None = None,
    by_hand: bool = False,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    era: Era = "auto",
    revision: str | None = None,
    log_level: str | None = None,
    on_log: Callable[[dict[str, Any]], Any] | None = None,
    give_up_after: float | None = 60.0,
    info: Mapping[str, Any] | None = None,
) -> Client:
    """A client of an MCP server; use it with `async with`.

    `target` is a command (`"npx -y some-server"`, or a list of words), a URL, a `Hub`, or the settings of
    another client (`{"mcpServers": ...}`, or the path of the file). Of several servers there, all are mounted
    in one hub, and their tools are called `server.tool`.

    A server may ask: `answer` is a function (plain or async) from a `Request` to the answer, as for
    `Hub.call`; `by_hand` lets questions come as items of a call instead. `sample` asks a model for the
    server, and `roots` are the folders that it may know of. What is not given here is not offered to the
    server.

    `headers` and `auth` (a token, or an `OAuth`) are for a URL, `env` and `cwd` for a command. A command gets
    `PATH` and a few more variables of this process; with `inherit_env` it gets all of them. `era` is found
    out unless it is given; `revision` is the legacy one to ask for. With `log_level`, the server's log comes
    as items of calls, and to `on_log` where it belongs to none. `give_up_after` is how many seconds a call
    waits for a server that cannot be reached; `None` is for ever.
    """
    if not isinstance(target, Target):
        target = target_of(target, headers=headers, auth=auth, env=env, inherit_env=inherit_env, cwd=cwd)
    options = Options(era, revision, log_level, on_log, give_up_after, info or INFO)
    return Client(target, Answering(answer, sample, roots, by_hand=by_hand), options)

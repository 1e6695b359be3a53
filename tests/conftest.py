import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings

from mcp_peers import Connect, HttpServer, http_server, over_stdio

# What midcall keeps for its user goes to a folder of this run, also in the servers that tests start.
os.environ["MIDCALL_STATE"] = tempfile.mkdtemp(prefix="midcall-tests-")
atexit.register(shutil.rmtree, os.environ["MIDCALL_STATE"], ignore_errors=True)

# The same examples in each run, so that a red run can be repeated. `HYPOTHESIS_PROFILE=search` looks further.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=80,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", deadline=None, max_examples=3000, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


LONG = (
    "repository/test_docs.py",
    "repository/test_walks.py",
    "repository/test_package.py",
    "journal/test_crash.py",
    "journal/test_dbos.py",
    "web/test_chat.py",
    "cli/test_workers.py",
    "cli/test_calls.py",
    "cli/test_shutdown.py",
)
"""The files that take longest. They come first, so that none is left when all others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: `driving.drive` need not look through it after each test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Write down what a worker of this run has covered before it is told to end: then it has ten seconds."""
    if "PYTEST_XDIST_WORKER" in os.environ and (measuring := Coverage.current()) is not None:
        measuring.stop()
        measuring.save()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logs may hold lone surrogates, which cannot be sent between the processes of a run."""
    report = yield
    report.sections = [(title, text.encode(errors="replace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    """One MCP server over HTTP for all tests of a module."""
    with http_server() as serving:
        yield serving


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """How an MCP client connects: on stdio to a server of its own, over HTTP to the module's."""
    return over_stdio if request.param == "stdio" else request.getfixturevalue("server").client

"""`make fuzz`: lets mcp-fuzzer loose on a midcall server, over HTTP and stdio, in both eras.

mcp-fuzzer exits with 0 whatever it finds, so its findings are read here. What counts as a fault: the
server has ended, its log has a traceback from inside midcall, an answer was an HTTP 5xx, calls are left
running, or a finding of the fuzzer that is not in the list below.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "compliance"))

from harness.fixture import ServerError, serve  # noqa: E402
from harness.install import InstallError, python_package  # noqa: E402

VERSION = "0.7.0"
CACHE = ROOT / ".cache" / "fuzzing"
APP = ROOT / "fuzzing" / "app.py"
SCHEMAS = ("2025-11-25", "2026-07-28")
MODES = ("protocol", "tools", "resources", "prompts")

EXPECTED = frozenset(("accepted_malformed", "injection_reflection"))
"""Findings that are not faults. `accepted_malformed` is reported for any answer without a JSON-RPC error,
also to a well-formed message (`ping`, `tools/list`) and also if the result says `isError`; notifications
have no answer at all. `injection_reflection` is for tools that say back what they were told, as those of
the target do. What they cannot hide, a crash, a hang or a 5xx, is looked for as well."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzzing/run.py", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="runs for each tool and message (default: 10)")
    parser.add_argument("--seed", type=int, default=7, help="the fuzzer's seed (default: 7)")
    parser.add_argument("--transport", choices=("http", "stdio"), help="only this one")
    options = parser.parse_args()
    try:
        python = python_package(CACHE, "mcp_fuzzer", VERSION, (), _say)
    except InstallError as error:
        _say(str(error))
        return 2
    faults: list[str] = []
    for transport in ("http", "stdio"):
        if options.transport in (None, transport):
            fuzz = fuzz_http if transport == "http" else fuzz_stdio
            faults += fuzz(python.parent / "mcp-fuzzer", options.runs, options.seed)
    for fault in faults:
        _say(f"FAULT {fault}")
    _say(f"{len(faults)} faults")
    return 1 if faults else 0


def fuzz_http(fuzzer: Path, runs: int, seed: int) -> list[str]:
    faults: list[str] = []
    log = CACHE / "server.log"
    try:
        with serve(APP, log) as fixture:
            for schema in SCHEMAS:
                for mode in MODES:
                    what = f"http {schema} {mode}"
                    arguments = [
                        "--protocol",
                        "streamablehttp",
                        "--endpoint",
                        fixture.url,
                        "--allow-host",
                        "127.0.0.1",
                    ]
                    faults += _fuzz(fuzzer, what, [*arguments, "--mode", mode], schema, runs, seed)
                    fixture.check()
            left = _calls_left(fixture.url.replace("/mcp", "/health"))
            if left:
                faults.append(f"http: {left} calls are left running")
    except ServerError as error:
        faults.append(f"http: {error}")
    text = log.read_text(errors="replace")
    if "failed inside midcall" in text or re.search(r'File ".*/midcall/(mcp|transports|connection)', text):
        faults.append(f"http: a traceback from inside midcall, see {log}")
    return faults


def fuzz_stdio(fuzzer: Path, runs: int, seed: int) -> list[str]:
    faults: list[str] = []
    endpoint = f"{sys.executable} {APP} --stdio"
    for schema in SCHEMAS:
        for mode in MODES:
            what = f"stdio {schema} {mode}"
            # On a pipe the fuzzer sends one at a time, but counts from when it wanted to: five that ask for
            # two seconds each would be hangs to it, though the server answers all of them after two.
            one = ["--max-concurrency", "1"]
            arguments = ["--protocol", "stdio", "--endpoint", endpoint, "--mode", mode, *one]
            faults += _fuzz(fuzzer, what, arguments, schema, runs, seed)
    return faults


def _fuzz(fuzzer: Path, what: str, arguments: list[str], schema: str, runs: int, seed: int) -> list[str]:
    output = CACHE / what.replace(" ", "-")
    command = [
        str(fuzzer), *arguments, "--phase", "both", "--runs", str(runs), "--runs-per-type", str(runs),
        "--spec-schema-version", schema, "--seed", str(seed), "--timeout", "10", "--tool-timeout", "10",
        "--no-network", "--fs-root", str(CACHE / "root"), "--output-dir", str(output),
    ]  # fmt: skip
    _say(f"{what} ...")
    start = time.monotonic()
    (CACHE / "root").mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return [f"{what}: the fuzzer did not come to its end in 600 s"]
    output.mkdir(parents=True, exist_ok=True)
    (output / "fuzzer.log").write_text(done.stdout + done.stderr)
    summary = _read(output / "run_summary.json")
    findings = _read(output / "findings.json").get("findings", [])
    faults = [f"{what}: {_short(one)}" for one in findings if one.get("category") not in EXPECTED]
    if summary.get("status") == "blocked":
        faults.append(f"{what}: nothing was fuzzed: {summary.get('blocked_detail')}")
    if re.search(r"HTTP 5\d\d", done.stdout + done.stderr):
        faults.append(f"{what}: an HTTP 5xx, see {output / 'fuzzer.log'}")
    if not summary:
        faults.append(f"{what}: no summary, see {output / 'fuzzer.log'}")
    runs_done = sum(t.get("total_runs", 0) for t in summary.get("protocols", {}).get("by_type", {}).values())
    runs_done += summary.get("tools", {}).get("total_runs", 0)
    _say(f"{what}: {runs_done} runs, {len(findings)} findings, {time.monotonic() - start:.0f} s")
    return faults


def _calls_left(url: str) -> int:
    """Calls that still run; those that ask give up after two seconds."""
    for _ in range(60):
        with urllib.request.urlopen(url, timeout=10) as response:
            left = int(json.load(response)["calls"])
        if not left:
            return 0
        time.sleep(1)
    return left


def _short(finding: dict[str, Any]) -> str:
    return json.dumps(finding)[:400]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _say(text: str) -> None:
    print(f"fuzz: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

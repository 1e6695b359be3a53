"""What is imported: data of strangers, until it is seen to be calls of midcall that this principal may bring."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driving import drive
from midcall import Ask, Hub, method
from midcall.errors import BadExport, MidcallError, NotAllowed
from midcall.journal.admin import Admin
from midcall.journal.contract import CallRecord
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.seal import shared_keys
from midcall.mcp import CALL_KINDS, mcp_of
from midcall.principal import Principal
from operating import ADMIN, Server, midcall

MOVER = "mover-0123456789abcdef"
FULL = "full-0123456789abcdef"
KEYS = f"root={ADMIN}:midcall:admin mover={MOVER}:midcall:import full={FULL}:midcall:import,vault:open"
LINES = {"content_type": "application/x-ndjson"}

CALL: dict[str, Any] = {
    "id": "Abc_123",
    "name": "vault.open",
    "arguments": "e30=",
    "context": "c3Vic2NyaXB0aW9uIHsia2luZHMiOiBbInByb21wdCJdfQ==",  # subscription {"kinds": ["prompt"]}
    "principal": "ada",
    "created": time.time(),
    "expires": time.time() + 3600,
    "status": "running",
}


class Vault:
    """What not everybody may open."""

    @method(scopes=["vault:open"])
    async def open(self, ask: Ask) -> str:
        """Open it."""
        return await ask.prompt("Which one?", key="which")


def line(**changed: Any) -> dict[str, Any]:
    return {"call": CALL | changed, "entries": [], "outcomes": {}}


def operations() -> Admin:
    hub = Hub().register(Vault())
    hub.durable = DurableCalls(hub, MemoryJournal())
    hub.durable.looks_after = False
    return Admin(hub.durable.journal, CALL_KINDS, durable=mcp_of(hub).resumption.durable, calls=hub.calls)


# --- over HTTP ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Server(tmp_path_factory.mktemp("s"), target=f"{__file__}:hub", MIDCALL_TOKENS=KEYS) as serving:
        yield serving


hub = Hub().register(Vault())


def test_to_import_is_a_scope_of_its_own(server: Server) -> None:
    body = json.dumps(line(id="scope")).encode()
    refused = server.post("/admin/import", body, ADMIN, **LINES)
    assert (refused.status, refused.error) == (403, "insufficient_scope")
    assert 'scope="midcall:import"' in refused.headers["www-authenticate"]
    assert server.post("/admin/import", body, FULL, **LINES).json == {"imported": 1, "known": 0}
    assert server.get("/admin/calls", FULL).status == 403  # and it opens nothing else
    assert server.get("/admin/calls/scope", ADMIN).json["method"] == "vault.open"


def test_who_imports_a_call_needs_the_scopes_of_its_method(server: Server) -> None:
    refused = server.post("/admin/import", json.dumps(line(id="secret")).encode(), MOVER, **LINES)
    assert (refused.status, refused.error) == (403, "insufficient_scope")
    assert refused.json["error"]["data"]["scopes"] == ["vault:open"]
    assert server.get("/admin/calls/secret", ADMIN).status == 404


def test_no_keys_are_taken_over_http(server: Server) -> None:
    keys = {"keys": {"seal-1": "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="}}
    refused = server.post("/admin/import", json.dumps(keys).encode(), FULL, **LINES)
    assert (refused.status, refused.error) == (400, "bad_request")
    assert "keys" in refused.text
    by_command = midcall("calls", "import", "-", "--url", server.url, "--token", FULL, stdin=json.dumps(keys))
    assert (by_command.returncode, "keys of its own" in by_command.stderr) == (0, True)


def test_what_is_no_call_is_refused_and_said_which_line_it_is(server: Server) -> None:
    body = json.dumps(line(id="before")) + "\n" + json.dumps(line(id="../x"))
    refused = server.post("/admin/import", body.encode(), FULL, **LINES)
    assert (refused.status, refused.error) == (400, "bad_request")
    assert "Line 2 is not an exported call" in refused.text
    assert server.get("/admin/calls/before", ADMIN).status == 200


# --- what a call may be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"id": ""},
        {"id": "../../etc/passwd"},
        {"id": "a\n"},
        {"id": "a" * 9000},
        {"id": "x:1:1"},
        {"name": ""},
        {"name": "a" * 5000},
        {"name": "nothing.there"},
        {"principal": "a" * 5000},
        {"idempotency_key": "a" * 5000},
        {"fence": -1},
        {"fence": 2**31 - 1},
        {"segment": -1},
        {"segment": 2**40},
        {"claims": -100},
        {"claims": 10**6},
        {"created": -1.0},
        {"created": 1e300},
        {"created": "nan"},
        {"updated": "inf"},
        {"wake": "-inf"},
        {"wake": 1e300},
        {"expires": "nan"},
        {"expires": 1e300},
        {"expires": 9e9},
        {"status": "anything"},
        {"context": ""},
        {"context": "/w=="},
        {"context": "bm9uc2Vuc2Uge30="},  # nonsense {}
        {"context": "c3Vic2NyaXB0aW9uIFtd"},  # subscription []
        {"context": "bWNwIHt9"},  # mcp {}
        {"arguments": "/w=="},
        {"status": "waiting", "questions": "e30="},
        {"status": "waiting", "questions": "eyJxdWVzdGlvbnMiOiBbMV19"},  # {"questions": [1]}
        {"status": "waiting", "questions": "/w=="},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_a_call_that_cannot_be_one_of_midcall_is_refused(changed: dict[str, Any]) -> None:
    async def run() -> None:
        taking = operations()
        with pytest.raises(BadExport):
            await taking.restore(line(**changed))
        assert (await taking.list())["calls"] == []

    drive(run())


def test_an_outcome_of_a_segment_that_has_not_run_is_refused() -> None:
    async def run() -> None:
        taking = operations()
        for number in ("-1", "0", "3"):
            with pytest.raises(BadExport):
                await taking.restore({**line(), "outcomes": {number: "e30="}})

    drive(run())


def test_a_call_of_mcp_is_one_of_the_caller_and_the_method_that_it_says() -> None:
    async def run() -> None:
        taking = operations()
        for target, principal in (("vault.open", "eve"), ("vault.close", "ada")):
            context = {"ticket": ["tools/call", target, "digest", principal], "kinds": []}
            encoded = msgspec.to_builtins(b"mcp " + json.dumps(context).encode())
            with pytest.raises(BadExport):
                await taking.restore(line(context=encoded))

    drive(run())


@pytest.mark.parametrize("asked", ["tools/call", "prompts/get", "resources/read", "anything"])
def test_a_call_of_mcp_whose_method_is_not_here_is_refused(asked: str) -> None:
    async def run() -> None:
        context = {"ticket": [asked, "nothing.there", "digest", "ada"], "kinds": [], "uri": "x://y"}
        encoded = msgspec.to_builtins(b"mcp " + json.dumps(context).encode())
        with pytest.raises(BadExport):
            await operations().restore(line(name="nothing.there", context=encoded))

    drive(run())


@given(
    changed=st.dictionaries(
        st.sampled_from(CallRecord.__struct_fields__),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("bWNwIHt9"),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_is_imported_calls_can_still_be_listed_and_shown(changed: dict[str, Any]) -> None:
    async def run() -> None:
        taking = operations()
        try:
            await taking.restore(line(**changed))
        except BadExport:
            return
        for call in (await taking.list())["calls"]:
            await taking.show(call["id"], values=True)
            await taking.abort(call["id"])

    drive(run())


def test_a_call_of_a_kind_that_is_not_known_here_can_be_looked_at_and_ended() -> None:
    async def run() -> None:
        taking = operations()
        await taking.list()
        record = CallRecord(
            id="newer", name="vault.open", arguments=b"{}", context=b"telepathy {}", created=1.0, expires=9e9
        )
        assert await taking.journal.create(record) is None
        assert (await taking.show("newer"))["method"] == "vault.open"
        with pytest.raises(MidcallError, match="Nobody here"):
            await taking.answer("newer", {"which": "first"})
        assert (await taking.abort("newer"))["status"] == "aborted"

    drive(run())


def test_scopes_are_checked_against_who_imports() -> None:
    async def run() -> None:
        taking = operations()
        with pytest.raises(NotAllowed):
            await taking.restore(line(), Principal("eve"))
        assert await taking.restore(line(), Principal("eve", frozenset({"vault:open"})))

    drive(run())


def test_keys_are_no_call() -> None:
    async def run() -> None:
        taking = operations()
        await taking.list()
        before = await shared_keys(taking.journal.secret)
        with pytest.raises(BadExport):
            await taking.restore({"keys": dict.fromkeys(before, "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=")})
        assert await shared_keys(taking.journal.secret) == before

    drive(run())


GOOD = "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="


@pytest.mark.parametrize(
    "keys", [{"seal-1": "c2hvcnQ="}, {"other": GOOD}, {"seal-1": 3}, {"seal-\n": GOOD}, ["seal-1"]], ids=str
)
def test_the_keys_of_a_file_are_those_that_midcall_makes(keys: Any) -> None:
    async def run() -> None:
        taking = operations()
        await taking.list()
        with pytest.raises(BadExport, match="These are not keys"):
            await taking.restore_keys({"keys": keys})

    drive(run())


def test_a_file_with_other_keys_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text(json.dumps({"keys": {"seal-1": "c2hvcnQ="}}))
    done = midcall("calls", "import", str(file), "--journal", str(tmp_path / "j.db"))
    assert (done.returncode, "These are not keys" in done.stderr) == (1, True), done.stderr

"""`midcall calls`: real processes, on journals and through servers, in a script and in a terminal."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from chatting import response
from driving import drive
from midcall import connect_hub
from midcall.items import Done, Error, Item, Request, RequestCancelled
from operating import ADA, ADMIN, KEYS, Server, accept, midcall, own_database, text_of
from terminals import CTRL_C, DOWN, ENTER, terminal

KINDS = {"prompt", "confirm"}

SUCCESS, FAILED, USAGE, CANCELLED, NOT_ANSWERED = range(5)

pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, "--admin", "--log-level", "warning") as serving:
        yield serving


class Calls:
    """`midcall calls` about the calls of a server: through it, or on its journal."""

    def __init__(self, server: Server, *where: str) -> None:
        self.server = server
        self.where = where

    def __call__(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return midcall("calls", *argv, *self.where, env=self.server.environment, stdin=stdin)

    def json(self, *argv: str) -> list[Any]:
        done = self(*argv)
        assert done.returncode == SUCCESS, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def only(self) -> str:
        (call,) = self.json("list", "--json")
        return str(call["id"])


def remotely(server: Server) -> Calls:
    return Calls(server, "--url", server.url)


def on_journal(server: Server) -> Calls:
    return Calls(server, "--journal", str(server.journal))


def with_code(server: Server) -> Calls:
    return Calls(server, "--journal", str(server.journal), "--target", "operate_app:hub")


# --- looking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [remotely, on_journal])
def test_calls_are_listed_and_shown(server: Server, way: Any) -> None:
    asked = server.call("shop.order", item="tea")
    server.call("shop.order", state=asked, answers={"address": accept(text="a secret place")}, item="tea")
    server.call("shop.survey")
    calls = way(server)
    table = calls("list")
    head, survey, order = (line.split("  ") for line in table.stdout.splitlines())
    assert [cell.strip() for cell in head if cell.strip()] == [
        "age", "id", "method", "status", "principal", "asks", "expires in",
    ]  # fmt: skip
    assert [cell.strip() for cell in order if cell.strip()][2:] == [
        "shop.order", "waiting", "-", "Charge for tea?", "6d 23h",
    ]  # fmt: skip
    assert "Which one?; Which ones?; Where to?" in " ".join(survey)
    first, second = calls.json("list", "--json")
    assert (first["method"], second["method"]) == ("shop.survey", "shop.order")
    assert calls.json("list", "--json", "--name", "shop.order") == [second]
    assert calls.json("list", "--json", "--status", "failed", "--status", "completed") == []
    assert calls("list", "--status", "failed").stderr == "There are no such calls.\n"
    assert calls("list", "--principal", "ada").stdout == ""
    limited = calls("list", "--limit", "1", "--json")
    assert (len(limited.stdout.splitlines()), limited.stderr) == (1, "There are more: --limit 2\n")

    shown = calls("show", second["id"]).stdout
    for words in (
        'arguments   {"item": "tea"}',
        "question-4   confirm   Charge for tea?",
        "answered",
        "open",
    ):
        assert words in shown
    assert "secret" not in shown
    assert '{"Text": "a secret place"}' in calls("show", second["id"], "--values").stdout
    (as_json,) = calls.json("show", second["id"], "--json")
    assert as_json["entries"][1]["state"] == "answered"
    missing = calls("show", "nothing")
    assert (missing.returncode, missing.stdout, missing.stderr) == (
        USAGE, "", "midcall: Unknown call: nothing\n",
    )  # fmt: skip


def test_the_journal_is_found_as_the_server_finds_it(tmp_path: Path) -> None:
    environment = {**os.environ, "MIDCALL_STATE": str(tmp_path)}
    empty = midcall("calls", "list", "--target", "operate_app:hub", env=environment)
    assert (empty.returncode, empty.stdout) == (USAGE, "")
    assert "There is no journal at " in empty.stderr
    assert not (tmp_path / "midcall").exists(), "looking makes nothing"
    with Server(tmp_path, journal=False, MIDCALL_STATE=str(tmp_path)) as server:
        server.call("shop.order", item="tea")
        found = midcall("calls", "list", "--target", "operate_app:hub", env=environment, cwd=Path.cwd())
        assert "shop.order" in found.stdout, found.stderr
        elsewhere = midcall("calls", "list", "--target", "operate_app:hub", env=environment, cwd=tmp_path)
        assert elsewhere.returncode == USAGE
        assert "; there are\n  --journal " in elsewhere.stderr
        there = midcall(
            "calls",
            "list",
            "--target",
            "operate_app:hub",
            "--cwd",
            str(Path.cwd()),
            env=environment,
            cwd=tmp_path,
        )
        assert "shop.order" in there.stdout
        named = midcall("calls", "list", env={**environment, "MIDCALL_JOURNAL": str(tmp_path / "none.db")})
        assert "There is no journal at " + str(tmp_path / "none.db") in named.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("list", "--url", "http://127.0.0.1:1"), "http://127.0.0.1:1 does not answer"),
        (("list", "--url", "ftp://x"), "--url must be the address of a server"),
        (("list", "--url", "http://x", "--journal", "y"), "leave out the others"),
        (("list", "--journal", "memory"), "Only its server can see a journal in memory"),
        (("list", "--journal", "mysql://x"), "There is no journal at mysql://x"),
        (("list", "--limit", "0"), "argument --limit: invalid"),
        (("list", "--status", "asleep"), "argument --status: invalid choice"),
        (("answer", "x", "a=1"), "Where should the call resume? Pass --url"),
        (("answer", "x", "a=1", "--wait", "5", "--url", "http://x"), "a server has its own"),
        (("answer", "x", "a=1", "--engine", "dbos", "--target", "y"), "--engine is for `midcall serve`"),
        (("export", "--url", "http://x"), "Nothing to export: pass an ID, or --all"),
        (("import", "nowhere.jsonl", "--url", "http://x"), "Cannot read nowhere.jsonl: No such file"),
        (("list", "--cwd", "/nowhere"), "--cwd: "),
    ],
)
def test_wrong_usage_is_told_in_a_line(argv: tuple[str, ...], message: str) -> None:
    done = midcall("calls", *argv)
    assert done.returncode == (FAILED if "does not answer" in message else USAGE)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_has_examples_and_needs_no_journal() -> None:
    for argv in (("calls", "--help"), ("calls", "answer", "--help")):
        done = midcall(*argv)
        assert done.returncode == SUCCESS
        assert "midcall calls answer ID name=Ada 2=yes --url" in done.stdout
    assert midcall("calls").returncode == USAGE


def test_a_server_with_keys_wants_one_of_an_administrator(tmp_path: Path) -> None:
    with Server(tmp_path, MIDCALL_TOKENS=KEYS) as server:
        server.call("shop.order", ADA, item="tea")
        nobody = remotely(server)("list")
        assert nobody.returncode == FAILED
        assert "(give --token, one with the scope midcall:admin)" in nobody.stderr
        assert remotely(server)("list", "--token", ADA).returncode == FAILED
        assert "ada" in remotely(server)("list", "--token", ADMIN).stdout
        environment = {**server.environment, "MIDCALL_TOKEN": ADMIN}
        assert "ada" in midcall("calls", "list", "--url", server.url, env=environment).stdout
    with Server(tmp_path) as server:
        closed = remotely(server)("list")
        assert (closed.returncode, "has no pages for administrators" in closed.stderr) == (FAILED, True)


# --- answering ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [remotely, with_code])
def test_answers_are_given_by_key_number_words_or_kind(server: Server, way: Any) -> None:
    asked = server.call("shop.order", item="tea")
    calls = way(server)
    id = calls.only() if way is remotely else on_journal(server).only()
    first = calls("answer", id, "address=the harbour")
    assert (first.returncode, first.stdout) == (SUCCESS, "")
    assert first.stderr == (
        f"Answered. Call {id} is waiting.\nIt asks: Charge for tea?  (question-4, confirm)\n"
    )
    done = calls("answer", id, "charge=yes", "--json")
    assert json.loads(done.stdout)["status"] == "completed"
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]
    assert text_of(server.call("shop.order", state=asked, item="tea")) == "tea to the harbour, paid"
    over = calls("answer", id, "1=yes")
    assert (over.returncode, over.stderr) == (
        FAILED, f"midcall: Call {id} does not wait for an answer: it is completed\n",
    )  # fmt: skip


def test_several_answers_and_refusals(server: Server) -> None:
    calls = remotely(server)
    server.call("shop.survey")
    id = calls.only()
    for argv, message in (
        (("one=z",), 'Wrong answer: expected one of a, b for "Which one?"'),
        (("nothing=1",), "No open question is 'nothing', only: one (select: Which one?), some (sel"),
        (('where={"floor": 2}',), "a value that fits the schema"),
    ):
        refused = calls("answer", id, *argv)
        assert (refused.returncode, refused.stdout) == (NOT_ANSWERED, "")
        assert message in refused.stderr
    assert calls("answer", id, "no pair").returncode == USAGE
    assert calls("answer", id).returncode == USAGE, "there is no terminal"
    done = calls("answer", id, "1=The second", "some=a,b", 'form={"street": "Main"}')
    assert f"Call {id} is completed." in done.stderr, done.stderr
    server.call("shop.survey")
    id = calls.json("list", "--status", "waiting", "--json")[0]["id"]
    declined = calls("answer", id, "one=a", "--decline")
    assert (declined.returncode, f"Call {id} is failed." in declined.stderr) == (FAILED, True)


def test_a_call_goes_on_here_when_no_server_runs(server: Server) -> None:
    asked = server.call("shop.order", item="tea")
    other = server.call("shop.order", item="cake")
    server.kill()
    here, journal = with_code(server), on_journal(server)
    tea = [c["id"] for c in journal.json("list", "--json")][-1]
    assert here("answer", tea, "address=the harbour").returncode == SUCCESS
    assert here("answer", tea, "question-4=no").returncode == SUCCESS
    assert server.effects() == ["reserve tea", "reserve cake", "pack tea", "send tea"]
    server.start()
    assert text_of(server.call("shop.order", state=asked, item="tea")) == "tea to the harbour, for free"
    cake = server.call("shop.order", state=other, answers={"address": accept(text="the hill")}, item="cake")
    assert cake["resultType"] == "input_required"


def test_the_next_question_waits_as_long_as_the_last_one(tmp_path: Path) -> None:
    with Server(tmp_path, "--wait", "3600") as server:
        server.call("shop.order", item="tea")
        server.call("shop.order", item="cake")
    cake, tea = [call["id"] for call in on_journal(server).json("list", "--json")]
    here = with_code(server)
    for call, more, hours in ((tea, (), 1), (cake, ("--wait", "7200"), 2)):
        (after,) = here.json("answer", call, "address=the hill", "--json", *more)
        expires, updated = (datetime.fromisoformat(after[key]) for key in ("expires", "updated"))
        assert round((expires - updated).total_seconds() / 60) == 60 * hours


def test_an_answer_here_is_told_to_whoever_is_on_the_line_at_a_server(server: Server) -> None:
    here, journal = with_code(server), on_journal(server)
    items: list[Item] = []

    async def run() -> None:
        async with connect_hub(f"ws://127.0.0.1:{server.port}/ws") as remote:
            async for item in remote.call("shop.order", {"item": "tea"}, supports=KINDS, durable=True):
                items.append(item)
                match item:
                    case Request(key="address"):
                        id = await asyncio.to_thread(journal.only)
                        answered = await asyncio.to_thread(here, "answer", id, "address=the hill")
                        assert answered.returncode == SUCCESS, answered.stderr
                    case Request():
                        aborted = await asyncio.to_thread(journal, "abort", id, "--reason", "Out of tea")
                        assert aborted.returncode == SUCCESS, aborted.stderr

    drive(run(), 120)
    kinds = [type(item) for item in items]
    assert kinds == [Request, RequestCancelled, Request, Error, Done], "the last one ends with its call"
    assert [item.message for item in items if isinstance(item, Error)] == ["Out of tea"]


def test_an_answer_here_and_the_parked_call_in_the_server_do_not_meet(server: Server) -> None:
    asked = server.call("shop.order", item="tea")
    assert with_code(server)("answer", on_journal(server).only(), "1=the harbour").returncode == SUCCESS
    late = server.call("shop.order", state=asked, answers={"address": accept(text="elsewhere")}, item="tea")
    done = server.call("shop.order", state=late, answers={"question-4": accept(confirmed=True)}, item="tea")
    assert text_of(done) == "tea to the harbour, paid"
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]


def test_a_person_is_asked_in_the_terminal(server: Server) -> None:
    server.call("shop.order", item="tea")
    server.call("shop.survey")
    order, survey = [call["id"] for call in reversed(remotely(server).json("list", "--json"))]
    python = (sys.executable, "-m", "midcall", "calls", "answer")
    with terminal(*python, order, "--url", server.url) as session:
        session.sees("Deliver to?")
        session.types(f"the harbour{ENTER}")
        session.sees("Charge for tea?")
        session.types("y")
        session.sees(f"Answered. Call {order} is completed.")
        assert session.ends() == SUCCESS
    with terminal(*python, survey, "--url", server.url) as session:
        session.sees("Which one?")
        session.types(CTRL_C)
        session.sees("Nothing was answered.")
        assert session.ends() == CANCELLED
    with terminal(*python, survey, "--url", server.url) as session:
        session.sees("Which one?", "The second")
        session.types(f"{DOWN}{ENTER}")
        session.sees("Which ones?", "The second")
        session.types(f" {ENTER}")
        session.sees("Where to?", "street")
        session.types(f"Main{ENTER}")
        session.sees("floor")
        session.types(ENTER)
        session.sees(f"Call {survey} is completed.")
        assert session.ends() == SUCCESS
    (call,) = remotely(server).json("show", survey, "--values", "--json")
    assert text_of(call["outcome"]["result"]) == "b ['a'] Main 0"


# --- ending and moving ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", [remotely, on_journal])
def test_a_call_is_aborted(server: Server, way: Any) -> None:
    asked = server.call("shop.order", item="tea")
    calls = way(server)
    id = calls.only()
    aborted = calls("abort", id, "--reason", "Out of tea")
    assert (aborted.returncode, aborted.stderr) == (SUCCESS, f"Call {id} is aborted.\n")
    with pytest.raises(AssertionError, match="Out of tea"):
        server.call("shop.order", state=asked, item="tea")
    again = calls("abort", id)
    assert (again.returncode, again.stderr) == (
        FAILED, f"midcall: Call {id} has ended already: aborted\n",
    )  # fmt: skip
    assert calls("abort", "nothing").returncode == USAGE


@pytest.mark.parametrize("way", [remotely, with_code])
def test_a_call_is_forked_and_answered_otherwise(server: Server, way: Any) -> None:
    asked = server.call("shop.order", item="tea")
    to = {"address": accept(text="the harbour")}
    server.call("shop.order", state=asked, answers=to, item="tea")
    calls = way(server)
    id = calls.only()
    (forked,) = calls.json("fork", id, "--at", "1", "--answer", "address=the hill", "--json")
    assert forked["id"] != id
    assert [one["message"] for one in forked["questions"]] == ["Charge for tea?"]
    told = calls("fork", forked["id"])
    assert told.returncode == SUCCESS
    first, second = told.stderr.splitlines()
    assert first.startswith("Forked as ")
    assert first.endswith(", which is waiting.")
    assert second.startswith("It asks: Charge for tea?  (")
    assert calls("answer", forked["id"], "confirm=no").returncode == SUCCESS
    (shown,) = calls.json("show", forked["id"], "--values", "--json")
    assert shown["outcome"]["contents"] == ["tea to the hill, for free"]
    assert server.effects() == ["reserve tea", "pack tea", "pack tea", "send tea"]


@pytest.mark.parametrize("way", [remotely, with_code])
def test_a_fork_that_cannot_be_answered_so_does_not_stay(server: Server, way: Any) -> None:
    server.call("shop.survey")
    calls = way(server)
    id = calls.only()
    for given, code, words in (
        (
            "nonsense=1",
            NOT_ANSWERED,
            "No open question is 'nonsense', only: one (select: Which one?), some (sel",
        ),
        ("one=c", NOT_ANSWERED, "Which one?"),
        ("one", USAGE, "An answer is KEY=VALUE"),
    ):
        refused = calls("fork", id, "--answer", given)
        assert refused.returncode == code
        assert words in refused.stderr
    assert [one["status"] for one in calls.json("list", "--json")] == ["aborted"] * 3 + ["waiting"]
    assert calls("fork", id, "--at", "7").returncode == FAILED
    assert calls("fork", id, "--at", "-1").returncode == USAGE
    assert calls("fork", "nothing").returncode == USAGE
    nobody = on_journal(server)("fork", id)
    assert (nobody.returncode, nobody.stderr[:38]) == (USAGE, "midcall: Where should the call resume?")


def test_calls_are_moved_to_another_journal(server: Server, tmp_path: Path) -> None:
    for item in ("tea", "cake", "jam"):
        asked = server.call("shop.order", item=item)
    server.stop()
    calls, other = on_journal(server), tmp_path / "other.db"
    exported = calls("export", "--all")
    assert exported.stderr.startswith("3 calls exported, ")
    file = tmp_path / "calls.jsonl"
    file.write_text(exported.stdout)
    moved = Calls(server, "--journal", str(other))
    assert moved("import", str(file)).stderr == "3 calls imported.\n"
    assert moved("import", "-", stdin=exported.stdout).stderr == "0 calls imported, 3 known already.\n"
    assert moved.json("list", "--json") == calls.json("list", "--json")
    one = calls("export", moved.json("list", "--json")[0]["id"])
    assert one.stdout in exported.stdout
    broken = moved("import", "-", stdin=one.stdout + "\n{}\n")
    assert broken.returncode == FAILED
    assert "Line 3: This is not an exported call" in broken.stderr

    server._options = ("--journal", str(other))
    server.start()
    answers = {"address": accept(text="the hill")}
    assert "inputRequests" in server.call("shop.order", state=asked, answers=answers, item="jam"), (
        "the keys of sealed states move too"
    )
    late = midcall("calls", "import", str(file), "--journal", str(tmp_path / "third.db"))
    assert late.stderr == "3 calls imported.\n"


@pytest.fixture
def database() -> Iterator[str]:
    with own_database() as url:
        yield url


def test_from_sqlite_to_postgresql_while_people_think(server: Server, tmp_path: Path, database: str) -> None:
    """A caller that was asked by the server with a file comes back to the one with PostgreSQL."""
    asked = server.call("shop.order", item="tea")
    server.stop()
    file = tmp_path / "calls.jsonl"
    file.write_text(on_journal(server)("export", "--all").stdout)
    server._options = ("--admin", "--metrics", "--journal", database)
    moved = Calls(server, "--journal", database)
    assert moved("import", str(file)).stderr == "1 call imported.\n"
    server.start()
    late = server.call("shop.order", state=asked, answers={"address": accept(text="the hill")}, item="tea")
    (call,) = moved.json("list", "--json")
    assert call["questions"][0]["message"] == "Charge for tea?"
    done = remotely(server)("answer", call["id"], "1=yes")
    assert done.returncode == SUCCESS, done.stderr
    assert text_of(server.call("shop.order", state=late, item="tea")) == "tea to the hill, paid"
    assert server.effects() == ["reserve tea", "pack tea", "send tea"]
    other = server.call("shop.order", item="cake")
    here = Calls(server, "--journal", database, "--target", "operate_app:hub")
    id = moved.json("list", "--json", "--status", "waiting")[0]["id"]
    assert here("answer", id, "1=the lake").returncode == SUCCESS
    assert "inputRequests" in server.call("shop.order", state=other, item="cake")
    assert moved("abort", id).returncode == SUCCESS
    assert server.get("/ready").status == 200
    assert "midcall_journal_seconds_count" in server.get("/metrics").text


def test_keys_do_not_move_into_a_journal_that_has_its_own(server: Server, tmp_path: Path) -> None:
    server.call("shop.order", item="tea")
    exported = on_journal(server)("export", "--all").stdout
    (tmp_path / "other").mkdir()
    with Server(tmp_path / "other", "--admin") as other:
        for calls in (on_journal(other), remotely(other)):
            done = calls("import", "-", stdin=exported)
            assert done.returncode == SUCCESS
            assert "This journal has keys of its own" in done.stderr
        assert '"keys"' not in remotely(other)("export", "--all").stdout


def test_a_journal_that_was_plain_becomes_an_encrypted_one(server: Server, tmp_path: Path) -> None:
    asked = server.call("shop.order", item="a-secret-thing")
    server.stop()
    refused = midcall(
        "serve",
        "operate_app:hub",
        "--journal",
        str(server.journal),
        "--encrypt-journal",
        env=server.environment,
    )
    assert (refused.returncode, "not encrypted" in refused.stderr) == (FAILED, True)
    exported = on_journal(server)("export", "--all").stdout
    sealed = tmp_path / "sealed.db"
    moved = Calls(server, "--journal", str(sealed), "--encrypt-journal")
    assert moved("import", "-", stdin=exported).returncode == SUCCESS
    assert on_journal(server)("export", "--all", "--encrypt-journal").returncode == FAILED
    assert b"a-secret-thing" not in sealed.read_bytes()
    server._options = ("--journal", str(sealed), "--encrypt-journal")
    server.start()
    answers = {"address": accept(text="the hill")}
    told = server.call("shop.order", state=asked, answers=answers, item="a-secret-thing")
    assert "inputRequests" in told


def test_an_encrypted_journal_is_read_with_its_keys_and_never_written_without(tmp_path: Path) -> None:
    with Server(tmp_path, "--encrypt-journal") as server:
        server.call("shop.order", item="a-secret-thing")
        assert b"a-secret-thing" not in server.journal.read_bytes()
        calls = on_journal(server)
        id = calls.only()
        assert "a-secret-thing" in calls("show", id).stdout
        plain = with_code(server)("answer", id, "1=x")
        assert (plain.returncode, "encrypted" in plain.stderr) == (FAILED, True)
        assert with_code(server)("answer", id, "1=another-secret", "--encrypt-journal").returncode == SUCCESS
        exported = calls("export", id).stdout
        moved = Calls(server, "--journal", str(tmp_path / "moved.db"), "--encrypt-journal")
        assert moved("import", "-", stdin=exported).returncode == SUCCESS
        for file in (tmp_path / "moved.db", server.journal):
            for part in file.parent.glob(f"{file.name}*"):
                assert part.is_dir() or b"-secret" not in part.read_bytes()


def test_conversations_move_along_into_an_encrypted_journal(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with Server(tmp_path, target="old_journal_app:hub") as server:
        server.post("/chat", {"message": "send it to Bergen"})
        server.post("/chat", {"message": "Hello"})
        before = server.get("/chat/conversations").json
        server.stop()
        done = on_journal(server)("export", "--all")
        assert "1 call and 2 conversations exported" in done.stderr
        assert "conversation" not in on_journal(server)("export", "--all", "--status", "waiting").stdout
        sealed = tmp_path / "sealed.db"
        moved = Calls(server, "--journal", str(sealed), "--encrypt-journal")
        assert "1 call and 2 conversations imported." in moved("import", "-", stdin=done.stdout).stderr
        assert "0 calls imported, 3 known already." in moved("import", "-", stdin=done.stdout).stderr
        assert b"Bergen" not in sealed.read_bytes()
        server._options = ("--journal", str(sealed), "--encrypt-journal", "--admin")
        server.start()
        assert server.get("/chat/conversations").json == before
        (asked,) = (one["id"] for one in before["conversations"] if one["waiting"])
        (question,) = server.get(f"/chat/conversations/{asked}").json["pending"]
        answer = {
            "conversationId": asked,
            "pluginElicitResponses": [response(question, "accept", {"confirmed": True})],
        }
        assert "From whom?" in server.post("/chat", answer).text
        remote = remotely(server)
        assert '"conversation"' not in remote("export", "--all").stdout
        told = remote("import", "-", stdin=done.stdout).stderr
        assert "A server takes no conversations or trees over HTTP: import them with --journal." in told
    spoilt = done.stdout.replace('"version":', '"versions":')
    refused = Calls(server, "--journal", str(tmp_path / "spoilt.db"))("import", "-", stdin=spoilt)
    assert (refused.returncode, "not an exported conversation" in refused.stderr) == (FAILED, True)

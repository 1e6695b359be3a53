"""People are told of questions that wait for them: by webhook and e-mail, once, whatever happens meanwhile.

Real servers with their keys, a receiver of webhooks and a mail server on loopback. Ada calls, Bob has the scope
`ops`, Eve has others.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from midcall import connect
from midcall.journal.notices import AT_ONCE
from operating import Server, own_database, text_of, until
from people_app import CALLER, KEYS, OPS, OTHER
from receivers import SECRET, EndlessServer, MailBox, Receiver, mail_server

WAITS_FOR = "dev.midcall/waitsFor"
REFUSED = 404


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def serving(folder: Path, receiver: Receiver | None, *options: str, **more: Any) -> Server:
    webhook = () if receiver is None else ("--notify-webhook", receiver.url)
    settings = {"target": "people_app:hub", "MIDCALL_TOKENS": KEYS, "MIDCALL_WEBHOOK_SECRET": SECRET}
    return Server(folder, *webhook, *options, **settings | more)


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """One server with a file, or two workers with a database."""
    if request.param == "sqlite":
        yield {"options": (), "journal": True}
        return
    with own_database() as database:
        yield {"options": ("--workers", "2", "--journal", database), "journal": False}


def settled(server: Server, receiver: Receiver, told: int) -> None:
    """Nothing more comes: the next question is told, and what is before it was told once."""
    server.call("people.deploy", CALLER)
    until(lambda: len(receiver.told) > told)
    assert len(receiver.told) == told + 1


def test_a_question_over_mcp_is_told_and_answered_by_its_link(
    tmp_path: Path, receiver: Receiver, stores: dict[str, Any]
) -> None:
    with serving(tmp_path, receiver, *stores["options"], journal=stores["journal"]) as server:
        asked = server.call("people.deploy", CALLER)
        until(lambda: receiver.told)
        (told,) = receiver.told
        assert told.is_signed()
        assert abs(int(told.headers["webhook-timestamp"]) - time.time()) < 100
        event = told.json
        link = event["data"].pop("link")
        since = event.pop("timestamp")
        assert event == {
            "type": "question.waiting",
            "data": {
                "id": told.id,
                "method": "people.deploy",
                "kind": "confirm",
                "caller": "ada",
                "to": "scope:ops",
                "since": since,
                "until": event["data"]["until"],
                "message": "Deploy 1.2?",
            },
        }
        path = link.removeprefix(server.url)
        guessed = path[:-4] + ("AAAA" if not path.endswith("AAAA") else "BBBB")
        for token, where in ((OTHER, path), (CALLER, path), (OPS, guessed), (OPS, "/q/x")):
            assert server.get(where, token).status == REFUSED
            assert server.post(where, {"answer": True}, token).status == REFUSED
        assert server.post(path, {"answer": True}, OPS).json == {"answered": True}
        assert server.post(path, {"answer": True}, OPS).status == REFUSED
        assert text_of(server.call("people.deploy", CALLER, asked)) == "deployed: True"
        settled(server, receiver, 1)


def test_a_link_that_was_told_is_refused_after_its_time(tmp_path: Path, receiver: Receiver) -> None:
    with serving(tmp_path, receiver) as server:
        for limit in (3, 10, 60):  # on a machine that is too slow to tell it within three seconds
            server.call("people.deploy", CALLER, limit=limit)
            until(lambda: receiver.told or server.get("/calls", OPS).json["calls"] == [])
            if receiver.told:
                break
        path = receiver.told[0].data["link"].removeprefix(server.url)
        assert receiver.told[0].data["until"] is not None
        until(lambda: server.get(path, OPS).status == REFUSED)
        assert server.post(path, {"answer": True}, OPS).status == REFUSED


def test_an_outage_of_the_receiver_and_a_kill_of_the_server_lose_nothing(
    tmp_path: Path, receiver: Receiver, stores: dict[str, Any]
) -> None:
    receiver.close()
    with serving(tmp_path, receiver, *stores["options"], journal=stores["journal"]) as server:
        asked = server.call("people.deploy", CALLER)
        receiver.status = 503
        receiver.open()
        until(lambda: len(receiver.told) >= 2)
        server.kill_workers() if stores["options"] else server.kill()
        if not stores["options"]:
            server.start()
        until(lambda: server.get("/health").status == 200)
        failed = len(receiver.told)
        until(lambda: len(receiver.told) > failed)
        receiver.status = 200
        seen = len(receiver.told)
        until(lambda: len(receiver.told) > seen)
        told = len(receiver.told)
        assert len({one.id for one in receiver.told}) == 1
        assert all(one.is_signed() for one in receiver.told)
        settled(server, receiver, told)
        path = receiver.told[0].data["link"].removeprefix(server.url)
        assert server.post(path, {"answer": False}, OPS).status == 200
        assert text_of(server.call("people.deploy", CALLER, asked)) == "deployed: False"


def test_a_server_that_dies_before_it_has_the_answer_of_the_receiver_tells_again_by_the_same_id(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.may_answer.clear()
    with serving(tmp_path, receiver) as server:
        server.call("people.deploy", CALLER)
        until(lambda: receiver.told)
        server.kill()
        receiver.may_answer.set()
        server.start()
        until(lambda: len(receiver.told) == 2)
        assert receiver.told[0].id == receiver.told[1].id
        settled(server, receiver, 2)


def test_what_is_answered_before_it_could_be_told_is_not_told(tmp_path: Path, receiver: Receiver) -> None:
    receiver.close()
    with serving(tmp_path, receiver, "--log-level", "info") as server:
        asked = server.call("people.deploy", CALLER)
        link = asked["_meta"][WAITS_FOR][0]["link"].removeprefix(server.url)
        server.call("people.deploy", CALLER, limit=0.5)
        assert server.post(link, {"answer": True}, OPS).status == 200
        until(lambda: len(server.get("/calls", OPS).json["calls"]) == 0)
        receiver.open()
        server.call("people.deploy", CALLER)
        until(lambda: receiver.told)
        server.call("people.deploy", CALLER)
        until(lambda: len(receiver.told) >= 2)
        assert len(receiver.told) == 2
        log = server.stop()
        assert "cannot tell of questions by webhook (127.0.0.1), and tries again: it cannot be reached" in log
        assert "can tell of questions by webhook (127.0.0.1) again" in log
        assert "very-secret-path" not in log
        assert re.search(r"/q/[^.]", log) is None


def test_the_receiver_says_when_to_try_again_and_when_never(tmp_path: Path, receiver: Receiver) -> None:
    receiver.status, receiver.headers = 429, {"Retry-After": "3600"}
    with serving(tmp_path, receiver) as server:
        server.call("people.deploy", CALLER)
        until(lambda: receiver.told)
        first = receiver.told[0].id
        receiver.status, receiver.headers = 410, {}
        server.call("people.deploy", CALLER)
        until(lambda: len(receiver.told) == 2)
        gone = receiver.told[1].id
        receiver.status = 200
        settled(server, receiver, 2)
        settled(server, receiver, 3)
        assert [one.id in (first, gone) for one in receiver.told] == [True, True, False, False]
        assert "gave up telling of a question by webhook (127.0.0.1): HTTP 410" in server.stop()


def test_the_caller_is_told_of_what_waits_for_long(tmp_path: Path, receiver: Receiver) -> None:
    with serving(tmp_path, receiver, "--notify-after", "1", "--notify-show", "link") as server:
        asked = server.call("people.own", CALLER)
        until(lambda: receiver.told)
        told = receiver.told[0].data
        assert (told["caller"], told["to"], told["method"]) == ("ada", "ada", "people.own")
        assert "message" not in told
        path = told["link"].removeprefix(server.url)
        assert server.post(path, {"answer": "Bob"}, OPS).status == REFUSED
        assert server.post(path, {"answer": "Ada"}, CALLER).status == 200
        assert text_of(server.call("people.own", CALLER, asked)) == "Hello Ada"


def test_without_an_option_the_caller_is_not_told_what_it_is_asked(
    tmp_path: Path, receiver: Receiver
) -> None:
    with serving(tmp_path, receiver, "--notify-show", "arguments") as server:
        server.call("people.own", CALLER)
        server.call("people.deploy", CALLER, to="bob")
        until(lambda: receiver.told)
        assert receiver.told[0].data["arguments"] == '{"to": "bob"}'
        settled(server, receiver, 1)


def test_a_caller_on_the_line_has_others_told_too(tmp_path: Path, receiver: Receiver) -> None:
    async def main(server: Server) -> str:
        async with connect(f"{server.url}/mcp", auth=CALLER, era="legacy") as client:
            call = asyncio.ensure_future(_collect(client.call("people.deploy")))
            await asyncio.to_thread(until, lambda: receiver.told)
            path = receiver.told[0].data["link"].removeprefix(server.url)
            assert receiver.told[0].data["method"] == "people.deploy"
            assert (await asyncio.to_thread(server.post, path, {"answer": True}, OPS)).status == 200
            return str((await call).text)

    with serving(tmp_path, receiver) as server:
        assert drive(main(server)) == "deployed: True"
        assert len(receiver.told) == 1


async def _collect(call: Any) -> Any:
    return await call


def test_slack_and_teams_are_told_in_their_words(tmp_path: Path, receiver: Receiver) -> None:
    both = ("--notify-webhook", f"slack:{receiver.url}", "--notify-webhook", f"teams:{receiver.url}")
    with serving(tmp_path, None, *both, MIDCALL_WEBHOOK_SECRET="") as server:
        server.call("people.deploy", CALLER)
        until(lambda: len(receiver.told) == 2)
        slack, teams = sorted((one.json for one in receiver.told), key=lambda one: "attachments" in one)
        assert slack["text"] == "people.deploy asks somebody with the scope ops: Deploy 1.2?"
        link = re.fullmatch(r"<(.*)\|Answer>", slack["blocks"][-1]["text"]["text"])
        assert link is not None
        (card,) = teams["attachments"]
        assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
        shown = [block["inlines"][0]["text"] for block in card["content"]["body"]]
        assert shown[0] == slack["text"]
        assert "Called by: ada" in shown
        path = card["content"]["actions"][0]["url"].removeprefix(server.url)
        assert server.get(path, OPS).status == server.get(link[1].removeprefix(server.url), OPS).status == 200
        assert not any("webhook-signature" in one.headers for one in receiver.told)


# --- e-mail --------------------------------------------------------------------------------------


def mail_file(folder: Path, port: int, *more: str) -> str:
    path = folder / "mail.toml"
    lines = (
        "[smtp]", 'host = "127.0.0.1"', f"port = {port}", 'from = "midcall <midcall@example.com>"', *more,
        "[to]", '"scope:ops" = ["bob@example.com", "ops@example.com"]', '"ada" = "ada@example.com"',
    )  # fmt: skip
    path.write_text("\n".join(lines))
    return str(path)


def addresses(box: MailBox) -> list[str]:
    return sorted(address for mail in box.mails for address in mail.recipients)


def test_each_of_those_who_are_asked_gets_an_email_once(tmp_path: Path, stores: dict[str, Any]) -> None:
    with mail_server() as (box, port):
        file = mail_file(tmp_path, port, 'security = "none"')
        options = ("--notify-email", file, *stores["options"])
        with serving(tmp_path, None, *options, journal=stores["journal"]) as server:
            box.refused["ops@example.com"] = "450 later"
            server.call("people.deploy", CALLER)
            until(lambda: box.tried.count("ops@example.com") >= 2)
            assert addresses(box) == ["bob@example.com"]
            box.refused.clear()
            until(lambda: len(box.mails) == 2)
            assert addresses(box) == ["bob@example.com", "ops@example.com"]
            for mail in box.mails:
                assert (
                    mail.message["Subject"] == "people.deploy asks somebody with the scope ops: Deploy 1.2?"
                )
                assert mail.message["To"] == mail.recipients[0]
                assert mail.message["From"] == "midcall <midcall@example.com>"
                assert mail.message["Auto-Submitted"] == "auto-generated"
                link = re.search(r"http://\S+/q/\S+", mail.text)
                assert link is not None
                assert server.get(link[0].removeprefix(server.url), OPS).status == 200
            box.refused["bob@example.com"] = "550 no such user"
            server.call("people.deploy", CALLER)
            until(lambda: len(box.mails) == 3)
            server.call("people.deploy", CALLER)
            until(lambda: len(box.mails) == 4)
            assert "the recipient was refused (SMTP 550)" in server.stop()
            assert addresses(box) == ["bob@example.com", *["ops@example.com"] * 3]


def test_a_server_stops_in_the_midst_of_what_a_mail_server_says(tmp_path: Path) -> None:
    with EndlessServer(b"2", 0.02) as mail:
        options = ("--notify-email", mail_file(tmp_path, mail.port, 'security = "none"'))
        with serving(tmp_path, None, *options) as server:
            server.call("people.deploy", CALLER)
            until(mail.met.is_set)
            server.stop()
        until(mail.left.is_set)


def test_a_webhook_that_answers_for_ever_does_not_keep_others_from_being_told(
    tmp_path: Path, receiver: Receiver
) -> None:
    with EndlessServer(b"HTTP/1.1 200 OK\r\nX: ", 0.02) as endless:
        hook = ("--notify-webhook", f"http://127.0.0.1:{endless.port}/")
        with serving(tmp_path, receiver, *hook) as server:
            for told in range(1, 2 * AT_ONCE + 1):
                server.call("people.deploy", CALLER)
                until(lambda: len(receiver.told) == told)  # noqa: B023
            assert endless.met.is_set()

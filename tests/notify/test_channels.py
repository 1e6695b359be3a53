"""How people are told: what is refused in the configuration, and what hostile texts and receivers do."""

import asyncio
import base64
import socket
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT, drive
from http_peers import make_certificate
from midcall import Hub
from midcall.http.message import Headers, retry_after
from midcall.journal.notices import MAX_MESSAGE, NotTold, QuestionNotice, plain
from midcall.notify import Email, Notify, Webhook
from midcall.notify.wording import as_json, as_slack, as_teams, as_text
from peers import free_port
from receivers import SECRET, EndlessServer, Receiver, mail_server

HOSTILE = "Pay?\r\nBcc: eve@example.com\r\n\r\n<!channel> <https://evil.example|here> [x](https://evil.example) \x1b[31m\u202e"
MAIL = {"sender": "midcall <midcall@example.com>", "to": {"*": "all@example.com"}}


def notice(**more: Any) -> QuestionNotice:
    about = {"id": "msg_1", "method": "pay", "kind": "confirm", "caller": "ada", "to": "bob", "since": 0.0}
    told = {**about, "until": None, "link": "https://tools.example.com/q/abc", **more}
    return QuestionNotice(
        **{key: plain(v, MAX_MESSAGE) if isinstance(v, str) else v for key, v in told.items()}
    )


# --- texts of others -------------------------------------------------------------------------------


def test_what_others_have_written_is_one_short_line_without_what_acts_or_hides() -> None:
    assert plain(HOSTILE, 500) == (
        "Pay? Bcc: eve@example.com <!channel> <https://evil.example|here> [x](https://evil.example) [31m"
    )
    assert plain("x" * 1000, 10) == "xxxxxxx..."
    assert plain("👩\u200d👧 ok", 10) == "👩\u200d👧 ok"
    assert plain("\ud800", 10) == ""


def test_no_text_makes_a_link_or_a_mention_in_slack() -> None:
    told = as_slack(notice(message=HOSTILE, method="<!here>", caller="<@U1>"))
    assert "<" not in told["text"]
    for block in told["blocks"][:-1]:
        for text in block.get("elements", [block.get("text")]):
            assert (text["type"], text["emoji"]) == ("plain_text", False)
    assert told["blocks"][-1]["text"]["text"] == "<https://tools.example.com/q/abc|Answer>"
    assert told["unfurl_links"] is told["unfurl_media"] is False


def test_no_text_is_markdown_in_teams() -> None:
    card = as_teams(notice(message="long " * 50 + HOSTILE))["attachments"][0]["content"]
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert [action["url"] for action in card["actions"]] == ["https://tools.example.com/q/abc"]


def test_what_is_not_known_or_not_to_be_said_is_left_out() -> None:
    bare = notice(message=None, link=None, caller=None, to=None, until=60.0)
    assert "message" not in as_json(bare)["data"]
    assert "arguments" not in as_json(bare)["data"]
    assert "actions" not in as_teams(bare)["attachments"][0]["content"]
    assert [block["type"] for block in as_slack(bare)["blocks"]] == ["section", "context"]
    assert as_text(bare) == (
        "pay asks a question.\n\nMethod: pay\nCalled by: an unknown caller\nWaits for: an answer\n"
        "Since: 1970-01-01 00:00 UTC\nUntil: 1970-01-01 00:01 UTC\n"
    )
    full = notice(message="Pay?", arguments='{"n": 1}')
    assert as_json(full)["data"]["arguments"] == '{"n": 1}'
    assert 'Arguments: {"n": 1}\n\nAnswer here:\nhttps://tools.example.com/q/abc\n' in as_text(full)


# --- webhooks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "format"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/x?sig=y", "teams"),
        ("https://example.webhook.office.com/webhookb2/x", "teams"),
        ("https://x.environment.api.powerplatform.com/y", "teams"),
        ("https://hooks.slack.com.evil.example/x", "json"),
        ("https://tools.example.com/x", "json"),
    ],
)
def test_the_host_tells_the_format(url: str, format: str) -> None:
    assert Webhook(url, secret=SECRET).format == format


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("ftp://x", {}, "begins with https://"),
        ("https://x\r\ny", {}, "begins with https://"),
        ("http://tools.example.com/secret", {"secret": SECRET}, "at tools.example.com must be https://"),
        ("https://tools.example.com/", {}, "needs a secret"),
        ("https://tools.example.com/", {"secret": "abc"}, "whsec_ and 24 to 64 bytes"),
        ("https://tools.example.com/", {"secret": "whsec_AAAA"}, "whsec_ and 24 to 64 bytes"),
        ("https://tools.example.com/", {"secret": "whsec_!"}, "whsec_ and 24 to 64 bytes"),
        ("https://tools.example.com/", {"format": "xml"}, "one of json, slack, teams"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused_without_its_secrets(url: str, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        Webhook(url, **options)
    assert "/secret" not in str(refused.value)


def test_each_secret_signs() -> None:
    other = b"another key of thirty-two bytes."

    async def main(receiver: Receiver) -> None:
        webhook = Webhook(receiver.url, secret=[SECRET, f"whsec_{base64.b64encode(other).decode()}"])
        await webhook.tell(notice(message="Pay?"), "")
        await webhook.close()
        await webhook.tell(notice(message="Pay?"), "")  # it opens again
        await webhook.close()

    with Receiver() as receiver:
        drive(main(receiver))
        assert all(one.is_signed() and one.is_signed(other) for one in receiver.told)
        assert len(receiver.told) == 2


def test_a_redirect_is_not_followed_and_no_words_of_a_receiver_are_told() -> None:
    async def main(receiver: Receiver) -> None:
        webhook = Webhook(receiver.url, secret=SECRET)
        receiver.status, receiver.headers = 307, {"Location": receiver.url}
        with pytest.raises(NotTold, match=r"^HTTP 307$"):
            await webhook.tell(notice(), "")
        receiver.status, receiver.headers = 503, {"Retry-After": "7"}
        with pytest.raises(NotTold) as refused:
            await webhook.tell(notice(), "")
        assert (refused.value.pause, refused.value.final) == (7.0, False)
        receiver.status = 410
        with pytest.raises(NotTold) as refused:
            await webhook.tell(notice(), "")
        assert refused.value.final
        await webhook.close()
        nobody = Webhook(f"http://127.0.0.1:{free_port()}/secret", secret=SECRET)
        with pytest.raises(NotTold, match=r"^it cannot be reached$"):
            await nobody.tell(notice(), "")
        await nobody.close()

    with Receiver() as receiver:
        drive(main(receiver))
        assert len(receiver.told) == 3


@pytest.mark.parametrize(
    "header", [("Content-Encoding", "br"), ("Content-Length", "99"), ("Transfer-Encoding", "chunked")]
)
def test_an_answer_that_cannot_be_read_is_an_answer(header: tuple[str, str]) -> None:
    async def main(receiver: Receiver) -> None:
        webhook = Webhook(receiver.url, secret=SECRET)
        receiver.status, receiver.headers = 200, dict([header])
        await webhook.tell(notice(), "")
        receiver.status = 410
        with pytest.raises(NotTold, match=r"^HTTP 410$") as refused:
            await webhook.tell(notice(), "")
        assert refused.value.final
        await webhook.close()

    with Receiver() as receiver:
        drive(main(receiver))


def test_retry_after_is_read_in_both_forms_and_nothing_else() -> None:
    def read(text: str) -> float | None:
        return retry_after(Headers([(b"Retry-After", text.encode())]))

    assert (read("3"), read("0.5"), read("Thu, 01 Jan 1970 00:00:00 GMT")) == (3.0, 0.5, 0.0)
    ahead = read("Fri, 31 Dec 2999 23:59:59 GMT")
    assert ahead is not None
    assert ahead > 1e9
    assert [read(text) for text in ("", "-1", "nan", "inf", "1e9", "soon", "9" * 20)] == [None] * 7


# --- e-mail ----------------------------------------------------------------------------------------


def test_a_hostile_question_adds_no_header_and_no_recipient() -> None:
    hostile = QuestionNotice(
        id="msg_1", method=plain(HOSTILE, 500), kind="confirm", caller=plain(HOSTILE, 500), to="bob",
        since=0.0, until=None, link=None, message=plain(HOSTILE, 500),
    )  # fmt: skip

    async def main(port: int) -> None:
        await Email("127.0.0.1", port=port, security="none", **MAIL).tell(hostile, "all@example.com")  # type: ignore[arg-type]

    with mail_server() as (box, port):
        drive(main(port))
        (mail,) = box.mails
        assert mail.recipients == ["all@example.com"]
        assert mail.message["Bcc"] is None
        assert len(str(mail.message["Subject"])) <= 120
        assert set(mail.message.keys()) == {
            "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "Content-Type",
            "Content-Transfer-Encoding", "MIME-Version", *({"X-Peer"} & set(mail.message.keys())),
        }  # fmt: skip


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_goes_over_tls_with_a_login_and_only_to_a_server_that_is_trusted(
    tmp_path: Path, security: Any
) -> None:
    certificate = make_certificate(tmp_path / "cert.pem")
    login: dict[str, Any] = {"user": "midcall", "password": "the password"} if security == "starttls" else {}

    async def main(port: int) -> None:
        def mail(**more: Any) -> Email:
            options = {"tls": certificate.client(), **login, **more}
            return Email("localhost", port=port, security=security, **MAIL, **options)  # type: ignore[arg-type]

        await mail().tell(notice(message="Päy?"), "all@example.com")
        with pytest.raises(NotTold, match="no secure connection"):
            await mail(tls=None).tell(notice(), "all@example.com")
        if login:
            with pytest.raises(NotTold, match="the login was refused"):
                await mail(password="wrong").tell(notice(), "all@example.com")

    with mail_server(certificate.server(), security) as (box, port):
        drive(main(port))
        assert [mail.message["Subject"] for mail in box.mails] == ["pay asks bob: Päy?"]
        assert (b"midcall", b"the password") in box.logins or not login


def test_a_mail_server_that_is_away_or_refuses_is_told_in_words_without_addresses() -> None:
    async def main(port: int) -> None:
        mail = Email("127.0.0.1", port=port, security="none", **MAIL)  # type: ignore[arg-type]
        for code, final in ((450, False), (550, True)):
            box.refused["all@example.com"] = f"{code} no, all@example.com"
            with pytest.raises(NotTold, match=rf"^the recipient was refused \(SMTP {code}\)$") as refused:
                await mail.tell(notice(), "all@example.com")
            assert refused.value.final is final
        box.refused.clear()
        box.refuses_data = "554 spam"
        with pytest.raises(NotTold, match=r"^the message was refused \(SMTP 554\)$"):
            await mail.tell(notice(), "all@example.com")
        away = Email("127.0.0.1", port=free_port(), security="none", **MAIL)  # type: ignore[arg-type]
        with pytest.raises(NotTold, match="cannot be reached"):
            await away.tell(notice(), "all@example.com")
        plain_only = Email("localhost", port=port, **MAIL)  # type: ignore[arg-type]
        with pytest.raises(NotTold, match="it cannot be reached, or broke off"):
            await plain_only.tell(notice(), "all@example.com")  # it knows no STARTTLS

    with mail_server() as (box, port):
        drive(main(port))
        assert box.mails == []


@pytest.mark.parametrize("says", [b"220-go on\r\n", b"2" * 100])
def test_a_mail_server_that_talks_for_ever_is_left(says: bytes) -> None:
    async def main(port: int) -> None:
        mail = Email("127.0.0.1", port=port, security="none", **MAIL)  # type: ignore[arg-type]
        with pytest.raises(NotTold, match=r"broke off|SMTP 500"):
            await mail.tell(notice(), "all@example.com")

    with EndlessServer(says) as server:
        drive(main(server.port))
        assert server.left.wait(LIMIT)


@pytest.mark.parametrize("security", ["none", "starttls"])
def test_a_mail_server_that_says_a_bit_at_a_time_is_left_when_it_has_had_its_time(security: Any) -> None:
    async def main(server: EndlessServer) -> None:
        mail = Email("127.0.0.1", port=server.port, security=security, **MAIL)  # type: ignore[arg-type]
        telling = asyncio.create_task(mail.tell(notice(), "all@example.com"))
        await asyncio.to_thread(server.met.wait)
        telling.cancel()
        await asyncio.wait((telling,))
        assert await asyncio.to_thread(server.left.wait, LIMIT)

    with EndlessServer(b"2", 0.02) as server:
        drive(main(server))


def test_plain_methods_run_while_a_mail_server_says_nothing() -> None:
    async def main(port: int) -> None:
        mail = Email("127.0.0.1", port=port, security="none", **MAIL)  # type: ignore[arg-type]
        hub = Hub()

        @hub.method
        def plain_one() -> str:
            return "ran"

        telling = [asyncio.create_task(mail.tell(notice(), "all@example.com")) for _ in range(40)]
        await asyncio.sleep(0)  # they have begun
        assert await hub.call("plain_one") == "ran"
        assert not any(task.done() for task in telling)
        for task in telling:
            task.cancel()
        await asyncio.wait(telling)
        await mail.close()

    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        drive(main(silent.getsockname()[1]))


def test_who_is_asked_is_found_by_name_by_scope_or_among_all_others() -> None:
    to = {"bob": "bob@example.com", "scope:ops": ["a@example.com", "b@example.com", "a@example.com"]}
    some = Email("localhost", sender="m@example.com", to=to)
    assert [list(some.targets(who)) for who in ("bob", "scope:ops", "eve", None)] == [
        ["bob@example.com"], ["a@example.com", "b@example.com"], [], [],
    ]  # fmt: skip
    everybody = Email("localhost", sender="m@example.com", to={**to, "*": "Ops <x@example.com>"})
    assert [list(everybody.targets(who)) for who in ("eve", None, "bob")] == [
        ["x@example.com"], ["x@example.com"], ["bob@example.com"],
    ]  # fmt: skip


SMTP = '[smtp]\nhost = "smtp.example.com"\nfrom = "m@example.com"\n'
TO = '[to]\n"*" = "x@example.com"\n'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "Invalid"),
        ("\udcff", "utf-8"),
        (SMTP, "missing required field `to`"),
        (TO, "missing required field `smtp`"),
        (f"{SMTP}[to]\n", "needs recipients"),
        (f'{SMTP}password = "x"\n{TO}', "unknown field `password`"),
        (f'{SMTP}user = "x"\n{TO}', "password is to be in the environment"),
        (f'{SMTP}security = "none"\n{TO}', "by starttls or tls"),
        (f"{SMTP}port = 70000\n{TO}", "port"),
        (f'{SMTP}ca_file = "/nowhere"\n{TO}', "ca_file"),
        (f'{SMTP}[to]\n"*" = "x"\n', "'x' is not an e-mail address"),
        (f'{SMTP}[to]\n"*" = "x@y\\r\\nBcc: z@y"\n', "is not an e-mail address"),
        (f'{SMTP}[to]\n"*" = "x@y.com, z@y.com"\n', "is not an e-mail address .several are a list"),
        (f'{SMTP}[to]\n"*" = []\n', "needs from 1 to 100 addresses"),
        (SMTP.replace("smtp.example.com", "smtp example") + TO, "not the host"),
        ("#" * 2_000_000, "too large"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_name(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "mail.toml"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=why) as refused:
        Email.from_file(file)
    assert str(file) in str(refused.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "cert.pem")
    file = tmp_path / "mail.toml"
    file.write_text(f'{SMTP}user = "u"\nca_file = "{certificate.file}"\nport = 2525\n{TO}')
    assert Email.from_file(file, "password").where == "smtp.example.com"
    file.write_text(f"{SMTP}{TO}")
    assert list(Email.from_file(file, "of nobody").targets("ada")) == ["x@example.com"]


@pytest.mark.parametrize(
    ("options", "why"),
    [({"security": "maybe"}, "one of starttls, tls, none"), ({"user": "u"}, "needs a password")],
)
def test_mail_that_cannot_be_is_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Email("localhost", **MAIL, **options)


# --- who is told -----------------------------------------------------------------------------------


def test_notify_refuses_what_cannot_be() -> None:
    webhook = Webhook("https://tools.example.com/", secret=SECRET)
    for options, why in (({"after": -1}, "after"), ({"show": "all"}, "show")):
        with pytest.raises(ValueError, match=why):
            Notify(webhook, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a channel"):
        Notify()
    with pytest.raises(ValueError, match="needs `public_url`"):
        Hub().asgi(notify=Notify(webhook))
    assert list(Notify(webhook, webhook, Email("localhost", **MAIL)).channels) == [  # type: ignore[arg-type]
        "webhook", "webhook-2", "email",
    ]  # fmt: skip

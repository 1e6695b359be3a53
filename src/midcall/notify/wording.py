"""Wording: what a notice says, as text, for Slack, for Microsoft Teams, and as JSON for programs.

What others have written (messages, names, arguments) stays text in each of them: it makes no links, no
mentions and no formatting. The only link is the question's.
"""

import datetime as dt
from typing import Any

from midcall.journal.notices import QuestionNotice
from midcall.journal.state import timestamp
from midcall.principal import addressee

MAX_SUBJECT = 120
"""How many characters the first line has."""


def headline(notice: QuestionNotice) -> str:
    """Who asks whom, in a line."""
    whom = "somebody" if notice.to is None else addressee(notice.to)
    line = f"{notice.method} asks {whom}"
    if notice.message:
        line = f"{line}: {notice.message}"
    return line if len(line) <= MAX_SUBJECT else f"{line[: MAX_SUBJECT - 3]}..."


def facts(notice: QuestionNotice) -> list[tuple[str, str]]:
    """What else there is to say, each with its name."""
    said = [
        ("Method", notice.method),
        ("Called by", notice.caller or "an unknown caller"),
        ("Waits for", "an answer" if notice.to is None else addressee(notice.to)),
        ("Since", moment(notice.since)),
    ]
    if notice.until is not None:
        said.append(("Until", moment(notice.until)))
    if notice.arguments is not None:
        said.append(("Arguments", notice.arguments))
    return said


def moment(seconds: float) -> str:
    """A time, in UTC."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def as_text(notice: QuestionNotice) -> str:
    """The text of an e-mail."""
    lines = [notice.message or f"{notice.method} asks a question.", ""]
    lines += [f"{name}: {value}" for name, value in facts(notice)]
    if notice.link is not None:
        lines += ["", "Answer here:", notice.link]
    return "\n".join(lines) + "\n"


def as_json(notice: QuestionNotice) -> dict[str, Any]:
    """An event, as the Standard Webhooks have them."""
    data: dict[str, Any] = {
        "id": notice.id,
        "method": notice.method,
        "kind": notice.kind,
        "caller": notice.caller,
        "to": notice.to,
        "since": timestamp(notice.since),
        "until": None if notice.until is None else timestamp(notice.until),
        "link": notice.link,
    }
    if notice.message is not None:
        data["message"] = notice.message
    if notice.arguments is not None:
        data["arguments"] = notice.arguments
    return {"type": "question.waiting", "timestamp": timestamp(notice.since), "data": data}


def as_slack(notice: QuestionNotice) -> dict[str, Any]:
    """A message for an incoming webhook of Slack."""

    def text(said: str) -> dict[str, Any]:
        return {"type": "plain_text", "text": said, "emoji": False}

    blocks: list[dict[str, Any]] = [{"type": "section", "text": text(headline(notice))}]
    if notice.message and notice.message not in headline(notice):
        blocks.append({"type": "section", "text": text(notice.message)})
    said = [f"{name}: {value}" for name, value in facts(notice)]
    blocks.append({"type": "context", "elements": [text(one) for one in said]})
    if notice.link is not None:
        link = f"<{_escaped(notice.link)}|Answer>"
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": link}})
    return {
        "text": _escaped(headline(notice)),
        "blocks": blocks,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def as_teams(notice: QuestionNotice) -> dict[str, Any]:
    """An adaptive card for a workflow of Microsoft Teams. Rich text, as that has no Markdown."""

    def text(said: str, **style: Any) -> dict[str, Any]:
        return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": said, **style}]}

    body = [text(headline(notice), weight="Bolder")]
    if notice.message and notice.message not in headline(notice):
        body.append(text(notice.message))
    body += [text(f"{name}: {value}", size="Small") for name, value in facts(notice)]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if notice.link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Answer", "url": notice.link}]
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}]}


def _escaped(text: str) -> str:
    """As Slack wants text: without what would be a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

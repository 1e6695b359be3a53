"""The options of a server that tells people of questions: by webhook, by e-mail."""

import argparse
import os
from typing import TYPE_CHECKING

from midcall.cli.command import UsageError, reason, seconds

if TYPE_CHECKING:
    from midcall.notify import Notify, Webhook

WEBHOOKS = "MIDCALL_NOTIFY_WEBHOOK"
SECRET = "MIDCALL_WEBHOOK_SECRET"  # noqa: S105  the name of a variable
PASSWORD = "MIDCALL_SMTP_PASSWORD"  # noqa: S105


def add_notify(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    group = parser.add_argument_group(
        "notices", "People are told of questions that wait for them, each once, with its link."
    )
    group.add_argument(
        "--notify-webhook",
        metavar="[FORMAT:]URL",
        action="append",
        default=[],
        help=f"post notices to this URL, as json (signed with {SECRET}), slack or teams; without a format, "
        f"the host decides; may be repeated (default: those in {WEBHOOKS})",
    )
    group.add_argument(
        "--notify-email",
        metavar="FILE",
        default=None,
        help="send notices by e-mail, with the SMTP server and the recipients in this file of TOML; its "
        f"password is in {PASSWORD}",
    )
    group.add_argument(
        "--notify-after",
        metavar="SECONDS",
        type=seconds,
        default=None,
        help="also send notices of questions for the caller that have waited this long (default: only of "
        "questions for somebody else, at once)",
    )
    group.add_argument(
        "--notify-show",
        choices=("link", "message", "arguments"),
        default=None,
        help="what notices contain: the link of the question, also its message, or also the arguments of the "
        "call (default: message)",
    )


def notify_from(args: argparse.Namespace) -> "Notify | None":
    """Who is told of questions, as the options and the environment say. Raises `UsageError`."""
    webhooks: list[str] = args.notify_webhook or os.environ.get(WEBHOOKS, "").split()
    if not webhooks and args.notify_email is None:
        for option in ("after", "show"):
            if getattr(args, f"notify_{option}") is not None:
                raise UsageError(f"--notify-{option} needs --notify-webhook or --notify-email")
        return None
    from midcall.notify import Email, Notify

    try:
        channels: list[Webhook | Email] = [_webhook(one) for one in webhooks]
        if args.notify_email is not None:
            channels.append(Email.from_file(args.notify_email, os.environ.get(PASSWORD)))
        return Notify(*channels, after=args.notify_after, show=args.notify_show or "message")
    except (OSError, ValueError) as error:
        raise UsageError(f"notices: {reason(error)}") from None


def _webhook(text: str) -> "Webhook":
    from midcall.notify import Webhook
    from midcall.notify.webhook import FORMATS

    secret = os.environ.get(SECRET, "").split()
    for format in FORMATS:
        if text.startswith(f"{format}:"):
            return Webhook(text.removeprefix(f"{format}:"), secret=secret, format=format)
    return Webhook(text, secret=secret)

"""Webhook: a notice is posted to a URL, signed as the Standard Webhooks say, or as Slack or Teams take it.

The URL is the operator's; redirects are not followed, and what the receiver answers is not read. A URL of
Slack or Teams is a secret, so the log has its host alone.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from midcall.http.message import HttpError, HttpUrl, retry_after
from midcall.journal.notices import NotTold, QuestionNotice
from midcall.notify.wording import as_json, as_slack, as_teams
from midcall.transports.security import is_loopback
from midcall.version import __version__

if TYPE_CHECKING:
    from midcall.http.client import HttpClient

WebhookFormat: TypeAlias = Literal["json", "slack", "teams"]

FORMATS: Mapping[WebhookFormat, Callable[[QuestionNotice], dict[str, Any]]] = {
    "json": as_json,
    "slack": as_slack,
    "teams": as_teams,
}

_HOSTS: Mapping[str, WebhookFormat] = {
    "hooks.slack.com": "slack",
    "hooks.slack-gov.com": "slack",
    "webhook.office.com": "teams",
    "logic.azure.com": "teams",
    "api.powerplatform.com": "teams",
}
"""Whose hosts, or hosts below them, take what."""

PREFIX = "whsec_"
GONE = 410


class Webhook:
    """A URL that is told of questions."""

    kind = "webhook"
    patience = 10.0

    def __init__(
        self,
        url: str,
        *,
        secret: str | Sequence[str] | None = None,
        format: WebhookFormat | None = None,
    ) -> None:
        """`format` is told by the host if it is not given: that of Slack, of Teams, or else `json`.

        `secret` signs what is sent as `json`: `whsec_` and 24 to 64 bytes in Base64. Of several, each signs,
        so that a receiver can change from one to the next. Raises `ValueError`.
        """
        try:
            self._url = HttpUrl(url)
        except HttpError:
            raise ValueError("A webhook needs a URL that begins with https://") from None
        self.where = self._url.host
        if self._url.scheme != "https" and not is_loopback(self._url.host):
            raise ValueError(f"The webhook at {self.where} must be https://: whoever has a link may answer")
        if format is not None and format not in get_args(WebhookFormat):
            raise ValueError(f"A webhook's format is one of {', '.join(get_args(WebhookFormat))}")
        self.format: WebhookFormat = format or _format_for(self._url.host)
        given = (secret,) if isinstance(secret, str) else secret or ()
        self._secrets = [_read_secret(one) for one in given] if self.format == "json" else []
        if self.format == "json" and not self._secrets:
            raise ValueError(f"The webhook at {self.where} needs a secret to sign notices")
        self._http: HttpClient | None = None

    def targets(self, to: str | None) -> Sequence[str]:
        """Everything goes to the one URL."""
        return ("",)

    async def tell(self, notice: QuestionNotice, target: str) -> None:
        """Post a notice. Raises `NotTold`."""
        body = msgspec.json.encode(FORMATS[self.format](notice))
        headers = [("Content-Type", "application/json"), ("User-Agent", f"midcall/{__version__}")]
        if self._secrets:
            headers += signed(self._secrets, notice.id, int(time.time()), body)
        if self._http is None:
            from midcall.http.client import HttpClient  # noqa: PLC0415  aiohttp takes a while to import

            self._http = HttpClient(max_connections=8)
        try:
            response = await self._http.request("POST", self._url, headers, body, timeout=self.patience)
        except HttpError as error:  # whose words have the URL
            if error.status is None:
                raise NotTold("it did not answer" if error.sent else "it cannot be reached") from None
            status, pause = error.status, None
        else:
            response.close()
            status, pause = response.status, retry_after(response.headers)
        if not 200 <= status < 300:
            raise NotTold(f"HTTP {status}", pause=pause, final=status == GONE)

    async def close(self) -> None:
        """Let go of connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()


def signed(secrets: Sequence[bytes], id: str, timestamp: int, body: bytes) -> list[tuple[str, str]]:
    """The headers of the Standard Webhooks."""
    content = b"%b.%d.%b" % (id.encode(), timestamp, body)
    made = [base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode() for secret in secrets]
    return [
        ("webhook-id", id),
        ("webhook-timestamp", str(timestamp)),
        ("webhook-signature", " ".join(f"v1,{one}" for one in made)),
    ]


def _format_for(host: str) -> WebhookFormat:
    found = (said for known, said in _HOSTS.items() if host == known or host.endswith(f".{known}"))
    return next(found, "json")


def _read_secret(text: str) -> bytes:
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or not 24 <= len(secret) <= 64:
        raise ValueError(f"The secret of a webhook is {PREFIX} and 24 to 64 bytes in Base64")
    return secret

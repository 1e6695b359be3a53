"""E-mail: a notice is sent to each of those who are asked, by an SMTP server.

Addresses are the operator's, in a small file (see `Email.from_file`). What callers and tools have written is
in the subject and the text, on one line each, so that it cannot add a header. `smtplib` does the protocol, in
threads of its own: while a server hangs, plain methods have theirs.
"""

import asyncio
import contextlib
import smtplib
import socket
import ssl
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, getaddresses, localtime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from midcall.journal.notices import AT_ONCE, NotTold, QuestionNotice
from midcall.notify.wording import as_text, headline
from midcall.transports.security import is_loopback

Security: TypeAlias = Literal["starttls", "tls", "none"]

PORTS: Mapping[Security, int] = {"starttls": 587, "tls": 465, "none": 25}

GREETING = 220

EVERYBODY = "*"
"""Who is not named among the recipients."""

STEP = 10.0
"""Seconds that the server may take for each step: to be reached, or to say something."""

PATIENCE = 45.0
"""Seconds for a message, all in all."""

MAX_REPLIES = 64 * 1024
"""How many bytes the server may say meanwhile."""

MAX_FILE = 1024 * 1024
MAX_RECIPIENTS = 100
"""How many addresses one principal or scope has at most."""


class Email:
    """An SMTP server, and the addresses of those who are asked."""

    kind = "email"
    patience = PATIENCE

    def __init__(
        self,
        host: str,
        *,
        sender: str,
        to: Mapping[str, str | Sequence[str]],
        port: int | None = None,
        security: Security = "starttls",
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`to` has the addresses of principals (`"alice"`), scopes (`"scope:ops"`), and all others (`"*"`).

        `security="none"` is for a server on this machine. `tls` is how the server's certificate is checked,
        by the system's trust store if it is not given. Raises `ValueError`.
        """
        if not host or not host.isprintable() or any(c in host for c in " @/"):
            raise ValueError(f"{host!r} is not the host of an SMTP server")
        if security not in get_args(Security):
            raise ValueError(f"The security of an SMTP server is one of {', '.join(get_args(Security))}")
        if security == "none" and not is_loopback(host):
            raise ValueError(f"The SMTP server {host} must be reached by starttls or tls")
        if (user is None) != (password is None):
            raise ValueError("A user of an SMTP server needs a password, and a password a user")
        if not to:
            raise ValueError("E-mail needs recipients")
        self.where = host
        self._port = PORTS[security] if port is None else port
        self._security = security
        self._login = None if user is None or password is None else (user, password)
        self._sender = _address(sender)
        self._to = {name: _addresses(name, given) for name, given in to.items()}
        self._tls = tls
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def from_file(cls, path: str | Path, password: str | None = None) -> "Email":
        """Read a file of TOML: `[smtp]` has the server, and `[to]` the recipients. Raises `ValueError`."""
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ValueError(f"{path} is too large")
        try:
            found = msgspec.convert(tomllib.loads(content.decode()), _MailFile)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
        smtp = found.smtp
        if smtp.user is None:
            password = None
        elif password is None:
            raise ValueError(f"{path} names a user: the password is to be in the environment")
        try:
            return cls(
                smtp.host,
                sender=smtp.sender,
                to=found.to,
                port=smtp.port,
                security=smtp.security,
                user=smtp.user,
                password=password,
                tls=_trusting(smtp.ca_file),
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def targets(self, to: str | None) -> Sequence[str]:
        """The addresses of whoever is asked."""
        found = None if to is None else self._to.get(to)
        return self._to.get(EVERYBODY, ()) if found is None else found

    async def tell(self, notice: QuestionNotice, target: str) -> None:
        """Send a notice. Raises `NotTold`."""
        message = self._message(notice, target)
        smtp = _Smtp(self.where, self._sender.domain)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, "midcall-mail")
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._send, smtp, message, target)
        except asyncio.CancelledError:
            smtp.cut_off()
            raise
        except smtplib.SMTPRecipientsRefused as refused:
            code = min((code for code, _ in refused.recipients.values()), default=500)
            raise NotTold(f"the recipient was refused (SMTP {code})", final=code >= 500) from None
        except smtplib.SMTPDataError as refused:
            code = refused.smtp_code
            raise NotTold(f"the message was refused (SMTP {code})", final=code >= 500) from None
        except smtplib.SMTPAuthenticationError as refused:
            raise NotTold(f"the login was refused (SMTP {refused.smtp_code})") from None
        except smtplib.SMTPResponseException as refused:
            raise NotTold(f"SMTP {refused.smtp_code}") from None
        except ssl.SSLError as error:
            raise NotTold(f"no secure connection: {error.reason or 'TLS failed'}") from None
        except (smtplib.SMTPException, OSError) as error:
            raise NotTold(f"it cannot be reached, or broke off ({type(error).__name__})") from None

    async def close(self) -> None:
        """Each message has a connection of its own, which is cut off by whoever has waited for it."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _message(self, notice: QuestionNotice, target: str) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        message["From"] = self._sender
        message["To"] = target
        message["Subject"] = headline(notice)
        message["Date"] = format_datetime(localtime())
        message["Message-ID"] = f"<{notice.id}@{self._sender.domain}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(as_text(notice))
        return message

    def _send(self, smtp: "_Smtp", message: EmailMessage, target: str) -> None:
        """In a thread: send one message."""
        tls = None if self._security == "none" else self._tls or ssl.create_default_context()
        try:
            smtp.tls_first = tls if self._security == "tls" else None
            code, _ = smtp.connect(self.where, self._port)
            if code != GREETING:
                raise smtplib.SMTPConnectError(code, "")
            if self._security == "starttls":
                smtp.starttls(context=tls)
            if self._login is not None:
                smtp.login(*self._login)
            smtp.send_message(message, self._sender.addr_spec, [target])
            with contextlib.suppress(smtplib.SMTPException, OSError):  # it is sent, whatever comes now
                smtp.quit()
        finally:
            smtp.close()


class _Smtp(smtplib.SMTP):
    """A connection that ends in time, whatever the server says, or if it is cut off."""

    def __init__(self, host: str, name: str) -> None:
        super().__init__(local_hostname=name, timeout=STEP)
        self._host = host
        self.tls_first: ssl.SSLContext | None = None
        """If there is TLS from the start."""
        self.until = time.monotonic() + PATIENCE - STEP
        self.said = 0

    def cut_off(self) -> None:
        """From another thread: end it."""
        self.until = 0.0
        if self.sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Replies(self, self.sock)
        return super().getreply()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        sock = socket.create_connection((host, port), timeout)
        return sock if self.tls_first is None else self.tls_first.wrap_socket(sock, server_hostname=host)


class _Replies:
    """The lines of a server, for `smtplib`: not for ever, and not without an end."""

    def __init__(self, smtp: _Smtp, sock: socket.socket) -> None:
        self._smtp = smtp
        self._sock = sock
        self._left = b""

    def readline(self, size: int) -> bytes:
        """A line, as long as there is one."""
        while b"\n" not in self._left and len(self._left) < size:
            if time.monotonic() > self._smtp.until or self._smtp.said > MAX_REPLIES:
                raise OSError("The server goes on and on")
            piece = self._sock.recv(4096)
            if not piece:
                break
            self._smtp.said += len(piece)
            self._left += piece
        end = self._left.find(b"\n") + 1 or len(self._left)
        line, self._left = self._left[: min(end, size)], self._left[min(end, size) :]
        return line

    def close(self) -> None:
        """The socket is closed beside this."""


class _SmtpSettings(Struct, forbid_unknown_fields=True):
    host: str
    sender: str = msgspec.field(name="from")
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    security: Security = "starttls"
    user: str | None = None
    ca_file: str | None = None


class _MailFile(Struct, forbid_unknown_fields=True):
    smtp: _SmtpSettings
    to: dict[str, str | list[str]]


def _trusting(ca_file: str | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ValueError(f"ca_file: {error}") from None


def _addresses(name: str, given: Any) -> list[str]:
    listed = [given] if isinstance(given, str) else list(given)
    if not 1 <= len(listed) <= MAX_RECIPIENTS:
        raise ValueError(f"{name} needs from 1 to {MAX_RECIPIENTS} addresses")
    return list(dict.fromkeys(_address(one).addr_spec for one in listed))


def _address(text: str) -> Address:
    """An address, with a name before it or without. Raises `ValueError`."""
    (name, spec), *others = getaddresses([text]) or [("", "")]
    try:
        address = Address(name, addr_spec=spec)
    except (ValueError, IndexError, MessageError):
        address = Address()
    if others or not address.username or not address.domain or not spec.isascii() or not text.isprintable():
        raise ValueError(f"{text!r} is not an e-mail address (several are a list)")
    return address

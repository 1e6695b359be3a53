"""Whoever is told of questions: a web server that takes webhooks, and a mail server, both on loopback."""

import base64
import contextlib
import email
import email.policy
import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from peers import free_port

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Told:
    """One request that a receiver got."""

    def __init__(self, headers: dict[str, str], body: bytes) -> None:
        self.headers = headers
        self.body = body

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> Any:
        return self.json["data"]

    def is_signed(self, key: bytes = KEY) -> bool:
        signed = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        return f"v1,{digest}" in self.headers["webhook-signature"].split()


class Receiver:
    """Takes webhooks at a port of its own. It can be away, and answer as it is told to."""

    def __init__(self) -> None:
        self.port = free_port()
        self.told: list[Told] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/very-secret-path"

    def open(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.told.append(Told({k.lower(): v for k, v in self.headers.items()}, body))
                receiver.may_answer.wait()
                with contextlib.suppress(OSError):  # whoever asked may be gone
                    self.send_response(receiver.status)
                    for name, value in receiver.headers.items():
                        self.send_header(name, value)
                    self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self.may_answer.set()
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Mail:
    """A message, and whom it was sent to."""

    def __init__(self, recipients: list[str], content: bytes) -> None:
        self.recipients = recipients
        parsed = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(parsed, EmailMessage)
        self.message = parsed

    @property
    def text(self) -> str:
        return str(self.message.get_content())


class MailBox:
    """What a mail server has taken. It refuses recipients by their address."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.refused: dict[str, str] = {}
        self.tried: list[str] = []
        self.refuses_data = ""
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_RCPT(  # noqa: N802  aiosmtpd calls it so
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.tried.append(address)
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        if self.refuses_data:
            return self.refuses_data
        self.mails.append(Mail(list(envelope.rcpt_tos), envelope.content))
        return "250 OK"

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: Any
    ) -> AuthResult:
        assert isinstance(given, LoginPassword)
        self.logins.append((given.login, given.password))
        return AuthResult(success=given.password == b"the password", handled=False)


@contextlib.contextmanager
def mail_server(tls: ssl.SSLContext | None = None, security: str = "none") -> Iterator[tuple[MailBox, int]]:
    """A mail server; with `tls`, by STARTTLS and a login, or by TLS from the start."""
    box, port = MailBox(), free_port()
    options: dict[str, Any] = {}
    if security == "starttls":
        options = {"tls_context": tls, "require_starttls": True}
        options |= {"auth_required": True, "authenticator": box.authenticate}
    elif security == "tls":
        options = {"ssl_context": tls}
    controller = Controller(box, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()


class EndlessServer:
    """Says the same again and again, whatever it is told, as long as somebody is connected."""

    def __init__(self, says: bytes, pause: float = 0.0) -> None:
        self.met, self.left = threading.Event(), threading.Event()
        self._says = says
        self._pause = pause
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(self._says)
                self.met.set()
                self.left.wait(self._pause)
        self.left.set()

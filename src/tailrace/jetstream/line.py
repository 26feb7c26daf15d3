"""One connection to a NATS server: a blocking socket, one thread, nothing in the background.

Publishing needs no reader beside the writer: what is on its way is bounded, and the acks of that
many messages fit in the kernel's buffers, so a send never waits for us to read. The server's pings
are answered whenever we read, and `request` shows whether an idle line still lives.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING, Any

from tailrace import __version__
from tailrace.errors import (
    MalformedError,
    SinkError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.jetstream import login
from tailrace.jetstream.protocol import Control, Event, Message, parse

if TYPE_CHECKING:
    from tailrace.jetstream.settings import NatsServer

_SEND_BYTES = 2**20
_RECEIVE_BYTES = 256 * 1024
_REFUSALS = ("permission", "authoriz", "authentic", "account", "tls", "not allowed")
_TLS_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_NO_LINGER = struct.pack("ii", 1, 0)
_SID = 1


class Line:
    """An open connection. Any error leaves it closed."""

    def __init__(self, link: socket.socket, address: login.Address, timeout_s: float) -> None:
        self.address = address
        self.info: dict[str, Any] = {}
        self.inbox = f"_INBOX.{secrets.token_hex(5)}.".encode()
        """Replies come to this prefix and one more token."""
        self._link = link
        self._rest = b""
        self._timeout_s = timeout_s
        self._requests = 0

    @classmethod
    def connect(cls, settings: NatsServer, *, name: str) -> Line:
        """Connect to the first server that answers; the last one's error if none does."""
        failure: SinkError | None = None
        for address in login.addresses(settings.url):
            try:
                return cls._connect(settings, address, name)
            except SinkError as error:
                failure = error
        assert failure is not None
        raise failure

    @classmethod
    def _connect(cls, settings: NatsServer, address: login.Address, name: str) -> Line:
        try:
            link = socket.create_connection((address.host, address.port), settings.timeout_s)
        except OSError as error:
            raise SinkUnreachableError(f"NATS at {address}: {_said(error)}") from error
        line = cls(link, address, settings.timeout_s)
        try:
            line._greet(settings, name)
        except OSError as error:
            line.close()
            raise line._lost(error) from error
        except BaseException:
            line.close()
            raise
        return line

    def _greet(self, settings: NatsServer, name: str) -> None:
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link.settimeout(self._timeout_s)
        self._await_control(b"INFO")
        secure = login.wants_tls(settings, self.address)
        if secure or self.info.get("tls_required"):
            self._secure(settings)
        connect = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": __version__,
            "name": f"tailrace {name}",
            "tls_required": secure,
            **login.credentials(settings, self.address, self.info.get("nonce", "")),
        }
        hello = b"CONNECT %s\r\nSUB %s* %d\r\nPING\r\n"
        self._link.sendall(hello % (json.dumps(connect).encode(), self.inbox, _SID))
        self._await_control(b"PONG")

    def _secure(self, settings: NatsServer) -> None:
        if not self.info.get("tls_required") and not self.info.get("tls_available"):
            raise SinkRefusedError(
                f"NATS at {self.address} does not offer TLS",
                hint="Give the server a certificate, or write nats:// without tls_ca.",
            )
        # Anything behind INFO was sent before the handshake: nobody vouches for it.
        self._rest = b""
        context = login.tls_context(settings)
        try:
            self._link = context.wrap_socket(self._link, server_hostname=self.address.host)
        except ssl.SSLError as error:
            raise SinkRefusedError(
                f"NATS at {self.address}: TLS failed: {error.reason or error}",
                hint="Check tls_ca, tls_certificate and the host name in the url.",
            ) from error

    def _await_control(self, verb: bytes) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            for event in self.events(deadline):
                if isinstance(event, Control) and event.verb == verb:
                    return

    @property
    def max_payload(self) -> int:
        """The most bytes a message may have, headers included."""
        return int(self.info.get("max_payload", 1 << 20))

    def send(self, data: bytes | memoryview) -> None:
        """Hand bytes to the kernel, waiting at most the timeout for each piece."""
        try:
            self._link.settimeout(self._timeout_s)
            for start in range(0, len(data), _SEND_BYTES):
                self._link.sendall(data[start : start + _SEND_BYTES])
        except OSError as error:
            raise self._lost(error) from error

    def fetch(self, deadline: float) -> bytes:
        """What was left over and whatever comes next; `digest` takes it from there."""
        try:
            self._link.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._link.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost(None)
        return self._rest + data if self._rest else data

    def digest(self, data: bytes) -> list[Event]:
        """Parse, keep what is incomplete, and see to what concerns the line itself."""
        try:
            events, used = parse(data)
        except MalformedError as error:
            self.close()
            raise SinkRefusedError(f"{self.address} does not speak NATS: {error}") from error
        self._rest = data[used:]
        for event in events:
            if isinstance(event, Control):
                self._heed(event)
        return events

    def events(self, deadline: float) -> list[Event]:
        """Wait for bytes and parse them."""
        return self.digest(self.fetch(deadline))

    def _heed(self, control: Control) -> None:
        match control.verb:
            case b"PING":
                self.send(b"PONG\r\n")
            case b"INFO":
                self.info |= json.loads(control.argument)
            case b"-ERR":
                self.close()
                raise _refusal(self.address, control.argument.decode("utf-8", "replace"))

    def ask(self, subject: str, body: object = None) -> dict[str, Any]:
        """A request of the JetStream API, and its answer as it is, errors included."""
        reply = self._ask(subject, body)
        while True:
            for message in self._messages():
                if message.subject == reply:
                    return self._answer(subject, message)

    def pull(self, subject: str, most: int) -> list[Message]:
        """The next messages of a pull consumer: as many as there are, up to `most`."""
        reply = self._ask(subject, {"batch": most, "no_wait": True})
        pulled: list[Message] = []
        while len(pulled) < most:
            for message in self._messages():
                # A delivered message keeps its own subject; a status has the reply's.
                if message.subject == reply:
                    return pulled
                pulled.append(message)
        return pulled

    def _ask(self, subject: str, body: object) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        self._requests += 1
        reply = b"%sr%d" % (self.inbox, self._requests)
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply, len(payload), payload))
        return reply

    def _messages(self) -> list[Message]:
        events = self.events(time.monotonic() + self._timeout_s)
        return [event for event in events if isinstance(event, Message)]

    def _answer(self, subject: str, message: Message) -> dict[str, Any]:
        if message.status == 503:
            raise SinkRefusedError(
                f"NATS at {self.address}: nobody answers {subject}",
                hint="Start the server with JetStream enabled, for this account as well.",
            )
        try:
            answer: dict[str, Any] = json.loads(message.payload)
        except ValueError as error:
            raise SinkRefusedError(f"NATS at {self.address}: {subject}: no JSON") from error
        return answer

    def close(self) -> None:
        """Let go of the socket."""
        self._link.close()

    def _lost(self, error: OSError | None) -> SinkError:
        with contextlib.suppress(OSError):
            # What the kernel has not sent yet must not arrive later, beside the next attempt.
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.close()
        if isinstance(error, ssl.SSLError) and not isinstance(error, _TLS_ENDS):
            # Under TLS 1.3 a server says only now what it thinks of our certificate.
            return SinkRefusedError(
                f"NATS at {self.address}: TLS failed: {error.reason or error}",
                hint="Check tls_certificate and tls_key.",
            )
        if isinstance(error, TimeoutError):
            return SinkUnreachableError(
                f"NATS at {self.address} has not answered for {self._timeout_s:g} s"
            )
        return SinkUnreachableError(
            f"the line to NATS at {self.address} is cut: {_said(error) if error else 'it ended'}"
        )


def _refusal(address: login.Address, said: str) -> SinkError:
    text = said.strip("'")
    if any(word in text.lower() for word in _REFUSALS):
        return SinkRefusedError(f"NATS at {address} refuses: {text}")
    return SinkUnreachableError(f"NATS at {address} ended the line: {text}")


def _said(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__

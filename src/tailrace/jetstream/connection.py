"""A blocking connection to a NATS server: one socket, one thread, nothing in the background.

For sinks and snapshots, which publish in bulk (`tailrace.jetstream.bulk`). Services use the asyncio
sessions of `tailrace.jetstream.client`.

Publishing needs no thread that reads: the number of unacknowledged messages is bounded, and their
acknowledgements fit into the kernel's buffers, so a send never waits for a read. Every read answers
the server's pings. A request shows whether an idle connection still works.
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
from tailrace.jetstream.login import Address, Login, addresses
from tailrace.jetstream.protocol import Control, Event, Message, parse

if TYPE_CHECKING:
    from tailrace.jetstream.settings import NatsServer

_SEND_BYTES = 2**20
_RECEIVE_BYTES = 256 * 1024
_REFUSED = ("permission", "authoriz", "authentic", "account", "tls", "not allowed")
_TLS_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_NO_LINGER = struct.pack("ii", 1, 0)
_SID = 1


class NatsConnection:
    """An open connection. Any error leaves it closed."""

    def __init__(self, sock: socket.socket, address: Address, timeout_s: float) -> None:
        self.address = address
        self.info: dict[str, Any] = {}
        self.inbox = f"_INBOX.{secrets.token_hex(5)}.".encode()
        """Prefix of the subjects of replies; one more token follows."""
        self._socket = sock
        self._unparsed = b""
        self._timeout_s = timeout_s
        self._requests = 0

    @classmethod
    def connect(cls, settings: NatsServer, *, name: str) -> NatsConnection:
        """Connect to the first server that answers; raise the last one's error if none does."""
        login = Login.of(settings)
        failure: SinkError | None = None
        for address in addresses(login.url):
            try:
                return cls._connect(login, address, name, settings.timeout_s)
            except SinkError as error:
                failure = error
        assert failure is not None
        raise failure

    @classmethod
    def _connect(
        cls, login: Login, address: Address, name: str, timeout_s: float
    ) -> NatsConnection:
        try:
            sock = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise SinkUnreachableError(f"NATS at {address}: {_reason(error)}") from error
        connection = cls(sock, address, timeout_s)
        try:
            connection._handshake(login, name)
        except OSError as error:
            connection.close()
            raise connection._lost(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _handshake(self, login: Login, name: str) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(self._timeout_s)
        self._await_control(b"INFO")
        tls = self.address.tls or login.tls_configured
        if tls or self.info.get("tls_required"):
            self._start_tls(login)
        connect = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": __version__,
            "name": f"tailrace {name}",
            "tls_required": tls,
            **login.connect_fields(self.address, self.info.get("nonce", "")),
        }
        hello = b"CONNECT %s\r\nSUB %s* %d\r\nPING\r\n"
        self._socket.sendall(hello % (json.dumps(connect).encode(), self.inbox, _SID))
        self._await_control(b"PONG")

    def _start_tls(self, login: Login) -> None:
        if not self.info.get("tls_required") and not self.info.get("tls_available"):
            raise SinkRefusedError(
                f"NATS at {self.address} does not offer TLS",
                hint="Configure a certificate in the server, or use nats:// without tls_ca.",
            )
        # Bytes after INFO came before the handshake: they are not authenticated.
        self._unparsed = b""
        context = login.tls_context()
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.address.host)
        except ssl.SSLError as error:
            if isinstance(error, _TLS_CLOSED):
                # The server ends, or a proxy has no server: `_connect` reports a lost connection.
                raise
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
        """Max bytes of a message, headers included."""
        return int(self.info.get("max_payload", 1 << 20))

    def send(self, data: bytes | memoryview) -> None:
        """Pass bytes to the kernel; wait at most the timeout for each piece."""
        try:
            self._socket.settimeout(self._timeout_s)
            for start in range(0, len(data), _SEND_BYTES):
                self._socket.sendall(data[start : start + _SEND_BYTES])
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, deadline: float) -> bytes:
        """The unparsed rest and the next bytes, for `parse`."""
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost(None)
        return self._unparsed + data if self._unparsed else data

    def parse(self, data: bytes) -> list[Event]:
        """Parse, keep an incomplete rest, and handle the events of the connection itself."""
        try:
            events, used = parse(data)
        except MalformedError as error:
            self.close()
            raise SinkRefusedError(f"{self.address} does not speak NATS: {error}") from error
        self._unparsed = data[used:]
        for event in events:
            if isinstance(event, Control):
                self._handle(event)
        return events

    def events(self, deadline: float) -> list[Event]:
        """Wait for bytes and parse them."""
        return self.parse(self.receive(deadline))

    def _handle(self, control: Control) -> None:
        match control.verb:
            case b"PING":
                self.send(b"PONG\r\n")
            case b"INFO":
                self.info |= json.loads(control.argument)
            case b"-ERR":
                self.close()
                raise _refusal(self.address, control.argument.decode("utf-8", "replace"))

    def request(self, subject: str, body: object = None) -> dict[str, Any]:
        """Send a request of the JetStream API; its answer, which may be an error."""
        reply = self._send_request(subject, body)
        while True:
            for message in self._messages():
                if message.subject == reply:
                    return self._answer(subject, message)

    def pull(self, subject: str, max_messages: int) -> list[Message]:
        """The next available messages of a pull consumer, at most `max_messages`."""
        reply = self._send_request(subject, {"batch": max_messages, "no_wait": True})
        pulled: list[Message] = []
        while len(pulled) < max_messages:
            for message in self._messages():
                # A delivered message has its own subject; the status at the end has the reply's.
                if message.subject == reply:
                    return pulled
                pulled.append(message)
        return pulled

    def _send_request(self, subject: str, body: object) -> bytes:
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
            # No responders: also while the servers with JetStream of a cluster are down.
            raise SinkUnreachableError(
                f"NATS at {self.address}: nothing answers {subject}",
                hint="If it stays like this: start nats-server with -js, and enable JetStream for "
                "this account.",
            )
        try:
            answer: dict[str, Any] = json.loads(message.payload)
        except ValueError as error:
            raise SinkRefusedError(
                f"NATS at {self.address}: the answer to {subject} is not JSON"
            ) from error
        return answer

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _lost(self, error: OSError | None) -> SinkError:
        with contextlib.suppress(OSError):
            # Bytes that the kernel has not sent yet must not arrive during the next attempt.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.close()
        if isinstance(error, ssl.SSLError) and not isinstance(error, _TLS_CLOSED):
            # Under TLS 1.3 a server rejects a client certificate only after the handshake.
            return SinkRefusedError(
                f"NATS at {self.address}: TLS failed: {error.reason or error}",
                hint="Check tls_certificate and tls_key.",
            )
        if isinstance(error, TimeoutError):
            return SinkUnreachableError(
                f"NATS at {self.address} has not answered for {self._timeout_s:g} s"
            )
        reason = _reason(error) if error else "the server closed it"
        return SinkUnreachableError(f"lost the connection to NATS at {self.address}: {reason}")


def _refusal(address: Address, reason: str) -> SinkError:
    text = reason.strip("'")
    lowered = text.lower()
    # A client that logs in too slowly is told "Authentication Timeout": it may try again.
    if "timeout" not in lowered and any(word in lowered for word in _REFUSED):
        return SinkRefusedError(f"NATS at {address} refuses: {text}")
    return SinkUnreachableError(f"NATS at {address} closed the connection: {text}")


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__

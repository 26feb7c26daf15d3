"""A connection between a leader and a follower: sockets, TLS, time limits, and frames in and out.

One thread uses a connection: OpenSSL does not allow two. A side that sends reads the other's short
answers between two frames, so neither waits for the other for ever; a peer that takes or sends
nothing for `timeout_s` is gone. Until the peer has proved itself, a deadline limits all that it
sends together, and its errors are only texts.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Self

from tailrace.errors import (
    ConfigError,
    DivergedError,
    LogFencedError,
    MalformedError,
    ReplicaFailedError,
    ReplicaRefusedError,
    ReplicaUnreachableError,
    TailraceError,
    error_of,
)
from tailrace.replica import frames, seed
from tailrace.replica.frames import Header, Message, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.config.replication import Replication, ReplicationTls

_OF_BOTH = frozenset(
    {DivergedError, LogFencedError, MalformedError, ReplicaRefusedError, ReplicaUnreachableError}
)
_TLS_PART_BYTES = 1 << 16
_SMALL_BYTES = 1 << 14
"""Frames up to this size are cheaper to copy than to send in parts."""


class Connection:
    """Frames over one socket."""

    def __init__(self, sock: socket.socket, peer: str, *, timeout_s: float) -> None:
        self._socket = sock
        self.peer = peer
        self._timeout_s = timeout_s
        self._deadline: float | None = time.monotonic() + timeout_s
        self._trusted = False
        self._received_part: Callable[[], None] = lambda: None
        self._header = bytearray(frames.HEADER.size)
        self.sent_bytes = 0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(timeout_s)

    @property
    def socket(self) -> socket.socket:
        """For select."""
        return self._socket

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def interrupt(self) -> None:
        """End what waits for this connection. Any thread may call it."""
        with contextlib.suppress(OSError):
            # Not the method of SSLSocket, which would change an object that another thread uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def trust(self) -> None:
        """The other side has proved who it is. From now on each of its steps has a time limit."""
        self._trusted = True
        self.limit(self._timeout_s)

    def limit(self, timeout_s: float) -> None:
        """How long to wait for the other side's next bytes from now on."""
        self._timeout_s, self._deadline = timeout_s, None
        self._socket.settimeout(timeout_s)

    def send_bytes(self, data: frames.Buffer) -> None:
        """Send all of it. The time limit is for each part: a slow line is no silence."""
        view = memoryview(data)
        with self._translated():
            while view:
                # OpenSSL returns only when it has sent all of what it was given.
                part = view[:_TLS_PART_BYTES] if isinstance(self._socket, ssl.SSLSocket) else view
                view = view[self._socket.send(part) :]
        self.sent_bytes += len(data)

    def while_receiving(self, call: Callable[[], None]) -> None:
        """Call something after each part of a frame that arrives in parts."""
        self._received_part = call

    def receive_bytes(self, size: int) -> bytes:
        """Exactly so many bytes."""
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        with self._translated():
            while view:
                if self._deadline is not None:
                    # 0 would mean without waiting.
                    self._socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
                count = self._socket.recv_into(view)
                if not count:
                    raise ReplicaUnreachableError(f"{self.peer} closed the connection")
                view = view[count:]
                if view:
                    self._received_part()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            did = "was silent for" if self._deadline is None else "did not prove itself within"
            raise ReplicaUnreachableError(f"{self.peer} {did} {self._timeout_s:g} s") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise ReplicaUnreachableError(f"the connection to {self.peer}: {reason}") from error

    def send(self, kind: Type, *parts: frames.Buffer, compress: bool = False) -> None:
        """Send a frame."""
        buffers = frames.buffers(kind, *parts, compress=compress)
        total = sum(map(len, buffers))
        if total < _SMALL_BYTES or isinstance(self._socket, ssl.SSLSocket):
            self.send_bytes(b"".join(buffers))
            return
        with self._translated():
            sent = self._socket.sendmsg(buffers)
        self.sent_bytes += sent
        for buffer in buffers:
            if sent < len(buffer):
                self.send_bytes(memoryview(buffer)[sent:])
            sent = max(sent - len(buffer), 0)

    def say(self, kind: Type, message: Message) -> None:
        """Send a control frame."""
        self.send(kind, message.encode())

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether something can be received, at once or within some seconds."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        with self._translated():
            readable, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(readable)

    def receive(self) -> tuple[Type, frames.Buffer]:
        """The next frame. Raises the error that an ERROR frame holds."""
        self._fill(memoryview(self._header))
        header = Header.decode(self._header)
        stored = bytearray(header.length)
        self._fill(memoryview(stored))
        payload = header.payload(stored)
        if header.type is Type.ERROR:
            fault = frames.Fault.decode(payload)
            raise fault_error(fault, self.peer, trusted=self._trusted)
        return header.type, payload

    def expect(self, kind: Type) -> frames.Buffer:
        """The payload of the next frame, which has to be of this type."""
        got, payload = self.receive()
        if got is not kind:
            raise MalformedError(f"{self.peer} sent a frame {got.name} in place of {kind.name}")
        return payload

    def report(self, error: TailraceError) -> None:
        """Tell the other side why the connection ends, if it still listens."""
        with contextlib.suppress(TailraceError):
            fault = frames.Fault(code=error.code, message=str(error), hint=error.hint)
            self.say(Type.ERROR, fault)

    def receive_answer(self) -> seed.Answer:
        """What a follower answers to a handshake."""
        head = self.receive_bytes(seed.ANSWER.size)
        return seed.Answer.decode(head, self.receive_bytes(seed.text_bytes(head)))


def fault_error(fault: frames.Fault, peer: str, *, trusted: bool) -> TailraceError:
    """The error that the other side reports.

    What it says about both sides keeps its class, if it has proved who it is. What has failed on
    its own machine, such as its disk, is no error of this machine.
    """
    kind = error_of(fault.code)
    if not trusted:
        return ReplicaRefusedError(f"{peer}: {fault.message}", hint=fault.hint)
    if kind in _OF_BOTH:
        return kind(f"{peer}: {fault.message}", hint=fault.hint)
    return ReplicaFailedError(f"{peer}: {fault.code}: {fault.message}", hint=fault.hint)


def connect(address: tuple[str, int], settings: Replication) -> Connection:
    """Connect to a follower."""
    host, port = address
    peer = f"{host}:{port}"
    try:
        sock = socket.create_connection(address, timeout=settings.handshake_s)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReplicaUnreachableError(f"cannot connect to {peer}: {reason}") from error
    if settings.tls is not None:
        sock = _wrap(sock, settings.tls, peer, server=False, host=host)
    return Connection(sock, peer, timeout_s=settings.handshake_s)


def accepted(sock: socket.socket, peer: str, settings: Replication) -> Connection:
    """A connection that a leader has opened."""
    sock.settimeout(settings.handshake_s)
    if settings.tls is not None:
        sock = _wrap(sock, settings.tls, peer, server=True, host=None)
    return Connection(sock, peer, timeout_s=settings.handshake_s)


def listen(address: tuple[str, int]) -> socket.socket:
    """A socket that leaders connect to."""
    host, port = address
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server(address, family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="Set replication.listen or --listen to a free address of this machine.",
        ) from error


def _wrap(
    sock: socket.socket, tls: ReplicationTls, peer: str, *, server: bool, host: str | None
) -> ssl.SSLSocket:
    """Mutual TLS: both sides show a certificate of the same authority."""
    purpose = ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH
    try:
        context = ssl.create_default_context(purpose, cafile=str(tls.ca))
        context.load_cert_chain(str(tls.cert), str(tls.key))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"the files of replication.tls cannot be used: {error}",
            hint="ca, cert and key are PEM files that this process can read.",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        return context.wrap_socket(sock, server_side=server, server_hostname=host)
    except OSError as error:
        sock.close()
        raise ReplicaUnreachableError(
            f"no TLS with {peer}: {getattr(error, 'reason', None) or error}",
            hint="Both sides need a certificate that the other's replication.tls.ca has signed.",
        ) from error

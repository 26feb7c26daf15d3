"""One connection to a broker: login, TLS, heartbeats, and whether the broker blocks publishers.

py-amqp sends no heartbeats by itself. While a sink is not in use a thread sends them; while it is,
`receive` does. `lock` is held by whoever uses the connection: TLS takes one thread at a time.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import amqp
import structlog
from amqp import spec

from tailrace import __version__
from tailrace.errors import SinkError, SinkFullError, SinkUnreachableError
from tailrace.sinks.certificates import readable
from tailrace.sinks.rabbitmq.failures import translated

if TYPE_CHECKING:
    from tailrace.sinks.rabbitmq.settings import RabbitMQSink

_BEATS = 3
"""Heartbeats that are sent in the time that both sides have agreed upon."""
_CLOSE_S = 1.0


class _Client(amqp.Connection):  # type: ignore[misc]  # it has no types
    """Keeps the reason of `connection.blocked`, which py-amqp drops."""

    _METHODS = {  # noqa: RUF012
        **amqp.Connection._METHODS,
        spec.Connection.Blocked: spec.method(spec.Connection.Blocked, "s"),
    }

    def _on_blocked(self, reason: str) -> None:
        self.on_blocked(reason)


class Connection:
    """A connection. Any error of it is final."""

    def __init__(self, settings: RabbitMQSink, *, name: str) -> None:
        self._timeout_s = settings.timeout_s
        self._blocked = ""
        """Why the broker blocks publishers; empty if it does not."""
        self._blocked_since_s = 0.0
        self.lock = threading.RLock()
        self._closed = threading.Event()
        self.where, self._client = self._connect(settings, name)
        self._beat_s = self._client.heartbeat / _BEATS or threading.TIMEOUT_MAX
        self._beaten_s = time.monotonic()
        if self._client.heartbeat:
            threading.Thread(target=self._beat, name="heartbeats", daemon=True).start()

    def _connect(self, settings: RabbitMQSink, name: str) -> tuple[str, _Client]:
        """The first broker that answers."""
        failed: SinkError | None = None
        for host, port in settings.address.hosts:
            try:
                return f"RabbitMQ at {host}:{port}", self._connect_to(settings, host, port, name)
            except SinkUnreachableError as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def _connect_to(self, settings: RabbitMQSink, host: str, port: int, name: str) -> _Client:
        user, password = settings.login
        client = _Client(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            userid=user,
            password=password,
            login_method=settings.mechanism,
            virtual_host=settings.virtual_host or settings.address.virtual_host,
            ssl=_tls(settings, host) if settings.address.tls else False,
            connect_timeout=settings.timeout_s,
            heartbeat=settings.heartbeat_s,
            on_blocked=self._block,
            on_unblocked=self._unblock,
            client_properties={
                "product": "tailrace",
                "product_version": __version__,
                "connection_name": f"tailrace-{name}",
            },
        )
        try:
            with translated(f"RabbitMQ at {host}:{port}"):
                client.connect()
                client.transport.sock.settimeout(settings.timeout_s)
        except BaseException:
            client.collect()
            raise
        return client

    @property
    def frame_max(self) -> int:
        """The size of the largest frame."""
        return int(self._client.frame_max)

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no messages at present."""
        return bool(self._blocked)

    def open_channel(self) -> Any:
        """A new channel of py-amqp."""
        with translated(self.where):
            return self._client.channel()

    def send(self, frames: memoryview) -> None:
        """Send frames."""
        with translated(self.where):
            self._client.transport.write(frames)

    def receive(self, timeout_s: float) -> None:
        """Wait for frames, and dispatch all that there are."""
        until_s = time.monotonic() + timeout_s
        while not self._received(min(max(until_s - time.monotonic(), 0), self._beat_s)):
            self._send_heartbeat_if_due()
            if time.monotonic() >= until_s:
                return
        while self._received(0):
            pass

    def _received(self, timeout_s: float) -> bool:
        """Whether there was a frame."""
        with translated(self.where):
            try:
                self._client.blocking_read(timeout_s)
            except TimeoutError as error:
                # TCP's own timeout has a number, and ends the connection.
                if error.errno is not None:
                    raise
                return False
        return True

    def _send_heartbeat_if_due(self) -> None:
        now = time.monotonic()
        if now - self._beaten_s >= self._beat_s:
            self._beaten_s = now
            with translated(self.where):
                self._client.send_heartbeat()

    def check_takes_messages(self) -> None:
        """Raise an error if the broker blocks publishers.

        It says so only after a message, and reads no other until it does not. Those that were sent
        meanwhile would arrive all the same. So this one reaches no queue.
        """
        returned: list[object] = []
        with translated(self.where), contextlib.suppress(amqp.AccessRefused):
            channel = self._client.channel()
            channel.events["basic_return"].add(lambda *_: returned.append(_))
            channel.basic_publish(amqp.Message(b""), "", "", mandatory=True)
            until_s = time.monotonic() + self._timeout_s
            while not returned and not self._blocked and time.monotonic() < until_s:
                self._client.blocking_read(self._timeout_s)
            if not self._blocked:
                channel.close()
        if self._blocked:
            raise self.refusal()

    def check_blocked(self) -> None:
        """Raise an error if the broker has been blocking publishers for too long."""
        if self._blocked and time.monotonic() - self._blocked_since_s >= self._timeout_s:
            raise self.refusal()

    def refusal(self) -> SinkFullError:
        """The error while the broker blocks publishers."""
        return SinkFullError(
            f"{self.where} blocks publishers: {self._blocked}",
            hint="Free memory or disk of the broker, or raise its limits. Nothing is lost. "
            "Run: rabbitmq-diagnostics alarms",
        )

    def _block(self, reason: str) -> None:
        self._blocked, self._blocked_since_s = reason or "see its log", time.monotonic()
        structlog.get_logger().warning("rabbitmq.blocked", broker=self.where, reason=reason)

    def _unblock(self) -> None:
        self._blocked = ""
        structlog.get_logger().info("rabbitmq.unblocked", broker=self.where)

    def _beat(self) -> None:
        """In a thread of its own, while the connection is not in use."""
        while not self._closed.wait(self._beat_s):
            if not self.lock.acquire(blocking=False):
                continue
            try:
                if self._client.connected:
                    self._client.send_heartbeat()
            except (amqp.AMQPError, OSError):
                # The connection is lost: its next user finds out.
                return
            finally:
                self.lock.release()

    def close(self, *, polite: bool) -> None:
        """Close the connection. `polite`: say goodbye, which waits for an answer."""
        self._closed.set()
        with self.lock:
            client = self._client
            try:
                if client.connected:
                    client.transport.sock.settimeout(_CLOSE_S)
                    if polite:
                        client.close()
            except (amqp.AMQPError, OSError):
                pass
            finally:
                client.collect()


def _tls(settings: RabbitMQSink, host: str) -> dict[str, Any]:
    """The certificates. The host name is always verified."""
    files = {
        "ca_certs": settings.tls_ca,
        "certfile": settings.tls_certificate,
        "keyfile": settings.tls_key,
    }
    return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": host, **readable(files)}

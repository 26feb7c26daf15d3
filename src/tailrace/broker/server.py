"""The listener: accepts connections, and closes those that break a limit.

A request that is too large, truncated or malformed closes its own connection, with one log line,
and affects no other. The same holds for a login that fails or takes too long.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import traceback
from typing import TYPE_CHECKING

import structlog

from tailrace.backoff import Backoff
from tailrace.broker.connection import Connection, RejectedError
from tailrace.errors import MalformedError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.broker.auth.tls import Certificate
    from tailrace.broker.broker import Broker

_BACKLOG = 512
_BUFFER = 1 << 16
_CHECK_INTERVAL_S = 1.0
_CHECKED_AT_ONCE = 500
"""Connections that are checked before other tasks run again."""
_LOG_INTERVAL_S = 1.0
_MAX_REASON = 200


class Server:
    """Listens for clients of a broker. `login_required`: clients must log in even without users."""

    def __init__(
        self,
        broker: Broker,
        *,
        certificate: Certificate | None = None,
        login_required: bool = False,
        advertised: tuple[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker, self._limits, self._clock = broker, broker.limits, clock
        self._certificate = certificate
        self._tls = certificate.context() if certificate is not None else None
        self._login_required = login_required
        self._advertised = advertised
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: dict[asyncio.Task[None], Connection | None] = {}
        """None before the end of the TLS handshake."""
        self._open = not broker.access.users
        """Whether clients connect without a login, because there are no users."""
        self._limit_logged_at = 0.0
        self._events = structlog.get_logger()
        broker.on_access = self._disconnect_removed
        broker.on_lost = self._disconnect_all

    @property
    def connections(self) -> int:
        """Number of clients."""
        return len(self._clients)

    async def start(self, host: str, port: int) -> int:
        """Start to listen; the port that is used."""
        loop = asyncio.get_running_loop()
        resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listeners = []
        for family, address in dict.fromkeys((info[0], info[4]) for info in resolved):
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
            listener.setblocking(False)
            listeners.append(listener)
        self._tasks = [asyncio.create_task(self._accept(listener)) for listener in listeners]
        self._tasks.append(asyncio.create_task(self._check_overdue()))
        bound: int = listeners[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the port and all connections."""
        for task in (*self._tasks, *self._clients):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._clients, return_exceptions=True)

    def reload(self) -> None:
        """Reload the certificate for new connections. An invalid one is ignored."""
        if self._certificate is not None:
            try:
                self._tls = self._certificate.context()
                self._events.info("broker.certificate_reloaded")
            except TailraceError as error:
                self._events.error("broker.certificate_reload_failed", reason=str(error))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # accept fails while the process is out of file descriptors.
        backoff = Backoff(max_s=1.0)
        with listener:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError as error:
                    self._count_refused("descriptors", reason=str(error))
                    await asyncio.sleep(backoff.next_s())
                    continue
                backoff.reset()
                if not self._broker.connected:
                    accepted.close()
                    self._count_refused("postgres", reason="the broker waits for PostgreSQL")
                    continue
                if len(self._clients) >= self._limits.connections:
                    accepted.close()
                    self._count_refused("connections", max=self._limits.connections)
                    continue
                task = asyncio.create_task(self._serve(accepted))
                self._clients[task] = None
                task.add_done_callback(lambda ended: self._clients.pop(ended, None))

    def _count_refused(self, limit: str, **fields: object) -> None:
        """Count a refused connection, and log at most one line per second."""
        self._broker.tally.refused[limit] += 1
        now = self._clock()
        if now > self._limit_logged_at + _LOG_INTERVAL_S:
            self._limit_logged_at = now
            self._events.warning("broker.limit_reached", limit=limit, **fields)

    async def _serve(self, accepted: socket.socket) -> None:
        peer = ""
        try:
            peer = str(accepted.getpeername()[0])
            reader, writer = await self._open_streams(accepted)
        except (OSError, asyncio.CancelledError) as error:
            accepted.close()
            if isinstance(error, ssl.SSLError | TimeoutError):
                message = str(error) or "TLS handshake timed out"
                self._log_rejected(peer, RejectedError("tls", message))
            return
        connection = Connection(
            self._broker,
            reader,
            writer,
            login_required=self._login_required,
            advertised=self._advertised,
            clock=self._clock,
        )
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = connection
        try:
            await self._serve_connection(connection)
        finally:
            writer.transport.abort()

    async def _serve_connection(self, connection: Connection) -> None:
        """Serve until the connection ends. An error ends this connection only."""
        peer = connection.peer
        try:
            await connection.serve()
        except MalformedError as error:
            self._broker.tally.refused["malformed"] += 1
            reason = str(error)[:_MAX_REASON]
            self._events.warning("broker.malformed_request", peer=peer, reason=reason)
        except RejectedError as error:
            self._log_rejected(peer, error)
        except TailraceError as error:
            reason = str(error)[:_MAX_REASON]
            self._events.warning("broker.request_failed", peer=peer, code=error.code, reason=reason)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The client disconnected, or the server ends the connection.
            pass
        except Exception:
            self._events.error("broker.connection_failed", trace=traceback.format_exc())

    async def _open_streams(
        self, accepted: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_BUFFER, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        handshake_s = self._limits.login_s if self._tls is not None else None
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _log_rejected(self, peer: str, error: RejectedError) -> None:
        self._broker.tally.refused[error.reason] += 1
        self._events.warning(
            "broker.client_rejected", peer=peer, code=error.reason, reason=str(error)[:_MAX_REASON]
        )

    async def _check_overdue(self) -> None:
        """Close connections that have waited too long."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            now = self._clock()
            for number, (task, connection) in enumerate(list(self._clients.items()), 1):
                if number % _CHECKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if connection is None or task.cancelling():
                    continue
                overdue = connection.overdue(now)
                if overdue is not None:
                    if overdue.reason == "idle":
                        self._broker.tally.refused["idle"] += 1
                    else:
                        self._log_rejected(connection.peer, overdue)
                    task.cancel()

    def _disconnect_all(self) -> None:
        """The broker has lost its lock: another one may serve these clients now."""
        if self._clients:
            self._events.warning("broker.clients_disconnected", count=len(self._clients))
        for task in self._clients:
            task.cancel()

    def _disconnect_removed(self) -> None:
        """Users have changed: close connections of removed users, and those without a login.

        The latter exist only if there were no users before.
        """
        was_open, self._open = self._open, not self._broker.access.users
        for task, connection in list(self._clients.items()):
            if connection is not None and (connection.stale or (was_open and not self._open)):
                self._events.info(
                    "broker.client_disconnected",
                    peer=connection.peer,
                    user=connection.login.user or "",
                    reason="users changed",
                )
                task.cancel()

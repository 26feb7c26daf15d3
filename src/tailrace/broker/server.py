"""The listener: who may connect, for how long, and what becomes of those who misbehave.

A frame that is too large, cut off or no request at all closes its connection, with a line in the
log, and nothing else. So does a login that fails, or does not come.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import traceback
from typing import TYPE_CHECKING

import structlog

from tailrace.broker.connection import Connection, TurnedAwayError
from tailrace.errors import MalformedError, TailraceError

if TYPE_CHECKING:
    from tailrace.broker.auth.tls import Certificate
    from tailrace.broker.broker import Broker

_BACKLOG = 512
_BUFFER = 1 << 16
_LOOK_S = 1.0
_NO_DESCRIPTORS_S = 0.5


class Server:
    """Listens for clients of a broker. `strict`: without users nobody gets in."""

    def __init__(
        self,
        broker: Broker,
        *,
        certificate: Certificate | None = None,
        strict: bool = False,
        advertised: tuple[str, int] | None = None,
    ) -> None:
        self._broker, self._limits = broker, broker.settings.limits
        self._certificate = certificate
        self._tls = certificate.context() if certificate is not None else None
        self._strict = strict
        self._advertised = advertised
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: dict[asyncio.Task[None], Connection | None] = {}
        """None where the TLS handshake is not over."""
        self._open = not broker.access.users
        self._complained = 0.0
        self._events = structlog.get_logger()
        broker.on_access = self._part

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._clients)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port it is."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listeners = []
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
            listener.setblocking(False)
            listeners.append(listener)
        self._tasks = [asyncio.create_task(self._accept(listener)) for listener in listeners]
        self._tasks.append(asyncio.create_task(self._look()))
        bound: int = listeners[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the port and all connections."""
        for task in (*self._tasks, *self._clients):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._clients, return_exceptions=True)

    def reload(self) -> None:
        """Read the certificate again; those who are connected keep theirs."""
        if self._certificate is not None:
            try:
                self._tls = self._certificate.context()
                self._events.info("broker.certificate-read")
            except TailraceError as error:
                self._events.error("broker.certificate-kept", reason=str(error))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    link, _ = await loop.sock_accept(listener)
                except OSError as error:
                    self._complain("descriptors", error=str(error))
                    await asyncio.sleep(_NO_DESCRIPTORS_S)
                    continue
                if len(self._clients) >= self._limits.connections:
                    link.close()
                    self._complain("connections", most=self._limits.connections)
                    continue
                task = asyncio.create_task(self._serve(link))
                self._clients[task] = None
                task.add_done_callback(lambda ended: self._clients.pop(ended, None))

    def _complain(self, limit: str, **about: object) -> None:
        """A line a second at most: there may be thousands at the door."""
        self._broker.tally.refused[limit] += 1
        now = time.monotonic()
        if now > self._complained + 1:
            self._complained = now
            self._events.warning("broker.full", limit=limit, **about)

    async def _serve(self, link: socket.socket) -> None:
        peer = ""
        try:
            peer = str(link.getpeername()[0])
            reader, writer = await self._open_streams(link)
        except (OSError, asyncio.CancelledError) as error:
            link.close()
            if isinstance(error, ssl.SSLError | TimeoutError):
                self._turn_away(peer, TurnedAwayError("tls", str(error) or "no handshake in time"))
            return
        connection = Connection(
            self._broker, reader, writer, strict=self._strict, advertised=self._advertised
        )
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = connection
        try:
            await connection.serve()
        except MalformedError as error:
            self._broker.tally.refused["malformed"] += 1
            self._events.warning("broker.malformed", peer=peer, reason=str(error)[:200])
        except TurnedAwayError as error:
            self._turn_away(peer, error)
        except TailraceError as error:
            self._events.warning("broker.unanswered", reason=str(error)[:200])
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # It was told to end, or the server stops: there is nobody to tell.
            pass
        except Exception:
            self._events.error("broker.failed", trace=traceback.format_exc())
        finally:
            writer.transport.abort()

    async def _open_streams(
        self, link: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_BUFFER, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        handshake_s = self._limits.login_s if self._tls is not None else None
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, link, ssl=self._tls, ssl_handshake_timeout=handshake_s
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _turn_away(self, peer: str, error: TurnedAwayError) -> None:
        self._broker.tally.refused[error.reason] += 1
        self._events.warning(
            "broker.turned-away", peer=peer, why=error.reason, reason=str(error)[:200]
        )

    async def _look(self) -> None:
        """Close those that have waited for too long."""
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            for task, connection in list(self._clients.items()):
                late = connection.overdue(now) if connection is not None else None
                if connection is not None and late is not None:
                    if late.reason == "idle":
                        self._broker.tally.refused["idle"] += 1
                    else:
                        self._turn_away(connection.peer, late)
                    task.cancel()

    def _part(self) -> None:
        """Users have changed. Those who are gone go, and so do those who came without a login."""
        opened, self._open = self._open, not self._broker.access.users
        for task, connection in list(self._clients.items()):
            if connection is not None and (connection.stale or (opened and not self._open)):
                self._events.info(
                    "broker.parted", peer=connection.peer, user=connection.login.user or ""
                )
                task.cancel()

"""A broker as a process: until SIGTERM or SIGINT, then in order.

SIGHUP has the certificate read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.broker.broker import Broker, Settings
from tailrace.broker.endpoints import Endpoints
from tailrace.broker.server import Server
from tailrace.errors import ConfigError
from tailrace.observe.endpoints import listening as listening_socket

if TYPE_CHECKING:
    from tailrace.broker.auth.tls import Certificate

_FIRST_USER = "Add one first: tailrace broker user add NAME --superuser"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where clients find the broker, and how they reach it."""

    address: tuple[str, int]
    advertised: tuple[str, int] | None = None
    """What clients are told instead: a proxy's address, or the name in the certificate."""
    certificate: Certificate | None = None
    insecure: bool = False
    """Whether it may be reached from elsewhere without TLS."""
    http: tuple[str, int] = ("127.0.0.1", 0)
    """Where the HTTP endpoints are; port 0 is nowhere."""

    @property
    def loopback(self) -> bool:
        """Whether it is for this machine alone."""
        host = self.address[0]
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def check(self) -> None:
        """An error if passwords and records would travel in the clear."""
        if self.loopback or self.certificate is not None or self.insecure:
            return
        raise ConfigError(
            f"{self.address[0]} can be reached from elsewhere, and nothing is encrypted",
            hint="Give --tls-cert and --tls-key, or --insecure on a network you trust.",
        )


def address(text: str) -> tuple[str, int]:
    """Host and port of an option."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address", hint="Write host:port: 127.0.0.1:9092")
    return host, int(port)


async def serve(settings: Settings, listening: Listening) -> None:
    """Listen for Kafka's clients until a signal comes."""
    listening.check()
    events = structlog.get_logger()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    broker = Broker(settings)
    await broker.start()
    async with contextlib.AsyncExitStack() as ending:
        ending.push_async_callback(broker.stop)
        if not listening.loopback and not broker.access.users:
            raise ConfigError(
                f"{listening.address[0]} can be reached from elsewhere, and there are no users",
                hint=_FIRST_USER,
            )
        server = Server(
            broker,
            certificate=listening.certificate,
            strict=not listening.loopback,
            advertised=listening.advertised,
        )
        ending.push_async_callback(server.stop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, server.reload)
        host, port = listening.address
        try:
            port = await server.start(host, port)
        except OSError as error:
            said = error.strerror or error
            raise ConfigError(f"cannot listen on {host}:{port}: {said}") from error
        await _tell(listening.http, Endpoints(broker, server), ending)
        if not listening.loopback and listening.certificate is None:
            events.warning("broker.insecure", reason="records travel without encryption")
        events.info(
            "broker.listening",
            address=f"{host}:{port}",
            topics=len(broker.catalog.topics),
            users=len(broker.access.users),
            tls=listening.certificate is not None,
        )
        await stop.wait()
    events.info("broker.stopped")


async def _tell(
    http: tuple[str, int], endpoints: Endpoints, ending: contextlib.AsyncExitStack
) -> None:
    """Serve the HTTP endpoints until everything ends, if there are to be any."""
    if not http[1]:
        return
    listener = ending.enter_context(listening_socket(*http))
    task = asyncio.create_task(endpoints.run_on(listener))

    async def end() -> None:
        endpoints.should_exit = True
        await task

    ending.push_async_callback(end)

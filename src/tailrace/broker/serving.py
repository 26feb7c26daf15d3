"""The broker as a process: serves until SIGTERM or SIGINT, then stops in order.

SIGHUP reloads the certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import structlog

from tailrace.broker.auth.tls import Certificate, limit_buffers
from tailrace.broker.broker import Broker
from tailrace.broker.descriptors import raise_limit
from tailrace.broker.endpoints import Endpoints
from tailrace.broker.server import Server
from tailrace.errors import ConfigError
from tailrace.observe.endpoints import listening as listening_socket
from tailrace.observe.hosts import AllowedHosts

if TYPE_CHECKING:
    from tailrace.broker.settings import BrokerSettings
    from tailrace.config import Http


async def serve(dsn: str, settings: BrokerSettings, http: Http) -> None:
    """Serve Kafka's clients until a signal arrives. The endpoints have the port of `settings`."""
    certificate = _certificate(settings)
    _check_encryption(settings)
    raise_limit(settings.max_connections)
    limit_buffers()
    events = structlog.get_logger()
    stop = asyncio.Event()
    broker = Broker(dsn, settings)
    await broker.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.stop)
        _check_users(settings, broker)
        server = Server(
            broker,
            certificate=certificate,
            login_required=not settings.loopback,
            advertised=settings.advertised,
        )
        stack.push_async_callback(server.stop)
        _handle_signals(stop, server)
        address = await _listen(server, settings)
        if settings.port:
            endpoints = Endpoints(broker, server, AllowedHosts(http.host, http.hosts))
            await _serve_http((http.host, settings.port), endpoints, stack)
        if not settings.loopback and certificate is None:
            events.warning("broker.unencrypted", reason="clients connect without TLS")
        events.info(
            "broker.listening",
            address=address,
            topics=len(broker.catalog.topics),
            users=len(broker.access.users),
            tls=certificate is not None,
        )
        await _until(stop, broker)
    events.info("broker.stopped")


async def _until(stop: asyncio.Event, broker: Broker) -> None:
    """Wait for a signal. A background task that ends is an error: the broker does not go on."""
    stopped, watched = asyncio.create_task(stop.wait()), asyncio.create_task(broker.watch())
    try:
        await asyncio.wait({stopped, watched}, return_when=asyncio.FIRST_COMPLETED)
        if watched.done():
            watched.result()
    finally:
        stopped.cancel()
        watched.cancel()


def _certificate(settings: BrokerSettings) -> Certificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(
        chain=settings.tls_cert, key=settings.tls_key, client_authority=settings.tls_client_ca
    )


def _check_encryption(settings: BrokerSettings) -> None:
    """An error if passwords and records would be sent over a network without TLS."""
    if settings.loopback or settings.tls_cert is not None or settings.insecure:
        return
    raise ConfigError(
        f"refusing to listen on {settings.listen} without TLS",
        hint="Set --tls-cert and --tls-key, or --insecure on a trusted network.",
    )


def _check_users(settings: BrokerSettings, broker: Broker) -> None:
    """An error if any client in the network could do everything."""
    if settings.loopback or broker.access.users:
        return
    raise ConfigError(
        f"refusing to listen on {settings.listen} without users",
        hint="Add a user first: tailrace broker user add NAME --superuser",
    )


def _handle_signals(stop: asyncio.Event, server: Server) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, server.reload)


async def _listen(server: Server, settings: BrokerSettings) -> str:
    """Start to listen; the address with the port that port 0 became."""
    host, port = settings.address
    try:
        port = await server.start(host, port)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from error
    return f"{host}:{port}"


async def _serve_http(
    address: tuple[str, int], endpoints: Endpoints, stack: contextlib.AsyncExitStack
) -> None:
    """Serve the HTTP endpoints until the stack closes."""
    listener = stack.enter_context(listening_socket(*address))
    task = asyncio.create_task(endpoints.run_on(listener))

    async def end() -> None:
        endpoints.should_exit = True
        await task

    stack.push_async_callback(end)

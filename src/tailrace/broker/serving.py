"""A broker as a process: until SIGTERM or SIGINT, then in order."""

from __future__ import annotations

import asyncio
import ipaddress
import signal

import structlog

from tailrace.broker.broker import Broker, Settings
from tailrace.broker.server import Server
from tailrace.errors import ConfigError


def address(listen: str) -> tuple[str, int]:
    """Host and port of `--listen`."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{listen!r} is no address", hint="Write host:port: 127.0.0.1:9092")
    if not _loopback(host):
        raise ConfigError(
            f"{host} can be reached from elsewhere, and clients need no login",
            hint="Listen on 127.0.0.1, and let a tunnel or a proxy with a login stand in front.",
        )
    return host, int(port)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(settings: Settings, listen: str) -> None:
    """Listen for Kafka's clients until a signal comes."""
    host, port = address(listen)
    broker = Broker(settings)
    await broker.start()
    server = Server(broker)
    events = structlog.get_logger()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        port = await server.start(host, port)
        events.info("broker.listening", address=f"{host}:{port}", topics=len(broker.catalog.topics))
        await stop.wait()
    except OSError as error:
        raise ConfigError(f"cannot listen on {listen}: {error.strerror or error}") from error
    finally:
        await server.stop()
        await broker.stop()
    events.info("broker.stopped")

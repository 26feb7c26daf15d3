"""Connections that break, hang or reach another kind of server."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.sink import JetStream
from tailrace.testing import EmbeddedNats, TcpProxy
from tests.integration.nats.streams import (
    batch,
    deliver,
    expected,
    held,
    opened,
    sink_settings,
)
from tests.unit.sinks.rows import position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.sinks.nats.settings import NatsSink


@pytest.fixture
def proxied(server: EmbeddedNats) -> Iterator[tuple[TcpProxy, NatsSink]]:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy, sink_settings(f"nats://127.0.0.1:{proxy.port}", timeout_s=5.0)


def test_a_broken_connection_is_reopened(proxied: tuple[TcpProxy, NatsSink]) -> None:
    proxy, settings = proxied
    sink = JetStream(settings, Lane(pipeline="test"))
    sink.open(ORIGIN)
    sink.write(batch(settings, range(1000)))
    sink.flush()
    proxy.cut()
    with pytest.raises(SinkUnreachableError):
        deliver(sink, (batch(settings, range(n, n + 1000)) for n in range(1000, 10**6, 1000)))
    with pytest.raises(SinkUnreachableError, match="not open"):
        sink.flush()
    sink.open(position(999))
    sink.write(batch(settings, range(1000, 2000)))
    sink.flush()
    proxy.cut()
    # `open` detects that an idle connection is broken.
    sink.open(position(1999))
    sink.write(batch(settings, range(2000, 3000)))
    sink.flush()
    sink.close()
    assert held(settings) == expected(settings, range(3000))


def test_a_server_that_hangs_is_unreachable(proxied: tuple[TcpProxy, NatsSink]) -> None:
    proxy, settings = proxied
    with opened(settings) as sink:
        proxy.black_hole()
        sink.write(batch(settings, range(10)))
        with pytest.raises(SinkUnreachableError, match="has not answered for 5 s"):
            sink.flush()
        with pytest.raises(SinkUnreachableError):
            sink.open(ORIGIN)
        proxy.heal()
        sink.open(ORIGIN)
        sink.write(batch(settings, range(10)))
        sink.flush()
    assert held(settings) == expected(settings, range(10))


def test_sending_to_a_server_that_hangs_fails(proxied: tuple[TcpProxy, NatsSink]) -> None:
    proxy, settings = proxied
    settings = settings.model_copy(update={"max_outstanding": 10**6})
    with opened(settings) as sink:
        proxy.black_hole()
        large = batch(settings, range(1000), size=20_000)
        with pytest.raises(SinkUnreachableError):
            deliver(sink, itertools.repeat(large))


def test_the_next_address_is_tried(server: EmbeddedNats) -> None:
    settings = sink_settings(f"nats://127.0.0.1:1, {server.url}")
    with opened(settings) as sink:
        sink.write(batch(settings, range(10)))
        assert sink.flush().messages == 10


@contextlib.contextmanager
def listening(talk: Callable[[socket.socket], object], scheme: str = "nats") -> Iterator[NatsSink]:
    """Settings for a server that accepts one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            link, _ = listener.accept()
            with link:
                talk(link)

        thread = threading.Thread(target=accept)
        thread.start()
        yield sink_settings(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_another_kind_of_server_is_refused() -> None:
    def greet(link: socket.socket) -> None:
        link.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        link.recv(1)

    with (
        listening(greet) as settings,
        pytest.raises(SinkRefusedError, match="does not speak NATS"),
    ):
        JetStream(settings, Lane(pipeline="test")).open(ORIGIN)


def test_a_server_that_ends_during_the_tls_handshake_is_unreachable() -> None:
    def end(link: socket.socket) -> None:
        link.sendall(b'INFO {"tls_required": true}\r\n')
        link.recv(1 << 16)

    with listening(end, "tls") as settings, pytest.raises(SinkUnreachableError, match="lost"):
        JetStream(settings, Lane(pipeline="test")).open(ORIGIN)


def test_a_server_that_did_not_wait_for_the_login_is_unreachable() -> None:
    """It gives a client a few seconds. Later it may wait longer, unlike for a wrong password."""

    def end(link: socket.socket) -> None:
        link.sendall(b"INFO {}\r\n-ERR 'Authentication Timeout'\r\n")
        link.recv(1 << 16)

    with (
        listening(end) as settings,
        pytest.raises(SinkUnreachableError, match="Authentication Timeout"),
    ):
        JetStream(settings, Lane(pipeline="test")).open(ORIGIN)


def test_a_server_without_responders_is_unreachable() -> None:
    """As a cluster whose servers with JetStream are down. Its ping is answered before that."""

    def serve(link: socket.socket) -> None:
        with link.makefile("rb") as lines:
            link.sendall(b'INFO {"headers": true}\r\n')
            reply = b""
            while not reply:
                word, *words = next(lines).split()
                if word == b"PING":
                    link.sendall(b"PONG\r\n")
                elif word == b"PUB":
                    reply = words[1]
            link.sendall(b"PING\r\n")
            while next(lines) != b"PONG\r\n":
                pass
            status = b"NATS/1.0 503\r\n\r\n"
            link.sendall(b"HMSG %s 1 %d %d\r\n%s\r\n" % (reply, len(status), len(status), status))
            lines.read(1)

    with (
        listening(serve) as settings,
        pytest.raises(SinkUnreachableError, match="nothing answers") as caught,
    ):
        JetStream(settings, Lane(pipeline="test")).open(ORIGIN)
    assert "-js" in caught.value.hint


def test_a_server_without_jetstream_is_refused() -> None:
    config = "accounts { A { users: [{user: a, password: a}] } }"
    with EmbeddedNats(config=config) as server:
        settings = sink_settings(server.url, user="a", password="a")
        with pytest.raises(SinkRefusedError, match=r"JetStream|nothing answers"):
            JetStream(settings, Lane(pipeline="test")).open(ORIGIN)

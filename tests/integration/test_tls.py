"""TLS through the DSN: the right authority is accepted, everything else is refused.

The embedded PostgreSQL is built without TLS, so a front answers libpq's SSLRequest, does the
handshake and passes the bytes on. The client's side, which is what is tested, is libpq's own.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from tailrace.config import load
from tailrace.errors import PostgresRefusedError, SinkRefusedError, TailraceError
from tailrace.postgres.connection import connect
from tailrace.postgres.preflight.facts import gather
from tailrace.sinks.postgres.settings import PostgresSink
from tailrace.sinks.postgres.sink_type import SINK
from tailrace.snapshot.copy import copy, lines
from tailrace.snapshot.receive import possible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedPostgres

SSL_REQUEST = struct.pack(">II", 8, 80877103)


@pytest.fixture(scope="module")
def tls_port(postgres: EmbeddedPostgres, certificates: Path) -> Iterator[int]:
    """A front that speaks TLS to the client and plain text to the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "named.crt", certificates / "named.key")
    context.set_alpn_protocols(["postgresql"])
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_accept, args=(listener, context, postgres.port))
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _accept(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client, contextlib.suppress(OSError):
            _serve(client, context, port)


def _serve(client: socket.socket, context: ssl.SSLContext, port: int) -> None:
    assert client.recv(8) == SSL_REQUEST
    client.sendall(b"S")
    with (
        context.wrap_socket(client, server_side=True) as secure,
        socket.create_connection(("127.0.0.1", port)) as server,
    ):
        back = threading.Thread(target=_pump, args=(server, secure))
        back.start()
        _pump(secure, server)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


def dsn(port: int, host: str = "localhost", **options: object) -> str:
    extra = " ".join(f"{key}={value}" for key, value in options.items())
    return f"host={host} hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres {extra}"


def refusal(text: str) -> TailraceError:
    with pytest.raises(TailraceError) as caught:
        connect(text)
    return caught.value


def test_the_right_authority_is_accepted(tls_port: int, certificates: Path) -> None:
    root = certificates / "ca.crt"
    with connect(dsn(tls_port, sslmode="verify-full", sslrootcert=root)) as connection:
        line = gather(connection, load(), log_exists=False).link
    assert line.encrypted
    assert line.sslmode == "verify-full"


def test_encryption_without_proof_is_seen_as_such(tls_port: int) -> None:
    with connect(dsn(tls_port, sslmode="require")) as connection:
        line = gather(connection, load(), log_exists=False).link
    assert line.encrypted
    assert line.sslmode == "require"


def test_rows_are_copied_by_libpq(tls_port: int) -> None:
    """What is on the socket is not for us to read."""
    with connect(dsn(tls_port, sslmode="require")) as connection:
        assert not possible(connection.pgconn)
        rows = "SELECT n, 'x' FROM generate_series(1, 100000) n"
        assert sum(count for count, _ in copy(connection, rows, 2)) == 100_000
        assert [*lines(connection, "SELECT 1, NULL")] == [(1, bytearray(b"1\t\\N\n"))]


def test_another_authority_is_refused(tls_port: int, certificates: Path) -> None:
    root = certificates / "other.crt"
    error = refusal(dsn(tls_port, sslmode="verify-full", sslrootcert=root))
    assert isinstance(error, PostgresRefusedError)
    assert "certificate verify failed" in str(error)
    assert "sslrootcert" in error.hint


def test_another_host_is_refused(tls_port: int, certificates: Path) -> None:
    root = certificates / "ca.crt"
    error = refusal(dsn(tls_port, "db.example", sslmode="verify-full", sslrootcert=root))
    assert isinstance(error, PostgresRefusedError)
    assert 'does not match host name "db.example"' in str(error)


def test_a_missing_root_certificate_is_refused(tls_port: int, certificates: Path) -> None:
    error = refusal(dsn(tls_port, sslmode="verify-full", sslrootcert=certificates / "gone.crt"))
    assert isinstance(error, PostgresRefusedError)
    assert "root certificate file" in str(error)


def test_a_server_without_tls_is_refused(postgres: EmbeddedPostgres) -> None:
    error = refusal(dsn(postgres.port, sslmode="require"))
    assert isinstance(error, PostgresRefusedError)
    assert "server does not support SSL" in str(error)


def test_the_sink_connects_with_tls_and_verifies_the_server(
    tls_port: int, certificates: Path
) -> None:
    def probe(root: str) -> None:
        text = dsn(tls_port, sslmode="verify-full", sslrootcert=certificates / root)
        settings = PostgresSink.model_validate(
            {"type": "postgres", "dsn": text, "password": "ignored"}
        )
        SINK.probe(settings, name="p")

    probe("ca.crt")
    with pytest.raises(SinkRefusedError, match="certificate verify failed") as caught:
        probe("other.crt")
    assert "sslrootcert in `dsn` of the sink" in caught.value.hint

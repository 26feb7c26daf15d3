"""What a connection sends before the server has accepted it, as a server without TLS reads it."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

from tailrace.errors import SinkRefusedError
from tailrace.jetstream.connection import NatsConnection
from tailrace.jetstream.settings import NatsServer

if TYPE_CHECKING:
    from pathlib import Path

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)


class Listener:
    """A server for one connection. It offers no TLS, and keeps what the client sends."""

    def __init__(self) -> None:
        self.received = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def _serve(self) -> None:
        client, _ = self._listening.accept()
        with self._listening, client:
            client.sendall(b"INFO %s\r\n" % json.dumps({"nonce": "abc"}).encode())
            while b"PING\r\n" not in self.received:
                data = client.recv(4096)
                if not data:
                    return
                self.received += data
            client.sendall(b"PONG\r\n")

    def sent_by(self, **login: Any) -> bytes:
        NatsConnection.connect(
            NatsServer.model_validate({"url": f"nats://{self.address}"} | login), name="test"
        ).close()
        self._thread.join()
        return self.received


def test_passwords_and_tokens_are_sent_as_they_are() -> None:
    assert b'"pass": "s3cret"' in Listener().sent_by(user="ann", password="s3cret")
    assert b'"auth_token": "s3cret"' in Listener().sent_by(token="s3cret")


def test_a_seed_is_not_sent(tmp_path: Path) -> None:
    file = tmp_path / "user.nk"
    file.write_bytes(SEED)
    sent = Listener().sent_by(nkey=file)
    assert b'"sig"' in sent
    assert SEED not in sent


@pytest.mark.parametrize("login", [{"user": "ann", "password": "s3cret"}, {"token": "s3cret"}])
def test_nothing_is_sent_to_a_server_without_tls_if_tls_is_configured(
    login: dict[str, str],
) -> None:
    listener = Listener()
    with pytest.raises(SinkRefusedError, match="does not offer TLS"):
        listener.sent_by(url=f"tls://{listener.address}", **login)
    assert listener.received == b""

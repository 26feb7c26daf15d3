"""A client without a library: sends any request, and shows error codes that libraries hide."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import io
import secrets
import socket
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tailrace.broker import wire
from tests.waiting import LONG_S

if TYPE_CHECKING:
    import ssl

SOON = timedelta(milliseconds=1)
_USUAL = {
    "include_authorized_operations": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


class ClosedError(Exception):
    """The server closed the connection."""


class Raw:
    """A connection."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), LONG_S)
        if tls is not None:
            self.link = tls.wrap_socket(self.link, server_hostname="localhost")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def send(self, api: int, version: int, values: dict[str, Any]) -> None:
        frame = request(api, version, values)
        self.link.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next frame."""
        try:
            (size,) = struct.unpack(">i", self._exactly(4))
            return self._exactly(size)
        except ConnectionError as error:
            raise ClosedError from error

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.link.recv(min(size - len(found), 1 << 20))
            if not piece:
                raise ClosedError
            found += piece
        return bytes(found)

    def ask(self, api: int, version: int, values: dict[str, Any]) -> Any:
        """The response to a request."""
        self.send(api, version, values)
        return response(self.receive(), api, version)

    def login(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Any:
        """Log in. Returns the last response, with its `error_code`."""
        chosen = self.ask(17, 1, {"mechanism": mechanism})
        if chosen.error_code:
            return chosen
        if mechanism == "PLAIN":
            return self.ask(36, 2, {"auth_bytes": f"\0{user}\0{password}".encode()})
        name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        bare = f"n={user},r={secrets.token_urlsafe(12)}".encode()
        first = self.ask(36, 2, {"auth_bytes": b"n,," + bare})
        if first.error_code:
            return first
        fields = dict(part.split(b"=", 1) for part in first.auth_bytes.split(b","))
        salt = base64.b64decode(fields[b"s"])
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, int(fields[b"i"]))
        key = hmac.digest(salted, b"Client Key", name)
        final = b"c=biws,r=" + fields[b"r"]
        transcript = b",".join((bare, first.auth_bytes, final))
        signature = hmac.digest(hashlib.new(name, key).digest(), transcript, name)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        token = final + b",p=" + base64.b64encode(proof)
        last = self.ask(36, 2, {"auth_bytes": token})
        if not last.error_code:
            server = hmac.digest(hmac.digest(salted, b"Server Key", name), transcript, name)
            assert last.auth_bytes == b"v=" + base64.b64encode(server)
        return last

    def closed(self) -> bool:
        """Whether the server closes the connection without a response."""
        self.link.settimeout(LONG_S)
        with contextlib.suppress(ConnectionError):
            return self.link.recv(1) == b""
        return True


def request(api: int, version: int, values: dict[str, Any]) -> bytes:
    kind: Any = load_request_schema(api, version)
    buffer = io.BytesIO()
    header = {
        "request_api_key": api, "request_api_version": version, "correlation_id": 7,
        "client_id": "raw",
    }  # fmt: skip
    entity_writer(kind.__header_schema__)(buffer, wire.build(kind.__header_schema__, header))
    entity_writer(kind)(buffer, wire.build(kind, _USUAL | values))
    return buffer.getvalue()


def response(frame: bytes, api: int, version: int) -> Any:
    kind: Any = load_response_schema(api, version)
    _, size = entity_reader(kind.__header_schema__)(frame, 0)
    found, _ = entity_reader(kind)(frame, size)
    return found


def batch(*values: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 30,
    )  # fmt: skip
    for number, value in enumerate(values):
        builder.append(number, 1_700_000_000_000, None, value, [])
    return bytes(builder.build())


def produce(topic: str, *batches: bytes) -> dict[str, Any]:
    """The fields of a Produce request with batches for partition 0."""
    parts = [{"index": 0, "records": each} for each in batches]
    return {
        "transactional_id": None, "acks": -1, "timeout": timedelta(seconds=30),
        "topic_data": [{"name": topic, "partition_data": parts}],
    }  # fmt: skip


def fetch(topic: str, *, max_bytes: int = 1 << 20, wait: timedelta = SOON) -> dict[str, Any]:
    """The fields of a Fetch request for partition 0 from the beginning."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": max_bytes}
    return {
        "replica_id": -1, "max_wait": wait, "min_bytes": 1, "max_bytes": max_bytes,
        "isolation_level": 0, "topics": [{"topic": topic, "partitions": [part]}],
        "forgotten_topics_data": [],
    }  # fmt: skip


def join(group: str, metadata: bytes = b"") -> dict[str, Any]:
    """The fields of a JoinGroup request of version 3, in which a member joins at once.

    Its session is longer than any test.
    """
    return {
        "group_id": group, "session_timeout": timedelta(minutes=30),
        "rebalance_timeout": timedelta(minutes=30), "member_id": "", "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }  # fmt: skip

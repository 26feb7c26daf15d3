"""Single requests that no client library sends, and their responses."""

from __future__ import annotations

import dataclasses
import io
import socket
import struct
from typing import TYPE_CHECKING, Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tailrace.broker import wire
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = struct.Struct(">i")


def ask(bootstrap: str, api: int, version: int, values: dict[str, Any]) -> Any:
    """Send one request on a new connection."""
    kind: Any = load_request_schema(api, version)
    header = {
        "request_api_key": api, "request_api_version": version, "correlation_id": 7,
        "client_id": "test",
    }  # fmt: skip
    buffer = io.BytesIO()
    entity_writer(kind.__header_schema__)(buffer, wire.build(kind.__header_schema__, header))
    entity_writer(kind)(buffer, wire.build(kind, values))
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), LONG_S) as link, link.makefile("rb") as stream:
        link.sendall(_LENGTH.pack(len(buffer.getvalue())) + buffer.getvalue())
        (size,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        frame = stream.read(size)
    answer: Any = load_response_schema(api, version)
    _, at = entity_reader(answer.__header_schema__)(frame, 0)
    found, _ = entity_reader(answer)(frame, at)
    return found


def errors(answer: Any) -> set[str]:
    """All errors in a response, at any depth."""
    return {code.name for code in _codes(answer)} - {"none"}


def _codes(value: Any) -> Iterator[ErrorCode]:
    if isinstance(value, ErrorCode):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _codes(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _codes(getattr(value, field.name))


def batch(size: int = 100) -> bytes:
    """A record batch of exactly `size` bytes, with one record."""
    value = b""
    while len(made := _batch(value)) != size:
        value = bytes(max(0, len(value) + size - len(made)))
    return made


def _batch(value: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=len(value) + 1000,
    )  # fmt: skip
    builder.append(0, 1_700_000_000_000, None, value, [])
    return bytes(builder.build())

"""Requests and responses of every version, read and written with `kio`.

Handlers name fields. `tailrace.broker.api.requests` types those they read. A response is a nested
dict, from which each version takes the fields that it has.
"""

from __future__ import annotations

import dataclasses
import io
import struct
import types
import typing
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tailrace.broker import bounds
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HEAD = struct.Struct(">hhi")
_DEFAULTS = {"throttle_time": timedelta(0), "error_code": ErrorCode.none}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first fields of every request."""

    api: int
    version: int
    correlation: int


def head(frame: bytes) -> Head:
    """The API key, the version and the correlation id of a request."""
    if len(frame) < _HEAD.size:
        raise MalformedError(f"request of {len(frame)} bytes is shorter than its header")
    api, version, correlation = _HEAD.unpack_from(frame)
    return Head(api=api, version=version, correlation=correlation)


def request(frame: bytes, head: Head) -> tuple[str, Any]:
    """The client's `client.id` and the request."""
    kind, read_header, read_body = _readers(head.api, head.version)
    try:
        header, size = read_header(frame, 0)
        bounds.check(frame, size, kind)
        # Bytes after the body are ignored, as in Kafka: librdkafka sends some.
        body, _ = read_body(frame, size)
    except Exception as error:
        raise MalformedError(f"request {head.api} v{head.version}: {error}") from error
    return header.client_id or "", body


def response(head: Head, values: Mapping[str, Any]) -> bytes:
    """The bytes of a response, without the length in front."""
    kind, write_header, write_body = _writers(head.api, head.version)
    buffer = io.BytesIO()
    write_header(buffer, build(kind.__header_schema__, {"correlation_id": head.correlation}))
    write_body(buffer, build(kind, values))
    return buffer.getvalue()


@cache
def _readers(api: int, version: int) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    kind: Any = load_request_schema(api, version)
    return kind, entity_reader(kind.__header_schema__), entity_reader(kind)


@cache
def _writers(api: int, version: int) -> tuple[Any, Callable[..., None], Callable[..., None]]:
    kind: Any = load_response_schema(api, version)
    return kind, entity_writer(kind.__header_schema__), entity_writer(kind)


def build(kind: Any, values: Mapping[str, Any]) -> Any:
    """An entity from the values for the fields that its version has."""
    fields = {}
    for name, nested, many in _fields(kind):
        if name in values:
            value = values[name]
            if nested is not None and value is not None:
                value = tuple(build(nested, one) for one in value) if many else build(nested, value)
            fields[name] = value
        elif name in _DEFAULTS:
            fields[name] = _DEFAULTS[name]
    return kind(**fields)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Name, nested entity or None, and whether the field is an array, per field."""
    hints = typing.get_type_hints(kind)
    return tuple((field.name, *_inside(hints[field.name])) for field in dataclasses.fields(kind))


def _inside(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return (inner if dataclasses.is_dataclass(inner) else None), True
    return (hint if dataclasses.is_dataclass(hint) else None), False

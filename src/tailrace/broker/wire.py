"""Kafka's requests and responses by `kio`, whatever their version.

Handlers speak of fields by name. A request of an old version lacks some, so they are asked for with
a default; a response is given as nested dicts, of which each version takes the fields it has.
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
    """How every request begins."""

    api: int
    version: int
    correlation: int


def head(frame: bytes) -> Head:
    """What is asked, and in which version."""
    if len(frame) < _HEAD.size:
        raise MalformedError(f"a request of {len(frame)} bytes")
    api, version, correlation = _HEAD.unpack_from(frame)
    return Head(api=api, version=version, correlation=correlation)


def request(frame: bytes, found: Head) -> tuple[str, Any]:
    """The client's id and the request."""
    kind, read_header, read_body = _readers(found.api, found.version)
    try:
        header, size = read_header(frame, 0)
        bounds.check(frame, size, kind)
        # Bytes behind it are nobody's business: librdkafka sends some, and Kafka does not look.
        body, _ = read_body(frame, size)
    except Exception as error:
        raise MalformedError(f"request {found.api} v{found.version}: {error}") from error
    return header.client_id or "", body


def response(found: Head, values: Mapping[str, Any]) -> bytes:
    """A frame without its length."""
    kind, write_header, write_body = _writers(found.api, found.version)
    buffer = io.BytesIO()
    write_header(buffer, build(kind.__header_schema__, {"correlation_id": found.correlation}))
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
    """An entity of the fields that its version has."""
    made = {}
    for name, nested, many in _fields(kind):
        if name in values:
            value = values[name]
            if nested is not None and value is not None:
                value = (
                    tuple(build(nested, each) for each in value) if many else build(nested, value)
                )
            made[name] = value
        elif name in _DEFAULTS:
            made[name] = _DEFAULTS[name]
    return kind(**made)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Names, the entity inside if there is one, and whether there are many of them."""
    hints = typing.get_type_hints(kind)
    return tuple((field.name, *_inside(hints[field.name])) for field in dataclasses.fields(kind))


def _inside(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return (inner if dataclasses.is_dataclass(inner) else None), True
    return (hint if dataclasses.is_dataclass(hint) else None), False

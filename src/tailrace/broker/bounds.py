"""Checks the counts and lengths of a request before it is parsed.

`kio` allocates as many elements as a request claims to have: a request of a few bytes could use up
all memory. So every request is first walked along its schema, reading only counts and lengths.

A request may have 10,000 elements (topics, groups, members), and 100,000 with all that they
contain.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from functools import cache
from typing import Any

from tailrace.errors import MalformedError

_MAX_ELEMENTS = 10_000
_MAX_ALL_ELEMENTS = 100_000
_FIXED = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16, "timedelta_i32": 4,
    "timedelta_i64": 8,
}  # fmt: skip
_SHORT, _LONG = struct.Struct(">h"), struct.Struct(">i")
_MAX_VARINT = 5


def check(frame: bytes, at: int, kind: Any) -> None:
    """An error if a request of this kind claims more elements or bytes than the frame has."""
    try:
        _Walk(frame).walk(at, kind, max_count=_MAX_ELEMENTS)
    except (IndexError, struct.error) as error:
        raise MalformedError("request is truncated") from error


class _Walk:
    """A walk through a request, which counts its elements."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MAX_ALL_ELEMENTS

    def walk(self, at: int, kind: Any, *, max_count: int) -> int:
        """The offset after an entity that begins at `at`."""
        data, flexible = self._data, bool(kind.__flexible__)
        for inner, is_array, nullable in _steps(kind):
            if is_array:
                count, at = _length(data, at, flexible=flexible, short=False)
                if count < 0 and not nullable:
                    raise MalformedError("request has null in a field that cannot be null")
                self._check_count(count, len(data) - at, max_count)
                for _ in range(count):
                    at = self._skip(at, inner, flexible=flexible)
            else:
                at = self._skip(at, inner, flexible=flexible, nullable=nullable)
            if at > len(data):
                raise MalformedError("request is truncated")
        return _skip_tags(data, at) if flexible else at

    def _check_count(self, count: int, size: int, max_count: int) -> None:
        self._left -= max(count, 0)
        if count > size:
            raise MalformedError(f"request claims {count:,} elements in {size:,} bytes")
        if count > max_count:
            raise MalformedError(f"request has {count:,} elements, max is {max_count:,}")
        if self._left < 0:
            raise MalformedError(f"request has more than {_MAX_ALL_ELEMENTS:,} elements in all")

    def _skip(self, at: int, inner: Any, *, flexible: bool, nullable: bool = False) -> int:
        if not isinstance(inner, str):
            return self.walk(at, inner, max_count=_MAX_ALL_ELEMENTS)
        if inner in _FIXED:
            return at + _FIXED[inner]
        size, at = _length(self._data, at, flexible=flexible, short=inner == "string")
        if size < 0 and not nullable:
            raise MalformedError("request has null in a field that cannot be null")
        return at + max(size, 0)


def _skip_tags(data: bytes, at: int) -> int:
    count, at = _varint(data, at)
    if count > len(data) - at:
        raise MalformedError(f"request claims {count:,} tagged fields in {len(data) - at:,} bytes")
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at


def _length(data: bytes, at: int, *, flexible: bool, short: bool) -> tuple[int, int]:
    """A count or length, below 0 for null, and the offset after it."""
    if flexible:
        size, at = _varint(data, at)
        return size - 1, at
    width = _SHORT if short else _LONG
    (size,) = width.unpack_from(data, at)
    return size, at + width.size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(_MAX_VARINT):
        byte = data[at + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise MalformedError("request has a varint of more than 5 bytes")


@cache
def _steps(kind: Any) -> tuple[tuple[Any, bool, bool], ...]:
    """Per field, in order: its type or entity, whether it is an array, whether it may be null."""
    hints = typing.get_type_hints(kind)
    steps = []
    for field in dataclasses.fields(kind):
        if "tag" in field.metadata:
            continue
        hint = hints[field.name]
        nullable = isinstance(hint, types.UnionType)
        if nullable:
            hint = next(one for one in typing.get_args(hint) if one is not type(None))
        is_array = typing.get_origin(hint) is tuple
        inner = typing.get_args(hint)[0] if is_array else hint
        steps.append((field.metadata.get("kafka_type", inner), is_array, nullable))
    return tuple(steps)

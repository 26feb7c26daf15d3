"""Counts and lengths of a request, looked at before anything is made of them.

`kio` makes room for as many elements as a request says it has, before it looks for them: a frame of
a few bytes could ask for more memory than there is. So every request is walked along first, over
the same schema, and nothing is read but counts and lengths.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from functools import cache
from typing import Any

from tailrace.errors import MalformedError

_MOST_ELEMENTS = 100_000
_FIXED = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16, "timedelta_i32": 4,
    "timedelta_i64": 8,
}  # fmt: skip
_SHORT, _LONG = struct.Struct(">h"), struct.Struct(">i")
_MOST_VARINT = 5


def check(frame: bytes, at: int, kind: Any) -> None:
    """An error unless a request of this kind, from an offset on, has what it says it has."""
    try:
        _walk(frame, at, kind)
    except (IndexError, struct.error) as error:
        raise MalformedError("a request that is cut off") from error


def _walk(data: bytes, at: int, kind: Any) -> int:
    flexible: bool = kind.__flexible__
    for inner, many, optional in _steps(kind):
        if many:
            count, at = _length(data, at, flexible=flexible, short=False)
            if count > min(len(data) - at, _MOST_ELEMENTS) or (count < 0 and not optional):
                raise MalformedError(f"{count:,} elements in {len(data) - at:,} bytes")
            for _ in range(count):
                at = _skip(data, at, inner, flexible=flexible)
        else:
            at = _skip(data, at, inner, flexible=flexible, optional=optional)
        if at > len(data):
            raise MalformedError("a request that is cut off")
    return _skip_tags(data, at) if flexible else at


def _skip(data: bytes, at: int, inner: Any, *, flexible: bool, optional: bool = False) -> int:
    if not isinstance(inner, str):
        return _walk(data, at, inner)
    if inner in _FIXED:
        return at + _FIXED[inner]
    size, at = _length(data, at, flexible=flexible, short=inner == "string")
    if size < 0 and not optional:
        raise MalformedError("nothing where there must be something")
    return at + max(size, 0)


def _skip_tags(data: bytes, at: int) -> int:
    count, at = _varint(data, at)
    if count > len(data) - at:
        raise MalformedError(f"{count:,} tagged fields in {len(data) - at:,} bytes")
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at


def _length(data: bytes, at: int, *, flexible: bool, short: bool) -> tuple[int, int]:
    """How many there are, below 0 for null, and where they begin."""
    if flexible:
        size, at = _varint(data, at)
        return size - 1, at
    width = _SHORT if short else _LONG
    (size,) = width.unpack_from(data, at)
    return size, at + width.size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(_MOST_VARINT):
        byte = data[at + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise MalformedError("a number that does not end")


@cache
def _steps(kind: Any) -> tuple[tuple[Any, bool, bool], ...]:
    """What a request has, in order: a type or an entity, whether there are many, or may be null."""
    hints = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        if "tag" in field.metadata:
            continue
        hint = hints[field.name]
        optional = isinstance(hint, types.UnionType)
        if optional:
            hint = next(each for each in typing.get_args(hint) if each is not type(None))
        many = typing.get_origin(hint) is tuple
        inner = typing.get_args(hint)[0] if many else hint
        found.append((field.metadata.get("kafka_type", inner), many, optional))
    return tuple(found)

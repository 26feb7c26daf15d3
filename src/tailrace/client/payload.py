"""Bytes as messages: JSON or MessagePack, told apart by the first byte."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import ormsgpack

from tailrace.errors import MalformedError

Encoding = Literal["json", "msgpack"]


def decoded(data: bytes, encoding: Encoding | None = None) -> dict[str, Any]:
    """The object that a message holds. Without an encoding, `{` at the beginning means JSON.

    >>> decoded(b'{"id": 1}'), decoded(bytes.fromhex("81a2696401"))
    ({'id': 1}, {'id': 1})
    """
    kind = encoding or ("json" if data[:1] == b"{" else "msgpack")
    try:
        found = orjson.loads(data) if kind == "json" else ormsgpack.unpackb(data)
    except ValueError as error:
        raise MalformedError(f"a message is not {kind}: {error}") from error
    if not isinstance(found, dict):
        raise MalformedError(f"a message holds {type(found).__name__}, not an object")
    return found

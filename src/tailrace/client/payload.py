"""Decodes messages: JSON or MessagePack, detected by the first byte."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import ormsgpack

from tailrace.errors import MalformedError

Encoding = Literal["json", "msgpack"]


def decode(data: bytes, encoding: Encoding | None = None) -> dict[str, Any]:
    """The object in a message. Without an encoding, a leading `{` means JSON.

    >>> decode(b'{"id": 1}'), decode(bytes.fromhex("81a2696401"))
    ({'id': 1}, {'id': 1})
    """
    kind = encoding or ("json" if data[:1] == b"{" else "msgpack")
    try:
        content = orjson.loads(data) if kind == "json" else ormsgpack.unpackb(data)
    except ValueError as error:
        raise MalformedError(f"a message is not valid {kind}: {error}") from error
    if not isinstance(content, dict):
        raise MalformedError(f"a message must hold an object, got {type(content).__name__}")
    return content

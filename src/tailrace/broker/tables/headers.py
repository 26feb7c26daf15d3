"""Headers of records in the table: a JSON array of `[name, value]`, in the producer's order.

A value is a JSON string if its bytes are UTF-8 text without NUL, otherwise `{"base64": "..."}`.
SQL may also write numbers, booleans, arrays and objects; consumers get their JSON text.
"""

from __future__ import annotations

import base64

import orjson


def to_json(value: bytes | None) -> object:
    r"""A header's value for the table.

    >>> to_json(b"text"), to_json(b"\xff"), to_json(None)
    ('text', {'base64': '/w=='}, None)
    """
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    # PostgreSQL's jsonb cannot hold a NUL.
    return {"base64": base64.b64encode(value).decode()} if "\0" in text else text


def from_json(value: object) -> bytes | None:
    """The bytes of a header's value."""
    if value is None:
        return None
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def parse(text: str | None) -> list[tuple[str, bytes | None]]:
    """The headers of a record.

    >>> parse('[["a", "1"], ["b", null], ["c", {"base64": "/w=="}]]')
    [('a', b'1'), ('b', None), ('c', b'\\xff')]
    """
    return [(name, from_json(value)) for name, value in orjson.loads(text)] if text else []

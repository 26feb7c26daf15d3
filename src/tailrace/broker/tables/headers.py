"""Headers of records as the table has them: a JSON array of `[name, value]`, in their order.

A value is text where it is text, else an object with its bytes.
"""

from __future__ import annotations

import base64

import orjson


def shown(value: bytes | None) -> object:
    """A header's value as JSON."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": base64.b64encode(value).decode()} if "\0" in text else text


def meant(value: object) -> bytes | None:
    """The bytes of a header's value."""
    if value is None:
        return None
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def read(text: str | None) -> list[tuple[str, bytes | None]]:
    """The headers of a record.

    >>> read('[["a", "1"], ["b", null], ["c", {"base64": "/w=="}]]')
    [('a', b'1'), ('b', None), ('c', b'\\xff')]
    """
    return [(name, meant(value)) for name, value in orjson.loads(text)] if text else []

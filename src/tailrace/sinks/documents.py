"""Whether a payload is JSON: with `payload`, and with text of a row in it, it may be any bytes."""

from __future__ import annotations

import orjson


def json_flaw(payload: bytes) -> str:
    """Why a payload is not JSON; empty if it is.

    >>> json_flaw(b'{"id": 1}'), bool(json_flaw(b"hello")), bool(json_flaw(b""))
    ('', True, True)
    """
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        return str(error)
    return ""

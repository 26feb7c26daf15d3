"""Data streams: a name, or the ARN of a stream, which may be of another account."""

from __future__ import annotations

import re

_STREAM = re.compile(r"(?:arn:[a-z-]+:kinesis:[a-z0-9-]+:[0-9]{12}:stream/)?[A-Za-z0-9_.-]{1,128}")


def is_stream(destination: str) -> bool:
    """Whether a destination is a stream.

    >>> is_stream("orders"), is_stream("a/b"), is_stream("")
    (True, False, False)
    >>> is_stream("arn:aws:kinesis:eu-central-1:123456789012:stream/orders")
    True
    """
    return _STREAM.fullmatch(destination) is not None


def naming(destination: str) -> dict[str, str]:
    """The parameter of a call that names a stream."""
    return {"StreamARN" if destination.startswith("arn:") else "StreamName": destination}

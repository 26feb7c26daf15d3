"""The limits of requests. Settings have them, so this loads neither numpy nor pyarrow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large requests are, and how many are sent at a time."""

    rows: int = 1
    bytes: int = 1 << 20
    """Of payloads. A larger message has a request of its own."""
    concurrency: int = 16
    distinct: bool = False
    """Whether a request has at most one message of a group: the destination answers for each."""
    one_key: bool = False
    """Whether all messages of a request have the same key."""
    one_destination: bool = True
    """Whether all messages of a request have the same destination."""

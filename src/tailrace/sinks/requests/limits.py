"""How large requests are. Light: settings are checked in processes that send none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large requests are, and how many are sent at a time."""

    rows: int = 1
    bytes: int = 1 << 20
    """Of payloads. A larger message has a request of its own."""
    concurrency: int = 16
    one_destination: bool = True
    """Whether all messages of a request have the same destination."""

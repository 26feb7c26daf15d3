"""The destination of a message in Kafka: a topic, or one partition of it as `topic/3`.

Templates and escaping are in `destination`; here a finished destination, which may come from a
user's `route`, is checked and taken apart.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BY_KEY = -1
"""librdkafka's number for "the hash of the key chooses the partition"."""
_DESTINATION = re.compile(rb"([A-Za-z0-9._-]{1,249})(?:/([0-9]{1,9}))?")


class Destination(NamedTuple):
    """Where a message goes."""

    topic: str
    partition: int = BY_KEY


def parse_destination(destination: bytes) -> Destination | None:
    """The topic and the partition of a destination; None if Kafka does not allow the name.

    >>> parse_destination(b"shop.public.orders")
    Destination(topic='shop.public.orders', partition=-1)
    >>> parse_destination(b"orders/3")
    Destination(topic='orders', partition=3)
    >>> parse_destination(b"orders!"), parse_destination(b".."), parse_destination(b"orders/x")
    (None, None, None)
    """
    match = _DESTINATION.fullmatch(destination)
    if match is None or match[1] in (b".", b".."):
        return None
    return Destination(match[1].decode(), int(match[2]) if match[2] else BY_KEY)

"""Destinations: a topic, or a partition of one as `topic/3`."""

from __future__ import annotations

import re
from typing import NamedTuple

ANY = -1
"""The partition that the key chooses."""
_PLACE = re.compile(rb"([A-Za-z0-9._-]{1,249})(?:/([0-9]{1,9}))?")


class Place(NamedTuple):
    """Where a message goes."""

    topic: str
    partition: int = ANY


def place(destination: bytes) -> Place | None:
    """What a destination means; None if Kafka has no such names.

    >>> place(b"shop.public.orders"), place(b"orders/3")
    (Place(topic='shop.public.orders', partition=-1), Place(topic='orders', partition=3))
    >>> place(b"orders!"), place(b".."), place(b"orders/x")
    (None, None, None)
    """
    found = _PLACE.fullmatch(destination)
    if found is None or found[1] in (b".", b".."):
        return None
    return Place(found[1].decode(), int(found[2]) if found[2] else ANY)

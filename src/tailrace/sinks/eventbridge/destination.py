"""Destinations of events: a bus, a blank, and the detail type, which rules of the bus match.

default public.orders.insert
arn:aws:events:eu-central-1:123456789012:event-bus/shop public.orders.insert
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BUS = re.compile(r"(?:arn:[a-z-]+:events:[a-z0-9-]+:[0-9]{12}:event-bus/)?[A-Za-z0-9._/-]{1,256}")


class Destination(NamedTuple):
    """Where an event goes."""

    bus: str
    detail_type: str


def parse_destination(destination: str) -> Destination | None:
    """The parts of a destination; None if it is invalid.

    >>> parse_destination("default order created")
    Destination(bus='default', detail_type='order created')
    >>> parse_destination("default"), parse_destination("a: b"), parse_destination("a " + "b" * 129)
    (None, None, None)
    """
    bus, _, detail_type = destination.partition(" ")
    if _BUS.fullmatch(bus) is None or not 1 <= len(detail_type) <= 128:
        return None
    return Destination(bus, detail_type)

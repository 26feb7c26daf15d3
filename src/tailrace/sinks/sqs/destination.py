"""Queues: a name, or the URL of a queue, which may be of another account.

The name of a FIFO queue ends with `.fifo`.
"""

from __future__ import annotations

import re

FIFO = ".fifo"
LONGEST = 80
_QUEUE = re.compile(r"(https?://[!-.0-~]+/[0-9]{12}/)?([A-Za-z0-9_-]+(?:\.fifo)?)")


def is_queue(destination: str) -> bool:
    """Whether a destination is a queue.

    >>> is_queue("orders"), is_queue("orders.fifo"), is_queue("a.orders"), is_queue("o" * 81)
    (True, True, False, False)
    >>> is_queue("https://sqs.eu-central-1.amazonaws.com/123456789012/orders")
    True
    """
    match = _QUEUE.fullmatch(destination)
    return match is not None and len(match[2]) <= LONGEST


def is_url(destination: str) -> bool:
    """Whether a queue is given by its URL."""
    return "/" in destination

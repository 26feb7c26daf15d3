"""Topics, which SNS knows by their ARN only. The name of a FIFO topic ends with `.fifo`."""

from __future__ import annotations

import re

FIFO = ".fifo"
LONGEST = 256
_TOPIC = re.compile(r"arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:([A-Za-z0-9_-]+(?:\.fifo)?)")


def is_topic(destination: str) -> bool:
    """Whether a destination is a topic.

    >>> is_topic("arn:aws:sns:eu-central-1:123456789012:orders.fifo"), is_topic("orders")
    (True, False)
    """
    match = _TOPIC.fullmatch(destination)
    return match is not None and len(match[1]) <= LONGEST

"""Delivers an open batch without SQL stages: one task reads the log, encodes and delivers.

So a change takes no way through the JVM: near the end of the log that saves time, and far from it
the CPU of copies and of planning. See `tailrace.open_batch` for the protocol.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.pipeline.frames import frame
from tailrace.pipeline.frames.blocks import encoder_of
from tailrace.pipeline.frames.build import open_log
from tailrace.pipeline.frames.frame import check_sizes, in_order

if TYPE_CHECKING:
    from tailrace.open_batch import OpenBatch
    from tailrace.pipeline.delivery import Delivery
    from tailrace.pipeline.open_source import OpenSource

_FLUSH_S, _FAR_FLUSH_S = 0.1, 1.0
"""How often to flush while the log has more. The sink is idle from a flush to the next part, which
matters far from the end of the log."""


def deliver_open(delivery: Delivery, batch: OpenBatch, source: OpenSource, *, page: int) -> None:
    """Follow the log until the batch ends, and record where."""
    delivery.own(batch, source.records)
    following = source.follow(open_log(source.log), batch, page=page)
    begin, flushed_s = following.reached, time.monotonic()
    encoder = encoder_of(source.spec)
    for part in following.parts():
        now = time.monotonic()
        if part is not None and part.groups:
            groups = check_sizes(part.groups, limit=frame.MAX_PARKED_BYTES)
            messages = [encoder.encode(group) for group in groups]
            delivery.write(in_order(messages), begin)
        flush_s = _FAR_FLUSH_S if following.far else _FLUSH_S
        if part is None or (part.whole and now - flushed_s >= flush_s):
            flushed_s = now
            delivery.reach(following.reached, closed=False)
    delivery.reach(following.reached, closed=True)

"""The loop of threads that publish schemas: at the start, on a change and once a minute."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from tailrace.backoff import Backoff
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

_POLL_S = 1.0
_FULL_INTERVAL_S = 60.0


def follow(
    publish: Sequence[Callable[[], object]],
    changed: Callable[[], bool],
    stop: threading.Event,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Publish until stopped. After a failure nothing is published until the retry is due.

    A failure of `changed` is ignored: the publish of the next minute reports it.
    """
    backoff = Backoff(first_s=1.0, max_s=30.0, clock=clock)
    due_s = clock()
    while not stop.is_set():
        if clock() >= due_s or (not backoff.failures and _changed(changed)):
            due_s = clock() + _publish(publish, backoff)
        stop.wait(_POLL_S)


def _changed(changed: Callable[[], bool]) -> bool:
    try:
        return changed()
    except (TailraceError, OSError):
        return False


def _publish(publish: Sequence[Callable[[], object]], backoff: Backoff) -> float:
    """Publish everything; the seconds until the next time."""
    try:
        for each in publish:
            each()
    except TailraceError as error:
        retry_in_s = backoff.next_s()
        structlog.get_logger().warning(
            "schemas.publish_failed",
            code=error.code,
            reason=str(error),
            retry_in_s=round(retry_in_s, 1),
        )
        return retry_in_s
    backoff.reset()
    return _FULL_INTERVAL_S

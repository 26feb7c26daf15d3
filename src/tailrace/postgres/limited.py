"""Connections that give up a server that stops answering.

PostgreSQL ends statements that take too long, and TCP connections whose peer is gone. Neither
notices a server, or a proxy, that hangs with its connections open.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")


class LimitedConnection(psycopg.Connection[Any]):
    """Fails with OperationalError if an answer takes longer than `answer_timeout_s`."""

    answer_timeout_s = math.inf

    def wait(self, gen: PQGen[T], *given: Any, **options: Any) -> T:
        """Everything that waits for the server passes here."""
        limited = _within(self.answer_timeout_s, gen)
        return super().wait(limited, *given, **options)


def _within(timeout_s: float, gen: PQGen[T]) -> PQGen[T]:
    """The same exchange with the server, which fails after a time.

    psycopg resumes it several times per second, also if there is nothing to read or to write.
    """
    end_s = time.monotonic() + timeout_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end_s:
                raise psycopg.OperationalError(f"no answer within {timeout_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as ended:
        answer: T = ended.value
        return answer

"""The topics that Kafka refuses: each by itself, until its reason is gone.

A refused topic is left out, and the others go on. Its progress stays where it is, in the ledger, so
nothing is skipped: after the reason is gone, the missing records are read from the table. A topic
is tried again with its next record, but at most once per minute, because a failed attempt aborts
the transaction of all topics. A copy request (`tailrace shadow on TOPIC`, or a start) tries at
once. The ledger has the refusals too, for the next process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.errors import PoisonedError, SinkRefusedError
from tailrace.sinks.contract import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tailrace.errors import TailraceError
    from tailrace.shadow.source import BrokerTopic

REFUSED = (SinkRefusedError, PoisonedError)
"""Errors that may be of one topic. Others are of the cluster, or pass by themselves."""
RETRY_S = 60.0


class Refusals:
    """The refused topics by their uuids, and when each is due again."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._now = now
        self._refusals: dict[str, Refusal] = {}
        self._due_s: dict[str, float] = {}

    def load(self, refusals: Mapping[str, Refusal]) -> None:
        """Replace the refusals by those of the ledger. Those of another process are due."""
        self._refusals = dict(refusals)

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._refusals

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._refusals))

    def waits(self, uuid: str) -> bool:
        """Whether a topic is refused and not due yet."""
        return uuid in self._refusals and self._clock() < self._due_s.get(uuid, 0.0)

    def make_due(self, uuid: str) -> None:
        """Try a topic again at once."""
        self._due_s.pop(uuid, None)

    def add(self, topic: BrokerTopic, error: TailraceError) -> Refusal:
        """Refuse a topic; it keeps the time of its first refusal."""
        before = self._refusals.get(topic.uuid)
        refusal = Refusal(
            destination=topic.name,
            code=error.code,
            reason=str(error),
            hint=error.hint,
            since_s=before.since_s if before else self._now(),
        )
        self._refusals[topic.uuid] = refusal
        self._due_s[topic.uuid] = self._clock() + RETRY_S
        return refusal

    def remove(self, uuid: str) -> Refusal | None:
        """Forget a topic: it is copied again, or no longer."""
        self._due_s.pop(uuid, None)
        return self._refusals.pop(uuid, None)

    def present(self) -> tuple[Refusal, ...]:
        """All refusals, by topic."""
        return tuple(sorted(self._refusals.values(), key=lambda each: each.destination))

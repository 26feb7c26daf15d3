"""The demo's receiver of webhooks: now and then a message fails twice before it is accepted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING

from tailrace.cli.demo.arrival import parse
from tailrace.testing import HttpReceiver, HttpResponse

if TYPE_CHECKING:
    from tailrace.cli.demo.tally import Counts
    from tailrace.testing import HttpRequest

FAILING_EVERY = 20
"""One of so many messages fails."""
_FAILURES = 2


class Webhooks(HttpReceiver):
    """Counts each change that it has accepted, once. In a `with` block."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self._deciding = threading.Lock()
        self._attempts: Counter[str] = Counter()
        """By id, of messages that were not accepted yet."""
        self._failing: dict[str, float] = {}
        """When the first attempt of a message came that has failed."""
        self._accepted: set[str] = set()
        self._seen = 0
        self._recovered = 0
        self._last = ""
        self.counts: Counts = Counter()
        """Accepted changes, by table and operation."""

    def keep(self, request: HttpRequest) -> None:
        """Nothing: the counts are enough."""

    @property
    def recovered(self) -> int:
        """Messages that were accepted after they had failed."""
        return self._recovered

    def summary(self) -> str:
        """What it has accepted, and the last message that it accepted after failures."""
        with self._deciding:
            text = f"{self.counts.total():,} accepted, {self._recovered:,} of them after failures"
            return f"{text}; {self._last}" if self._last else text

    def _answer(self, request: HttpRequest) -> HttpResponse:
        now = time.time()
        with self._deciding:
            if self._fails(request.id, now):
                return HttpResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
            if request.id not in self._accepted:
                self._accept(request, now)
        return HttpResponse()

    def _fails(self, name: str, now: float) -> bool:
        self._attempts[name] += 1
        if self._attempts[name] == 1 and name not in self._accepted:
            self._seen += 1
            if self._seen % FAILING_EVERY == 1:
                self._failing[name] = now
        return name in self._failing and self._attempts[name] <= _FAILURES

    def _accept(self, request: HttpRequest, now: float) -> None:
        arrival = parse(request.body, now)
        self._accepted.add(request.id)
        self.counts[arrival.table, arrival.op] += 1
        attempts, began = self._attempts.pop(request.id), self._failing.pop(request.id, None)
        if began is not None:
            self._recovered += 1
            self._last = f"the last one at attempt {attempts}, {now - began:.1f} s after the first"

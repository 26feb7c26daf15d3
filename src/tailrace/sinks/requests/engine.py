"""Several requests at a time, and never two of one key.

A batch of messages is cut into requests. A request waits for every
earlier one that has a message of one of its groups (`tailrace.sinks.groups`). So a slow request, or
one that is tried again, holds up its own keys and no others.

| answer for a message | what happens                                                              |
|----------------------|---------------------------------------------------------------------------|
| accepted             | it counts in the next receipt                                             |
| refused              | a failure; if the receiver refused several messages together, they are    |
|                      | sent one by one first                                                     |
| try again            | sent again after a delay, as `Retry` describes; then a failure. If no     |
|                      | other message was accepted meanwhile, the destination is unreachable      |
| throttled            | every request waits as long as the destination asks; no attempt is counted|

The thread of the caller plans everything, whenever it calls. The threads of the pool only send.
"""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SinkUnreachableError
from tailrace.position import Lsn, Position
from tailrace.sinks.contract import Receipt
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.requests.request import Order, Request, cut
from tailrace.sinks.retry import Retry
from tailrace.sinks.unaccepted import Unaccepted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.requests.acknowledged import Acknowledged
    from tailrace.sinks.requests.limits import Limits

    Answer = Mapping[int, Outcome]
    """The rows of a request that were not accepted, and why."""
    Send = Callable[[pa.RecordBatch], Answer]

_UNDECIDED_ROWS = 2048
"""Messages in requests without an answer, beyond which `take` waits."""
_PATIENCE_S = 0.05
"""How long a flush in the middle of a batch waits for answers."""
_DECIDE_S = 0.05
"""How long a last outcome waits for those of other requests."""
_THROTTLED_S = 1.0
"""How long to wait if the destination does not say."""


class Requests:
    """Sends messages. `send` is called by several threads.

    What is accepted is noted in `acknowledged`. With `ordered` a key has at most one request. With
    `blocks` nothing of a key is sent after a message of it that was not accepted.
    """

    def __init__(
        self,
        send: Send,
        limits: Limits,
        retry: Retry | None = None,
        *,
        acknowledged: Acknowledged | None = None,
        ordered: bool = True,
        blocks: bool = True,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._send = send
        self._acknowledged = acknowledged
        self._limits = limits
        self._retry = retry or Retry()
        self._ordered, self._blocks = ordered, blocks
        self._clock, self._chance = clock, chance
        self._pool = ThreadPoolExecutor(limits.concurrency, thread_name_prefix="requests")
        self._answers: queue.SimpleQueue[tuple[Request, Answer | BaseException | None]] = (
            queue.SimpleQueue()
        )
        """None for a request that was not sent, because the destination asked for a pause."""
        self._order = Order()
        self._unaccepted = Unaccepted()
        self._requests: set[Request] = set()
        """Those without a final answer."""
        self._sent = 0
        """Those without an answer to their last attempt."""
        self._delayed: list[tuple[float, int, Request]] = []
        """A heap of those that are sent later: when, and a number that keeps their order."""
        self._numbers = itertools.count()
        self._paused_until_s = self._paused_since_s = 0.0
        self._undecided = 0
        self._most_undecided = max(_UNDECIDED_ROWS, 2 * limits.concurrency * limits.rows)
        self._messages = self._bytes = self._accepted = 0

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has been counted in a receipt."""
        return not (self._undecided or self._messages or self._unaccepted)

    def take(self, batch: pa.RecordBatch) -> None:
        """Send messages. Waits while too many have no answer."""
        for request in cut(batch, self._limits):
            self._undecided += request.rows.num_rows
            self._requests.add(request)
            if self._ordered:
                self._order.add(request)
            if not request.waits_for:
                self._start(request)
            self._advance()
            while self._undecided > self._most_undecided:
                self._await_answer(math.inf)

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for every answer; without `end` only for those that come soon."""
        deadline_s = math.inf if end else self._clock() + _PATIENCE_S
        self._advance()
        self._check_destination()
        while self._undecided and (end or (self._sent and self._clock() < deadline_s)):
            self._await_answer(deadline_s)
        failures = self._unaccepted.report()
        receipt = Receipt(
            messages=self._messages, bytes=self._bytes, failures=failures, upto=self._decided_upto()
        )
        self._messages = self._bytes = 0
        if not self._undecided:
            self._order, self._unaccepted = Order(), Unaccepted()
        return receipt

    def close(self) -> None:
        """Send nothing more. Answers to what was sent are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _decided_upto(self) -> Position | None:
        """The last position before every message without a final answer."""
        if not self._requests:
            return None
        lsn, ordinal = min(request.first_place() for request in self._requests)
        return Position(Lsn(lsn), ordinal - 1) if ordinal else Position(Lsn(lsn - 1), 1 << 63)

    def _await_answer(self, deadline_s: float) -> None:
        """Wait for an answer, until the next delayed request is due, or until a deadline."""
        self._check_destination()
        until_s = min(deadline_s, self._delayed[0][0]) if self._delayed else deadline_s
        timeout_s = None if until_s == math.inf else max(until_s - self._clock(), 0)
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            pass
        else:
            self._finish(*answer)
        self._advance()

    def _advance(self) -> None:
        """Take the answers that there are, and send what is due."""
        while not self._answers.empty():
            self._finish(*self._answers.get())
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            request = heapq.heappop(self._delayed)[2]
            if request.final:
                self._decide(request)
            else:
                self._start(request)

    def _start(self, request: Request) -> None:
        """Send a request that waits for no other, and those that it held up if it is empty."""
        ready = [request]
        while ready:
            each = ready.pop()
            if self._blocks and self._unaccepted.blocks:
                self._hold_back(each)
            if each.rows.num_rows:
                self._submit(each)
            elif each.advance():
                ready.append(each)
            else:
                self._requests.discard(each)
                ready += each.release()

    def _hold_back(self, request: Request) -> None:
        rows, groups = request.rows, request.groups
        request.rows, request.groups, decided = self._unaccepted.hold_back(rows, groups)
        later = rows.num_rows - decided
        if later:
            request.rest.append((rows.slice(decided), groups.slice(decided, later)))
        if request.rows.num_rows < rows.num_rows:
            request.size = None
            self._undecided -= decided - request.rows.num_rows

    def _submit(self, request: Request) -> None:
        now = self._clock()
        if now < self._paused_until_s:
            self._delay(request, self._paused_until_s)
            return
        if not request.attempts:
            request.began_s, request.accepted_before = now, self._accepted
        request.attempts += 1
        self._sent += 1
        self._pool.submit(self._run, request)

    def _delay(self, request: Request, until_s: float) -> None:
        heapq.heappush(self._delayed, (until_s, next(self._numbers), request))

    def _run(self, request: Request) -> None:
        """In a thread of the pool."""
        if self._clock() < self._paused_until_s:
            self._answers.put((request, None))
            return
        try:
            answer = self._send(request.rows)
            self._note(request.rows, answer)
            throttled = [each for each in answer.values() if each.verdict is Verdict.THROTTLED]
            if throttled:
                self._pause(throttled[0])
            self._answers.put((request, answer))
        except BaseException as error:
            # Whatever it is: without an answer the caller would wait for ever.
            self._answers.put((request, error))

    def _note(self, rows: pa.RecordBatch, answer: Answer) -> None:
        """Note what was accepted, before anything else may happen."""
        if self._acknowledged is None:
            return
        if answer:
            rows = rows.filter(pa.array([row not in answer for row in range(rows.num_rows)]))
        self._acknowledged.note(rows)

    def _pause(self, outcome: Outcome) -> None:
        """Send nothing for as long as the destination asks. At once: other requests are ready."""
        now = self._clock()
        self._paused_since_s = self._paused_since_s or now
        asked_s = outcome.retry_after_s or _THROTTLED_S * self._chance()
        self._paused_until_s = max(self._paused_until_s, now + asked_s)

    def _finish(self, request: Request, answer: Answer | BaseException | None) -> None:
        self._sent -= 1
        if answer is None:
            request.attempts -= 1
            self._delay(request, self._paused_until_s)
            return
        if isinstance(answer, BaseException):
            raise answer
        self._count_accepted(request, answer)
        if not answer:
            self._end(request)
            return
        rows = np.zeros(request.rows.num_rows, np.bool_)
        rows[list(answer)] = True
        outcomes = [answer[row] for row in sorted(answer)]
        request.keep(rows)
        if all(each.verdict is Verdict.REFUSED for each in outcomes) and _together(outcomes):
            request.divide()
            self._start(request)
            return
        self._fail(request, outcomes)

    def _count_accepted(self, request: Request, answer: Answer) -> None:
        rows = request.rows
        accepted = rows.num_rows - len(answer)
        self._undecided -= accepted
        self._messages += accepted
        self._accepted += accepted
        if accepted:
            known = request.size if not answer else None
            self._bytes += _size(rows, answer) if known is None else known
            self._paused_since_s = 0.0

    def _fail(self, request: Request, outcomes: list[Outcome]) -> None:
        """Go on with a request whose messages were not accepted: one outcome for each."""
        again = np.array([each.verdict is not Verdict.REFUSED for each in outcomes])
        self._give_up(request, outcomes, ~again)
        if not again.any():
            self._end(request)
            return
        outcomes = [outcomes[row] for row in np.flatnonzero(again).tolist()]
        until_s = self._next_attempt_s(request, outcomes)
        if until_s is not None:
            self._delay(request, until_s)
        else:
            request.final = outcomes
            self._decide(request)

    def _decide(self, request: Request) -> None:
        """Give a request up after its last attempt, if the destination accepts others."""
        if self._accepted > request.accepted_before:
            self._give_up(request, request.final, np.ones(len(request.final), np.bool_))
            request.final = []
            self._end(request)
        else:
            self._delay(request, self._clock() + _DECIDE_S)

    def _check_destination(self) -> None:
        """Raise if nothing is left but requests that were tried often enough.

        No other message was accepted meanwhile, so it is the destination that fails.
        """
        if self._sent or not self._delayed:
            return
        requests = [request for _, _, request in self._delayed]
        if all(each.final and each.accepted_before == self._accepted for each in requests):
            reason = requests[0].final[0].reason
            raise SinkUnreachableError(f"no message is accepted: {reason}")

    def _give_up(self, request: Request, outcomes: list[Outcome], rows: NDArray[np.bool_]) -> None:
        """Report some of a request's messages as failures."""
        for row in np.flatnonzero(rows).tolist():
            outcome = replace(outcomes[row], attempts=request.attempts)
            message, groups = request.rows.slice(row, 1), request.groups.slice(row, 1)
            self._unaccepted.add(message, groups, outcome)
        self._undecided -= int(np.count_nonzero(rows))
        request.keep(~rows)

    def _next_attempt_s(self, request: Request, outcomes: list[Outcome]) -> float | None:
        """When to send a request again; None if never."""
        now, retry = self._clock(), self._retry
        throttled = [each for each in outcomes if each.verdict is Verdict.THROTTLED]
        if throttled:
            request.attempts -= 1
            # It is 0 if another message was accepted after this answer had come.
            since_s = self._paused_since_s or now
            if self._paused_until_s - since_s > retry.max_elapsed_s:
                raise SinkUnreachableError(
                    f"the destination accepts no more messages: {throttled[0].reason}"
                )
            return self._paused_until_s
        asked_s = max(each.retry_after_s or 0.0 for each in outcomes)
        delay_s = max(retry.delay_s(request.attempts, self._chance()), asked_s)
        over = now - request.began_s + delay_s > retry.max_elapsed_s
        return now + delay_s if request.attempts < retry.attempts and not over else None

    def _end(self, request: Request) -> None:
        """A request has its final answer; start those that it held up."""
        if request.advance():
            self._start(request)
            return
        self._requests.discard(request)
        for follower in request.release():
            self._start(follower)


def _together(outcomes: list[Outcome]) -> bool:
    """Whether several messages were refused for one reason, which may be that of one of them."""
    return len(outcomes) > 1 and all(each is outcomes[0] for each in outcomes)


def _size(rows: pa.RecordBatch, answer: Answer) -> int:
    """Bytes of the payloads that were accepted."""
    lengths = pc.binary_length(rows.column("payload")).to_pylist()
    return sum(length for row, length in enumerate(lengths) if row not in answer)

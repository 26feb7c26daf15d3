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
|                      | other message was accepted meanwhile, the destination is unreachable, or  |
|                      | the message is at fault: `doubts` decides                                 |
| throttled            | every request waits as long as the destination asks (`pause`), or only    |
|                      | this one if a part of the destination asks; no attempt is counted         |

The thread of the caller plans everything, whenever it calls. The threads of the pool only send.

While a key has more messages waiting than `take` holds, all keys wait for its last attempt, which
is at most `max_elapsed_s` and one time limit of a request away. The same is true for the end of a
micro-batch: Spark commits it as a whole.
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
from tailrace.message import places_of
from tailrace.position import Lsn, Position
from tailrace.sinks.contract import Lane, Receipt
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.doubts import Doubts
from tailrace.sinks.requests.pause import Pause
from tailrace.sinks.requests.request import Order, Request, cut
from tailrace.sinks.retry import Retry
from tailrace.sinks.unaccepted import Unaccepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from tailrace.sinks.outcome import Outcome
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


class Requests:
    """Sends messages. `send` is called by several threads.

    What is accepted is noted in `acknowledged`, and what was given up in `doubts`. With `ordered` a
    key has at most one request. With `blocks` nothing of a key is sent after a message of it that
    was not accepted.
    """

    def __init__(
        self,
        send: Send,
        limits: Limits,
        retry: Retry | None = None,
        *,
        acknowledged: Acknowledged | None = None,
        doubts: Doubts | None = None,
        ordered: bool = True,
        blocks: bool = True,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._send = send
        self._limits = limits
        self._retry = retry = retry or Retry()
        self._acknowledged = acknowledged or Acknowledged()
        self._doubts = doubts or Doubts(Lane(pipeline="", retry=retry))
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
        self._pause = Pause(max_elapsed_s=retry.max_elapsed_s, clock=clock, chance=chance)
        self._undecided = 0
        self._most_undecided = max(_UNDECIDED_ROWS, 2 * limits.concurrency * limits.rows)
        self._messages = self._bytes = self._accepted = self._failed = 0

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
        self._give_up_last()
        while self._undecided and (end or (self._sent and self._clock() < deadline_s)):
            self._await_answer(deadline_s)
        failures = self._unaccepted.report()
        receipt = Receipt(
            messages=self._messages, bytes=self._bytes, failures=failures, failed=self._failed,
            upto=self._decided_upto(),
        )  # fmt: skip
        self._messages = self._bytes = self._failed = 0
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
        if self._give_up_last():
            return
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
        if self._pause.active:
            self._delay(request, self._pause.until_s)
            return
        self._pause.check()
        if not request.attempts:
            request.began_s = now
            if not request.divided:
                request.accepted_before = self._accepted
        request.attempts += 1
        self._sent += 1
        self._pool.submit(self._run, request)

    def _delay(self, request: Request, until_s: float) -> None:
        heapq.heappush(self._delayed, (until_s, next(self._numbers), request))

    def _run(self, request: Request) -> None:
        """In a thread of the pool."""
        if self._pause.active:
            self._answers.put((request, None))
            return
        try:
            answer = self._send(request.rows)
            self._note(request.rows, answer)
            for each in _throttled(answer.values()):
                if not each.in_part:
                    # At once: other requests are ready.
                    self._pause.begin(each)
            self._answers.put((request, answer))
        except BaseException as error:
            # Whatever it is: without an answer the caller would wait for ever.
            self._answers.put((request, error))

    def _note(self, rows: pa.RecordBatch, answer: Answer) -> None:
        """Note what was accepted, before anything else may happen."""
        if answer:
            rows = rows.filter(pa.array([row not in answer for row in range(rows.num_rows)]))
        self._acknowledged.note(rows)

    def _finish(self, request: Request, answer: Answer | BaseException | None) -> None:
        self._sent -= 1
        if answer is None:
            request.attempts -= 1
            self._delay(request, self._pause.until_s)
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
            self._failed += len(outcomes)
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
            self._pause.accepted()
            self._doubts.accepted()

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
            self._failed += sum(each.verdict is Verdict.RETRY for each in outcomes)
            self._delay(request, until_s)
        elif _together(outcomes) and self._doubts.has(request.rows):
            # One of them is enough for all to fail.
            self._failed += len(outcomes)
            request.divide()
            self._start(request)
        else:
            request.final = outcomes
            self._decide(request)

    def _decide(self, request: Request) -> None:
        """Give a request up after its last attempt, if the destination accepts others."""
        if self._others_accepted(request):
            self._doubts.note(request.rows)
            self._give_up_all(request)
        else:
            self._delay(request, self._clock() + _DECIDE_S)

    def _others_accepted(self, request: Request) -> bool:
        """Whether the destination has accepted a message since a request was first sent."""
        if self._accepted > request.accepted_before:
            return True
        return self._acknowledged.elsewhere_ago_s() < self._clock() - request.began_s

    def _give_up_last(self) -> bool:
        """Give up requests that were tried often enough, if only such are left, and no other
        message was accepted meanwhile. Raises if it may be the destination that fails."""
        if self._sent or not self._delayed:
            return False
        requests = [request for _, _, request in self._delayed]
        if not all(each.final and not self._others_accepted(each) for each in requests):
            return False
        places = np.concatenate([places_of(each.rows) for each in requests])
        whole = np.concatenate([each.groups.whole for each in requests]) & self._blocks
        if not self._doubts.give_up(places, whole):
            reason = requests[0].final[0].reason
            raise SinkUnreachableError(f"no message is accepted: {reason}")
        self._delayed.clear()
        for each in requests:
            self._give_up_all(each)
        return True

    def _give_up_all(self, request: Request) -> None:
        """Report all messages of a request as failures after its last attempt."""
        self._give_up(request, request.final, np.ones(len(request.final), np.bool_))
        request.final = []
        self._end(request)

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
        throttled = _throttled(outcomes)
        if throttled:
            request.attempts -= 1
            request.throttled += 1
            self._pause.throttled(throttled[0])
            if not all(each.in_part for each in throttled):
                return self._pause.until_s
            return now + retry.delay_s(request.throttled, self._chance())
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


def _throttled(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [each for each in outcomes if each.verdict is Verdict.THROTTLED]


def _together(outcomes: list[Outcome]) -> bool:
    """Whether several messages were refused for one reason, which may be that of one of them."""
    return len(outcomes) > 1 and all(each is outcomes[0] for each in outcomes)


def _size(rows: pa.RecordBatch, answer: Answer) -> int:
    """Bytes of the payloads that were accepted."""
    lengths = pc.binary_length(rows.column("payload")).to_pylist()
    return sum(length for row, length in enumerate(lengths) if row not in answer)

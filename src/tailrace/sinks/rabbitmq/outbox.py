"""Many messages in flight, and never two of one key.

| answer for a message     | what happens                                                          |
|--------------------------|-----------------------------------------------------------------------|
| basic.ack                | accepted: it counts in the next receipt                               |
| basic.return, basic.ack  | a failure: refused                                                    |
| basic.nack               | sent again after a delay, as `Retry` describes; then a failure. If no |
|                          | other message was accepted meanwhile, the broker is full, or the      |
|                          | message is at fault: `tailrace.sinks.requests.doubts` decides         |
| connection.blocked       | nothing is sent until connection.unblocked                            |

A message is sent when those that it waits for (`waits`) have their final answer. After one that
was not accepted, no other of its groups is sent (`Unaccepted`).
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tailrace.errors import SinkFullError, SinkUnreachableError
from tailrace.message import places_of
from tailrace.sinks.contract import Lane, Receipt
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.rabbitmq.channel import Confirm, Returned
from tailrace.sinks.rabbitmq.destination import Destination
from tailrace.sinks.rabbitmq.pool import Pool
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.doubts import Doubts
from tailrace.sinks.retry import Retry
from tailrace.sinks.unaccepted import Unaccepted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.sinks.rabbitmq.waits import Numbers

    class Publisher(Protocol):
        """A channel, as far as it is needed here."""

        @property
        def blocked(self) -> bool:
            """Whether the broker takes no messages at present."""

        def publish(self, rows: pa.RecordBatch) -> int:
            """Send messages. Returns the tag of the first one; the others follow."""

        def receive(self, timeout_s: float) -> Sequence[Confirm | Returned]:
            """Wait for answers, and return all that there are."""


_WRITE_ROWS, _WRITE_BYTES = 1000, 1 << 20
"""Sent at a time. Answers are taken in between."""
_LOOKAHEAD = 2
"""How many times what may be in flight is looked at for messages whose key is not."""
_PATIENCE_S = 0.05
"""How long a flush in the middle of a batch waits for answers."""
NACKED = Outcome(
    verdict=Verdict.RETRY,
    code="AMQP_NACK",
    reason="RabbitMQ does not take it: a queue is full, or has failed",
    hint="Let consumers catch up, or raise x-max-length of the queue.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be without a confirm, and for how long."""

    rows: int
    bytes: int
    timeout_s: float


class Outbox:
    """Sends messages through a channel.

    What is accepted is noted in `acknowledged`, and what was given up in `doubts`. With `ordered` a
    key has one message in flight. With `blocks` nothing of a key is sent after a message of it that
    was not accepted. `exchange` is that of destinations that name none.
    """

    def __init__(
        self,
        channel: Publisher,
        limits: Limits,
        retry: Retry | None = None,
        *,
        acknowledged: Acknowledged | None = None,
        doubts: Doubts | None = None,
        exchange: str = "",
        ordered: bool = True,
        blocks: bool = True,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._channel = channel
        self._limits = limits
        self._retry = retry or Retry()
        self._acknowledged = acknowledged or Acknowledged()
        self._doubts = doubts or Doubts(Lane(pipeline="", retry=self._retry))
        self._exchange = exchange
        self._blocks = blocks
        self._clock, self._chance = clock, chance
        self._pool = Pool(ordered=ordered)
        self._unaccepted = Unaccepted()
        self._returned: dict[int, Outcome] = {}
        """By tag: messages that were returned, and whose confirm has not come yet."""
        self._rows_of_id: defaultdict[bytes, list[int]] | None = None
        self._flying_rows = self._flying_bytes = 0
        self._answered_s = clock()
        """When the last answer came, or the first message after a pause was sent."""
        self._messages = self._bytes = self._accepted = 0

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has been counted in a receipt."""
        return not (self._pool.undecided or self._messages or self._unaccepted)

    def take(self, batch: pa.RecordBatch) -> None:
        """Send messages. Waits while too many have no answer."""
        for start in range(0, batch.num_rows, self._limits.rows):
            while self._pool.undecided >= _LOOKAHEAD * self._limits.rows:
                self._await_answer(math.inf)
            self._pool.add(batch.slice(start, self._limits.rows))
            self._rows_of_id = None
            self._advance()

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for every answer; without `end` only for those that come soon."""
        deadline_s = math.inf if end else self._clock() + _PATIENCE_S
        self._advance()
        self._check_broker()
        self._give_up_last()
        while self._pool.undecided and (end or (self._flying_rows and self._clock() < deadline_s)):
            self._await_answer(deadline_s)
        receipt = Receipt(
            messages=self._messages,
            bytes=self._bytes,
            failures=self._unaccepted.report(),
            upto=self._pool.decided_upto(),
        )
        self._messages = self._bytes = 0
        if not self._pool.undecided:
            self._unaccepted = Unaccepted()
        return receipt

    def _await_answer(self, deadline_s: float) -> None:
        """Wait for an answer, until the next message is due, or until a deadline."""
        self._check_broker()
        if not self._give_up_last():
            self._finish(self._channel.receive(max(self._wait_until_s(deadline_s), 0)))
        self._advance()

    def _wait_until_s(self, deadline_s: float) -> float:
        """How long to wait at most."""
        now = self._clock()
        state = self._pool.state[self._pool.waiting()]
        due_s = state["due_s"][~state["final"] & (state["due_s"] > now)]
        silent_s = (self._answered_s if self._flying_rows else now) + self._limits.timeout_s
        return float(min(deadline_s, silent_s, due_s.min(initial=math.inf))) - now

    def _check_broker(self) -> None:
        """Raise if the broker does not answer."""
        silent_s = self._clock() - self._answered_s
        if self._channel.blocked:
            self._answered_s = self._clock()
        elif self._flying_rows and silent_s >= self._limits.timeout_s:
            raise SinkUnreachableError(
                f"RabbitMQ has confirmed no message within {self._limits.timeout_s:g} s",
                hint="A queue may have no majority of its replicas. See the broker's log.",
            )

    def _give_up_last(self) -> bool:
        """Give up messages that were sent often enough, if only such are left, and no other was
        accepted meanwhile. Raises if it may be the broker that fails."""
        rows = self._pool.waiting()
        if self._channel.blocked or self._flying_rows or not len(rows):
            return False
        if not self._pool.state["final"][rows].all():
            return False
        if self._others_accepted()[rows].any():
            self._give_up()
            return True
        whole = self._pool.groups.whole[rows] & self._blocks
        if not self._doubts.give_up(places_of(self._pool.places(rows)), whole):
            raise SinkFullError(f"no message is accepted: {NACKED.reason}", hint=NACKED.hint)
        for row in rows.tolist():
            self._fail(row, NACKED)
        return True

    def _others_accepted(self) -> NDArray[np.bool_]:
        """Whether the broker has accepted a message since each one was first sent."""
        state, ago_s = self._pool.state, self._acknowledged.elsewhere_ago_s()
        own: NDArray[np.bool_] = state["accepted_before"] < self._accepted
        return own | (self._clock() - state["began_s"] > ago_s)

    def _advance(self) -> None:
        """Take the answers that there are, and send what is ready."""
        self._finish(self._channel.receive(0))
        self._give_up()
        while not self._channel.blocked:
            rows = self._permitted(self._pool.ready(self._clock()))
            rows = rows[: self._room(rows)]
            if not len(rows):
                return
            self._send(rows)
            self._finish(self._channel.receive(0))

    def _permitted(self, rows: Numbers) -> Numbers:
        """The rows that may be sent. The others fail, and then those that wait for them."""
        while self._blocks and self._unaccepted.blocks and len(rows):
            messages, groups = self._pool.take(rows), self._pool.groups.take(rows)
            waiting = self._unaccepted.waiting(messages, groups)
            if not waiting.any():
                break
            self._pool.decide(rows[waiting])
            rows = self._pool.ready(self._clock())
        return rows

    def _room(self, rows: Numbers) -> int:
        """How many of the rows to send at a time."""
        limits = self._limits
        most = min(len(rows), _WRITE_ROWS, limits.rows - self._flying_rows)
        if most <= 0:
            return 0
        sizes = np.cumsum(self._pool.state["bytes"][rows[:most]])
        room = min(_WRITE_BYTES, limits.bytes - self._flying_bytes)
        fitting = int(np.searchsorted(sizes, room, side="right"))
        # One that is larger than the limit is sent alone.
        alone = not self._flying_rows or sizes[0] <= limits.bytes - self._flying_bytes
        return max(fitting, 1) if alone else fitting

    def _send(self, rows: Numbers) -> None:
        now, state = self._clock(), self._pool.state
        first = self._channel.publish(self._pool.take(rows))
        if not self._flying_rows:
            self._answered_s = now
        new = rows[state["attempts"][rows] == 0]
        state["began_s"][new], state["accepted_before"][new] = now, self._accepted
        state["tag"][rows] = first + np.arange(len(rows))
        state["attempts"][rows] += 1
        self._flying_rows += len(rows)
        self._flying_bytes += int(state["bytes"][rows].sum())

    def _finish(self, answers: Sequence[Confirm | Returned]) -> None:
        """What answers mean."""
        if not answers:
            return
        self._answered_s = self._clock()
        accepted = []
        for answer in answers:
            if isinstance(answer, Returned):
                self._returned[self._tag_of(answer)] = answer.outcome
                continue
            rows = self._pool.with_tag(answer.tag, multiple=answer.multiple)
            if self._returned:
                rows = self._without_returned(rows)
            self._land(rows)
            if answer.accepted:
                accepted.append(rows)
            else:
                self._retry_later(rows)
        if accepted:
            self._accept(np.sort(np.concatenate(accepted)))

    def _land(self, rows: Numbers) -> None:
        """Rows are no longer in flight."""
        self._flying_rows -= len(rows)
        self._flying_bytes -= int(self._pool.state["bytes"][rows].sum())
        self._pool.state["tag"][rows] = 0

    def _tag_of(self, returned: Returned) -> int:
        """The tag of a returned message: the first of its id and destination in flight."""
        if self._rows_of_id is None:
            self._rows_of_id = defaultdict(list)
            for row, name in enumerate(self._pool.messages.column("id").to_pylist()):
                self._rows_of_id[name].append(row)
        destinations = self._pool.messages.column("destination")
        tags = [
            tag
            for row in self._rows_of_id[returned.id]
            if (tag := int(self._pool.state["tag"][row]))
            and tag not in self._returned
            and Destination.parse(destinations[row].as_py(), self._exchange) == returned.destination
        ]
        if not tags:
            raise SinkUnreachableError(f"RabbitMQ returned {returned.id!r}, which was not sent")
        return min(tags)

    def _without_returned(self, rows: Numbers) -> Numbers:
        """The rows that were not returned; the others are refused."""
        tags = self._pool.state["tag"][rows]
        returned = np.isin(tags, list(self._returned))
        for row, tag in zip(rows[returned].tolist(), tags[returned].tolist(), strict=True):
            self._land(np.array([row]))
            self._fail(row, self._returned.pop(tag))
        return rows[~returned]

    def _accept(self, rows: Numbers) -> None:
        if not len(rows):
            return
        self._acknowledged.note(self._pool.places(rows))
        self._doubts.accepted()
        self._messages += len(rows)
        self._accepted += len(rows)
        self._bytes += int(self._pool.state["bytes"][rows].sum())
        self._pool.decide(rows)

    def _retry_later(self, rows: Numbers) -> None:
        """Plan the next attempt of each row, or none."""
        now, state, retry = self._clock(), self._pool.state, self._retry
        for row in rows.tolist():
            attempts = int(state["attempts"][row])
            due_s = now + retry.delay_s(attempts, self._chance())
            over = due_s - float(state["began_s"][row]) > retry.max_elapsed_s
            state["due_s"][row] = due_s
            state["final"][row] = over or attempts >= retry.attempts

    def _give_up(self) -> None:
        """Fail the messages after their last attempt, if the broker accepts others."""
        state = self._pool.state
        final = np.flatnonzero(state["undecided"] & state["final"])
        final = final[self._others_accepted()[final]] if len(final) else final
        if len(final):
            self._doubts.note(self._pool.places(final))
        for row in final.tolist():
            self._fail(row, NACKED)

    def _fail(self, row: int, outcome: Outcome) -> None:
        """A message is not accepted."""
        rows = np.array([row])
        outcome = replace(outcome, attempts=int(self._pool.state["attempts"][row]))
        self._unaccepted.add(self._pool.take(rows), self._pool.groups.take(rows), outcome)
        self._pool.decide(rows)

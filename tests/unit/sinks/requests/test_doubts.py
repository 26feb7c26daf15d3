"""A message that always fails for now: it ends neither as a stop for ever, nor with its table."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from tailrace.errors import SinkUnreachableError
from tailrace.position import ORIGIN, READS, RELEASED
from tailrace.sinks.contract import Lane
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.doubts import Doubts
from tailrace.sinks.requests.engine import Requests
from tailrace.sinks.requests.limits import Limits
from tailrace.sinks.retry import Retry
from tests.unit.sinks.rows import position, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tailrace.position import Position

BUSY = Outcome(verdict=Verdict.RETRY, code="HTTP_503", reason="the receiver answers 503")
RETRY = Retry(attempts=2, first_s=0.001, max_s=0.01)
HOUR_S = 3600


def numbers(batch: pa.RecordBatch) -> list[int]:
    return [int(value.partition(b"\r")[0]) for value in batch.column("payload").to_pylist()]


def keyed(chosen: Iterable[int]) -> pa.RecordBatch:
    """Numbered messages, each with a key of its own."""
    batch = rows(chosen)
    at = batch.schema.get_field_index("key")
    keys = pa.array([b"%d" % number for number in numbers(batch)], pa.binary())
    return batch.set_column(at, batch.schema.field(at), keys)


class Lanes:
    """Attempts of micro-batches, each with an engine of its own, as after a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 1_763_491_200.0
        self.bad: set[int] = set()
        self.down = False
        self.accepted: list[int] = []

    def send(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The destination: one answer for all messages of a request."""
        if self.down or self.bad & set(numbers(batch)):
            return dict.fromkeys(range(batch.num_rows), BUSY)
        self.accepted += numbers(batch)
        return {}

    def attempt(
        self,
        batch: pa.RecordBatch,
        *,
        after: Position = ORIGIN,
        lane: int = 0,
        flushed: bool = True,
        rows: int = 1,
    ) -> list[int]:
        """Deliver a micro-batch, or be interrupted before its end. The messages that failed."""
        acknowledged = Acknowledged(self.folder, history="h", lane=lane)
        doubts = Doubts(
            Lane(pipeline="p", number=lane, history="h", folder=self.folder, retry=RETRY),
            now_s=lambda: self.now_s,
        )
        acknowledged.open(after)
        doubts.open(after)
        requests = Requests(
            self.send, Limits(rows=rows), RETRY, acknowledged=acknowledged, doubts=doubts
        )
        try:
            requests.take(acknowledged.missing(batch))
            failures = requests.flush().failures
        finally:
            requests.close()
            acknowledged.close()
            doubts.close()
        return [numbers(each.message)[0] for each in failures] if flushed else []

    def stuck(self, batch: pa.RecordBatch, *, after: Position = ORIGIN, rows: int = 1) -> bool:
        """Whether the destination is called unreachable."""
        try:
            self.attempt(batch, after=after, rows=rows)
        except SinkUnreachableError:
            return True
        return False


@pytest.fixture
def lanes(tmp_path: Path) -> Lanes:
    return Lanes(tmp_path)


def test_a_batch_of_one_message_that_always_fails_ends(lanes: Lanes) -> None:
    lanes.down = True
    assert lanes.stuck(keyed([0]))
    lanes.now_s += 59
    assert lanes.stuck(keyed([0]))
    lanes.now_s += 1
    assert lanes.attempt(keyed([0])) == [0]
    # And a replay of it, without another wait.
    assert lanes.attempt(keyed([0])) == [0]


def test_messages_in_doubt_are_delivered_if_they_are_accepted_after_all(lanes: Lanes) -> None:
    """GIVEN a batch of ten messages WHEN the destination is down for an hour THEN none is parked,
    although some may be."""
    lanes.down = True
    for _ in range(0, HOUR_S, 60):
        assert lanes.stuck(keyed(range(10)))
        lanes.now_s += 60
    lanes.down = False
    assert lanes.attempt(keyed(range(10))) == []
    assert sorted(lanes.accepted) == list(range(10))


def test_an_hour_without_an_accepted_message_costs_a_few(lanes: Lanes) -> None:
    """GIVEN batches of one message WHEN the destination is down for an hour THEN eight messages are
    parked; WHEN it is down again later THEN the first one waits a minute, as at first."""
    lanes.down = True
    parked = 0
    end_s = lanes.now_s + HOUR_S
    while lanes.now_s < end_s:
        after = position(parked - 1) if parked else ORIGIN
        if not lanes.stuck(keyed([parked]), after=after):
            parked += 1
        lanes.now_s += 20
    assert parked == 8
    lanes.down = False
    assert not lanes.stuck(keyed([parked]), after=position(parked - 1))
    lanes.down = True
    assert lanes.stuck(keyed([parked + 1]), after=position(parked))
    lanes.now_s += 60
    assert not lanes.stuck(keyed([parked + 1]), after=position(parked))


def test_a_replay_without_the_messages_that_were_accepted(lanes: Lanes) -> None:
    """GIVEN two messages that failed while others were accepted WHEN the batch is interrupted
    before its end THEN the replay, which sends only these two, does not wait."""
    lanes.bad = {1, 2}
    lanes.attempt(keyed(range(4)), flushed=False)
    lanes.accepted.clear()
    assert lanes.attempt(keyed(range(4))) == [1, 2]
    assert lanes.accepted == []


def test_a_parked_message_that_is_sent_again_stays_parked(lanes: Lanes) -> None:
    batch = keyed(range(3))
    ordinals = np.arange(3, dtype=np.uint64) + np.uint64(READS | 5 << 36 | RELEASED)
    at = batch.schema.get_field_index("ordinal")
    batch = batch.set_column(at, batch.schema.field(at), pa.array(ordinals))
    lanes.down = True
    assert lanes.attempt(batch) == [0, 1, 2]


def test_rows_of_a_backfill_wait_as_changes_do(lanes: Lanes) -> None:
    batch = keyed([0])
    at = batch.schema.get_field_index("ordinal")
    ordinals = pa.array([READS | 5 << 36 | 1], pa.uint64())
    lanes.down = True
    assert lanes.stuck(batch.set_column(at, batch.schema.field(at), ordinals))


@pytest.mark.parametrize("later", [True, False])
def test_another_lane_accepts_messages(lanes: Lanes, later: bool) -> None:
    """GIVEN a lane with one message, which always fails THEN it is parked at once if another lane
    has a message accepted after it was first sent, and not if that was before."""
    lanes.attempt(keyed([1]), lane=1)
    if not later:
        past_s = time.time() - 60
        os.utime(lanes.folder / "h-1.accepted", (past_s, past_s))
    send, lanes.bad = lanes.send, {0}

    def send_while_others_do(batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        if later:
            soon_s = time.time() + 60
            os.utime(lanes.folder / "h-1.accepted", (soon_s, soon_s))
        return send(batch)

    lanes.send = send_while_others_do  # type: ignore[method-assign]
    assert lanes.stuck(keyed([0])) is not later


def test_one_bad_message_in_an_array(lanes: Lanes) -> None:
    """GIVEN a batch of one request, which fails because of one of its messages THEN that one is
    parked after the wait, and the others are delivered."""
    lanes.bad = {3}
    assert lanes.stuck(keyed(range(5)), rows=5)
    lanes.now_s += 60
    assert lanes.stuck(keyed(range(5)), rows=5)
    assert lanes.attempt(keyed(range(5)), rows=5) == [3]
    assert lanes.accepted == [0, 1, 2, 4]


def test_a_message_that_would_hold_its_table_back_waits_for_a_day(lanes: Lanes) -> None:
    """GIVEN a table without a key WHEN the destination is down for hours THEN nothing is parked."""
    lanes.down = True
    assert lanes.stuck(rows([0, 1]))
    lanes.now_s += 23 * HOUR_S
    assert lanes.stuck(rows([0, 1]))
    lanes.now_s += HOUR_S
    assert lanes.attempt(rows([0, 1])) == [0, 1]


def test_a_clock_that_is_set_back_begins_the_wait_anew(lanes: Lanes) -> None:
    lanes.down = True
    assert lanes.stuck(keyed([0]))
    lanes.now_s -= HOUR_S
    assert lanes.stuck(keyed([0]))
    lanes.now_s += 60
    assert not lanes.stuck(keyed([0]))


def test_without_a_folder_the_pipeline_waits() -> None:
    requests = Requests(lambda _: {0: BUSY}, Limits(), RETRY)
    requests.take(keyed([0]))
    with pytest.raises(SinkUnreachableError, match=r"no message is accepted: .* 503"):
        requests.flush()
    requests.close()


HOT = Outcome(verdict=Verdict.THROTTLED, code="X", reason="a shard is busy", in_part=True)


def engine(send: Callable[..., Mapping[int, Outcome]], clock: Callable[[], float]) -> Requests:
    return Requests(send, Limits(concurrency=1), RETRY, clock=clock, chance=lambda: 1.0)


def test_a_busy_shard_holds_up_its_own_messages_only() -> None:
    """GIVEN a message whose shard has no capacity THEN messages of other keys are sent meanwhile;
    and no attempt is counted."""
    now_s = 0.0
    sent: list[int] = []

    def send(batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.extend(numbers(batch))
        return {0: HOT} if numbers(batch) == [0] and now_s < 20 else {}

    requests = engine(send, lambda: now_s)
    requests.take(keyed(range(4)))
    while requests._sent:
        requests.flush(end=False)
    assert sent == [0, 1, 2, 3]
    for _ in range(30):
        now_s += 1
        requests.flush(end=False)
        while requests._sent:
            requests.flush(end=False)
    assert sent.count(0) > RETRY.attempts
    assert requests.idle
    requests.close()


def test_a_long_pause_is_waited_for() -> None:
    """GIVEN a destination that asks to wait for longer than a message is retried THEN nothing is
    sent before; WHEN it asks again and again THEN the pipeline is retrying, after a pause."""
    asked = Outcome(
        verdict=Verdict.THROTTLED, code="HTTP_429", reason="it answers 429", retry_after_s=120.0
    )
    now_s = 0.0
    sent: list[float] = []

    def send(batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        sent.append(now_s)
        return {0: asked}

    requests = engine(send, lambda: now_s)
    requests.take(keyed([0]))
    for moment_s in (0.0, 119.0, 120.0, 239.0):
        now_s = moment_s
        requests.flush(end=False)
        while requests._sent:
            requests.flush(end=False)
    assert sent == [0.0, 120.0]
    now_s = 240.0
    with pytest.raises(SinkUnreachableError, match="accepts no more messages: it answers 429"):
        requests.flush(end=False)
    assert sent == [0.0, 120.0]
    requests.close()

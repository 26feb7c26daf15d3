"""Sequences of idempotent producers, and the offsets that a transaction assigns."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from tailrace.broker.limits import MemoryBudget, Reservation
from tailrace.broker.tables import writer
from tailrace.broker.tables.catalog import Topic
from tailrace.broker.tables.pending import PendingBatch, WriteResult
from tailrace.broker.tables.producers import Producer
from tailrace.broker.tables.records import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = Topic(id=3, name="t", uuid=uuid.UUID(int=1), partitions=2, unlogged=False)
FIRST = 100


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Draft:
    """A transaction on partition 0, whose next offset is 100."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.draft = writer._Draft(offsets={(3, 0): FIRST}, producers={})

    def add(
        self, sequence: int, count: int = 10, *, producer: int = 7, epoch: int = 0
    ) -> WriteResult:
        batch = Batch(
            records=((0, None, b"v", []),) * count,
            size=100,
            producer_id=producer,
            producer_epoch=epoch,
            sequence=sequence,
        )
        done = self._loop.create_future()
        memory = Reservation(MemoryBudget(0))
        return self.draft.add(
            PendingBatch(topic=TOPIC, partition=0, batch=batch, data=b"", done=done, memory=memory)
        )


@pytest.fixture
def draft(loop: asyncio.AbstractEventLoop) -> Draft:
    return Draft(loop)


def test_offsets_are_consecutive(draft: Draft) -> None:
    found = [draft.add(-1, count, producer=-1).offset for count in (1, 10, 3)]
    assert found == [100, 101, 111]
    assert draft.draft.offsets == {(3, 0): 114}


def test_a_repeated_batch_has_its_offset(draft: Draft) -> None:
    offsets = [draft.add(10 * number).offset for number in range(8)]
    assert offsets == list(range(100, 180, 10))
    again = [draft.add(10 * number) for number in range(8)]
    assert [each.error for each in again[:3]] == ["out_of_order_sequence_number"] * 3
    assert [(each.offset, each.fresh) for each in again[3:]] == [
        (offset, False) for offset in offsets[3:]
    ]
    assert draft.draft.offsets == {(3, 0): 180}


@pytest.mark.parametrize("sequence", [1, 10, 5000])
def test_a_gap_is_refused(draft: Draft, sequence: int) -> None:
    """Also for the first batch: the batch before it may have failed and will be retried."""
    assert draft.add(sequence).error == "out_of_order_sequence_number"
    assert draft.add(0).offset == FIRST
    assert draft.add(10 + sequence).error == "out_of_order_sequence_number"
    assert draft.add(10).offset == FIRST + 10


def test_sequence_numbers_wrap(draft: Draft) -> None:
    producer = Producer(0, [[0x7FFFFFF0, 0x7FFFFFF9, 50]])
    draft.draft.producers[7, 3, 0] = producer
    assert draft.add(0x7FFFFFFA, 10).offset == 100
    assert draft.add(4).offset == 110


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one(draft: Draft) -> None:
    draft.add(0)
    assert draft.add(10, epoch=1).error == "out_of_order_sequence_number"
    assert draft.add(0, epoch=1).offset == 110
    assert draft.add(10, epoch=0).error == "invalid_producer_epoch"


def test_producers_are_independent(draft: Draft) -> None:
    assert draft.add(0, producer=7).offset == 100
    assert draft.add(0, producer=8).offset == 110
    assert draft.add(10, producer=7).offset == 120


def test_a_producer_whose_state_has_expired_goes_on(draft: Draft) -> None:
    """GIVEN a producer that was idle for so long that its state is deleted THEN its next batch is
    accepted, and from then on there is no gap."""
    draft.draft.producers[7, 3, 0] = Producer(-1, expired=True)
    assert draft.add(500, epoch=2).offset == FIRST
    assert draft.add(500, epoch=2).offset == FIRST
    assert draft.add(520, epoch=2).error == "out_of_order_sequence_number"
    assert draft.add(510, epoch=2).offset == FIRST + 10
    assert draft.add(9, epoch=3).error == "out_of_order_sequence_number"


class Waiting:
    """A writer whose task does not run: what is queued waits."""

    def __init__(self, max_blocked_bytes: int = 1 << 20) -> None:
        self.now = 1000.0
        self.writer = writer.Writer(
            "", lambda _one, _offset: None, max_blocked_bytes=max_blocked_bytes,
            clock=lambda: self.now,
        )  # fmt: skip

    def put(
        self, timeout_s: float, memory: Reservation | None = None
    ) -> asyncio.Future[WriteResult]:
        batch = Batch(
            records=((0, None, b"v", []),), size=100, producer_id=-1, producer_epoch=-1,
            sequence=-1,
        )  # fmt: skip
        memory = memory or request(1000)
        return self.writer.put(TOPIC, 0, batch, b"", memory=memory, timeout_s=timeout_s)

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.writer.expire()


def request(size: int) -> Reservation:
    """The memory of a request."""
    memory = Reservation(MemoryBudget(0))
    memory.add(size)
    return memory


def error(done: asyncio.Future[WriteResult]) -> str | None:
    return done.result().error if done.done() else None


def test_a_batch_times_out_in_the_queue_and_of_a_locked_partition() -> None:
    async def work() -> None:
        waiting = Waiting()
        blocked = [waiting.put(timeout_s) for timeout_s in (30, 5)]
        waiting.writer._block(waiting.writer._take())
        queued = [waiting.put(timeout_s) for timeout_s in (30, 5)]
        waiting.pass_s(4)
        assert [error(one) for one in (*blocked, *queued)] == [None] * 4
        waiting.pass_s(2)
        assert [error(one) for one in blocked] == [None, "request_timed_out"]
        assert [error(one) for one in queued] == [None, "request_timed_out"]
        # What has timed out is never written.
        left = [one.done for one in waiting.writer._take()]
        assert left == [blocked[0], queued[0]]

    asyncio.run(work())


def test_a_batch_that_is_being_written_does_not_time_out() -> None:
    async def work() -> None:
        waiting = Waiting()
        done = waiting.put(5)
        taken = waiting.writer._take()
        waiting.pass_s(60)
        assert error(done) is None
        # The partition was locked: now it is too late.
        waiting.writer._block(taken)
        assert error(done) == "request_timed_out"

    asyncio.run(work())


def test_a_batch_that_is_being_written_at_the_end_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        waiting, writing = Waiting(), asyncio.Event()

        async def write(_taken: object) -> None:
            writing.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(waiting.writer, "_write", write)
        done = waiting.put(5)
        task = asyncio.create_task(waiting.writer.run())
        await writing.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert error(done) == "not_leader_or_follower"

    asyncio.run(work())


def test_batches_of_a_locked_partition_have_a_limit() -> None:
    async def work() -> None:
        waiting = Waiting(max_blocked_bytes=4000)
        done = [waiting.put(30) for _ in range(5)]
        waiting.writer._block(waiting.writer._take())
        # The oldest stay: the order of the records is kept.
        assert [error(one) for one in done] == [None] * 4 + ["request_timed_out"]

    asyncio.run(work())


def test_a_batch_of_a_locked_partition_counts_with_its_whole_request() -> None:
    """GIVEN small batches of large requests THEN the requests count, each of them once."""

    async def work() -> None:
        waiting, requests = Waiting(max_blocked_bytes=10_000), [request(4000) for _ in range(3)]
        done = [waiting.put(30, each) for each in requests for _ in range(3)]
        waiting.writer._block(waiting.writer._take())
        assert [error(one) for one in done] == [None] * 6 + ["request_timed_out"] * 3

    asyncio.run(work())


def test_a_timeout_of_zero_is_long_enough_to_be_written() -> None:
    async def work() -> None:
        waiting = Waiting()
        done = waiting.put(0)
        waiting.pass_s(0.5)
        assert error(done) is None

    asyncio.run(work())

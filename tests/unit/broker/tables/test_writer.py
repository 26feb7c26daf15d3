"""Sequences of idempotent producers, and the offsets that a transaction assigns."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from tailrace.broker.tables import writer
from tailrace.broker.tables.catalog import Topic
from tailrace.broker.tables.records import Batch
from tailrace.broker.tables.writer import PendingBatch, WriteResult

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
        return self.draft.add(
            PendingBatch(topic=TOPIC, partition=0, batch=batch, data=b"", done=done)
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
    producer = writer._Producer(0, [[0x7FFFFFF0, 0x7FFFFFF9, 50]])
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

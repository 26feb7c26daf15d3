"""Listing a log again and again: what it costs, and what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.log import retention
from tailrace.log.listing import Lister, listing
from tailrace.testing import MemoryStore
from tests.fix_log import TestLog, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, MORE = 200, 3


class Counting(MemoryStore):
    """A store that counts what is read of segments."""

    reads = 0

    def read(self, name: str, offset: int, length: int) -> bytes:
        self.reads += name.endswith(".seg")
        return super().read(name, offset, length)


@pytest.fixture
def log() -> Iterator[TestLog]:
    """A log of many segments."""
    made = TestLog(Counting(), segment_bytes=8 << 10)
    made.append_all(transaction(number) for number in range(FIRST))
    yield made
    made.close()


def test_only_what_was_appended_is_walked(log: TestLog) -> None:
    """GIVEN a log that was listed WHEN it is listed again THEN no entry is read again; and WHEN
    some were appended THEN those are, and the rows are those of a first listing."""
    store, lister = log.store, Lister(log.store)
    assert isinstance(store, Counting)
    rows = lister.read().rows
    assert len(rows) > 5
    assert store.reads > FIRST
    assert sum(row.entries for row in rows) >= FIRST
    headers = 4 * len(rows)
    assert headers < FIRST
    store.reads = 0
    assert lister.read().rows == rows
    assert store.reads <= headers
    log.append_all(transaction(FIRST + number) for number in range(MORE))
    store.reads = 0
    found = lister.read()
    assert store.reads <= headers + 4 * MORE
    assert found.rows != rows
    assert found == listing(store)
    assert sum(row.changes for row in found.rows) == len(log.changes())


def test_segments_that_are_deleted_are_forgotten(log: TestLog) -> None:
    lister = Lister(log.store)
    before = lister.read().rows
    for row in before[:3]:
        log.store.remove(row.name.file)
    assert lister.read().rows == before[3:]
    assert lister.read() == listing(log.store)
    assert not retention.pins(log.store)

"""Entries as values: their messages, and the ones that state schemas."""

from __future__ import annotations

import numpy as np

from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind, pack
from tailrace.position import ORIGIN, Lsn
from tailrace.wire import pgoutput
from tests.fix_log import MOOD, Session, insert, relation, transaction, whole_entry


def test_messages_come_back_one_by_one() -> None:
    offsets, body = pack([b"first", b"2", b"third"])
    assert offsets.tolist() == [0, 5, 6, 11]
    assert offsets.dtype == np.uint32
    entry = Entry(
        kind=Kind.TRANSACTIONS, first=ORIGIN, last=ORIGIN, end_lsn=Lsn(0),
        first_time=0, last_time=0, offsets=offsets, body=body,
    )  # fmt: skip
    assert [bytes(message) for message in entry.messages()] == [b"first", b"2", b"third"]


def test_schema_messages_are_relations_and_types_alone() -> None:
    unit = transaction(0, insert(relation(1), 1), insert(relation(2), 2))
    entry = whole_entry([unit], Session(), Lsn(0), 0)
    found = [pgoutput.parse(message) for message in entry.schema_messages()]
    assert found == [MOOD, relation(1), relation(2)]


def test_an_entry_without_schemas_is_not_searched() -> None:
    entry = whole_entry([transaction(0)], Session(sent={1: relation(1)}), Lsn(0), 0)
    assert list(entry.schema_messages()) == []


def test_an_entry_may_be_empty() -> None:
    entry = Entry(
        kind=Kind.PROGRESS, first=ORIGIN, last=ORIGIN, end_lsn=Lsn(9),
        first_time=0, last_time=0, offsets=NO_OFFSETS, body=b"",
    )  # fmt: skip
    assert list(entry.messages()) == []
    assert entry.visible

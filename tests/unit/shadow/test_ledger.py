from __future__ import annotations

import json

import pytest

from tailrace.shadow import ledger
from tailrace.shadow.ledger import PartitionCopy, digest
from tailrace.shadow.settings import ShadowSink

Fields = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Milliseconds, key, value, headers."""


def test_consecutive_records_are_one_run() -> None:
    copy = PartitionCopy(topic="t")
    assert (copy.next, copy.count) == (0, 0)
    copy = copy.with_records(0, 10, 1).with_records(10, 15, 2)
    assert (copy.runs, copy.next, copy.count, copy.last) == (((0, 15),), 15, 15, 2)


def test_left_out_records_start_another_run() -> None:
    copy = PartitionCopy(topic="t").with_records(5, 8, 1).with_records(20, 30, 2)
    assert (copy.runs, copy.next, copy.count) == (((5, 8), (20, 30)), 30, 13)
    assert [copy.offset(index) for index in (0, 2, 3, 12)] == [5, 7, 20, 29]
    with pytest.raises(IndexError):
        copy.offset(13)


def test_the_format_of_ledger_records() -> None:
    """Kafka has ledgers of earlier releases: the format must not change."""
    copy = PartitionCopy(topic="t", base=4, runs=((5, 8), (20, 30)), last=7)
    value = b'{"topic": "t", "base": 4, "runs": [[5, 8], [20, 30]], "last": 7}'
    assert copy.dump() == value
    assert PartitionCopy.load(value) == copy
    assert json.loads(value)["runs"] == [[5, 8], [20, 30]]


def test_names_in_kafka() -> None:
    settings = ShadowSink(type="shadow", prefix="p")
    assert ledger.topic_of(settings, "copy") == "p-shadow-copy"
    assert ledger.key_of("uuid", 3) == b"uuid/3"


def test_every_field_changes_the_digest() -> None:
    one: Fields = (1, b"k", b"v", [("h", b"1")])
    others: list[Fields] = [
        (2, b"k", b"v", [("h", b"1")]),
        (1, None, b"v", [("h", b"1")]),
        (1, b"k", b"", [("h", b"1")]),
        (1, b"k", b"v", [("h", None)]),
        (1, b"k", b"v", []),
    ]
    digests = {digest(*record) for record in (one, *others)}
    assert len(digests) == 6
    assert digest(*one, seed=digest(*one)) not in digests

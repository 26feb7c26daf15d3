"""The store, case by case: order, records, space, fencing, plans of queries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkFencedError, StorageError
from tailrace.sinks.pull.database import in_folder
from tailrace.sinks.pull.listing import Listing
from tailrace.sinks.pull.queue import DeliveryId, Queue, Rules
from tests.unit.sinks.pull.stores import RULES, Change, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "sink")
    yield made
    made.close()


def receive(store: Store, limit: int = 100, *, now_ms: int = 0) -> list[DeliveryId]:
    with store.queue.transaction():
        store.queue.expire(now_ms=now_ms)
        found = store.queue.receive(limit, token=7, now_ms=now_ms, visibility_ms=10)
    return [each.delivery for each in found]


def ids(deliveries: Sequence[DeliveryId]) -> list[int]:
    return [each.seq for each in deliveries]


def acknowledge(store: Store, deliveries: Sequence[DeliveryId]) -> int:
    with store.queue.transaction():
        return len(store.queue.acknowledge(deliveries))


def test_a_truncate_waits_for_its_table_and_holds_it_back(store: Store) -> None:
    store.add([Change("a"), Change(None), Change("a"), Change("b"), Change("a", table=2)])
    found = receive(store)
    assert ids(found) == [1, 5]
    acknowledge(store, found)
    found = receive(store)
    assert ids(found) == [2]
    acknowledge(store, found)
    assert ids(receive(store)) == [3, 4]


def test_tables_without_keys_are_delivered_in_batches(store: Store) -> None:
    store.add([Change(None)] * 5)
    assert ids(receive(store, 3)) == [1, 2, 3]
    assert receive(store) == []


def test_an_update_of_a_key_follows_both_keys(store: Store) -> None:
    store.add([Change("a"), Change("b"), Change("b", former="a"), Change("a"), Change("b")])
    found = receive(store, 2)
    assert ids(found) == [1, 2]
    acknowledge(store, found[:1])
    assert receive(store) == []
    acknowledge(store, found[1:])
    assert ids(receive(store)) == [3, 4, 5]


def test_without_order_nothing_waits(tmp_path: Path) -> None:
    store = Store(tmp_path / "sink", ordered=False)
    store.add([Change("a"), Change("a"), Change(None)])
    assert [ids(receive(store, 1)) for _ in range(3)] == [[1], [2], [3]]
    store.close()


def test_answers_are_limited_in_bytes(tmp_path: Path) -> None:
    rules = Rules(max_out=100, max_deliveries=0, max_bytes=25)
    store = Store(tmp_path / "sink", rules)
    store.add([Change(f"{n}", payload=b"x" * 10) for n in range(4)])
    store.add([Change("large", payload=b"x" * 100)])
    assert [ids(receive(store)) for _ in range(3)] == [[1, 2], [3, 4], [5]]
    store.close()


def test_only_so_many_are_out(tmp_path: Path) -> None:
    rules = Rules(max_out=3, max_deliveries=0, max_bytes=1000)
    store = Store(tmp_path / "sink", rules)
    store.add([Change(f"{n}") for n in range(5)])
    found = receive(store)
    assert ids(found) == [1, 2, 3]
    assert receive(store) == []
    acknowledge(store, found[:1])
    assert ids(receive(store)) == [4]
    store.close()


def test_an_acknowledgement_after_the_timeout_is_refused(store: Store) -> None:
    store.add([Change("a")])
    found = receive(store)
    (again,) = receive(store, now_ms=10)
    assert again.seq == found[0].seq
    with store.queue.transaction():
        store.queue.expire(now_ms=20)
        assert store.queue.acknowledge([again]) == set()


def test_a_full_store_takes_nothing(store: Store) -> None:
    large = [Change("a", payload=b"x" * 99)]
    assert store.add(large, max_bytes=10)
    before = store.intake.positions()
    assert not store.add([Change("b")], max_bytes=100)
    assert store.intake.positions() == before
    acknowledge(store, receive(store))
    assert store.add([Change("b")], max_bytes=100)
    assert ids(receive(store)) == [2]


@pytest.mark.parametrize("blocks", [True, False])
def test_exhausted_messages_do_not_stop_other_keys(tmp_path: Path, blocks: bool) -> None:
    """GIVEN a store that is full of a key whose first message is exhausted THEN other keys pass,
    as long as consumers acknowledge them; WHEN it is dropped THEN the limit applies to the rest."""
    rules = Rules(max_out=100, max_deliveries=1, max_bytes=1000, blocks=blocks)
    store = Store(tmp_path / "sink", rules)
    assert store.add([Change("a", payload=b"x" * 99)] * 3, max_bytes=300)
    found = receive(store, 1)
    assert not store.add([Change("b")], max_bytes=300)
    with store.queue.transaction():
        store.queue.reject(found, now_ms=0, delay_ms=0)
    if not blocks:
        acknowledge(store, receive(store))
    for _ in range(3):
        assert store.add([Change("b", payload=b"x" * 300)], max_bytes=300)
        assert not store.add([Change("c")], max_bytes=300)
        others = receive(store)
        assert len(others) == 1
        assert not store.add([Change("c")], max_bytes=300)
        acknowledge(store, others)
    assert store.add([Change("a", payload=b"x" * 300)], max_bytes=300)
    with store.queue.transaction():
        assert store.queue.drop() == 1
    assert not store.add([Change("b")], max_bytes=300)
    acknowledge(store, receive(store))
    assert store.add([Change("b")], max_bytes=300)
    store.close()


def test_a_newer_state_enters_a_full_store_unless_it_is_larger(tmp_path: Path) -> None:
    store = Store(tmp_path / "sink", latest=True)
    for key in "ab":
        assert store.add([Change(key, payload=b"x" * 100)], max_bytes=1000)
    assert store.add([Change("a", payload=b"x" * 100)], max_bytes=10)
    assert store.add([Change("a", payload=b"x" * 50), Change("b", payload=b"x" * 120)], max_bytes=1)
    size = store.queue.totals().bytes
    assert not store.add([Change("a", payload=b"x" * 51)], max_bytes=1)
    assert store.queue.totals().bytes == size
    assert [len(payload) for _, payload in texts(store)] == [50, 120]
    store.close()


def test_a_sink_that_was_replaced_adds_nothing(store: Store) -> None:
    old = store.intake
    store.open()
    store.add([Change("a")])
    store.intake, new = old, store.intake
    with pytest.raises(SinkFencedError, match="opened by another process"):
        store.add([Change("b")])
    assert not old.owned()
    assert new.owned()
    assert ids(receive(store)) == [1]


def texts(store: Store) -> list[tuple[int, bytes]]:
    query = "SELECT seq, payload FROM bodies ORDER BY seq"
    return store.queue.connection.execute(query).fetchall()


def test_records_replace_what_waits(tmp_path: Path) -> None:
    store = Store(tmp_path / "sink", latest=True)
    store.add([Change("a"), Change("b"), Change("a")])
    assert texts(store) == [(1, b"3"), (2, b"2")]
    (out,) = receive(store, 1)
    store.add([Change("a"), Change("b"), Change("a")])
    # What is out stays, the newer one follows it; `b` keeps its place.
    assert texts(store) == [(1, b"3"), (2, b"5"), (3, b"6")]
    assert ids(receive(store)) == [2]
    acknowledge(store, [out])
    assert ids(receive(store)) == [3]
    assert store.queue.totals().messages == 2
    store.close()


def test_records_keep_their_order_with_truncates_and_other_keys(tmp_path: Path) -> None:
    store = Store(tmp_path / "sink", latest=True)
    store.add([Change("a"), Change(None), Change("a"), Change("a")])
    assert texts(store) == [(1, b"1"), (2, b"2"), (3, b"4")]
    store.add([Change("b", former="a"), Change("b"), Change("b"), Change("a"), Change("a")])
    assert texts(store)[3:] == [(4, b"5"), (5, b"7"), (6, b"9")]
    store.add([Change("a"), Change("b")])
    assert texts(store)[3:] == [(4, b"5"), (5, b"11"), (6, b"10")]
    store.close()


def test_a_newer_record_replaces_an_exhausted_one(tmp_path: Path) -> None:
    rules = Rules(max_out=10, max_deliveries=1, max_bytes=1000)
    store = Store(tmp_path / "sink", rules, latest=True)
    store.add([Change("a")])
    found = receive(store)
    with store.queue.transaction():
        store.queue.reject(found, now_ms=0, delay_ms=0)
    assert receive(store) == []
    assert store.queue.totals().exhausted == 1
    store.add([Change("a", payload=b"new!")])
    assert store.queue.totals().exhausted == 0
    assert store.queue.totals().bytes == len(b"new!a")
    assert ids(receive(store)) == [1]
    store.close()


def test_listing_what_does_not_exist(tmp_path: Path) -> None:
    with Listing(in_folder(tmp_path)) as listing:
        assert listing.totals().messages == 0
        assert listing.oldest_ms() is None
        assert listing.exhausted(limit=10) == []


def test_a_page_of_exhausted_messages_is_limited_in_bytes(tmp_path: Path) -> None:
    """Payloads may have megabytes each."""
    rules = Rules(max_out=10, max_deliveries=1, max_bytes=1000)
    store = Store(tmp_path / "sink", rules)
    store.add([Change(name, payload=b"x" * 10) for name in "abcd"])
    found = receive(store)
    with store.queue.transaction():
        store.queue.reject(found, now_ms=0, delay_ms=0)
    with Listing(in_folder(tmp_path / "sink")) as listing:
        pages = [listing.exhausted(after=after, limit=3, size=15) for after in (0, 2, 4)]
    assert [[each.number for each in page] for page in pages] == [[1, 2], [3, 4], []]
    store.close()


def test_the_store_is_for_its_owner(store: Store, tmp_path: Path) -> None:
    store.add([Change("a")])
    files = [tmp_path / "sink", *(tmp_path / "sink").iterdir()]
    assert len(files) > 1
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_a_file_of_another_release_is_refused(store: Store, tmp_path: Path) -> None:
    store.queue.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="has version 99, this release reads version 1"):
        Queue(in_folder(tmp_path / "sink"), RULES)


def test_statements_search_indexes(store: Store) -> None:
    """No statement reads all messages, however many wait or are blocked: only the indexes of those
    that may be delivered, now or later, and of exhausted ones, are read from their beginning."""
    connection, queue = store.queue.connection, store.queue
    statements: set[str] = set()
    for each in (connection, store.intake.connection):
        each.set_trace_callback(statements.add)
    store.add([Change(None), Change("a"), Change("b"), Change("a")])
    found = receive(store)
    with queue.transaction():
        queue.extend(found, now_ms=0, visibility_ms=50)
        queue.reject(found, now_ms=0, delay_ms=1)
    found = receive(store, now_ms=100)
    with queue.transaction():
        queue.take_back(found)
    acknowledge(store, receive(store))
    with queue.transaction():
        queue.expire(now_ms=1000)
        queue.next_expiry_ms()
        queue.retry([1])
        queue.drop()
    for each in (connection, store.intake.connection):
        each.set_trace_callback(None)
    plans = [
        detail
        for statement in statements
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT"))
        for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert len(plans) > 50
    scans = [each for each in plans if re.match(r"SCAN (messages|bodies|[menw])\b", each)]
    assert scans
    read = ("INDEX ready", "INDEX delays", "INDEX exhausted")
    assert [each for each in scans if not each.endswith(read)] == []

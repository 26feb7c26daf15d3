"""The store of parked messages: what it reads, its format, and what interruptions leave."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

import pytest

from tailrace.parking import database
from tailrace.parking.listing import Listing
from tailrace.parking.order import Orders
from tailrace.parking.parking import store_of
from tailrace.parking.part import Parts
from tailrace.parking.selection import Selection
from tailrace.parking.store import Store
from tests.unit.parking.system import HISTORY, System, end_of, messages
from tests.unit.sinks.rows import with_column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.parking.listing import ParkedMessage


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


@pytest.fixture
def listing(system: System) -> Iterator[Listing]:
    system.sink.bad = {"a1", "b1"}
    system.deliver([("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c")], lsn=100)
    system.plan()
    with Listing(store_of(system.folder)) as found:
        yield found


def test_statements_search_indexes(system: System) -> None:
    """No statement of the planner reads all messages, except for orders that concern all."""
    system.sink.bad = {"a1", "b1"}
    statements: set[str] = set()
    system.planner._store.connection.set_trace_callback(statements.add)
    system.deliver([("a1", "a"), ("b1", "b"), ("a2", "a")], lsn=100)
    system.plan()
    system.order("retry", ids=("a1",))
    system.order("retry", key="b")
    system.deliver([("b2", "b")], lsn=200)
    system.order("drop", ids=("a1",))
    system.plan()
    connection = system.planner._store.connection
    connection.set_trace_callback(None)
    plans = [
        (detail, statement)
        for statement in statements
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT", "\nINSERT"))
        for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert len(plans) > 50
    whole = re.compile(
        r"SCAN (parked|groups|payloads)\b|SEARCH parked USING INDEX sqlite_auto\S+ \(history=\?\)$"
    )
    assert [each for each in plans if whole.match(each[0])] == []


@pytest.mark.parametrize(
    ("selection", "index"),
    [
        (Selection(), "INTEGER PRIMARY KEY"),
        (Selection(ids=("a1",), code="HELD", destination="/orders*"), "by_id"),
        (Selection(key="a", code="HELD"), "by_key"),
        (Selection(destination="/orders", code="HELD"), "by_destination"),
        (Selection(code="HELD", destination="/o*"), "by_code"),
        (Selection(destination="/o*"), "by_destination"),
    ],
)
def test_a_page_reads_an_index_in_order(listing: Listing, selection: Selection, index: str) -> None:
    statements: list[str] = []
    listing.connection.set_trace_callback(statements.append)
    listing.page(selection, after=1, limit=10)
    listing.connection.set_trace_callback(None)
    plan = [
        detail
        for *_, detail in listing.connection.execute(f"EXPLAIN QUERY PLAN {statements[-1]}")
        if "parked" in detail
    ]
    assert any(index in each for each in plan), plan
    assert not any(each.startswith("SCAN parked") for each in plan), plan


def names(page: list[ParkedMessage]) -> list[str]:
    return [each.id for each in page]


@pytest.mark.parametrize("many", [1000, 3])
def test_wildcards(system: System, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """Pages are the same, whether there are few destinations or many."""
    monkeypatch.setattr("tailrace.parking.listing._MOST_NAMES", many)
    destinations = ["/a/1", "/b/1", "/a/[2]", "/a/1", "/a", "/a*", "/a/3/x"]
    ids = [f"m{number}" for number in range(len(destinations))]
    system.sink.bad = set(ids)
    batch = messages([(name, name) for name in ids], lsn=100)
    batch = with_column(batch, "destination", [each.encode() for each in destinations])
    system.deliver_batch(batch, lsn=100)
    system.plan()
    with Listing(store_of(system.folder)) as listing:
        for pattern, expected in {
            "/a/*": ["m0", "m2", "m3", "m6"],
            "/a*": ["m0", "m2", "m3", "m4", "m5", "m6"],
            "/?/1": ["m0", "m1", "m3"],
            "/a/[2]": ["m2"],
            "/a/[*": ["m2"],
            "*": ids,
            "/c*": [],
            "/a": ["m4"],
        }.items():
            selection = Selection(destination=pattern)
            assert names(listing.page(selection, limit=10)) == expected, pattern
            assert listing.count(selection) == len(expected)
            first = listing.page(selection, limit=2)
            assert names(first) == expected[:2]
            if first:
                rest = listing.page(selection, after=first[-1].seq, limit=2)
                assert names(rest) == expected[2:4]
        assert names(listing.page(Selection(destination="/a*", upto=4), limit=10)) == [
            "m0", "m2", "m3",
        ]  # fmt: skip
        assert names(listing.page(Selection(destination="/a*", key="m3"), limit=9)) == ["m3"]


def test_groups_are_counted(system: System) -> None:
    """A batch that parks more of blocked groups writes no new file; what leaves unblocks."""
    system.sink.bad = {"a1", "t1"}
    system.deliver([("a1", "a"), ("b1", "b")], lsn=100)
    system.plan()
    written = sorted(path.name for path in (system.folder / "blocked").iterdir())
    for lsn in (200, 300):
        system.deliver([(f"a{lsn}", "a")], lsn=lsn)
        system.plan()
    assert sorted(path.name for path in (system.folder / "blocked").iterdir()) == written
    system.deliver([("t1", None)], lsn=400)
    system.deliver([("b2", "b")], lsn=500)
    assert system.sink.received == ["b1"]
    system.sink.bad = set()
    system.order("retry")
    system.deliver([("b3", "b"), ("a4", "a")], lsn=600)
    assert system.sink.received == ["b1", "a1", "a200", "a300", "t1", "b2", "b3", "a4"]
    with Listing(store_of(system.folder)) as listing:
        assert listing.connection.execute("SELECT * FROM groups").fetchall() == []


def test_a_store_of_version_1_is_upgraded(system: System) -> None:
    system.sink.bad = {"a1", "t1"}
    system.deliver([("a1", "a"), ("a2", "a"), ("t1", None)], lsn=100)
    system.plan()
    columns = system.planner._store.blocked()
    path = store_of(system.folder)
    with sqlite3.connect(path) as connection:
        for kind, name in (("INDEX", "by_order"), ("TABLE", "groups"), ("TABLE", "group_changes")):
            connection.execute(f"DROP {kind} {name}")
        connection.execute("PRAGMA user_version = 1")
    with Listing(path) as listing:
        assert len(listing.page(Selection(), limit=10)) == 3
        assert listing.orders() == []
    with Store(path, history=HISTORY, together=True) as store:
        for found, expected in zip(store.blocked(), columns, strict=True):
            assert found.tolist() == expected.tolist()
        assert store.connection.execute("PRAGMA user_version").fetchone() == (
            database.Database.version,
        )


def test_the_rest_of_a_part_is_added_once(system: System) -> None:
    """GIVEN a part with messages before and after what is delivered WHEN those before are dropped
    THEN the part brings back none of them."""
    system.sink.bad = {"a1", "b1", "c1"}
    guard = system.guard()
    guard.write(messages([("a1", "a"), ("b1", "b")], lsn=100))
    guard.write(messages([("c1", "c")], lsn=200))
    guard.flush()
    system.position = end_of(100)
    system.order("drop", upto=10)
    assert [name for name, _, _ in system.parked()] == []
    [part] = Parts(system.folder / "parts").all()
    assert part.last > system.position
    system.position = end_of(200)
    assert [name for name, _, _ in system.parked()] == ["c1"]
    assert Parts(system.folder / "parts").all() == []


def test_messages_that_are_retried_alone_do_not_end_with_the_failure_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN `park: message` and messages of one group WHEN one of them fails again in the first
    page of a retry THEN all others are delivered."""
    monkeypatch.setattr("tailrace.parking.parking.RELEASE_ROWS", 3)
    system = System(tmp_path, together=False)
    ids = [f"a{number}" for number in range(8)]
    system.sink.bad = set(ids)
    system.deliver([(name, None) for name in ids], lsn=100)
    system.sink.bad = {"a1"}
    system.order("retry")
    system.deliver([], lsn=200)
    assert system.sink.received == ["a0", *ids[2:]]
    assert system.parked() == [("a1", "HTTP_422", 2)]
    with Listing(store_of(tmp_path)) as listing:
        [order] = listing.orders()
    assert (order.matched, order.delivered, order.failed, order.waiting) == (8, 7, 1, 0)


def test_what_is_delivered_before_a_failure_of_its_key_counts(system: System) -> None:
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a"), ("a2", "a"), ("a3", "a")], lsn=100)
    system.sink.bad = {"a2"}
    system.order("retry")
    system.deliver([], lsn=200)
    with Listing(store_of(system.folder)) as listing:
        [order] = listing.orders()
    assert (order.matched, order.delivered, order.failed, order.waiting) == (3, 1, 1, 0)


def test_old_orders_are_forgotten(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones stay, and those whose messages wait."""
    monkeypatch.setattr("tailrace.parking.store._ORDERS", 2)
    system.sink.bad = {"a1", "b1"}
    system.deliver([("a1", "a"), ("b1", "b")], lsn=100)
    system.plan()
    orders = Orders(system.folder / "orders")
    waiting = orders.submit("retry", Selection(key="a"))
    dropped = [orders.submit("drop", Selection(key="z")) for _ in range(4)]
    assert system.planner.plan(system.position, page=0, released=0) is not None
    with Listing(store_of(system.folder)) as listing:
        found = {order.id: order.waiting for order in listing.orders()}
    assert found == {waiting.id: 1, dropped[2].id: 0, dropped[3].id: 0}


def test_an_order_that_is_carried_out_again_keeps_its_figures(system: System) -> None:
    """The planner may die before it has removed the file of an order."""
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a")], lsn=100)
    system.plan()
    for _ in range(2):
        system.planner._store.drop("drop-1", Selection(key="a"))
    with Listing(store_of(system.folder)) as listing:
        [order] = listing.orders()
    assert (order.action, order.matched) == ("drop", 1)

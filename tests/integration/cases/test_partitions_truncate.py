"""P26 to P30: rows that move between partitions, and tables that are emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.change import Op
from tests.integration.cases.replay import Replay, images, names, relation_of, select

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

# The second leaf has its columns in another order: the root's images must not.
PARTITIONED = """
CREATE TABLE pt (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE pt1 PARTITION OF pt FOR VALUES IN ('one');
CREATE TABLE pt2 (v text, gone int, region text NOT NULL, id int NOT NULL);
ALTER TABLE pt2 DROP gone;
ALTER TABLE pt ATTACH PARTITION pt2 FOR VALUES IN ('two');
"""
LEAVES = "CREATE PUBLICATION tailrace FOR TABLE pt"
ROOT = "CREATE PUBLICATION tailrace FOR TABLE pt WITH (publish_via_partition_root = true)"
MOVE = "INSERT INTO pt VALUES (1, 'one', 'v'); UPDATE pt SET region = 'two'"


def test_p26_row_that_moves_is_a_delete_and_an_insert(db: Database, capture: Capturing) -> None:
    db.execute(PARTITIONED + LEAVES)
    captured = capture(db)
    db.execute(f"BEGIN; {MOVE}; COMMIT")
    changes = captured.catch_up()
    assert names(changes) == ["insert pt1", "delete pt1", "insert pt2"]
    assert len({change.position.lsn for change in changes}) == 1
    Replay().apply(changes).check(db)


def test_p27_row_that_moves_keeps_the_name_of_the_root(db: Database, capture: Capturing) -> None:
    db.execute(PARTITIONED + ROOT)
    captured = capture(db)
    db.execute(f"BEGIN; {MOVE}; COMMIT")
    db.execute("UPDATE pt SET v = 'w'; UPDATE pt SET id = 2")
    changes = captured.catch_up()
    assert names(changes) == [
        "insert pt",
        "delete pt",
        "insert pt",
        "update pt",
        "update pt",
    ]
    assert db.query("SELECT 'pt'::regclass::oid::int8") == [(relation_of(changes[0]).oid,)]
    assert changes[2].after == (b"1", b"two", b"v")
    Replay().apply(changes).check(db)


def test_p27_partitions_of_partitions_go_by_the_root(db: Database, capture: Capturing) -> None:
    db.execute(PARTITIONED + ROOT)
    db.execute(
        "CREATE TABLE pt3 PARTITION OF pt FOR VALUES IN ('three') PARTITION BY RANGE (id);"
        "CREATE TABLE pt3a PARTITION OF pt3 FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE pt3b PARTITION OF pt3 FOR VALUES FROM (10) TO (20)"
    )
    captured = capture(db)
    db.execute("INSERT INTO pt VALUES (1, 'three', 'v'), (11, 'three', 'w'), (5, 'one', 'x')")
    db.execute("UPDATE pt SET id = id + 9 WHERE region = 'three' AND id = 1")
    changes = captured.catch_up()
    assert {relation_of(change).name for change in changes} == {"pt"}
    Replay().apply(changes).check(db)


def test_p28_detached_and_dropped_partitions_vanish_without_a_word(
    db: Database, capture: Capturing
) -> None:
    db.execute(PARTITIONED + ROOT)
    captured = capture(db)
    db.execute("INSERT INTO pt VALUES (1, 'one', 'v'), (2, 'two', 'w')")
    db.execute("ALTER TABLE pt DETACH PARTITION pt1; INSERT INTO pt1 VALUES (3, 'one', 'x')")
    db.execute("DROP TABLE pt2")
    assert images(captured.catch_up()) == [
        ("insert", None, (b"1", b"one", b"v")),
        ("insert", None, (b"2", b"two", b"w")),
    ]
    assert select(db, "TABLE pt") == []


def test_p28_attached_partition_brings_no_rows_but_sends_what_comes(
    db: Database, capture: Capturing
) -> None:
    db.execute(PARTITIONED + ROOT + "; CREATE TABLE pt3 (LIKE pt INCLUDING ALL)")
    captured = capture(db)
    db.execute("INSERT INTO pt3 VALUES (1, 'three', 'before')")
    db.execute("ALTER TABLE pt ATTACH PARTITION pt3 FOR VALUES IN ('three')")
    db.execute("INSERT INTO pt VALUES (2, 'three', 'after')")
    changes = captured.catch_up()
    assert images(changes) == [("insert", None, (b"2", b"three", b"after"))]
    assert names(changes) == ["insert pt"]


def test_p29_only_the_roots_truncate_is_sent(db: Database, capture: Capturing) -> None:
    db.execute(PARTITIONED + ROOT)
    captured = capture(db)
    db.execute("INSERT INTO pt VALUES (1, 'one', 'v'), (2, 'two', 'w')")
    db.execute("TRUNCATE pt1")
    assert names(captured.catch_up()) == ["insert pt", "insert pt"]
    db.execute("TRUNCATE pt")
    changes = captured.catch_up()
    assert names(changes) == ["truncate pt"]
    Replay().apply(captured.changes()).check(db)


def test_p29_without_the_root_each_leaf_is_truncated(db: Database, capture: Capturing) -> None:
    db.execute(PARTITIONED + LEAVES)
    captured = capture(db)
    db.execute("INSERT INTO pt VALUES (1, 'one', 'v'), (2, 'two', 'w')")
    db.execute("TRUNCATE pt1")
    changes = captured.catch_up()
    assert names(changes) == ["insert pt1", "insert pt2", "truncate pt1"]
    Replay().apply(changes).check(db)
    db.execute("TRUNCATE pt")
    assert sorted(names(captured.catch_up())) == ["truncate pt1", "truncate pt2"]


@pytest.mark.parametrize(
    ("command", "tables"),
    [
        ("TRUNCATE child", ["child"]),
        ("TRUNCATE child, parent, unpublished", ["child", "parent"]),
        ("TRUNCATE parent CASCADE", ["parent", "child"]),
        ("TRUNCATE parent, alone RESTART IDENTITY CASCADE", ["parent", "alone", "child"]),
    ],
)
def test_p30_truncate_is_a_change_for_each_table(
    db: Database, capture: Capturing, command: str, tables: list[str]
) -> None:
    db.execute(
        "CREATE TABLE parent (id serial PRIMARY KEY); CREATE TABLE alone (id int PRIMARY KEY);"
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);"
        "CREATE TABLE unpublished (id int REFERENCES parent);"
        "CREATE PUBLICATION tailrace FOR TABLE parent, child, alone"
    )
    captured = capture(db)
    db.execute("INSERT INTO parent VALUES (1), (2); INSERT INTO child VALUES (1, 1)")
    db.execute(f"BEGIN; INSERT INTO alone VALUES (1); {command}; COMMIT")
    changes = captured.catch_up()
    truncates = [change for change in changes if change.op is Op.TRUNCATE]
    assert [relation_of(change).name for change in truncates] == tables
    assert [change.position.ordinal for change in truncates] == list(range(1, len(tables) + 1))
    assert {change.cascade for change in truncates} == {"CASCADE" in command}
    assert {change.restart_identity for change in truncates} == {"RESTART" in command}
    Replay().apply(changes).check(db)


def test_p30_rows_after_a_truncate_in_the_same_transaction_stay(
    db: Database, capture: Capturing
) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'gone')")
    db.execute("BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 'stays'); COMMIT")
    db.execute("BEGIN; TRUNCATE t; ROLLBACK")
    changes = captured.catch_up()
    assert names(changes) == ["insert t", "truncate t", "insert t"]
    Replay().apply(changes).check(db)

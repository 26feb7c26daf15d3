"""P1 to P13: what of a row an insert, an update and a delete carry."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.change import ABSENT, UNCHANGED
from tailrace.schema import ReplicaIdentity
from tests.integration.cases.replay import Replay, images, inserted, relation_of, select
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text, n int);"
EXTERNAL = "ALTER TABLE t ALTER v SET STORAGE EXTERNAL;"
LARGE = b"z" * 9000


def test_p01_unchanged_large_value_is_neither_value_nor_null(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE + EXTERNAL)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, repeat('z', 9000), 1)")
    db.execute("UPDATE t SET n = 2")
    changes = captured.catch_up()
    assert images(changes) == [
        ("insert", None, (b"1", LARGE, b"1")),
        ("update", None, (b"1", UNCHANGED, b"2")),
    ]
    Replay().apply(changes).check(db)


def test_p02_full_identity_fills_the_unchanged_value(db: Database, capture: Capturing) -> None:
    db.execute(TABLE + EXTERNAL + "ALTER TABLE t REPLICA IDENTITY FULL")
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, repeat('z', 9000), 1), (2, NULL, 1)")
    db.execute("UPDATE t SET n = 2")
    changes = captured.catch_up()
    assert images(changes)[2:] == [
        ("update", (b"1", LARGE, b"1"), (b"1", LARGE, b"2")),
        ("update", (b"2", None, b"1"), (b"2", None, b"2")),
    ]
    Replay().apply(changes).check(db)


def test_p03_large_key_is_taken_from_the_old_key(db: Database, capture: Capturing) -> None:
    db.execute("CREATE TABLE tk (k text PRIMARY KEY, v int, w text)")
    db.execute("ALTER TABLE tk ALTER k SET STORAGE EXTERNAL, ALTER w SET STORAGE EXTERNAL")
    captured = capture(db)
    db.execute("INSERT INTO tk VALUES (repeat('k', 2600), 1, repeat('w', 9000))")
    db.execute("UPDATE tk SET v = 2")
    changes = captured.catch_up()
    key = b"k" * 2600
    assert images(changes)[1:] == [("update", (key, ABSENT, ABSENT), (key, b"2", UNCHANGED))]
    Replay().apply(changes).check(db)


def test_p04_default_identity_has_the_key_and_nothing_else(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, NULL, 1), (2, 'two', 2)")
    db.execute("UPDATE t SET n = 3 WHERE id = 1")
    db.execute("DELETE FROM t WHERE id = 2")
    assert images(captured.catch_up())[2:] == [
        ("update", None, (b"1", None, b"3")),
        ("delete", (b"2", ABSENT, ABSENT), None),
    ]


def test_p05_primary_key_change_carries_both_keys(db: Database, capture: Capturing) -> None:
    db.execute(TABLE + EXTERNAL)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, repeat('z', 9000), 1)")
    db.execute("UPDATE t SET id = 1000 WHERE id = 1")
    changes = captured.catch_up()
    assert images(changes)[1:] == [
        ("update", (b"1", ABSENT, ABSENT), (b"1000", UNCHANGED, b"1")),
    ]
    Replay().apply(changes).check(db)


def test_p06_primary_key_swap_in_one_transaction(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2)")
    db.execute(
        "BEGIN; UPDATE t SET id = -1 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; "
        "UPDATE t SET id = 2 WHERE id = -1; COMMIT"
    )
    changes = captured.catch_up()
    swap = changes[2:]
    assert [(change.before, change.after) for change in swap] == [
        ((b"1", ABSENT, ABSENT), (b"-1", b"one", b"1")),
        ((b"2", ABSENT, ABSENT), (b"1", b"two", b"2")),
        ((b"-1", ABSENT, ABSENT), (b"2", b"one", b"1")),
    ]
    assert [change.position.ordinal for change in swap] == [0, 1, 2]
    Replay().apply(changes).check(db)


@pytest.mark.parametrize(
    "table",
    ["CREATE TABLE t (id int, n int)", TABLE + "ALTER TABLE t REPLICA IDENTITY NOTHING"],
    ids=["no key", "nothing"],
)
def test_p07_without_identity_the_application_is_refused_and_inserts_still_come(
    db: Database, capture: Capturing, table: str
) -> None:
    db.execute(table)
    captured = capture(db)
    db.execute("INSERT INTO t (id) VALUES (1)")
    for statement in ("UPDATE t SET n = 1", "DELETE FROM t"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            db.execute(statement)
    changes = captured.catch_up()
    assert inserted(changes) == select(db, "TABLE t")
    assert not any(column.key for column in relation_of(changes[0]).columns)


def test_p08_identity_by_index_is_not_the_primary_key(db: Database, capture: Capturing) -> None:
    db.execute(
        TABLE + "ALTER TABLE t ALTER n SET NOT NULL; CREATE UNIQUE INDEX t_n ON t (n);"
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n"
    )
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'one', 10)")
    db.execute("UPDATE t SET id = 2")
    db.execute("UPDATE t SET n = 20")
    db.execute("INSERT INTO t VALUES (3, 'three', 30); DELETE FROM t WHERE id = 3")
    changes = captured.catch_up()
    assert images(changes)[1:] == [
        ("update", None, (b"2", b"one", b"10")),
        ("update", (ABSENT, ABSENT, b"10"), (b"2", b"one", b"20")),
        ("insert", None, (b"3", b"three", b"30")),
        ("delete", (ABSENT, ABSENT, b"30"), None),
    ]
    relation = relation_of(changes[0])
    assert relation.replica_identity is ReplicaIdentity.INDEX
    assert [column.name for column in relation.columns if column.key] == ["n"]
    Replay().apply(changes).check(db)
    db.execute("DROP INDEX t_n")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        db.execute("UPDATE t SET v = 'refused'")


def test_p09_full_identity_deletes_one_of_two_equal_rows(db: Database, capture: Capturing) -> None:
    db.execute("CREATE TABLE d (a int, b text); ALTER TABLE d REPLICA IDENTITY FULL")
    captured = capture(db)
    db.execute("INSERT INTO d VALUES (1, NULL), (1, NULL), (2, NULL)")
    db.execute("DELETE FROM d WHERE ctid = '(0,1)'")
    changes = captured.catch_up()
    assert images(changes)[3:] == [("delete", (b"1", None), None)]
    Replay().apply(changes).check(db)


def test_p10_generated_columns_are_not_there(db: Database, capture: Capturing) -> None:
    virtual = ", v int GENERATED ALWAYS AS (a * 3) VIRTUAL" if db.server.major >= 18 else ""
    db.execute(
        "CREATE TABLE g (id int PRIMARY KEY, s int GENERATED ALWAYS AS (a * 2) STORED, "
        f"a int{virtual})"
    )
    captured = capture(db)
    db.execute("INSERT INTO g (id, a) VALUES (1, 5)")
    db.execute("UPDATE g SET a = 6")
    changes = captured.catch_up()
    assert images(changes) == [
        ("insert", None, (b"1", b"5")),
        ("update", None, (b"1", b"6")),
    ]
    Replay().apply(changes).check(db)


def test_p10_stored_generated_columns_are_published_when_asked_for(
    database: Database, capture: Capturing
) -> None:
    database.execute(
        "CREATE TABLE g (id int PRIMARY KEY, s int GENERATED ALWAYS AS (a * 2) STORED, a int, "
        "v int GENERATED ALWAYS AS (a * 3) VIRTUAL)"
    )
    database.execute(
        "CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish_generated_columns = stored)"
    )
    captured = capture(database)
    database.execute("INSERT INTO g (id, a) VALUES (1, 5)")
    changes = captured.catch_up()
    assert [column.name for column in relation_of(changes[0]).columns] == ["id", "s", "a"]
    assert inserted(changes) == select(database, "SELECT id, s, a FROM g")


GENERATED_KEY = (
    "CREATE TABLE g2 (a int, s int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY, b text)"
)


def test_p11_generated_key_leaves_nothing_to_identify_a_row(
    database16: Database, capture: Capturing
) -> None:
    database16.execute(GENERATED_KEY)
    captured = capture(database16)
    database16.execute("INSERT INTO g2 (a) VALUES (1); DELETE FROM g2")
    changes = captured.catch_up()
    assert images(changes) == [
        ("insert", None, (b"1", None)),
        ("delete", (ABSENT, ABSENT), None),
    ]
    assert not any(column.key for column in relation_of(changes[0]).columns)


def test_p11_postgresql_18_refuses_to_delete_by_a_generated_key(
    database: Database, capture: Capturing
) -> None:
    database.execute(GENERATED_KEY)
    captured = capture(database)
    database.execute("INSERT INTO g2 (a) VALUES (1)")
    with pytest.raises(psycopg.errors.InvalidColumnReference, match="generated columns"):
        database.execute("DELETE FROM g2")
    assert inserted(captured.catch_up()) == [(b"1", None)]


def test_p12_update_that_changes_nothing_is_an_update(db: Database, capture: Capturing) -> None:
    db.execute(TABLE + EXTERNAL)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, repeat('z', 9000), 1), (2, 'short', 2)")
    db.execute("UPDATE t SET id = id, v = v")
    changes = captured.catch_up()
    assert images(changes)[2:] == [
        ("update", None, (b"1", UNCHANGED, b"1")),
        ("update", None, (b"2", b"short", b"2")),
    ]
    Replay().apply(changes).check(db)


def test_p13_on_conflict_do_nothing_is_nothing(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'first', 1)")
    db.execute("INSERT INTO t VALUES (1, 'second', 2), (2, 'new', 3) ON CONFLICT DO NOTHING")
    db.execute("INSERT INTO t VALUES (1, 'third', 4) ON CONFLICT (id) DO UPDATE SET n = 5")
    assert images(captured.catch_up()) == [
        ("insert", None, (b"1", b"first", b"1")),
        ("insert", None, (b"2", b"new", b"3")),
        ("update", None, (b"1", b"first", b"5")),
    ]


GATED = """
CREATE TABLE s (k int, who text);
CREATE FUNCTION gate(k int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    -- The first call looks for conflicts, the second one puts the row into the index.
    IF current_setting('gate.calls', true) = '1' THEN
        PERFORM pg_advisory_lock(4711);
    END IF;
    PERFORM set_config('gate.calls', (current_setting('gate.calls')::int + 1)::text, false);
    RETURN k;
END $$;
CREATE UNIQUE INDEX s_gate ON s (gate(k));
"""


def test_p13_failed_speculative_insert_is_nothing(db: Database, capture: Capturing) -> None:
    """GIVEN a writer between its check for conflicts and its entry in the index,
    WHEN another one commits the same key first, THEN the first one's row never shows."""
    db.execute(GATED)
    captured = capture(db)
    with db.connect() as gate, db.connect() as loser:
        gate.execute("SELECT pg_advisory_lock(4711)")
        loser.execute("SET gate.calls TO 0")
        waiting = threading.Thread(
            target=loser.execute,
            args=("INSERT INTO s VALUES (1, 'loser') ON CONFLICT DO NOTHING",),
        )
        waiting.start()
        wait_for(
            lambda: db.query(
                "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s",
                loser.info.backend_pid,
            ),
            "the loser waits in the index",
        )
        db.execute("SET gate.calls TO 10; INSERT INTO s VALUES (1, 'winner')")
        gate.execute("SELECT pg_advisory_unlock(4711)")
        waiting.join()
        loser.execute("INSERT INTO s VALUES (2, 'loser')")
    assert inserted(captured.catch_up()) == [(b"1", b"winner"), (b"2", b"loser")]
    # The first place in the table was the loser's: its row was written and taken back.
    assert select(db, "SELECT ctid FROM s WHERE who = 'winner'") == [(b"(0,2)",)]

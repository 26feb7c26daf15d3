"""P16 to P20, P24, P25: relations and types as of each change, whatever the catalog says today."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.log.changes import Decoder, read_changes
from tailrace.log.reader import Earliest
from tailrace.schema import TypeName
from tests.integration.cases.replay import (
    Replay,
    images,
    inserted,
    names,
    relation_of,
    select,
)
from tests.integration.cases.running import running, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.change import Change
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def columns(change: Change) -> list[str]:
    return [column.name for column in relation_of(change).columns]


def catalog_columns(db: Database, table: str) -> list[tuple[str, int, int]]:
    rows = db.query(
        "SELECT attname, atttypid::int8, atttypmod FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        table,
    )
    return [(name, oid, modifier) for name, oid, modifier in rows]


def stated_columns(change: Change) -> list[tuple[str, int, int]]:
    return [
        (column.name, column.type_oid, column.type_modifier)
        for column in relation_of(change).columns
    ]


def test_p16_renamed_column_and_table_keep_their_oid(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'a')")
    db.execute("ALTER TABLE t RENAME v TO u")
    db.execute("INSERT INTO t VALUES (2, 'b')")
    db.execute("ALTER TABLE t RENAME TO r; CREATE SCHEMA s; ALTER TABLE r SET SCHEMA s")
    db.execute("INSERT INTO s.r VALUES (3, 'c')")
    changes = captured.catch_up()
    assert [relation_of(change).qualified_name for change in changes] == [
        "public.t",
        "public.t",
        "s.r",
    ]
    assert [columns(change) for change in changes] == [["id", "v"], ["id", "u"], ["id", "u"]]
    assert db.query("SELECT 's.r'::regclass::oid::int8") == [(relation_of(changes[0]).oid,)]
    assert len({relation_of(change).oid for change in changes}) == 1
    Replay().apply(changes).check(db)


def test_p17_dropped_and_created_again_is_another_table(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'old')")
    [(old_oid,)] = db.query("SELECT 't'::regclass::oid::int8")
    db.execute("DROP TABLE t; CREATE TABLE t (v text PRIMARY KEY, more int)")
    db.execute("INSERT INTO t VALUES ('new', 1)")
    [(new_oid,)] = db.query("SELECT 't'::regclass::oid::int8")
    changes = captured.catch_up()
    assert names(changes) == ["insert t", "insert t"]
    assert [relation_of(change).oid for change in changes] == [old_oid, new_oid]
    assert inserted(changes) == [(b"1", b"old"), (b"new", b"1")]


def test_p18_schema_changes_inside_a_transaction(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute(
        "BEGIN; INSERT INTO t VALUES (1, 'a'); ALTER TABLE t ADD e int DEFAULT 7; "
        "INSERT INTO t VALUES (2, 'b', 8); ALTER TABLE t DROP v; INSERT INTO t VALUES (3, 9); "
        "ALTER TABLE t RENAME TO r; INSERT INTO r VALUES (4, 10); "
        "ALTER TABLE r ALTER e TYPE text USING 'x' || e; INSERT INTO r VALUES (5, 'y'); COMMIT"
    )
    changes = captured.catch_up()
    assert [(relation_of(change).name, columns(change), change.after) for change in changes] == [
        ("t", ["id", "v"], (b"1", b"a")),
        ("t", ["id", "v", "e"], (b"2", b"b", b"8")),
        ("t", ["id", "e"], (b"3", b"9")),
        ("r", ["id", "e"], (b"4", b"10")),
        ("r", ["id", "e"], (b"5", b"y")),
    ]
    assert len({change.position.lsn for change in changes}) == 1
    assert [change.position.ordinal for change in changes] == [0, 1, 2, 3, 4]
    assert stated_columns(changes[-1]) == catalog_columns(db, "r")


def test_p18_rewritten_rows_of_a_rolled_back_alter_never_show(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'a')")
    db.execute(
        "BEGIN; ALTER TABLE t ADD e int DEFAULT 7; INSERT INTO t VALUES (2, 'b', 8); ROLLBACK"
    )
    db.execute("INSERT INTO t VALUES (3, 'c')")
    changes = captured.catch_up()
    assert [columns(change) for change in changes] == [["id", "v"]] * 2
    Replay().apply(changes).check(db)


def test_p19_relations_are_learned_anew_in_every_session(db: Database, capture: Capturing) -> None:
    db.execute(TABLE + "; CREATE TABLE other (id int PRIMARY KEY)")
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO other VALUES (1)")
    first = captured.catch_up()
    assert stated_columns(first[0]) == catalog_columns(db, "t")
    db.execute("ALTER TABLE t DROP v, ADD w numeric(6, 2) DEFAULT 1.5")
    db.execute("INSERT INTO t VALUES (2, 2.5); INSERT INTO other VALUES (2)")
    second = captured.catch_up()
    assert stated_columns(second[0]) == catalog_columns(db, "t")
    assert second[0].after == (b"2", b"2.50")
    db.execute("INSERT INTO t VALUES (3, 3.5)")
    third = captured.catch_up()
    assert relation_of(third[0]) == relation_of(second[0])
    assert [c for c in captured.changes() if c.relation] == [*first, *second, *third]


def test_p19_a_reader_that_starts_anywhere_has_the_relations_in_force(
    database: Database, capture: Capturing
) -> None:
    """GIVEN two tables whose columns change in turn, in many entries of one session,
    WHEN reading starts at any row, THEN it decodes as it did from the beginning."""
    database.execute(
        "CREATE TABLE t (id serial PRIMARY KEY); CREATE TABLE u (id serial PRIMARY KEY)"
    )
    captured = capture(database, log={"segment_bytes": 6000})
    captured.catch_up()
    with running(captured):
        for number in range(12):
            for table in "tu":
                database.execute(f"ALTER TABLE {table} ADD c{number} int")
                database.execute(f"INSERT INTO {table} DEFAULT VALUES")
                settle(captured)
            database.execute("INSERT INTO t DEFAULT VALUES; INSERT INTO u DEFAULT VALUES")
            settle(captured)
    changes = [change for change in captured.changes() if change.relation]
    assert [len(columns(change)) for change in changes] == [2 + n // 4 for n in range(48)]
    assert len(captured.log.segments()) >= 2
    for number, change in enumerate(changes):
        rest = read_changes(captured.log, change.position)
        assert [c for c in rest if c.relation] == changes[number + 1 :]


def test_p20_vacuum_full_and_cluster_are_nothing(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 100) i")
    db.execute("DELETE FROM t WHERE id % 2 = 0")
    for statement in ("VACUUM FULL t", "CLUSTER t USING t_pkey", "VACUUM FULL pg_class", "ANALYZE"):
        db.execute(statement)
    db.execute("UPDATE t SET v = 'after' WHERE id = 1")
    changes = captured.catch_up()
    assert len(changes) == 100 + 50 + 1
    Replay().apply(changes).check(db)


def test_p24_enum_label_is_the_one_of_its_time(db: Database, capture: Capturing) -> None:
    db.execute("CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE e (m mood, id serial)")
    captured = capture(db)
    db.execute("INSERT INTO e VALUES ('sad')")
    db.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'; ALTER TYPE mood ADD VALUE 'new'")
    db.execute("INSERT INTO e VALUES ('blue'), ('new')")
    assert inserted(captured.catch_up()) == [(b"sad", b"1"), (b"blue", b"2"), (b"new", b"3")]
    assert select(db, "SELECT m FROM e") == [(b"blue",), (b"blue",), (b"new",)]


def test_p25_types_of_the_user_are_named_in_the_stream(db: Database, capture: Capturing) -> None:
    db.execute(
        "CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('sad', 'glad'); "
        "CREATE DOMAIN s.positive AS int CHECK (value > 0); CREATE DOMAIN feeling AS s.mood; "
        "CREATE TYPE pair AS (a int, b s.mood); "
        "CREATE TABLE t (id s.positive PRIMARY KEY, m s.mood, f feeling, p pair, l s.mood[], b int)"
    )
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'sad', 'glad', (1, 'sad'), '{sad,glad}', 2)")
    changes = captured.catch_up()
    decoder = Decoder()
    list(decoder.decode(captured.log.read(captured.log.resolve(Earliest()))))
    assert images(changes) == [("insert", None, select(db, "TABLE t")[0])]
    assert stated_columns(changes[0]) == catalog_columns(db, "t")
    # A domain has its own oid, and the name of the type below it.
    expected = db.query(
        "SELECT t.oid::int8, n.nspname, b.typname FROM pg_attribute "
        "JOIN pg_type t ON t.oid = atttypid "
        "JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid) "
        "JOIN pg_namespace n ON n.oid = b.typnamespace "
        "WHERE attrelid = 't'::regclass AND attnum > 0 AND t.oid >= 16384"
    )
    assert len(expected) == 5
    assert decoder.types == {
        oid: TypeName(oid=oid, namespace=namespace, name=name) for oid, namespace, name in expected
    }

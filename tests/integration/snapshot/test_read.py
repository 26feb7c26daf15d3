"""`spark.read.format("tailrace")`: a table in parallel, from one snapshot."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.functions import expr

from tailrace.errors import PostgresRefusedError, PostgresUnreachableError
from tailrace.postgres.names import TableName
from tailrace.snapshot.export import imported
from tailrace.snapshot.keeper import keep
from tests.waiting import LONG_S, holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

FACTS = ("_change_type", "_commit_version", "_commit_ordinal", "_commit_timestamp", "_xid")


def read(spark: SparkSession, database: Database, table: str, **options: str) -> DataFrame:
    reader = spark.read.format("tailrace").option("dsn", database.dsn).option("table", table)
    return reader.options(**options).load()


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "true")
    yield
    spark.conf.set(setting, before or "false")


def transfer(database: Database, over: threading.Event, seed: int) -> None:
    """Transfer money, one transaction after another."""
    with database.connect() as connection:
        step = seed
        while not over.is_set():
            step = step * 7 % 10_007
            connection.execute("BEGIN")
            connection.execute("UPDATE account SET sum = sum - 1 WHERE id = %s", (step % 5000,))
            connection.execute("UPDATE account SET sum = sum + 1 WHERE id = %s", (step % 4999,))
            connection.execute("COMMIT")
            time.sleep(0.001)


def test_many_tasks_read_one_snapshot(spark: SparkSession, database: Database) -> None:
    database.execute(
        "CREATE TABLE account (id int PRIMARY KEY, sum int, filler text);"
        "INSERT INTO account SELECT g, 100, repeat('x', 200) FROM generate_series(0, 4999) g"
    )
    over = threading.Event()
    writers = [threading.Thread(target=transfer, args=(database, over, seed)) for seed in (3, 5)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(2):
            frame = read(spark, database, "account", partitionBytes="300000")
            rows = frame.select("id", "sum").collect()
            assert sorted(row.id for row in rows) == list(range(5000))
            assert sum(row.sum for row in rows) == 500_000
    finally:
        over.set()
        for writer in writers:
            writer.join()
    assert len({row.sum for row in rows}) > 1


def test_the_same_rows_as_the_stream(
    spark: SparkSession, database: Database, capture: Callable[..., Captured]
) -> None:
    database.execute(
        "CREATE TABLE typed (id int PRIMARY KEY, name text, price numeric(9,2), at timestamptz,"
        " day date, odd date, raw bytea, tags text[], doc jsonb)"
    )
    captured = capture(database)
    database.execute(
        "INSERT INTO typed SELECT g, 'né ' || g, g * 1.25, '2026-01-01 12:00+00'::timestamptz"
        " + g * interval '1.5 hours', '2026-01-01'::date + g, 'infinity', decode('00ff', 'hex'),"
        " ARRAY['a', NULL, 'c,d'], jsonb_build_object('n', g) FROM generate_series(1, 500) g;"
        "INSERT INTO typed (id) VALUES (501)"
    )
    captured.catch_up()
    table = spark.read.format("tailrace").option("table", "typed")
    streamed = table.option("log", str(captured.folder)).load()
    snapshot = read(spark, database, "typed", partitionBytes="8192")
    assert snapshot.schema == streamed.schema
    found = snapshot.drop(*FACTS).orderBy("id").collect()
    assert len(found) == 501
    assert found == streamed.drop(*FACTS).orderBy("id").collect()
    assert found[0]["_unrepresentable"] == ["odd"]


def test_columns(spark: SparkSession, database: Database) -> None:
    database.execute("CREATE TABLE wide (a int, b text, c text); INSERT INTO wide VALUES (1, 2, 3)")
    narrow = read(spark, database, "wide", columns="c, a")
    assert narrow.columns[:3] == ["c", "a", "_change_type"]
    assert [(row.c, row.a) for row in narrow.collect()] == [("3", 1)]
    with pytest.raises(AnalysisException, match="has no column d"):
        read(spark, database, "wide", columns="a,d")


def test_only_the_columns_of_the_table(spark: SparkSession, database: Database) -> None:
    database.execute(
        "CREATE TABLE plain (a int, d date); INSERT INTO plain VALUES (1, '2026-01-01')"
    )
    plain = read(spark, database, "plain", facts="false")
    assert [(row.a, str(row.d)) for row in plain.collect()] == [(1, "2026-01-01")]
    assert plain.columns == ["a", "d"]
    database.execute("INSERT INTO plain VALUES (2, 'infinity')")
    with pytest.raises(
        PySparkException, match=r"column d of .* has 1 values that Spark's type cannot"
    ):
        read(spark, database, "plain", facts="false").collect()
    left = read(spark, database, "plain", facts="false", columns="a")
    assert sorted(row.a for row in left.collect()) == [1, 2]
    options = {"dsn": database.dsn, "table": "plain", "facts": "false"}
    changes = spark.readStream.format("tailrace").options(**options).load()
    query = changes.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match="not to changes"):
        query.awaitTermination(LONG_S)


FILTERS = (
    "id = 7",
    "id > 95 AND id <= 98",
    "id IN (1, 2, 1000)",
    "id IS NOT NULL",
    "name = 'né 5'",
    "name IN ('né 5', 'x''; DROP TABLE filtered; --')",
    "name < 'né 2'",
    "name IS NULL",
    "price > 10.5",
    "price = 1.25",
    "at >= timestamp'2026-01-02 00:00:00'",
    "day BETWEEN date'2026-01-05' AND date'2026-01-09'",
    "flag",
    "NOT flag",
    "loose = '1.0'",
    "uid = 'not a uuid'",
    "odd IS NULL",
    "odd > date'2000-01-01'",
    "NOT (id = 3)",
    "name LIKE 'né 1%'",
    "real = 0.5",
)


@pytest.mark.long
@pytest.mark.usefixtures("pushdown")
def test_filters_pushed_down_change_nothing(spark: SparkSession, database: Database) -> None:
    database.execute(
        "CREATE TABLE filtered (id int, name text, price numeric(9,2), at timestamptz, day date,"
        " flag bool, loose numeric, uid uuid, odd date, real float8);"
        "INSERT INTO filtered SELECT g, 'né ' || g, g * 1.25, '2026-01-01'::timestamptz + g *"
        " interval '1 hour', '2026-01-01'::date + g, g % 2 = 0, g * 1.0, gen_random_uuid(),"
        " CASE WHEN g % 3 = 0 THEN 'infinity' WHEN g % 3 = 1 THEN '2026-01-01'::date END, g / 2.0"
        " FROM generate_series(1, 100) g; INSERT INTO filtered (id) VALUES (NULL)"
    )
    frame = read(spark, database, "filtered")
    everything = spark.createDataFrame(frame.collect(), frame.schema).drop(*FACTS)
    passes = [expr(text).alias(text) for text in FILTERS]
    rows = everything.select("*", *passes).collect()
    for text in FILTERS:
        found = [tuple(row) for row in frame.where(text).drop(*FACTS).collect()]
        expected = [tuple(row)[: len(everything.columns)] for row in rows if row[text]]
        assert sorted(found, key=str) == sorted(expected, key=str), text


@pytest.mark.usefixtures("pushdown")
def test_filtered_rows_do_not_leave_postgres(spark: SparkSession, database: Database) -> None:
    """A division by zero would show that PostgreSQL had read the other rows."""
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY); INSERT INTO big SELECT generate_series(1, 10);"
        "CREATE VIEW trapped AS SELECT id, 1 / (id - 5) AS trap FROM big"
    )
    assert read(spark, database, "trapped").where("id = 4").select("trap").collect() == [(-1,)]


def test_the_log_in_one_read(
    spark: SparkSession, database: Database, capture: Callable[..., Captured]
) -> None:
    database.execute("CREATE TABLE logged (id int PRIMARY KEY)")
    captured = capture(database)
    database.execute("INSERT INTO logged SELECT generate_series(1, 50)")
    database.execute("DELETE FROM logged WHERE id > 40")
    captured.catch_up()
    frame = spark.read.format("tailrace").option("log", str(captured.folder)).load()
    counts = {row.op: row["count"] for row in frame.groupBy("op").count().collect()}
    assert counts == {"insert": 50, "delete": 10}


def test_clear_errors(spark: SparkSession, database: Database) -> None:
    with pytest.raises(AnalysisException, match="it matches no table"):
        read(spark, database, "nowhere")
    with pytest.raises(AnalysisException, match="a batch read with a DSN needs"):
        spark.read.format("tailrace").option("dsn", database.dsn).load().collect()


def test_a_policy_that_hides_rows_is_an_error(spark: SparkSession, database: Database) -> None:
    role = f"reader_{database.name}"
    database.execute(f"""
        CREATE TABLE secrets (id int PRIMARY KEY); INSERT INTO secrets VALUES (1), (2);
        CREATE ROLE {role} LOGIN; GRANT SELECT ON secrets TO {role};
        ALTER TABLE secrets ENABLE ROW LEVEL SECURITY;
        CREATE POLICY one ON secrets USING (id = 1)
    """)
    dsn = make_conninfo(database.dsn, user=role)
    reader = spark.read.format("tailrace").option("dsn", dsn).option("table", "secrets")
    try:
        with pytest.raises(PySparkException, match="row-level security"):
            reader.load().collect()
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.long
def test_a_keeper_stays_while_a_session_reads_and_then_ends(database: Database) -> None:
    database.execute("CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)")
    snapshot = keep(database.dsn, TableName("public", "kept"), idle_s=10)
    holders = (
        "SELECT count(*) FROM pg_stat_activity a JOIN pg_locks l USING (pid)"
        " WHERE l.relation = 'kept'::regclass AND a.application_name LIKE 'tailrace keeper%'"
    )
    with imported(database.dsn, snapshot) as connection:
        holds(lambda: database.query(holders) == [(1,)], 12, "the keeper is there")
        database.execute("DELETE FROM kept")
        assert connection.execute("SELECT count(*) FROM public.kept").fetchall() == [(1,)]
        assert database.query(holders) == [(1,)]
    wait_for(lambda: database.query(holders) == [(0,)], "the keeper goes")


def test_a_keeper_returns_errors(database: Database) -> None:
    with pytest.raises(PostgresUnreachableError):
        keep("host=127.0.0.1 port=1 connect_timeout=2", TableName("public", "kept"))
    with pytest.raises(PostgresRefusedError, match="does not exist"):
        keep(database.dsn, TableName("public", "nowhere"))

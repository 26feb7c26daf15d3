"""`format("tailrace")` as PySpark users call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pyspark.errors import PySparkException

import tailrace
from tailrace.change import Op
from tailrace.errors import CorruptError, DivergedError, PositionLostError
from tailrace.log.reader import Earliest, Log
from tailrace.log.seek import Seeker
from tailrace.open_batch import OpenBatches, OpenProgress
from tailrace.pipeline.frames.changes import SCHEMA
from tailrace.pipeline.source.offset import Offset
from tailrace.pipeline.source.options import Options
from tailrace.pipeline.source.partitions import OpenRange, Range
from tailrace.pipeline.source.stream import TailraceReader
from tailrace.position import Lsn, Position
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

ROOT = Path(__file__).parents[2]


def available(frame: DataFrame, folder: Path) -> list[list[Row]]:
    """The rows of each micro-batch of `Trigger.AvailableNow`."""
    batches: list[list[Row]] = []

    def keep(batch: DataFrame, _number: int) -> None:
        batches.append(batch.collect())

    stream = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    assert stream.option("checkpointLocation", str(folder)).start().awaitTermination(LONG_S)
    return batches


def source(spark: SparkSession, captured: Captured, **options: Any) -> DataFrame:
    reader = spark.readStream.format("tailrace").option("log", str(captured.folder))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_a_query_adds_no_name_to_the_registered_sources_environment(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    """GIVEN a Java map that every query writes to WHEN a query starts THEN it adds no name.

    Two queries that add a name at the same time can corrupt the map, and all later tasks fail."""
    tailrace.register(spark)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource("tailrace").dataSourceCls().envVars()
    names = set(shared)
    available(source(spark, shop), tmp_path / "checkpoint")
    assert shared["SPARK_PYTHON_RUNTIME"]
    assert set(shared) == names


@pytest.fixture
def shop(database: Database, capture: Capturing) -> Captured:
    database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text, born date, score numeric(8, 2)); "
        "CREATE TABLE orders (id bigint PRIMARY KEY, detail jsonb)"
    )
    captured = capture(database)
    for number in range(5):
        database.execute(
            "INSERT INTO users SELECT g, 'user ' || g, '2000-01-01'::date + g, g / 4.0 "
            "FROM generate_series(%s::int, %s) g",
            number * 100,
            number * 100 + 99,
        )
        captured.catch_up()
    database.execute("INSERT INTO orders VALUES (1, '{\"a\": [1, 2]}')")
    database.execute("UPDATE users SET name = 'new', born = 'infinity' WHERE id = 3")
    database.execute("UPDATE users SET id = 1003 WHERE id = 4")
    database.execute("DELETE FROM users WHERE id = 5")
    captured.catch_up()
    return captured


def test_the_change_frame_has_every_change_of_the_log(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    (rows,) = available(source(spark, shop), tmp_path / "ck")
    expected = [change for change in shop.changes() if change.op is not Op.MESSAGE]
    assert [row.id for row in rows] == [change.position.event_id for change in expected]
    assert [row.op for row in rows] == [change.op.value for change in expected]
    assert [row.xid for row in rows] == [change.xid for change in expected]
    assert [row.lsn for row in rows] == [int(change.position.lsn) for change in expected]
    by_op = {row.op: row for row in rows}
    assert json.loads(rows[0].after) == {
        "id": 0,
        "name": "user 0",
        "born": "2000-01-01",
        "score": "0.00",
    }
    assert json.loads(by_op["delete"].before) == {"id": 5}
    order = next(row for row in rows if row.table == "orders")
    assert (order.schema, json.loads(order.key)) == ("public", {"id": 1})
    assert json.loads(order.after)["detail"] == {"a": [1, 2]}


def test_the_option_tables_selects_tables(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    (rows,) = available(source(spark, shop, tables="public.ord*"), tmp_path / "ck")
    assert [row.table for row in rows] == ["orders"]


def test_batches_end_at_the_limits(spark: SparkSession, shop: Captured, tmp_path: Path) -> None:
    batches = available(source(spark, shop, maxRowsPerTrigger=100), tmp_path / "ck")
    assert [len(batch) for batch in batches[:5]] == [100] * 5
    assert sum(map(len, batches)) == 504
    by_bytes = available(source(spark, shop, maxBytesPerTrigger=1), tmp_path / "ck2")
    assert len(by_bytes) >= len(batches)
    assert sum(map(len, by_bytes)) == 504


def test_a_query_resumes_from_its_checkpoint(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    available(source(spark, shop), tmp_path / "ck")
    assert available(source(spark, shop), tmp_path / "ck") in ([], [[]])
    shop.database.execute("INSERT INTO orders VALUES (2, 'null')")
    shop.catch_up()
    batches = available(source(spark, shop), tmp_path / "ck")
    assert [json.loads(row.after) for batch in batches for row in batch] == [
        {"id": 2, "detail": None}
    ]


def test_a_checkpoint_of_another_log_has_diverged(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    available(source(spark, shop), tmp_path / "ck")
    shop.replace_log()
    shop.database.execute("INSERT INTO orders VALUES (2, 'null')")
    shop.catch_up()
    with pytest.raises(PySparkException, match=r"DivergedError.*belongs to the log"):
        available(source(spark, shop), tmp_path / "ck")


@pytest.mark.parametrize("replayed", [False, True])
def test_an_offset_of_another_log_is_refused(shop: Captured, replayed: bool) -> None:
    """Whether Spark plans the next batch after it, or replays a batch that begins there."""
    reader = TailraceReader(Options(log=shop.folder), SCHEMA)
    end = shop.log.end()

    def plan(start: Offset) -> None:
        if replayed:
            reader.partitions(start.dump(), start.dump())
        else:
            reader.latestOffset(start.dump(), reader.getDefaultReadLimit())

    own = Offset(position=end.position, history=shop.log.id)
    plan(own)
    for other, message in (
        (replace(own, history="another"), "belongs to the log another"),
        (replace(own, position=Position(Lsn(end.end_lsn + 1))), "the log ends at"),
    ):
        with pytest.raises(DivergedError, match=message) as caught:
            plan(other)
        assert "checkpointLocation" in caught.value.hint


def test_every_kind_of_starting_position(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    changes = shop.changes()
    middle = changes[250].position
    rows = available(source(spark, shop, startingPosition=str(middle.lsn)), tmp_path / "lsn")
    assert rows[0][0].lsn == middle.lsn
    rows = available(source(spark, shop, startingAfter=str(middle)), tmp_path / "after")
    assert rows[0][0].id == changes[251].position.event_id
    when = changes[250].committed_at.isoformat()
    rows = available(source(spark, shop, startingPosition=when), tmp_path / "time")
    assert rows[0][0].lsn == middle.lsn
    rows = available(source(spark, shop, startingPosition="latest"), tmp_path / "latest")
    assert sum(map(len, rows)) == 0


def test_the_table_frame_has_typed_columns(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    frame = source(spark, shop, table="users")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema][:4] == [
        ("id", "int"),
        ("name", "string"),
        ("born", "date"),
        ("score", "decimal(8,2)"),
    ]
    (rows,) = available(frame, tmp_path / "ck")
    assert str(rows[10].born) == "2000-01-11"
    assert str(rows[10].score) == "2.50"
    tail = [(row._change_type, row.id, row._unrepresentable) for row in rows[-4:]]
    assert tail == [
        ("update_postimage", 3, ["born"]),
        ("update_preimage", 4, []),
        ("update_postimage", 1003, []),
        ("delete", 5, []),
    ]
    assert rows[-1]._unchanged == ["name", "born", "score"]


def test_a_schema_change_ends_a_query_on_a_table(
    spark: SparkSession, shop: Captured, tmp_path: Path
) -> None:
    frame = source(spark, shop, table="users")
    # The query has read every old row before the table changes.
    (before,) = available(frame, tmp_path / "ck")
    assert before[0].id == 0
    shop.database.execute("ALTER TABLE users ADD extra int")
    shop.database.execute("INSERT INTO users VALUES (9000, 'x', NULL, NULL, 1)")
    shop.catch_up()
    with pytest.raises(PySparkException, match=r"SchemaChangedError.*extra"):
        available(frame, tmp_path / "ck")
    # A restarted query has the column; older rows need onSchemaChange=ignore.
    again = source(spark, shop, table="users", onSchemaChange="ignore")
    (rows,) = available(again, tmp_path / "again")
    assert [rows[0].extra, rows[-1].extra] == [None, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tabels": "x"}, "unknown option 'tabels'"),
        ({"maxRowsPerTrigger": "0"}, "whole number"),
        ({"startingPosition": "soon"}, "invalid start position"),
        ({"tables": "a.b.c"}, "invalid table pattern"),
        ({"table": "nope"}, "the log has no change of it"),
    ],
)
def test_invalid_options_are_refused(
    spark: SparkSession, shop: Captured, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        source(spark, shop, **options)


def test_a_log_or_a_dsn_is_required(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="needs"):
        spark.readStream.format("tailrace").load()


def test_a_range_reads_the_same_rows_every_time(shop: Captured) -> None:
    reader = TailraceReader(Options(log=shop.folder, partitions=3), SCHEMA)
    log = Log.open(shop.folder)
    start, end = log.resolve(Earliest()), log.end().position
    parts = reader.partitions({"position": str(start)}, {"position": str(end)})
    assert len(parts) == 3
    once = [[batch.to_pylist() for batch in reader.read(part)] for part in parts]
    again = [[batch.to_pylist() for batch in reader.read(part)] for part in parts]
    assert once == again
    ids = [row["id"] for part in once for batch in part for row in batch]
    expected = [c.position.event_id for c in shop.changes() if c.op is not Op.MESSAGE]
    assert ids == expected


def test_a_reader_opens_nothing_before_planning(tmp_path: Path) -> None:
    TailraceReader(Options(log=tmp_path / "nothing", dsn="host=nowhere"), SCHEMA)
    assert not (tmp_path / "nothing").exists()


def test_a_query_pins_its_start_position(shop: Captured) -> None:
    reader = TailraceReader(Options(log=shop.folder, consumer="a-query"), SCHEMA)
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    pinned = json.loads((shop.folder / "pin-a-query.json").read_text())
    assert Position.parse(pinned["position"]) == Position.parse(str(start["position"]))


def test_an_idle_query_sends_a_heartbeat(shop: Captured) -> None:
    now = 1000.0
    reader = TailraceReader(Options(log=shop.folder), SCHEMA, clock=lambda: now)
    end: dict[str, object] = {"position": str(Log.open(shop.folder).end().position)}
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(end, limit) == end
    now += 60
    beat = reader.latestOffset(end, limit)
    assert beat == end | {"beat": 1}
    assert reader.latestOffset(beat, limit) == beat
    (part,) = reader.partitions(end, beat)
    assert list(reader.read(part)) == []


def test_an_open_batch_is_planned_once_and_replayed_as_it_ended(
    shop: Captured, tmp_path: Path
) -> None:
    """GIVEN an open batch WHEN it is replayed THEN it is open until its end is recorded, and has
    nothing to deliver from then on."""
    records = OpenBatches(tmp_path)
    options = Options(log=shop.folder, max_open_s=45, open_batches=tmp_path)
    reader = TailraceReader(options, SCHEMA)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    planned = reader.latestOffset(start, limit)
    batch = Offset.parse(planned).open_batch
    assert planned == start | {"history": shop.log.id, "opened": 1, "open": True}
    (part,) = reader.partitions(start, planned)
    assert isinstance(part, OpenRange)
    with pytest.raises(CorruptError, match="no record"):
        reader.latestOffset(planned, limit)
    end = shop.log.end().position
    records.close(batch, end)
    (part,) = reader.partitions(start, planned)
    assert isinstance(part, Range)
    assert (part.after, part.upto) == (str(end), str(end))
    following = Offset.parse(reader.latestOffset(planned, limit))
    assert (following.open_batch.number, following.open_batch.after) == (2, end)
    # A query that stops plans no closed batch either, however much is left.
    records.request_close()
    assert reader.latestOffset(planned, limit) == planned
    assert reader.latestOffset(start, limit) == start


@pytest.mark.parametrize("max_open_s", [45, 0])
@pytest.mark.parametrize("closed", [False, True])
def test_an_open_batch_whose_offset_a_power_cut_removed(
    shop: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_open_s: int, closed: bool
) -> None:
    """It is planned again without a look at the log, which may have removed its beginning."""
    options = Options(log=shop.folder, max_open_s=45, open_batches=tmp_path)
    reader, records = TailraceReader(options, SCHEMA), OpenBatches(tmp_path)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    planned = reader.latestOffset(start, limit)
    batch, end = Offset.parse(planned).open_batch, shop.log.end().position
    if closed:
        records.close(batch, end)
    else:
        records.note(batch, OpenProgress(reached=str(end)))

    def lost(*_: object, **__: object) -> NoReturn:
        raise PositionLostError("the first segment is gone")

    monkeypatch.setattr(Seeker, "find", lost)
    again = TailraceReader(replace(options, max_open_s=max_open_s), SCHEMA)
    assert again.latestOffset(start, limit) == planned
    (part,) = again.partitions(start, planned)
    if max_open_s and not closed:
        assert isinstance(part, OpenRange)
    else:
        assert isinstance(part, Range)
        assert (part.after, part.upto) == (str(end), str(end))
        assert list(again.read(part)) == []


def test_an_interrupted_open_batch_ends_with_what_it_delivered(
    shop: Captured, tmp_path: Path
) -> None:
    """GIVEN settings without open batches by now."""
    records = OpenBatches(tmp_path)
    options = Options(log=shop.folder, open_batches=tmp_path)
    opening = TailraceReader(replace(options, max_open_s=45), SCHEMA)
    start = opening.initialOffset()
    planned = opening.latestOffset(start, opening.getDefaultReadLimit())
    end = shop.log.end().position
    records.note(Offset.parse(planned).open_batch, OpenProgress(reached=str(end)))
    (part,) = TailraceReader(options, SCHEMA).partitions(start, planned)
    assert isinstance(part, Range)
    assert (part.after, part.upto) == (str(end), str(end))


@pytest.mark.long
def test_the_five_line_example_runs_without_a_daemon(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    output = tmp_path / "out"
    with output.open("wb") as out:
        script = subprocess.Popen(
            [sys.executable, ROOT / "examples/changes.py", database.socket_dsn],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            preexec_fn=lambda: signal.signal(  # noqa: PLW1509
                signal.SIGINT, signal.default_int_handler
            ),
        )
    try:
        deadline = time.monotonic() + LONG_S
        number = 0
        while "hello" not in output.read_text():
            assert script.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            if (tmp_path / "tailrace-data/tailrace/durable").exists():
                database.execute("INSERT INTO t VALUES (%s, 'hello')", number)
                number += 1
            time.sleep(0.3)
        assert '"name":"hello"' in output.read_text()
    finally:
        script.send_signal(signal.SIGINT)
        script.wait(LONG_S)
        deadline = time.monotonic() + LONG_S
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'tailrace'"
        while any(row[0] for row in database.query(active)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not any(row[0] for row in database.query(active))
        database.query("SELECT pg_drop_replication_slot('tailrace')")


@pytest.mark.long
def test_a_plain_spark_session_finds_the_source(shop: Captured, tmp_path: Path) -> None:
    program = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.readStream.format("tailrace").option("log", {str(shop.folder)!r}).load()
query = frame.writeStream.format("memory").queryName("found").trigger(availableNow=True).start()
query.awaitTermination()
print("rows:", spark.sql("SELECT count(*) FROM found").first()[0])
"""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        check=False,
    )
    assert "rows: 504" in done.stdout, done.stderr[-2000:]

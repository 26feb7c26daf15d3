"""Schema drift on real catalogs: what is found, what is not, and what is done about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats
import orjson
import pytest

from tailrace import config
from tailrace.change import Op
from tailrace.errors import SinkUnreachableError
from tailrace.schemas.drift import record
from tailrace.schemas.drift.watcher import Watcher
from tailrace.testing import EmbeddedNats
from tests.integration.cases.replay import select
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.postgres.names import TableName
    from tailrace.schemas.drift.record import Policy, RecordedDrift
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text, n int);
CREATE TABLE short (id int PRIMARY KEY, n int);
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE TABLE loose (id int NOT NULL, v text);
"""
ROWS = """
INSERT INTO t SELECT g, 'v' || g, g FROM generate_series(1, 20) g;
INSERT INTO short SELECT g, g FROM generate_series(1, 20) g;
INSERT INTO p SELECT g, 'v' FROM generate_series(0, 19) g;
INSERT INTO loose SELECT g, 'v' FROM generate_series(20, 29) g;
"""
PUBLICATION = "CREATE PUBLICATION tailrace FOR TABLE t, short, p WITH ({options})"
VIA_ROOT = "publish_via_partition_root = true"
NO_TRUNCATE = f"{VIA_ROOT}, publish = 'insert, update, delete'"


class Watched:
    """A watcher over a captured database, and what it finds."""

    def __init__(self, captured: Captured, data: Path, **pipeline: object) -> None:
        sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
        settings = {"shape": "plain", "sink": sink} | pipeline
        whole = captured.config.model_dump() | {"data": data, "pipelines": {"one": settings}}
        self.config = config.Config.model_validate(whole)
        self.captured = captured
        self.backfills: list[tuple[str, str]] = []
        self.watcher = self.start()

    def start(self, policy: Policy = "flag") -> Watcher:
        def backfill(_pipeline: str, table: TableName, reason: str) -> None:
            self.backfills.append((str(table), reason))

        self.watcher = Watcher(self.config, policies={"one": policy}, backfill=backfill)
        return self.watcher

    def check(self) -> list[RecordedDrift]:
        """One check, and another after the log has reached the LSN of the first."""
        found = self.watcher.check()
        self.captured.catch_up()
        return found + self.watcher.check()

    def kinds(self, *statements: str) -> list[tuple[str, str]]:
        """What is found after the statements."""
        for statement in statements:
            self.captured.database.execute(statement)
        return sorted((each.kind, each.subject) for each in self.check())

    def differs(self) -> bool:
        """Whether a consumer that applied all row events has other rows than PostgreSQL.

        Columns that a row was sent without are NULL.
        """
        kept: dict[str, dict[bytes, dict[str, Any]]] = {}
        for change in self.captured.changes():
            if change.relation is None:
                continue
            rows = kept.setdefault(change.relation.qualified_name, {})
            columns = [column.name for column in change.relation.columns]
            if change.op is Op.TRUNCATE:
                rows.clear()
            elif change.op is Op.DELETE:
                assert change.before is not None
                del rows[_bytes(change.before[0])]
            else:
                assert change.after is not None
                row = dict(zip(columns, change.after, strict=True))
                rows[_bytes(change.after[0])] = row
        return any(self._table(name) != kept.get(name, {}) for name in self._names(kept))

    def _names(self, kept: dict[str, dict[bytes, dict[str, Any]]]) -> list[str]:
        """The published tables, after the consumer's rows are converted to the present columns."""
        names = []
        database = self.captured.database
        sql = "SELECT schemaname || '.' || tablename, attnames FROM pg_publication_tables"
        for name, columns in database.query(sql):
            names.append(name)
            for row in kept.get(name, {}).values():
                values = {column: row.get(column) for column in columns}
                row.clear()
                row.update(values)
        return names

    def _table(self, name: str) -> dict[bytes, dict[str, Any]]:
        database = self.captured.database
        sql = "SELECT attnames, rowfilter FROM pg_publication_tables WHERE %s = "
        sql += "schemaname || '.' || tablename"
        [(columns, row_filter)] = database.query(sql, name)
        query = f"SELECT {', '.join(columns)} FROM {name} WHERE {row_filter or 'true'}"
        rows = select(database, query)
        return {_bytes(row[0]): dict(zip(columns, row, strict=True)) for row in rows}


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


@pytest.fixture
def watched(
    request: pytest.FixtureRequest, database: Database, capture: Capturing, tmp_path: Path
) -> Iterator[Watched]:
    made = make(database, capture, tmp_path, getattr(request, "param", VIA_ROOT))
    yield made
    made.watcher.close()


def make(
    database: Database, capture: Capturing, folder: Path, options: str, **pipeline: object
) -> Watched:
    database.execute(TABLES)
    database.execute(PUBLICATION.format(options=options))
    made = Watched(capture(database), folder / "data", **pipeline)
    database.execute(ROWS)
    assert made.check() == []
    assert not made.differs()
    return made


ATTACHED = (
    "ALTER TABLE loose ADD PRIMARY KEY (id)",
    "ALTER TABLE p ATTACH PARTITION loose FOR VALUES FROM (20) TO (30)",
)
CASES: tuple[tuple[tuple[str, ...], list[tuple[str, str]]], ...] = (
    (("ALTER TABLE t ALTER n TYPE text USING 'v' || n",), [("column-retyped", "n")]),
    (("ALTER TABLE t ALTER n TYPE bigint",), [("column-retyped", "n")]),
    (("ALTER TABLE t ALTER n TYPE int USING n + 1",), [("column-rewritten", "n")]),
    (("ALTER TABLE short ALTER n TYPE int USING n + 1",), [("column-rewritten", "n")]),
    (("ALTER TABLE p ALTER v TYPE varchar(9) USING 'w'",), [("column-retyped", "v")]),
    (("ALTER TABLE t ALTER v TYPE varchar",), []),
    (("ALTER TABLE t ALTER n TYPE int USING 7", "VACUUM FULL t"), [("column-rewritten", "n")]),
    (("ALTER TABLE t ADD d int NOT NULL DEFAULT 7",), [("column-default", "d")]),
    (
        ("ALTER TABLE t ADD d int DEFAULT 7", "ALTER TABLE t ALTER d DROP DEFAULT"),
        [("column-default", "d")],
    ),
    (("ALTER TABLE t ADD d float DEFAULT random()",), [("column-default", "d")]),
    (("ALTER TABLE short ADD d float DEFAULT random()",), [("column-default", "d")]),
    (("ALTER TABLE t ADD d serial",), [("column-default", "d")]),
    (("ALTER TABLE p ADD d int DEFAULT 7",), [("column-default", "d")]),
    (("ALTER TABLE t ADD d int",), []),
    (("ALTER TABLE t ALTER n SET DEFAULT 5, ALTER n SET NOT NULL",), []),
    (("ALTER TABLE t DROP n",), []),
    (("CREATE TABLE e (id int PRIMARY KEY)", "ALTER PUBLICATION tailrace ADD TABLE e"), []),
    (("ALTER TABLE p DETACH PARTITION p1",), [("partition-detached", "public.p1")]),
    (("ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY",), [("partition-detached", "public.p1")]),
    (("DROP TABLE p1",), [("partition-detached", "public.p1")]),
    (ATTACHED, [("partition-attached", "public.loose")]),
    (("DELETE FROM loose", "TRUNCATE loose", *ATTACHED), []),
    (
        (
            "BEGIN; CREATE TABLE q (LIKE p INCLUDING ALL); INSERT INTO q VALUES (30, 'x'); "
            "ALTER TABLE p ATTACH PARTITION q FOR VALUES FROM (30) TO (40); COMMIT",
        ),
        [("partition-attached", "public.q")],
    ),
    (("CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",), []),
    (
        (
            "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
            "INSERT INTO p VALUES (20, 'sent')",
        ),
        [],
    ),
    (("TRUNCATE p1",), [("partition-truncated", "public.p1")]),
    (("TRUNCATE p",), []),
    (("BEGIN; SAVEPOINT s; TRUNCATE p; RELEASE s; COMMIT",), []),
    (
        ("TRUNCATE p", "INSERT INTO p VALUES (1), (11)", "TRUNCATE p2"),
        [("partition-truncated", "public.p2")],
    ),
    (("TRUNCATE t",), []),
    (("TRUNCATE t, short, p",), []),
    (("DELETE FROM t",), []),
    (("VACUUM FULL t", "VACUUM FULL short", "VACUUM FULL p1"), []),
    (("DELETE FROM t WHERE n > 5", "CLUSTER t USING t_pkey", "CLUSTER short USING short_pkey"), []),
    (("DELETE FROM short", "VACUUM FULL short"), []),
    (("REINDEX TABLE t", "ANALYZE t", "VACUUM t", "ALTER TABLE t SET (fillfactor = 50)"), []),
    (("GRANT SELECT ON t TO public", "CREATE INDEX ON t (n)"), []),
    (("DROP TABLE t",), [("table-dropped", "")]),
    (
        (
            "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY)",
            "ALTER PUBLICATION tailrace ADD TABLE t",
        ),
        [("table-replaced", "")],
    ),
    (("ALTER TABLE t RENAME TO s",), [("table-renamed", "")]),
    (("ALTER PUBLICATION tailrace DROP TABLE t",), [("table-left", "")]),
    (
        (
            "ALTER PUBLICATION tailrace DROP TABLE t",
            "ALTER PUBLICATION tailrace ADD TABLE t WHERE (id > 5)",
        ),
        [("row-filter", "")],
    ),
)


@pytest.mark.parametrize(("statements", "expected"), CASES, ids=lambda value: str(value)[:60])
def test_each_statement_has_its_drift(
    watched: Watched, statements: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    """Whenever a consumer's rows differ, drift is found."""
    assert watched.kinds(*statements) == expected
    assert watched.check() == []
    assert expected or not watched.differs()


@pytest.mark.parametrize("watched", [NO_TRUNCATE], indirect=True)
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("TRUNCATE t", [("table-truncated", "")]),
        ("TRUNCATE short", [("table-truncated", "")]),
        ("TRUNCATE p1", [("partition-truncated", "public.p1")]),
        (
            "TRUNCATE p",
            [("partition-truncated", "public.p1"), ("partition-truncated", "public.p2")],
        ),
        ("BEGIN; TRUNCATE t; INSERT INTO t VALUES (1); COMMIT", [("table-truncated", "")]),
        ("VACUUM FULL t", []),
    ],
)
def test_truncations_that_are_not_published(
    watched: Watched, statement: str, expected: list[tuple[str, str]]
) -> None:
    assert watched.kinds(statement) == expected
    assert bool(expected) == watched.differs()


def test_postgres_16_finds_the_same(
    database16: Database, capture: Capturing, tmp_path: Path
) -> None:
    watched = make(database16, capture, tmp_path, NO_TRUNCATE)
    try:
        assert watched.kinds("VACUUM FULL t", "CLUSTER short USING short_pkey") == []
        assert watched.kinds(
            "TRUNCATE short",
            "ALTER TABLE t ADD d int DEFAULT 1",
            "ALTER TABLE p DETACH PARTITION p2",
        ) == [
            ("column-default", "d"),
            ("partition-detached", "public.p2"),
            ("table-truncated", ""),
        ]
    finally:
        watched.watcher.close()


def test_a_renamed_column_is_not_drift_because_its_document_shows_it(watched: Watched) -> None:
    assert watched.kinds("ALTER TABLE t RENAME v TO w") == []


def test_a_crash_repeats_nothing(watched: Watched) -> None:
    """GIVEN a watcher that died after it recorded drift, and before it stored the read
    WHEN another one checks THEN it finds the same drift, knows it, and does nothing twice."""
    facts = watched.config.data / "silent" / "facts"
    before = facts.read_bytes()
    watched.watcher.close()
    watched.start("backfill")
    assert watched.kinds("INSERT INTO t VALUES (99)") == []
    assert len(watched.kinds("ALTER TABLE t ADD d int DEFAULT 7")) == 1
    watched.watcher.close()
    facts.write_bytes(before)
    watched.start("backfill")
    assert watched.kinds() == []
    assert len(watched.backfills) == 1


@pytest.mark.parametrize("table", ["t", "short"])
def test_missing_values_of_the_catalog(watched: Watched, table: str) -> None:
    """VACUUM FULL writes them into the rows; ALTER TABLE may write others."""
    added = f"ALTER TABLE {table} ADD d int DEFAULT 7, ADD e int DEFAULT 8"
    assert watched.kinds(added) == [("column-default", "d"), ("column-default", "e")]
    assert watched.kinds(f"VACUUM FULL {table}") == []
    assert len(watched.kinds(f"ALTER TABLE {table} ADD f int DEFAULT 7")) == 1
    assert ("column-rewritten", "f") in watched.kinds(
        f"ALTER TABLE {table} ALTER f TYPE int USING 5"
    )


def test_a_partition_that_is_created_and_truncated_between_two_checks(watched: Watched) -> None:
    assert watched.kinds(
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
        "INSERT INTO p VALUES (20, 'sent')",
        "TRUNCATE p3",
    ) == [("partition-truncated", "public.p3")]


def test_a_column_that_joins_the_publication(watched: Watched) -> None:
    again = "ALTER PUBLICATION tailrace DROP TABLE t; ALTER PUBLICATION tailrace ADD TABLE t"
    assert watched.kinds(f"BEGIN; {again} (id, v); COMMIT") == []
    assert watched.kinds(f"BEGIN; {again}; COMMIT") == [("column-published", "n")]


def test_a_table_that_is_published_again(watched: Watched) -> None:
    assert watched.kinds("ALTER PUBLICATION tailrace DROP TABLE t") == [("table-left", "")]
    assert watched.kinds("INSERT INTO t VALUES (99)") == []
    assert watched.kinds("ALTER PUBLICATION tailrace ADD TABLE t") == [("table-returned", "")]


def test_rows_of_unlogged_tables_are_not_sent(
    database: Database, capture: Capturing, tmp_path: Path
) -> None:
    database.execute(TABLES)
    database.execute(ROWS)
    watched = Watched(capture(database), tmp_path / "data")
    try:
        watched.check()
        assert watched.kinds("ALTER TABLE t SET UNLOGGED") == [("table-left", "")]
        assert watched.kinds("INSERT INTO t VALUES (99)") == []
        assert watched.kinds("ALTER TABLE t SET LOGGED") == [("table-returned", "")]
    finally:
        watched.watcher.close()


def test_drift_while_tailrace_is_stopped(watched: Watched) -> None:
    """GIVEN a stopped watcher WHEN a table is altered THEN the next watcher finds it, once."""
    watched.watcher.close()
    watched.captured.database.execute("ALTER TABLE t ALTER n TYPE text USING 'v' || n")
    watched.start()
    assert watched.kinds() == [("column-retyped", "n")]
    watched.watcher.close()
    watched.start()
    assert watched.kinds() == []
    [found] = record.load(watched.config.data).found
    assert (found.detail, found.waiting) == ("integer → text", [])
    assert found.hint.startswith("Take a new snapshot of public.t")


def test_backfill_and_ignore(watched: Watched) -> None:
    watched.watcher.close()
    watched.start("backfill")
    database = watched.captured.database
    statements = "ALTER TABLE t ADD d int DEFAULT 7", "DROP TABLE short", "TRUNCATE p1"
    assert len(watched.kinds(*statements)) == 3
    assert watched.backfills == [("public.t", "column-default d")]
    assert record.load(watched.config.data).counts == {
        "one": {"column-default": 1, "partition-truncated": 1, "table-dropped": 1}
    }
    watched.watcher.close()
    watched.start("ignore")
    database.execute("ALTER TABLE t ADD e int DEFAULT 7")
    assert watched.kinds() == []
    assert len(watched.backfills) == 1


def test_consumers_are_notified_after_nats_is_back(
    database: Database, capture: Capturing, tmp_path: Path
) -> None:
    """GIVEN an unreachable NATS WHEN drift is found THEN consumers are notified later."""
    with EmbeddedNats() as server:
        sink = {"type": "nats", "url": server.url}
        watched = make(
            database, capture, tmp_path, VIA_ROOT, shape="bridge", encoding="json", sink=sink
        )
        try:
            server.stop()
            with pytest.raises(SinkUnreachableError):
                watched.kinds("ALTER TABLE t ALTER n TYPE text USING 'v' || n")
            server.start()
            notice = asyncio.run(_listen(server.url, watched))
        finally:
            watched.watcher.close()
    assert notice.pop("timestamp") > 0
    [(oid,)] = database.query("SELECT 't'::regclass::oid::int8")
    [found] = record.load(watched.config.data).found
    assert notice == {
        "table": "t",
        "schema": "public.t",
        "kind": "column-retyped",
        "subject": "n",
        "detail": "integer → text",
        "lsn": found.lsn,
        "relation_id": oid,
        "policy": "flag",
    }


async def _listen(url: str, watched: Watched) -> dict[str, Any]:
    client = await nats.connect(url)
    try:
        subscription = await client.subscribe("schema_findings.>")
        await client.flush()
        await asyncio.to_thread(watched.check)
        message = await subscription.next_msg(timeout=LONG_S)
        bucket = await client.jetstream(timeout=60).key_value("schema_findings")
        assert (await bucket.get("t")).value == message.data
        assert message.subject == "schema_findings.t"
        found: dict[str, Any] = orjson.loads(message.data)
        return found
    finally:
        await client.close()

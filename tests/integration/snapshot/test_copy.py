"""Rows read from a table are the rows the stream sends, byte for byte."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from tailrace.decode.decoder import Decoder
from tailrace.errors import (
    ConfigError,
    PostgresRefusedError,
    PostgresUnreachableError,
    SnapshotLostError,
)
from tailrace.log.reader import Earliest
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName
from tailrace.snapshot.catalog import read_table, stretches
from tailrace.snapshot.copy import copy, query
from tailrace.snapshot.export import Exported, export, imported
from tailrace.snapshot.table import Stretch, Table
from tests.corpus import prepared
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.schema import Relation, TypeName
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

Row = tuple[bytes | None, ...]


@pytest.fixture
def take(database: Database) -> Iterator[Callable[[str], Exported]]:
    """`take(table)` exports a snapshot for the duration of the test."""
    held: list[psycopg.Connection] = []

    def taken(table: str) -> Exported:
        held.append(connect(database.dsn))
        return export(held[-1], TableName.parse(table))

    yield taken
    for connection in held:
        connection.close()


def rows_of(
    database: Database, snapshot: Exported, table: str, *, max_bytes: int = 8192
) -> tuple[Table, list[Row]]:
    """Read a table page by page."""
    rows: list[Row] = []
    with imported(database.dsn, snapshot) as connection:
        found = read_table(connection, TableName.parse(table))
        names = [column.name for column in found.relation.columns]
        for stretch in stretches(connection, found, max_bytes=max_bytes):
            for count, image in copy(connection, query(stretch, names), len(names)):
                columns = [cells.values.to_pylist() for cells in image if cells is not None]
                block = list(zip(*columns, strict=True)) if columns else [()] * count
                assert len(block) == count
                rows += block
    return found, rows


def streamed(
    captured: Captured, table: str
) -> tuple[Relation | None, dict[int, TypeName], list[Row]]:
    """The relation, the types and the inserted rows of a table in the log."""
    captured.catch_up()
    decoder = Decoder(wanted=lambda each: each.name == table, messages=lambda _: False)
    rows: list[Row] = []
    relation: Relation | None = None
    types: dict[int, TypeName] = {}
    log = captured.log
    for entry in log.read(log.resolve(Earliest())):
        for group in decoder.decode(entry, log.resolve(Earliest()), log.end().position):
            assert group.after is not None
            relation, types = group.relation, types | group.types
            columns = [cells.values.to_pylist() for cells in group.after if cells is not None]
            rows += list(zip(*columns, strict=True)) if columns else [()] * len(group)
    return relation, types, rows


def test_every_type_as_in_the_stream(
    database: Database, capture: Callable[..., Captured], take: Callable[[str], Exported]
) -> None:
    kinds = prepared(database)
    columns = ", ".join(f'"{kind}" {kind}' for kind in kinds if kind != '"char"')
    database.execute(f'CREATE TABLE every (id int PRIMARY KEY, "c" "char", {columns})')
    captured = capture(database)
    number = 0
    with database.connect() as connection:
        connection.execute("INSERT INTO every (id) VALUES (0)")
        for kind, values in kinds.items():
            for value in values:
                number += 1
                name = "c" if kind == '"char"' else kind
                insert = sql.SQL("INSERT INTO every (id, {}) VALUES ({}, {})").format(
                    sql.Identifier(name), number, sql.Literal(value)
                )
                connection.execute(insert)
    relation, types, expected = streamed(captured, "every")
    table, rows = rows_of(database, take("every"), "every")
    assert len(rows) == number + 1
    assert sorted(rows, key=lambda row: int(row[0] or 0)) == expected
    assert table.relation == relation
    assert table.types == types


@pytest.mark.parametrize(
    ("create", "insert", "expected"),
    [
        ("(v text)", "(NULL), (''), ('\\N'), ('\\.'), (E'\\n'), ('NULL'), ('\"')", None),
        ("(a int, b text)", "(1, NULL), (NULL, NULL), (NULL, ''), (2, E'a\\r\\n\"b\",c')", None),
        ("()", "", [(), ()]),
        ("(v text)", "(repeat('x', 9000000)), ('y')", None),
    ],
)
def test_awkward_rows(
    database: Database,
    take: Callable[[str], Exported],
    create: str,
    insert: str,
    expected: list[Row] | None,
) -> None:
    database.execute(f"CREATE TABLE awkward {create}")
    if insert:
        database.execute(f"INSERT INTO awkward VALUES {insert}")
    else:
        database.execute("INSERT INTO awkward DEFAULT VALUES; INSERT INTO awkward DEFAULT VALUES")
    if expected is None:
        found = database.query("SELECT * FROM awkward")
        expected = [
            tuple(None if value is None else str(value).encode() for value in row) for row in found
        ]
    assert rows_of(database, take("awkward"), "awkward")[1] == expected


def test_any_text(database: Database, take: Callable[[str], Exported]) -> None:
    """Everything that COPY escapes with a backslash, and text that looks like an escape."""
    parts = [
        "\\",
        "N",
        "n",
        "t",
        "x",
        ".",
        "\n",
        "\r",
        "\t",
        "\b",
        "\f",
        "\v",
        '"',
        ",",
        "é",
        "\x7f",
    ]
    texts: list[str | None] = [None, "", *parts]
    texts += [one + other for one in parts for other in parts]
    chance = random.Random(7)
    texts += ["".join(chance.choices(parts, k=chance.randrange(3, 12))) for _ in range(2000)]
    database.execute("CREATE TABLE t (id int, one text, other text, raw bytea)")
    given = [
        (number, text, texts[-number], (text or "").encode()) for number, text in enumerate(texts)
    ]
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", given)
    _, rows = rows_of(database, take("t"), "t")
    assert rows == [
        (
            str(number).encode(),
            None if one is None else one.encode(),
            None if other is None else other.encode(),
            b"\\x" + raw.hex().encode(),
        )
        for number, one, other, raw in given
    ]


def test_only_columns_and_rows_of_the_table_itself(
    database: Database, take: Callable[[str], Exported]
) -> None:
    database.execute(
        """
        CREATE TABLE parent (id int, gone text, twice int GENERATED ALWAYS AS (id * 2) STORED);
        ALTER TABLE parent DROP COLUMN gone;
        CREATE TABLE child () INHERITS (parent);
        INSERT INTO parent VALUES (1);
        INSERT INTO child VALUES (2);
        """
    )
    assert rows_of(database, take("parent"), "parent")[1] == [(b"1",)]


def test_a_partitioned_table_is_read_leaf_by_leaf(
    database: Database, take: Callable[[str], Exported]
) -> None:
    database.execute(
        """
        CREATE TABLE root (id int, v text) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (1000);
        CREATE TABLE middle (dropped int, v text, id int);
        ALTER TABLE middle DROP COLUMN dropped;
        ALTER TABLE root ATTACH PARTITION middle FOR VALUES FROM (1000) TO (2000);
        CREATE TABLE high PARTITION OF root FOR VALUES FROM (2000) TO (9000) PARTITION BY HASH (id);
        CREATE TABLE high_0 PARTITION OF high FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE high_1 PARTITION OF high FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        INSERT INTO root SELECT g, 'v' || g FROM generate_series(0, 2999) g;
        """
    )
    _, rows = rows_of(database, take("root"), "root")
    expected = [(str(number).encode(), f"v{number}".encode()) for number in range(3000)]
    assert sorted(rows, key=lambda row: int(row[0] or 0)) == expected


def test_a_snapshot_has_each_row_once_and_no_later_change(
    database: Database, take: Callable[[str], Exported]
) -> None:
    database.execute(
        "CREATE TABLE moved (id int PRIMARY KEY, v text);"
        "INSERT INTO moved SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g"
    )
    snapshot = take("moved")
    database.execute(
        "UPDATE moved SET v = 'new', id = id + 5000 WHERE id % 2 = 0;"
        "DELETE FROM moved WHERE id % 3 = 0;"
        "INSERT INTO moved SELECT g, 'late' FROM generate_series(20001, 30000) g"
    )
    _, rows = rows_of(database, snapshot, "moved")
    assert sorted(int(row[0] or 0) for row in rows) == list(range(1, 2001))
    assert {row[1] for row in rows} == {b"x" * 500}


def test_the_snapshot_is_described_exactly(
    database: Database, take: Callable[[str], Exported]
) -> None:
    database.execute("CREATE TABLE seen (id int)")
    with database.connect() as open_one, database.connect() as over:
        open_one.execute("BEGIN")
        ours = int(open_one.execute("SELECT pg_current_xact_id()::text").fetchall()[0][0])
        over.execute("BEGIN")
        theirs = int(over.execute("SELECT pg_current_xact_id()::text").fetchall()[0][0])
        over.execute("COMMIT")
        snapshot = take("seen")
        open_one.execute("COMMIT")
    assert ours in snapshot.visibility.running
    assert theirs < snapshot.visibility.xmax
    assert theirs not in snapshot.visibility.running
    assert Exported.of(snapshot.fields()) == snapshot


def test_since_is_the_start_of_the_oldest_writer(
    database: Database, take: Callable[[str], Exported]
) -> None:
    database.execute("CREATE TABLE seen (id int)")
    with database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO seen VALUES (1)")
        [(begun,)] = writer.execute("SELECT now()").fetchall()
        since = take("seen").since
        writer.execute("COMMIT")
    assert since == begun
    after = take("seen").since
    assert after is not None
    assert after > begun


def test_since_is_unknown_to_an_unprivileged_role(database: Database) -> None:
    role = f"blind_{database.name}"
    database.execute(f"CREATE TABLE seen (id int); CREATE ROLE {role} LOGIN")
    database.execute(f"GRANT SELECT ON seen TO {role}")
    dsn = database.server.dsn(database.name, user=role)
    table = TableName("public", "seen")

    def known() -> bool:
        with connect(dsn) as connection:
            return export(connection, table).since is not None

    # The sessions of the set-up are hidden from the role, too, until the server has ended them.
    wait_for(known)
    with database.connect() as writer, connect(dsn) as connection:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO seen VALUES (1)")
        assert export(connection, table).since is None
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_snapshot_blocks_truncate_and_rewrites(
    database: Database, take: Callable[[str], Exported]
) -> None:
    database.execute("CREATE TABLE held (id int); INSERT INTO held VALUES (1)")
    snapshot = take("held")
    for statement in ("TRUNCATE held", "VACUUM FULL held", "ALTER TABLE held ADD v int"):
        with database.connect() as connection:
            connection.execute("SET lock_timeout TO '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute(statement.encode())
    assert rows_of(database, snapshot, "held")[1] == [(b"1",)]


def test_a_lost_snapshot_is_refused(database: Database) -> None:
    database.execute("CREATE TABLE gone (id int)")
    with connect(database.dsn) as connection:
        snapshot = export(connection, TableName("public", "gone"))
    with (
        pytest.raises(SnapshotLostError, match="no longer exists"),
        imported(database.dsn, snapshot),
    ):
        pass


def test_a_terminated_session_is_an_error(
    database: Database, take: Callable[[str], Exported]
) -> None:
    database.execute(
        "CREATE TABLE large AS SELECT g, repeat('x', 1000) AS v FROM generate_series(1, 50000) g"
    )
    snapshot = take("large")
    with imported(database.dsn, snapshot) as connection:
        select = query(Stretch(TableName("public", "large")), ["g", "v"])
        blocks = copy(connection, select, 2)
        assert next(blocks)[0] > 0
        database.query("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)
        with pytest.raises(PostgresUnreachableError):
            list(blocks)


def test_a_failed_query_has_its_reason(database: Database, take: Callable[[str], Exported]) -> None:
    database.execute("CREATE TABLE divided (id int); INSERT INTO divided VALUES (1), (0)")
    snapshot = take("divided")
    with imported(database.dsn, snapshot) as connection:
        select = query(Stretch(TableName("public", "divided")), ["id"], ["1 / id > 0"])
        with pytest.raises(PostgresRefusedError, match="division by zero"):
            list(copy(connection, select, 1))


def test_a_missing_table(database: Database) -> None:
    with connect(database.dsn) as connection, pytest.raises(ConfigError, match="no table"):
        read_table(connection, TableName("public", "nowhere"))

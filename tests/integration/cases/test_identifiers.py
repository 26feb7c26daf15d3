"""Odd names of schemas, tables, columns, publications and databases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.errors import PostgresRefusedError
from tests.fix_postgres import Database
from tests.integration.cases.replay import Replay, images, inserted, relation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured

    Capturing = Callable[..., Captured]

ODD = [
    'quo"te',
    "apo'strophe",
    "new\nline\ttab",
    "x;-- drop",
    "Sch.éma *>",
    "😀 нет",
    "%s {} $1 \\",
    " ",
    "select",
    "$$",
    "a,b",
    "x" * 63,
    "é" * 31,
]

ODD_PUBLICATIONS = ['quo"te', "apo'strophe", "new\nline", "x;-- drop", "a,b", "É" * 31]


def table_of(namespace: str, name: str) -> sql.Identifier:
    return sql.Identifier(namespace, name)


@pytest.mark.parametrize("where", ["schema", "table", "column", "type"])
def test_odd_names_arrive_as_they_are(db: Database, capture: Capturing, where: str) -> None:
    """GIVEN a name that needs quoting, WHEN rows come and go, THEN it is read unharmed."""
    captured = capture(db)
    expected: list[tuple[str, str, tuple[str, str]]] = []
    with db.connect() as session:
        for name in ODD:
            namespace = name if where == "schema" else "public"
            table = name if where == "table" else f"t{len(expected)}"
            column = name if where == "column" else "v"
            kind = table_of("public", name) if where == "type" else sql.SQL("text")
            if where == "schema":
                session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
            if where == "type":
                session.execute(sql.SQL("CREATE TYPE {} AS ENUM ('a', 'b')").format(kind))
            target, value = table_of(namespace, table), sql.Identifier(column)
            for statement in (
                "CREATE TABLE {t} (id int PRIMARY KEY, {v} {k})",
                "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')",
                "UPDATE {t} SET {v} = 'b' WHERE id = 1",
                "DELETE FROM {t} WHERE id = 2",
            ):
                session.execute(sql.SQL(statement).format(t=target, v=value, k=kind))
            expected += [(namespace, table, ("id", column))] * 4
    changes = captured.catch_up()
    stated = [relation_of(change) for change in changes]
    assert [
        (relation.namespace, relation.name, tuple(column.name for column in relation.columns))
        for relation in stated
    ] == expected
    Replay().apply(changes).check(db)


def test_names_that_differ_in_case_only(db: Database, capture: Capturing) -> None:
    db.execute(
        'CREATE TABLE t ("Id" int, "id" int, "ID" text, PRIMARY KEY ("ID", "id"));'
        'CREATE TABLE "T" (id int PRIMARY KEY)'
    )
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 2, 'k'); INSERT INTO \"T\" VALUES (3)")
    db.execute("UPDATE t SET id = 5")
    changes = captured.catch_up()
    assert [relation_of(change).name for change in changes] == ["t", "T", "t"]
    columns = relation_of(changes[0]).columns
    assert [(column.name, column.key) for column in columns] == [
        ("Id", False),
        ("id", True),
        ("ID", True),
    ]
    Replay().apply(changes).check(db)


def test_table_without_columns(db: Database, capture: Capturing) -> None:
    db.execute("CREATE TABLE empty (); ALTER TABLE empty REPLICA IDENTITY FULL")
    captured = capture(db)
    db.execute("INSERT INTO empty DEFAULT VALUES; INSERT INTO empty DEFAULT VALUES")
    db.execute("DELETE FROM empty WHERE ctid = '(0,1)'; TRUNCATE empty")
    changes = captured.catch_up()
    assert images(changes) == [
        ("insert", None, ()),
        ("insert", None, ()),
        ("delete", (), None),
        ("truncate", None, None),
    ]
    assert relation_of(changes[0]).columns == ()


def test_table_whose_columns_were_all_dropped(db: Database, capture: Capturing) -> None:
    db.execute("CREATE TABLE t (a int, b int)")
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 2)")
    db.execute("ALTER TABLE t DROP a, DROP b; INSERT INTO t DEFAULT VALUES")
    assert inserted(captured.catch_up()) == [(b"1", b"2"), ()]


def test_table_with_as_many_columns_as_there_may_be(db: Database, capture: Capturing) -> None:
    columns = ", ".join(f"c{number} int" for number in range(1600))
    db.execute(f"CREATE TABLE wide ({columns})")
    captured = capture(db)
    db.execute("INSERT INTO wide (c0, c1599) VALUES (1, 2)")
    assert inserted(captured.catch_up()) == [(b"1", *[None] * 1598, b"2")]


@pytest.mark.parametrize("name", ["é" * 40, "x" * 62 + "é", "😀" * 16])
def test_names_are_cut_at_63_bytes_between_characters(
    db: Database, capture: Capturing, name: str
) -> None:
    captured = capture(db)
    with db.connect() as session:
        session.execute(
            sql.SQL("CREATE TABLE {} (id int, {} int)").format(
                sql.Identifier(name), sql.Identifier(name)
            )
        )
        session.execute(sql.SQL("INSERT INTO {} VALUES (1, 2)").format(sql.Identifier(name)))
    [(kept,)] = db.query(
        "SELECT relname FROM pg_class WHERE relname LIKE left(%s, 9) || '%%'", name
    )
    (change,) = captured.catch_up()
    relation = relation_of(change)
    assert relation.name == relation.columns[1].name == kept
    assert name.startswith(kept)
    assert len(kept.encode()) <= 63


@pytest.mark.parametrize("name", ODD_PUBLICATIONS)
def test_odd_publication_is_the_one_that_is_read(
    database: Database, capture: Capturing, name: str
) -> None:
    """A name that were split or cut would find another publication or none."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    with database.connect() as session:
        session.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE t").format(sql.Identifier(name)))
    captured = capture(database, source={"publication": name})
    database.execute("INSERT INTO u VALUES (1); INSERT INTO t VALUES (2)")
    assert inserted(captured.catch_up()) == [(b"2",)]


@pytest.mark.parametrize("name", ODD_PUBLICATIONS[::2])
def test_odd_publication_that_is_dropped_is_refused(
    db: Database, capture: Capturing, name: str
) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    publication = sql.Identifier(name)
    with db.connect() as session:
        create = sql.SQL("CREATE PUBLICATION {} FOR TABLE t").format(publication)
        session.execute(create)
        captured = capture(db, source={"publication": name})
        session.execute(sql.SQL("DROP PUBLICATION {}").format(publication))
        session.execute("INSERT INTO t VALUES (1)")
        session.execute(create)
        session.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(PostgresRefusedError, match="publication"):
        captured.catch_up()
    assert captured.changes() == []


@dataclass(frozen=True, slots=True, kw_only=True)
class OddDatabase(Database):
    """A database whose name has to be quoted in a connection string."""

    @property
    def socket_dsn(self) -> str:
        return make_conninfo(self.server.dsn(tcp=False), dbname=self.name)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.socket_dsn, autocommit=True)


@pytest.fixture(params=["odd\"na'me", "with space=1 ", "новая\\база", "host=elsewhere", "100%"])
def odd_database(request: pytest.FixtureRequest, database: Database) -> Iterator[OddDatabase]:
    # A name with = in it must not be taken for a connection string of its own.
    name = f"{request.param}{database.name[-8:]}"
    odd = OddDatabase(name=name, server=database.server)
    with database.connect() as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield odd
    database.server.drop_database(name)


def test_odd_database_is_captured_and_known_again(
    odd_database: OddDatabase, database: Database, capture: Capturing
) -> None:
    odd_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = capture(odd_database, source={"slot": database.name})
    odd_database.execute("INSERT INTO t VALUES (1)")
    assert inserted(captured.catch_up()) == [(b"1",)]
    odd_database.execute("INSERT INTO t VALUES (2)")
    assert inserted(captured.catch_up()) == [(b"2",)]
    assert captured.log.header(captured.log.segments()[0]).identity.database == odd_database.name

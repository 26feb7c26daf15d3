"""Values in text form: the stream says what SELECT says, whatever a role, a database or the
environment prefers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from tailrace.change import ABSENT
from tests.corpus import SETUP, VALUES
from tests.integration.cases.replay import Replay, inserted, relation_of, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.change import Change
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

# What the documentation promises of the text form, beside what SELECT gives.
SPELLED = {
    ("numeric", "NaN"): b"NaN",
    ("numeric", "-Infinity"): b"-Infinity",
    ("float8", "0.30000000000000004"): b"0.30000000000000004",
    ("date", "0044-03-15 BC"): b"0044-03-15 BC",
    ("date", "5874897-12-31"): b"5874897-12-31",
    ("date", "infinity"): b"infinity",
    ("time", "24:00:00"): b"24:00:00",
    ("timetz", "24:00:00+14"): b"24:00:00+14",
    ("timestamptz", "2024-02-03 04:05:06.7+05:45"): b"2024-02-02 22:20:06.7+00",
    ("bool", "t"): b"t",
    ("bpchar(5)", "ab"): b"ab   ",
    ("json", '{"b" : 1,  "a":[1.0, null ],"b":2}'): b'{"b" : 1,  "a":[1.0, null ],"b":2}',
    ("jsonb", '{"b" : 1,  "a":[1.0, null ],"b":2}'): b'{"a": [1.0, null], "b": 2}',
    ("int4[]", "[0:1][5:6]={{1,2},{3,4}}"): b"[0:1][5:6]={{1,2},{3,4}}",
    ("oid", "4294967295"): b"4294967295",
    ("inet", "10.0.0.1/8"): b"10.0.0.1/8",
    ("bytea", "\\x00ff5c27"): b"\\x00ff5c27",
    ("interval", "1 mon -3 days +04:05:06.7"): b"1 mon -3 days +04:05:06.7",
}


def known(db: Database, kind: str) -> bool:
    """Whether this server was built with the type."""
    try:
        db.query(f"SELECT '<a/>'::{kind}" if kind == "xml" else f"SELECT NULL::{kind}")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject):
        return False
    return True


@pytest.fixture
def kinds(db: Database) -> list[str]:
    """The types, in the order of the tables v0, v1, … that hold their values."""
    db.execute(SETUP)
    if db.query("SELECT FROM pg_available_extensions WHERE name = 'vector'"):
        db.execute("CREATE EXTENSION vector")
    kinds = [kind for kind in VALUES if known(db, kind)]
    with db.connect() as connection:
        for number, kind in enumerate(kinds):
            connection.execute(f"CREATE TABLE v{number} (id serial PRIMARY KEY, v {kind})".encode())
            connection.execute(f"ALTER TABLE v{number} REPLICA IDENTITY FULL".encode())
    return kinds


def insert_values(db: Database, kinds: list[str]) -> None:
    with db.connect() as connection, connection.transaction():
        for number, kind in enumerate(kinds):
            for literal in [*VALUES[kind], None]:
                connection.execute(
                    sql.SQL("INSERT INTO {} (v) VALUES ({})").format(
                        sql.Identifier(f"v{number}"), sql.Literal(literal)
                    )
                )


def by_table(changes: list[Change]) -> dict[str, list[Change]]:
    tables: dict[str, list[Change]] = {}
    for change in changes:
        tables.setdefault(relation_of(change).name, []).append(change)
    return tables


def test_values_of_every_type_read_as_select_says(
    db: Database, capture: Capturing, kinds: list[str]
) -> None:
    captured = capture(db)
    insert_values(db, kinds)
    tables = by_table(captured.catch_up())
    for number, kind in enumerate(kinds):
        rows = inserted(tables[f"v{number}"])
        assert rows == select(db, f"SELECT * FROM v{number} ORDER BY id"), kind
        for literal, (_, value) in zip([*VALUES[kind], None], rows, strict=True):
            assert (value is None) == (literal is None), kind
            assert SPELLED.get((kind, str(literal)), value) == value, kind


def test_values_of_the_old_row_read_as_those_of_the_new_one(
    db: Database, capture: Capturing, kinds: list[str]
) -> None:
    insert_values(db, kinds)
    captured = capture(db)
    expected = [select(db, f"SELECT * FROM v{n} ORDER BY id") for n in range(len(kinds))]
    for number in range(len(kinds)):
        db.execute(f"UPDATE v{number} SET id = -id; DELETE FROM v{number}")
    tables = by_table(captured.catch_up())
    for number, kind in enumerate(kinds):
        changes = tables[f"v{number}"]
        rows = expected[number]
        assert [change.before for change in changes[: len(rows)]] == rows, kind
        moved = [change.after for change in changes[: len(rows)]]
        assert [change.before for change in changes[len(rows) :]] == moved, kind


def test_values_of_odd_keys_identify_their_rows(db: Database, capture: Capturing) -> None:
    db.execute(SETUP)
    kinds = ["numeric", "float8", "timestamptz", "bytea", "text", "mood", "text[]", "tstzrange"]
    captured = capture(db)
    for number, kind in enumerate(kinds):
        db.execute(f"CREATE TABLE k{number} (v {kind} PRIMARY KEY, n int)")
        for literal in VALUES[kind]:
            db.execute(f"INSERT INTO k{number} VALUES (%s, 1) ON CONFLICT DO NOTHING", literal)
        db.execute(f"UPDATE k{number} SET n = 2")
        db.execute(f"DELETE FROM k{number} WHERE v = %s", VALUES[kind][0])
    changes = captured.catch_up()
    deletes = [change for change in changes if change.before is not None]
    assert len(deletes) == len(kinds)
    assert all(change.before and change.before[1] is ABSENT for change in deletes)
    Replay().apply(changes).check(db)


def test_values_of_another_encoding_arrive_as_utf8(database: Database, capture: Capturing) -> None:
    server, name = database.server, f"{database.name}_latin"
    database.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    latin = type(database)(name=name, server=server)
    try:
        captured = capture(latin)
        with latin.connect() as session:
            session.execute("SET client_encoding TO 'UTF8'")
            session.execute('CREATE TABLE "é" (id int PRIMARY KEY, "ñ" text)'.encode())
            session.execute("INSERT INTO \"é\" VALUES (1, 'ÿ£é')".encode())
        (change,) = captured.catch_up()
        assert relation_of(change).name == "é"
        assert [column.name for column in relation_of(change).columns] == ["id", "ñ"]
        assert change.after == (b"1", "ÿ£é".encode())
    finally:
        server.drop_database(name)


# Each of these changes the text of some value.
LEAKY = {
    "datestyle": "German, DMY",
    "timezone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "intervalstyle": "sql_standard",
    "extra_float_digits": "-3",
    "search_path": "s",
    "quote_all_identifiers": "on",
    "client_encoding": "LATIN1",
    "client_min_messages": "error",
    "standard_conforming_strings": "off",
}
SENSITIVE = """
CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('sad');
CREATE TABLE public.s (id int PRIMARY KEY, d date, at timestamptz, ts timestamp, raw bytea,
                i interval, f float8, f4 float4, p point, r tstzrange, l timestamptz[], v text,
                c regclass, k regtype);
"""
SENSITIVE_ROW = """
INSERT INTO public.s VALUES (1, '2024-02-03', '2024-02-03 04:05:06+00', '2024-02-03 04:05:06',
    '\\x00ff5c', '1 mon -3 days 04:05:06.7', 0.30000000000000004, 1.1000001,
    '(0.30000000000000004,1)',
    '[2024-02-03 04:05:06+00,)', '{2024-02-03 04:05:06+00}', '€ é',
    'public.s', 's.mood')
"""


@pytest.fixture(params=["role", "database", "role in database", "environment", "dsn"])
def leaking_dsn(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A connection string under which sessions would print values in other ways."""
    role = f"leaky_{database.name}"
    database.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    dsn = database.server.dsn(database.name, tcp=False, user=role)
    options = " ".join(f"-c {name}={value.replace(' ', '')}" for name, value in LEAKY.items())
    match request.param:
        case "environment":
            monkeypatch.setenv("PGTZ", LEAKY["timezone"])
            monkeypatch.setenv("PGDATESTYLE", LEAKY["datestyle"])
            monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
            monkeypatch.setenv("PGOPTIONS", options)
        case "dsn":
            dsn = f"{dsn} client_encoding=LATIN1 options='{options}'"
        case where:
            targets = {
                "role": f"ROLE {role}",
                "database": f"DATABASE {database.name}",
                "role in database": f"ROLE {role} IN DATABASE {database.name}",
            }
            for name, value in LEAKY.items():
                database.execute(f"ALTER {targets[where]} SET {name} TO {value!r}")
    yield dsn
    monkeypatch.undo()
    database.execute(f"ALTER DATABASE {database.name} RESET ALL; DROP ROLE {role}")


def test_settings_of_others_do_not_leak_into_values(
    database: Database, capture: Capturing, leaking_dsn: str
) -> None:
    database.execute(SENSITIVE)
    captured = capture(database, source={"dsn": leaking_dsn})
    with database.connect() as session:
        session.execute("SET standard_conforming_strings TO on; SET client_encoding TO 'UTF8'")
        session.execute(SENSITIVE_ROW.encode())
    with psycopg.connect(leaking_dsn) as session:
        leaked = session.execute("SELECT d::text, raw::text, f::text FROM public.s").fetchone()
    assert leaked == ("03.02.2024", "\\000\\377\\\\", "0.3")
    (change,) = captured.catch_up()
    assert change.after is not None
    assert [change.after[:-2]] == [row[:-2] for row in select(database, "TABLE public.s")]
    assert change.after[1:4] == (b"2024-02-03", b"2024-02-03 04:05:06+00", b"2024-02-03 04:05:06")
    assert change.after[-3:] == ("€ é".encode(), b"public.s", b"s.mood")

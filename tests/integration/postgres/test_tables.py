"""Mode `tables`: the rows of the target are those of the source. The source is the oracle."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import SinkRefusedError
from tailrace.position import ORIGIN
from tailrace.sinks.outcome import Verdict
from tests.integration.postgres.bench import Bench, change, delivered, messages
from tests.integration.postgres.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.sinks.postgres.sink import Postgres
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

SEED = int(os.environ.get("TAILRACE_SEED", random.SystemRandom().getrandbits(32)))
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text, note text)"
LARGE = "repeat(md5(random()::text), 200)"
FREE = "NOT EXISTS (SELECT FROM {0} other WHERE other.id = {0}.id + 100)"
DOCS = """
CREATE TABLE docs (id int PRIMARY KEY, n int, body text, extra text);
ALTER TABLE docs ALTER body SET STORAGE EXTERNAL, ALTER extra SET STORAGE EXTERNAL;
CREATE TABLE pairs (a int, b text COLLATE "C", n int, body text, PRIMARY KEY (a, b));
ALTER TABLE pairs ALTER body SET STORAGE EXTERNAL;
CREATE TABLE logged (id int PRIMARY KEY, n int, body text);
ALTER TABLE logged ALTER body SET STORAGE EXTERNAL;
ALTER TABLE logged REPLICA IDENTITY FULL;
"""
STATEMENTS = (
    f"INSERT INTO docs SELECT g, 0, {LARGE}, {LARGE} FROM generate_series(%(i)s, %(i)s + 3) g"
    " ON CONFLICT DO NOTHING",
    "UPDATE docs SET n = n + 1 WHERE id %% 3 = %(i)s %% 3",
    "UPDATE docs SET n = n + 1",
    f"UPDATE docs SET body = {LARGE} WHERE id = %(i)s",
    f"UPDATE docs SET extra = {LARGE} WHERE id %% 2 = 0",
    "UPDATE docs SET body = NULL WHERE id = %(i)s",
    f"UPDATE docs SET id = id + 100 WHERE id = %(i)s AND {FREE.format('docs')}",
    f"UPDATE docs SET id = id + 100, body = {LARGE}, extra = '' WHERE id = %(i)s "
    f"AND {FREE.format('docs')}",
    "DELETE FROM docs WHERE id = %(i)s",
    "DELETE FROM docs WHERE id >= 100",
    f"INSERT INTO pairs VALUES (%(i)s, 'k', 0, {LARGE}) ON CONFLICT DO NOTHING",
    "UPDATE pairs SET n = n + 1 WHERE a < %(i)s",
    "UPDATE pairs SET b = b || '''%%' WHERE a = %(i)s",
    "DELETE FROM pairs WHERE a = %(i)s",
    f"INSERT INTO logged VALUES (%(i)s, 0, {LARGE}) ON CONFLICT DO NOTHING",
    "UPDATE logged SET n = n + 1",
    f"UPDATE logged SET id = id + 100 WHERE id = %(i)s AND {FREE.format('logged')}",
    "DELETE FROM logged WHERE id >= 100",
)
RARE = ("TRUNCATE docs, pairs", "TRUNCATE logged")


def opened(bench: Bench, **given: Any) -> Postgres:
    sink = bench.sink(mode="tables", **given)
    sink.open(ORIGIN)
    return sink


def test_rows_follow_the_source(
    database: Database, bench: Bench, capture: Capturing, request: pytest.FixtureRequest
) -> None:
    """Random changes in random batches: large values, changed keys, TRUNCATE, reused keys."""
    print(f"TAILRACE_SEED={SEED}")
    chance = random.Random(SEED)
    for each in (database, bench.database):
        each.execute(DOCS)
    source, sink = Source(capture(database)), opened(bench)
    for _ in range(12):
        with database.connect() as connection:
            connection.autocommit = False
            for _ in range(chance.randint(1, 25)):
                statement = chance.choice(RARE if chance.random() < 0.02 else STATEMENTS)
                connection.execute(statement.encode(), {"i": chance.randint(1, 12)})
                if chance.random() < 0.5:
                    connection.commit()
            connection.commit()
        rows = source.messages()
        cut = chance.randint(0, rows.num_rows)
        sink.write(rows.slice(0, cut))
        if chance.random() < 0.5:
            assert sink.flush().failures == ()
        sink.write(rows.slice(cut))
        assert sink.flush().failures == ()
        for table in ("docs", "pairs", "logged"):
            statement = f"SELECT * FROM {table} ORDER BY 1, 2"
            assert bench.database.query(statement) == database.query(statement), table


# The embedded PostgreSQL has no extensions. This type has hstore's name and takes any text.
HSTORE = """
CREATE SCHEMA extensions;
CREATE TYPE extensions.hstore;
CREATE FUNCTION extensions.read(cstring) RETURNS extensions.hstore
    IMMUTABLE STRICT LANGUAGE internal AS 'textin';
CREATE FUNCTION extensions.write(extensions.hstore) RETURNS cstring
    IMMUTABLE STRICT LANGUAGE internal AS 'textout';
CREATE TYPE extensions.hstore (INPUT = extensions.read, OUTPUT = extensions.write);
"""
TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN raw AS bytea;
CREATE DOMAIN small AS int CHECK (VALUE < 100);
CREATE TABLE typed (
    id uuid PRIMARY KEY, b bool, i2 smallint, i8 bigint, f4 real, f8 float8, nu numeric,
    nu2 numeric(6,2), mo money, t text, vc varchar(8), ch char(5), "Odd ""name%" text, by bytea,
    dby raw, d date, ti time, tz timetz, ts timestamp, tstz timestamptz, iv interval, js json,
    jb jsonb, ne inet, bi bit(3), vb bit varying, ra int4range, po point, se tsvector, m mood,
    co pair, sm small, h extensions.hstore, ai int[], at text[], atz timestamptz[], am mood[],
    aj jsonb[], ab box[], lo int[], gen int GENERATED ALWAYS AS (i2 * 2) STORED,
    ident int GENERATED ALWAYS AS IDENTITY
)
"""
VALUES = (
    """
INSERT INTO typed VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', true, -1, 9223372036854775807,
    'NaN', -0.0, '123456789012345678901234567890.10', 1.5, '$1,234.50', E'a\\t"\\\\\\n'' 🐎', 'é',
    'ab', 'odd', '\\x00ff5c', '\\x5c', '2024-02-29', '12:00:00.5', '12:00:00+02', 'infinity',
    '2025-12-12 12:00:34.338547+02', '1 mon -3 days 04:05:06.7', '{"a" : 1, "a": [null]}',
    '{"k": "v", "n": 1e400}', '10.0.0.1/8', B'101', B'10', '[1,6)', '(0.1,-1)', 'fat:3', 'ok',
    '(1,"a b")', 99, '"a"=>"x\\"y\\\\z", "b c"=>NULL', '{{1,2},{3,NULL}}', '{a,NULL,"NULL","x,y"}',
    '{2025-01-01 00:00:00+00,infinity}', '{ok,sad}', ARRAY['{"a": 1}', '"s"']::jsonb[],
    '{(1,1),(0,0);(2,2),(1,1)}', '[0:1]={1,2}')
""",
    "INSERT INTO typed (id) VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12')",
    """
INSERT INTO typed (id, f4, f8, d, ts, js, jb, h, ai, by) VALUES
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a13', '-Infinity', 1.0000000000000002, '0044-03-15 BC',
     '10000-01-01', '"text"', '12', '', '{}', '')
""",
)


def test_values_of_all_types_arrive_unchanged(
    database: Database, bench: Bench, capture: Capturing
) -> None:
    for each in (database, bench.database):
        each.execute(HSTORE + TYPES)
    source, sink = Source(capture(database)), opened(bench)
    for statement in VALUES:
        database.execute(statement)
    database.execute("UPDATE typed SET t = 'new' WHERE b")
    rows = source.messages()
    assert sink.inspect(rows) == {}
    sink.write(rows)
    assert [each.outcome for each in sink.flush().failures] == []
    # As text: what psycopg makes of values may be equal although they differ.
    statement = "SELECT t::text FROM typed t ORDER BY id"
    assert bench.database.query(statement) == database.query(statement)


def test_the_last_state_of_a_key_counts(bench: Bench) -> None:
    bench.database.execute(ITEMS)
    sink = opened(bench)
    changes = [
        change("insert", {"id": 1, "name": "a", "note": "long"}),
        change("update", {"id": 1, "name": "b"}, unchanged=["note"]),
        change("insert", {"id": 2, "name": "c", "note": None}),
        change("delete", before={"id": 2}),
        change("update", {"id": 3, "name": "b"}, before={"id": 1}, unchanged=["note"]),
        change("update", {"id": 3, "note": "n"}, unchanged=["name"]),
        change("update", {"id": 3, "name": "z"}, unchanged=["note"]),
        change("read", {"id": 4, "name": "r", "note": "r"}),
        change("read", {"id": 4, "name": "r", "note": "again"}),
    ]
    assert delivered(sink, messages(changes, keys=[None] * 9)).messages == 9
    assert bench.items() == [(3, "z", "n"), (4, "r", "again")]


def test_refused_rows_are_found_and_the_others_are_applied_when_they_come_again(
    bench: Bench,
) -> None:
    bench.database.execute(ITEMS + "; ALTER TABLE items ADD CHECK (name <> 'bad')")
    sink = opened(bench)
    changes = [change("insert", {"id": n, "name": "ok", "note": ""}) for n in range(40)]
    changes[7]["after"]["name"] = "bad"
    changes[20]["after"]["id"] = "not a number"
    rows = messages(changes)
    sink.write(rows)
    failures = sink.flush().failures
    assert [(each.message["id"][0].as_py(), each.outcome.verdict) for each in failures] == [
        (b"m7", Verdict.REFUSED),
        (b"m20", Verdict.REFUSED),
    ]
    assert "violates check constraint" in failures[0].outcome.reason
    assert 'invalid input syntax for type integer: "not a number"' in failures[1].outcome.reason
    assert bench.items() == []
    rest = [row for row in range(40) if row not in (7, 20)]
    assert delivered(sink, rows.take(rest)).messages == 38
    assert [row[0] for row in bench.items()] == rest


def test_values_of_a_unique_column_may_be_swapped_within_a_batch(bench: Bench) -> None:
    """GIVEN changes that are valid one by one but not as a set THEN halves are applied in order."""
    bench.database.execute(ITEMS + "; ALTER TABLE items ADD UNIQUE (name)")
    sink = opened(bench)
    start = [change("insert", {"id": n, "name": f"n{n}", "note": ""}) for n in range(3)]
    delivered(sink, messages(start))
    swap = [(0, "free"), (1, "n0"), (2, "n1"), (0, "n2")]
    changes = [change("update", {"id": n, "name": name, "note": ""}) for n, name in swap]
    keys = [str(n) for n, _ in swap]
    assert delivered(sink, messages(changes, start=3, keys=keys)).messages == 4
    assert bench.items() == [(0, "n2", ""), (1, "n0", ""), (2, "n1", "")]


def test_an_unchanged_value_is_never_null(bench: Bench) -> None:
    """GIVEN a row that the target lacks WHEN an update does not carry all of it THEN it is refused,
    also if the update changes the key."""
    bench.database.execute(ITEMS)
    sink = opened(bench)
    updates = [
        change("update", {"id": 1, "name": "x"}, unchanged=["note"]),
        change("update", {"id": 3, "name": "x"}, before={"id": 2}, unchanged=["note"]),
    ]
    sink.write(messages(updates))
    outcomes = [each.outcome for each in sink.flush().failures]
    assert [each.verdict for each in outcomes] == [Verdict.REFUSED] * 2
    assert "public.items has no row with its key" in outcomes[0].reason
    assert "tailrace backfill" in outcomes[0].hint
    assert bench.items() == []


def test_columns_that_only_the_target_has_keep_their_values(bench: Bench) -> None:
    bench.database.execute(ITEMS + "; ALTER TABLE items ADD own text DEFAULT 'mine'")
    sink = opened(bench)
    row = {"id": 1, "name": "a", "note": ""}
    delivered(sink, messages([change("insert", row)]))
    bench.database.execute("UPDATE items SET own = 'changed'")
    delivered(sink, messages([change("update", row | {"name": "b"})], start=1))
    assert bench.items() == [(1, "b", "", "changed")]


@pytest.mark.parametrize(
    ("table", "payload", "reason", "hint"),
    [
        ("", change("insert", {"id": 1}), "items does not exist", "Create"),
        ("items (id int)", change("insert", {"id": 1}), "no primary key", "ADD PRIMARY KEY"),
        (
            "items (id int PRIMARY KEY)",
            change("insert", {"id": 1, "new": 2}),
            "lacks the column 'new'",
            "ADD COLUMN",
        ),
        (
            "items (id int PRIMARY KEY, a bytea[])",
            change("insert", {"id": 1}),
            "an array of bytea",
            "select",
        ),
        (
            "items (id int, other int PRIMARY KEY)",
            change("update", {"id": 1, "other": 2}),
            "not part of the replica identity",
            "REPLICA IDENTITY FULL",
        ),
        (
            "items (id int, other int PRIMARY KEY)",
            change("insert", {"id": 1}),
            "lack the column 'other' of its key",
            "select",
        ),
        ("items (id int PRIMARY KEY)", {"op": "message"}, "not a change of a row", "messages"),
    ],
)
def test_what_a_person_must_correct_names_the_fix(
    bench: Bench, table: str, payload: dict[str, Any], reason: str, hint: str
) -> None:
    if table:
        bench.database.execute(f"CREATE TABLE {table}")
    sink = opened(bench)
    with pytest.raises(SinkRefusedError, match=reason) as caught:
        delivered(sink, messages([payload]))
    assert hint in caught.value.hint


def test_destinations_that_are_no_tables_are_refused(bench: Bench) -> None:
    sink = opened(bench)
    refused = sink.inspect(messages([{}, {}], destination="a.b.c"))
    assert [each.verdict for each in refused.values()] == [Verdict.REFUSED] * 2
    assert "'a.b.c' is not the name of a table" in refused[0].reason


def test_a_target_may_be_altered_between_flushes(bench: Bench) -> None:
    bench.database.execute(ITEMS)
    sink = opened(bench)
    delivered(sink, messages([change("insert", {"id": 1, "name": "a", "note": ""})]))
    bench.database.execute("ALTER TABLE items ADD added int, ALTER note TYPE varchar(3)")
    row = {"id": 2, "name": "a", "note": "abc", "added": 5}
    delivered(sink, messages([change("insert", row)], start=1))
    assert bench.items() == [(1, "a", "", None), (2, "a", "abc", 5)]


def test_foreign_keys_may_be_ignored(bench: Bench) -> None:
    bench.database.execute(ITEMS + "; ALTER TABLE items ADD parent int REFERENCES items")
    sink = opened(bench, replica_role=True)
    row = {"id": 1, "name": "a", "note": "", "parent": 7}
    assert delivered(sink, messages([change("insert", row)])).messages == 1


def test_postgresql_16(database16: Database) -> None:
    older_server(Bench(database16))


def test_postgresql_15(database15: Database) -> None:
    older_server(Bench(database15))


def older_server(bench: Bench) -> None:
    """Both modes, as far as their statements may differ between versions."""
    bench.database.execute(ITEMS + "; ALTER TABLE items ADD flags text[], ADD raw bytea")
    row = {"id": 1, "name": "a", "note": "n", "flags": ["x", None], "raw": "AP8="}
    changes = [
        change("insert", row),
        change("update", {"id": 1, "name": "b"}, unchanged=["note", "flags", "raw"]),
        change("truncate", key=None),
        change("insert", row),
        change("update", {"id": 2, "name": "c"}, before={"id": 1}, unchanged=["note"]),
    ]
    sink = opened(bench)
    assert delivered(sink, messages(changes, keys=[None] * 5)).messages == 5
    sink.close()
    assert bench.items() == [(2, "c", "n", ["x", None], b"\x00\xff")]
    with Bench(bench.database, "events").opened(retention="1d") as events:
        assert delivered(events, messages([{"op": "insert"}])).messages == 1

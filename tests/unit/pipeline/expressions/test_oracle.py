"""PostgreSQL as the oracle: expressions valid in both dialects must have the same result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.pipeline.expressions.compile import compile  # noqa: A004
from tailrace.postgres.connection import connect
from tailrace.schema import Relation, ReplicaIdentity
from tests.unit.pipeline.expressions.cells import cells, column, expressions, frame_of, numeric

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.fix_postgres import Database

COLUMNS = {
    "id": ("bigint", 20, -1),
    "small": ("smallint", 21, -1),
    "price": ("numeric", 1700, -1),
    "total": ("numeric(10,2)", 1700, numeric(10, 2)),
    "ratio": ("double precision", 701, -1),
    "single": ("real", 700, -1),
    "paid": ("boolean", 16, -1),
    "name": ("text", 25, -1),
    "code": ("varchar(20)", 1043, 24),
    "day": ("date", 1082, -1),
    "created": ("timestamptz", 1184, -1),
    "local": ("timestamp", 1114, -1),
    "photo": ("bytea", 17, -1),
    "mark": ("uuid", 2950, -1),
}
ROWS = """
(1, 10, 1.5, 20.25, 0.5, 1.25, true, 'paid', 'A', '2024-02-29', '2024-02-29 12:30:00.123456+00',
 '2024-02-29 12:30:00.5', '\\xdead', '8c1b3b0a-6f0a-4a53-9e1f-0e6d2f2b7f11'),
(-9223372036854775808, -32768, -0.00000000000000000001, -99999999.99, '-Infinity', 'NaN', false,
 'it''s \\ "odd" €', '', '0001-01-01', '0001-01-01 00:00:00+00', '9999-12-31 23:59:59.999999',
 '\\x', '00000000-0000-0000-0000-000000000000'),
(9223372036854775807, 32767, 999999999999999999.99999999999999999999, 99999999.99, 1e308, 1e-45,
 NULL, '', 'zz%_', '9999-12-31', '2038-01-19 03:14:08+00', '1969-12-31 23:59:59.000001',
 NULL, NULL),
(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
(0, 0, 0, 0, 'Infinity', '-Infinity', true, 'PAID', 'a', '1970-01-01', '1970-01-01 00:00:00+00',
 '1970-01-01 00:00:00', '\\x00ff', 'ffffffff-ffff-ffff-ffff-ffffffffffff')
"""
CONDITIONS = [
    "id > 0",
    "id = -9223372036854775808",
    "id IS NULL OR small < 0",
    "small BETWEEN -5 AND 10",
    "price > 1",
    "price = 1.50",
    "price < 0",
    "price = 999999999999999999.99999999999999999999",
    "total >= 20.25 AND total <> 0",
    "total * 2 > 40",
    "ratio > 0",
    "ratio = 0.5",
    "single < 1",
    "single = 1.25",
    "paid",
    "NOT paid",
    "paid IS NOT TRUE",
    "paid IS NULL OR paid = false",
    "name = 'paid'",
    "upper(name) = 'PAID'",
    "name = 'it''s \\ \"odd\" €'",
    "name <> ''",
    "length(name) > 4",
    "substring(name, 1, 2) = 'pa'",
    "name LIKE 'p%'",
    "name NOT LIKE '%a%'",
    "name ILIKE 'pa__'",
    "code LIKE 'zz!%!_' ESCAPE '!'",
    "name || '-' || code = 'paid-A'",
    "coalesce(name, 'none') = 'none'",
    "nullif(name, 'paid') IS NULL",
    "day > DATE '2000-01-01'",
    "day = '2024-02-29'",
    "extract(YEAR FROM day) = 2024",
    "created > TIMESTAMP '2024-01-01 00:00:00+00'",
    "created < '2038-01-19 03:14:08.000001+00'",
    "extract(HOUR FROM created) = 12",
    "local < '2000-01-01 00:00:00'",
    "created - INTERVAL '1' DAY < TIMESTAMP '1970-01-01 00:00:00+00'",
    "id IN (1, 0)",
    "id NOT IN (1, 0)",
    "id IS DISTINCT FROM 1",
    "mark = '00000000-0000-0000-0000-000000000000'",
    "CASE WHEN id > 0 THEN name WHEN id < 0 THEN code ELSE 'none' END = 'none'",
    "abs(CAST(small AS bigint)) > 100 OR greatest(small, 5) = 5",
    "round(total, 1) = 20.3",
    "CAST(small AS bigint) + 1 = 11",
    "name IS NULL AND photo IS NULL",
    "left(name, 2) = 'it' OR replace(name, 'paid', 'x') = 'x'",
]


def test_conditions_have_the_same_result_in_postgresql(
    database: Database, spark: SparkSession
) -> None:
    body = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    database.execute(f"CREATE TABLE oracle (nr serial, {body})")
    database.execute(f"INSERT INTO oracle ({', '.join(COLUMNS)}) VALUES {ROWS}")
    # PostgreSQL reads a backslash in a plain string as it is, Spark as an escape.
    with connect(database.dsn) as connection:
        columns = ", ".join(f"{name}::text" for name in COLUMNS)
        texts = connection.execute(f"SELECT {columns} FROM oracle ORDER BY nr".encode()).fetchall()
        asked = ", ".join(f"({condition})" for condition in CONDITIONS)
        expected = connection.execute(f"SELECT {asked} FROM oracle ORDER BY nr".encode()).fetchall()
    # The wire sends booleans as one letter, a cast to text as a word.
    place = list(COLUMNS).index("paid")
    images = [[*row[:place], row[place] and row[place][0], *row[place + 1 :]] for row in texts]
    relation = Relation(
        oid=1,
        namespace="public",
        name="oracle",
        replica_identity=ReplicaIdentity.FULL,
        columns=tuple(column(name, oid, mod) for name, (_, oid, mod) in COLUMNS.items()),
    )
    written = [condition.replace("\\", "\\\\") for condition in CONDITIONS]
    made = [compile(expressions(where=text), relation, {}).where for text in written]
    named = [f"{text} AS c{index}" for index, text in enumerate(made)]
    frame = frame_of(spark, [cells(after=image) for image in images])
    found = [tuple(row) for row in frame.coalesce(1).selectExpr(*named).collect()]
    for number, condition in enumerate(CONDITIONS):
        answers = [row[number] for row in found]
        assert answers == [row[number] for row in expected], condition

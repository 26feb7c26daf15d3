"""Which conditions of backfills are accepted, and which could reach more than the table's rows."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
from tailrace.postgres.condition import MAX_CHARACTERS, checked


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        ("", ""),
        ("  \n", ""),
        ("id % 2 = 0", "id % 2 = 0"),
        ("placed_at>'2026-01-01'", "placed_at > '2026-01-01'"),
        ("a=-1 AND b>=+2", "a = - 1 AND b >= + 2"),
        ("name = 'it''s; -- /* DROP'", "name = 'it''s; -- /* DROP'"),
        ("name = 'C:\\'", "name = 'C:\\'"),
        ('"Order" IS NOT NULL', '"Order" IS NOT NULL'),
        ("größe > 1.5e3", "größe > 1.5e3"),
        ("a IN (1, 2) AND NOT (b OR c)", "a IN ( 1 , 2 ) AND NOT ( b OR c )"),
        ("lower(v) LIKE 'a%' ESCAPE '!'", "lower ( v ) LIKE 'a%' ESCAPE '!'"),
        ("d >= date '2026-01-01'", "d >= date '2026-01-01'"),
        ("d::date = CAST(x AS numeric(10,2))", "d :: date = CAST ( x AS numeric ( 10 , 2 ) )"),
        ("doc->>'a' = 'x' AND tags @> ARRAY['b']", None),
        ("extract(epoch FROM t) > 5", "extract ( epoch FROM t ) > 5"),
        ("t AT TIME ZONE 'UTC' > now() - interval '1 day'", None),
        ("CASE WHEN a THEN 'x' ELSE 'y' END = b", None),
        ("operator = 'x' AND user_id = ANY('{1,2}')", None),
        # With blanks between the tokens this is an operation on a column `u`, not a string.
        ("v = U&'a'", "v = U & 'a'"),
        ("v IS DISTINCT FROM 'a' AND v BETWEEN 'b' AND 'c'", None),
    ],
)
def test_allowed_conditions_are_written_token_by_token(condition: str, sql: str | None) -> None:
    found = checked(condition)
    assert found == sql or (sql is None and found.replace(" ", "") == condition.replace(" ", ""))


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("pg_terminate_backend(1)", r"the function pg_terminate_backend\(\) is not allowed"),
        ("pg_drop_replication_slot('s') IS NULL", "not allowed"),
        ("PG_SLEEP (9) IS NULL", "not allowed"),
        ('"pg_sleep"(9) IS NULL', "not allowed"),
        ("pg_sleep/**/(9) IS NULL", "comments are not allowed"),
        ("pg_sleep --\n (9) IS NULL", "comments are not allowed"),
        ("pg_catalog.pg_sleep(9) IS NULL", "unexpected '.'"),
        ("orders.id = 1", "unexpected '.'"),
        ("lo_unlink(1) = 1", "not allowed"),
        ("repeat('a', 1000000000) = v", "not allowed"),
        ("set_config('a.b', 'c', true) = v", "not allowed"),
        ("id = (SELECT 1)", "SELECT is not allowed"),
        ("id IN (TABLE other)", "TABLE is not allowed"),
        ("id IN (VALUES (1))", "not allowed"),
        ("EXISTS (SELECT 1)", "not allowed"),
        ("true ORDER BY id", "ORDER is not allowed"),
        ("true LIMIT 1", "LIMIT is not allowed"),
        ("true UNION ALL SELECT 1", "UNION is not allowed"),
        ("true; DROP TABLE t", "unexpected ';'"),
        ("true) OR (true", r"\) without \("),
        ("(true", r"\( is not closed"),
        ("(a[1)]", r"\) without \("),
        ("'a'::regclass IS NOT NULL", "a cast to regclass is not allowed"),
        ("CAST('a' AS regproc) IS NULL", "a cast to regproc is not allowed"),
        ("regclass 'a' IS NULL", "regclass before a string is not allowed"),
        ("v = E'a'", "E before a string is not allowed"),
        ("v = E'\\''", "unexpected"),
        ("v = $$a$$", r"unexpected '\$'"),
        ("id = $1", r"unexpected '\$'"),
        ("v = 'open", 'unexpected "\'"'),
        ('"open = 1', "unexpected '\"'"),
        ("v = 'a\0'", "unexpected"),
        ("id OPERATOR(=) 1", "not allowed"),
        ("id @@ 1", "the operator @@ is not allowed"),
        ("id |/ 4", "not allowed"),
        ("li\u212ae(1)", "not allowed"),
        ("xpath('a', b) IS NULL", "not allowed"),
        ("query_to_xml('select 1', true, true, '') IS NULL", "not allowed"),
        ("id = 1" * MAX_CHARACTERS, "at most 20,000 characters"),
    ],
)
def test_everything_else_is_refused(condition: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        checked(condition)
    assert "docs/guides/backfills.md" in caught.value.hint

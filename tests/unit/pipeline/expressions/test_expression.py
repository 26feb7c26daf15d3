"""Which expressions are allowed, and where errors point."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.config import Pipeline
from tailrace.errors import ExpressionError
from tailrace.pipeline.expressions import functions
from tailrace.pipeline.expressions.expression import parse
from tests.unit.pipeline.expressions.cells import expressions

ALLOWED = [
    "after.status = 'paid' AND (before.status IS NULL OR before.status <> 'paid')",
    "op IN ('insert', 'update') AND table LIKE 'order%' AND schema <> 'x'",
    "amount BETWEEN 1 AND 10.5 OR NOT archived",
    "CASE WHEN a > 1 THEN 'x' WHEN a < 0 THEN 'y' ELSE lower(b) END = 'x'",
    "CASE a WHEN 1 THEN TRUE END",
    "cast(a AS decimal(10,2)) > 1 AND try_cast(b AS bigint) = 2 AND c::int = 3",
    "doc:customer.name = 'x' AND doc:items[0]['odd key'] IS NOT NULL",
    "get_json_object(annotations, '$.user_id') = '5' AND annotations:user_id IS NOT NULL",
    "created > TIMESTAMP '2024-01-01 00:00:00' - INTERVAL '3' DAY",
    "day >= DATE '2024-01-01' AND day < day + INTERVAL 1 MONTH",
    "extract(YEAR FROM created) = 2024",
    "a <=> b OR a IS DISTINCT FROM b OR a IS NOT DISTINCT FROM c",
    "a RLIKE '^x' AND b ILIKE '%y%' AND c NOT LIKE 'a!_b' ESCAPE '!'",
    "-a + b * c / d - e % 2 > a DIV 3",
    "a || '-' || b = 'x'",
    "is_unchanged(after.body) OR is_absent(before.body) OR is_known(body)",
    "text(price) = '1.50'",
    "photo = X'dead'",
    "`odd name` = 1 AND after.`Order Id` = 2 AND after.end = 3 AND after.date = date",
    "a = 1 -- a remark\n AND /* another */ b = 2",
    "change.op = 'insert' AND _id = 'x'",
    "1e3 + 1.5 + 2L + 1.5BD > 0",
    "r'\\d' = 'x'",
    "key = 1 AND index = 2 AND user = 'x' AND order = 3 AND values = 4",
]

FORBIDDEN = [
    *("reflect('java.lang.Runtime', 'getRuntime')", "java_method('a', 'b')", "try_reflect('a')"),
    *("`reflect`('a', 'b')", "system.reflect('a')", "REFLECT('a', 'b')", "system.builtin.now()"),
    *("EXISTS (SELECT 1)", "a IN (SELECT 1)", "(SELECT max(a) FROM t) = 1", "a = (SELECT 1)"),
    *("a > ALL (SELECT 1)", "(WITH x AS (SELECT 1) SELECT * FROM x) = 1", "(VALUES (1)) = 1"),
    *("(TABLE secrets) = 1", "(FROM t) = 1"),
    *("SELECT 1", "DROP TABLE t", "INSERT INTO t VALUES (1)", "SET spark.x = 1", "a = 1; DROP x"),
    *("a = 1 UNION SELECT 1", "ADD JAR 'x'", "CALL x()", "USE x", "WITH a AS (SELECT 1) SELECT 1"),
    *("rand() > 0.5", "uuid() = 'x'", "now() > created", "current_timestamp > created"),
    *("current_timestamp() > created", "current_date > day", "current_user() = 'x'"),
    *("unix_timestamp() > 1", "monotonically_increasing_id() = 1", "spark_partition_id() = 0"),
    *("input_file_name() = 'x'", "shuffle(array(1, 2)) = 1", "version() = 'x'"),
    *("sum(a) > 1", "count(*) > 1", "count(DISTINCT a) > 1", "max(a) = 1", "first(a) = 1"),
    *("row_number() OVER (ORDER BY a) = 1", "sum(a) OVER () = 1", "lag(a) OVER w = 1"),
    *("transform(a, x -> x + 1) = 1", "filter(a, x -> true) = 1", "aggregate(a, 0, (x, y) -> x)"),
    *("explode(a) = 1", "stack(1, 2) = 1", "json_tuple(a, 'b') = 'c'"),
    *("*", "a.*", "before.*", "count(*)", "concat(*)"),
    *(":p = 1", "? = 1", "a = ?", "@x = 1", "${env:HOME} = 'x'", "$x", "{x} = 1", "{{x}}"),
    *("/*+ BROADCAST(t) */ a = 1", "a /*+ x */ = 1", "a = 1 /*+ x */"),
    *("lower(a => 'x') = 'y'", "a[0] = 1", "array(1)[0] = 1", "(a, b) = (1, 2)", "struct(1)"),
    *("a & 1 = 1", "a | b", "a ^ b", "~a = 1", "a << 1", "a -> 'b'", "a ->> 'b'", "a ? 'b'"),
    *("a AT TIME ZONE 'UTC'", "a COLLATE utf8 = 'x'", "a.b.c = 1", "other.a = 1", "a.b().c"),
    *("cast(a AS array<int>)", "cast(a AS struct<b:int>)", "cast(a AS map<int,int>) = 1"),
    *("a LIKE ANY ('x', 'y')", "a = ANY (b)", "a IN ()", "position('a' IN b) = 1"),
    *("0x1f = 1", "b'01' = 1", "N'x' = 'x'", "'a' 'b' = 'ab'", '"name" = 1', 'a = "x"'),
    *("raise_error('x')", "assert_true(a)", "from_json(a, 'b int') = 1", "xpath(a, 'b') = 1"),
    *("unknown_function(1)", "lower()", "lower(a, b)", "if(a)", "is_unchanged(1)", "text(a + 1)"),
    *("IDENTIFIER('a') = 1", "try_variant_get(a, '$') = 1", "session_window(a, '1 day')"),
    *("CASE WHEN a b END", "CASE END", "CASE a END", "a =", "= a", "a b", "(a", "a)", "", "   "),
    *("'open", "`open", "/* open", "AND", "NOT", "a AND", "a BETWEEN 1", "a IS 1", "a NOT 1"),
    *("INTERVAL a DAY = b", "INTERVAL '1' PARSEC = b", "extract(CENTURY FROM a) = 1"),
    *("a AS b", "a = b = c", "a = b LIKE c", "a || b + c = 'x'", "'\\ud800' = a", "X'abc' = a"),
]


@pytest.mark.parametrize("text", ALLOWED)
def test_allowed_expressions_are_accepted(text: str) -> None:
    assert expressions(where=text).where is not None


@pytest.mark.parametrize("text", [text for text in FORBIDDEN if text.strip()])
def test_forbidden_expressions_are_refused(text: str) -> None:
    for settings in ({"where": text}, {"route": text}, {"key": text}, {"select": (text,)}):
        if text == "a AS b" and "select" in settings:
            continue
        with pytest.raises(ExpressionError, match=r"line \d+, column \d+: "):
            expressions(**settings)


def test_every_refused_function_is_refused() -> None:
    assert not set(functions.REFUSED) & (set(functions.ALLOWED) | functions.OWN)
    for name in functions.REFUSED:
        for arguments in ("", "a", "a, b", "'x', 'y', 'z'"):
            with pytest.raises(ExpressionError):
                expressions(where=f"{name}({arguments}) = 1")


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        (
            "a = 1\n  AND rand() > 0",
            "line 2, column 7",
            "rand.. is not allowed: it returns another",
        ),
        ("a = 1 AND\n(SELECT 1) = 2", "line 2, column 2", "subqueries are not allowed"),
        ("a > 1 AND lowr(b) = 'x'", "line 1, column 11", "did you mean lower"),
        ("a = 'ä' AND b = ?", "line 1, column 17", "parameters"),
        ("a = 1 AND b =", "line 1, column 13", "syntax error at"),
        ("lower(a, b) = 'x'", "line 1, column 1", "takes 1 argument, not 2"),
    ],
)
def test_an_error_names_setting_line_and_column(text: str, place: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=f"pipelines.p.where, {place}: .*{reason}"):
        expressions(where=text)


def test_a_blank_expression_is_none() -> None:
    parsed = expressions(where=" \n ")
    assert not parsed
    assert parsed.where is None


def test_select_items_have_names_and_columns() -> None:
    parsed = expressions(select=("id", "upper(name) AS shout", "`Odd` AS `odd name`", "a AS date"))
    assert parsed.select is not None
    assert [item.name for item in parsed.select] == [None, "shout", "odd name", "date"]
    assert [item.column is not None for item in parsed.select] == [True, False, True, True]


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        (("upper(name)",), "needs a name"),
        (("id", "name AS id"), "already used by an earlier item"),
        (("before.id AS old",), "write id without before."),
        (("after.id",), "write id without after."),
        (("id nr",), "write AS before a name"),
        ((f"id AS {'x' * 64}",), "at most 63 bytes"),
    ],
)
def test_invalid_select_items_are_refused(select: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        expressions(select=select)


def test_long_and_deep_expressions_are_refused_with_an_error() -> None:
    for text in ("(" * 5000 + "a" + ")" * 5000, "a = '" + "x" * 30_000 + "'", "-" * 3000 + "1"):
        with pytest.raises(ExpressionError):
            expressions(where=text)
    with pytest.raises(ExpressionError, match="levels"):
        expressions(where="lower(" * 33 + "a" + ")" * 33 + " = 'x'")
    assert expressions(where="lower(" * 32 + "a" + ")" * 32 + " = 'x'")
    with pytest.raises(ExpressionError, match="levels"):
        expressions(where="a" + " + a" * 200 + " > 1")
    assert expressions(where=" OR ".join(f"a = {number}" for number in range(500)))


NAMES = st.sampled_from(["a", "b", "after.c", "before.d", "`odd name`", "change.op", "op"])
TEXTS = st.text().map(lambda value: "'" + value.replace("\\", "\\\\").replace("'", "''") + "'")
NUMBERS = st.integers(0, 10**30).map(str) | st.sampled_from(["1.5", "2e3", "3L"])
LEAVES = (NAMES | TEXTS | NUMBERS | st.sampled_from(["NULL", "TRUE"])).filter(
    lambda leaf: "\ud800" not in leaf
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    operators = st.sampled_from(["=", "<>", "<", "AND", "OR", "+", "*", "<=>"])
    calls = st.sampled_from(["coalesce", "greatest", "nvl"])
    return st.one_of(
        st.tuples(pair, operators).map(lambda made: f"({made[0][0]}) {made[1]} ({made[0][1]})"),
        st.tuples(pair, calls).map(lambda made: f"{made[1]}({made[0][0]}, {made[0][1]})"),
        inner.map(lambda one: f"({one}) LIKE '%x_'"),
        inner.map(lambda one: f"({one}) IS NOT NULL"),
        inner.map(lambda one: f"NOT ({one})"),
        # With a column: a text may not be computed from constants.
        pair.map(lambda two: f"concat(a, {two[0]}, {two[1]})"),
        pair.map(lambda two: f"a || ({two[0]}) || ({two[1]})"),
        inner.map(lambda one: f"cast(coalesce(a, {one}) AS string)"),
        pair.map(lambda two: f"({two[0]}) IN ({two[1]}, 1)"),
        pair.map(lambda two: f"CASE WHEN {two[0]} THEN {two[1]} END"),
    )


TREES = st.recursive(LEAVES, grown, max_leaves=12)
POISON = st.sampled_from(
    [
        text
        for text in FORBIDDEN
        if text.strip() and text not in {"AND", "NOT", "a AND", "a b", "a)"}
    ]
)


@given(TREES)
def test_any_combination_of_allowed_parts_is_allowed(text: str) -> None:
    assume(not any(0xD800 <= ord(letter) < 0xE000 for letter in text))
    assert expressions(where=text).where is not None


# No leaf has a quote: inside a string the forbidden part would be text.
MARKED_LEAVES = st.just("\0") | NAMES | NUMBERS | st.sampled_from(["NULL", "TRUE"])
MARKED_TREES = st.recursive(MARKED_LEAVES, grown, max_leaves=12).map(
    lambda tree: tree if "\0" in tree else f"({tree}) = (\0)"
)


@given(POISON, MARKED_TREES)
def test_a_forbidden_part_is_found_anywhere(poison: str, tree: str) -> None:
    with pytest.raises(ExpressionError):
        expressions(where=tree.replace("\0", poison))


@given(st.text())
def test_any_text_parses_or_raises_an_expression_error(text: str) -> None:
    for settings in ({"where": text}, {"select": (text,)}):
        with suppress(ExpressionError):
            expressions(**settings)


WORDS = st.sampled_from(
    [
        *(
            "a",
            "after",
            ".",
            "(",
            ")",
            ",",
            "AND",
            "OR",
            "NOT",
            "CASE",
            "WHEN",
            "THEN",
            "END",
            "AS",
        ),
        *("SELECT", "FROM", "IN", "IS", "NULL", "LIKE", "BETWEEN", "INTERVAL", "DATE", "CAST", "="),
        *("<", ">", "+", "-", "*", "/", "%", "||", ":", "::", "[", "]", "'x'", "1", "day", "int"),
        *(
            "->",
            "=>",
            "?",
            "@",
            "$",
            "{",
            "}",
            ";",
            "!",
            "~",
            "lower",
            "OVER",
            "DISTINCT",
            "EXISTS",
        ),
    ]
)


@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_any_sequence_of_words_parses_or_raises_an_expression_error(text: str) -> None:
    for settings in ({"where": text}, {"select": (text,)}):
        with suppress(ExpressionError):
            expressions(**settings)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("struct(id, upper(name)) AS s", r"a field of struct\(\) needs a name: add AS name"),
        ("struct(id, name AS id) AS s", "the name id is already used by an earlier field"),
        ("upper(name AS n) AS s", r"AS is only allowed in `select` and in struct\(\)"),
        ("struct() AS s", r"struct\(\) takes 1 or more arguments"),
        ("map('a') AS s", r"map\(\) takes 2 or more arguments"),
    ],
)
def test_fields_of_structs_have_names(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        expressions(select=(text,))


@pytest.mark.parametrize(
    ("changed", "allowed"),
    [
        ({}, False),
        ({"lanes": 1}, True),
        ({"where": "tier <> 'test'"}, True),
        ({"where": "", "select": ("id", "customer.tier AS tier")}, True),
        ({"sink": {"type": "nats"}}, True),
    ],
)
def test_a_lookup_that_filters_what_lanes_have_stored(
    changed: dict[str, object], allowed: bool
) -> None:
    """A sink that stores positions would refuse a replay of a lane with other rows."""
    settings = {
        "encoding": "json",
        "sink": {"type": "postgres", "dsn": "host=copy", "events": "events"},
        "lanes": 2,
        "enrich": {
            "customer": {
                "query": "SELECT id, tier FROM customers WHERE id = ANY($1)",
                "key": "customer_id",
            }
        },
        "where": "customer.tier <> 'test'",
    }
    pipeline = Pipeline.model_validate({**settings, **changed, "route": "customer.tier"})
    if allowed:
        parse(pipeline)
    else:
        with pytest.raises(ExpressionError, match="column 1: customer is a lookup"):
            parse(pipeline)

"""What an expression may cost, and texts that are computed from constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ExpressionError
from tailrace.pipeline.expressions import functions, limits, patterns
from tests.unit.pipeline.expressions.cells import expressions

REFERENCE = Path(__file__).parents[4] / "docs/reference/expressions.md"

ALLOWED = [
    "repeat(a, 100) = 'x' AND concat(a, space(10000), chr(10)) = 'x'",
    "lpad(replace(a, '-', ''), 10, '0') = 'x' AND rpad(a, 10000) = 'x'",
    "replace(replace(replace(a, ' ', ''), '-', ''), 'ä', 'ae') = 'x'",
    "replace(a, email, '***') = 'x'",
    "format_string('%s-%05d %.2f%%', a, b, c) = 'x'",
    "md5(concat_ws('|', " + ", ".join(f"c{n}" for n in range(150)) + ")) = 'x'",
    "round(a, 2) = 1 AND round(a, -3) = 1 AND floor(a) = 1 AND format_number(a, 4) = 'x'",
    "format_number(a, '#,##0.00') = 'x'",
    "hex(sha2(a, 256)) = 'x' AND base64(url_encode(a)) = 'x'",
    "a RLIKE '^x+$' AND regexp_replace(a, '[0-9]+', '#') = 'x' AND split(b, ',') IS NULL",
    "regexp_replace(a, '(.)(.)', '$2$1') = 'x'",
    "array_join(split(a, ','), '; ') = 'x'",
    # Constants that are no text, or a literal.
    "make_date(2024, 1, 1) > day AND length('abc') + 1 > b AND coalesce('now', 'then') = a",
    "cast('now' AS string) = a AND cast(1 AS string) = a AND unhex('6e6f77') = b",
    "CASE WHEN TRUE THEN 'now' END = a AND greatest('a', 'b') = c",
    # With a column Spark does not know the text in advance.
    "cast(concat('no', a) AS date) = day AND cast('no' || a AS date) = day",
    "cast(text(a) AS date) = day AND cast(op AS string) = 'x'",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_ordinary_expressions_are_allowed(text: str) -> None:
    assert expressions(where=text).where is not None


@pytest.mark.parametrize(
    "text",
    [
        *("concat('no', 'w')", "'no' || 'w'", "lower('NOW')", "trim(' now')", "left('nowx', 3)"),
        *("substring('xnow', 2)", "replace('nxw', 'x', 'o')", "reverse('won')"),
        *("cast(X'6e6f77' AS string)", "cast(unhex('6e6f77') AS string)", "conv(30704, 10, 36)"),
        *("decode(X'6e6f77', 'UTF-8')", "format_string('%s', 'now')", "concat_ws('', 'no', 'w')"),
        *("element_at(split('x,now', ','), 2)", "get_json_object('[\"now\"]', '$[0]')"),
        *("date_format(DATE '2024-01-01', 'yyyy')", "regexp_substr('now', 'n.*')"),
        *("if(is_unchanged(before.a), 'x', 'no') || 'w'", "concat(if(is_known(a), 'a', 'b'), 'c')"),
        *("array_join(array('no', 'w'), '')", '\'{"a": "now"}\':a', "coalesce(upper('now'), a)"),
        *("concat(chr(110), 'ow')", "repeat('now', 1)", "lpad('', 3, 'now')"),
        *("try_cast(X'6e6f77' AS string)", "CASE WHEN b THEN a ELSE concat('no', 'w') END"),
    ],
)
def test_a_text_is_not_computed_from_constants(text: str) -> None:
    """Spark replaces a constant text such as 'now' with the current time where it is a date."""
    for where in (f"cast({text} AS date) = day", f"day = {text}", f"year({text}) = 1"):
        with pytest.raises(ExpressionError, match="of constants only must not compute a text"):
            expressions(where=where)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("format_string('%1$1000000000s', a)", "a width in a format may be at most 10,000"),
        ("format_string('%.99999f', a)", "a width in a format may be at most 10,000"),
        ("printf('%-099999d', a)", "a width in a format may be at most 10,000"),
        ("format_string(a, b)", "argument 1 of format_string.., the format, must be a literal"),
        ("format_string('" + "%1$s" * 101 + "', a)", "more than 100 times as long as a column"),
        ("repeat(a, 1000000000)", "argument 2 of repeat.. may be at most 10,000"),
        ("repeat(a, 101)", "more than 100 times as long as a column"),
        ("repeat(repeat(a, 50), 50)", "more than 100 times as long as a column"),
        ("repeat(a || rpad(a, 1000), 1000)", "more than 100 times"),
        ("repeat(rpad(a, 9000), 9000)", "longer than 1,000,000 characters"),
        ("repeat(a, b)", "argument 2 of repeat.. must be a number, not an expression"),
        ("lpad(a, 10001)", "argument 2 of lpad.. may be at most 10,000"),
        ("rpad(a, length(b), 'x')", "argument 2 of rpad.. must be a number"),
        ("concat(a, space(10001))", "argument 1 of space.. may be at most 10,000"),
        ("space(b)", "argument 1 of space.. must be a number"),
        ("replace(replace(a, 'a', 'aaaaaaaaaaa'), 'a', 'aaaaaaaaaaa')", "more than 100 times"),
        ("replace(a, 'x', b)", "argument 3 of replace.., the text to insert, must be a literal"),
        ("regexp_replace(a, 'x', b)", "argument 3 of regexp_replace.*must be a literal"),
        ("regexp_replace(a, '', '" + "x" * 100 + "')", "more than 100 times"),
        ("regexp_replace(a, '(?=(.*))', '$1')", "cannot be combined with . groups"),
        ("concat_ws(b, a)", "argument 1 of concat_ws.*must be a literal"),
        ("hex(hex(hex(hex(hex(a)))))", "more than 100 times"),
        ("round(a, 1000000000)", "argument 2 of round.. may be at most 100"),
        ("round(a, -101)", "argument 2 of round.. may be at most 100"),
        ("format_number(a, 1000000)", "argument 2 of format_number.. may be at most 100"),
    ],
)
def test_functions_that_make_texts_longer_are_limited(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=f"line 1, column \\d+: .*{reason}"):
        expressions(where=f"{text} = 'x'")


@pytest.mark.parametrize(
    "call",
    ["a RLIKE {}", *(f"{name}(a, {{}}, '') = 1" for name in ("regexp_replace",))]
    + [f"{name}(a, {{}}) = 1" for name in sorted(functions.PATTERNS - {"regexp_replace"})],
)
def test_patterns_are_literals_without_nested_repetitions(call: str) -> None:
    for pattern in ("b", "concat('x', b)", "cast(b AS string)"):
        with pytest.raises(ExpressionError, match="regular expression must be a literal"):
            expressions(where=call.format(pattern))
    with pytest.raises(ExpressionError, match=r"\+ repeats a group"):
        expressions(where=call.format("'^(a+)+$'"))
    assert expressions(where=call.format("'^a+$'")).where is not None


@pytest.mark.parametrize("operator", ["LIKE", "ILIKE", "NOT LIKE"])
def test_patterns_of_like_are_literals_with_few_wildcards(operator: str) -> None:
    assert expressions(where=f"a {operator} ('%x%y%')").where is not None
    for pattern in ("b", "b || '%'"):
        with pytest.raises(ExpressionError, match=r"the pattern of LIKE .*must be a literal"):
            expressions(where=f"a {operator} {pattern}")
    with pytest.raises(ExpressionError, match="at most 5 %"):
        expressions(where=f"a {operator} '%a%b%c%d%e%'")


def test_every_function_is_allowed_with_columns_or_is_limited() -> None:
    assert functions.ALLOWED.keys() >= functions.TEXTLESS
    limited = {
        *functions.PATTERNS,
        *("repeat", "lpad", "rpad", "space", "replace", "array_join", "concat_ws"),
        *("format_string", "printf", "round", "bround", "ceil", "ceiling", "floor"),
        "format_number",
    }
    for name, (least, most) in functions.ALLOWED.items():
        if name not in limited:
            for count in {least, min(most, least + 3)}:
                arguments = ", ".join(f"a{number}" for number in range(count))
                assert expressions(where=f"{name}({arguments}) = 1").where


def test_the_limits_are_documented() -> None:
    text = REFERENCE.read_text()
    for limit in (
        *(limits.MAX_WIDTH, limits.MAX_DIGITS, limits.MAX_FACTOR, limits.MAX_CHARACTERS),
        *(patterns.MAX_CHARACTERS, patterns.MAX_REPETITIONS),
    ):
        assert f" {limit:,} " in text

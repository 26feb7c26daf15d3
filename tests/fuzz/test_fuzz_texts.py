"""Texts that users and other programs write: each is accepted or has the documented error.

Expressions of pipelines and their patterns, conditions of backfills, start records of checkpoints,
and packets of Creek.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tailrace import checkpoint
from tailrace.checkpoint import StartRecord
from tailrace.client.creek.packets import Assembler, unpack
from tailrace.errors import ConfigError, CorruptError, ExpressionError, MalformedError
from tailrace.pipeline.expressions import patterns
from tailrace.pipeline.expressions.expression import _item, _parsed
from tailrace.pipeline.expressions.syntax import Text
from tailrace.position import Lsn, Position
from tailrace.postgres.condition import _KEYWORDS, FUNCTIONS, TYPES, checked
from tests.fuzz.counting import TIMEOUT_S, fuzz

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(TIMEOUT_S)]

EXPRESSIONS = (
    "repeat(a, 100) = 'x' AND concat(a, space(10000), chr(10)) = 'x'",
    "lpad(replace(a, '-', ''), 10, '0') = 'x' OR rpad(before.a, 10000) IS NOT NULL",
    "format_string('%s-%05d %.2f%%', a, b, c) = 'x'",
    "round(a, -3) BETWEEN 1 AND 2.5e3 AND format_number(a, '#,##0.00') = 'x'",
    "regexp_replace(a, '(.)(.)', '$2$1') RLIKE '^x+$'",
    "cast(concat('no', a) AS date) = day AND try_cast(b AS decimal(10, 2)) <=> NULL",
    "CASE WHEN TRUE THEN 'now' WHEN a IN (1, 2) THEN text(b) ELSE `the name` END LIKE 'a\\%%'",
    "doc:a.b[0]['c'] = 1 -- comment\nAND /* other */ is_unchanged(after.a)",
    "extract(YEAR FROM day) % 2 != 0 AND day > make_date(2024, 1, 1) - INTERVAL '1' DAY",
    "X'6e6f77' = unhex('6e6f77') AND NOT (a <> -1 || 'b')",
)
PATTERNS = (
    "^[a-z0-9._%+-]+@[a-z0-9.-]+\\.[a-z]{2,}$", "(ab)+(a+)?(a|b)*+", "(?i:x){1,1000}", "(?<n>a)b",
    "[^\\]\\\\]+?", "\\p{L}+\\d{3}", "(?=a)(?!b)(?<=c)", "a{,5}b{3}", "%a_b\\%%",
)  # fmt: skip
CONDITIONS = (
    "a IN (1, 2) AND NOT (b OR c)", "lower(v) LIKE 'a%' ESCAPE '!'", "d >= date '2026-01-01'",
    "d::date = CAST(x AS numeric(10,2))", "doc->>'a' = 'x' AND tags @> ARRAY['b']",
    "t AT TIME ZONE 'UTC' > now() - interval '1 day'", "CASE WHEN a THEN 'x' ELSE 'y' END = b",
    '"Order" IS NOT NULL AND name = \'it\'\'s; -- /* DROP\'', "größe > 1.5e3 OR a=-1",
    "pg_terminate_backend(1)", "id = (SELECT 1)", "'a'::regclass IS NULL",
)  # fmt: skip
_STRINGS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_CALL = re.compile(r"(?<![\w.$])([A-Za-z_]\w*) \(")


def encoded(texts: tuple[str, ...]) -> list[bytes]:
    return [text.encode() for text in texts]


def test_expressions() -> None:
    fuzz("expressions", encoded(EXPRESSIONS), _expression, factor=0.25)


def _expression(data: bytes) -> bool:
    text = data.decode(errors="replace")
    accepted, errors = False, list[str]()
    for parse in (
        lambda: _parsed(Text("where", text), {}),
        lambda: _item(Text("select[0]", f"{text} AS a"), {}),
    ):
        try:
            accepted |= parse() is not None
        except ExpressionError as error:
            errors.append(str(error))
    assert all(" line " in error for error in errors)
    return accepted


def test_patterns() -> None:
    fuzz("patterns", encoded(PATTERNS), _pattern)


def _pattern(data: bytes) -> bool:
    text = data.decode(errors="replace")
    return not patterns.problem(text) and not patterns.like_problem(text)


def test_conditions() -> None:
    fuzz("conditions", encoded(CONDITIONS), _condition)


def _condition(data: bytes) -> bool:
    try:
        sql = checked(data.decode(errors="surrogateescape"))
    except ConfigError:
        return False
    assert checked(sql) == sql
    code = _STRINGS.sub("''", sql)
    # A name may have a dollar sign in it: only one at its beginning could begin a string.
    assert not re.search(
        r";|(?<![\w$\x80-\U0010ffff])\$|--|/\*|[A-Za-z_]\.|(?<![0-9])\.[A-Za-z_]", code
    )
    assert not re.search(r"(?i)\b(select|table|union|pg_\w+)\b *\(", code)
    for name in _CALL.findall(code):
        assert name.lower() in FUNCTIONS | TYPES | _KEYWORDS
    return True


def test_start_records(tmp_path: Path) -> None:
    records = [
        StartRecord(Position(Lsn.parse("16/B374D848"), 3), "5f0c2a9e+77aa01c2"),
        StartRecord(Position(Lsn(0), 0), ""),
        StartRecord.after_reset("5f0c2a9e", Position(Lsn((1 << 64) - 1), 1 << 62)),
    ]
    path = tmp_path / "tailrace-start"

    def accepts(data: bytes) -> bool:
        path.write_bytes(data)
        try:
            record = checkpoint.read_start(tmp_path)
        except CorruptError:
            return False
        assert record is not None
        assert StartRecord.parse(str(record)) == record
        return True

    fuzz("start records", [str(record).encode() for record in records], accepts)


def packets() -> list[bytes]:
    """Messages of one and of several packets, each packet after its length."""
    content = bytes(range(40))
    whole = [b"\0\0" + len(content).to_bytes(4, "big") + content]
    several = [
        b"\0\0" + (30).to_bytes(4, "big") + content[:10],
        b"\0\1" + content[10:20],
        b"\0\2" + content[20:30],
        b"\0\3",
    ]
    return [_joined(sequence) for sequence in (whole, several, several + whole, whole * 3)]


def _joined(sequence: list[bytes]) -> bytes:
    return b"".join(bytes((len(packet),)) + packet for packet in sequence)


def test_packets_of_creek() -> None:
    fuzz("packets of Creek", packets(), _packets)


def _packets(data: bytes) -> bool:
    assembler, valid = Assembler(), True
    while data:
        size, data = data[0], data[1:]
        packet, data = data[:size], data[size:]
        try:
            content = assembler.add(packet)
        except MalformedError:
            return False
        assert content is None or not assembler.incomplete
        if content is not None and packet[:2] == b"\0\0":
            assert unpack(packet) == content
        valid = content is not None
    return valid

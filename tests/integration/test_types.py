"""Types and values with PostgreSQL as the oracle: what it prints is what messages hold."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest
from psycopg import sql

from tailrace.decode import decoder as columnar
from tailrace.decode.typed import arrow_type, to_arrow
from tailrace.decode.types import Kind, Type, resolve, type_name
from tailrace.log.changes import Decoder
from tailrace.log.reader import Earliest
from tests.corpus import prepared
from tests.unit.encode.groups import encoder, groups_of, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.decode.group import Group
    from tailrace.encode.shapes.shape_type import Encoding
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

SETTINGS = """
SET datestyle TO 'ISO, MDY'; SET intervalstyle TO postgres; SET timezone TO 'UTC';
SET bytea_output TO hex; SET extra_float_digits TO 1; SET client_encoding TO 'UTF8'
"""


def query(database: Database, statement: str) -> list[tuple[Any, ...]]:
    """PostgreSQL's own text of each value, with the settings the stream is pinned to."""
    with database.connect() as connection:
        connection.execute(SETTINGS.encode())
        result = connection.execute(statement.encode()).pgresult
        assert result is not None
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


@dataclass(frozen=True)
class Case:
    """A table with the values of one type, and the changes that made them."""

    sql_type: str
    table: str
    group: Group

    @property
    def type_(self) -> Type:
        assert self.group.relation is not None
        column = self.group.relation.columns[1]
        return resolve(column.type_oid, column.type_modifier, self.group.types)


def groups(captured: Captured) -> list[Group]:
    """Everything captured, as groups."""
    captured.catch_up()
    decoder = Decoder()
    changes = list(decoder.decode(captured.log.read(captured.log.resolve(Earliest()))))
    return groups_of([change for change in changes if change.relation], decoder.types)


@pytest.fixture
def cases(database: Database, capture: Capturing) -> list[Case]:
    """The whole corpus, captured."""
    kinds = prepared(database)
    captured = capture(database)
    with database.connect() as connection:
        for number, kind in enumerate(kinds):
            connection.execute(f"CREATE TABLE v{number} (id serial PRIMARY KEY, v {kind})".encode())
            for literal in [*kinds[kind], None]:
                insert = sql.SQL("INSERT INTO {} (v) VALUES ({})")
                table = sql.Identifier(f"v{number}")
                connection.execute(insert.format(table, sql.Literal(literal)))
    made = {group.relation.name: group for group in groups(captured) if group.relation}
    return [Case(kind, f"v{number}", made[f"v{number}"]) for number, kind in enumerate(kinds)]


SHAPES: tuple[tuple[bool, str, str], ...] = (
    (True, "plain", "after"),
    (False, "bridge", "data"),
)
SHAPE_NAMES: tuple[str, ...] = ("plain", "bridge")
ISO = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00)?")


def expected(type_: Type, text: str, as_json: Any, encoding: Encoding, *, native: bool) -> Any:
    """A value as a message has it, from PostgreSQL's text and its `to_json`."""
    value: Any = text
    match type_.kind:
        case Kind.BOOL | Kind.INT2 | Kind.INT4 | Kind.INT8:
            value = as_json
        case Kind.OID:
            value = int(text)
        case Kind.FLOAT4 | Kind.FLOAT8 if encoding == "msgpack":
            value = float(text)
        case Kind.FLOAT4 | Kind.FLOAT8 if not isinstance(as_json, str):
            value = float(text) if text == "-0" else json.loads(text)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ if ISO.fullmatch(as_json):
            value = as_json.replace("+00:00", "Z")
        case Kind.BYTEA:
            raw = bytes.fromhex(text.removeprefix("\\x"))
            value = raw if encoding == "msgpack" else base64.b64encode(raw).decode()
        case Kind.JSON | Kind.JSONB:
            value = document(text) if encoding == "msgpack" else orjson.loads(text)
        case Kind.VECTOR if native:
            value = json.loads(text, parse_int=float if encoding == "msgpack" else int)
        case Kind.ARRAY if native and text.startswith("{"):
            assert type_.element is not None
            value = [element(type_.element, item, encoding) for item in as_json]
    return value


def whole(numeral: str) -> int | str:
    """Python refuses to read integers of a few thousand digits."""
    return int(numeral) if len(numeral) < 100 else numeral


def element(type_: Type, item: Any, encoding: Encoding) -> Any:
    """An element of an array, out of `to_json`, which has no text of it."""
    if isinstance(item, list) and type_.kind is not Kind.JSONB:
        return [element(type_, inner, encoding) for inner in item]
    if item is None or type_.kind is Kind.JSONB:
        return item
    text = f"{item:.2f}" if type_.kind is Kind.NUMERIC and item != "NaN" else str(item)
    if type_.kind is Kind.TEXT and isinstance(item, dict):
        return f'({item["a"]},"{item["b"]}")'
    return expected(type_, text, item, encoding, native=True)


def document(text: str) -> Any:
    """JSON as MessagePack has it: no number loses a digit."""

    def number(numeral: str) -> Any:
        if numeral.lstrip("-").isdigit() and -(1 << 63) <= int(numeral) < 1 << 64:
            return int(numeral)
        exact = Decimal(repr(float(numeral))) == Decimal(numeral)
        return float(numeral) if exact else numeral

    value = json.loads(text, parse_int=number, parse_float=number)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return text
    return value


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_values_of_every_type(database: Database, cases: list[Case], encoding: Encoding) -> None:
    for case in cases:
        rows = query(database, f"SELECT v, to_json(v)::text FROM {case.table} ORDER BY id")
        for native, shape, member in SHAPES:
            if case.sql_type == "json" and encoding == "json":
                continue  # one of the values is more than a strict reader takes; see below
            found = [row[member]["v"] for row in messages(case.group, shape, encoding)]
            wanted = [
                None
                if text is None
                else expected(
                    case.type_, text, json.loads(as_json, parse_int=whole), encoding, native=native
                )
                for text, as_json in rows
            ]
            assert list(map(repr, found)) == list(map(repr, wanted)), case.sql_type


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_the_data_path_sends_the_same(
    database: Database, capture: Capturing, encoding: Encoding
) -> None:
    """Groups of the columnar decoder: updates, deletes, truncates and messages too."""
    captured = capture(database)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric);"
        "INSERT INTO t SELECT i, repeat(md5(i::text), 100), i FROM generate_series(1, 50) i;"
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT i, repeat(md5(i::text), 100), i FROM generate_series(51, 99) i;"
        "UPDATE t SET n = NULL WHERE id > 40; UPDATE t SET id = -id WHERE id < 60;"
        "DELETE FROM t WHERE id % 2 = 0; ALTER TABLE t REPLICA IDENTITY FULL;"
        "UPDATE t SET n = 7; DELETE FROM t WHERE id < 0; TRUNCATE t;"
        "SELECT pg_logical_emit_message(true, 'é.x', 'hello')"
    )
    expected_rows = _by_id(groups(captured), encoding)
    start = captured.log.resolve(Earliest())
    decoder = columnar.Decoder()
    made = [group for entry in captured.log.read(start) for group in decoder.decode(entry)]
    rows = _by_id([group for group in made if group.relation], encoding)
    assert len(rows) > 300
    assert rows == expected_rows


def _by_id(made: list[Group], encoding: Encoding) -> dict[bytes, tuple[object, ...]]:
    return {
        row["id"]: (row["destination"], row["key"], row["payload"])
        for shape in SHAPE_NAMES
        for group in made
        for row in encoder(shape, encoding).encode(group).to_pylist()
    }


def test_json_stands_in_json_letter_by_letter(database: Database, cases: list[Case]) -> None:
    (case,) = [case for case in cases if case.sql_type == "json"]
    payloads = encoder("plain", "json").encode(case.group)["payload"].to_pylist()
    rows = query(database, f"SELECT v FROM {case.table} ORDER BY id")
    for payload, (text,) in zip(payloads, rows, strict=True):
        assert f'"v":{text or "null"}}}'.encode() in payload
        assert json.loads(payload)["after"]["v"] == json.loads(text or "null")


def test_names_are_those_of_format_type(database: Database, cases: list[Case]) -> None:
    for case in cases:
        assert case.group.relation is not None
        column = case.group.relation.columns[1]
        ((name, base),) = database.query(
            "SELECT format_type(a.atttypid, a.atttypmod), t.typbasetype FROM pg_attribute a "
            "JOIN pg_type t ON t.oid = a.atttypid WHERE attrelid = %s::regclass AND attname = 'v'",
            case.table,
        )
        if not base:
            assert type_name(column.type_oid, column.type_modifier, case.group.types) == name


def test_every_built_in_type_is_known(database: Database) -> None:
    catalog = database.query(
        "SELECT oid, format_type(oid, -1), typelem, typcategory FROM pg_type "
        "WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm') "
        "AND oid < 10000 AND typcategory <> 'Z' AND typelem NOT IN "
        "(SELECT oid FROM pg_type WHERE typtype IN ('c', 'p'))"
    )
    assert len(catalog) > 140
    for oid, name, *_ in catalog:
        assert type_name(oid, -1, {}) == name


def test_domains_are_their_base_type(cases: list[Case]) -> None:
    kinds = {case.sql_type: case.type_ for case in cases}
    assert kinds["positive"].kind is Kind.INT4
    assert kinds["labels"] == Type(kind=Kind.ARRAY, element=Type(kind=Kind.TEXT))


def test_typed_columns_hold_what_they_can_and_report_the_rest(
    database: Database, cases: list[Case]
) -> None:
    for case in cases:
        assert case.group.after is not None
        cells = case.group.after[1]
        assert cells is not None
        values, refused = to_arrow(cells.values, case.type_)
        values.validate(full=True)
        rows = query(database, f"SELECT v, {fits(case.type_)} FROM {case.table} ORDER BY id")
        assert refused.tolist() == [text is not None and fit == "f" for text, fit in rows], (
            case.sql_type
        )
        assert [
            None if value is None else spelled(case.type_, value) for value in values.to_pylist()
        ] == [None if text is None or fit == "f" else given(case.type_, text) for text, fit in rows]


def fits(type_: Type) -> str:
    """Whether Arrow can hold `v`, in SQL."""
    match type_.kind:
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return "isfinite(v) AND extract(year FROM v) BETWEEN 1 AND 9999"
        case Kind.NUMERIC if arrow_type(type_) != "string":
            return "v::text NOT IN ('NaN', 'Infinity', '-Infinity')"
        case _:
            return "true"


def spelled(type_: Type, value: Any) -> Any:
    match type_.kind:
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return value.isoformat()
        case Kind.FLOAT4:
            return repr(value)
        case _:
            return repr(value)


def given(type_: Type, text: str) -> Any:
    """What the typed value must look like, from PostgreSQL's text."""
    wanted: Any = text
    match type_.kind:
        case Kind.DATE:
            return text
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            whole_, point, rest = text.replace(" ", "T").removesuffix("+00").partition(".")
            zone = "+00:00" if type_.kind is Kind.TIMESTAMPTZ else ""
            return whole_ + (f".{rest:0<6}" if point else "") + zone
        case Kind.FLOAT4:
            wanted = np.float32(text).item()
        case Kind.FLOAT8:
            wanted = float(text)
        case Kind.BOOL:
            wanted = text == "t"
        case Kind.INT2 | Kind.INT4 | Kind.INT8 | Kind.OID:
            wanted = int(text)
        case Kind.NUMERIC if arrow_type(type_) != "string":
            wanted = Decimal(text)
        case Kind.BYTEA:
            wanted = bytes.fromhex(text.removeprefix("\\x"))
    return repr(wanted)

"""Values survive Avro: written by fastavro, read by the client, in Python's types."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.creek.avro import RowSchema
from tailrace.client.creek.values import Json
from tailrace.encode.creek import schema as creek
from tailrace.errors import MalformedError
from tailrace.schema import Column, Relation, ReplicaIdentity
from tests.creek import reader_schema

EPOCH = datetime(1970, 1, 1)
INFINITIES = {"infinity": "infinity", "negative_infinity_ca5991f51367e3e4": "-infinity"}
TYPES = {
    "bool": 16, "int2": 21, "int4": 23, "int8": 20, "float4": 700, "float8": 701, "text": 25,
    "uuid": 2950, "json": 114, "jsonb": 3802, "date": 1082, "time": 1083, "timestamp": 1114,
    "timestamptz": 1184, "numeric": 1700, "bytea": 17, "oid": 26, "inet": 869,
    "int4s": 1007, "texts": 1009, "stamps": 1185, "dates": 1182, "numerics": 1231, "reals": 1021,
}  # fmt: skip
PRECISE = ((12 << 16) | 2) + 4
COLUMNS = [
    Column(name=name, type_oid=oid, type_modifier=PRECISE if name == "numerics" else -1)
    for name, oid in TYPES.items()
] + [Column(name="numeric(12,2)", type_oid=1700, type_modifier=PRECISE)]
TABLE = Relation(
    oid=1,
    namespace="public",
    name="every table",
    replica_identity=ReplicaIdentity.DEFAULT,
    columns=tuple(COLUMNS),
)
FIELDS = {column.name: creek._avro_name(column.name, set()) for column in COLUMNS}


def row_of(raw: dict[str, Any], form: Any = "python") -> dict[str, Any]:
    """Encode a row with these columns and NULL in all others, and decode it."""
    schema = creek.row(TABLE, {})
    stream = io.BytesIO()
    values = {FIELDS[name]: raw.get(name) for name in FIELDS}
    fastavro.schemaless_writer(stream, reader_schema(schema.text, raw=True), values)
    return RowSchema(schema.text).decode(stream.getvalue(), form)


def value(name: str, raw: Any, form: Any = "python") -> Any:
    """Encode and decode one column; all others are NULL, and stay NULL."""
    row = row_of({name: raw}, form)
    decoded = row.pop(name)
    assert set(row) | {name} == FIELDS.keys()
    assert set(row.values()) == {None}
    return decoded


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def unscaled(number: Decimal) -> bytes:
    whole = int(number.scaleb(2))
    return whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True)


DECIMALS = st.decimals(-(10**10) + 1, 10**10 - 1, places=2)
SINGLE = st.floats(width=32, allow_nan=False)


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(), st.booleans())
def test_types_that_avro_has(number: int, double: float, text: str, truth: bool) -> None:
    row = row_of({"int8": number, "float8": double, "text": text, "bool": truth})
    assert (row["int8"], row["float8"], row["text"]) == (number, double, text)
    assert row["bool"] is truth


@given(SINGLE)
def test_single_precision_has_its_shortest_digits(number: float) -> None:
    decoded = value("float4", number)
    assert np.float32(decoded) == np.float32(number)
    assert len(repr(decoded)) <= len(repr(number))
    assert value("reals", [number]) == [decoded]


@given(st.datetimes(), st.dates(), st.times(), st.uuids(), DECIMALS)
def test_types_that_python_has(
    at: datetime, day: date, clock: time, identifier: Any, number: Decimal
) -> None:
    zoned = at.replace(tzinfo=UTC)
    row = row_of(
        {
            "timestamp": micros(at),
            "timestamptz": micros(at),
            "date": (day - EPOCH.date()).days,
            "time": micros(datetime.combine(EPOCH.date(), clock)),
            "uuid": str(identifier),
            "numeric(12,2)": unscaled(number),
            "numeric": str(number),
            "stamps": [micros(at)],
            "dates": [(day - EPOCH.date()).days],
            "numerics": [unscaled(number)],
        }
    )
    assert row["timestamp"] == at
    assert row["timestamp"].tzinfo is None
    assert row["timestamptz"] == zoned
    assert row["timestamptz"].tzinfo is UTC
    assert (row["date"], row["time"], row["uuid"]) == (day, clock, identifier)
    assert row["numeric(12,2)"] == row["numeric"] == number
    assert str(row["numeric(12,2)"]) == f"{number:.2f}".replace("-0.00", "0.00")
    assert (row["stamps"], row["dates"], row["numerics"]) == ([zoned], [day], [number])


@given(st.lists(st.text()), st.lists(st.integers(-(2**31), 2**31 - 1)), st.text(), st.binary())
def test_json_bytes_and_arrays(
    texts: list[str], numbers: list[int], text: str, data: bytes
) -> None:
    row = row_of(
        {
            "texts": texts,
            "int4s": numbers,
            "json": text.encode(),
            "bytea": f"\\x{data.hex()}",
            "inet": text,
        }
    )
    assert (row["texts"], row["int4s"], row["json"]) == (texts, numbers, text)
    assert (row["bytea"], row["inet"]) == (data, text)
    assert isinstance(value("jsonb", text.encode(), "message"), Json)


@pytest.mark.parametrize(
    ("name", "raw", "text"),
    [
        ("date", -719163, "0001-12-31 BC"),
        ("date", 2932897, "10000-01-01"),
        ("time", 86_400_000_000, "24:00:00"),
        ("timestamp", 253402300800000000, "10000-01-01 00:00:00"),
        ("timestamptz", -62135596800000001, "0001-12-31 23:59:59.999999+00 BC"),
        ("timestamptz", "294276-12-31 23:59:59+00", "294276-12-31 23:59:59+00"),
        ("int4s", "{1,NULL}", "{1,NULL}"),
        ("oid", "4294967295", 4294967295),
        ("inet", "10.0.0.1/8", "10.0.0.1/8"),
        ("numeric", "1e3", Decimal(1000)),
        ("numeric(12,2)", b"\x7f", Decimal("1.27")),
        *((name, *pair) for name in ("date", "timestamp") for pair in INFINITIES.items()),
    ],
)
def test_values_outside_the_python_type_are_postgresql_text(name: str, raw: Any, text: Any) -> None:
    assert value(name, raw) == text


def test_nan_and_infinity() -> None:
    assert value("numeric(12,2)", "NaN").is_nan()
    assert value("float8", float("nan")) != value("float8", float("nan"))
    assert value("stamps", ["infinity", 0]) == ["infinity", datetime(1970, 1, 1, tzinfo=UTC)]


def test_invalid_rows_and_schemas_are_malformed() -> None:
    rows = RowSchema(creek.row(TABLE, {}).text)
    for body in (b"", b"\x00" * (len(COLUMNS) - 1), b"\x00" * (len(COLUMNS) + 1), b"\x7f" * 40):
        with pytest.raises(MalformedError):
            rows.decode(body, "python")
    for text in ("", "[]", '{"fields": 1}', '{"type": "record"}'):
        with pytest.raises(MalformedError):
            RowSchema(text)


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_malformed_error(body: bytes) -> None:
    rows = RowSchema(creek.row(TABLE, {}).text)
    try:
        rows.decode(body, "message")
        rows.decode(body, "python")
    except MalformedError:
        pass

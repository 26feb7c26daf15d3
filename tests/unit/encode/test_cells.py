"""Every cell encoder against an independent decoder: decoding returns the original value."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.decode.types import Kind, Type
from tailrace.encode.pieces import join
from tailrace.encode.syntaxes.json import Json
from tailrace.encode.syntaxes.msgpack import MessagePack, pack
from tests.unit.encode.groups import decoded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.encode.shapes.shape_type import Encoding
    from tailrace.encode.syntaxes.syntax import Syntax

ENCODINGS: tuple[Encoding, ...] = ("json", "msgpack")
SYNTAXES: dict[Encoding, Syntax] = {"json": Json(), "msgpack": MessagePack()}
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
both = pytest.mark.parametrize("encoding", ENCODINGS)


def read_back(
    encoding: Encoding, type_: Type, texts: Sequence[str | None], *, native: bool = True
) -> list[Any]:
    """Encode a column and decode it; repeat with a slice of a longer column."""
    syntax = SYNTAXES[encoding]
    raw = [None if text is None else text.encode() for text in texts]
    values = pa.array(raw, pa.binary())
    longer = pa.array([raw[0], *raw, raw[-1]], pa.binary()).slice(1, len(raw))
    found = []
    for column in (values, longer):
        pieces = syntax.cells(type_, column, native=native)
        rows = join([*pieces, b""], null=syntax.null)
        rows.validate(full=True)
        found.append([decoded(row, encoding) for row in rows.to_pylist()])
    assert same(*found)
    return found[0]


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to itself."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def columns_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str | None]]:
    return st.lists(st.none() | values, min_size=1, max_size=20)


@both
@given(texts=columns_of(TEXT))
def test_text_is_decoded_unchanged(encoding: Encoding, texts: list[str | None]) -> None:
    assert read_back(encoding, Type(kind=Kind.TEXT), texts) == texts


@both
@given(lengths=st.lists(st.sampled_from([0, 1, 31, 32, 255, 256, 65535, 65536]), min_size=1))
def test_text_of_every_header_size(encoding: Encoding, lengths: list[int]) -> None:
    texts = ["x" * length for length in lengths]
    assert read_back(encoding, Type(kind=Kind.TEXT), list(texts)) == texts


@both
@given(
    st.lists(
        st.integers(-(1 << 63), (1 << 63) - 1)
        | st.integers(-300, 300)
        | st.sampled_from([1 << bit for bit in range(63)] + [-(1 << bit) for bit in range(64)]),
        min_size=1,
    )
)
def test_integers_are_decoded_unchanged(encoding: Encoding, numbers: list[int]) -> None:
    texts = [None, *map(str, numbers)]
    assert read_back(encoding, Type(kind=Kind.INT8), texts) == [None, *numbers]


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_constants_are_decoded_unchanged(number: int) -> None:
    value = {"a": [number, None, True, False, "é" * 40], "b": {}, "c": [""] * 20}
    assert decoded(pack(value), "msgpack") == value


@both
@given(st.lists(st.floats(), min_size=1))
def test_floats_are_decoded_unchanged(encoding: Encoding, numbers: list[float]) -> None:
    spelled = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
    texts = [spelled.get(repr(number), repr(number)) for number in numbers]
    expected: list[object] = list(numbers)
    if encoding == "json":
        expected = [
            number if math.isfinite(number) else text
            for number, text in zip(numbers, texts, strict=True)
        ]
    assert same(read_back(encoding, Type(kind=Kind.FLOAT8), texts), expected)


@both
@given(st.lists(st.none() | st.binary(max_size=50), min_size=1))
def test_bytea_is_decoded_unchanged(encoding: Encoding, values: list[bytes | None]) -> None:
    texts = [None if value is None else f"\\x{value.hex()}" for value in values]
    expected: list[object] = list(values)
    if encoding == "json":
        expected = [None if v is None else base64.b64encode(v).decode() for v in values]
    assert read_back(encoding, Type(kind=Kind.BYTEA), texts) == expected


@both
@given(st.lists(st.none() | st.booleans(), min_size=1))
def test_bools_are_decoded_unchanged(encoding: Encoding, values: list[bool | None]) -> None:
    texts = [None if value is None else "ft"[value] for value in values]
    assert read_back(encoding, Type(kind=Kind.BOOL), texts) == values


ODD_TIMES = ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00"]


@both
@given(st.lists(st.datetimes() | st.sampled_from(ODD_TIMES), min_size=1))
def test_timestamps_are_iso_8601(encoding: Encoding, values: list[object]) -> None:
    texts = [str(value) for value in values]
    expected = [text if text in ODD_TIMES else text.replace(" ", "T") for text in texts]
    assert read_back(encoding, Type(kind=Kind.TIMESTAMP), list(texts)) == expected
    zoned = [text if text in ODD_TIMES[:2] else _zoned(text) for text in texts]
    expected = [
        text if odd in ODD_TIMES else text.replace(" ", "T")[:-3] + "Z"
        for text, odd in zip(zoned, texts, strict=True)
    ]
    assert read_back(encoding, Type(kind=Kind.TIMESTAMPTZ), list(zoned)) == expected


def _zoned(text: str) -> str:
    return text.replace(" BC", "+00 BC") if text.endswith("BC") else f"{text}+00"


@both
def test_timestamps_of_other_time_zones_stay_text(encoding: Encoding) -> None:
    texts = ["2024-01-01 10:00:00+05:45", "2024-01-01 10:00:00-05", "2024-01-01 10:00:00+00"]
    found = read_back(encoding, Type(kind=Kind.TIMESTAMPTZ), list(texts))
    assert found == [*texts[:2], "2024-01-01T10:00:00Z"]


def array_text(value: list[Any] | str | None, delimiter: str = ",") -> str:
    """The text that PostgreSQL's array_out prints."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + delimiter.join(array_text(item, delimiter) for item in value) + "}"
    plain = (
        value and value.upper() != "NULL" and not set(value) & set(f'{{}}"\\{delimiter} \t\n\r\v\f')
    )
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def boxes(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Rectangular arrays, as in PostgreSQL: all sub-arrays of one depth have the same length."""

    def grown(depth: int, width: int) -> st.SearchStrategy[list[Any]]:
        inner = items if depth == 1 else grown(depth - 1, width)
        return st.lists(inner, min_size=width, max_size=width)

    shapes = st.tuples(st.integers(1, 3), st.integers(1, 3))
    return st.just([]) | shapes.flatmap(lambda shape: grown(*shape))


@both
@given(st.lists(st.none() | boxes(st.none() | TEXT), min_size=1, max_size=8))
def test_arrays_of_text(encoding: Encoding, values: list[Any]) -> None:
    type_ = Type(kind=Kind.ARRAY, element=Type(kind=Kind.TEXT))
    texts = [None if value is None else array_text(value) for value in values]
    assert read_back(encoding, type_, texts) == values
    assert read_back(encoding, type_, texts, native=False) == texts


@both
@given(st.lists(boxes(st.none() | st.integers(-(1 << 63), (1 << 63) - 1)), min_size=1, max_size=8))
def test_arrays_of_integers(encoding: Encoding, values: list[Any]) -> None:
    type_ = Type(kind=Kind.ARRAY, element=Type(kind=Kind.INT8))
    texts = [str(value).replace("None", "NULL").replace(" ", "") for value in values]
    texts = [text.replace("[", "{").replace("]", "}") for text in texts]
    assert read_back(encoding, type_, list(texts)) == values


@both
def test_arrays_with_bounds_stay_text(encoding: Encoding) -> None:
    type_ = Type(kind=Kind.ARRAY, element=Type(kind=Kind.INT4))
    texts = ["[0:1]={1,2}", "{1,2}", None, "[2:2]={7}", "{}"]
    assert read_back(encoding, type_, texts) == [texts[0], [1, 2], None, texts[3], []]
    assert read_back(encoding, type_, texts[3:4]) == texts[3:4]


@both
@pytest.mark.parametrize("odd", ['{"', "{a}{b}", "{", "{a", "{a}}", "a"])
def test_text_that_is_not_an_array_stays_text(encoding: Encoding, odd: str) -> None:
    type_ = Type(kind=Kind.ARRAY, element=Type(kind=Kind.TEXT))
    assert read_back(encoding, type_, [odd, "{x}"])[0] == odd


@both
def test_arrays_of_many_elements(encoding: Encoding) -> None:
    type_ = Type(kind=Kind.ARRAY, element=Type(kind=Kind.INT4))
    values = [list(range(length)) for length in (15, 16, 65535, 65536, 0)]
    texts = ["{" + ",".join(map(str, value)) + "}" for value in values]
    assert read_back(encoding, type_, list(texts)) == values


@both
def test_arrays_of_boxes_have_semicolons(encoding: Encoding) -> None:
    type_ = Type(kind=Kind.ARRAY, element=Type(kind=Kind.GEOMETRY, delimiter=";"))
    found = read_back(encoding, type_, ["{(1,1),(0,0);(2,2),(1,1)}"])
    assert found == [["(1,1),(0,0)", "(2,2),(1,1)"]]


@both
@given(st.lists(st.none() | st.dictionaries(TEXT, st.none() | TEXT, max_size=20), min_size=1))
def test_hstore_is_an_object(
    encoding: Encoding, values: list[dict[str, str | None] | None]
) -> None:
    texts = [None if value is None else hstore_text(value) for value in values]
    assert read_back(encoding, Type(kind=Kind.HSTORE), texts) == values
    assert read_back(encoding, Type(kind=Kind.HSTORE), texts, native=False) == texts


def hstore_text(value: dict[str, str | None]) -> str:
    """The text that PostgreSQL's hstore_out prints."""

    def quoted(text: str | None) -> str:
        if text is None:
            return "NULL"
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return ", ".join(f"{quoted(key)}=>{quoted(item)}" for key, item in value.items())


@both
def test_vectors_are_arrays_of_floats(encoding: Encoding) -> None:
    found = read_back(encoding, Type(kind=Kind.VECTOR), ["[1,-0.5,1e-30]", None, "[2]"])
    assert found == [[1, -0.5, 1e-30], None, [2]]


NUMERALS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?\Z")
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | TEXT | NUMERALS.map(Decimal),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


def json_text(value: Any, numeral: Callable[[Decimal], str] = str) -> str:
    match value:
        case Decimal():
            return numeral(value)
        case list():
            return "[" + ", ".join(json_text(item, numeral) for item in value) + "]"
        case dict():
            pairs = (
                f"{json.dumps(key)}: {json_text(item, numeral)}" for key, item in value.items()
            )
            return "{" + ", ".join(pairs) + "}"
        case _:
            return json.dumps(value, ensure_ascii=False)


def exact(text: str, found: Any) -> bool:
    """Whether a number is exact: an integer, a float that prints the same, or its text."""
    if isinstance(found, str):
        as_float = float(text)
        whole = text.lstrip("-").isdigit() and -(1 << 63) <= int(text) < 1 << 64
        return found == text and not whole and not same_number(as_float, text)
    return same_number(found, text)


def same_number(number: float, text: str) -> bool:
    return math.isfinite(number) and Decimal(repr(number)) == Decimal(text)


@given(st.lists(NUMERALS, min_size=1))
def test_numbers_in_documents_keep_all_digits(numerals: list[str]) -> None:
    found = read_back("msgpack", Type(kind=Kind.JSON), list(numerals))
    assert all(map(exact, numerals, found))
    as_jsonb = [f"{Decimal(numeral):f}" for numeral in numerals]
    found = read_back("msgpack", Type(kind=Kind.JSONB), list(as_jsonb))
    assert all(map(exact, as_jsonb, found))


@given(st.lists(st.none() | DOCUMENTS, min_size=1, max_size=8))
def test_documents_are_decoded_unchanged(values: list[Any]) -> None:
    texts = [None if value is None else json_text(value) for value in values]
    found = read_back("msgpack", Type(kind=Kind.JSON), texts)
    assert [json_text(item) for item in map(as_decimals, found)] == [
        json_text(as_decimals(json.loads(text, parse_float=_oracle, parse_int=_oracle)))
        if text is not None
        else "null"
        for text in texts
    ]


def _oracle(text: str) -> Any:
    try:
        whole = int(text)
    except ValueError:
        number = float(text)
        return number if same_number(number, text) else text
    if -(1 << 63) <= whole < 1 << 64:
        return whole
    return float(text) if same_number(float(text), text) else text


def as_decimals(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() | float():
            return Decimal(repr(value)).normalize() + 0
        case list():
            return [as_decimals(item) for item in value]
        case dict():
            return {key: as_decimals(item) for key, item in value.items()}
        case _:
            return value


@pytest.mark.parametrize("text", ['"\\ud800"', "[" * 2000 + "]" * 2000])
def test_documents_that_no_decoder_accepts_stay_text(text: str) -> None:
    found = read_back("msgpack", Type(kind=Kind.JSON), ["1", text, '{"a": "b"}'])
    assert found == [1, text, {"a": "b"}]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_documents_in_arrays(encoding: Encoding) -> None:
    type_ = Type(kind=Kind.ARRAY, element=Type(kind=Kind.JSONB))
    found = read_back(encoding, type_, ['{"{\\"a\\": [1, \\"x\\"]}","null",NULL}'])
    assert found == [[{"a": [1, "x"]}, None, None]]


@both
@pytest.mark.parametrize("kind", Kind)
def test_columns_of_nulls_only(encoding: Encoding, kind: Kind) -> None:
    type_ = Type(kind=kind, element=Type(kind=Kind.TEXT) if kind is Kind.ARRAY else None)
    for native in (False, True):
        assert read_back(encoding, type_, [None, None], native=native) == [None, None]

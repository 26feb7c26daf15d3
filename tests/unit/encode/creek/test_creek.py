"""Creek's events: fastavro decodes them to PostgreSQL's values."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Missing, Op
from tailrace.encode.creek import avro
from tailrace.encode.creek import schema as creek
from tailrace.encode.creek.layout import row_messages
from tailrace.errors import ConfigError
from tailrace.schema import Column, Relation, ReplicaIdentity, TypeName
from tests.creek import event, read, reader_schema, schemas_of
from tests.unit.encode.groups import COMMITTED_AT, encoder, group, image, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.decode.group import Group

UNCHANGED = Missing.UNCHANGED
ID = Column(name="id", type_oid=23, key=True)
NAME = Column(name="name", type_oid=25)
USERS = table(ID, NAME)


def events(made: Group, *, raw: bool = False) -> list[dict[str, Any]]:
    batch = encoder("creek", "avro").encode(made)
    batch.validate(full=True)
    schemas = schemas_of(made)
    return [event(payload, schemas, raw=raw) for payload in batch["payload"].to_pylist()]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), st.sampled_from([b"", b"\x02"]))
def test_longs_are_zigzag_varints(numbers: list[int], lead: bytes) -> None:
    found = avro.longs(np.array(numbers, np.int64), lead=lead).to_pylist()
    for number, data in zip(numbers, found, strict=True):
        assert data[: len(lead)] == lead
        assert read("long", data[len(lead) :]) == number
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, "long", number)
        assert data[len(lead) :] == stream.getvalue()


INTEGERS = st.integers(-(1 << 31), (1 << 31) - 1).map(str)
FLOATS = st.floats().map(
    lambda value: "NaN" if math.isnan(value) else repr(value).replace("inf", "Infinity")
)
STRINGS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NUMERICS = st.one_of(
    st.sampled_from(["NaN", "Infinity", "-Infinity"]),
    st.decimals(-(10**16), 10**16, places=4).map(lambda value: f"{value:.4f}"),
)
DATES = st.one_of(
    st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "5874897-12-31", "10000-01-01"]),
    st.dates().map(str),
)
STAMPS = st.one_of(
    st.sampled_from(["infinity", "-infinity", "4713-01-01 00:00:00+00 BC",
                     "294276-12-31 23:59:59.999999+00", "12345-06-07 08:09:10.5+00"]),
    st.datetimes().map(lambda value: f"{value.isoformat(sep=' ')}+00"),
)  # fmt: skip
KINDS: dict[str, tuple[int, int, st.SearchStrategy[str]]] = {
    "int4": (23, -1, INTEGERS),
    "float8": (701, -1, FLOATS),
    "text": (25, -1, STRINGS),
    "numeric": (1700, (20 << 16 | 4) + 4, NUMERICS),
    "wide": (1700, (60 << 16 | 4) + 4, NUMERICS),
    "date": (1082, -1, DATES),
    "timestamptz": (1184, -1, STAMPS),
    "jsonb": (3802, -1, STRINGS.map(json.dumps)),
}


@st.composite
def columns_of_rows(draw: st.DrawFn) -> tuple[list[str], list[list[str | None]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    count = draw(st.integers(1, 20))
    cells = [
        draw(st.lists(st.none() | KINDS[kind][2], min_size=count, max_size=count)) for kind in kinds
    ]
    return kinds, cells


@given(columns_of_rows())
def test_any_row_is_decoded_unchanged(given_rows: tuple[list[str], list[list[str | None]]]) -> None:
    kinds, cells = given_rows
    relation = table(
        ID,
        *(
            Column(name=f"c{at}", type_oid=KINDS[kind][0], type_modifier=KINDS[kind][1])
            for at, kind in enumerate(kinds)
        ),
    )
    count = len(cells[0])
    texts: list[Sequence[object]] = [[str(at).encode() for at in range(count)]]
    texts += [[None if text is None else text.encode() for text in column] for column in cells]
    made = group(Op.INSERT, relation, count, after=image(*texts))
    found = events(made, raw=True)
    for row, each in enumerate(found):
        for at, kind in enumerate(kinds):
            _check(kind, each["after"][f"c{at}"], cells[at][row])
    rows = [creek.unpacked(payload) for payload in row_messages(made).to_pylist()]
    schema = reader_schema(creek.row(relation, {}).text, raw=True)
    assert repr([read(schema, body or b"") for body in rows]) == repr(
        [each["after"] for each in found]
    )


def _check(kind: str, value: Any, text: str | None) -> None:
    if text is None or value is None:
        assert value is None
        assert text is None
    elif kind == "float8":
        assert repr(value) == repr(float(text))
    elif isinstance(value, str):
        assert value == (creek.INFINITY[1] if text == "-infinity" else text)
        assert kind != "date" or "infinity" in text
    elif isinstance(value, bytes) and kind != "jsonb":
        number = f"{abs(int.from_bytes(value, 'big', signed=True)):05}"
        assert float(text) == 0 or text.lstrip("-") == f"{number[:-4]}.{number[-4:]}"
    elif kind == "jsonb":
        assert value == text.encode()
    elif kind == "date":
        assert value == avro.days(text.encode())
    elif kind == "timestamptz":
        assert value == avro.micros(text.encode())
    else:
        assert str(value) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", []),
        ("{1,2,-3}", [1, 2, -3]),
        ("{1,NULL}", "{1,NULL}"),
        ("{{1,2},{3,4}}", "{{1,2},{3,4}}"),
        ("[0:1]={1,2}", "[0:1]={1,2}"),
        (None, None),
    ],
)
def test_arrays_are_avro_arrays_or_text(text: str | None, expected: object) -> None:
    relation = table(ID, Column(name="v", type_oid=1007))
    texts = [None if text is None else text.encode(), b"{7}", b"{}"]
    made = group(Op.INSERT, relation, 3, after=image([b"1", b"2", b"3"], texts))
    assert [each["after"]["v"] for each in events(made)] == [expected, [7], []]


def test_the_fields_of_an_event() -> None:
    made = group(Op.INSERT, USERS, 1, after=image([b"1"], [b"Ann"]))
    (found,) = events(made, raw=True)
    sent_at, fingerprint = found.pop("sent_at"), found.pop("fingerprint")
    assert sent_at > COMMITTED_AT
    assert fingerprint == creek.event(USERS, {}).name
    assert found == {
        "source": {
            "name": "tailrace", "tx_at": COMMITTED_AT, "db": "shop", "schema": "public",
            "table": "users", "tx_id": 742, "last_lsn": "0/0", "lsn": "0/191BFD0",
        },
        "op": "c",
        "before": None,
        "after": {"id": 1, "name": "Ann"},
    }  # fmt: skip
    (batch,) = (
        encoder("creek", "avro", "CREEK.{database}.wal.{schema}.{table}").encode(made).to_pylist()
    )
    assert batch["destination"] == b"CREEK.shop.wal.public.users"


@pytest.mark.parametrize(
    ("op", "before", "after", "expected"),
    [
        (Op.UPDATE, None, ([b"1"], [b"B"]), ("u", {"id": 1}, {"id": 1, "name": "B"})),
        (Op.UPDATE, ([b"1"], None), ([b"2"], [b"B"]), ("u_pk", {"id": 1}, {"id": 2, "name": "B"})),
        (Op.DELETE, ([b"1"], None), None, ("d", {"id": 1}, None)),
        (Op.TRUNCATE, None, None, ("t", None, None)),
        (Op.READ, None, ([b"1"], [None]), ("r", None, {"id": 1, "name": None})),
    ],
)
def test_operations_and_images(op: Op, before: Any, after: Any, expected: tuple[Any, ...]) -> None:
    images = {
        "before": None if before is None else image(*before),
        "after": None if after is None else image(*after),
    }
    (found,) = events(group(op, USERS, 1, **images))
    assert (found["op"], found["before"], found["after"]) == expected


def test_replica_identity_full_sends_the_whole_old_row() -> None:
    columns = [Column(name=each.name, type_oid=each.type_oid, key=True) for each in (ID, NAME)]
    relation = table(*columns, replica_identity=ReplicaIdentity.FULL)
    made = group(
        Op.UPDATE, relation, 1, before=image([b"1"], [None]), after=image([b"1"], [b"B"])
    )  # fmt: skip
    (found,) = events(made)
    assert (found["op"], found["before"]) == ("u_pk", {"id": 1, "name": None})


def test_unchanged_values_are_listed_by_name() -> None:
    relation = table(ID, NAME, Column(name="large", type_oid=25))
    after = image([b"1", b"2", b"3"], [b"A", UNCHANGED, None], [b"x", UNCHANGED, UNCHANGED])
    found = events(group(Op.UPDATE, relation, 3, after=after))
    assert [each.get("unchanged") for each in found] == [None, ["name", "large"], ["large"]]
    assert [each["before"] for each in found] == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert found[0]["after"] == {"id": 1, "name": "A", "large": "x"}
    assert found[1]["after"] == {"id": 2, "name": None, "large": None}
    assert len({each["fingerprint"] for each in found}) == 2


def test_an_unchanged_large_key() -> None:
    relation = table(Column(name="k", type_oid=25, key=True), NAME)
    after = image([UNCHANGED, b"k"], [b"A", b"B"])
    found = events(group(Op.UPDATE, relation, 2, after=after))
    assert [each["before"] for each in found] == [None, {"k": "k"}]
    assert found[0]["unchanged"] == ["k"]


def test_last_lsn_is_the_previous_transaction() -> None:
    lsn = np.array([16, 16, 32, 48], np.uint64)
    made = group(Op.TRUNCATE, USERS, 4, lsn=lsn)
    found = [(each["source"]["last_lsn"], each["source"]["lsn"]) for each in events(made)]
    assert found == [("0/0", "0/10"), ("0/0", "0/10"), ("0/10", "0/20"), ("0/20", "0/30")]


def test_the_schema_of_the_documentations_example() -> None:
    """A table with a uuid and a text column, as in Creek's documentation."""
    relation = table(
        Column(name="id", type_oid=2950, key=True),
        Column(name="data", type_oid=25),
        name="integration_tests",
    )
    tree = json.loads(creek.event(relation, {}).text)
    key = {
        "name": "id", "type": {"type": "string", "logicalType": "uuid"},
        "pgKey": True, "pgType": "uuid",
    }  # fmt: skip
    data = {"name": "data", "type": ["null", "string"], "pgKey": False, "pgType": "text"}
    record = {"name": "integration_tests", "type": "record"}
    before = {**record, "namespace": "before", "fields": [key]}
    after = {**record, "namespace": "after", "fields": [key, data]}
    assert tree["fields"][4]["type"] == ["null", before]
    assert tree["fields"][5]["type"] == ["null", after]
    assert [each["name"] for each in tree["fields"]] == [
        "fingerprint", "source", "op", "sent_at", "before", "after",
    ]  # fmt: skip
    assert tree["fields"][2]["type"]["symbols"] == ["c", "u", "u_pk", "d", "t", "r"]


@pytest.mark.parametrize("name", ["users", "infinity_modifier", "source", "odd table", "int"])
@pytest.mark.parametrize("partial", [False, True])
def test_every_schema_is_valid_avro(name: str, partial: bool) -> None:
    """GIVEN a table with a date in its key and in other columns, whose type is defined only once
    WHEN fastavro parses its schemas as they are published
    THEN no name is defined twice, and every name is in the namespace of its record."""
    relation = table(
        Column(name="day", type_oid=1082, key=True), Column(name="at", type_oid=1184),
        Column(name="days", type_oid=1182), name=name,
    )  # fmt: skip
    text = creek.event(relation, {}, partial=partial).text
    names: dict[str, Any] = {}
    fastavro.parse_schema(json.loads(text), named_schemas=names)
    assert "publish_message" in names
    records = {each for each in names if each.startswith(("before.", "after."))}
    assert len(names) == len(records) + 3
    assert {"before.infinity_modifier", "after.infinity_modifier"} < records
    fastavro.parse_schema(json.loads(creek.row(relation, {}).text))


def test_fingerprints_are_those_of_creeks_avro_library() -> None:
    """The values are of hamba/avro 2.15.1 and 2.28.0, which refer to a defined type by its name."""
    relation = table(
        Column(name="day", type_oid=1082, key=True), Column(name="at", type_oid=1184), name="days"
    )
    tree = json.loads(creek.event(relation, {}).text)
    text = creek.canonical(tree)
    enum = (
        '{"name":"%s.infinity_modifier","type":"enum","symbols":["infinity",'
        '"negative_infinity_ca5991f51367e3e4"]}'
    )
    assert '{"name":"before.days","type":"record"' in text
    assert '{"name":"after.days","type":"record"' in text
    assert text.count(enum % "before") == text.count(enum % "after") == 1
    assert text.count('"after.infinity_modifier"') == 2


def test_the_form_of_creeks_first_release() -> None:
    """Encoding avro-plain: no namespaces, and other fingerprints."""
    relation = table(
        Column(name="day", type_oid=1082, key=True), Column(name="at", type_oid=1184), name="days"
    )
    plain, namespaced = (creek.event(relation, {}, namespaced=each) for each in (False, True))
    tree = json.loads(plain.text)
    assert [tree["fields"][at]["type"][1]["name"] for at in (4, 5)] == ["days", "days"]
    assert "namespace" not in plain.text
    assert plain.fingerprint != namespaced.fingerprint
    # The fingerprint of hamba/avro 2.14.0, which expands references to a defined type.
    assert creek.canonical(creek._expanded(tree)).count('"symbols"') == 4
    made = group(Op.INSERT, relation, 1, after=image([b"2026-01-02"], [b"infinity"]))
    (payload,) = encoder("creek", "avro-plain").encode(made)["payload"].to_pylist()
    assert payload[6:16] == creek.MARK + plain.fingerprint
    (other,) = encoder("creek", "avro").encode(made)["payload"].to_pylist()
    assert other[6:16] == creek.MARK + namespaced.fingerprint


def test_unsupported_types_are_text_with_their_own_pg_type() -> None:
    types = {90000: TypeName(oid=90000, namespace="public", name="mood")}
    relation = table(
        ID, Column(name="a", type_oid=869), Column(name="b", type_oid=90000),
        Column(name="c", type_oid=1041), Column(name="d", type_oid=1700),
    )  # fmt: skip
    tree = json.loads(creek.row(relation, types).text)
    assert [(each["type"], each["pgType"]) for each in tree["fields"][1:]] == [
        (["null", "string"], name) for name in ("inet", "mood", "_inet", "numeric")
    ]


def test_names_that_are_invalid_in_avro() -> None:
    relation = table(
        Column(name="1st col", type_oid=25), Column(name="_x20_", type_oid=25),
        Column(name=" ", type_oid=25), name="odd table",
    )  # fmt: skip
    made = group(Op.INSERT, relation, 1, after=image([b"a"], [b"b"], [b"c"]))
    (found,) = events(made)
    assert list(found["after"].values()) == ["a", "b", "c"]
    tree = json.loads(creek.row(relation, {}).text)
    assert [each.get("pgName", each["name"]) for each in tree["fields"]] == [
        "1st col",
        "_x20_",
        " ",
    ]


def test_no_row_equals_the_end_of_a_snapshot() -> None:
    keys = [Column(name=name, type_oid=23, key=True) for name in "abc"]
    made = group(Op.READ, table(*keys), 1, after=image([b"-35"], [b"-40"], [b"35"]))
    (payload,) = row_messages(made).to_pylist()
    content = creek.unpacked(payload)
    assert content is not None
    assert content != creek.END
    schema = reader_schema(creek.row(table(*keys), {}).text)
    assert read(schema, content) == {"a": -35, "b": -40, "c": 35}


def test_packets_are_parsed() -> None:
    assert creek.unpacked(creek.packet(b"abc")) == b"abc"
    assert creek.unpacked(b"") is None
    assert creek.unpacked(creek.packet(b"abc")[:-1]) is None


def test_logical_messages_are_refused() -> None:
    made = group(Op.MESSAGE, None, 1, prefixes=pa.array(["a"]), contents=pa.array([b"b"]))
    with pytest.raises(ConfigError):
        encoder("creek", "avro").encode(made)


def test_each_version_of_a_table_has_one_schema() -> None:
    wider = Relation(
        oid=1, namespace="public", name="users", columns=(ID, NAME, Column(name="x", type_oid=23)),
        replica_identity=ReplicaIdentity.DEFAULT,
    )  # fmt: skip
    names = {
        creek.event(each, {}, partial=some).name
        for each in (USERS, wider)
        for some in (False, True)
    }
    assert len(names) == 4

"""Compiled expressions in Spark: values, and states of values."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tailrace.errors import ConfigError, ExpressionError, PoisonedError
from tailrace.pipeline.expressions.analysis import (
    SETTINGS,
    analyse,
    raised_error,
    require_settings,
)
from tailrace.pipeline.expressions.compile import combine, compile  # noqa: A004
from tailrace.pipeline.failures import translate_error
from tailrace.schema import ReplicaIdentity
from tests.unit.pipeline.expressions.cells import (
    FINGERPRINT,
    NAMES,
    ROW,
    TABLE,
    cells,
    expressions,
    frame_of,
    image,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Evaluate = Callable[[list[str], tuple[Any, ...]], list[Any]]

FULL_ROW: list[str | None] = [ROW[name] for name in NAMES]
KEY = image(id="7")
OTHER = replace(TABLE, columns=(*TABLE.columns[:-1], replace(TABLE.columns[-1], name="other")))
"""With `op` as a field of the change alone."""
LARGE = ("name", "price", "total", "photo", "doc", "op")
NOT_KEY = tuple(NAMES[1:])


def test_values_have_the_types_of_their_columns(evaluate: Evaluate) -> None:
    row = cells(after=FULL_ROW)
    expected: dict[str, Any] = {
        "id": 7,
        "name": "it's",
        "price": Decimal("1.5"),
        "total": Decimal("20.25"),
        "paid": True,
        "created": dt.datetime(2025, 12, 12, 12, 0, 34, 338547),
        "local": dt.datetime(2025, 1, 1, 0, 0, 0, 500000),
        "day": dt.date(2024, 2, 29),
        "photo": b"\xde\xad",
        "ratio > 1e300": True,
        "row.op": "column",
        "after.op": "column",
        "change.op": "insert",
        "_id": "00000000000000ff-3",
        "lsn + ordinal + xid": 267,
        "schema || '.' || table": "public.orders",
        "annotations:user_id::int": 5,
        "doc:a.b[1]": "x",
        "doc:`odd key`": "true",
        "text(price)": "1.50",
        "text(created)": ROW["created"],
        "text(ratio)": "NaN",
        "hour(created)": 12,
        "date_format(committed_at, 'yyyy-MM-dd')": "2024-01-02",
        "day + INTERVAL 1 DAY": dt.date(2024, 3, 1),
        "name LIKE 'it_s'": True,
        "price IS DISTINCT FROM 1.5": False,
    }
    assert evaluate(list(expected), row) == list(expected.values())


def test_nulls_stay_null(evaluate: Evaluate) -> None:
    names = [f"row.{name}" for name in NAMES]
    assert evaluate(names, cells(after=image())) == [None] * len(NAMES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("created", "infinity"),
        ("created", "-infinity"),
        ("created", "0044-03-15 12:00:00+00 BC"),
        ("local", "infinity"),
        ("local", "0044-03-15 12:00:00 BC"),
        ("day", "infinity"),
        ("day", "0044-03-15 BC"),
        ("price", "NaN"),
        ("price", "Infinity"),
        ("price", "0.000000000000000000001"),
        ("price", "1" + "0" * 18),
        ("total", "NaN"),
    ],
)
def test_a_value_that_spark_cannot_represent_stops_the_query(
    evaluate: Evaluate, name: str, text: str
) -> None:
    row = cells(after=image(**{name: text}))
    with pytest.raises(PySparkException) as caught:
        evaluate([f"{name} IS NULL"], row)
    error = raised_error(str(caught.value))
    assert isinstance(error, PoisonedError)
    assert f"public.orders.{name} has a value that" in str(error)
    assert "00000000000000ff-3" in str(error)
    assert evaluate([f"text({name})"], row) == [text]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("price", "0.00000000000000000001"),
        ("price", "0.1" + "0" * 30),
        ("price", "-" + "9" * 18 + "." + "9" * 20),
        ("day", "9999-12-31"),
        ("created", "0001-01-01 00:00:00+00"),
        ("ratio", "-Infinity"),
    ],
)
def test_values_at_the_limits_are_read(evaluate: Evaluate, name: str, text: str) -> None:
    assert evaluate([f"{name} IS NOT NULL"], cells(after=image(**{name: text}))) == [True]


def test_years_of_five_digits_are_read(evaluate: Evaluate) -> None:
    row = cells(
        after=image(
            created="12025-01-02 03:04:05+00", local="12025-01-02 03:04:05", day="12025-01-02"
        )
    )
    assert evaluate(["year(created)", "year(local)", "year(day)"], row) == [12025] * 3


def test_before_and_after_read_old_and_new_rows(evaluate: Evaluate) -> None:
    asked = ["id", "after.id", "before.id", "before.name"]
    old = image(id="6", name="old")
    assert evaluate(asked, cells("insert", after=KEY)) == [7, 7, None, None]
    assert evaluate(asked, cells("update", after=KEY, before=old)) == [7, 7, 6, "old"]
    assert evaluate(asked, cells("delete", before=old)) == [6, None, 6, "old"]
    assert evaluate(asked, cells("truncate")) == [None] * 4
    key_only = cells("update", after=KEY)
    assert evaluate(["before.id", "is_absent(before.name)"], key_only) == [7, True]


def test_a_value_that_postgresql_did_not_send_is_never_null(evaluate: Evaluate) -> None:
    update = cells("update", after=KEY, unchanged=LARGE)
    delete = cells("delete", before=KEY, absent=NOT_KEY)
    for row, text, word in [
        (update, "name IS NULL", "is unchanged"),
        (update, "after.name IS NULL", "is unchanged"),
        (update, "doc:a IS NULL", "is unchanged"),
        (update, "before.name IS NULL", "not part of the old key"),
        (delete, "name IS NULL", "not part of the old key"),
        (delete, "before.created IS NULL", "not part of the old key"),
        (delete, "text(paid) IS NULL", "not part of the old key"),
    ]:
        with pytest.raises(PySparkException) as caught:
            evaluate([text], row)
        assert word in str(raised_error(str(caught.value)))
    assert evaluate(["id", "before.id", "is_known(name)", "is_absent(name)"], delete) == [
        *(7, 7, False, True)
    ]
    assert evaluate(["after.name IS NULL"], delete) == [True]
    assert evaluate(["is_unchanged(name)", "is_known(id)", "is_unchanged(created)"], update) == [
        *(True, True, False)
    ]


def test_an_unchanged_value_is_read_from_a_full_old_row(evaluate: Evaluate) -> None:
    row = cells("update", after=KEY, before=FULL_ROW, unchanged=LARGE)
    asked = ["name", "after.name", "is_unchanged(name)", "is_known(after.name)", "total"]
    assert evaluate(asked, row) == ["it's", "it's", False, True, Decimal("20.25")]


GUARDED = [
    "is_known(name) AND (name > 'a' OR name < 'b' OR length(name) > 3)",
    "NOT is_unchanged(name) AND NOT is_absent(name) AND name > 'a' AND name < 'z'",
    "CASE WHEN is_known(name) THEN name > 'a' AND name <> 'b' ELSE FALSE END",
    "if(is_known(name), name > 'a' OR name < 'b', FALSE)",
    "change.op = 'insert' AND (name > 'a' OR name < 'b' OR name = 'c')",
]


@pytest.mark.parametrize("text", GUARDED)
def test_guards_work_in_filters_and_in_columns(spark: SparkSession, text: str) -> None:
    rows = [
        cells("update", after=KEY, unchanged=LARGE),
        cells("delete", before=KEY, absent=NOT_KEY),
        cells(after=FULL_ROW),
    ]
    made = compile(expressions(where=text), TABLE, {}).where
    assert made is not None
    frame = frame_of(spark, rows)
    for where in (made, combine({FINGERPRINT: made}), combine({FINGERPRINT: made, 1: "FALSE"})):
        assert [row.op for row in frame.filter(where).collect()] == ["insert"]
        found = frame.selectExpr(f"{where} AS a", f"NOT ({where}) AS b").collect()
        assert [(row.a, row.b) for row in found] == [(False, True), (False, True), (True, False)]


SELECT = (
    "id",
    "name AS label",
    "upper(name) AS shout",
    "concat(id, name) AS both",
    "price * 2 AS twice",
    "NOT paid AS unpaid",
    "created + INTERVAL 1 DAY AS later",
    "local",
    "date_add(day, 1) AS next",
    "unhex('0AFF') AS bytes",
    "ratio",
    "id % 2 = 1 AS odd",
    "change.op AS what",
    "NULL AS nothing",
    "cast(id AS int) AS small",
    "cast(id AS double) / 2 AS half",
)


def selected(spark: SparkSession, select: tuple[str, ...], *rows: tuple[Any, ...]) -> list[Any]:
    made = expressions(select=select)
    compiled = analyse(spark, made, compile(made, TABLE, {}))
    images = [
        f"{combine({FINGERPRINT: text})} AS {name}" for name, text in compiled.images().items()
    ]
    return frame_of(spark, list(rows)).selectExpr(*images).collect()


def test_select_returns_postgresqls_text(spark: SparkSession) -> None:
    made = expressions(select=SELECT)
    relation = analyse(spark, made, compile(made, TABLE, {})).selected
    assert relation is not None
    assert [(entry.name, entry.type_oid) for entry in relation.columns] == [
        *(("id", 20), ("label", 25), ("shout", 25), ("both", 25), ("twice", 1700), ("unpaid", 16)),
        *(("later", 1184), ("local", 1114), ("next", 1082), ("bytes", 17), ("ratio", 701)),
        *(("odd", 16), ("what", 25), ("nothing", 25), ("small", 23), ("half", 701)),
    ]
    assert relation.columns[0].key
    (row,) = selected(spark, SELECT, cells(after=FULL_ROW))
    assert row.before is None
    assert [row.unchanged, row.absent] == [[], []]
    twice = row.after.pop(4)
    assert Decimal(twice) == 3
    assert "E" not in twice
    assert row.after == [
        *("7", "it's", "IT'S", "7it's", "f", "2025-12-13 12:00:34.338547+00"),
        *("2025-01-01 00:00:00.5", "2024-03-01", "\\x0aff", "NaN", "t", "insert", None, "7", "3.5"),
    ]


def test_structs_maps_and_arrays_are_json(spark: SparkSession) -> None:
    """GIVEN nested values in `select` THEN columns of JSON have every field and every digit."""
    select = (
        "struct(id, name AS `the name`, struct(total, paid) AS more, NULL AS none) AS nested",
        "map('created', created, 'none', NULL) AS times",
        "struct(local, day, photo, ratio) AS others",
        "split(name, 't') AS parts",
        "to_json(struct(id)) AS text",
    )
    made = expressions(select=select)
    relation = analyse(spark, made, compile(made, TABLE, {})).selected
    assert relation is not None
    assert [entry.type_oid for entry in relation.columns] == [114, 114, 114, 114, 25]
    (row,) = selected(spark, select, cells(after=FULL_ROW))
    assert row.before is None
    assert row.after == [
        '{"id":7,"the name":"it\'s","more":{"total":20.25,"paid":true},"none":null}',
        '{"created":"2025-12-12T12:00:34.338547Z","none":null}',
        '{"local":"2025-01-01T00:00:00.500000","day":"2024-02-29","photo":"3q0=","ratio":"NaN"}',
        '["i","\'s"]',
        '{"id":7}',
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("struct(id, op AS what)", b'{"id":7,"what":"insert"}'),
        ("map('id', id)", b'{"id":7}'),
        ("concat(name, ' \u00e4')", "it's ä".encode()),
        ("photo", b"\xde\xad"),
        ("id + 1", b"8"),
        ("created", b"2025-12-12 12:00:34.338547+00"),
        ("doc", ROW["doc"].encode()),
        ("CASE WHEN id = 1 THEN name END", None),
    ],
)
def test_a_payload_is_the_bytes_of_its_expression(
    spark: SparkSession, expression: str, expected: bytes | None
) -> None:
    made = expressions(payload=expression)
    compiled = analyse(spark, made, compile(made, OTHER, {})).payload
    (found,) = (
        frame_of(spark, [cells(after=FULL_ROW)])
        .selectExpr(f"{combine({FINGERPRINT: compiled or ''})} AS payload")
        .collect()
    )
    assert (None if found.payload is None else bytes(found.payload)) == expected


def test_headers_are_texts_without_control_characters_and_without_nulls(
    spark: SparkSession,
) -> None:
    made = expressions(headers={"Id": "id", "Name": "name", "Op": "change.op", "Paid": "paid"})
    compiled = compile(made, TABLE, {})
    message = compile(made, None, {})
    rows = [
        cells(after=image(id="7", name=" a\r\nEvil: b\0\tc\x7f ")),
        cells("message", relation=None),
    ]
    text = combine({FINGERPRINT: compiled.headers or ""}, message=message.headers)
    found = frame_of(spark, rows).selectExpr(f"{text} AS headers").collect()
    assert [row.headers for row in found] == [
        {"Id": "7", "Name": "a  Evil: b  c", "Op": "insert"},
        {"Op": "message"},
    ]


def test_a_group_is_that_of_the_new_and_of_the_old_row(spark: SparkSession) -> None:
    """GIVEN a table with its whole old rows THEN an update names both groups, and what has no row
    has none, whatever the expression returns without one."""
    columns = tuple(replace(each, key=True) for each in TABLE.columns)
    full = replace(TABLE, replica_identity=ReplicaIdentity.FULL, columns=columns)
    made = expressions(group="coalesce(name, 'none')")
    text = compile(made, full, {}).group
    before = image(id="7", name="a")
    rows = [
        cells(after=image(id="7", name="a")),
        cells("update", before=before, after=image(id="7", name="b")),
        cells("update", before=before, after=image(id="7"), unchanged=("name",)),
        cells("update", after=image(id="7", name="c")),
        cells("delete", before=image(id="7")),
        cells("truncate"),
        cells("message", relation=None),
    ]
    combined = combine({FINGERPRINT: text or ""}, message=compile(made, None, {}).group)
    found = frame_of(spark, rows).selectExpr(f"{combined} AS g").collect()
    assert [
        None if row.g is None else (bytes(row.g.own), bytes(row.g.former)) for row in found
    ] == [
        *((b"a", b"a"), (b"b", b"a"), (b"a", b"a"), (b"c", b"c"), (b"none", b"none")),
        *(None, None),
    ]


def test_select_keeps_the_states_of_values(spark: SparkSession) -> None:
    select = ("name", "id", "upper(name) AS shout", "id + 1 AS next", "paid AS p", "9 AS nine")
    update, delete, moved, gone = selected(
        spark,
        select,
        cells("update", after=KEY, unchanged=LARGE),
        cells("delete", before=KEY, absent=NOT_KEY),
        cells("update", after=FULL_ROW, before=KEY, absent=NOT_KEY),
        cells("truncate"),
    )
    assert update.after == [None, "7", None, "8", None, "9"]
    assert update.unchanged == [0, 2]
    assert delete.after is None
    assert delete.before == [None, "7", None, "8", None, "9"]
    assert delete.absent == [0, 2, 4]
    assert moved.before == [None, "7", None, "8", None, "9"]
    assert moved.after == ["it's", "7", "IT'S", "8", "t", "9"]
    assert [moved.unchanged, moved.absent] == [[], [0, 2, 4]]
    assert [gone.before, gone.after, gone.unchanged, gone.absent] == [None, None, [], []]


def test_a_column_from_known_and_unknown_values_stops_the_query(spark: SparkSession) -> None:
    row = cells("update", after=KEY, unchanged=LARGE)
    with pytest.raises(PySparkException, match="is unchanged"):
        selected(spark, ("concat(id, name) AS both",), row)
    guarded = "CASE WHEN is_known(name) THEN concat(id, name) ELSE 'kept' END AS both"
    assert selected(spark, (guarded,), row)[0].after == ["kept"]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "Europe/Berlin"])
def test_timestamps_are_written_in_utc_in_any_time_zone(spark: SparkSession, zone: str) -> None:
    made = expressions(select=("coalesce(created, created) AS c",))
    text = analyse(spark, made, compile(made, TABLE, {})).images()["after"]
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    moments = ["2024-03-31 01:30:00+00", "2024-03-10 07:30:00.25+00", "1883-11-18 17:00:00+00"]
    rows = [cells(after=image(created=moment)) for moment in moments]
    frame = frame_of(session, rows).selectExpr(f"{text} AS after")
    assert [row.after for row in frame.collect()] == [[moment] for moment in moments]


def test_route_and_key_are_text(spark: SparkSession) -> None:
    made = compile(expressions(route="concat('cdc.', table)", key="id"), TABLE, {})
    frame = frame_of(spark, [cells(after=FULL_ROW)])
    (row,) = frame.selectExpr(f"{made.route} AS route", f"{made.key} AS key").collect()
    assert (row.route, row.key) == ("cdc.orders", "7")


def test_an_unknown_version_stops_the_query(spark: SparkSession) -> None:
    text = combine({FINGERPRINT: "TRUE"}, message="op = 'message'")
    message = cells("message", relation=None)
    frame = frame_of(spark, [message, cells(after=FULL_ROW)])
    assert frame.filter(text).count() == 2
    strange = frame_of(spark, [cells(after=FULL_ROW, relation=1)])
    with pytest.raises(PySparkException, match="does not know this version"):
        strange.filter(text).count()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"where": "id + 1"}, "must be a condition, got a value of type bigint"),
        ({"where": "name + paid > 1"}, "Spark refuses it for public.orders: .*name"),
        ({"where": "id = DATE '2024-01-01'"}, "Spark refuses it for public.orders"),
        ({"where": "id <> 'nothing'"}, "Spark refuses it for public.orders: .*'nothing'"),
        ({"where": "change.op = 'x' AND total IN ('1', 'a lot')"}, "'a lot'"),
        ({"where": "day > '2024-13-01'"}, "'2024-13-01'"),
        ({"route": "concat('x', id + 'y')"}, "'y'"),
        ({"select": ("id", "id > 1 / 0 AS large")}, "[Dd]ivision by zero"),
        ({"payload": "created - created"}, "which messages do not support"),
        ({"select": ("created - created AS gap",)}, "which messages do not support"),
    ],
)
def test_sparks_errors_use_the_users_names(
    spark: SparkSession, settings: dict[str, Any], reason: str
) -> None:
    made = expressions(**settings)
    with pytest.raises(ExpressionError, match=reason) as caught:
        analyse(spark, made, compile(made, TABLE, {}))
    assert "get(after" not in str(caught.value)


def test_a_number_may_be_compared_with_a_text_that_is_a_number(spark: SparkSession) -> None:
    made = expressions(where="id = '7' AND total > '1.5' AND day > '2024-01-01'")
    assert analyse(spark, made, compile(made, TABLE, {})).where


def test_a_session_with_other_settings_is_refused(spark: SparkSession) -> None:
    require_settings(spark)
    for name in SETTINGS:
        session = spark.newSession()
        for each, value in SETTINGS.items():
            session.conf.set(each, value)
        session.conf.set(name, {"spark.sql.session.timeZone": "Asia/Tokyo"}.get(name, "false"))
        with pytest.raises(ConfigError, match=name):
            require_settings(session)


@pytest.mark.parametrize(
    "word",
    [
        *("now", "today", " Tomorrow ", "yesterday UTC", "epoch", "now\n", "\x01\ttoday\x00"),
        *("NOW'", "today\\", "tomorrow+01:00", "yesterday$"),
    ],
)
def test_words_such_as_now_are_plain_text(evaluate: Evaluate, word: str) -> None:
    row = cells(after=FULL_ROW)
    text = written(word, "escaped")
    assert evaluate([text], row) == [word]
    assert evaluate([f"try_cast({text} AS timestamp)", f"try_cast({text} AS date)"], row) == [
        *(None, None)
    ]


def test_a_column_of_a_message_is_a_null_of_any_type_and_no_constant(spark: SparkSession) -> None:
    """GIVEN a logical message, which has no columns WHEN expressions read columns THEN they are
    NULL, fit every operator, and do not complete a word that Spark replaces with the clock."""
    texts = [
        *("name", "paid AND id > 1", "total + 1", "day + INTERVAL 1 DAY", "length(name)"),
        "try_cast(concat_ws('', 'no', 'w', name) AS date)",
        "CASE WHEN paid THEN id ELSE total END",
        "if(paid, id, total)",
        "CASE name WHEN 'x' THEN id END",
    ]
    made = [compile(expressions(key=text), None, {}).key for text in texts]
    frame = frame_of(spark, [cells("message", relation=None)])
    (row,) = frame.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(made))).collect()
    assert list(row) == [None] * len(texts)
    where = compile(expressions(where="paid"), None, {}).where
    assert where is not None
    assert frame.where(combine({FINGERPRINT: "TRUE"}, message=where)).count() == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("cast(name AS bigint) = 1", "CAST_INVALID_INPUT"),
        ("id = name", "CAST_INVALID_INPUT"),
        ("cast(name AS date) > day", "CAST_INVALID_INPUT"),
        ("to_date(name, 'yyyy') > day", "CANNOT_PARSE_TIMESTAMP"),
        ("id + 9223372036854775807 > 1", "ARITHMETIC_OVERFLOW"),
        ("1 / (id - 7) > 1", "DIVIDE_BY_ZERO"),
        ("id % (id - 7) > 1", "REMAINDER_BY_ZERO"),
        ("cast(id * 100000 AS smallint) = 1", "CAST_OVERFLOW"),
        ("make_date(id, 13, 1) = day", "DATETIME_FIELD_OUT_OF_BOUNDS"),
        ("element_at(array(1), cast(id AS int)) = 1", "INVALID_ARRAY_INDEX_IN_ELEMENT_AT"),
        ("to_number(name, '999') = 1", "INVALID_FORMAT"),
        ("from_utc_timestamp(created, name) = created", "INVALID_TIMEZONE"),
        ("timestamp_seconds(id * 1000000000000000000) = created", "overflow"),
        ("format_string('%d', name) = 'x'", "IllegalFormatConversionException"),
    ],
)
def test_a_row_that_an_expression_cannot_compute_is_an_error_of_the_expression(
    evaluate: Evaluate, text: str, word: str
) -> None:
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        evaluate([text], cells(after=FULL_ROW))
    error = translate_error(caught.value)
    assert isinstance(error, ExpressionError), str(caught.value)
    assert not error.transient
    assert word in str(error)
    assert "try_cast" in error.hint

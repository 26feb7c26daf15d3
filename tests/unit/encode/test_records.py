"""Rows of `kafka.messages` as records: the same values as in PostgreSQL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tailrace.change import Op
from tailrace.encode.records import RECORDS, Records
from tailrace.errors import SchemaChangedError
from tailrace.schema import Column
from tests.unit.encode.groups import group, image, table

_OIDS = {
    "topic_id": 23, "partition_id": 23, "offset": 20, "timestamp": 1184, "key": 17, "value": 17,
    "headers": 3802,
}  # fmt: skip
_TABLE = table(
    *(
        Column(name=name, type_oid=oid, type_modifier=-1, key=number < 3)
        for number, (name, oid) in enumerate(_OIDS.items())
    ),
    namespace="kafka",
    name="messages",
)
_AFTER = image(
    [b"7", b"7"],
    [b"0", b"3"],
    [b"41", b"9000000000"],
    [b"2023-11-14 22:13:20.123+00", b"1970-01-01 00:00:00.001+00"],
    [b"\\x00ff", None],
    [None, b"\\x"],
    [b'[["a", "1"]]', None],
)


def test_a_record_has_the_columns_of_the_table() -> None:
    made = Records().encode(group(Op.INSERT, _TABLE, 2, after=_AFTER))
    assert made.schema == RECORDS
    rows = [tuple(row[name] for name in RECORDS.names[:7]) for row in made.to_pylist()]
    assert rows == [
        (7, 0, 41, 1_700_000_000_123, b"\0\xff", None, '[["a", "1"]]'),
        (7, 3, 9_000_000_000, 1, None, b"", None),
    ]


@pytest.mark.parametrize("op", [Op.UPDATE, Op.DELETE, Op.TRUNCATE])
def test_only_new_rows_are_records(op: Op) -> None:
    given = group(op, _TABLE, 2, before=_AFTER, after=_AFTER if op is Op.UPDATE else None)
    assert Records().encode(given).num_rows == 0


def test_a_logical_message_has_no_topic() -> None:
    given = group(
        Op.MESSAGE,
        None,
        1,
        prefixes=pa.array(["tailrace.shadow"]),
        contents=pa.array([b"[[7, 0, 42]]"]),
        ordinal=np.array([5], np.uint64),
    )
    (row,) = Records().encode(given).to_pylist()
    assert (row["topic"], row["value"], row["ordinal"]) == (None, b"[[7, 0, 42]]", 5)


def test_a_table_without_these_columns_is_refused() -> None:
    other = table(Column(name="topic_id", type_oid=23, type_modifier=-1, key=True))
    with pytest.raises(SchemaChangedError, match="no column partition_id"):
        Records().encode(group(Op.INSERT, other, 1, after=image([b"1"])))

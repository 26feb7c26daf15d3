"""Requests and operations, built from columns."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.redis import resp
from tailrace.sinks.redis.account import hash_tag
from tailrace.sinks.redis.operations import operations_of
from tests.unit.sinks.rows import payload, rows, with_column

VALUES = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=5)), min_size=1, max_size=9)


def plain(values: list[bytes]) -> bytes:
    return b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)


@given(VALUES, st.integers(0, 8))
def test_columns_become_bulk_strings_row_by_row(
    values: list[tuple[bytes, bytes]], start: int
) -> None:
    one, other = (
        pa.array([value[at] for value in values], pa.binary()).slice(start) for at in (0, 1)
    )
    made = resp.column_bulks(one, b"x", other)
    expected = [each for pair in values[start:] for each in (pair[0], b"x", pair[1])]
    assert made.values == len(expected)
    assert bytes(made.data) == plain(expected)


def test_a_request() -> None:
    parts = resp.request(resp.bulks([b"DEL"]), resp.bulks([]), resp.bulks([b"a", b""]))
    assert b"".join(parts) == b"*3\r\n$3\r\nDEL\r\n$1\r\na\r\n$0\r\n\r\n"


def test_an_old_key_is_deleted_before_its_new_one_is_set() -> None:
    batch = rows(range(4), destination=b"t")
    batch = with_column(batch, "key", [b"1", b"2", b"3", b"1"])
    batch = with_column(batch, "former", [None, b"1", b"2", None])
    batch = with_column(batch, "destination", [b"t", b"t", b"t", b"DEL t"])
    found = operations_of(batch)
    assert found.keys.to_pylist() == [b"t:1", b"t:1", b"t:2", b"t:2", b"t:3", b"t:1"]
    assert found.plan == b"sdsdsd"
    values = [payload(0), b"", payload(1), b"", payload(2), b""]
    assert found.values.to_pylist() == values
    sets = plain([b"SET", b"t:1", payload(0), b"PX", b"1500"])
    assert found.commands(expire_ms=1500)[0].as_py() == b"*5\r\n" + sets
    assert found.commands(expire_ms=0)[1].as_py() == b"*2\r\n" + plain([b"DEL", b"t:1"])


def test_slices_of_operations() -> None:
    batch = with_column(rows(range(9), destination=b"t"), "key", [b"%d" % n for n in range(9)])
    batch = with_column(batch, "former", [b"x%d" % n if n % 2 else None for n in range(9)])
    found = operations_of(batch.slice(3, 3))
    assert found.keys.to_pylist() == [b"t:x3", b"t:3", b"t:4", b"t:x5", b"t:5"]
    assert found.plan == b"dssds"


def test_hash_tags() -> None:
    found = [
        hash_tag(key) for key in (b"a", b"{a}b", b"{}a", b"a{b", b"a}b{c}", b"a}b", b"{}}", b"")
    ]
    assert found == [b"a", b"a", None, b"a{b", b"c", None, None, None]

"""The encoder: columns of messages, ids, keys, destinations, and errors."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import UNCHANGED, Op
from tailrace.decode.hashes import hash_of_table
from tailrace.errors import PoisonedError
from tailrace.message import MESSAGES
from tailrace.position import Lsn, Position
from tailrace.schema import Column, ReplicaIdentity, TypeName
from tests.unit.encode.groups import (
    decoded,
    encoder,
    group,
    image,
    messages,
    table,
)

if TYPE_CHECKING:
    from tailrace.decode.group import Group
    from tailrace.encode.shapes.shape_type import Encoding

SHAPES: tuple[str, ...] = ("bridge", "debezium", "sequin", "plain")
both = pytest.mark.parametrize("encoding", ["json", "msgpack"])
every_shape = pytest.mark.parametrize("shape", SHAPES)
ITEMS = table(Column(name="id", type_oid=20, key=True), Column(name="v", type_oid=25), name="items")
NUMBERS = st.integers(0, (1 << 64) - 1)


def items(count: int, **more: Any) -> Group:
    after = image([b"%d" % row for row in range(count)], [b"v"] * count)
    return group(Op.INSERT, ITEMS, count, after=after, **more)


@both
@every_shape
def test_the_result_has_the_schema_of_messages(encoding: Encoding, shape: str) -> None:
    made = items(3)
    batch = encoder(shape, encoding).encode(made)
    batch.validate(full=True)
    assert batch.schema == MESSAGES
    assert batch["destination"].to_pylist() == [b"cdc.items.insert"] * 3
    assert batch["key"].to_pylist() == [b"0", b"1", b"2"]
    assert batch["lsn"].to_pylist() == made.lsn.tolist()
    assert batch["ordinal"].to_pylist() == [0, 1, 2]
    assert batch["committed_at"].to_pylist() == made.committed_at.tolist()
    assert batch["scope"].to_pylist() == [int(hash_of_table(ITEMS))] * 3
    assert batch["former"].null_count == 3


def test_an_update_that_changes_its_key_names_the_old_one() -> None:
    after = image([b"8", b"9"], [b"v", b"v"])
    made = group(Op.UPDATE, ITEMS, 2, before=image([b"7", b"6"], None), after=after)
    batch = encoder("bridge", "json").encode(made)
    assert batch["key"].to_pylist() == [b"8", b"9"]
    assert batch["former"].to_pylist() == [b"7", b"6"]
    chosen = encoder("bridge", "json").encode(made, key=pa.array([b"a", b"a"], pa.binary()))
    assert chosen["former"].null_count == 2


def test_a_delete_and_a_row_under_identity_full_have_no_former_key() -> None:
    deleted = group(Op.DELETE, ITEMS, 1, before=image([b"7"], None))
    assert encoder("bridge", "json").encode(deleted)["former"].to_pylist() == [None]
    full = replace(ITEMS, replica_identity=ReplicaIdentity.FULL)
    row = image([b"7"], [b"v"])
    updated = encoder("bridge", "json").encode(
        group(Op.UPDATE, full, 1, before=row, after=image([b"8"], [b"v"]))
    )
    assert (updated["key"].to_pylist(), updated["former"].to_pylist()) == ([None], [None])


def test_logical_messages_have_the_scope_of_their_prefix() -> None:
    prefixes = pa.array(["a", "b", "a"])
    contents = pa.array([b"1", b"2", b"3"], pa.binary())
    made = group(Op.MESSAGE, None, 3, prefixes=prefixes, contents=contents)
    one, two, three = encoder("bridge", "json").encode(made)["scope"].to_pylist()
    assert one == three != two


@both
@every_shape
def test_an_empty_group_gives_no_messages(encoding: Encoding, shape: str) -> None:
    batch = encoder(shape, encoding).encode(items(0))
    assert (batch.num_rows, batch.schema) == (0, MESSAGES)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_an_id_is_the_event_id_of_the_position(positions: list[tuple[int, int]]) -> None:
    made = items(
        len(positions),
        lsn=np.array([lsn for lsn, _ in positions], np.uint64),
        ordinal=np.array([ordinal for _, ordinal in positions], np.uint64),
    )
    batch = encoder("plain", "json").encode(made)
    expected = [Position(Lsn(lsn), ordinal).event_id.encode() for lsn, ordinal in positions]
    assert batch["id"].to_pylist() == expected
    lsns = [decoded(payload, "json")["lsn"] for payload in batch["payload"].to_pylist()]
    assert lsns == [str(Lsn(lsn)) for lsn, _ in positions]
    bridge = encoder("bridge", "json").encode(made)["id"].to_pylist()
    assert bridge == [f"{lsn:x}-items-insert-{n}".encode() for lsn, n in positions]


@both
@every_shape
@given(cuts=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_the_same_change_has_the_same_bytes(
    encoding: Encoding, shape: str, cuts: list[int]
) -> None:
    """Whatever other changes are encoded with it."""
    count = sum(cuts)
    rows = [b"%d" % (3**row) for row in range(count)]
    texts = [[b"x" * row**2, None, b'"\n', UNCHANGED][row % 4] for row in range(count)]
    lsn = np.repeat(np.arange(len(cuts), dtype=np.uint64) * 77, cuts)

    def part(first: int, last: int) -> Group:
        here = slice(first, last)
        return group(
            Op.UPDATE, ITEMS, last - first, lsn=lsn[here],
            ordinal=np.arange(first, last, dtype=np.uint64),
            after=image(rows[here], texts[here]),
        )  # fmt: skip

    made = encoder(shape, encoding)
    whole = made.encode(part(0, count))
    borders = np.cumsum([0, *cuts]).tolist()
    parts = [made.encode(part(*pair)) for pair in pairwise(borders)]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([whole]))


@both
def test_the_caller_may_set_destination_and_key(encoding: Encoding) -> None:
    destination = pa.array([b"a", 'odd "é"'.encode()], pa.binary())
    key = pa.array([None, b"k"], pa.binary())
    batch = encoder("bridge", encoding).encode(items(2), destination=destination, key=key)
    assert batch["destination"].to_pylist() == destination.to_pylist()
    assert batch["key"].to_pylist() == [None, b"k"]
    subjects = [decoded(item, encoding)["subject"] for item in batch["payload"].to_pylist()]
    assert subjects == ["a", 'odd "é"']


@both
def test_a_null_destination_falls_back_to_the_template(encoding: Encoding) -> None:
    route = pa.array([b"there", None], pa.binary())
    batch = encoder("bridge", encoding).encode(items(2), destination=route)
    assert batch["destination"].to_pylist() == [b"there", b"cdc.items.insert"]
    subjects = [decoded(item, encoding)["subject"] for item in batch["payload"].to_pylist()]
    assert subjects == ["there", "cdc.items.insert"]


def keys_of(made: Group) -> list[bytes | None]:
    found: list[bytes | None] = encoder("plain", "msgpack").encode(made)["key"].to_pylist()
    return found


def test_a_key_of_several_columns_is_a_json_array() -> None:
    relation = table(
        Column(name="a", type_oid=25, key=True),
        Column(name="v", type_oid=25),
        Column(name="b", type_oid=23, key=True),
    )
    after = image([b'x"y', "é".encode()], [None, None], [b"1", None])
    found = keys_of(group(Op.INSERT, relation, 2, after=after))
    assert found == [b'["x\\"y","1"]', '["é",null]'.encode()]


def test_keys_of_updates_and_deletes() -> None:
    moved = group(Op.UPDATE, ITEMS, 1, before=image([b"1"], None), after=image([b"2"], [b"v"]))
    assert keys_of(moved) == [b"2"]
    assert keys_of(group(Op.DELETE, ITEMS, 1, before=image([b"1"], None))) == [b"1"]


def test_tables_without_a_key_have_no_message_key() -> None:
    bare = table(Column(name="a", type_oid=25))
    full = table(*ITEMS.columns, replica_identity=ReplicaIdentity.FULL)
    after = image([b"1"], [b"2"])
    assert keys_of(group(Op.INSERT, bare, 1, after=after[:1])) == [None]
    assert keys_of(group(Op.INSERT, full, 1, after=after)) == [None]
    assert keys_of(group(Op.TRUNCATE, ITEMS, 1)) == [None]
    said = group(Op.MESSAGE, None, 1, prefixes=pa.array(["p"]), contents=pa.array([b"c"]))
    assert keys_of(said) == [None]


@both
@every_shape
def test_text_that_is_not_utf8_is_refused_with_its_column(encoding: Encoding, shape: str) -> None:
    made = group(Op.INSERT, ITEMS, 2, after=image([b"1", b"2"], [b"fine", b"\xe9t\xe9"]))
    with pytest.raises(PoisonedError, match=r"column v of public\.items .* not UTF-8"):
        encoder(shape, encoding).encode(made)


def test_an_encoder_can_be_pickled() -> None:
    made = encoder("bridge", "msgpack")
    made.encode(items(1))
    again = pickle.loads(pickle.dumps(made))
    assert again.encode(items(3)).equals(made.encode(items(3)))


@both
def test_types_of_extensions_are_resolved_by_name(encoding: Encoding) -> None:
    relation = table(
        Column(name="h", type_oid=90001), Column(name="v", type_oid=90002, type_modifier=2),
        Column(name="d", type_oid=90003), Column(name="e", type_oid=90004),
        Column(name="l", type_oid=90005), Column(name="x", type_oid=90006),
    )  # fmt: skip
    types = {
        90001: TypeName(oid=90001, namespace="public", name="hstore"),
        90002: TypeName(oid=90002, namespace="public", name="vector"),
        90003: TypeName(oid=90003, namespace="", name="int4"),
        90004: TypeName(oid=90004, namespace="public", name="mood"),
        90005: TypeName(oid=90005, namespace="public", name="_mood"),
    }
    after = image([b'"a"=>NULL'], [b"[1,2]"], [b"7"], [b"sad"], [b"{sad,NULL}"], [b"as it is"])
    made = group(Op.INSERT, relation, 1, after=after, types=types)
    (native,) = messages(made, "plain", encoding)
    assert native["after"] == {
        "h": {"a": None}, "v": [1, 2], "d": 7, "e": "sad", "l": ["sad", None], "x": "as it is",
    }  # fmt: skip
    (bridge,) = messages(made, "bridge", encoding)
    assert bridge["data"] == {
        "h": '"a"=>NULL', "v": "[1,2]", "d": 7, "e": "sad", "l": "{sad,NULL}", "x": "as it is",
    }  # fmt: skip


@both
def test_bytes_under_nulls_are_ignored(encoding: Encoding) -> None:
    buffers = [
        pa.py_buffer(b"\x01"),
        pa.py_buffer(np.array([0, 1, 4], np.int32)),
        pa.py_buffer(b'a{}"'),
    ]
    odd = pa.BinaryArray.from_buffers(pa.binary(), 2, buffers)
    made = group(Op.INSERT, ITEMS, 2, after=image([b"1", b"2"], [b"", b""]))
    (first, _) = made.after or ()
    assert first is not None
    made = group(Op.INSERT, ITEMS, 2, after=(first, type(first)(odd)))
    assert [item["data"]["v"] for item in messages(made, "bridge", encoding)] == ["a", None]

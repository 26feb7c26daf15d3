"""Shapes: a complete example of each, and the four states of a value in all of them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.generate import REFERENCE
from tailrace import __version__
from tailrace.change import UNCHANGED, Op
from tailrace.schema import Column, ReplicaIdentity
from tests.unit.encode.groups import group, image, messages, table

if TYPE_CHECKING:
    from tailrace.decode.group import Group
    from tailrace.encode.shapes.shape_type import Encoding

both = pytest.mark.parametrize("encoding", ["json", "msgpack"])
every_shape = pytest.mark.parametrize("shape", ["bridge", "debezium", "sequin", "plain"])

USERS = table(
    Column(name="id", type_oid=23, key=True),
    Column(name="name", type_oid=25),
    Column(name="tags", type_oid=1009),
    Column(name="meta", type_oid=3802),
)
ROW = {"id": 12, "name": "Ada", "tags": ["a", "b"], "meta": {"k": [1, 2]}}
IMAGE = image([b"12"], [b"Ada"], [b"{a,b}"], [b'{"k": [1, 2]}'])


def one(made: Group, shape: str, encoding: Encoding) -> Any:
    (message,) = messages(made, shape, encoding)
    return message


@both
def test_bridge_insert(encoding: Encoding) -> None:
    found = one(group(Op.INSERT, USERS, 1, after=IMAGE), "bridge", encoding)
    assert found == {
        "data": ROW | {"tags": "{a,b}"},
        "msg_id": "191bfd0-users-insert-0",
        "operation": "INSERT",
        "relation_id": 16392,
        "subject": "cdc.users.insert",
        "table": "users",
        "schema": "public",
        "lsn": "0/191BFD0",
        "xid": 742,
        "timestamp": "2025-12-12T12:00:34.338547Z",
    }
    assert list(found)[:6] == ["data", "msg_id", "operation", "relation_id", "subject", "table"]


@both
def test_bridge_update_with_an_old_key(encoding: Encoding) -> None:
    made = group(
        Op.UPDATE, USERS, 1, before=image([b"11"], None, None, None),
        after=image([b"12"], [None], [UNCHANGED], [UNCHANGED]),
        annotations=pa.array(['{"user_id": 7}']),
    )  # fmt: skip
    found = one(made, "bridge", encoding)
    assert found["data"] == {"id": 12, "name": None}
    assert found["unchanged"] == ["tags", "meta"]
    assert found["old"] == {"id": 11}
    assert found["annotations"] == {"user_id": 7}
    assert (found["operation"], found["subject"]) == ("UPDATE", "cdc.users.update")


@both
def test_bridge_delete_names_every_column(encoding: Encoding) -> None:
    made = group(Op.DELETE, USERS, 1, before=image([b"12"], None, None, None))
    found = one(made, "bridge", encoding)
    assert found["data"] == {"id": 12, "name": None, "tags": None, "meta": None}
    assert found["msg_id"] == "191bfd0-users-delete-0"
    full = group(Op.DELETE, USERS, 1, before=IMAGE)
    assert one(full, "bridge", encoding)["data"] == ROW | {"tags": "{a,b}"}


@both
def test_bridge_truncate_and_read(encoding: Encoding) -> None:
    found = one(group(Op.TRUNCATE, USERS, 1), "bridge", encoding)
    assert (found["data"], found["operation"]) == ({}, "TRUNCATE")
    found = one(group(Op.READ, USERS, 1, after=IMAGE), "bridge", encoding)
    assert (found["data"]["id"], found["subject"]) == (12, "cdc.users.read")


@both
def test_bridge_of_a_table_outside_of_public(encoding: Encoding) -> None:
    relation = table(Column(name="id", type_oid=23), namespace="sales", name="a.b")
    found = one(group(Op.INSERT, relation, 1, after=image([b"1"])), "bridge", encoding)
    assert found["subject"] == "cdc.sales.a%2Eb.insert"
    assert found["msg_id"] == "191bfd0-sales.a%2Eb-insert-0"
    assert (found["schema"], found["table"]) == ("sales", "a.b")


@both
@every_shape
def test_the_examples_in_the_docs_are_what_is_sent(encoding: Encoding, shape: str) -> None:
    page = (REFERENCE / "shapes.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {shape}\n")[2].partition("\n## ")[0]
    shown = json.loads(section.partition("```json")[2].partition("```")[0])
    found = one(group(Op.INSERT, USERS, 1, after=IMAGE), shape, encoding)
    if shape == "debezium":
        found["source"]["version"] = shown["source"]["version"]
    assert list(shown) == list(found)
    assert shown == found


def said(*contents: bytes, **more: Any) -> Group:
    prefixes = pa.array(["app.event", "", "né"][: len(contents)])
    return group(
        Op.MESSAGE, None, len(contents), prefixes=prefixes,
        contents=pa.array(contents, pa.binary()), **more,
    )  # fmt: skip


@both
def test_bridge_messages(encoding: Encoding) -> None:
    made = said(b'{"a": 1}', b"\xff\x00", b"", xid=np.array([742, 0, 742], np.uint32))
    first, second, third = messages(made, "bridge", encoding)
    assert first["data"] == {"prefix": "app.event", "content": '{"a": 1}'}
    assert second["data"] == {"prefix": "", "content_base64": "/wA="}
    assert third["data"] == {"prefix": "né", "content": ""}
    assert [item["xid"] for item in (first, second, third)] == [742, None, 742]
    assert first["subject"] == "cdc._message.app%2Eevent.message"
    assert second["subject"] == "cdc._message.%.message"
    assert (first["table"], first["operation"]) == (None, "MESSAGE")
    assert first["msg_id"] == "191bfd0-_message-message-0"


SOURCE = {
    "version": __version__,
    "connector": "postgresql",
    "name": "tailrace",
    "snapshot": "false",
    "db": "shop",
    "schema": "public",
    "table": "users",
    "ts_ms": 1765540834338,
    "ts_us": 1765540834338547,
    "ts_ns": 1765540834338547000,
    "txId": 742,
    "lsn": 26329040,
    "sequence": '["26329040","0"]',
    "xmin": None,
}


@both
def test_debezium_update(encoding: Encoding) -> None:
    found = one(group(Op.INSERT, USERS, 1, after=IMAGE), "debezium", encoding)
    assert found == {
        "before": None,
        "after": ROW,
        "source": SOURCE,
        "op": "c",
        "ts_ms": 1765540834338,
        "ts_us": 1765540834338547,
        "ts_ns": 1765540834338547000,
        "transaction": None,
    }


@both
def test_debezium_operations(encoding: Encoding) -> None:
    letters = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.TRUNCATE: "t", Op.READ: "r"}
    for op, letter in letters.items():
        found = one(group(op, USERS, 1), "debezium", encoding)
        assert found["op"] == letter
        assert found["source"]["snapshot"] == ("true" if op is Op.READ else "false")


@both
def test_debezium_has_a_placeholder_for_unchanged_values(encoding: Encoding) -> None:
    made = group(
        Op.UPDATE, USERS, 2, before=image([b"11", b"12"], None, None, None),
        after=image([b"11", b"12"], [b"Ada", None], [b"{a}", UNCHANGED], [UNCHANGED, b"1"]),
    )  # fmt: skip
    first, second = messages(made, "debezium", encoding)
    unknown = "__debezium_unavailable_value"
    assert first["before"] == {"id": 11}
    assert first["after"] == {"id": 11, "name": "Ada", "tags": ["a"], "meta": unknown}
    assert second["after"] == {"id": 12, "name": None, "tags": unknown, "meta": 1}


@both
def test_debezium_messages(encoding: Encoding) -> None:
    found = one(said(b"\xffhello"), "debezium", encoding)
    assert found["message"] == {"prefix": "app.event", "content": "/2hlbGxv"}
    assert found["op"] == "m"
    assert found["source"]["table"] == ""
    assert "before" not in found


@both
def test_sequin_update(encoding: Encoding) -> None:
    found = one(group(Op.INSERT, USERS, 1, after=IMAGE), "sequin", encoding)
    assert found == {
        "record": ROW,
        "changes": None,
        "action": "insert",
        "metadata": {
            "table_schema": "public",
            "table_name": "users",
            "table_oid": 16392,
            "database_name": "shop",
            "commit_timestamp": "2025-12-12T12:00:34.338547Z",
            "commit_lsn": 26329040,
            "commit_idx": 0,
            "transaction_annotations": None,
            "idempotency_key": base64.b64encode(b"26329040:0").decode(),
        },
    }


@both
def test_sequin_changes_are_the_old_values_that_differ(encoding: Encoding) -> None:
    made = group(
        Op.UPDATE, USERS, 3,
        before=image([b"1", b"2", b"3"], [b"x", None, b"z"], [None, b"{a}", None], [b"1"] * 3),
        after=image([b"1", b"2", b"3"], [b"y", b"q", b"z"], [None, None, None], [UNCHANGED] * 3),
    )  # fmt: skip
    first, second, third = messages(made, "sequin", encoding)
    assert first["changes"] == {"name": "x"}
    assert second["changes"] == {"name": None, "tags": ["a"]}
    assert third["changes"] == {}
    assert first["metadata"]["unchanged"] == ["meta"]
    assert "meta" not in first["record"]


@both
def test_sequin_delete_has_the_old_row(encoding: Encoding) -> None:
    found = one(group(Op.DELETE, USERS, 1, before=IMAGE), "sequin", encoding)
    assert (found["record"], found["changes"], found["action"]) == (ROW, None, "delete")


@both
def test_plain_update(encoding: Encoding) -> None:
    found = one(group(Op.INSERT, USERS, 1, after=IMAGE), "plain", encoding)
    assert found == {
        "id": "000000000191bfd0-0",
        "op": "insert",
        "schema": "public",
        "table": "users",
        "lsn": "0/191BFD0",
        "ordinal": 0,
        "xid": 742,
        "committed_at": "2025-12-12T12:00:34.338547Z",
        "key": {"id": 12},
        "before": None,
        "after": ROW,
        "unchanged": [],
        "annotations": None,
    }


@both
def test_plain_takes_an_unchanged_large_key_from_the_old_row(encoding: Encoding) -> None:
    made = group(
        Op.UPDATE, USERS, 1, before=image([b"12"], None, None, None),
        after=image([UNCHANGED], [b"Ada"], [None], [None]),
    )  # fmt: skip
    found = one(made, "plain", encoding)
    assert (found["key"], found["unchanged"]) == ({"id": 12}, ["id"])
    assert found["after"] == {"name": "Ada", "tags": None, "meta": None}


@both
def test_plain_has_no_key_under_replica_identity_full(encoding: Encoding) -> None:
    relation = table(*USERS.columns, replica_identity=ReplicaIdentity.FULL)
    assert one(group(Op.INSERT, relation, 1, after=IMAGE), "plain", encoding)["key"] is None


@both
def test_row_is_the_row_alone(encoding: Encoding) -> None:
    assert one(group(Op.INSERT, USERS, 1, after=IMAGE), "row", encoding) == ROW
    assert one(group(Op.DELETE, USERS, 1, before=IMAGE), "row", encoding) == ROW
    key = image([b"12"], None, None, None)
    assert one(group(Op.DELETE, USERS, 1, before=key), "row", encoding) == {"id": 12}
    assert one(group(Op.TRUNCATE, USERS, 1), "row", encoding) == {}
    assert one(group(Op.INSERT, table(), 1, after=()), "row", encoding) == {}


@both
def test_row_names_what_it_lacks_in_the_rows_that_lack_it(encoding: Encoding) -> None:
    after = image([b"1", b"2"], [b"a", UNCHANGED], [None, None], [UNCHANGED, b"{}"])
    first, second = messages(group(Op.UPDATE, USERS, 2, after=after), "row", encoding)
    assert first == {"": ["meta"], "id": 1, "name": "a", "tags": None}
    assert second == {"": ["name"], "id": 2, "tags": None, "meta": {}}
    assert next(iter(first)) == next(iter(second)) == ""


@both
def test_row_takes_unchanged_values_from_the_old_row(encoding: Encoding) -> None:
    before = image([b"1", b"2"], [b"old", b"older"], [None, None], [b"{}", b"[1]"])
    after = image([b"1", b"2"], [b"a", UNCHANGED], [None, None], [UNCHANGED, b"{}"])
    made = group(Op.UPDATE, USERS, 2, before=before, after=after)
    assert messages(made, "row", encoding) == [
        {"id": 1, "name": "a", "tags": None, "meta": {}},
        {"id": 2, "name": "older", "tags": None, "meta": {}},
    ]


@both
@every_shape
def test_tables_without_columns(encoding: Encoding, shape: str) -> None:
    (found,) = messages(group(Op.INSERT, table(), 1, after=()), shape, encoding)
    assert {} in (found.get("data"), found.get("record"), found.get("after"))


@both
def test_annotations_of_some_rows(encoding: Encoding) -> None:
    given_ = pa.array([None, '{"a": 1}', '{"a": 1}', "[2]"])
    made = group(Op.INSERT, USERS, 4, after=image(*[[None] * 4] * 4), annotations=given_)
    expected = [None, {"a": 1}, {"a": 1}, [2]]
    assert [item["annotations"] for item in messages(made, "plain", encoding)] == expected
    bridge = messages(made, "bridge", encoding)
    assert [item.get("annotations") for item in bridge] == expected
    assert "annotations" not in bridge[0]


STATES = st.sampled_from([b"1", None, UNCHANGED])


@both
@given(data=st.data(), width=st.integers(1, 18), count=st.integers(1, 6))
def test_the_states_of_values_are_never_confused(
    encoding: Encoding, data: st.DataObject, width: int, count: int
) -> None:
    """Any combination of value, NULL, unchanged and absent."""
    absent = data.draw(st.sets(st.integers(0, width - 1)))
    rows = data.draw(
        st.lists(st.lists(STATES, min_size=width, max_size=width), min_size=count, max_size=count)
    )
    relation = table(*(Column(name=f"c{at}", type_oid=23) for at in range(width)))
    columns = [None if at in absent else [row[at] for row in rows] for at in range(width)]
    made = group(Op.UPDATE, relation, count, after=image(*columns))
    for row, message in zip(rows, messages(made, "plain", encoding), strict=True):
        here = {f"c{at}": value for at, value in enumerate(row) if at not in absent}
        assert message["after"] == {
            name: None if value is None else 1
            for name, value in here.items()
            if value is not UNCHANGED
        }
        assert message["unchanged"] == [name for name, value in here.items() if value is UNCHANGED]

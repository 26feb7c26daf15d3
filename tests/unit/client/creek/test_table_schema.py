"""The key of a table from the Avro schemas of its rows and changes."""

from __future__ import annotations

import pytest

from tailrace.client.creek.avro import ChangeSchema, RowSchema
from tailrace.client.creek.table_schema import table_schema
from tailrace.client.names import Table
from tailrace.encode.creek import schema as creek
from tailrace.schema import ReplicaIdentity
from tests.unit.client.creek.relations import relation

USERS = Table("public", "users")


@pytest.mark.parametrize(
    ("identity", "keys", "expected"),
    [
        (ReplicaIdentity.DEFAULT, "a", ("a",)),
        (ReplicaIdentity.DEFAULT, "ab", ("a", "b")),
        (ReplicaIdentity.DEFAULT, "", ()),
        (ReplicaIdentity.INDEX, "b", ("b",)),
        (ReplicaIdentity.FULL, "ab", ()),
        (ReplicaIdentity.NOTHING, "", ()),
    ],
)
def test_rows_changes_and_partial_changes_have_the_same_key(
    identity: ReplicaIdentity, keys: str, expected: tuple[str, ...]
) -> None:
    table = relation(identity, keys)
    rows = RowSchema(creek.row(table, {}).text)
    assert table_schema(USERS, rows.record).key == expected
    for partial in (False, True):
        changes = ChangeSchema(creek.event(table, {}, partial=partial).text)
        schema = table_schema(USERS, changes.after, changes.before)
        assert (schema.key, schema.names) == (expected, ("a", "b"))
        assert set(schema.types.values()) == {"text"}

"""Tables of Creek's producers for unit tests."""

from __future__ import annotations

from tailrace.schema import Column, Relation, ReplicaIdentity


def relation(identity: ReplicaIdentity, keys: str, columns: str = "ab") -> Relation:
    """A table with one text column per letter."""
    return Relation(
        oid=1,
        namespace="public",
        name="users",
        replica_identity=identity,
        columns=tuple(Column(name=name, type_oid=25, key=name in keys) for name in columns),
    )

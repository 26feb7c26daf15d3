"""Tables as the stream describes them: relations, columns, types.

These values come from pgoutput's Relation and Type messages. They apply to the changes that follow
them in the stream, whatever the catalog contains today.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReplicaIdentity(enum.Enum):
    """What PostgreSQL logs of the old row, as the letters of pg_class.relreplident."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a relation. `key`: it is part of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int = -1
    key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table at one point of the stream."""

    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[Column, ...]

    @property
    def qualified_name(self) -> str:
        """`schema.table` for messages; not quoted, so not unique for names with dots."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeName:
    """A type that is not built in. The stream sends it before a relation that uses it."""

    oid: int
    namespace: str
    name: str

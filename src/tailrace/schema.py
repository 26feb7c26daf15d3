"""Tables as the stream describes them: relations, columns, types.

These values come from pgoutput's Relation and Type messages and hold for the changes that follow
them, whatever the catalog says today.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReplicaIdentity(enum.Enum):
    """What PostgreSQL logs of the old row; the wire's own letters."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a relation. `key` says it is part of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int = -1
    key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table as of one point of the stream."""

    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[Column, ...]

    @property
    def qualified_name(self) -> str:
        """`schema.table`, for people; not quoted and not unique for odd names."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeName:
    """A non-built-in type: the stream sends these before a relation that uses them."""

    oid: int
    namespace: str
    name: str

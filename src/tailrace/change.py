"""Row events as values: operations, the four value states, and `Change`.

A column of a row is in one of four states: a value, NULL, *unchanged* (a TOAST value that
PostgreSQL does not send because the update did not change it) and *absent* (not part of this row
image, such as the non-key columns of an old key). No two of them may be confused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.position import Position
    from tailrace.schema import Relation


class Op(enum.Enum):
    """What happened to the row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    MESSAGE = "message"
    READ = "read"


class Missing(enum.Enum):
    """Why a column has neither a value nor NULL."""

    UNCHANGED = "unchanged"
    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in PostgreSQL's binary format; text values are plain `bytes`."""

    data: bytes


UNCHANGED: Literal[Missing.UNCHANGED] = Missing.UNCHANGED
ABSENT: Literal[Missing.ABSENT] = Missing.ABSENT

Value = bytes | Binary | None | Missing
Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row event with its position in the stream.

    `before` is the part of the old row that PostgreSQL sent: all columns under REPLICA IDENTITY
    FULL, else the key (the other columns are absent), or None. Messages have `prefix` and `content`
    and no relation; a non-transactional message has xid 0.
    """

    position: Position
    op: Op
    xid: int
    committed_at: datetime
    relation: Relation | None = None
    before: Row | None = None
    after: Row | None = None
    prefix: str = ""
    content: bytes = b""
    cascade: bool = False
    restart_identity: bool = False
    origin: str = ""

"""PostgreSQL's logical replication messages (pgoutput, protocol version 1): `parse` and `write`.

One message is one value; nothing here knows of transactions or of earlier messages. For
`tailrace tail` and as the reference of tests; pipelines decode whole columns in `tailrace.decode`.

`write` reproduces every byte string that `parse` accepts. So everything that PostgreSQL cannot send
is malformed, also where a reader could guess: undefined flags, bytes after the end, and the schema
pg_catalog by name, which PostgreSQL sends as an empty name. Names must be UTF-8, which they are
with client_encoding UTF8. `write` refuses values that no message can carry with `MalformedError`.

Layouts: https://www.postgresql.org/docs/18/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, assert_never

from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.schema import Column, Relation, ReplicaIdentity, TypeName
from tailrace.wire.cursor import Cursor, write_name
from tailrace.wire.pgtime import PgTime
from tailrace.wire.row import key_row, read_row, write_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.change import Row

__all__ = [
    "AnyMessage",
    "Begin",
    "Commit",
    "Delete",
    "Insert",
    "Message",
    "OldKey",
    "OldRow",
    "Origin",
    "PgTime",
    "Relation",
    "Truncate",
    "TypeName",
    "Update",
    "key_row",
    "parse",
    "write",
]

_CATALOG = "pg_catalog"
_KEY_COLUMN = 1
_CASCADE = 1
_RESTART_IDENTITY = 2

_BEGIN = Struct("!QqI")
_COMMIT = Struct("!BQQq")
_LSN = Struct("!Q")
_OID = Struct("!I")
_COUNT16 = Struct("!h")
_COUNT32 = Struct("!i")
_TYPE = Struct("!Ii")
_TRUNCATE_FLAGS = _COLUMN_FLAGS = Struct("!B")
_MESSAGE = Struct("!BQ")
# The shortest column: its flags, an empty name's NUL, type and modifier.
_COLUMN_BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A transaction starts. `final_lsn` is its commit's LSN."""

    final_lsn: Lsn
    committed_at: PgTime
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A transaction ends; the WAL after it starts at `end_lsn`. No flags are defined."""

    flags: int = 0
    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: PgTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The transaction was replicated from another server, where it committed at `lsn`."""

    lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class OldKey:
    """The key of the old row. Its other columns are NULLs on the wire; see `key_row`."""

    row: Row


@dataclass(frozen=True, slots=True)
class OldRow:
    """The whole old row, under REPLICA IDENTITY FULL."""

    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A new row of the relation `oid`."""

    oid: int
    new: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A changed row of the relation `oid`. `old` is None if the key did not change."""

    oid: int
    old: OldKey | OldRow | None
    new: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """A deleted row of the relation `oid`."""

    oid: int
    old: OldKey | OldRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Relations emptied by one command."""

    oids: tuple[int, ...]
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of pg_logical_emit_message, transactional or not."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


AnyMessage = (
    Begin | Commit | Origin | Relation | TypeName | Insert | Update | Delete | Truncate | Message
)


def parse(data: bytes | memoryview) -> AnyMessage:
    """The message in `data`. Raises `MalformedError` and nothing else."""
    data = bytes(data)
    reader = _READERS.get(data[:1])
    if reader is None:
        letters = b"".join(_READERS)
        raise Cursor(data, "pgoutput message").malformed(f"a type out of {letters!r}", 0)
    subject, read = reader
    cursor = Cursor(data, subject, 1)
    message = read(cursor)
    cursor.finish()
    return message


def write(message: AnyMessage) -> bytes:
    """The bytes of a message. Raises `MalformedError` for a value without a wire form."""
    try:
        return _write(message)
    except (struct.error, UnicodeEncodeError) as error:
        kind = type(message).__name__
        raise MalformedError(f"{kind}: a value does not fit its field: {error}") from error


def _read_begin(cursor: Cursor) -> Begin:
    lsn, time, xid = cursor.take(_BEGIN, "final LSN, commit time and xid")
    return Begin(final_lsn=Lsn(lsn), committed_at=PgTime(time), xid=xid)


def _read_commit(cursor: Cursor) -> Commit:
    flags, commit, end, time = cursor.take(_COMMIT, "flags, commit LSN, end LSN and commit time")
    _check_flags(cursor, flags, 0, 1)
    return Commit(flags=flags, commit_lsn=Lsn(commit), end_lsn=Lsn(end), committed_at=PgTime(time))


def _read_origin(cursor: Cursor) -> Origin:
    (lsn,) = cursor.take(_LSN, "the origin's LSN")
    return Origin(lsn=Lsn(lsn), name=cursor.name("the origin's name"))


def _read_relation(cursor: Cursor) -> Relation:
    (oid,) = cursor.take(_OID, "the relation's oid")
    namespace = _read_namespace(cursor)
    name = cursor.name("the relation's name")
    identity = cursor.letter(b"dnfi", "a replica identity").decode()
    count = cursor.count(_COUNT16, _COLUMN_BYTES, "columns")
    return Relation(
        oid=oid,
        namespace=namespace,
        name=name,
        replica_identity=ReplicaIdentity(identity),
        columns=tuple([_read_column(cursor) for _ in range(count)]),
    )


def _read_column(cursor: Cursor) -> Column:
    at = cursor.offset
    (flags,) = cursor.take(_COLUMN_FLAGS, "a column's flags")
    _check_flags(cursor, flags, _KEY_COLUMN, at)
    name = cursor.name("a column's name")
    oid, modifier = cursor.take(_TYPE, "a column's type and modifier")
    return Column(name=name, type_oid=oid, type_modifier=modifier, key=flags == _KEY_COLUMN)


def _read_type(cursor: Cursor) -> TypeName:
    (oid,) = cursor.take(_OID, "the type's oid")
    namespace = _read_namespace(cursor)
    return TypeName(oid=oid, namespace=namespace, name=cursor.name("the type's name"))


def _read_insert(cursor: Cursor) -> Insert:
    (oid,) = cursor.take(_OID, "the relation's oid")
    cursor.letter(b"N", "a new row")
    return Insert(oid=oid, new=read_row(cursor))


def _read_update(cursor: Cursor) -> Update:
    (oid,) = cursor.take(_OID, "the relation's oid")
    old = None
    letter = cursor.letter(b"KON", "an old key, an old row or a new row")
    if letter != b"N":
        old = _read_old(cursor, letter)
        cursor.letter(b"N", "a new row")
    return Update(oid=oid, old=old, new=read_row(cursor))


def _read_delete(cursor: Cursor) -> Delete:
    (oid,) = cursor.take(_OID, "the relation's oid")
    letter = cursor.letter(b"KO", "an old key or an old row")
    return Delete(oid=oid, old=_read_old(cursor, letter))


def _read_old(cursor: Cursor, letter: bytes) -> OldKey | OldRow:
    row = read_row(cursor)
    return OldKey(row) if letter == b"K" else OldRow(row)


def _read_truncate(cursor: Cursor) -> Truncate:
    start = cursor.offset
    (count,) = cursor.take(_COUNT32, "a count of relations")
    (flags,) = cursor.take(_TRUNCATE_FLAGS, "the truncate's flags")
    _check_flags(cursor, flags, _CASCADE | _RESTART_IDENTITY, cursor.offset - 1)
    left = len(cursor.data) - cursor.offset
    if count < 0 or count * 4 != left:
        raise cursor.malformed(f"a count of relations for {left} bytes", start, str(count))
    return Truncate(
        oids=cursor.take(Struct(f"!{count}I"), "the relations' oids"),
        cascade=bool(flags & _CASCADE),
        restart_identity=bool(flags & _RESTART_IDENTITY),
    )


def _read_message(cursor: Cursor) -> Message:
    flags, lsn = cursor.take(_MESSAGE, "flags and LSN")
    _check_flags(cursor, flags, 1, 1)
    return Message(
        transactional=flags == 1,
        lsn=Lsn(lsn),
        prefix=cursor.name("the prefix"),
        content=cursor.counted(_COUNT32, "the content"),
    )


def _read_namespace(cursor: Cursor) -> str:
    start = cursor.offset
    namespace = cursor.name("a schema's name")
    if namespace == _CATALOG:
        raise cursor.malformed("the schema pg_catalog as an empty name", start)
    return namespace or _CATALOG


def _check_flags(cursor: Cursor, flags: int, known: int, offset: int) -> None:
    if flags & ~known:
        raise cursor.malformed(f"flags within {known:#04x}", offset, f"{flags:#04x}")


_READERS: dict[bytes, tuple[str, Callable[[Cursor], AnyMessage]]] = {
    b"B": ("Begin", _read_begin),
    b"C": ("Commit", _read_commit),
    b"O": ("Origin", _read_origin),
    b"R": ("Relation", _read_relation),
    b"Y": ("Type", _read_type),
    b"I": ("Insert", _read_insert),
    b"U": ("Update", _read_update),
    b"D": ("Delete", _read_delete),
    b"T": ("Truncate", _read_truncate),
    b"M": ("Message", _read_message),
}


def _write(message: AnyMessage) -> bytes:
    match message:
        case Begin():
            data = b"B" + _BEGIN.pack(message.final_lsn, message.committed_at, message.xid)
        case Commit():
            data = _write_commit(message)
        case Origin():
            data = b"O" + _LSN.pack(message.lsn) + write_name(message.name)
        case Relation():
            data = _write_relation(message)
        case TypeName():
            namespace = _write_namespace(message.namespace)
            data = b"Y" + _OID.pack(message.oid) + namespace + write_name(message.name)
        case Insert():
            data = b"I" + _OID.pack(message.oid) + b"N" + write_row(message.new)
        case Update():
            old = b"" if message.old is None else _write_old(message.old)
            data = b"U" + _OID.pack(message.oid) + old + b"N" + write_row(message.new)
        case Delete():
            data = b"D" + _OID.pack(message.oid) + _write_old(message.old)
        case Truncate():
            data = _write_truncate(message)
        case Message():
            data = _write_message(message)
        case _:
            assert_never(message)
    return data


def _write_commit(message: Commit) -> bytes:
    if message.flags:
        raise MalformedError(f"Commit: flags must be 0, got {message.flags:#04x}")
    return b"C" + _COMMIT.pack(0, message.commit_lsn, message.end_lsn, message.committed_at)


def _write_relation(relation: Relation) -> bytes:
    return b"".join(
        [
            b"R" + _OID.pack(relation.oid),
            _write_namespace(relation.namespace),
            write_name(relation.name),
            relation.replica_identity.value.encode(),
            _COUNT16.pack(len(relation.columns)),
            *map(_write_column, relation.columns),
        ]
    )


def _write_column(column: Column) -> bytes:
    flags = _COLUMN_FLAGS.pack(_KEY_COLUMN if column.key else 0)
    return flags + write_name(column.name) + _TYPE.pack(column.type_oid, column.type_modifier)


def _write_namespace(namespace: str) -> bytes:
    if not namespace:
        raise MalformedError("a schema name cannot be empty: on the wire that means pg_catalog")
    return write_name("" if namespace == _CATALOG else namespace)


def _write_old(old: OldKey | OldRow) -> bytes:
    return (b"K" if isinstance(old, OldKey) else b"O") + write_row(old.row)


def _write_truncate(message: Truncate) -> bytes:
    flags = _CASCADE * message.cascade | _RESTART_IDENTITY * message.restart_identity
    head = _COUNT32.pack(len(message.oids)) + _TRUNCATE_FLAGS.pack(flags)
    return b"T" + head + struct.pack(f"!{len(message.oids)}I", *message.oids)


def _write_message(message: Message) -> bytes:
    head = _MESSAGE.pack(message.transactional, message.lsn) + write_name(message.prefix)
    return b"M" + head + _COUNT32.pack(len(message.content)) + message.content

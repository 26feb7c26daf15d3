"""Decodes entries into changes, one message at a time: for `tailrace tail` and for tests.

Not for pipelines: `tailrace.decode` decodes whole columns, and tests compare it with this decoder.
Between entries the decoder keeps the relations in force, as the stream stated them, and nothing
else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.change import Change, Missing, Op, Row
from tailrace.errors import MalformedError
from tailrace.log.format.entry import Entry, Kind
from tailrace.position import Lsn, Position
from tailrace.wire import pgoutput
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.log.reader import Log
    from tailrace.schema import Relation, TypeName


def read_changes(log: Log, after: Position, upto: Position | None = None) -> Iterator[Change]:
    """The changes in `(after, upto]`."""
    for change in Decoder().decode(log.read(after, upto)):
        if upto is not None and change.position > upto:
            return
        if change.position > after:
            yield change


class Decoder:
    """Turns entries into changes, in order."""

    def __init__(self) -> None:
        self.relations: dict[int, Relation] = {}
        self.types: dict[int, TypeName] = {}
        self._lsn = Lsn(0)
        self._time = PgTime(0)
        self._xid = 0
        self._ordinal = 0
        self._origin = ""

    def decode(self, entries: Iterable[Entry]) -> Iterator[Change]:
        """The changes of entries, in order. The entries must start as `Log.read` starts."""
        for entry in entries:
            if entry.kind is Kind.FRAGMENT:
                self._enter(entry.first.lsn, entry.last_time, entry.xid, entry.first.ordinal)
            else:
                self._time = PgTime(entry.first_time)
            for raw in entry.messages():
                yield from self._message(raw)

    def _enter(self, lsn: Lsn, time: int, xid: int, ordinal: int) -> None:
        self._lsn, self._time, self._xid, self._ordinal = lsn, PgTime(time), xid, ordinal
        self._origin = ""

    def _message(self, raw: memoryview) -> Iterator[Change]:
        message = pgoutput.parse(raw)
        match message:
            case pgoutput.Begin():
                self._enter(message.final_lsn, message.committed_at, message.xid, 0)
            case pgoutput.Relation():
                self.relations[message.oid] = message
            case pgoutput.TypeName():
                self.types[message.oid] = message
            case pgoutput.Origin():
                self._origin = message.name
            case pgoutput.Commit():
                self._xid, self._origin = 0, ""
            case pgoutput.Insert():
                yield self._row(Op.INSERT, message.oid, after=message.new)
            case pgoutput.Update():
                relation = self._relation(message.oid)
                before = _old(message.old, relation)
                after = _filled(message.new, message.old)
                yield self._row(Op.UPDATE, message.oid, before=before, after=after)
            case pgoutput.Delete():
                relation = self._relation(message.oid)
                yield self._row(Op.DELETE, message.oid, before=_old(message.old, relation))
            case pgoutput.Truncate():
                for oid in message.oids:
                    yield self._truncate(oid, message)
            case pgoutput.Message():
                yield self._logical_message(message)

    def _relation(self, oid: int) -> Relation:
        try:
            return self.relations[oid]
        except KeyError:
            raise MalformedError(f"a change of unknown relation {oid}") from None

    def _next(self) -> Position:
        position = Position(self._lsn, self._ordinal)
        self._ordinal += 1
        return position

    def _row(
        self, op: Op, oid: int, *, before: Row | None = None, after: Row | None = None
    ) -> Change:
        relation = self._relation(oid)
        for row in (before, after):
            if row is not None and len(row) != len(relation.columns):
                raise MalformedError(
                    f"a row of {relation.qualified_name} has {len(row)} columns, "
                    f"its relation has {len(relation.columns)}"
                )
        return Change(
            position=self._next(),
            op=op,
            xid=self._xid,
            committed_at=self._time.to_datetime(),
            relation=relation,
            before=before,
            after=after,
            origin=self._origin,
        )

    def _truncate(self, oid: int, message: pgoutput.Truncate) -> Change:
        return Change(
            position=self._next(),
            op=Op.TRUNCATE,
            xid=self._xid,
            committed_at=self._time.to_datetime(),
            relation=self._relation(oid),
            cascade=message.cascade,
            restart_identity=message.restart_identity,
            origin=self._origin,
        )

    def _logical_message(self, message: pgoutput.Message) -> Change:
        """A logical message. A non-transactional one has no xid and takes the byte before its LSN.

        Its LSN is the first byte after its record, where the next commit may be.
        """
        loose = not message.transactional
        return Change(
            position=Position(Lsn(max(message.lsn - 1, 0))) if loose else self._next(),
            op=Op.MESSAGE,
            xid=0 if loose else self._xid,
            committed_at=self._time.to_datetime(),
            prefix=message.prefix,
            content=message.content,
            origin="" if loose else self._origin,
        )


def _old(old: pgoutput.OldKey | pgoutput.OldRow | None, relation: Relation) -> Row | None:
    if isinstance(old, pgoutput.OldKey):
        return pgoutput.key_row(old.row, relation)
    return None if old is None else old.row


def _filled(new: Row, old: pgoutput.OldKey | pgoutput.OldRow | None) -> Row:
    """The new row, with unchanged TOAST values taken from the old row where it has them.

    Under REPLICA IDENTITY FULL the old row holds every value. The old key holds an unchanged TOAST
    value that is part of the key. Other values stay UNCHANGED.
    """
    if old is None or Missing.UNCHANGED not in new or len(old.row) != len(new):
        return new
    return tuple(
        before if after is Missing.UNCHANGED and before is not None else after
        for after, before in zip(new, old.row, strict=True)
    )

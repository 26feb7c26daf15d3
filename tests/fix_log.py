"""A stand-in for PostgreSQL and for capture's assembly: units of change, entries made of them.

A `Unit` is a transaction or a loose message as a source would commit it, with the changes a reader
must find. A `Session` writes units as pgoutput messages, stating relations as PostgreSQL does: at
first use and after a change. `TestLog` appends them to a log in memory and remembers them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.change import ABSENT, UNCHANGED, Change, Op
from tailrace.log.appender import Appender, Layout
from tailrace.log.changes import read_changes
from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind, pack
from tailrace.log.format.layout import Codec, Identity
from tailrace.log.lease import Lease
from tailrace.log.reader import Earliest, Log
from tailrace.position import Lsn, Position
from tailrace.schema import Column, Relation, ReplicaIdentity, TypeName
from tailrace.testing import MemoryStore
from tailrace.wire import pgoutput
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.change import Row
    from tailrace.log.store import Store
    from tailrace.wire.pgoutput import AnyMessage

START = Lsn(0x1000)
TIME = 800_000_000_000_000
SECOND = 1_000_000
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
IDENTITY = Identity(
    system_identifier="7300000000000000001",
    timeline=1,
    database="shop",
    slot="tailrace",
    publication="tailrace",
)
MOOD = TypeName(oid=900, namespace="shop", name="mood")


def relation(oid: int, version: int = 0) -> Relation:
    """Table `oid`; every version has one more column."""
    extra = tuple(Column(name=f"c{number}", type_oid=25) for number in range(version + 1))
    return Relation(
        oid=oid,
        namespace="public",
        name=f"t{oid}",
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=(Column(name="id", type_oid=23, key=True), *extra),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A message inside a unit, the relations it needs, and the changes it is."""

    message: AnyMessage
    needs: tuple[Relation, ...] = ()
    expected: tuple[dict[str, Any], ...] = ()


def insert(table: Relation, key: int, text: str = "x") -> Step:
    row = (str(key).encode(), *(text.encode() for _ in table.columns[1:]))
    return Step(
        message=pgoutput.Insert(oid=table.oid, new=row),
        needs=(table,),
        expected=({"op": Op.INSERT, "relation": table, "after": row},),
    )


def update(table: Relation, key: int) -> Step:
    """An update that moves the key and leaves a large value alone."""
    rest = len(table.columns) - 1
    old = pgoutput.OldKey((str(key).encode(), *(None,) * rest))
    new: Row = (str(key + 1).encode(), *(UNCHANGED,) * rest)
    before = (str(key).encode(), *(ABSENT,) * rest)
    return Step(
        message=pgoutput.Update(oid=table.oid, old=old, new=new),
        needs=(table,),
        expected=({"op": Op.UPDATE, "relation": table, "before": before, "after": new},),
    )


def delete(table: Relation, key: int) -> Step:
    rest = len(table.columns) - 1
    old = pgoutput.OldKey((str(key).encode(), *(None,) * rest))
    before = (str(key).encode(), *(ABSENT,) * rest)
    return Step(
        message=pgoutput.Delete(oid=table.oid, old=old),
        needs=(table,),
        expected=({"op": Op.DELETE, "relation": table, "before": before},),
    )


def truncate(*tables: Relation) -> Step:
    return Step(
        message=pgoutput.Truncate(oids=tuple(table.oid for table in tables), cascade=True),
        needs=tables,
        expected=tuple({"op": Op.TRUNCATE, "relation": table, "cascade": True} for table in tables),
    )


def message(lsn: int, content: bytes = b"hi", *, transactional: bool = True) -> Step:
    return Step(
        message=pgoutput.Message(
            transactional=transactional, lsn=Lsn(lsn), prefix="note", content=content
        ),
        expected=({"op": Op.MESSAGE, "prefix": "note", "content": content},),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A transaction, or with xid 0 a loose message."""

    lsn: Lsn
    end_lsn: Lsn
    time: int
    xid: int
    origin: str = ""
    steps: tuple[Step, ...]

    def changes(self) -> list[Change]:
        """What a reader must find."""
        expected = [fields for step in self.steps for fields in step.expected]
        return [
            Change(
                position=Position(self.lsn, ordinal),
                xid=self.xid,
                committed_at=PgTime(self.time).to_datetime(),
                origin=self.origin,
                **fields,
            )
            for ordinal, fields in enumerate(expected)
        ]


def loose(lsn: int, time: int = TIME) -> Unit:
    """A message outside any transaction: it stands one byte before the LSN it is sent with."""
    step = message(lsn + 1, transactional=False)
    return Unit(lsn=Lsn(lsn), end_lsn=Lsn(lsn + 1), time=time, xid=0, steps=(step,))


@dataclass(slots=True)
class Session:
    """One connection: relations are sent when they are new to it."""

    sent: dict[int, Relation] = field(default_factory=dict)

    def messages(self, unit: Unit) -> list[bytes]:
        found: list[AnyMessage] = []
        if unit.xid:
            begin = pgoutput.Begin(final_lsn=unit.lsn, committed_at=PgTime(unit.time), xid=unit.xid)
            found.append(begin)
        if unit.origin:
            found.append(pgoutput.Origin(lsn=Lsn(1), name=unit.origin))
        for step in unit.steps:
            for needed in step.needs:
                if self.sent.get(needed.oid) != needed:
                    found += [MOOD] if not self.sent else []
                    found.append(needed)
                    self.sent[needed.oid] = needed
            found.append(step.message)
        if unit.xid:
            commit = pgoutput.Commit(
                commit_lsn=unit.lsn, end_lsn=unit.end_lsn, committed_at=PgTime(unit.time)
            )
            found.append(commit)
        return [pgoutput.write(one) for one in found]


def count_schemas(messages: Sequence[bytes]) -> int:
    return sum(raw[:1] in b"RY" for raw in messages)


def count_changes(messages: Sequence[bytes]) -> int:
    counts = {b"I": 1, b"U": 1, b"D": 1, b"M": 1}
    return sum(
        int.from_bytes(raw[1:5], "big") if raw[:1] == b"T" else counts.get(raw[:1], 0)
        for raw in messages
    )


def whole_entry(units: Sequence[Unit], session: Session, end_lsn: Lsn, time: int) -> Entry:
    """One entry of whole units; `end_lsn` and `time` are the log's so far."""
    messages = [raw for unit in units for raw in session.messages(unit)]
    offsets, body = pack(messages)
    transactions = [unit for unit in units if unit.xid]
    for unit in transactions:
        end_lsn = unit.end_lsn
    last = units[-1]
    return Entry(
        kind=Kind.TRANSACTIONS,
        first=Position(units[0].lsn, 0),
        last=Position(last.lsn, max(len(last.changes()) - 1, 0)),
        end_lsn=end_lsn,
        first_time=units[0].time if units[0].xid else time,
        last_time=max([time, *(unit.time for unit in transactions)]),
        transactions=len(transactions),
        changes=count_changes(messages),
        schemas=count_schemas(messages),
        offsets=offsets,
        body=body,
    )


def fragment_entries(
    unit: Unit, session: Session, cuts: Sequence[int], end_lsn: Lsn, before: Position
) -> list[Entry]:
    """One transaction in pieces, cut before these messages; later pieces restate the origin."""
    messages = session.messages(unit)
    bounds = sorted({0, len(messages), *(cut for cut in cuts if 0 < cut < len(messages))})
    origin = [raw for raw in messages if raw[:1] == b"O"]
    entries = []
    ordinal, last = 0, before
    for start, stop in pairwise(bounds):
        piece = messages[start:stop] if start == 0 else [*origin, *messages[start:stop]]
        changes = count_changes(piece)
        first = Position(unit.lsn, ordinal)
        ordinal += changes
        last = Position(unit.lsn, ordinal - 1) if changes else last
        ends = stop == len(messages)
        offsets, body = pack(piece)
        entry = Entry(
            kind=Kind.FRAGMENT, first=first, last=last,
            end_lsn=unit.end_lsn if ends else end_lsn,
            first_time=unit.time, last_time=unit.time, xid=unit.xid,
            begins=start == 0, ends=ends, transactions=int(ends), changes=changes,
            schemas=count_schemas(piece), offsets=offsets, body=body,
        )  # fmt: skip
        entries.append(entry)
    return entries


def progress_entry(appender: Appender, end_lsn: int) -> Entry:
    mark = appender.mark
    return Entry(
        kind=Kind.PROGRESS, first=mark.position, last=mark.position, end_lsn=Lsn(end_lsn),
        first_time=mark.time, last_time=mark.time, offsets=NO_OFFSETS, body=b"",
    )  # fmt: skip


class Workload:
    """An endless source of random units, in commit order."""

    def __init__(self, rng: random.Random, *, start: int = START) -> None:
        self._rng = rng
        self._lsn = int(start)
        self._time = TIME
        self._xid = 700
        self._versions = dict.fromkeys((1, 2, 3), 0)

    def unit(self, *, steps: int | None = None) -> Unit:
        rng = self._rng
        self._lsn += rng.randrange(1, 200)
        if steps is None and rng.random() < 0.1:
            return loose(self._lsn, self._time)
        # Commit times can go back a little between transactions.
        self._time += rng.randrange(-SECOND, 10 * SECOND)
        self._xid += 1
        lsn = Lsn(self._lsn)
        self._lsn += 48
        count = rng.choice((1, 1, 2, 5, 0)) if steps is None else steps
        return Unit(
            lsn=lsn,
            end_lsn=Lsn(self._lsn),
            time=self._time,
            xid=self._xid,
            origin=rng.choice(("", "", "node_2")),
            steps=tuple(self._step(lsn) for _ in range(count)),
        )

    def wal_end(self) -> Lsn:
        """WAL goes on without a change of ours."""
        self._lsn += self._rng.randrange(1, 100)
        return Lsn(self._lsn)

    def _step(self, lsn: int) -> Step:
        rng = self._rng
        oid = rng.choice((1, 2, 3))
        if rng.random() < 0.08:
            self._versions[oid] += 1
        table = relation(oid, self._versions[oid])
        match rng.randrange(8):
            case 0:
                return update(table, rng.randrange(100))
            case 1:
                return delete(table, rng.randrange(100))
            case 2:
                return truncate(*(relation(o, v) for o, v in self._versions.items()))
            case 3:
                return message(lsn)
            case _:
                return insert(table, rng.randrange(100), "v" * rng.randrange(30))


class TestLog:
    """A log in memory with all that was put into it."""

    __test__ = False

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        segment_bytes: int = 64 << 20,
        codec: int = Codec.NONE,
        log_id: str = "",
    ) -> None:
        self.store = MemoryStore() if store is None else store
        self.layout = Layout(segment_bytes=segment_bytes, codec=codec)
        self.session = Session()
        self.units: list[Unit] = []
        self.entries: list[Entry] = []
        self.lease = Lease.acquire(self.store)
        self.appender = Appender.create(
            self.store,
            self.lease,
            self.layout,
            identity=IDENTITY,
            start_lsn=START,
            log_id=log_id,
            now=lambda: NOW,
        )

    def append(self, *units: Unit) -> None:
        """Whole units as one entry."""
        self._put(self.whole(*units))
        self.units += units

    def append_all(self, units: Iterable[Unit]) -> None:
        """One entry a unit."""
        for unit in units:
            self.append(unit)

    def whole(self, *units: Unit) -> Entry:
        mark = self.appender.mark
        return whole_entry(units, self.session, mark.end_lsn, mark.time)

    def append_pieces(self, unit: Unit, *cuts: int, ending: bool = True) -> None:
        """One transaction as fragments; without `ending` the last one never comes."""
        pieces = self.pieces(unit, *cuts)
        for entry in pieces if ending else pieces[:-1]:
            self._put(entry)
        if ending:
            self.units.append(unit)

    def pieces(self, unit: Unit, *cuts: int) -> list[Entry]:
        mark = self.appender.mark
        return fragment_entries(unit, self.session, cuts, mark.end_lsn, self.appender.last)

    def progress(self, end_lsn: int) -> None:
        self._put(progress_entry(self.appender, end_lsn))

    def _put(self, entry: Entry) -> None:
        self.appender.append(entry)
        self.entries.append(replace(entry, epoch=self.lease.epoch))

    def close(self) -> None:
        self.appender.close()
        self.lease.release()

    def changes(self) -> list[Change]:
        """What was put in."""
        return [change for unit in self.units for change in unit.changes()]

    def log(self) -> Log:
        return Log(self.store)


def random_log(
    rng: random.Random,
    *,
    entries: int = 12,
    segment_bytes: int = 700,
    codec: int = Codec.NONE,
    store: MemoryStore | None = None,
) -> TestLog:
    """A log of several segments with everything in it."""
    made = TestLog(store, segment_bytes=segment_bytes, codec=codec)
    load = Workload(rng)
    for _ in range(entries):
        match rng.randrange(6):
            case 0:
                unit = load.unit(steps=rng.randrange(1, 9))
                made.append_pieces(unit, *(rng.randrange(1, 12) for _ in range(3)))
            case 1:
                made.progress(load.wal_end())
            case _:
                made.append(*(load.unit() for _ in range(rng.randrange(1, 4))))
    return made


def all_changes(store: Store) -> list[Change]:
    """What a reader finds from the beginning to the end."""
    log = Log(store)
    return list(read_changes(log, log.resolve(Earliest())))


def same(found: Sequence[Change], expected: Sequence[Change]) -> bool:
    """Equal but for the time of loose messages, which have none of their own."""
    return [_timeless(change) for change in found] == [_timeless(change) for change in expected]


def _timeless(change: Change) -> Change:
    return change if change.xid else replace(change, committed_at=NOW)


def lengths(entry: Entry) -> list[int]:
    """The lengths of an entry's messages."""
    return [int(length) for length in np.diff(entry.offsets)]


@pytest.fixture
def made() -> Iterator[TestLog]:
    """A log of three small transactions in one segment."""
    log = TestLog()
    for number in range(3):
        log.append(transaction(number))
    yield log
    log.close()


def transaction(number: int, *steps: Step, origin: str = "", rows: int = 2) -> Unit:
    """The n-th transaction of a test: at 0x1100, 0x1200 and so on, a second apart."""
    lsn = START + 0x100 * (number + 1)
    return Unit(
        lsn=Lsn(lsn),
        end_lsn=Lsn(lsn + 0x30),
        time=TIME + number * SECOND,
        xid=700 + number,
        origin=origin,
        steps=steps or tuple(insert(relation(1), 10 * number + row) for row in range(rows)),
    )

"""Chunks meet the stream, in a database whose commits become visible in another order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.backfill.handover import handed_over, place, values
from tailrace.backfill.spool import Chunk, Spool
from tailrace.change import Op
from tailrace.decode.group import Cells
from tailrace.log.changes import read_changes
from tailrace.position import READS, Lsn, Position
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.snapshot.table import Table
from tailrace.visibility import Visibility
from tailrace.wire import pgoutput
from tests.chance import examples
from tests.fix_log import START, TIME, Step, TestLog, Unit, truncate

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.change import Change
    from tailrace.change import Row as Cellular

    Row = tuple[bytes, bytes]

FIRST_XID = 700


def table(*, keyed: bool) -> Relation:
    return Relation(
        oid=1,
        namespace="public",
        name="t",
        replica_identity=ReplicaIdentity.DEFAULT if keyed else ReplicaIdentity.FULL,
        columns=(
            Column(name="id", type_oid=23, key=True),
            Column(name="v", type_oid=25, key=not keyed),
        ),
    )


@dataclass
class Simulated:
    """Rows, transactions that are committed in the log and visible to nobody yet, and the log."""

    relation: Relation
    chance: random.Random
    rows: list[Row] = field(default_factory=list)
    """With everything that is committed."""
    hidden: dict[int, list[tuple[str, Row, Row]]] = field(default_factory=dict)
    """What each invisible transaction did: kind, old row, new row."""
    log: TestLog = field(default_factory=TestLog)
    lsn: int = int(START)
    xid: int = FIRST_XID
    locked: int = 0

    @property
    def keyed(self) -> bool:
        return self.relation.replica_identity is ReplicaIdentity.DEFAULT

    def transact(self) -> None:
        """A transaction of rows that no invisible one holds; it is in the log and not visible."""
        # Whoever has emptied the table keeps all others out.
        self.hidden.pop(self.locked, None)
        held = {row for done in self.hidden.values() for _, old, new in done for row in (old, new)}
        held_keys = {row[0] for row in held}
        done: list[tuple[str, Row, Row]] = []
        steps: list[Step] = []
        for _ in range(self.chance.randrange(1, 4)):
            free = [row for row in self.rows if row[0] not in held_keys]
            kind = self.chance.choice(("insert", "update", "delete"))
            key = str(self.chance.randrange(8)).encode()
            new = (key, str(self.chance.randrange(3)).encode())
            if kind == "insert" or not free:
                taken = self.keyed and any(row[0] == key for row in self.rows)
                if taken or key in held_keys:
                    continue
                self.rows.append(new)
                done.append(("insert", new, new))
                steps.append(_step(pgoutput.Insert(oid=1, new=new), self.relation))
                continue
            old = self.chance.choice(free)
            self.rows.remove(old)
            if kind == "delete":
                done.append(("delete", old, old))
                steps.append(_step(pgoutput.Delete(oid=1, old=self._old(old)), self.relation))
                continue
            if key in held_keys or (self.keyed and any(row[0] == key for row in self.rows)):
                new = (old[0], new[1])
            self.rows.append(new)
            done.append(("update", old, new))
            moved = not self.keyed or old[0] != new[0]
            before = self._old(old) if moved else None
            steps.append(_step(pgoutput.Update(oid=1, old=before, new=new), self.relation))
        if steps:
            self._commit(done, steps)

    def truncate(self) -> None:
        if not self.hidden:
            # Nobody writes who is not through: it takes the whole table.
            done = [("delete", row, row) for row in self.rows]
            self.rows.clear()
            self.locked = self.xid
            self._commit(done, [truncate(self.relation)])

    def _old(self, row: Row) -> pgoutput.OldKey | pgoutput.OldRow:
        key: Cellular = (row[0], None)
        return pgoutput.OldKey(key) if self.keyed else pgoutput.OldRow(row)

    def _commit(self, done: list[tuple[str, Row, Row]], steps: list[Step]) -> None:
        lsn = Lsn(self.lsn)
        self.lsn += 64
        end = Lsn(self.lsn - 8)
        self.log.append(Unit(lsn=lsn, end_lsn=end, time=TIME, xid=self.xid, steps=tuple(steps)))
        self.hidden[self.xid] = done
        self.xid += 1

    def show(self) -> None:
        """An invisible transaction becomes visible, whichever."""
        if self.hidden:
            del self.hidden[self.chance.choice(list(self.hidden))]

    def seen(self) -> list[Row]:
        """The rows as a snapshot has them."""
        rows = list(self.rows)
        for xid in sorted(self.hidden, reverse=True):
            for kind, old, new in reversed(self.hidden[xid]):
                if kind != "delete":
                    rows.remove(new)
                if kind != "insert":
                    rows.append(old)
        return rows

    def chunk(self, number: int, spool: Spool) -> Chunk:
        rows = self.seen()
        image = tuple(Cells(pa.array([row[at] for row in rows], pa.binary())) for at in range(2))
        half = len(rows) // 2
        cut = [
            (half, tuple(Cells(cells.values.slice(0, half)) for cells in image)),
            (len(rows) - half, tuple(Cells(cells.values.slice(half)) for cells in image)),
        ]
        count, size = spool.write(number, cut)
        made = Chunk(
            number=number,
            backfill="b",
            table=Table(relation=self.relation, types={}),
            key=("id",) if self.keyed else (),
            visibility=Visibility(
                min([*self.hidden, self.xid]), self.xid, tuple(sorted(self.hidden))
            ),
            lsn=Lsn(self.lsn),
            taken_at=datetime(2026, 1, 1, tzinfo=UTC),
            since=self.log.log().earliest(),
            rows=count,
            size=size,
            read=count,
            cursor=(),
            last=True,
        )
        spool.add(made)
        return made


def _step(message: pgoutput.Insert | pgoutput.Update | pgoutput.Delete, relation: Relation) -> Step:
    op = Op[type(message).__name__.upper()]
    return Step(message=message, needs=(relation,), expected=({"op": op, "relation": relation},))


def consume(rows: Counter[Row], change: Change, *, keyed: bool) -> None:
    """A consumer that starts with nothing; what it does not have it can not delete."""

    def drop(row: Cellular) -> None:
        for held in [held for held in rows if held[0] == row[0]] if keyed else [row]:
            if rows[held]:  # type: ignore[index]
                rows[held] -= 1  # type: ignore[index]

    if change.op is Op.TRUNCATE:
        rows.clear()
    if change.before is not None:
        drop(change.before)
    elif change.op is Op.UPDATE and change.after is not None:
        drop(change.after)
    if change.after is not None:
        rows[change.after] += 1  # type: ignore[index]


@pytest.mark.parametrize("keyed", [True, False])
@settings(max_examples=examples(1.5))
@given(seed=st.integers(0, 1 << 32))
def test_a_consumer_that_starts_with_nothing_has_every_row(
    tmp_path_factory: pytest.TempPathFactory, keyed: bool, seed: int
) -> None:
    """GIVEN any order of commits and visibility WHEN a chunk stands behind what it sees, anywhere,
    THEN whoever reads the stream from anywhere before the unseen ones has the table."""
    chance = random.Random(seed)
    simulated = Simulated(table(keyed=keyed), chance)
    spool = Spool(tmp_path_factory.mktemp("spool"))
    for _ in range(chance.randrange(6)):
        simulated.transact()
    simulated.hidden.clear()
    # The consumer begins here: what was there before it has never seen.
    begin = simulated.log.log().end().position
    for _ in range(chance.randrange(25)):
        chance.choice((simulated.transact, simulated.show, simulated.truncate))()
    chunk = simulated.chunk(7, spool)
    simulated.log.progress(simulated.lsn)
    covered = simulated.log.log().end().position
    for _ in range(chance.randrange(12)):
        chance.choice((simulated.transact, simulated.show))()
    log = simulated.log.log()
    changes = list(read_changes(log, log.earliest()))
    ends = [covered, *(unit.changes()[-1].position for unit in simulated.log.units)]
    upto = chance.choice([end for end in ends if end >= covered])

    rows: Counter[Row] = Counter()
    at = place(chunk, upto)
    for change in changes:
        # Without a key nobody can tell a row of the chunk from one that came before: there the
        # consumer begins with the chunk, and has only what that does not see.
        seen = chunk.visibility.sees(np.array([change.xid or 0], np.uint32))[0]
        if begin < change.position <= at and (keyed or not seen):
            consume(rows, change, keyed=keyed)
        assert change.position <= upto or change.position > at
    last = max(upto, Position(at.lsn, READS))
    for group in handed_over(spool, chunk, log, at):
        assert group.after is not None
        columns = [cells.values.to_pylist() for cells in group.after if cells is not None]
        for row, lsn, ordinal in zip(
            zip(*columns, strict=True), group.lsn, group.ordinal, strict=True
        ):
            found = Position(Lsn(int(lsn)), int(ordinal))
            assert last < found <= at
            last = found
            if keyed:
                for held in [held for held in rows if held[0] == row[0]]:
                    del rows[held]
            rows[row] += 1
    for change in changes:
        if change.position > at:
            consume(rows, change, keyed=keyed)
    assert +rows == Counter(simulated.rows)


def test_values_tell_null_from_empty_and_know_where_one_ends() -> None:
    one = Cells(pa.array([b"a", b"ab", None, b""], pa.binary()))
    other = Cells(pa.array([b"bc", b"c", b"", None], pa.binary()))
    found = values((one, other), [0, 1], 4).to_pylist()
    assert len(set(found)) == 4


def test_a_chunk_reads_as_it_was_written(tmp_path: Path) -> None:
    simulated = Simulated(table(keyed=True), random.Random(1))
    for _ in range(9):
        simulated.transact()
    spool = Spool(tmp_path / "spool")
    assert spool.numbers() == []
    chunk = simulated.chunk(3, spool)
    assert spool.numbers() == [3]
    assert spool.chunks(after=2) == [chunk]
    assert spool.chunks(after=3) == []
    assert sum(count for count, _ in spool.read(chunk)) == len(simulated.seen())
    spool.write(4, [])
    spool.sweep(3)
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == [
        "000000000003.arrow",
        "000000000003.json",
    ]
    spool.remove(3)
    assert list((tmp_path / "spool").iterdir()) == []

"""Pages enter the stream of a database whose commits become visible in another order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.backfill.handover import current_rows, page_position
from tailrace.backfill.spool import Page, Spool
from tailrace.backfill.values import row_values
from tailrace.change import Missing, Op
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

    Row = tuple[bytes, bytes, bytes]

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
            Column(name="large", type_oid=25, key=not keyed),
        ),
    )


@dataclass
class Simulated:
    """A table, its log, and transactions that are in the log but not visible yet."""

    relation: Relation
    chance: random.Random
    rows: list[Row] = field(default_factory=list)
    """The table with every committed transaction."""
    hidden: dict[int, list[tuple[str, Row, Row]]] = field(default_factory=dict)
    """The changes of each invisible transaction: kind, old row, new row."""
    log: TestLog = field(default_factory=TestLog)
    lsn: int = int(START)
    xid: int = FIRST_XID
    locked: int = 0

    @property
    def keyed(self) -> bool:
        return self.relation.replica_identity is ReplicaIdentity.DEFAULT

    def transact(self) -> None:
        """Commit a transaction on rows that no invisible one has locked. It is not visible yet."""
        # TRUNCATE locks the whole table until it is visible.
        self.hidden.pop(self.locked, None)
        held = {row for done in self.hidden.values() for _, old, new in done for row in (old, new)}
        held_keys = {row[0] for row in held}
        done: list[tuple[str, Row, Row]] = []
        steps: list[Step] = []
        for _ in range(self.chance.randrange(1, 4)):
            free = [row for row in self.rows if row[0] not in held_keys]
            kind = self.chance.choice(("insert", "update", "delete"))
            key = str(self.chance.randrange(8)).encode()
            new = (key, self._value(), self._value())
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
                new = (old[0], *new[1:])
            sent: Cellular = new
            if self.keyed and self.chance.random() < 0.5:
                new = (*new[:2], old[2])
                sent = (*new[:2], Missing.UNCHANGED)
            self.rows.append(new)
            done.append(("update", old, new))
            moved = not self.keyed or old[0] != new[0]
            before = self._old(old) if moved else None
            steps.append(_step(pgoutput.Update(oid=1, old=before, new=sent), self.relation))
        if steps:
            self._commit(done, steps)

    def _value(self) -> bytes:
        return str(self.chance.randrange(3)).encode()

    def truncate(self) -> None:
        if not self.hidden:
            # TRUNCATE waits until no transaction has a lock on the table.
            done = [("delete", row, row) for row in self.rows]
            self.rows.clear()
            self.locked = self.xid
            self._commit(done, [truncate(self.relation)])

    def _old(self, row: Row) -> pgoutput.OldKey | pgoutput.OldRow:
        key: Cellular = (row[0], None, None)
        return pgoutput.OldKey(key) if self.keyed else pgoutput.OldRow(row)

    def _commit(self, done: list[tuple[str, Row, Row]], steps: list[Step]) -> None:
        lsn = Lsn(self.lsn)
        self.lsn += 64
        end = Lsn(self.lsn - 8)
        self.log.append(Unit(lsn=lsn, end_lsn=end, time=TIME, xid=self.xid, steps=tuple(steps)))
        self.hidden[self.xid] = done
        self.xid += 1

    def show(self) -> None:
        """Make one of the invisible transactions visible."""
        if self.hidden:
            del self.hidden[self.chance.choice(list(self.hidden))]

    def seen(self) -> list[Row]:
        """The rows that a snapshot sees."""
        rows = list(self.rows)
        for xid in sorted(self.hidden, reverse=True):
            for kind, old, new in reversed(self.hidden[xid]):
                if kind != "delete":
                    rows.remove(new)
                if kind != "insert":
                    rows.append(old)
        return rows

    def page(self, number: int, spool: Spool) -> Page:
        rows = self.seen()
        image = tuple(Cells(pa.array([row[at] for row in rows], pa.binary())) for at in range(3))
        half = len(rows) // 2
        cut = [
            (half, tuple(Cells(cells.values.slice(0, half)) for cells in image)),
            (len(rows) - half, tuple(Cells(cells.values.slice(half)) for cells in image)),
        ]
        count, size = spool.write(number, cut)
        page = Page(
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
        spool.add(page)
        return page


def _step(message: pgoutput.Insert | pgoutput.Update | pgoutput.Delete, relation: Relation) -> Step:
    op = Op[type(message).__name__.upper()]
    return Step(message=message, needs=(relation,), expected=({"op": op, "relation": relation},))


def consume(rows: Counter[Row], change: Change, *, keyed: bool) -> None:
    """Apply a change to the rows of a consumer that started empty: missing rows are ignored.

    A large value that an update did not modify is that of the row it replaces.
    """

    def drop(row: Cellular) -> bytes:
        large = b"lost"
        for held in [held for held in rows if held[0] == row[0]] if keyed else [row]:
            if rows[held]:  # type: ignore[index]
                rows[held] -= 1  # type: ignore[index]
                large = held[2]  # type: ignore[assignment]
        return large

    large = b""
    if change.op is Op.TRUNCATE:
        rows.clear()
    if change.before is not None:
        large = drop(change.before)
    elif change.op is Op.UPDATE and change.after is not None:
        large = drop(change.after)
    if change.after is not None:
        known = [large if cell is Missing.UNCHANGED else cell for cell in change.after]
        rows[tuple(known)] += 1  # type: ignore[index]


@pytest.mark.parametrize("keyed", [True, False])
@settings(max_examples=examples(1.5))
@given(seed=st.integers(0, 1 << 32))
def test_a_consumer_that_starts_empty_has_every_row(
    tmp_path_factory: pytest.TempPathFactory, keyed: bool, seed: int
) -> None:
    """GIVEN any order of commits and visibility WHEN a page is delivered anywhere after what it
    sees THEN a consumer that reads from before the unseen changes has the whole table."""
    chance = random.Random(seed)
    simulated = Simulated(table(keyed=keyed), chance)
    spool = Spool(tmp_path_factory.mktemp("spool"))
    for _ in range(chance.randrange(6)):
        simulated.transact()
    simulated.hidden.clear()
    # The consumer starts here and has not received earlier changes.
    begin = simulated.log.log().end().position
    for _ in range(chance.randrange(25)):
        chance.choice((simulated.transact, simulated.show, simulated.truncate))()
    page = simulated.page(7, spool)
    simulated.log.progress(simulated.lsn)
    covered = simulated.log.log().end().position
    for _ in range(chance.randrange(12)):
        chance.choice((simulated.transact, simulated.show))()
    log = simulated.log.log()
    changes = list(read_changes(log, log.earliest()))
    ends = [covered, *(unit.changes()[-1].position for unit in simulated.log.units)]
    upto = chance.choice([end for end in ends if end >= covered])

    rows: Counter[Row] = Counter()
    at = page_position(page, upto)
    for change in changes:
        # Without a key a row of the page cannot be told from an earlier equal row. There the
        # consumer starts with the page, and applies only changes that the page does not see.
        seen = page.visibility.sees(np.array([change.xid or 0], np.uint32))[0]
        if begin < change.position <= at and (keyed or not seen):
            consume(rows, change, keyed=keyed)
        assert change.position <= upto or change.position > at
    last = max(upto, Position(at.lsn, READS))
    for group in current_rows(spool, page, log, at):
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


def altered(relation: Relation) -> Relation:
    """The table after `large` was dropped and `v` got another name."""
    (key, value, _) = relation.columns
    return replace(relation, columns=(key, replace(value, name="w")))


def test_columns_of_a_table_without_a_key_are_altered_while_its_page_waits(tmp_path: Path) -> None:
    """The rows that are left are delivered: the stream never has them."""
    before = table(keyed=False)
    after = altered(before)
    simulated = Simulated(before, random.Random(1))
    simulated.rows = [(b"1", b"a", b"x"), (b"1", b"a", b"y"), (b"2", b"b", b"z")]
    spool = Spool(tmp_path)
    page = simulated.page(7, spool)
    deleted = pgoutput.Delete(oid=1, old=pgoutput.OldRow((b"1", b"a")))
    inserted = pgoutput.Insert(oid=1, new=(b"3", b"c"))
    simulated._commit([], [_step(deleted, after), _step(inserted, after)])
    log = simulated.log.log()
    at = page_position(page, log.end().position)
    left = [
        value
        for group in current_rows(spool, page, log, at)
        for value in group.after[0].values.to_pylist()  # type: ignore[union-attr, index]
    ]
    assert left == [b"1", b"2"]


def test_row_values_differ_for_null_and_empty_and_for_other_cell_borders() -> None:
    one = Cells(pa.array([b"a", b"ab", None, b""], pa.binary()))
    other = Cells(pa.array([b"bc", b"c", b"", None], pa.binary()))
    found = row_values((one, other), [0, 1], 4).to_pylist()
    assert len(set(found)) == 4


def test_a_page_is_read_as_it_was_written(tmp_path: Path) -> None:
    simulated = Simulated(table(keyed=True), random.Random(1))
    for _ in range(9):
        simulated.transact()
    spool = Spool(tmp_path / "spool")
    assert spool.numbers() == []
    page = simulated.page(3, spool)
    assert spool.numbers() == [3]
    assert spool.pages(after=2) == [page]
    assert spool.pages(after=3) == []
    assert sum(count for count, _ in spool.read(page)) == len(simulated.seen())
    spool.write(4, [])
    spool.sweep(3)
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == [
        "000000000003.arrow",
        "000000000003.json",
    ]
    spool.remove(3)
    assert list((tmp_path / "spool").iterdir()) == []

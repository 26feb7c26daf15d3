"""Mode `tables`: the rows of the target's tables become those of the source.

All changes of a table in a batch become a few statements (`net`). Between tables no order is kept
within a batch; a foreign key or a unique column that this violates makes the batch fail, and its
halves are applied one after the other (`sifting`).

What a message must carry is checked for every message: an unknown column, or a key that the source
does not log, stops the pipeline. Nothing is guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SinkRefusedError
from tailrace.sinks.postgres import binary
from tailrace.sinks.postgres.catalog import describe
from tailrace.sinks.postgres.destination import table_of
from tailrace.sinks.postgres.failures import RefusedMessageError, refused
from tailrace.sinks.postgres.net import CREATE_STAGED, STAGED, Statements
from tailrace.sinks.postgres.text import not_text

if TYPE_CHECKING:
    from tailrace.postgres.names import TableName
    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.postgres.catalog import Target
    from tailrace.sinks.postgres.session import Session

    Summary = list[tuple[str, list[str] | None]]
    """Kinds of events, and their columns."""

_COPY = f"COPY {STAGED} (n, payload) FROM STDIN (FORMAT binary)"


class Tables:
    """The target tables of one lane's sink."""

    def __init__(self) -> None:
        self._staged = False
        """Whether the session has the temporary tables of all targets."""
        self._targets: dict[TableName, Target] = {}
        """The targets that the session has temporary tables for."""
        self._checked: set[bytes] = set()
        """The destinations that this transaction has used."""

    def connected(self, session: Session) -> None:
        """The session has no temporary tables."""
        del session
        self.ended(committed=False)

    def opened(self) -> None:
        """Nothing to do."""

    def ended(self, *, committed: bool) -> None:
        """A rollback drops the temporary tables that its transaction created.

        After a commit they are empty. The targets may be altered until the next transaction.
        """
        self._checked = set()
        if not committed:
            self._staged = False
            self._targets = {}

    def inspect(self, batch: pa.RecordBatch) -> dict[int, Outcome]:
        """The rows whose destination is not the name of a table."""
        found: dict[int, Outcome] = {}
        destinations = batch.column("destination")
        for each in pc.unique(destinations).to_pylist():
            if table_of(each) is None:
                shown = repr(each[:200].decode("utf-8", "replace"))
                why = refused(
                    f"its destination {shown} is not the name of a table",
                    "A table is schema.table, as in SQL.",
                )
                rows = pc.indices_nonzero(pc.equal(destinations, each)).to_pylist()
                found.update(dict.fromkeys(rows, why))
        why = refused("its payload is not UTF-8, or contains a NUL character")
        found.update(dict.fromkeys(not_text(batch.column("payload")), why))
        return found

    def prepare(self, session: Session, rows: pa.RecordBatch) -> None:
        """Create temporary tables for the targets of these rows, outside of a savepoint."""
        if not self._staged:
            session.run(CREATE_STAGED)
            self._staged = True
        for destination in pc.unique(rows.column("destination")).to_pylist():
            if destination not in self._checked:
                table = table_of(destination)
                assert table is not None  # `inspect` has checked them all
                target = describe(session, table)
                if self._targets.get(table) != target:
                    session.run(Statements(target).create)
                    self._targets[table] = target
                self._checked.add(destination)

    def store(self, session: Session, rows: pa.RecordBatch) -> None:
        """Apply changes, table by table."""
        coded = rows.column("destination").dictionary_encode()
        codes = coded.indices.to_numpy()
        for code, destination in enumerate(coded.dictionary.to_pylist()):
            chosen = pa.array(np.flatnonzero(codes == code))
            table = table_of(destination)
            assert table is not None
            payloads = rows.column("payload").take(chosen)
            _Application(session, self._targets[table]).apply(payloads)


class _Application:
    """Changes of one table."""

    def __init__(self, session: Session, target: Target) -> None:
        self._session = session
        self._target = target
        self._sql = Statements(target)

    def apply(self, payloads: pa.BinaryArray) -> None:
        """Apply them."""
        count, sql, execute = len(payloads), self._sql, self._session.execute
        # TRUNCATE of a temporary table that this transaction has filled.
        execute(f"TRUNCATE {STAGED}, {sql.work}")
        numbers = binary.integers(np.arange(count))
        self._session.copy(_COPY, binary.chunks([numbers, binary.plain(payloads)]))
        execute(sql.fill)
        summary = self._summary()
        if any(kind == "t" for kind, _ in summary):
            execute(sql.truncate)
            summary = self._summary()
        first = 0
        for n in self._moves(summary):
            self._compact(first, n - 1, summary)
            self._move(n)
            first = n + 1
        self._compact(first, count - 1, summary)

    def _summary(self) -> Summary:
        summary: Summary = self._session.execute(self._sql.summary).fetchall()
        self._check(summary)
        return summary

    def _check(self, summary: Summary) -> None:
        table, kinds = self._target.table, {kind for kind, _ in summary}
        if "x" in kinds:
            raise SinkRefusedError(
                f"target table {table}: a message is not a change of a row in shape `plain`",
                hint="Set `shape: plain`, and remove `messages` of the pipeline.",
            )
        key = [column.name for column, _ in self._target.key]
        if "m" in kinds:
            raise SinkRefusedError(
                f"target table {table}: its primary key ({', '.join(key)}) is not part of the "
                "replica identity of the source's table, so old keys are unknown",
                hint="Use the same key in both tables, or set REPLICA IDENTITY FULL in the source.",
            )
        for _, present in summary:
            self._check_columns(present, key)

    def _check_columns(self, present: list[str] | None, key: list[str]) -> None:
        table = self._target.table
        if present is None:
            return
        if unknown := sorted(set(present) - self._target.names):
            raise SinkRefusedError(
                f"target table {table} lacks the column {unknown[0]!r} of the source",
                hint=f"ALTER TABLE {table.quoted} ADD COLUMN ...; or leave it out with `select`.",
            )
        if missing := [name for name in key if name not in present]:
            raise SinkRefusedError(
                f"target table {table}: messages lack the column {missing[0]!r} of its key",
                hint="Add the column to `select` of the pipeline.",
            )

    def _moves(self, summary: Summary) -> list[int]:
        if not {"q", "g"} <= {kind for kind, _ in summary}:
            return []
        return [n for (n,) in self._session.execute(self._sql.moves)]

    def _move(self, n: int) -> None:
        (present,) = self._session.execute(self._sql.columns_of(n)).fetchall()[0]
        if self._session.execute(self._sql.move(n, present)).rowcount != 1:
            raise self._row_missing()

    def _compact(self, first: int, last: int, summary: Summary) -> None:
        """Apply the net effect of the events from `first` to `last`, without moves."""
        if first > last:
            return
        sql, execute = self._sql, self._session.execute
        kinds = {kind for kind, _ in summary}
        if "g" in kinds:
            execute(sql.delete(first, last))
        for kind, present in summary:
            if kind == "p" and present is not None:
                execute(sql.upsert(first, last, present))
        if "q" not in kinds:
            return
        for rank, present, count in execute(sql.rank(first, last)).fetchall():
            done = execute(sql.patch(first, last, rank, present))
            if done.rowcount != count:
                raise self._row_missing()

    def _row_missing(self) -> RefusedMessageError:
        return RefusedMessageError(
            f"table {self._target.table} has no row with its key, and an update that did not "
            "modify large values does not carry them",
            "Backfill the table: tailrace backfill PIPELINE TABLE",
        )

"""Which messages of a batch the target refuses.

PostgreSQL names no row when a statement with thousands of them fails. The batch is stored in a
savepoint. If that fails because of a message, the halves of the batch are stored, and so on. What
is left are single messages: those are refused. Halves that succeed stay stored, in order.

After enough refused messages the rest is not tried: nothing of the flush is committed anyway, and
the messages come again without the refused ones. In a large flush more of them are enough, because
it costs more to repeat it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import psycopg

from tailrace.sinks.groups import groups_of
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.postgres.failures import RefusedMessageError, outcome_of, translate_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tailrace.sinks.groups import Groups
    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.postgres.session import Session
    from tailrace.sinks.unaccepted import Unaccepted

_ENOUGH, _ROWS_PER_REFUSED = 100, 1000
_SAVEPOINT = "tailrace"


class Store(Protocol):
    """How messages are stored: the two modes of the sink."""

    def connected(self, session: Session) -> None:
        """The session is new: create or check what it needs, outside of a transaction."""

    def opened(self) -> None:
        """A batch begins, and no transaction is open."""

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that cannot be stored."""

    def prepare(self, session: Session, rows: pa.RecordBatch) -> None:
        """These rows will be stored. The transaction is open, without a savepoint."""

    def store(self, session: Session, rows: pa.RecordBatch) -> None:
        """Store rows in the open transaction.

        Raises psycopg's errors, and `RefusedMessageError`.
        """

    def ended(self, *, committed: bool) -> None:
        """The transaction has ended."""


def sift(
    session: Session,
    store: Store,
    rows: pa.RecordBatch,
    unaccepted: Unaccepted,
    *,
    written: int = 0,
) -> None:
    """Store messages; add those that are refused, and those they hold back, to `unaccepted`.

    `written` counts the messages since the last flush.
    """
    enough = max(_ENOUGH, written // _ROWS_PER_REFUSED)
    remaining = [(rows, groups_of(rows))]
    while remaining:
        every = remaining.pop()
        rows, groups, decided = unaccepted.hold_back(*every)
        if decided < every[0].num_rows:
            remaining.append(_slice(*every, decided))
        if not rows.num_rows or _refused(unaccepted) >= enough:
            continue
        outcome = _attempt(session, store, rows)
        if outcome is None:
            continue
        if rows.num_rows == 1:
            unaccepted.add(rows, groups, outcome)
            continue
        half = rows.num_rows // 2
        remaining += [_slice(rows, groups, half), _slice(rows, groups, 0, half)]


def _slice(
    rows: pa.RecordBatch, groups: Groups, first: int, end: int | None = None
) -> tuple[pa.RecordBatch, Groups]:
    count = (rows.num_rows if end is None else end) - first
    return rows.slice(first, count), groups.slice(first, count)


def _attempt(session: Session, store: Store, rows: pa.RecordBatch) -> Outcome | None:
    """Store rows in a savepoint; why a message of them is refused, or None."""
    session.run(f"SAVEPOINT {_SAVEPOINT}")
    try:
        store.store(session, rows)
    except RefusedMessageError as error:
        outcome = error.outcome
    except psycopg.Error as error:
        found = outcome_of(error, dsn=session.dsn)
        if found is None:
            raise translate_error(error, dsn=session.dsn) from error
        outcome = found
    else:
        session.run(f"RELEASE {_SAVEPOINT}")
        return None
    session.run(f"ROLLBACK TO {_SAVEPOINT}; RELEASE {_SAVEPOINT}")
    return outcome


def _refused(unaccepted: Unaccepted) -> int:
    return sum(failure.outcome.verdict is Verdict.REFUSED for failure in unaccepted.failures())

"""The bound of a snapshot: the LSN up to which it contains every change. Creek's header states it.

A Creek client skips changes up to the header's LSN and applies later ones. So no change that the
snapshot does not see may have an LSN at or before the bound; changes that it sees may be applied
again.

The LSN at which the snapshot was taken is not a bound. It is read after the snapshot, and commits
may fall in between. And commits become visible in another order than they are in the write-ahead
log: a commit that waits for a synchronous standby is in the stream and in no snapshot yet.

The log decides. It holds every transaction of the table up to its own end, with the transaction id,
and the snapshot's visibility says for each id whether the snapshot sees it. Clients must start at
the first transaction that it does not see, or else at the end of the log; the bound is the LSN
right before. It is exact whenever it is computed. Capture gets a moment to reach the snapshot's
LSN: the further the log is, the fewer changes are replayed.

Creek clients find the place in the stream by a time, the header's `at`: they read the messages that
the stream has stored since then. A commit that is not visible yet may have been stored long before
the snapshot was taken, so the bound also has a time, with a margin for clocks that differ.

One case has no bound: a commit from before the pipeline's start that is not visible yet. It is
neither in the stream nor in the snapshot, so a new snapshot must be taken once it is visible.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import ConfigError, LogMissingError, PositionLostError, SnapshotLostError
from tailrace.log.changes import read_changes
from tailrace.log.reader import AtTime, Earliest, Log
from tailrace.position import MAX_LSN, Lsn, Position
from tailrace.postgres.connection import translate_error
from tailrace.snapshot.export import Bound
from tailrace.snapshot.unseen import UnseenTransactions
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    import threading
    from datetime import datetime
    from pathlib import Path

    from psycopg import Connection

    from tailrace.schema import Relation
    from tailrace.snapshot.export import Exported

UNKNOWN = Lsn(0)
_MAX_WAIT_S = 2.0
CLOCK_SKEW = timedelta(seconds=30)
"""How far the clocks of PostgreSQL and NATS may differ. Also how far a commit's timestamp may be
before the start that PostgreSQL reports for its transaction: the two are read at different times,
and clocks can be set back."""
_ROWS = """
SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::int8
FROM (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf
      UNION SELECT %(oid)s WHERE NOT EXISTS (SELECT FROM pg_partition_tree(%(oid)s))) leaf
JOIN pg_catalog.pg_class c ON c.oid = leaf.relid
"""


def bound(
    folder: Path,
    table: Relation,
    snapshot: Exported,
    start: Position | None,
    stopping: threading.Event,
) -> Bound:
    """The bound of a snapshot; at 0/0 if it is unknown.

    `start` is the pipeline's start position. SnapshotLostError: a new snapshot must be taken.
    """
    try:
        log = Log.open(folder)
        wait_for_log(log, snapshot, stopping)
        return bound_in(log, table, snapshot, start)
    except (ConfigError, LogMissingError, PositionLostError):
        # There is no log, or it begins after the start of a transaction that may still be open.
        return Bound(UNKNOWN, (snapshot.since or snapshot.taken_at) - CLOCK_SKEW)


def bound_in(log: Log, table: Relation, snapshot: Exported, start: Position | None) -> Bound:
    """The bound according to the present content of a log."""
    end = log.end()
    unseen = UnseenTransactions(log, table, log.resolve(_oldest(snapshot)))
    first = unseen.first(snapshot.visibility, end.position)
    if first is None:
        lsn = Lsn(max(min(end.end_lsn, snapshot.lsn) - 1, 0))
        return Bound(lsn, snapshot.taken_at - CLOCK_SKEW)
    _check_visible(first, start)
    lsn = Lsn(max(min(first, end.end_lsn, snapshot.lsn) - 1, 0))
    return Bound(lsn, min(_commit_time(log, first), snapshot.taken_at) - CLOCK_SKEW)


def _commit_time(log: Log, lsn: Lsn) -> datetime:
    """When the transaction that committed at an LSN was committed."""
    before = Position(Lsn(lsn - 1), MAX_LSN)
    return next(read_changes(log, before, log.end().position)).committed_at


def check_visible(
    folder: Path, table: Relation, snapshot: Exported, start: Position | None
) -> None:
    """Raise SnapshotLostError for the case without a bound."""
    if start is None:
        return
    try:
        log = Log.open(folder)
        oldest = log.resolve(_oldest(snapshot))
    except (ConfigError, LogMissingError, PositionLostError):
        return
    upto = min(start, log.end().position)
    if oldest < upto:
        unseen = UnseenTransactions(log, table, oldest)
        _check_visible(unseen.first(snapshot.visibility, upto), start)


def _check_visible(first: Lsn | None, start: Position | None) -> None:
    if first is not None and start is not None and first <= start.lsn:
        raise SnapshotLostError(
            f"the commit at {first}, before the pipeline's start, is not visible yet",
            hint="It waits for a synchronous standby: check synchronous_standby_names.",
        )


def _oldest(snapshot: Exported) -> Earliest | AtTime:
    since = snapshot.since
    return Earliest() if since is None else AtTime(PgTime.of(since - CLOCK_SKEW))


def wait_for_log(log: Log, snapshot: Exported, stopping: threading.Event) -> None:
    """Wait until the log has everything that the snapshot sees, for two seconds at most."""
    left_s = _MAX_WAIT_S

    def wait(seconds: float) -> bool:
        nonlocal left_s
        left_s -= seconds
        return left_s > 0 and not stopping.wait(seconds)

    log.wait_for_lsn(snapshot.lsn, wait)


def approximate_rows(connection: Connection, table: Relation) -> int:
    """PostgreSQL's estimate of the number of rows; 0 if the table was never analyzed."""
    try:
        row = connection.execute(_ROWS, {"oid": table.oid}).fetchone()
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal
    assert row is not None
    return int(row[0])

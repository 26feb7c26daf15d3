"""Up to which LSN a snapshot has every change: what Creek's header says, and clients rely on.

A client of Creek leaves out changes up to the header's LSN and applies those behind it. So no
change that the snapshot does not see may have committed at or before it; changes that it does see
may come again.

The LSN at which a snapshot was taken will not do. It is read after the snapshot, and commits may
fall in between. And commits become visible in another order than they stand in the write-ahead log:
one that waits for a standby stands there, is in the stream, and is in no snapshot yet.

The log knows. It holds every transaction of the table that committed before its own end, with its
number, and the snapshot says of each whether it sees it. The first one that it does not see, or
else the end of the log, is where clients have to begin; the bound is the LSN right before. It is
exact, whenever it is computed, and nobody has to be waited for: capture is given a moment to come
to the snapshot, so that less comes again, and if it does not come, more does.

One commit cannot be had at all: one that hangs, from before the pipeline began. It is not in the
stream, and not in the snapshot. Then another snapshot has to be taken, when it is visible.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import ConfigError, PositionLostError, PostgresUnreachableError
from tailrace.log import awaited
from tailrace.log.reader import AtTime, Earliest, Log
from tailrace.log.store import LocalStore
from tailrace.position import Lsn
from tailrace.postgres.connection import translate_error
from tailrace.snapshot.unseen import Unseen
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from psycopg import Connection

    from tailrace.position import Position
    from tailrace.schema import Relation
    from tailrace.snapshot.export import Exported

NOWHERE = Lsn(0)
_MOMENT_S, _LOOK_S = 2.0, 0.02
_CLOCKS = timedelta(seconds=30)
"""How far a commit's time may lie before the time its transaction is said to have begun."""
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
    begun: Position | None,
    stopping: threading.Event,
) -> Lsn:
    """No change of the table up to here is unknown to the snapshot; 0/0 if that is not known.

    `begun` is where the pipeline began. An UnreachableError says that another snapshot is needed.
    """
    try:
        log = Log.open(folder)
        _give_a_moment(log, folder, snapshot.lsn, stopping)
        return bound_in(log, table, snapshot, begun)
    except (ConfigError, PositionLostError):
        # There is no log, or it begins behind what somebody may have been writing ever since.
        return NOWHERE


def bound_in(log: Log, table: Relation, snapshot: Exported, begun: Position | None) -> Lsn:
    """The bound, as far as a log tells."""
    end, since = log.end(), snapshot.since
    start = Earliest() if since is None else AtTime(PgTime.of(since - _CLOCKS))
    first = Unseen(log, table, log.resolve(start)).first(snapshot.visibility, end.position)
    if first is None:
        return Lsn(max(min(end.end_lsn, snapshot.lsn) - 1, 0))
    if begun is not None and first <= begun.lsn:
        raise PostgresUnreachableError(
            f"the commit at {first} hangs: it is not visible, and was there before the pipeline",
            hint="It waits for a standby: look at synchronous_standby_names.",
        )
    return Lsn(max(min(first, end.end_lsn, snapshot.lsn) - 1, 0))


def _give_a_moment(log: Log, folder: Path, lsn: Lsn, stopping: threading.Event) -> None:
    """Let capture come to an LSN, if it is about to."""
    store = LocalStore(folder)
    if log.end().end_lsn < lsn and awaited.read(store) < lsn:
        awaited.ask(store, lsn)
    waited_s = 0.0
    while log.end().end_lsn < lsn and waited_s < _MOMENT_S and not stopping.wait(_LOOK_S):
        waited_s += _LOOK_S


def approximate_rows(connection: Connection, table: Relation) -> int:
    """How many rows PostgreSQL thinks there are; 0 when it does not know."""
    try:
        row = connection.execute(_ROWS, {"oid": table.oid}).fetchone()
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal
    assert row is not None
    return int(row[0])

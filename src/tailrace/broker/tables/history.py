"""The history of the tables: the servers, timelines and databases that they have been in.

The broker has no state outside of PostgreSQL, but its clients have. A database that was restored
from a backup has lost the newest records: clients may know offsets, and producers may have ids,
that the tables do not have yet. So the broker notices when the tables have moved:

- Clients see another cluster id.
- New producers get ids that no producer can have had before. Otherwise a producer from before the
  restore and a new one could have the same id, and a record of one would count as a retry of a
  record of the other.
- Producers from before the restore that the tables do not have count as expired: they go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.broker.tables.expiry import EXPIRED_UP_TO

if TYPE_CHECKING:
    from tailrace.broker.tables.pool import Connection

_PRESENT = """
SELECT format('%s-%s-%s', system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8), d.oid)
FROM pg_control_system(), pg_database d WHERE d.datname = current_database()
"""
"""Server, timeline and database. A server that was restored to an earlier point in time, or was a
standby before, has another timeline; a restored dump is in another database."""
_LAST = "SELECT id FROM kafka.clusters ORDER BY number DESC LIMIT 1"
_MOVED = "INSERT INTO kafka.clusters (id) VALUES (%s)"
_SKIP_IDS = "SELECT setval('kafka.producer_ids', nextval('kafka.producer_ids') + 1000000)"
"""Far more ids than producers get between a backup and its restore."""


async def identify(connection: Connection) -> str:
    """The id of the cluster for clients. Prepares the tables if they have moved."""
    (present,) = await (await connection.execute(_PRESENT)).fetchone() or ("",)
    row = await (await connection.execute(_LAST)).fetchone()
    last = None if row is None else row[0]
    if last != present:
        async with connection.transaction():
            await connection.execute(_MOVED, (present,))
            if last is not None:
                (last_id,) = await (await connection.execute(_SKIP_IDS)).fetchone() or (0,)
                await connection.execute(EXPIRED_UP_TO, {"id": last_id})
    if last not in (None, present):
        structlog.get_logger().warning("broker.database_moved", before=last, now=present)
    return str(present)

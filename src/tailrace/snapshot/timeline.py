"""Whether rows were read on the timeline that the log follows.

LSNs alone do not tell. After a failover to a standby that lacks the end of the WAL, the new primary
reaches the same LSNs with other transactions. A server that crashes may lose its last commits, if
they were made without synchronous_commit, and a snapshot may have seen them.

So rows count once the log has reached their LSN, and the session that read them, or holds their
snapshot, then still answers that it is on the log's timeline. The log has everything then that the
session saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import PostgresUnreachableError
from tailrace.postgres.catalog import read_timeline

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.log.reader import Log


def check_timeline(connection: Connection, log: Log) -> None:
    """Raise an error if the session ended, or if its server is on another timeline than the log."""
    # First the log: it may change its timeline in between, and is then ahead of the session.
    logged = log.timeline(log.end())
    current = read_timeline(connection)
    if current not in (None, logged):
        raise PostgresUnreachableError(
            f"the server is on timeline {current}, the log is on timeline {logged}",
            hint="A standby was promoted. If this error stays, check the hosts in source.dsn.",
        )

"""PostgreSQL's own count of the demo's changes, by triggers, to compare with the messages.

A count belongs to the transaction that it counts: a rollback removes it. Each session counts in
rows of its own, so sessions never wait for each other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from psycopg import sql

from tailrace.change import Op

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

Counts = Counter[tuple[str, Op]]
"""Changes by table and operation."""

_CREATE = """
CREATE SCHEMA demo;
CREATE TABLE demo.tally (
    pid int, "table" text, op text, changes bigint, PRIMARY KEY (pid, "table", op)
) WITH (fillfactor = 50);
CREATE FUNCTION demo.count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO demo.tally VALUES (pg_backend_pid(), TG_TABLE_NAME, lower(TG_OP), 1)
    ON CONFLICT (pid, "table", op) DO UPDATE SET changes = tally.changes + 1;
    RETURN NULL;
END $$
"""
_ROWS = (
    "CREATE TRIGGER tally_rows AFTER INSERT OR UPDATE OR DELETE ON {} "
    "FOR EACH ROW EXECUTE FUNCTION demo.count()"
)
_TRUNCATES = (
    "CREATE TRIGGER tally_truncates AFTER TRUNCATE ON {} "
    "FOR EACH STATEMENT EXECUTE FUNCTION demo.count()"
)
_READ = 'SELECT "table", op, sum(changes)::bigint FROM demo.tally GROUP BY 1, 2'
_TOTAL = "SELECT coalesce(sum(changes), 0)::bigint FROM demo.tally"
_END_IDLE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state LIKE 'idle in transaction%%' AND pid <> %s"
)


def of_table(counts: Counts, table: str) -> Counts:
    """The counts of one table."""
    return Counter({key: count for key, count in counts.items() if key[0] == table})


class Tally:
    """The counts, over a connection in autocommit mode."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, tables: Iterable[str]) -> None:
        """Create the table and the triggers that count."""
        self._connection.execute(_CREATE)
        for table in tables:
            for trigger in (_ROWS, _TRUNCATES):
                self._connection.execute(sql.SQL(trigger).format(sql.Identifier(table)))

    def total(self) -> int:
        """Changes committed so far."""
        row = self._connection.execute(_TOTAL).fetchone()
        assert row is not None
        return int(row[0])

    def end_idle(self, *, but: int = 0) -> None:
        """End sessions with an open, idle transaction, except one: they may block others."""
        self._connection.execute(_END_IDLE, (but,))

    def close(self, prefix: str) -> Counts:
        """The final counts, and a logical message at exactly that point of the stream.

        The lock waits for every session that has counted, and blocks every later one. So the counts
        hold exactly the changes that come before the message in the stream. Sessions with an idle
        transaction would block the lock for ever, so they are ended first.
        """
        self.end_idle()
        with self._connection.transaction():
            self._connection.execute("LOCK TABLE demo.tally IN SHARE MODE")
            rows = self._connection.execute(_READ).fetchall()
            self._connection.execute("SELECT pg_logical_emit_message(true, %s, '')", (prefix,))
        return Counter({(table, Op(op)): changes for table, op, changes in rows})

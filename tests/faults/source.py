"""A database under fault tests, with an oracle.

The oracle is PostgreSQL itself: a second slot, made at the same moment as capture's, decoded by the
server's own SQL functions. It tells what was committed, and in which order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.position import Lsn, Position
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Database

Row = pgoutput.Insert | pgoutput.Update | pgoutput.Delete | pgoutput.Truncate


class Source:
    """A database with its tables, a publication `tailrace`, and a slot for capture."""

    def __init__(self, database: Database, tables: str) -> None:
        self.database = database
        self.slot = f"{database.name}_capture"
        self._oracle = f"{database.name}_oracle"
        database.execute(tables)
        for slot in (self.slot, self._oracle):
            database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)

    def server_end(self) -> Lsn:
        """The end of WAL, flushed: a commit makes sure of that."""
        self.database.query("SELECT pg_logical_emit_message(true, 'test.flush', '')")
        return Lsn.parse(str(self.database.query("SELECT pg_current_wal_flush_lsn()")[0][0]))

    def confirmed(self) -> Lsn:
        """The LSN that capture has acknowledged to PostgreSQL."""
        sql = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        return Lsn.parse(str(self.database.query(sql, self.slot)[0][0]))

    def newly_committed(self) -> Iterator[tuple[Position, int, Row]]:
        """What the oracle has to tell since it was last asked: position, transaction, change."""
        rows = self.database.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'tailrace')",
            self._oracle,
        )
        lsn, xid, ordinal = Lsn(0), 0, 0
        for (data,) in rows:
            message = pgoutput.parse(data)
            if isinstance(message, pgoutput.Begin):
                lsn, xid, ordinal = message.final_lsn, message.xid, 0
            elif isinstance(message, Row):
                yield Position(lsn, ordinal), xid, message
                ordinal += 1

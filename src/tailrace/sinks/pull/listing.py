"""What commands, `/status` and `/metrics` read of the store."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from tailrace.sinks.pull.database import EXHAUSTED, PullDatabase, Totals
from tailrace.sqlite_file import SqliteReader

_PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustedMessage:
    """A message that was delivered too often. Times are milliseconds since 1970."""

    number: int
    id: str
    destination: str
    key: bytes | None
    payload: bytes
    deliveries: int
    arrived_at: int


class Listing(SqliteReader, PullDatabase):
    """The store, for reading. Empty if nothing was ever stored."""

    def totals(self) -> Totals:
        """How much there is."""
        return super().totals() if self.exists else Totals()

    def oldest_ms(self) -> int | None:
        """When the oldest message came; None if there is no message."""
        if not self.exists:
            return None
        with self.translated():
            query = "SELECT arrived_at FROM bodies ORDER BY seq LIMIT 1"
            found = self.connection.execute(query).fetchone()
        return None if found is None else int(found[0])

    def exhausted(
        self, *, after: int = 0, limit: int, size: int = _PAGE_BYTES
    ) -> list[ExhaustedMessage]:
        """The exhausted messages with numbers after `after`, oldest first.

        At most `limit` of them, and as many as have `size` bytes of payload, but at least one.
        """
        if not self.exists:
            return []
        query = (
            "SELECT seq, id, destination, key, payload, deliveries, arrived_at "  # noqa: S608
            f"FROM messages JOIN bodies USING (seq) WHERE state = {EXHAUSTED} AND seq > ? "
            "ORDER BY seq LIMIT ?"
        )
        names = ("number", "id", "destination", "key", "payload", "deliveries", "arrived_at")
        found: list[ExhaustedMessage] = []
        with self.translated(), closing(self.connection.cursor()) as cursor:
            for row in cursor.execute(query, (after, limit)):
                found.append(ExhaustedMessage(**dict(zip(names, row, strict=True))))
                size -= len(found[-1].payload)
                if size <= 0:
                    break
        return found

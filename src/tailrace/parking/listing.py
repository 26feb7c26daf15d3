"""What commands and the HTTP endpoints read of parked messages, a page at a time."""

# ruff: noqa: S608 - values are parameters, and everything else is text of this package

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.parking.database import Database
from tailrace.parking.selection import Selection
from tailrace.sqlite_file import SqliteReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.position import Position

T = TypeVar("T")
_MOST_NAMES = 1000
_NAMES = """
WITH RECURSIVE names (name) AS (
  SELECT min(destination) FROM parked WHERE destination >= :prefix
  UNION ALL SELECT (SELECT min(destination) FROM parked WHERE destination > name) FROM names
    WHERE substr(name, 1, length(:prefix)) = :prefix
  LIMIT :names
)"""
"""The destinations with a prefix and the one after them, or the first of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedMessage:
    """A parked message without its payload. Times are in microseconds since 1970 UTC."""

    seq: int
    destination: str
    id: str
    key: bytes | None
    bytes: int
    committed_at: int
    held: int
    """1 if it was not sent, because an earlier message of its key is parked."""
    attempts: int
    parked_at: int
    last_at: int
    """When it was last parked or retried."""
    first_code: str
    first_reason: str
    code: str
    reason: str
    hint: str
    response: str
    wanted: str | None
    """The order that it is to be retried for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How much is parked."""

    messages: int = 0
    held: int = 0
    """Those that wait for others."""
    bytes: int = 0
    """Of payloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderProgress:
    """What has become of the messages of an order."""

    id: str
    action: str
    matched: int
    delivered: int
    failed: int
    waiting: int
    """Messages that are still to be retried."""


_COLUMNS = ", ".join(field.name for field in fields(ParkedMessage))


class Listing(SqliteReader, Database):
    """The parked messages of a pipeline, for reading. Empty if nothing was ever parked."""

    def totals(self) -> Totals:
        """How much is parked."""
        found = self._read(Totals, "SELECT messages, held, bytes FROM totals", {})
        return found[0] if found else Totals()

    def last(self) -> int:
        """The number of the last parked message; 0 if no message is parked."""
        return self._number("SELECT coalesce(max(seq), 0) FROM parked", {})

    def count(self, selection: Selection) -> int:
        """How many messages are selected."""
        if selection == Selection():
            return self.totals().messages
        where, values = selection.condition()
        return self._number(f"SELECT count(*) FROM parked WHERE {where}", values)

    def page(self, selection: Selection, *, after: int = 0, limit: int) -> list[ParkedMessage]:
        """The selected messages with numbers after `after`, in the order of parking."""
        where, values = selection.condition()
        values |= {"after": after, "limit": limit}
        if self._few_destinations(selection):
            # Each destination has an index in order. That of all of them would have to be sorted.
            values |= {"prefix": selection.prefix, "names": _MOST_NAMES}
            where = (
                f"seq IN ({_NAMES} SELECT parked.seq FROM names CROSS JOIN parked "
                "WHERE name GLOB :destination AND parked.seq IN (SELECT seq FROM parked "
                f"WHERE destination = name AND seq > :after AND {where} ORDER BY seq LIMIT :limit) "
                "ORDER BY parked.seq LIMIT :limit)"
            )
        query = (
            f"SELECT {_COLUMNS} FROM parked WHERE seq > :after AND {where} "
            "ORDER BY seq LIMIT :limit"
        )
        return self._read(ParkedMessage, query, values)

    def _few_destinations(self, selection: Selection) -> bool:
        """Whether there are so few that it is worth to merge the messages of each.

        With many, a page of them is not far in the list of all messages.
        """
        if selection.prefix is None or selection.indexed:
            return False
        query = f"{_NAMES} SELECT count(*) FROM names"
        values = {"prefix": selection.prefix, "names": _MOST_NAMES}
        return self._number(query, values) < _MOST_NAMES

    def at(self, position: Position) -> ParkedMessage | None:
        """The message of a change, if it is parked. Ids of messages depend on the shape."""
        # A pipeline that was reset has several histories, and the index begins with them.
        query = (
            "WITH RECURSIVE histories(name) AS (SELECT min(history) FROM parked UNION ALL SELECT "
            "(SELECT min(history) FROM parked WHERE history > name) FROM histories "
            f"WHERE name IS NOT NULL) SELECT {_COLUMNS} FROM histories JOIN parked "
            "ON history = name AND first_lsn = :lsn AND first_ordinal = :ordinal"
        )
        values = {"lsn": int(position.lsn), "ordinal": position.ordinal}
        if max(values.values()) >= 1 << 63:
            return None
        return next(iter(self._read(ParkedMessage, query, values)), None)

    def payload(self, seq: int) -> bytes | None:
        """The payload of a message; None if it is no longer parked."""
        if not self.exists:
            return None
        with self.translated():
            query = "SELECT payload FROM payloads WHERE seq = ?"
            found = self.connection.execute(query, (seq,)).fetchone()
        return None if found is None else bytes(found[0])

    def orders(self) -> list[OrderProgress]:
        """The orders that were carried out, and what has become of their messages."""
        query = (
            "SELECT id, action, matched, delivered, failed, "
            "coalesce(waiting, 0) AS waiting FROM orders LEFT JOIN (SELECT wanted, count(*) AS "
            "waiting FROM parked WHERE wanted IS NOT NULL GROUP BY wanted) ON wanted = id "
            "ORDER BY id"
        )
        return self._read(OrderProgress, query, {})

    def _number(self, query: str, values: Mapping[str, Any]) -> int:
        """A single number; 0 if nothing was ever parked."""
        if not self.exists:
            return 0
        with self.translated():
            return int(self.connection.execute(query, values).fetchone()[0])

    def _read(self, kind: type[T], query: str, values: Mapping[str, Any]) -> list[T]:
        if not self.exists:
            return []
        with self.translated():
            found = self.connection.execute(query, values)
            names = [column[0] for column in found.description]
            return [kind(**dict(zip(names, row, strict=True))) for row in found]

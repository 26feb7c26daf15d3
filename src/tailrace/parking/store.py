"""The store of parked messages, as the planner of the pipeline's query changes it."""

# ruff: noqa: S608 - values are parameters, and everything else is text of this package

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tailrace import headers
from tailrace.message import MESSAGES, rows_up_to
from tailrace.parking.database import Database, counting
from tailrace.parking.message import RELEASED, Fate
from tailrace.sinks.groups import groups_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tailrace.decode.hashes import Hashes
    from tailrace.parking.part import Part, Parts
    from tailrace.parking.selection import Selection
    from tailrace.position import Position

_ROWS = 5000
_ORDERS = 1000
"""How many orders are remembered."""
_PLACE = "history = :history AND first_lsn = :first_lsn AND first_ordinal = :first_ordinal"
_INSERT = """
INSERT OR IGNORE INTO parked (
  seq, history, first_lsn, first_ordinal, destination, id, key, former, scope, own_group,
  former_group, whole, bytes, committed_at, held, attempts, parked_at, last_at, first_code,
  first_reason, code, reason, hint, response
) VALUES (
  :seq, :history, :first_lsn, :first_ordinal, :destination, :id, :key, :former, :scope, :own_group,
  :former_group, :whole, :bytes, :committed_at, :held, :attempts, :at_us, :at_us, :code, :reason,
  :code, :reason, :hint, :response
)"""
_FAILED_AGAIN = """
UPDATE parked SET
  first_code = CASE held WHEN 1 THEN :code ELSE first_code END,
  first_reason = CASE held WHEN 1 THEN :reason ELSE first_reason END,
  held = 0, attempts = :attempts, last_at = :at_us, code = :code, reason = :reason, hint = :hint,
  response = :response
WHERE seq = :seq"""


class Store(Database):
    """Parked messages, open for their only writer. `history` is what new positions belong to.

    With `together` the messages of a group are retried together, in order.
    """

    def __init__(self, path: Path, *, history: str, together: bool) -> None:
        super().__init__(path, write=True)
        self._history = history
        self._together = together
        for table in ("ties", "chosen"):
            self.connection.execute(f"CREATE TEMP TABLE {table} (value INTEGER PRIMARY KEY)")

    def take(self, parts: Parts, found: Sequence[Part], *, upto: Position) -> None:
        """Add what tasks have parked, up to a position, and remove it from their parts."""
        for part in found:
            rows, history = parts.read(part)
            # Positions of another history cannot be compared: it has ended.
            everything = history != self._history
            known = rows if everything else rows.slice(0, rows_up_to(rows, upto))
            if known.num_rows:
                with self.transaction():
                    for first in range(0, known.num_rows, _ROWS):
                        self._add(known.slice(first, _ROWS), history)
                # What is dropped from now on must not be added again with the rest.
                parts.keep_from(part, rows, known.num_rows, history=history)

    def _add(self, rows: pa.RecordBatch, history: str) -> None:
        new: list[dict[str, Any]] = []
        delivered: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for row in _with_groups(rows, history):
            if (row["lsn"], row["ordinal"]) == (row["first_lsn"], row["first_ordinal"]):
                new.append(row)
            elif row["fate"] == Fate.DELIVERED:
                delivered.append(row)
            else:
                failed.append(row)
        if new:
            self._insert(new)
        if delivered:
            self._remove_delivered(delivered)
        # Last: it ends the retry of other messages, and those that were delivered have to count.
        for row in failed:
            self._note_failure(row)

    def _insert(self, rows: list[dict[str, Any]]) -> None:
        """Add messages. Those that an interrupted call has added stay as they are."""
        execute, executemany = self.connection.execute, self.connection.executemany
        sequence = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'parked'"
        last = execute(sequence).fetchone()[0]
        for seq, row in enumerate(rows, last + 1):
            row |= {"seq": seq, "held": int(row["fate"] == Fate.HELD)}
        executemany(_INSERT, rows)
        executemany(
            "INSERT INTO payloads SELECT :seq, :payload, :headers, :group_own, :group_former "
            "WHERE EXISTS (SELECT 1 FROM parked WHERE seq = :seq)",
            rows,
        )
        execute(counting("seq > :last"), {"last": last})
        added = execute(
            "SELECT count(*), coalesce(sum(held), 0), coalesce(sum(bytes), 0) FROM parked "
            "WHERE seq > ?",
            (last,),
        ).fetchone()
        execute(
            "UPDATE totals SET messages = messages + ?, held = held + ?, bytes = bytes + ?", added
        )

    def _remove_delivered(self, rows: list[dict[str, Any]]) -> None:
        execute = self.connection.execute
        execute("DELETE FROM chosen")
        self.connection.executemany(
            f"INSERT INTO chosen SELECT seq FROM parked WHERE {_PLACE}", rows
        )
        chosen = "seq IN (SELECT value FROM chosen)"
        execute(
            "UPDATE orders SET delivered = delivered + "
            f"(SELECT count(*) FROM parked WHERE {chosen} AND wanted = orders.id) "
            f"WHERE id IN (SELECT wanted FROM parked WHERE {chosen})"
        )
        self._remove_chosen()

    def _remove_chosen(self) -> int:
        execute, chosen = self.connection.execute, "seq IN (SELECT value FROM chosen)"
        execute(counting(chosen, sign=-1))
        execute("DELETE FROM groups WHERE messages = 0")
        return execute(f"DELETE FROM parked WHERE {chosen}").rowcount

    def _note_failure(self, row: dict[str, Any]) -> None:
        """Note that a released message was not accepted, or not sent."""
        execute = self.connection.execute
        found = execute(f"SELECT seq, wanted, attempts FROM parked WHERE {_PLACE}", row).fetchone()
        if found is None:
            return
        seq, order, attempts = found
        if row["fate"] == Fate.PARKED and row["attempts"] > attempts:
            execute(_FAILED_AGAIN, row | {"seq": seq})
            execute("UPDATE orders SET failed = failed + 1 WHERE id = ?", (order,))
        execute("UPDATE parked SET wanted = NULL WHERE seq = ?", (seq,))
        if self._together:
            # What has to wait for this message is not retried either.
            execute("DELETE FROM chosen")
            execute("INSERT INTO chosen VALUES (?)", (seq,))
            self._extend("wanted = NULL", "wanted IS NOT NULL", row)

    def want(self, order: str, selection: Selection) -> int:
        """Have the selected messages retried, and what has to be retried with them.

        Returns how many.
        """
        where, values = selection.condition()
        values |= {"order": order, "history": self._history}
        # Nearly all have the same history: an index of it selects nothing.
        known = "wanted IS NULL AND +history = :history"
        with self.transaction() as database:
            database.execute(f"UPDATE parked SET wanted = :order WHERE {known} AND {where}", values)
            if self._together:
                database.execute("DELETE FROM chosen")
                database.execute(
                    "INSERT INTO chosen SELECT seq FROM parked WHERE wanted = :order", values
                )
                self._extend("wanted = :order", known, values)
            matched = database.execute(
                "SELECT count(*) FROM parked WHERE wanted = :order", values
            ).fetchone()[0]
            self._record(order, "retry", matched)
        return int(matched)

    def drop(self, order: str, selection: Selection) -> int:
        """Remove the selected messages. Returns how many."""
        where, values = selection.condition()
        with self.transaction() as database:
            database.execute("DELETE FROM chosen")
            database.execute(f"INSERT INTO chosen SELECT seq FROM parked WHERE {where}", values)
            dropped = self._remove_chosen()
            self._record(order, "drop", dropped)
        return dropped

    def _record(self, order: str, action: str, matched: int) -> None:
        """Note an order, unless an interrupted call has; forget the oldest that are done."""
        execute = self.connection.execute
        execute(
            "INSERT INTO orders (id, action, matched) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (order, action, matched),
        )
        execute(
            "DELETE FROM orders WHERE rowid <= (SELECT max(rowid) FROM orders) - ? "
            "AND NOT EXISTS (SELECT 1 FROM parked WHERE wanted = orders.id)",
            (_ORDERS,),
        )

    def _extend(self, change: str, where: str, values: dict[str, Any]) -> None:
        """Change also the messages that share a group with the chosen ones, and so on."""
        execute = self.connection.execute
        execute("DELETE FROM ties")
        chosen = "FROM parked WHERE seq IN (SELECT value FROM chosen)"
        whole = "SELECT hash FROM groups WHERE history = :history AND kind = 'whole'"
        tied = "(own_group IN (SELECT value FROM ties) OR former_group IN (SELECT value FROM ties))"
        while True:
            execute(f"INSERT OR IGNORE INTO ties SELECT own_group {chosen}")
            execute(f"INSERT OR IGNORE INTO ties SELECT former_group {chosen}")
            # A message without a key has its table as its group, and ties the whole table.
            for (table,) in execute(f"SELECT scope {chosen} INTERSECT {whole}", values).fetchall():
                execute("INSERT OR IGNORE INTO ties VALUES (?)", (table,))
                execute(
                    f"INSERT OR IGNORE INTO ties SELECT own_group FROM parked WHERE {where} "
                    "AND scope = :scope",
                    values | {"scope": table},
                )
            execute("DELETE FROM chosen")
            execute(f"INSERT INTO chosen SELECT seq FROM parked WHERE {where} AND {tied}", values)
            if not execute("SELECT 1 FROM chosen LIMIT 1").fetchone():
                return
            execute(f"UPDATE parked SET {change} WHERE seq IN (SELECT value FROM chosen)", values)

    def wanted(self, *, rows: int, size: int) -> pa.RecordBatch:
        """The next messages to retry, in order of their first position, as RELEASED."""
        chosen: list[dict[str, Any]] = []
        with self.translated():
            found = self.connection.execute(
                "SELECT parked.*, payloads.* FROM parked JOIN payloads USING (seq) "
                "WHERE wanted IS NOT NULL AND history = ? "
                "ORDER BY first_lsn, first_ordinal LIMIT ?",
                (self._history, rows),
            )
            names = [column[0] for column in found.description]
            for values in found:
                row = dict(zip(names, values, strict=True))
                size -= row["bytes"]
                if chosen and size < 0:
                    break
                chosen.append(row)
        return _released(chosen)

    def group_changes(self) -> int:
        """A number that changes with the groups of parked messages."""
        with self.translated():
            return int(self.connection.execute("SELECT count FROM group_changes").fetchone()[0])

    def blocked(self) -> tuple[Hashes, Hashes, Hashes]:
        """The groups of parked messages, their tables, and the tables blocked as a whole."""
        with self.translated():
            return self._hashes("key"), self._hashes("table"), self._hashes("whole")

    def _hashes(self, kind: str) -> Hashes:
        query = "SELECT hash FROM groups WHERE history = ? AND kind = ?"
        found = self.connection.execute(query, (self._history, kind))
        return np.fromiter((value for (value,) in found), np.int64).view(np.uint64)


def _with_groups(rows: pa.RecordBatch, history: str) -> list[dict[str, Any]]:
    """Rows of PARKED as parameters of SQL."""
    groups = groups_of(rows.select(MESSAGES.names))
    columns = [each.view(np.int64).tolist() for each in (groups.scope, groups.own, groups.former)]
    found: list[dict[str, Any]] = rows.to_pylist()
    for row, scope, own, former, whole in zip(found, *columns, groups.whole.tolist(), strict=True):
        row |= {
            "history": history,
            "destination": row["destination"].decode("utf-8", "replace"),
            "id": row["id"].decode("utf-8", "replace"),
            "scope": scope,
            "own_group": own,
            "former_group": former,
            "whole": int(whole),
            "bytes": len(row["payload"]),
            "headers": headers.dumped(row["headers"]),
            **{f"group_{at}": (row["group"] or {}).get(at) for at in ("own", "former")},
        }
    return found


def _released(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of SQL as RELEASED, without positions."""
    for row in rows:
        row |= {
            "destination": row["destination"].encode(),
            "id": row["id"].encode(),
            "scope": row["scope"] % (1 << 64),
            "headers": [
                (name.encode(), value.encode())
                for name, value in headers.loaded(row["headers"]).items()
            ],
            "group": {"own": row["group_own"], "former": row["group_former"]},
            "lsn": 0,
            "ordinal": 0,
        }
    return pa.RecordBatch.from_pylist(rows, schema=RELEASED)

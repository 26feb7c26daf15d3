"""Adds messages to the store, with the position that they reach.

A lane has an owner: opening a sink replaces it, and each transaction requires its own. A sink that
was replaced, and wakes up, can therefore add nothing.
"""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from tailrace import headers
from tailrace.errors import SinkFencedError
from tailrace.sinks.groups import groups_of
from tailrace.sinks.ledger import LanePosition
from tailrace.sinks.pull.database import DELAYED, WAITING, PullDatabase
from tailrace.sinks.pull.latest import Latest
from tailrace.sinks.pull.succession import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.sinks.pull.database import Totals

_MESSAGE = "INSERT INTO messages (seq, scope, own, former, whole, bytes) VALUES (?, ?, ?, ?, ?, ?)"
_BODY = "INSERT INTO bodies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_READY = f"SELECT 1 FROM messages WHERE first AND state = {WAITING}"  # noqa: S608
_LATER = f"SELECT 1 FROM messages WHERE state = {DELAYED}"  # noqa: S608


class _NoSpaceError(Exception):
    """The store is full."""


class Intake(PullDatabase):
    """The store, open for one lane of a pipeline."""

    def __init__(self, path: Path, *, lane: int, ordered: bool, latest: bool) -> None:
        super().__init__(path, write=True)
        self._lane = lane
        self._ordered = ordered
        self._latest = Latest(self.connection) if latest else None
        self._owner = uuid.uuid4().hex
        self._refused: tuple[LanePosition, Totals] | None = None
        """Messages without space, and the store that had none: nothing has changed since."""

    def positions(self) -> Mapping[int, LanePosition]:
        """The positions of all lanes."""
        with self.translated():
            rows = self.connection.execute(
                "SELECT lane, position FROM positions WHERE position IS NOT NULL"
            )
            return {lane: LanePosition.load(text.encode()) for lane, text in rows}

    def claim(self) -> None:
        """Become the owner of the lane."""
        with self.transaction() as database:
            database.execute(
                "INSERT INTO positions (lane, owner) VALUES (?, ?) "
                "ON CONFLICT (lane) DO UPDATE SET owner = excluded.owner",
                (self._lane, self._owner),
            )

    def owned(self) -> bool:
        """Whether no other sink has claimed the lane since."""
        with self.translated():
            query = "SELECT 1 FROM positions WHERE lane = ? AND owner = ?"
            found = self.connection.execute(query, (self._lane, self._owner)).fetchone()
        return found is not None

    def add(
        self, rows: pa.RecordBatch, position: LanePosition, *, now_ms: int, max_bytes: int
    ) -> bool:
        """Add messages with their position. Returns False, and adds nothing, without space."""
        messages, bodies = self._parameters(rows, now_ms)
        try:
            with self.transaction():
                self._advance(position)
                before = self.totals()
                if self._refused == (position, before):
                    raise _NoSpaceError
                most = math.inf if self._is_idle(before) else max(max_bytes, before.bytes)
                if self._latest is not None:
                    messages, bodies = self._latest.replace(messages, bodies)
                # What replaces larger messages makes a full store smaller.
                if self.totals().bytes + _size(messages) > most:
                    self._refused = (position, before)
                    raise _NoSpaceError
                self._insert(messages, bodies, before.last_seq)
        except _NoSpaceError:
            return False
        return True

    def _is_idle(self, totals: Totals) -> bool:
        """Whether nothing can be delivered: the store is empty, or all of it waits for decisions
        about exhausted messages, which must not stop other keys. Messages enter whatever their
        size."""
        execute = self.connection.execute
        return not totals.out and not any(execute(each).fetchone() for each in (_READY, _LATER))

    def _advance(self, position: LanePosition) -> None:
        moved = self.connection.execute(
            "UPDATE positions SET position = ? WHERE lane = ? AND owner = ?",
            (position.dump().decode(), self._lane, self._owner),
        )
        if moved.rowcount != 1:
            raise SinkFencedError(f"lane {self._lane} was opened by another process")

    def _insert(self, messages: list[Any], bodies: list[Any], last: int) -> None:
        execute, executemany = self.connection.execute, self.connection.executemany
        numbers = range(last + 1, last + 1 + len(messages))
        executemany(_MESSAGE, _numbered(numbers, messages))
        executemany(_BODY, _numbered(numbers, bodies))
        # All at once, when all are there: what a message waits for may be in the same batch.
        execute(f"UPDATE messages AS m SET first = 1 WHERE m.seq > ? AND {FIRST}", (last,))  # noqa: S608
        execute(
            "UPDATE totals SET last_seq = last_seq + ?, messages = messages + ?, bytes = bytes + ?",
            (len(messages), len(messages), _size(messages)),
        )

    def _parameters(self, rows: pa.RecordBatch, now_ms: int) -> tuple[list[Any], list[Any]]:
        """The rows of `messages` and of `bodies`, without their numbers."""
        count = rows.num_rows
        payloads, keys = rows.column("payload").to_pylist(), rows.column("key").to_pylist()
        sizes = pc.add(
            pc.binary_length(rows.column("payload")),
            pc.coalesce(pc.binary_length(rows.column("key")), 0),
        ).to_pylist()
        bodies = zip(
            _signed(rows.column("lsn").to_numpy()),
            _signed(rows.column("ordinal").to_numpy()),
            _texts(rows.column("destination")),
            _texts(rows.column("id")),
            keys,
            payloads,
            map(headers.dumped, headers.pairs(rows.column("headers"))),
            rows.column("committed_at").to_pylist(),
            [now_ms] * count,
            strict=True,
        )
        if not self._ordered:
            unordered = [None] * count
            return list(
                zip(unordered, unordered, unordered, [0] * count, sizes, strict=True)
            ), list(bodies)
        groups = groups_of(rows)
        whole = groups.whole
        messages = zip(
            _signed(groups.scope),
            _masked(groups.own, whole),
            _masked(groups.former, whole | (groups.former == groups.own)),
            whole.astype(np.int64).tolist(),
            sizes,
            strict=True,
        )
        return list(messages), list(bodies)


def _size(messages: list[Any]) -> int:
    return sum(message[-1] for message in messages)


def _numbered(numbers: Iterable[int], rows: Iterable[Any]) -> Iterable[Any]:
    return ((number, *row) for number, row in zip(numbers, rows, strict=True))


def _signed(values: NDArray[np.uint64]) -> list[int]:
    signed: list[int] = values.view(np.int64).tolist()
    return signed


def _masked(values: NDArray[np.uint64], without: NDArray[np.bool_]) -> list[int | None]:
    return [
        None if absent else value
        for value, absent in zip(_signed(values), without.tolist(), strict=True)
    ]


def _texts(values: pa.BinaryArray) -> list[str]:
    return [value.decode("utf-8", "replace") for value in values.to_pylist()]

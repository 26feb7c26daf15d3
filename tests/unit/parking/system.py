"""A pipeline that parks, without Spark: planner, tasks, and a sink in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.message import MESSAGES
from tailrace.parking.listing import Listing
from tailrace.parking.order import Orders
from tailrace.parking.parking import Parking, TaskParking, store_of
from tailrace.parking.selection import Selection
from tailrace.pipeline.guard import Flushes, ParkingGuard
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.sinks.contract import Receipt
from tailrace.sinks.outcome import Failure, Outcome, Verdict
from tailrace.sinks.unaccepted import UNSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tailrace.parking.order import Action

HISTORY = "5f0c2a9e"
Message = tuple[str, str | None]
"""An id, and the key."""
BAD = Outcome(verdict=Verdict.REFUSED, code="HTTP_422", reason="the receiver answers 422")


def end_of(lsn: int) -> Position:
    """The end of a transaction of at most ten messages."""
    return Position(Lsn(lsn), 9)


def messages(found: Iterable[Message], *, lsn: int) -> pa.RecordBatch:
    rows = [
        {
            "destination": b"/orders",
            "id": name.encode(),
            "key": None if key is None else key.encode(),
            "payload": b"payload of " + name.encode(),
            "lsn": lsn,
            "ordinal": number,
            "committed_at": 7,
            "scope": 1,
            "former": None,
        }
        for number, (name, key) in enumerate(found)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


class Receiver:
    """A sink that refuses the messages with certain ids."""

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self.received: list[str] = []
        self.positions: list[Position] = []
        self._written: list[pa.RecordBatch] = []

    def open(self, after: Position) -> None:
        pass

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        ids = batch["id"].to_pylist()
        return {row: BAD for row, name in enumerate(ids) if name.decode() in self.bad}

    def write(self, batch: pa.RecordBatch) -> None:
        self._written.append(batch)

    def flush(self, *, end: bool = True) -> Receipt:
        count = 0
        for batch in self._written:
            count += batch.num_rows
            self.received += [name.decode() for name in batch["id"].to_pylist()]
            places = zip(batch["lsn"].to_pylist(), batch["ordinal"].to_pylist(), strict=True)
            self.positions += [Position(Lsn(lsn), ordinal) for lsn, ordinal in places]
        self._written = []
        return Receipt(messages=count)

    def close(self) -> None:
        pass


class AllOrNothing(Receiver):
    """A sink that finds messages with certain ids at a flush, and stores nothing then."""

    def __init__(self, refused: set[str]) -> None:
        super().__init__()
        self._refused = refused

    def flush(self, *, end: bool = True) -> Receipt:
        rows = [batch.slice(row, 1) for batch in self._written for row in range(batch.num_rows)]
        failures: list[Failure] = []
        for row in rows:
            name, key = row["id"][0].as_py().decode(), row["key"][0].as_py()
            earlier = {each.message["key"][0].as_py() for each in failures}
            if name in self._refused:
                failures.append(Failure(row, BAD))
            elif key in earlier:
                failures.append(Failure(row, UNSENT))
        if not failures:
            return super().flush(end=end)
        self._written = []
        return Receipt(failures=tuple(failures))


class System:
    """A pipeline without Spark."""

    def __init__(self, folder: Path, *, together: bool = True) -> None:
        self.folder, self.together = folder, together
        self.sink = Receiver()
        self.position, self.released = ORIGIN, 0
        self.restart()

    def restart(self, history: str = HISTORY) -> None:
        parking = Parking(self.folder, history=history, together=self.together)
        self.run = parking.start_query(self.position)
        self.planner = Parking(self.folder, history=history, together=self.together)
        self.history = history

    def guard(self, begin: Position | None = None) -> ParkingGuard:
        task = TaskParking(self.folder, history=self.history, run=self.run)
        guard = ParkingGuard(self.sink, Flushes(), task, blocks=self.together, now_us=lambda: 9)
        guard.begin(begin or self.position)
        return guard

    def release(self) -> bool:
        """A batch of parked messages, if there are any to deliver."""
        release = self.planner.plan(self.position, page=0, released=self.released)
        if release is None:
            return False
        task = TaskParking(self.folder, history=self.history, run=self.run)
        self.guard().release(task.release(release.number))
        self.position, self.released = release.last, release.number
        return True

    def deliver(self, found: Iterable[Message], *, lsn: int) -> Receipt:
        """A batch of the log, after those of parked messages."""
        return self.deliver_batch(messages(found, lsn=lsn), lsn=lsn)

    def deliver_batch(self, batch: pa.RecordBatch, *, lsn: int) -> Receipt:
        """The same for messages as columns."""
        while self.release():
            pass
        guard = self.guard()
        guard.write(batch)
        receipt = guard.flush()
        self.position = end_of(lsn)
        return receipt

    def order(self, action: Action, **selection: Any) -> None:
        Orders(self.folder / "orders").submit(action, Selection(**selection))

    def plan(self) -> None:
        assert self.planner.plan(self.position, page=0, released=self.released) is None

    def parked(self) -> list[tuple[str, str, int]]:
        """Ids, codes and attempts."""
        self.planner.plan(self.position, page=0, released=self.released)
        with Listing(store_of(self.folder)) as listing:
            found = listing.page(Selection(), limit=100)
            assert listing.totals().messages == len(found)
            assert listing.totals().held == sum(each.held for each in found)
            return [(each.id, each.code, each.attempts) for each in found]

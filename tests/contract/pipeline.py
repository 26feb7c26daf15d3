"""One lane of a pipeline that parks, without Spark, for the contract suites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.parking.listing import Listing
from tailrace.parking.order import Orders
from tailrace.parking.parking import Parking, TaskParking, store_of
from tailrace.parking.selection import Selection
from tailrace.pipeline.guard import Flushes, ParkingGuard
from tailrace.position import ORIGIN, Position
from tests.unit.sinks.rows import message_id

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tailrace.parking.order import Action
    from tailrace.parking.parking import Release
    from tailrace.sinks.contract import Receipt, Sink
    from tests.contract.benches.bench import Bench


def flushes_of(bench: Bench) -> Flushes:
    """What flushes of a bench's sinks do, as a pipeline finds out."""
    kind, settings = bench.kind, bench.settings()
    return Flushes(
        atomic=kind.atomic(settings),
        stores_position=kind.stores_position(settings),
        all_or_nothing=kind.all_or_nothing,
    )


class Pipeline:
    """One lane of a pipeline. Its position is committed by the test."""

    def __init__(self, bench: Bench, folder: Path, /, **given: Any) -> None:
        """`given` are arguments of `Bench.make`."""
        self._bench = bench
        self._given = given
        self._folder = folder
        self._sinks: list[Sink] = []
        self.position = ORIGIN
        self.start()

    def start(self) -> None:
        """A new query, after whatever has happened to the last one."""
        run = Parking(self._folder, history="").start_query(self.position)
        self._planner = Parking(self._folder, history="")
        self._task = TaskParking(self._folder, history="", run=run)
        self._sinks.append(self._bench.make(**self._given))

    def restart(self, **given: Any) -> None:
        """Stop the query and start it again, as when its settings were changed."""
        self._given |= given
        self._sinks[-1].close()
        self.start()

    def guard(self) -> ParkingGuard:
        """A task that begins."""
        sink = self._sinks[-1]
        sink.open(self.position)
        guard = ParkingGuard(sink, flushes_of(self._bench), self._task, blocks=True)
        guard.begin(self.position)
        return guard

    def release(self) -> Release:
        """The next batch has parked messages."""
        planned = self._planner.plan(self.position, page=0, released=0)
        assert planned is not None
        return planned

    def deliver_again(self, release: Release) -> Receipt:
        return self.guard().release(self._task.release(release.number))

    def deliver(self, batch: pa.RecordBatch) -> Receipt:
        guard = self.guard()
        guard.write(batch)
        return guard.flush()

    def commit(self, upto: Position) -> None:
        self.position = upto

    def order(self, action: Action, number: int) -> None:
        chosen = Selection(ids=(message_id(number).decode(),))
        Orders(self._folder / "orders").submit(action, chosen)

    def parked(self) -> list[str]:
        assert self._planner.plan(self.position, page=0, released=0) is None
        with Listing(store_of(self._folder)) as listing:
            return [each.id for each in listing.page(Selection(), limit=100)]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

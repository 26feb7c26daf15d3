"""Every sink behind a guard that parks: nothing is lost, doubled or out of order.

The position of a batch is committed only in the end, as by Spark. A task that dies is a sink that
is not closed, and a guard that is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.message import MESSAGES
from tailrace.parking.listing import Listing
from tailrace.parking.order import Orders
from tailrace.parking.parking import Parking, TaskParking, store_of
from tailrace.parking.selection import Selection
from tailrace.pipeline.guard import Flushes, ParkingGuard
from tailrace.position import ORIGIN, Position
from tests.contract.benches import BENCHES, TOO_LARGE
from tests.unit.sinks.rows import message_id, payload, position, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tailrace.parking.order import Action
    from tailrace.parking.parking import Release
    from tailrace.sinks.contract import Sink
    from tests.contract.benches import Bench

REPEATING = {
    "kafka", "http", "rabbitmq", "rabbitmq-quorum",
    "sqs", "sqs-fifo", "sns", "sns-fifo", "kinesis", "eventbridge",
    "pubsub", "pubsub-unordered",
}  # fmt: skip
"""Benches whose sinks deliver a replayed batch again. The FIFO queues of moto forget the ids of
messages that are deleted."""


class Pipeline:
    """One lane of a pipeline, without Spark."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench = bench
        self._folder = folder
        self._sinks: list[Sink] = []
        self.position = ORIGIN
        self.start()

    def start(self) -> None:
        """A new query, after whatever has happened to the last one."""
        run = Parking(self._folder, history="").start_query(self.position)
        self._planner = Parking(self._folder, history="")
        self._task = TaskParking(self._folder, history="", run=run)
        self._sinks.append(self._bench.make())

    def guard(self) -> ParkingGuard:
        """A task that begins."""
        sink = self._sinks[-1]
        sink.open(self.position)
        guard = ParkingGuard(sink, Flushes(stores_position=True), self._task, blocks=True)
        guard.begin(self.position)
        return guard

    def release(self) -> Release:
        """The next batch has parked messages."""
        planned = self._planner.plan(self.position, page=0, released=0)
        assert planned is not None
        return planned

    def deliver_again(self, release: Release) -> None:
        self.guard().release(self._task.release(release.number))

    def deliver(self, batch: pa.RecordBatch) -> None:
        guard = self.guard()
        guard.write(batch)
        guard.flush()

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


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param](request) as made:
        yield made


@pytest.fixture
def pipeline(bench: Bench, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(bench, tmp_path / "parked")
    yield made
    made.close()


def messages(
    bench: Bench, numbers: Sequence[int], keys: bytes, *, large: int = -1
) -> pa.RecordBatch:
    """Messages with these numbers and with keys of a letter each; one is too large."""
    batch = rows(numbers, destination=bench.place())
    payloads = [b"x" * TOO_LARGE if each == large else payload(each) for each in numbers]
    columns = {"key": [keys[at : at + 1] for at in range(len(keys))], "payload": payloads}
    for name, values in columns.items():
        at = MESSAGES.get_field_index(name)
        batch = batch.set_column(at, MESSAGES.field(at), pa.array(values, pa.binary()))
    return batch


def test_parked_messages_survive_tasks_that_die(
    bench: Bench, pipeline: Pipeline, request: pytest.FixtureRequest
) -> None:
    """GIVEN a batch with a refused message WHEN its task dies after the flush, and the replay runs
    THEN the message and later ones of its key are parked; WHEN the first is dropped and the next
    one retried, by a task that dies as well, THEN it arrives once, before the later ones."""
    repeats = request.node.callspec.params["bench"] in REPEATING
    first = messages(bench, range(6), b"abcbac", large=1)

    def check(*numbers: int) -> list[bytes]:
        """What has arrived: these messages, in any order of different keys."""
        found = [name for _, name, _ in bench.delivered()]
        found = list(dict.fromkeys(found)) if repeats else found
        assert sorted(found) == sorted(map(message_id, numbers))
        return found

    pipeline.deliver(first)
    check(0, 2, 4, 5)
    pipeline.start()
    pipeline.deliver(first)
    check(0, 2, 4, 5)
    pipeline.commit(position(5))
    assert pipeline.parked() == [message_id(number).decode() for number in (1, 3)]
    pipeline.order("drop", 1)
    pipeline.order("retry", 3)
    release = pipeline.release()
    pipeline.deliver_again(release)
    pipeline.start()
    pipeline.deliver_again(release)
    pipeline.commit(release.last)
    assert pipeline.parked() == []
    pipeline.deliver(messages(bench, range(6, 9), b"abc"))
    pipeline.commit(position(8))
    arrived = check(0, 2, 4, 5, 3, 6, 7, 8)
    assert arrived.index(message_id(3)) < arrived.index(message_id(7))
    assert pipeline.parked() == []

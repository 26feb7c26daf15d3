"""Every sink behind a guard that parks: nothing is lost, doubled or out of order.

The position of a batch is committed only in the end, as by Spark. A task that dies is a sink that
is not closed, and a guard that is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.message import MESSAGES
from tests.contract.benches.bench import TOO_LARGE
from tests.contract.benches.registry import BENCHES, names
from tests.contract.pipeline import Pipeline
from tests.unit.sinks.rows import message_id, payload, position, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.contract.benches.bench import Bench


@pytest.fixture(params=names())
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


def test_parked_messages_survive_tasks_that_die(bench: Bench, pipeline: Pipeline) -> None:
    """GIVEN a batch with a refused message WHEN its task dies after the flush, and the replay runs
    THEN the message and later ones of its key are parked; WHEN the first is dropped and the next
    one retried, by a task that dies as well, THEN it arrives once, before the later ones."""
    first = messages(bench, range(6), b"abcbac", large=1)

    def check(*numbers: int) -> list[bytes]:
        """What has arrived: these messages, in any order of different keys."""
        found = [name for _, name, _ in bench.delivered()]
        found = found if bench.once else list(dict.fromkeys(found))
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

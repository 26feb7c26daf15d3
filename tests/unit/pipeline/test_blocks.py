"""Blocks hold every message once, in order, lane by lane; a beat holds none."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tailrace.change import Op
from tailrace.pipeline.frames.blocks import SCHEMA, BlockFrame, unpack
from tailrace.pipeline.frames.frame import Slice, arrow_schema
from tailrace.pipeline.spec import Spec
from tests.fix_log import TestLog, random_log

if TYPE_CHECKING:
    import pyarrow as pa


def read(log: TestLog, spec: Spec) -> list[tuple[int, pa.RecordBatch]]:
    found = []
    reader = log.log()
    start, end = reader.earliest(), reader.end().position
    for batch in BlockFrame(spec).batches(Slice(log=reader, after=start, upto=end)):
        assert batch.schema == arrow_schema(SCHEMA)
        (row,) = batch.to_pylist()
        assert row["after"] == str(start)
        messages = unpack(batch["messages"][0])
        assert (row["lsn"], row["ordinal"]) == (
            messages["lsn"][0].as_py(),
            messages["ordinal"][0].as_py(),
        )
        found.append((row["lane"], messages))
    return found


@pytest.fixture
def log() -> TestLog:
    return random_log(random.Random(7), entries=60)


def positions(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        pair
        for batch in batches
        for pair in zip(batch["lsn"].to_pylist(), batch["ordinal"].to_pylist(), strict=True)
    ]


def expected(log: TestLog) -> list[tuple[int, int]]:
    changes = [change for change in log.changes() if change.op is not Op.MESSAGE]
    return [(change.position.lsn, change.position.ordinal) for change in changes]


def test_one_lane_is_the_log(log: TestLog) -> None:
    found = read(log, Spec(name="p"))
    assert {lane for lane, _ in found} == {0}
    assert positions([messages for _, messages in found]) == expected(log)


def test_lanes_are_the_log_dealt_out(log: TestLog) -> None:
    found = read(log, Spec(name="p", lanes=4))
    dealt = [positions([m for lane, m in found if lane == number]) for number in range(4)]
    assert all(lane == sorted(lane) for lane in dealt)
    assert sorted(place for lane in dealt for place in lane) == expected(log)


def test_a_beat_keeps_workers_warm_and_delivers_nothing(log: TestLog) -> None:
    reader = log.log()
    end = reader.end().position
    (batch,) = BlockFrame(Spec(name="p")).batches(Slice(log=reader, after=end, upto=end))
    assert unpack(batch["messages"][0]).num_rows == 0

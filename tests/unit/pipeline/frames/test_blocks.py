"""Blocks hold every message once, in order and per lane; a heartbeat holds none."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.change import Op
from tailrace.pipeline.frames.blocks import SCHEMA, BlockFrame, unpack
from tailrace.pipeline.frames.frame import Slice, arrow_schema
from tailrace.pipeline.spec import Spec
from tests.fix_log import TestLog, random_log

if TYPE_CHECKING:
    import pyarrow as pa

SPEC = Spec(name="p", sink="nats", destination="{table}")


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


def test_one_lane_has_all_messages_in_order(log: TestLog) -> None:
    found = read(log, SPEC)
    assert {lane for lane, _ in found} == {0}
    assert positions([messages for _, messages in found]) == expected(log)


def test_lanes_together_have_all_messages_each_in_order(log: TestLog) -> None:
    found = read(log, replace(SPEC, lanes=4))
    dealt = [positions([m for lane, m in found if lane == number]) for number in range(4)]
    assert all(lane == sorted(lane) for lane in dealt)
    assert sorted(place for lane in dealt for place in lane) == expected(log)


def test_a_heartbeat_is_a_block_without_messages(log: TestLog) -> None:
    reader = log.log()
    end = reader.end().position
    (batch,) = BlockFrame(SPEC).batches(Slice(log=reader, after=end, upto=end))
    assert unpack(batch["messages"][0]).num_rows == 0

"""The limit of a row's size, in every way that a pipeline reads the log."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from tailrace.errors import PoisonedError
from tailrace.open_batch import OpenBatch
from tailrace.pipeline import opened
from tailrace.pipeline.follow import Following
from tailrace.pipeline.frames import frame
from tailrace.pipeline.frames.blocks import BlockFrame, unpack
from tailrace.pipeline.frames.cells import CellFrame, changes_of
from tailrace.pipeline.frames.frame import Slice
from tailrace.pipeline.frames.large import LargePayloads
from tailrace.pipeline.open_source import OpenSource
from tailrace.pipeline.spec import Spec
from tests.fix_log import TestLog, insert, relation, transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.log.reader import Log

SPEC = Spec(name="p", sink="nats", destination="{table}")
MAX_ROWS = 1
"""Of an open batch: it then ends at the end of the log."""


def whole(log: Log) -> Slice:
    return Slice(log=log, after=log.earliest(), upto=log.end().position)


def blocks(log: Log, _folder: Path) -> int:
    batches = BlockFrame(SPEC).batches(whole(log))
    return sum(unpack(batch["messages"][0]).num_rows for batch in batches)


def cells(log: Log, _folder: Path) -> int:
    return sum(batch.num_rows for batch in CellFrame(SPEC).batches(whole(log)))


def open_cells(log: Log, _folder: Path) -> int:
    following = Following(
        log, log.earliest(), wanted=lambda _: True, messages=lambda _: True, max_rows=MAX_ROWS,
        max_s=1000, ends=lambda _: False, clock=time.monotonic,
    )  # fmt: skip
    batches = CellFrame(SPEC).follow(following, OpenBatch(1, log.earliest()), push_bytes=64)
    return sum(len(changes_of(batch.to_struct_array())) for batch in batches)


def open_blocks(log: Log, folder: Path) -> int:
    delivery = Mock()
    source = OpenSource(
        log=folder, spool=folder, records=folder, spec=SPEC, max_rows=MAX_ROWS, max_s=1000
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "open_log", lambda _: log)
        opened.deliver_open(delivery, OpenBatch(1, log.earliest()), source, page=0)
    return sum(call.args[0].num_rows for call in delivery.write.call_args_list)


@pytest.mark.parametrize(
    ("read", "limit"),
    [
        (blocks, "MAX_ROW_BYTES"),
        (cells, "MAX_ROW_BYTES"),
        (open_cells, "MAX_ROW_BYTES"),
        (open_blocks, "MAX_PARKED_BYTES"),
    ],
)
def test_a_row_that_is_too_large_for_its_way_is_poisoned(
    read: Callable[[Log, Path], int], limit: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """GIVEN a row beyond the limit among many small ones WHEN it is read THEN the error names it,
    and nothing of it reaches the JVM."""
    monkeypatch.setattr(frame, limit, 2000)
    log = TestLog()
    log.append(transaction(0, *(insert(relation(1), key, "v" * 100) for key in range(100))))
    assert read(log.log(), tmp_path) == 100
    log.append(transaction(1, insert(relation(1), 1, "small"), insert(relation(1), 2, "v" * 3000)))
    with pytest.raises(PoisonedError, match=r"public\.t1 at 0/1200\.1 has 3,00. bytes"):
        read(log.log(), tmp_path)


def test_a_task_that_reads_the_log_itself_delivers_rows_that_are_too_large_for_the_jvm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sink refuses such a row, and the guard parks it: the pipeline does not stop."""
    monkeypatch.setattr(frame, "MAX_ROW_BYTES", 2000)
    log = TestLog()
    log.append(transaction(1, insert(relation(1), 1, "small"), insert(relation(1), 2, "v" * 3000)))
    assert open_blocks(log.log(), tmp_path) == 2


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_row_of_a_pipeline_that_parks_passes_the_jvm_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lanes: int
) -> None:
    """GIVEN a row that is too large for the JVM WHEN the pipeline can park it THEN the cell is
    small, the message is complete again where it is delivered, also if that is repeated, and the
    file is there until the next micro-batch."""
    log = TestLog()
    log.append(transaction(1, insert(relation(1), 1, "small"), insert(relation(1), 2, "v" * 9000)))
    part = whole(log.log())
    spec = replace(SPEC, lanes=lanes)
    expected = [
        row for batch in BlockFrame(spec).batches(part)
        for row in unpack(batch["messages"][0]).to_pylist()
    ]  # fmt: skip
    monkeypatch.setattr(frame, "MAX_ROW_BYTES", 2000)
    large = LargePayloads(tmp_path / "large")
    cells = [batch["messages"][0] for batch in BlockFrame(spec, large).batches(part)]
    assert max(len(cell.as_py()) for cell in cells) < 9000
    for _ in range(2):
        found = [unpack(cell) for cell in cells]
        assert [row for batch in found for row in batch.to_pylist()] == expected
        assert {batch.schema.metadata for batch in found} == {None}
    assert len(list((tmp_path / "large").iterdir())) == 1
    following = Slice(log=part.log, after=part.upto, upto=part.upto)
    assert len(list(BlockFrame(spec, large).batches(following))) == 1
    assert list((tmp_path / "large").iterdir()) == []

"""What a task notes while it delivers. That it delivers is tested with every sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.open_batch import OpenBatches
from tailrace.pipeline import delivery, opening
from tailrace.pipeline.delivery import Delivery
from tailrace.pipeline.opening import Target
from tailrace.pipeline.receipts import Tally
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class _Guard:
    """Takes everything."""

    def begin(self, position: Position) -> None:
        del position

    def write(self, messages: pa.RecordBatch) -> None:
        del messages


def test_a_closed_batch_notes_what_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a batch that lasts WHEN messages are written THEN how far it has come can be read
    before it ends, and its records say nothing else."""
    given: Any = None
    monkeypatch.setattr(opening, "get", lambda *_: None)
    monkeypatch.setattr(opening, "guard", lambda *_: _Guard())
    monkeypatch.setattr(delivery, "_NOTE_WRITTEN_S", 0.0)
    monkeypatch.setattr(Tally, "take", lambda *_: None)
    target = Target(name="orders", run="1", sink=given, began=given, records=tmp_path)
    records = OpenBatches(tmp_path)
    with Delivery(target) as task:
        for lsn in (5, 9):
            messages = pa.record_batch({"lsn": [lsn, lsn], "ordinal": [1, 2]})
            task.write(messages, Position(Lsn(1), 0))
            assert records.written() == {0: Position(Lsn(lsn), 2)}
    assert records.progress() is None
    assert [path.name for path in tmp_path.iterdir()] == ["0.written"]

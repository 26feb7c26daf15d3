"""Benchmarks build messages by hand: with the columns that messages have now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import parking, pull, sinks
from tailrace.message import MESSAGES
from tailrace.parking.message import Fate, Reason
from tailrace.parking.part import Parts

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def test_messages_have_the_columns_of_messages() -> None:
    batches: list[pa.RecordBatch] = [
        *sinks._messages(10, b"/"),
        pull._messages(0, 10),
        parking._messages(0, 10),
    ]
    for batch in batches:
        batch.validate(full=True)
        assert (batch.schema, batch.num_rows) == (MESSAGES, 10)
        assert batch["id"].to_pylist() == [b"%016x-0" % lsn for lsn in batch["lsn"].to_pylist()]


def test_messages_can_be_parked(tmp_path: Path) -> None:
    parking._park(tmp_path, 0, 10, Fate.PARKED, Reason())
    assert len(Parts(tmp_path / "parts").all()) == 1

"""What Spark passes to the task of a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from tailrace.open_batch import OpenBatch


class Range(InputPartition):
    """A range of the log for one task, and the backfill pages that follow it."""

    def __init__(self, after: str, upto: str, pages: tuple[int, ...] = ()) -> None:
        super().__init__((after, upto, pages))
        self.after, self.upto, self.pages = after, upto, pages


class OpenRange(InputPartition):
    """An open batch: its task follows the log."""

    def __init__(self, batch: OpenBatch, page: int) -> None:
        super().__init__((str(batch), page))
        self.batch, self.page = batch, page


class ReleasePartition(InputPartition):
    """Parked messages that are delivered again, after a position."""

    def __init__(self, after: str, number: int) -> None:
        super().__init__((after, number))
        self.after, self.number = after, number

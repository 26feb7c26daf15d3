"""What the offsets in a checkpoint mean: where their batches ended, and whether this log has it.

Spark stores an offset before its batch runs, and keeps it whatever happens to the log. So an offset
may name an open batch, a position of another log, or one in WAL that a promoted standby lacks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from tailrace import checkpoint
from tailrace.errors import ConfigError, CorruptError, DivergedError
from tailrace.open_batch import OpenBatches
from tailrace.pipeline.source.offset import Offset

if TYPE_CHECKING:
    from tailrace.log.reader import Log
    from tailrace.pipeline.source.options import Options


class OffsetResolver:
    """Reads offsets of one query against its log."""

    def __init__(self, options: Options, log: Log) -> None:
        self._options = options
        self._log = log

    @cached_property
    def records(self) -> OpenBatches:
        """Where open batches have ended."""
        folder = self._options.open_batches
        if folder is None:
            raise ConfigError(
                "the checkpoint has open batches, but the option openBatches is not set"
            )
        return OpenBatches(folder)

    @cached_property
    def history(self) -> str:
        """The id of the log."""
        return self._options.history or self._log.id

    def resolve(self, offset: dict[str, object]) -> Offset:
        """The offset, with the position where its batch ended.

        Raises DivergedError if the position is not one of this log.
        """
        parsed, log = self._closed(Offset.parse(offset)), self._log
        if parsed.history and parsed.history != self.history:
            raise DivergedError(
                f"the checkpoint belongs to the log {parsed.history}, but this log is "
                f"{self.history or 'without an id'}",
                hint=self._way_out,
            )
        # The visible end is not durable: after a power cut it may be before what was delivered.
        if parsed.history and parsed.position.lsn > (end := log.durable_end().end_lsn):
            raise DivergedError(
                f"the checkpoint is at {parsed.position}, but the log ends at {end}",
                hint=self._way_out,
            )
        self.check_timeline(parsed)
        return parsed

    def check_timeline(self, offset: Offset) -> None:
        """Raise DivergedError if the position is in WAL that a promoted standby lacks.

        What the new primary has written there since would pass for delivered.
        """
        ended = self._log.end_of_timeline(offset.timeline) if offset.timeline else None
        if ended is not None and offset.position.lsn > ended:
            raise DivergedError(
                f"rows of a backfill are at {offset.position.lsn}, but a standby was promoted that "
                f"has timeline {offset.timeline} up to {ended} only",
                hint=self._way_out,
            )

    def interrupted(self, offset: Offset) -> Offset | None:
        """The batch after an offset, if it is an open one that has delivered something already.

        Spark does not fsync offsets, so a power cut may remove the last ones. The log may have
        removed by then what these batches had delivered: each begins where it was, or has ended.
        """
        if self._options.open_batches is None or offset.timeline:
            return None
        batch = replace(offset, opened=offset.opened + 1, open=True, pages=(), heartbeat=0)
        began = self.records.began(batch.open_batch)
        return replace(batch, history=self.history) if began else None

    def _closed(self, offset: Offset) -> Offset:
        if not offset.open:
            return offset
        closed = self.records.closed(offset.open_batch)
        if closed is None:
            raise CorruptError(
                f"there is no record of where batch {offset.open_batch} ended", hint=self._way_out
            )
        return replace(offset, position=closed, open=False)

    @property
    def _way_out(self) -> str:
        if self._options.pipeline:
            return checkpoint.RESET
        return "Start the query with another checkpointLocation, and a startingPosition."

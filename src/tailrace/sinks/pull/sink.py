"""`Pull`: the sink. Stores messages in transactions, each with the position that it reaches.

A transaction that is committed counts, whether or not a flush follows: after an interruption the
position is read back, and messages up to there are skipped (`tailrace.sinks.ledger`).
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tailrace.errors import ConfigError, PoisonedError, SinkFullError, SinkUnreachableError
from tailrace.sinks.contract import Receipt
from tailrace.sinks.ledger import LaneId, Ledger
from tailrace.sinks.outcome import Outcome
from tailrace.sinks.pull.database import in_folder
from tailrace.sinks.pull.intake import Intake
from tailrace.sinks.pull.wake import Bell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.ledger import LanePosition
    from tailrace.sinks.pull.settings import PullSink

_FULL_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an open sink has."""

    intake: Intake
    bell: Bell
    ledger: Ledger

    def close(self) -> None:
        self.bell.close()
        self.intake.close()


class Pull:
    """Stores the messages of a lane for consumers."""

    def __init__(self, settings: PullSink, lane: Lane) -> None:
        self._settings = settings
        self._lane = lane
        self._id = LaneId(
            number=lane.number, lanes=lane.lanes, source=lane.history, reset=lane.reset
        )
        self._opened: _Opened | None = None
        self._rows: list[pa.RecordBatch] = []
        """What was taken and is not stored."""
        self._bytes = 0
        self._stored = self._stored_bytes = self._skipped = 0
        """Since the last flush."""

    def open(self, after: Position) -> None:
        """Open the store, and read the lane's position back."""
        try:
            if self._opened is None or self._rows or not self._opened.intake.owned():
                self.close()
                self._opened = self._take_over(self._folder())
            ledger = self._opened.ledger
            ledger.open(after)
            self._forget()
            if ledger.ahead and ledger.stored is not None:
                structlog.get_logger().info(
                    "pull.resumed",
                    lane=self._lane.number,
                    after=str(after),
                    stored=str(ledger.stored.position),
                )
        except BaseException:
            self.close()
            raise

    def _folder(self) -> Path:
        if self._lane.folder is None:
            raise ConfigError("the sink pull needs a data folder", hint="Set `data`.")
        return self._lane.folder

    def _take_over(self, folder: Path) -> _Opened:
        intake = Intake(
            in_folder(folder),
            lane=self._lane.number,
            ordered=self._lane.ordered,
            latest=self._settings.mode == "records",
        )
        try:
            # A pipeline of another history is refused before it fences the one that is right.
            self._ledger_of(intake.positions())
            intake.claim()
            ledger = self._ledger_of(intake.positions())
            return _Opened(intake, Bell(folder), ledger)
        except BaseException:
            intake.close()
            raise

    def _ledger_of(self, stored: Mapping[int, LanePosition]) -> Ledger:
        return Ledger(self._id, stored, system="the pull store", guide="docs/guides/pull.md")

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that are too large."""
        ledger = self._require_open().ledger
        limit = self._settings.max_message_bytes
        sizes = pc.binary_length(batch.column("payload")).to_numpy()
        large = np.flatnonzero(sizes > limit).tolist()
        # The store may hold messages that it would not take today.
        held = ledger.held(batch) if large else 0
        return {
            row: Outcome.refused(
                PoisonedError(
                    f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                    hint="Raise max_message_bytes, or exclude large columns.",
                )
            )
            for row in large
            if row >= held
        }

    def write(self, batch: pa.RecordBatch) -> None:
        """Take messages; those that fill a transaction are stored."""
        with self._attempt() as opened:
            for part in self._parts(batch):
                missing = opened.ledger.missing(part)
                self._skipped += part.num_rows - missing.num_rows
                if missing.num_rows:
                    self._rows.append(missing)
                    self._bytes += _size(missing)
                if self._is_full():
                    self._store(opened)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch in parts that a transaction can hold."""
        ends = np.cumsum(pc.binary_length(batch.column("payload")).to_numpy())
        start, limit = 0, self._settings.batch_bytes
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + limit, "right"))
            count = min(max(end - start, 1), self._settings.batch_rows)
            yield batch.slice(start, count)
            start += count

    def _is_full(self) -> bool:
        rows = sum(part.num_rows for part in self._rows)
        return rows >= self._settings.batch_rows or self._bytes >= self._settings.batch_bytes

    def _store(self, opened: _Opened) -> None:
        """Store what was taken, with the position that it reaches."""
        position = opened.ledger.to_commit()
        if position is None or not self._rows:
            return
        rows = pa.concat_batches(self._rows)
        self._wait_for_space(opened, rows, position)
        opened.bell.ring()
        opened.ledger.stored = position
        self._stored += rows.num_rows
        self._stored_bytes += self._bytes
        self._rows, self._bytes = [], 0

    def _wait_for_space(
        self, opened: _Opened, rows: pa.RecordBatch, position: LanePosition
    ) -> None:
        until = time.monotonic() + self._settings.timeout_s
        most = self._settings.max_bytes
        while not opened.intake.add(
            rows, position, now_ms=time.time_ns() // 1_000_000, max_bytes=most
        ):
            if time.monotonic() > until:
                totals = opened.intake.totals()
                raise SinkFullError(
                    f"the store of pipeline {self._lane.pipeline} is full: {totals.messages} "
                    f"messages with {totals.bytes} bytes, max_bytes is {most}",
                    hint="Let consumers acknowledge messages, or raise `max_bytes` of the sink. "
                    "The log keeps what follows.",
                )
            time.sleep(_FULL_POLL_S)

    def flush(self, *, end: bool = True) -> Receipt:
        """Store the rest."""
        del end
        with self._attempt() as opened:
            opened.ledger.verify()
            self._store(opened)
            receipt = Receipt(
                messages=self._stored, bytes=self._stored_bytes, duplicates=self._skipped
            )
        self._forget()
        return receipt

    def close(self) -> None:
        """Close the store. What it holds stays."""
        opened, self._opened = self._opened, None
        self._forget()
        if opened is not None:
            with contextlib.suppress(Exception):
                opened.close()

    def _forget(self) -> None:
        self._rows = []
        self._bytes = self._stored = self._stored_bytes = self._skipped = 0

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[_Opened]:
        """Close the sink after an error: the next `open` begins from the stored position."""
        try:
            yield self._require_open()
        except BaseException:
            self.close()
            raise

    def _require_open(self) -> _Opened:
        if self._opened is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._lane.pipeline} is not open")
        return self._opened


def _size(batch: pa.RecordBatch) -> int:
    return int(pc.sum(pc.binary_length(batch.column("payload"))).as_py())

"""`Files`: the sink. A message counts once its file has its final name.

`commits` has the protocol, and `progress` says which messages of a replay are left. Files are
completed together, so that one position says what is delivered: when one of them is as large as it
may be, when the first message has waited long enough, and at the end of a batch.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import structlog

from tailrace.errors import PoisonedError, SinkError, SinkUnreachableError
from tailrace.message import last_of
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt
from tailrace.sinks.file.commits import Commits
from tailrace.sinks.file.destination import is_folder, tag_of
from tailrace.sinks.file.formats import not_lines_of_json
from tailrace.sinks.file.progress import Positions, Progress
from tailrace.sinks.file.spool import Spools
from tailrace.sinks.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.file.settings import FileSink
    from tailrace.sinks.file.store import Store


class Files:
    """Writes the messages of a lane. `connect` gives the store, which the sink closes."""

    def __init__(
        self,
        settings: FileSink,
        lane: Lane,
        connect: Callable[[], Store],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._lane = lane
        self._connect = connect
        self._clock = clock
        self._store: Store | None = None
        self._commits: Commits | None = None
        self._spools: Spools | None = None
        self._after = self._reached = self._decided = ORIGIN
        self._delivered = Progress()
        self._beyond: list[Positions] = []
        """Messages of this lane since the start of the batch."""
        self._inspected = 0
        """Messages of the last batch that was inspected and not written."""
        self._gaps = False
        """Whether a message of the batch was inspected and not written: it was parked."""
        self._since_s = 0.0
        """When the first message of the spooled files was written."""
        self._skipped = 0
        self._receipt = Receipt()
        """What is decided and not yet reported."""

    def open(self, after: Position) -> None:
        """Connect, and read what the pipeline has delivered."""
        try:
            if self._commits is None or self._spools or not self._commits.owned:
                self._take_over(after)
        except BaseException:
            self.close()
            raise
        self._after = self._reached = self._decided = after
        self._delivered |= Progress(complete=after)
        self._skipped, self._receipt = 0, Receipt()
        self._inspected, self._gaps = 0, False

    def _take_over(self, after: Position) -> None:
        self.close()
        self._store = self._connect()
        commits = Commits(self._store, self._lane)
        self._delivered, own = commits.take_over()
        self._beyond = [own.beyond]
        self._commits = commits
        self._spools = Spools(
            self._settings,
            self._store,
            temporary=commits.temporary,
            lane=self._lane.number,
            tag=tag_of(self._lane.owner, self._lane.history),
        )
        if self._delivered.complete > after or len(self._delivered.beyond.beyond(after)):
            structlog.get_logger().info(
                "file.resumed",
                lane=self._lane.number,
                after=str(after),
                stored=str(self._delivered.complete),
            )

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows without a valid folder, too large ones, and with jsonl those without JSON."""
        self._require_open()
        self._note_gap(batch.num_rows)
        errors: dict[int, PoisonedError] = {}
        destinations = batch.column("destination")
        for folder in pc.unique(destinations).to_pylist():
            if not is_folder(folder):
                shown = repr(folder[:200].decode("utf-8", "replace"))
                error = PoisonedError(
                    f"its destination {shown} is not a folder below the URL",
                    hint="Use a relative path without `..`, and no part that begins with . or _.",
                )
                rows = pc.indices_nonzero(pc.equal(destinations, folder)).to_pylist()
                errors.update(dict.fromkeys(rows, error))
        payloads, limit = batch.column("payload"), self._settings.max_message_bytes
        if self._settings.format == "jsonl":
            for row in not_lines_of_json(payloads):
                errors[row] = PoisonedError(
                    "its payload is not one line of JSON",
                    hint="Set `encoding: json` of the pipeline, or `format: parquet` of the sink.",
                )
        sizes = pc.binary_length(payloads).to_numpy()
        for row in np.flatnonzero(sizes > limit).tolist():
            errors[row] = PoisonedError(
                f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                hint="Raise max_message_bytes, or exclude large columns.",
            )
        # A file may have a message that would be refused today.
        return {
            row: Outcome.refused(error)
            for row, error in errors.items()
            if self._delivered.missing(batch.slice(row, 1)).num_rows
        }

    def write(self, batch: pa.RecordBatch) -> None:
        """Spool the messages that no file has. Completes files that are large enough."""
        if not batch.num_rows:
            self._require_open()
            return
        with self._attempt() as spools:
            missing = self._delivered.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            if missing.num_rows:
                if not spools:
                    self._since_s = self._clock()
                spools.write(missing)
                self._beyond.append(Positions.of(missing).copy())
            self._inspected = max(self._inspected - batch.num_rows, 0)
            self._note_gap(0)
            self._reached = last_of(batch)
            if not spools:
                self._decide(messages=0, size=0)
            elif spools.full:
                self._complete(spools)

    def flush(self, *, end: bool = True) -> Receipt:
        """Complete the files. Without `end` only if they have waited long enough."""
        with self._attempt() as spools:
            self._note_gap(0)
            waited_s = self._clock() - self._since_s
            if spools and (end or waited_s >= self._settings.roll_s):
                self._complete(spools)
            upto = self._decided if spools else None
            found, self._receipt = self._receipt, Receipt()
        return Receipt(
            messages=found.messages, bytes=found.bytes, duplicates=found.duplicates, upto=upto
        )

    def _complete(self, spools: Spools) -> None:
        """Give all files their final names."""
        assert self._commits is not None
        messages, size = spools.rows, spools.bytes
        try:
            files = spools.complete()
        except SinkError:
            # The next sink of the lane deletes the temporary files of this one.
            self._commits.check_owner()
            raise
        progress = self._progress()
        self._commits.commit(progress, files)
        self._delivered |= progress
        self._decide(messages=messages, size=size)

    def _progress(self) -> Progress:
        """What the lane records: see `progress`."""
        complete = max(self._delivered.complete, self._after)
        if self._lane.lanes == 1 and not self._gaps:
            complete = max(complete, self._reached)
        self._beyond = [Positions.union(self._beyond).beyond(complete)]
        return Progress(complete=complete, beyond=self._beyond[0])

    def _note_gap(self, inspected: int) -> None:
        """Note messages that were inspected before and not written."""
        self._gaps |= self._inspected > 0
        self._inspected = inspected

    def _decide(self, *, messages: int, size: int) -> None:
        """Everything that was written is in files."""
        self._decided = self._reached
        self._receipt = Receipt(
            messages=self._receipt.messages + messages,
            bytes=self._receipt.bytes + size,
            duplicates=self._receipt.duplicates + self._skipped,
        )
        self._skipped = 0

    def close(self) -> None:
        """Delete what is not completed."""
        spools, self._spools = self._spools, None
        store, self._store, self._commits = self._store, None, None
        if spools is not None:
            spools.discard()
        if store is not None:
            store.close()

    def _require_open(self) -> Spools:
        if self._spools is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._lane.pipeline} is not open")
        return self._spools

    @contextmanager
    def _attempt(self) -> Iterator[Spools]:
        """After an error the sink is closed: the next one finds out what was completed."""
        try:
            yield self._require_open()
        except BaseException:
            self.close()
            raise

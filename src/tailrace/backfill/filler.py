"""Runs one backfill: reads pages of the table and writes them to the spool.

Each page is read in its own transaction and stays in the spool until the pipeline has delivered it.
The record is saved after every page; after a crash the spool shows which pages the record missed.
The pipeline drops rows that newer changes replace (`tailrace.backfill.handover`); for that, each
page carries the position after which the log may hold changes that the page does not see.
"""

from __future__ import annotations

import contextlib
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tailrace import checkpoint
from tailrace.backfill import page as pages
from tailrace.backfill.bound import PageBound
from tailrace.backfill.spool import Page, Spool, spool_of
from tailrace.backoff import Backoff
from tailrace.decode.columns import as_text
from tailrace.errors import DiskFullError
from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.position import ORIGIN
from tailrace.postgres.connection import connect
from tailrace.snapshot.timeline import check_timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from psycopg import Connection

    from tailrace.backfill.order import Order, Record
    from tailrace.backfill.page import PageSnapshot
    from tailrace.config import Config
    from tailrace.decode.group import Image
    from tailrace.position import Position

_FIRST_ROWS = 5_000
_MIN_ROWS = 100
_MAX_WAITING = 4
"""Pages in the spool that the pipeline has not delivered, at most."""
_POLL_S = 0.02
_FIRST_RETRY_S, _MAX_RETRY_S = 0.5, 5.0
_RETENTION_S = 120.0
"""How long a delivered page stays: after a power cut Spark may replay the last committed batches,
because it does not fsync its commits."""
_RENEW_PIN_S = 60.0


class Filler:
    """Fills the spool of one pipeline.

    `wait` sleeps for some seconds; it returns False if the backfill must stop where it is. `clock`
    is monotonic, `now` is Unix time.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        wait: Callable[[float], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._settings = config.pipelines[name].backfill
        self._wait = wait
        self._clock = clock
        self._now = now
        self.folder: Path = config.data / "backfills" / name
        self._checkpoint = checkpoint.folder_of(config.data, name)
        self._spool = Spool(spool_of(config.data, name))
        self._pin = retention.backfill_pin(name)
        self._pinned: tuple[Position | None, float] | None = None
        """The position of the pin, and when it was renewed by `clock`. None: not known yet."""
        self._since: dict[int, Position] = {}
        """Where the log must begin for each page in the spool."""
        self._events = structlog.get_logger().bind(pipeline=name)
        self._started: dict[str, Position] = {}
        """What the pipeline had delivered when each backfill began. Commits before that do not
        count as delivered: the pipeline may have had other tables then."""
        self._delivered_at: dict[int, float] = {}
        self._counted = 0
        """The last page whose rows are counted as delivered."""
        self._records: dict[str, Record] = {}
        """Of backfills whose pages may be in the spool, also after they were cancelled."""
        self._last_reason = ""

    def run(self, order: Order, record: Record) -> bool:
        """Work on a backfill. True: it is complete. False: it stopped and can be resumed."""
        if not record.begun_at:
            record.begun_at = self._now()
            self._events.info("backfill.started", id=order.id, table=str(order.table))
        self.adopt_pages(record)
        record.state, record.error = "running", ""
        record.save(self.folder)
        started = self._started.get(order.id) or self._wait_for_pipeline()
        if started is None:
            return False
        self._started[order.id] = started
        while self._read_table(order, record) and self._wait_for_delivery(record):
            if self._read_all(order, record):
                return True
            self._events.warning(
                "backfill.restarting", id=order.id, reason="the table or its key has changed"
            )
            record.restart()
        return False

    @property
    def _store(self) -> LocalStore:
        return LocalStore(self._config.log.path)

    def adopt_pages(self, record: Record) -> None:
        """Add the pages to the record that were written right before a crash.

        Before any of them is delivered and removed: it would be read again.
        """
        self._records[record.id] = record
        for page in self._spool.pages(record.number):
            if page.backfill == record.id:
                self._note(record, page)
        self._spool.sweep(checkpoint.delivered_page(self._checkpoint))

    def _note(self, record: Record, page: Page) -> None:
        record.number, record.cursor, record.read = page.number, page.cursor, page.read
        record.key, record.whole, record.oid = page.key, page.last, page.table.relation.oid
        record.bytes += page.size
        record.save(self.folder)

    def _read_table(self, order: Order, record: Record) -> bool:
        """Read pages up to the end of the table; False if the backfill must stop before that.

        Returns True in the middle of the table if it is another table now, or has another key: the
        cursor is then useless, and `run` starts again.
        """
        log = Log.open(self._config.log.path)
        bound = PageBound(log, self._started[order.id], self._log_waiting)
        backoff = Backoff(first_s=_FIRST_RETRY_S, max_s=_MAX_RETRY_S, clock=self._clock)
        with closing(connect(self._config.source.dsn.get_secret_value())) as connection:
            while not record.whole:
                if not self._wait_for_space(record):
                    return False
                started_s = self._clock()
                snapshot, draft = self._read_page(connection, order, record)
                if draft is None:
                    break
                read_s = self._clock() - started_s
                if not log.wait_for_lsn(draft.lsn, self._wait):
                    return False
                check_timeline(connection, log)
                since = bound.position(snapshot)
                if since is None:
                    # The page is read again: its file is overwritten.
                    if not self._wait(backoff.next_s()):
                        return False
                    continue
                backoff.reset()
                self._add(record, replace(draft, since=since), read_s)
                if order.rate and not self._wait(pause_s(order.rate, draft.rows, read_s)):
                    return False
        return True

    def _read_page(
        self, connection: Connection, order: Order, record: Record
    ) -> tuple[PageSnapshot, Page | None]:
        """Read the next page into the spool's folder; no page if the cursor is useless."""
        with self._snapshot(connection, order) as snapshot:
            if not record.expected:
                if order.where:
                    pages.check(connection, snapshot, order.where)
                record.expected = max(pages.estimate(connection, snapshot, order.where), 1)
            if record.read and not record.continues(snapshot):
                return snapshot, None
            return snapshot, self._write_rows(connection, order, record, snapshot)

    def _write_rows(
        self, connection: Connection, order: Order, record: Record, snapshot: PageSnapshot
    ) -> Page:
        """Write the rows of the next page to the spool; the page is not added to it yet."""
        record.page_rows = record.page_rows or min(_FIRST_ROWS, self._settings.page_rows)
        limit = record.page_rows if snapshot.key else 0
        delivered = checkpoint.delivered_page(self._checkpoint)
        number = max(record.number, delivered, *self._spool.numbers(), 0) + 1
        last_key = _LastKey(snapshot)
        blocks = pages.rows(
            connection, snapshot, where=order.where, cursor=record.cursor, limit=limit
        )
        rows, size = self._spool.write(number, last_key.watch(blocks))
        return Page(
            number=number,
            backfill=order.id,
            table=snapshot.table,
            key=snapshot.key,
            visibility=snapshot.visibility,
            lsn=snapshot.lsn,
            taken_at=snapshot.taken_at,
            since=ORIGIN,
            rows=rows,
            size=size,
            read=record.read + rows,
            cursor=last_key.key or record.cursor,
            last=rows < limit or not limit,
        )

    def _add(self, record: Record, page: Page, read_s: float) -> None:
        """Hand the page to the pipeline. The log keeps every change that handover will read."""
        self._since[page.number] = page.since
        self._keep_log()
        self._spool.add(page)
        record.page_rows = next_page_rows(
            record.page_rows,
            read_s,
            target_s=self._settings.page_seconds,
            max_rows=self._settings.page_rows,
        )
        self._note(record, page)

    def _wait_for_pipeline(self) -> Position | None:
        """Wait until the pipeline has a start position; what it has delivered by then."""
        while True:
            start = checkpoint.start(self._checkpoint)
            if start is not None:
                return checkpoint.delivered(self._checkpoint) or start
            if not self._wait(_POLL_S):
                return None

    def _wait_for_space(self, record: Record) -> bool:
        """Wait until fewer than _MAX_WAITING pages wait for the pipeline."""
        wait_s = 0.0
        while self._wait(wait_s):
            if self._undelivered(record) < _MAX_WAITING:
                return True
            wait_s = _POLL_S
        return False

    def _wait_for_delivery(self, record: Record) -> bool:
        """Wait until the pipeline has delivered every page."""
        while self._undelivered(record):
            if not self._wait(_POLL_S):
                return False
        return True

    def _undelivered(self, record: Record) -> int:
        """How many pages of the spool the pipeline has not delivered. Counts those it has.

        Not by the number of the last page: a reset empties the spool, and numbers go on.
        """
        delivered = checkpoint.delivered_page(self._checkpoint)
        self._tidy(delivered)
        undelivered = len(self._spool.numbers(delivered))
        if not undelivered:
            # Its pages may have been removed while it was paused.
            record.delivered = record.read
        return undelivered

    def tidy(self) -> None:
        """Count pages that were delivered, and remove them some time later. The log is kept for the
        others.

        The pages of a backfill that was paused or cancelled, or has failed, are still delivered, so
        the service calls this also while no backfill runs.
        """
        self._tidy(checkpoint.delivered_page(self._checkpoint))

    def _tidy(self, delivered: int) -> None:
        now_s = self._clock()
        since: dict[int, Position] = {}
        for number in self._spool.numbers():
            if number <= delivered:
                self._count(number)
                age_s = now_s - self._delivered_at.setdefault(number, now_s)
                if age_s > _RETENTION_S:
                    self._spool.remove(number)
                    del self._delivered_at[number]
                    continue
            since[number] = self._since.get(number) or self._spool.page(number).since
        self._since = since
        self._keep_log()

    def _count(self, number: int) -> None:
        """Count the rows of a delivered page, once."""
        if number <= self._counted:
            return
        self._counted = number
        page = self._spool.page(number)
        record = self._records.get(page.backfill)
        if record is not None:
            record.delivered = page.read
            if record.state != "running":
                with contextlib.suppress(DiskFullError):
                    record.save(self.folder)

    def _keep_log(self) -> None:
        """Move the pin to the oldest change that handover may read for a page in the spool."""
        oldest, now_s = min(self._since.values(), default=None), self._clock()
        if self._pinned is not None:
            position, renewed_s = self._pinned
            if position == oldest and (oldest is None or now_s - renewed_s < _RENEW_PIN_S):
                return
        if oldest is None:
            retention.unpin(self._store, self._pin)
        else:
            retention.pin(self._store, self._pin, oldest, now=self._now())
        self._pinned = (oldest, now_s)

    def _log_waiting(self, reason: str) -> None:
        if reason != self._last_reason:
            self._events.warning("backfill.waiting", reason=reason)
        self._last_reason = reason

    def _read_all(self, order: Order, record: Record) -> bool:
        """Whether all was read, of the table that has the name now, with its present key."""
        with (
            closing(connect(self._config.source.dsn.get_secret_value())) as connection,
            self._snapshot(connection, order) as snapshot,
        ):
            return record.whole and record.continues(snapshot)

    def _snapshot(
        self, connection: Connection, order: Order
    ) -> AbstractContextManager[PageSnapshot]:
        return pages.snapshot(
            connection, self._config.source.publication, order.table,
            timeout_s=self._settings.statement_timeout_s,
        )  # fmt: skip


def next_page_rows(rows: int, read_s: float, *, target_s: float, max_rows: int) -> int:
    """The size of the next page, so that reading it takes about `target_s`.

    The size changes at most by a factor of 5 downwards and 2 upwards per page.

    >>> [next_page_rows(1000, s, target_s=1.0, max_rows=5000) for s in (0.1, 0.8, 1.0, 2.0, 60.0)]
    [2000, 1250, 1000, 500, 200]
    """
    factor = min(max(target_s / max(read_s, 0.001), 0.2), 2.0)
    return int(min(max(rows * factor, _MIN_ROWS), max_rows))


def pause_s(rate: float, rows: int, read_s: float) -> float:
    """How long to wait after a page so that at most `rate` rows per second are read.

    >>> pause_s(100.0, 500, 1.0), pause_s(1000.0, 500, 1.0)
    (4.0, 0.0)
    """
    return max(rows / rate - read_s, 0.0)


class _LastKey:
    """Passes rows through and keeps the key of the last one."""

    def __init__(self, snapshot: PageSnapshot) -> None:
        names = [column.name for column in snapshot.table.relation.columns]
        self._indexes = [names.index(name) for name in snapshot.key]
        self.key: tuple[str, ...] = ()

    def watch(self, blocks: Iterator[tuple[int, Image]]) -> Iterator[tuple[int, Image]]:
        for count, image in blocks:
            if count:
                columns = [image[index] for index in self._indexes]
                self.key = tuple(
                    as_text(cells.values.slice(count - 1))[0].as_py() for cells in columns if cells
                )
            yield count, image

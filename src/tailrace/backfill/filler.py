"""One backfill from its beginning to its end: pages of the table into the spool.

A page is read in a transaction of its own and waits in the spool until the pipeline has taken it.
After each the record is saved; after a crash the spool itself tells how far it was. The pipeline
leaves out rows that the stream has passed (`tailrace.backfill.handover`); for that a page says from
where in the log on there may be changes that it does not see.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from tailrace import checkpoint
from tailrace.backfill import page
from tailrace.backfill.spool import Page, Spool, spool_of
from tailrace.decode.columns import as_text
from tailrace.errors import PositionLostError
from tailrace.log import awaited, retention
from tailrace.log.reader import AtLsn, AtTime, Earliest, Log
from tailrace.log.store import LocalStore
from tailrace.position import ORIGIN
from tailrace.postgres.connection import connect
from tailrace.snapshot.unseen import Unseen
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from psycopg import Connection

    from tailrace.backfill.order import Order, Record
    from tailrace.backfill.page import Moment
    from tailrace.config import Config
    from tailrace.decode.group import Image
    from tailrace.position import Position

_FIRST_ROWS = 5_000
_LEAST_ROWS = 100
_MOST_WAITING = 4
_LOOK_S = 0.02
_HANGING_S = 0.5
_CLOCKS = timedelta(seconds=30)
"""How far a commit's time may lie before the time its transaction is said to have begun."""
_KEPT_S = 120.0
"""How long a delivered chunk is kept: a power cut may take back the pipeline's last commits."""


class Filler:
    """Fills the spool of one pipeline.

    `waits` sleeps for some seconds; False says that the work is to be left as it is.
    """

    def __init__(self, config: Config, name: str, waits: Callable[[float], bool]) -> None:
        self._config = config
        self._settings = config.pipelines[name].backfill
        self._waits = waits
        self.folder: Path = config.data / "backfills" / name
        self._checkpoint = config.data / "checkpoints" / name
        self._spool = Spool(spool_of(config.data, name))
        self._pin = f"{name}-backfill"
        self._events = structlog.get_logger().bind(pipeline=name)
        self._begun: dict[str, Position] = {}
        """What the pipeline had delivered when we began: before that it may have had other tables,
        and nothing counts as delivered."""
        self._gone: dict[int, float] = {}
        self._said = ""

    def run(self, order: Order, record: Record) -> bool:
        """Work on a backfill. True: it is complete. False: the work was left, and can go on."""
        if not record.begun_at:
            record.begun_at = time.time()
            self._events.info("backfill.begun", id=order.id, table=str(order.table))
        self._adopt(record)
        record.state, record.error = "running", ""
        record.save(self.folder)
        begun = self._begun.get(order.id) or self._pipeline_begun()
        if begun is None:
            return False
        self._begun[order.id] = begun
        while self._read(order, record) and self._deliver(record):
            if self._same_key(order, record):
                retention.unpin(self._store, self._pin)
                return True
            self._events.warning("backfill.anew", id=order.id, reason="the table's key has changed")
            record.cursor, record.key, record.read, record.whole = (), (), 0, False
        return False

    @property
    def _store(self) -> LocalStore:
        return LocalStore(self._config.log.path)

    def _adopt(self, record: Record) -> None:
        """Take note of chunks that were written right before a crash."""
        for chunk in self._spool.chunks(record.number):
            if chunk.backfill == record.id:
                self._note(record, chunk)
        self._spool.sweep(checkpoint.chunk(self._checkpoint))

    def _note(self, record: Record, chunk: Page) -> None:
        record.number, record.cursor, record.read = chunk.number, chunk.cursor, chunk.read
        record.key, record.whole = chunk.key, chunk.last
        record.bytes += chunk.size
        record.save(self.folder)

    def _read(self, order: Order, record: Record) -> bool:
        """Read to the end of the table; False when the work is to be left before."""
        log = Log.open(self._config.log.path)
        source = self._config.source
        unseen: Unseen | None = None
        with closing(connect(source.dsn.get_secret_value())) as connection:
            while not record.whole:
                if not self._room(record):
                    return False
                started = time.monotonic()
                with page.moment(connection, source.publication, order.table) as seen:
                    if not record.expected:
                        self._examine(connection, order, record, seen)
                    if record.read and seen.key != record.key:
                        # There is no going on from the cursor: `run` finds out as well.
                        break
                    draft = self._page(connection, order, record, seen)
                seconds = time.monotonic() - started
                if not self._in_log(log, draft):
                    return False
                unseen = unseen or self._unseen(log, seen)
                since = None if unseen is None else self._since(log, unseen, draft)
                if since is None:
                    unseen = None
                    if not self._waits(_HANGING_S):
                        return False
                    continue
                retention.pin(self._store, self._pin, since)
                chunk = replace(draft, since=since)
                self._spool.add(chunk)
                self._adapt(record, seconds)
                self._note(record, chunk)
                if order.rate and not self._waits(max(chunk.rows / order.rate - seconds, 0)):
                    return False
        return True

    def _pipeline_begun(self) -> Position | None:
        """What is delivered, as soon as the pipeline has a place to begin at."""
        while True:
            began = checkpoint.began(self._checkpoint)
            if began is not None:
                return checkpoint.delivered(self._checkpoint) or began
            if not self._waits(_LOOK_S):
                return None

    def _room(self, record: Record) -> bool:
        """Wait until few chunks wait for the pipeline."""
        wait_s = 0.0
        while self._waits(wait_s):
            if record.number - self._taken(record) < _MOST_WAITING:
                return True
            wait_s = _LOOK_S
        return False

    def _deliver(self, record: Record) -> bool:
        """Wait until the pipeline has delivered everything."""
        while self._taken(record) < record.number:
            if not self._waits(_LOOK_S):
                return False
        return True

    def _taken(self, record: Record) -> int:
        """The last chunk that is delivered; those before it are let go after a while."""
        delivered, now = checkpoint.chunk(self._checkpoint), time.monotonic()
        for number in self._spool.numbers():
            if number > delivered:
                break
            if number not in self._gone:
                self._gone[number] = now
                chunk = self._spool.chunk(number)
                if chunk.backfill == record.id:
                    record.delivered = chunk.read
            elif now - self._gone[number] > _KEPT_S:
                self._spool.remove(number)
                del self._gone[number]
        return delivered

    def _examine(self, connection: Connection, order: Order, record: Record, seen: Moment) -> None:
        if order.where:
            page.check(connection, seen, order.where)
        record.expected = max(page.estimate(connection, seen, order.where), 1)

    def _page(self, connection: Connection, order: Order, record: Record, seen: Moment) -> Page:
        """The next page, its rows in the spool."""
        record.page_rows = record.page_rows or min(_FIRST_ROWS, self._settings.page_rows)
        limit = record.page_rows if seen.key else 0
        number = max(record.number, checkpoint.chunk(self._checkpoint), *self._spool.numbers(), 0)
        last = _Last(seen)
        blocks = page.rows(connection, seen, where=order.where, cursor=record.cursor, limit=limit)
        rows, size = self._spool.write(number + 1, last.watch(blocks))
        return Page(
            number=number + 1,
            backfill=order.id,
            table=seen.table,
            key=seen.key,
            visibility=seen.visibility,
            lsn=seen.lsn,
            taken_at=seen.taken_at,
            since=ORIGIN,
            rows=rows,
            size=size,
            read=record.read + rows,
            cursor=last.key or record.cursor,
            last=rows < limit or not limit,
        )

    def _in_log(self, log: Log, chunk: Page) -> bool:
        """Wait until everything the page sees is in the log."""
        if log.end().end_lsn < chunk.lsn:
            awaited.ask(self._store, chunk.lsn)
        while log.end().end_lsn < chunk.lsn:
            if not self._waits(_LOOK_S):
                return False
        return True

    def _unseen(self, log: Log, seen: Moment) -> Unseen | None:
        """From where on the log may hold what the page does not see; None: too far back."""
        start = Earliest() if seen.since is None else AtTime(PgTime.of(seen.since - _CLOCKS))
        try:
            return Unseen(log, seen.table.relation, log.resolve(start))
        except PositionLostError:
            self._say("a transaction is older than the log")
            return None

    def _since(self, log: Log, unseen: Unseen, chunk: Page) -> Position | None:
        """The place in the log behind which stands what a page does not see.

        None: it is a commit that hangs, from before the pipeline. Nobody has delivered it, and the
        page does not have it.
        """
        upto = log.end().position
        first = unseen.first(chunk.visibility, upto)
        if first is None:
            return upto
        if first <= self._begun[chunk.backfill].lsn:
            self._say(f"the commit at {first} hangs")
            return None
        return log.resolve(AtLsn(first))

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._events.warning("backfill.waiting", reason=reason)
        self._said = reason

    def _adapt(self, record: Record, seconds: float) -> None:
        """Ask for as many rows as a page of the wanted duration has."""
        wanted = record.page_rows * min(
            max(self._settings.page_seconds / max(seconds, 0.001), 0.2), 2.0
        )
        record.page_rows = int(min(max(wanted, _LEAST_ROWS), self._settings.page_rows))

    def _same_key(self, order: Order, record: Record) -> bool:
        source = self._config.source
        with (
            closing(connect(source.dsn.get_secret_value())) as connection,
            page.moment(connection, source.publication, order.table) as seen,
        ):
            return seen.key == record.key


class _Last:
    """Watches rows go by, for the key of the last one."""

    def __init__(self, seen: Moment) -> None:
        names = [column.name for column in seen.table.relation.columns]
        self._at = [names.index(name) for name in seen.key]
        self.key: tuple[str, ...] = ()

    def watch(self, blocks: Iterator[tuple[int, Image]]) -> Iterator[tuple[int, Image]]:
        for count, image in blocks:
            if count:
                cells = [image[at] for at in self._at]
                self.key = tuple(
                    as_text(each.values.slice(count - 1))[0].as_py() for each in cells if each
                )
            yield count, image

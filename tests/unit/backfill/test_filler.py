"""A filler reads a table into the spool page by page, whatever stops it in between.

PostgreSQL is a list of rows, the log is in memory, and time passes only while the filler waits.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.backfill import filler as module
from tailrace.backfill import page as pages
from tailrace.backfill.filler import Filler
from tailrace.backfill.order import Order, Record
from tailrace.backfill.page import PageSnapshot
from tailrace.backfill.spool import Page, Spool, spool_of
from tailrace.config import Config
from tailrace.decode.group import Cells
from tailrace.errors import PostgresUnreachableError
from tailrace.log import awaited, retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.position import Lsn, Position
from tailrace.postgres.names import TableName
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.snapshot import timeline
from tailrace.snapshot.table import Table
from tailrace.visibility import Visibility
from tests.fix_log import IDENTITY, START, TestLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ITEMS = TableName("public", "items")
PAGE_ROWS = 100


class System:
    """A table, a pipeline that delivers the spool, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self.key: tuple[str, ...] = ("id",)
        self.oid = 1
        self.lsn = START
        self.timelines: list[int] = []
        """The timelines of the server for the next pages; then that of the log."""
        self.now_s = 0.0
        self.waits: list[float] = []
        self.delivering = True
        self.max_waits = 10_000
        self.unseen = 0
        """How many pages to report as having an invisible commit."""
        (folder / "log").mkdir()
        self.config = Config.model_validate(
            {
                "data": str(folder / "data"),
                "log": {"path": str(folder / "log")},
                "pipelines": {
                    "shop": {
                        "sink": {"type": "nats", "url": "nats://127.0.0.1:1"},
                        "backfill": {"page_rows": PAGE_ROWS},
                    }
                },
            }
        )
        self.folder = self.config.data / "backfills" / "shop"
        self.spool = Spool(spool_of(self.config.data, "shop"))
        self.checkpoint = self.config.data / "checkpoints" / "shop"
        self.record = Record(id="fill-1", table=ITEMS)
        self.batch = 0

    def start_pipeline(self) -> None:
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "tailrace-start").write_text(f"{Position(START)}\n")

    def deliver(self) -> None:
        numbers = self.spool.numbers()
        if self.delivering and numbers:
            self.batch += 1
            offset = f'{{"position": "{Position(START)}", "chunk": {numbers[-1]}}}'
            (self.checkpoint / "offsets" / str(self.batch)).write_text(f"v1\n{{}}\n{offset}")
            (self.checkpoint / "commits" / str(self.batch)).write_text("v1\n{}")

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now_s += seconds
        self.deliver()
        return len(self.waits) < self.max_waits

    def filler(self) -> Filler:
        """That of a process that has just started."""
        return Filler(
            self.config, "shop", self.wait, clock=lambda: self.now_s, now=lambda: 1000 + self.now_s
        )

    def run(self, **order: Any) -> bool:
        return self.filler().run(Order(id="fill-1", table=ITEMS, **order), self.record)

    def tidy(self) -> None:
        """What the service does while no backfill runs, now and some minutes later."""
        filler = self.filler()
        filler.tidy()
        self.now_s += 300
        filler.tidy()

    def pages(self) -> list[Page]:
        return self.spool.pages()

    def ids(self) -> list[int]:
        """The rows in the spool."""
        return [
            int(value)
            for page in self.pages()
            for _, image in self.spool.read(page)
            for value in image[0].values.to_pylist()  # type: ignore[union-attr]
        ]

    @contextmanager
    def snapshot(
        self, _connection: object, _publication: str, _name: TableName, *, timeout_s: int
    ) -> Iterator[Any]:
        assert timeout_s == 3600
        relation = Relation(
            oid=self.oid,
            namespace="public",
            name="items",
            replica_identity=ReplicaIdentity.DEFAULT,
            columns=(Column(name="id", type_oid=23, key=True), Column(name="k", type_oid=23)),
        )
        yield PageSnapshot(
            table=Table(relation=relation, types={}),
            key=self.key,
            partitioned=False,
            condition=None,
            visibility=Visibility(1000, 1000),
            lsn=self.lsn,
            taken_at=datetime(2026, 1, 1, tzinfo=UTC),
            since=None,
        )

    def read(
        self, _connection: object, _snapshot: PageSnapshot, *, where: str, cursor: Any, limit: int
    ) -> Iterator[Any]:
        assert not where
        first = int(cursor[0]) + 1 if cursor else 1
        last = min(self.rows, first + limit - 1) if limit else self.rows
        values = pa.array([str(number).encode() for number in range(first, last + 1)], pa.binary())
        yield len(values), (Cells(values), Cells(values))

    def timeline(self, _connection: object) -> int:
        return self.timelines.pop(0) if self.timelines else IDENTITY.timeline

    def bound(self, log: Any, started: Position, report: Any) -> Any:
        """A PageBound that finds nothing for the next `unseen` pages."""
        assert started == Position(START)

        def position(_snapshot: PageSnapshot) -> Position | None:
            if self.unseen:
                self.unseen -= 1
                report("the commit at 0/7 is not visible yet")
                return None
            end: Position = log.end().position
            return end

        return SimpleNamespace(position=position)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    system = System(tmp_path)
    system.start_pipeline()
    log = TestLog().log()
    monkeypatch.setattr(module, "connect", lambda _: nullcontext())
    monkeypatch.setattr(module, "closing", lambda connection: connection)
    monkeypatch.setattr(Log, "open", lambda _: log)
    monkeypatch.setattr(module, "PageBound", system.bound)
    monkeypatch.setattr(timeline, "read_timeline", system.timeline)
    monkeypatch.setattr(pages, "snapshot", system.snapshot)
    monkeypatch.setattr(pages, "rows", system.read)
    monkeypatch.setattr(pages, "estimate", lambda *_: system.rows)
    return system


def test_a_table_is_read_in_pages(system: System) -> None:
    system.rows = 250
    assert system.run()
    assert [(page.number, page.rows, page.read) for page in system.pages()] == [
        (1, 100, 100),
        (2, 100, 200),
        (3, 50, 250),
    ]
    assert [page.cursor for page in system.pages()] == [("100",), ("200",), ("250",)]
    assert [page.last for page in system.pages()] == [False, False, True]
    assert system.ids() == list(range(1, 251))
    record = system.record
    assert (record.read, record.delivered, record.expected, record.whole) == (250, 250, 250, True)
    assert record.begun_at == 1000
    # The log may be trimmed once Spark cannot replay the batches of the pages any more.
    assert list(retention.pins(LocalStore(system.config.log.path))) == ["backfill.shop"]
    system.tidy()
    assert system.pages() == []
    assert retention.pins(LocalStore(system.config.log.path)) == {}


def test_a_table_without_a_key_is_one_page(system: System) -> None:
    system.rows, system.key = 250, ()
    assert system.run()
    (page,) = system.pages()
    assert (page.rows, page.last, page.cursor) == (250, True, ())


def test_an_empty_table(system: System) -> None:
    assert system.run()
    (page,) = system.pages()
    assert (page.rows, page.last) == (0, True)


def test_waits_for_the_start_of_the_pipeline(system: System) -> None:
    (system.checkpoint / "tailrace-start").unlink()
    system.max_waits = 5
    assert not system.run()
    assert system.pages() == []
    system.start_pipeline()
    system.max_waits = 10_000
    assert system.run()


@pytest.mark.parametrize("stop_at", range(1, 12))
def test_a_stopped_backfill_is_resumed(system: System, stop_at: int) -> None:
    """GIVEN a backfill that stops at any wait WHEN it runs again THEN every row is read once."""
    system.rows, system.max_waits = 450, stop_at
    stopped = not system.run()
    if stopped:
        system.max_waits = 10_000
        assert system.run()
    assert system.ids() == list(range(1, 451))
    assert [page.number for page in system.pages()] == [1, 2, 3, 4, 5]


def test_pages_that_the_record_misses_are_not_read_again(system: System) -> None:
    """A crash between writing a page and saving the record."""
    system.rows, system.max_waits = 450, 3
    assert not system.run()
    read = len(system.ids())
    assert 0 < read < 450
    # Rows of a page whose facts were never written.
    system.spool.write(9, [])
    system.record, system.max_waits = Record(id="fill-1", table=ITEMS), 10_000
    assert system.run()
    assert system.ids() == list(range(1, 451))
    assert system.record.number == 5


def test_at_most_four_pages_wait_for_the_pipeline(system: System) -> None:
    system.rows, system.delivering, system.max_waits = 1000, False, 50
    assert not system.run()
    assert [page.number for page in system.pages()] == [1, 2, 3, 4]
    # The log keeps what handover reads.
    assert list(retention.pins(LocalStore(system.config.log.path))) == ["backfill.shop"]


def test_the_log_is_kept_until_the_pages_of_a_cancelled_backfill_are_delivered(
    system: System,
) -> None:
    system.rows, system.delivering, system.max_waits = 1000, False, 50
    assert not system.run()
    system.tidy()
    assert len(system.pages()) == 4
    assert list(retention.pins(LocalStore(system.config.log.path))) == ["backfill.shop"]
    system.delivering = True
    system.deliver()
    system.tidy()
    assert system.pages() == []
    assert retention.pins(LocalStore(system.config.log.path)) == {}


def test_pages_that_are_delivered_during_a_pause_are_counted(system: System) -> None:
    system.rows, system.delivering, system.max_waits = 350, False, 50
    assert not system.run()
    assert (system.record.read, system.record.delivered) == (350, 0)
    system.delivering, system.max_waits = True, 10_000
    system.deliver()
    system.tidy()
    assert system.pages() == []
    assert system.run()
    assert system.record.delivered == 350


@pytest.mark.parametrize("state", ["paused", "cancelled"])
def test_what_is_delivered_of_a_backfill_that_does_not_run_is_shown(
    system: System, state: str
) -> None:
    """GIVEN a backfill that was paused, or cancelled, with pages in the spool WHEN the pipeline
    delivers them THEN its figures have them at once, also those of the next process."""
    system.rows, system.delivering, system.max_waits = 350, False, 50
    filler = system.filler()
    assert not filler.run(Order(id="fill-1", table=ITEMS), system.record)
    system.record.state = state
    filler.tidy()
    assert system.record.delivered == 0
    system.delivering = True
    system.deliver()
    filler.tidy()
    assert system.record.delivered == 350
    assert Record.load(system.folder)["fill-1"].delivered == 350


def test_a_backfill_begins_again_after_a_reset(system: System) -> None:
    """The spool is empty, no page counts as delivered, and the numbers of pages go on."""
    system.rows = 1000
    assert system.run()
    shutil.rmtree(system.checkpoint)
    for number in system.spool.numbers():
        system.spool.remove(number)
    system.record.restart()
    system.start_pipeline()
    assert system.record.number > 4
    assert system.run()
    assert system.ids() == list(range(1, 1001))
    assert system.record.delivered == 1000


def test_the_rate_is_kept(system: System) -> None:
    system.rows = 300
    assert system.run(rate=50.0)
    assert [wait for wait in system.waits if wait > 0.02] == [2.0, 2.0, 2.0]


def test_a_page_without_a_bound_is_read_again(system: System) -> None:
    system.rows, system.unseen = 150, 3
    assert system.run()
    assert system.ids() == list(range(1, 151))
    retries = [wait for wait in system.waits if wait > 0.02]
    assert len(retries) == 3
    # 0.5 s, 1 s, 2 s, each with a jitter of 20 %.
    for wait, nominal in zip(retries, (0.5, 1.0, 2.0), strict=True):
        assert 0.8 <= wait / nominal <= 1.2


def test_starts_again_when_the_key_changes(system: System) -> None:
    system.rows, system.max_waits = 250, 2
    assert not system.run()
    assert system.record.read
    system.key, system.max_waits = ("k",), 10_000
    assert system.run()
    assert (system.record.key, system.record.read) == (("k",), 250)
    assert system.ids()[-250:] == list(range(1, 251))


@pytest.mark.parametrize("max_waits", [2, 50])
def test_starts_again_when_another_table_has_the_name(system: System, max_waits: int) -> None:
    """In the middle, and when everything was read and nothing delivered."""
    system.rows, system.max_waits, system.delivering = 250, max_waits, False
    assert not system.run()
    assert system.record.read
    system.oid, system.max_waits, system.delivering = 2, 10_000, True
    assert system.run()
    assert (system.record.oid, system.record.read) == (2, 250)
    assert system.ids()[-250:] == list(range(1, 251))


def test_a_record_of_an_older_version_continues(system: System) -> None:
    system.rows, system.max_waits = 250, 2
    assert not system.run()
    system.record.oid, system.max_waits = 0, 10_000
    assert system.run()
    assert system.ids() == list(range(1, 251))


def test_a_page_of_another_timeline_is_read_again(system: System) -> None:
    """WHEN a standby is promoted after a page was read THEN the page does not count: the log will
    never have what the new primary lacks."""
    system.rows = 150
    system.timelines = [1, 2]
    with pytest.raises(PostgresUnreachableError, match="on timeline 2, the log is on timeline 1"):
        system.run()
    assert [page.number for page in system.pages()] == [1]
    assert system.run()
    assert system.ids() == list(range(1, 151))


def test_delivered_pages_are_removed_after_a_while(system: System) -> None:
    system.rows = 1000
    assert system.run(rate=5.0)
    # A page takes 20 s and stays for 120 s after its delivery.
    assert [page.number for page in system.pages()] == list(range(4, 12))
    assert system.record.delivered == 1000


def test_the_pin_is_renewed_after_the_clock_was_set_back(system: System) -> None:
    """GIVEN a page that waits for its pipeline WHEN the machine's clock is set back by hours THEN
    the pin is still renewed every minute."""
    system.rows, system.delivering, system.max_waits = 100, False, 20
    assert not system.run()
    unix_s = [10_000.0]
    filler = Filler(
        system.config, "shop", system.wait, clock=lambda: system.now_s, now=lambda: unix_s[0]
    )
    renewed = []
    for jump_s in (0, -7200, 60):
        unix_s[0] += jump_s
        system.now_s += 61
        filler.tidy()
        pins = retention.read_pins(LocalStore(system.config.log.path))
        renewed.append(pins["backfill.shop"].renewed_at)
    assert renewed == [10_000, 2_800, 2_860]


def test_numbers_continue_after_other_backfills(system: System) -> None:
    system.rows = 50
    assert system.run()
    system.record = Record(id="fill-1", table=ITEMS, number=1)
    assert system.run()
    assert [page.number for page in system.pages()] == [1, 2]


def test_lsn_beyond_the_log_is_requested(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Lsn] = []
    monkeypatch.setattr(awaited, "ask", lambda _store, lsn: requested.append(lsn))
    system.lsn = Lsn(START + 100)
    system.rows, system.max_waits = 10, 5
    assert not system.run()
    assert requested == [START + 100]

"""Simulation: random workloads, the power goes inside any operation on the disk, recovery.

Whatever `append` returned for is there afterwards, in order, once and whole; nothing torn is seen;
the source sends the rest again and appending goes on. TAILRACE_SEED repeats one run,
TAILRACE_POWER_CUTS sets their number; each cuts the power once to three times.
"""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError, CorruptError
from tailrace.log.appender import Appender, Layout
from tailrace.log.format.layout import Codec
from tailrace.log.lease import Lease
from tailrace.log.reader import Log
from tailrace.log.verify import verify
from tailrace.testing import MemoryStore, PowerCutError

if TYPE_CHECKING:
    from tailrace.change import Change
from tests.chance import seeds
from tests.fix_log import (
    IDENTITY,
    NOW,
    START,
    Session,
    Unit,
    Workload,
    all_changes,
    fragment_entries,
    progress_entry,
    same,
    whole_entry,
)

SEED = os.environ.get("TAILRACE_SEED")
COUNT = int(os.environ.get("TAILRACE_POWER_CUTS", "1000"))
BATCH = 100


@pytest.mark.parametrize("batch", seeds(-(-COUNT // BATCH), short=2))
def test_nothing_appended_is_lost_and_nothing_torn_is_seen(batch: int) -> None:
    if SEED is not None:
        Simulation(int(SEED)).run()
        return
    start = random.SystemRandom().getrandbits(48)
    for seed in range(start, start + BATCH):
        try:
            Simulation(seed).run()
        except Exception as error:
            raise AssertionError(f"TAILRACE_SEED={seed}") from error


class Simulation:
    """One source, one disk, several lives of an appender."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = MemoryStore()
        self.workload = Workload(self.rng)
        self.layout = Layout(
            segment_bytes=self.rng.choice((300, 1000, 1 << 20)),
            codec=self.rng.choice((Codec.NONE, Codec.NONE, Codec.ZSTD)),
        )
        self.units: list[Unit] = []
        """Everything committed in the source."""
        self.returned = 0
        """How many units the log has confirmed."""
        self.in_flight = 0
        """How many more the log may hold: the power went before it could say so."""
        self.session = Session()
        self.appender: Appender | None = None

    def run(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.live()
            self.store.power_cut(self.rng)
            if self.rng.random() < 0.3:
                self.look_without_recovery()
        self.open()
        self.check()

    def live(self) -> None:
        self.store.cut_power_at(self.rng.randrange(1, 40), self.rng)
        try:
            self.open()
            while True:
                self.act()
        except PowerCutError:
            pass

    def open(self) -> None:
        """Start as capture does: the session is new, and the source sends what is not held."""
        lease = Lease.acquire(self.store)
        found = Appender.open(self.store, lease, self.layout, now=lambda: NOW)
        self.appender = found or Appender.create(
            self.store, lease, self.layout, identity=IDENTITY, start_lsn=START, now=lambda: NOW
        )
        self.session = Session()
        self.settle()

    def settle(self) -> None:
        """Take the log's own end for what it holds; it must lie where it may."""
        assert self.appender is not None
        end = self.appender.mark.position.lsn
        held = sum(unit.lsn <= end for unit in self.units)
        assert self.returned <= held <= self.returned + self.in_flight
        self.returned, self.in_flight = held, 0

    def act(self) -> None:
        assert self.appender is not None
        match self.rng.randrange(8):
            case 0 | 1:
                self.append_pieces()
            case 2 if self.returned == len(self.units):
                self.appender.append(progress_entry(self.appender, self.workload.wal_end()))
            case 3:
                self.break_the_line()
            case _:
                self.append_whole()

    def pending(self, count: int) -> list[Unit]:
        while len(self.units) < self.returned + count:
            steps = self.rng.choice((None, None, None, 8))
            self.units.append(self.workload.unit(steps=steps))
        return self.units[self.returned : self.returned + count]

    def append_whole(self) -> None:
        assert self.appender is not None
        units = self.pending(self.rng.randrange(1, 4))
        mark = self.appender.mark
        self.in_flight = len(units)
        self.appender.append(whole_entry(units, self.session, mark.end_lsn, mark.time))
        self.returned, self.in_flight = self.returned + len(units), 0

    def append_pieces(self) -> None:
        assert self.appender is not None
        (unit,) = self.pending(1)
        if not unit.changes() or not unit.xid:
            return
        cuts = [self.rng.randrange(1, 15) for _ in range(3)]
        mark = self.appender.mark
        self.in_flight = 1
        for entry in fragment_entries(unit, self.session, cuts, mark.end_lsn, self.appender.last):
            self.appender.append(entry)
        self.returned, self.in_flight = self.returned + 1, 0

    def break_the_line(self) -> None:
        """The connection breaks inside a transaction; the same appender goes on."""
        assert self.appender is not None
        (unit,) = self.pending(1)
        if not unit.changes() or not unit.xid:
            return
        mark = self.appender.mark
        for entry in fragment_entries(unit, Session(), [3, 5], mark.end_lsn, mark.position)[:-1]:
            self.appender.append(entry)
        self.appender.rewind()
        assert self.appender.whole
        self.session = Session()

    def look_without_recovery(self) -> None:
        """A reader that starts before capture does sees a prefix, or the hint to start capture."""
        with contextlib.suppress(CorruptError, ConfigError):
            found = all_changes(self.store)
            possible = self.changes(self.returned + self.in_flight)
            assert same(found, possible[: len(found)])

    def check(self) -> None:
        found = all_changes(self.store)
        assert same(found, self.changes(self.returned))
        report = verify(self.store)
        assert report.ok, report.findings
        assert self.appender is not None
        assert Log(self.store).end() == self.appender.mark

    def changes(self, count: int) -> list[Change]:
        return [change for unit in self.units[:count] for change in unit.changes()]

"""The positions that a query refuses to continue from, with a log in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.errors import DivergedError
from tailrace.pipeline.frames.changes import SCHEMA
from tailrace.pipeline.source.offset import Offset
from tailrace.pipeline.source.options import Options
from tailrace.pipeline.source.stream import TailraceReader
from tailrace.position import READS, Lsn, Position
from tests.fix_log import IDENTITY, TestLog, transaction

SWITCH = Lsn(0x1150)


@pytest.fixture
def made() -> TestLog:
    """A transaction, WAL without changes on timeline 1, and a standby that lacks part of it."""
    made = TestLog()
    made.append(transaction(0))
    made.progress(0x1180)
    made.appender.change_identity(replace(IDENTITY, timeline=2), end_lsn=SWITCH)
    made.session.sent.clear()
    made.append(transaction(9))
    return made


def reader_of(made: TestLog) -> TailraceReader:
    reader = TailraceReader(Options(log=Path("in-memory")), SCHEMA)
    reader._log = made.log()
    return reader


def after_a_page(lsn: int, *, timeline: int = 1) -> dict[str, object]:
    """The offset of a page of a backfill after the last change."""
    position = Position(Lsn(lsn), READS | 1)
    return Offset(position=position, page=1, pages=(1,), timeline=timeline).dump()


def test_a_position_in_wal_that_a_promoted_standby_lacks(made: TestLog) -> None:
    """What the new primary has written up to there would never be delivered."""
    reader, lost = reader_of(made), after_a_page(SWITCH + 1)
    assert made.log().end().end_lsn > SWITCH + 1
    with pytest.raises(DivergedError, match=r"timeline 1 up to 0/1150 only") as caught:
        reader.latestOffset(lost, reader.getDefaultReadLimit())
    assert "checkpointLocation" in str(caught.value.hint)
    # A batch that was planned before the failover is not replayed either.
    with pytest.raises(DivergedError):
        reader.partitions({"position": "0/0.0"}, lost)


@pytest.mark.parametrize(("lsn", "timeline"), [(SWITCH, 1), (SWITCH + 1, 2)])
def test_a_position_that_the_promoted_standby_has(made: TestLog, lsn: int, timeline: int) -> None:
    reader = reader_of(made)
    end = reader.latestOffset(after_a_page(lsn, timeline=timeline), reader.getDefaultReadLimit())
    assert Offset.parse(end).position == made.changes()[-1].position
    assert Offset.parse(end).timeline == 0

"""How far a quorum of followers is, and what readers see of it after a power cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.log import acknowledged
from tailrace.log.format import mark as marks
from tailrace.pipeline.frames.changes import SCHEMA
from tailrace.pipeline.source.offset import Offset
from tailrace.pipeline.source.options import Options
from tailrace.pipeline.source.stream import TailraceReader
from tailrace.replica.quorum import Quorum
from tests.fix_log import TestLog, transaction

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.log.format.mark import Mark


def mark_of(made: TestLog) -> Mark:
    found = marks.peek(made.store)
    assert found is not None
    return found


def hidden_log() -> tuple[TestLog, Mark, Mark]:
    """A log whose mark for readers is older than what was delivered, as after a power cut."""
    made = TestLog(log_id="log-1")
    made.append(transaction(0))
    early = mark_of(made)
    made.append(transaction(9))
    marks.write(made.store, early, name=marks.VISIBLE)
    return made, early, mark_of(made)


def test_the_mark_of_the_readers_follows_that_of_the_quorum() -> None:
    made, early, late = hidden_log()
    acknowledged.write(made.store, 1, late)
    Quorum(made.store, 1, hides=False)
    assert marks.peek(made.store, marks.VISIBLE) == early
    quorum = Quorum(made.store, 1, hides=True)
    assert marks.peek(made.store, marks.VISIBLE) == late
    quorum.note("db2:1", early)
    assert marks.peek(made.store, marks.VISIBLE) == late


def test_a_pipeline_waits_for_the_mark_of_the_readers(tmp_path: Path) -> None:
    """GIVEN a checkpoint after the mark of the readers and within the durable log THEN the pipeline
    waits and does not call it another history."""
    made, early, late = hidden_log()
    reader = TailraceReader(Options(log=tmp_path), SCHEMA)
    reader._log = made.log()
    reader._offsets.history = made.log().id
    start = Offset(position=late.position, history=made.log().id).dump()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    marks.write(made.store, late, name=marks.VISIBLE)
    made.append(transaction(20))
    marks.write(made.store, mark_of(made), name=marks.VISIBLE)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert Offset.parse(end).position == mark_of(made).position
    assert early.position < late.position

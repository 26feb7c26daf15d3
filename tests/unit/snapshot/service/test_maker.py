"""A snapshot reaches its end, or fails with an error that clients get.

PostgreSQL, the stream and Spark are replaced by lists; nothing waits.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tailrace.errors import (
    PostgresRefusedError,
    PostgresUnreachableError,
    SinkRefusedError,
    SinkUnreachableError,
    SnapshotLostError,
    UnexpectedError,
)
from tailrace.log.reader import Log
from tailrace.snapshot.service import maker as module
from tailrace.snapshot.service.record import Record
from tests.fix_snapshots import ITEMS, STRETCHES, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.snapshot.job import Published, Wave


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    for name in ("keep", "release", "imported", "bound", "check_visible"):
        monkeypatch.setattr(module, name, getattr(bench, name))
    monkeypatch.setattr(module, "SnapshotPublisher", bench.publisher)
    monkeypatch.setattr(module, "approximate_rows", lambda *_: 50)
    monkeypatch.setattr(module, "check_timeline", bench.check_timeline)
    monkeypatch.setattr(module, "wait_for_log", lambda *_: None)
    monkeypatch.setattr(Log, "open", lambda _: None)
    return bench


@pytest.fixture
def record() -> Record:
    return Record(id="snap-1", table=ITEMS, requested_at=990.0)


@pytest.fixture(autouse=True)
def events() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def test_a_table_is_published_in_waves(bench: Bench, record: Record, events: list[Any]) -> None:
    bench.run(record)
    assert [len(wave.stretches) for wave in bench.waves] == [2, 2, 1]
    assert [(wave.number, wave.after, wave.again) for wave in bench.waves] == [
        (0, 8, False),
        (2, 9, False),
        (4, 9, False),
    ]
    assert (record.state, record.rows, record.chunks, record.bytes) == ("complete", 50, 5, 500)
    assert (record.begun_at, record.ended_at) == (1000.0, 1000.0)
    assert bench.stream == ["snap-1-tail 50 "]
    assert bench.released == ["export-0"]
    assert Record.load(bench.folder) == []
    assert [event["event"] for event in events] == ["snapshot.started", "snapshot.complete"]


@pytest.mark.parametrize("waves", [1, 2, 3])
def test_resumes_after_a_stop(bench: Bench, record: Record, waves: int) -> None:
    bench.stop_after = waves
    bench.run(record)
    assert record.state == ("running" if waves < 3 else "complete")
    if waves == 3:
        return
    (loaded,) = Record.load(bench.folder)
    bench.run(loaded)
    assert loaded.state == "complete"
    assert [len(wave.stretches) for wave in bench.waves] == [2, 2, 1]
    # Only the first wave after the stop may have left messages.
    assert [wave.again for wave in bench.waves] == [number == waves for number in range(3)]
    assert len(bench.exports) == 1
    assert bench.stream == ["snap-1-tail 50 "]


@pytest.mark.parametrize("error", [AttributeError("setCallSite"), SinkRefusedError("refused")])
def test_a_wave_that_a_stop_interrupts(bench: Bench, record: Record, error: Exception) -> None:
    """A stop ends Spark, whose calls then raise AttributeError. The next start resumes."""
    publish = bench.publish

    def stopped(_job: Any, _wave: Wave) -> Published:
        bench.stopping.set()
        raise error

    maker: Any = bench.maker()
    maker._publish = stopped
    maker.run(record)
    assert (bench.stream, bench.released) == ([], [])
    (loaded,) = Record.load(bench.folder)
    maker = bench.maker()
    maker._publish = publish
    maker.run(loaded)
    assert loaded.state == "complete"
    assert len(bench.exports) == 1
    assert bench.stream == ["snap-1-tail 50 "]


def test_a_crash_right_after_the_last_message(bench: Bench, record: Record) -> None:
    """The message is not published twice, also if the exported snapshot is gone by then."""
    bench.stop_after = 2
    bench.run(record)
    (loaded,) = Record.load(bench.folder)
    loaded.done = STRETCHES
    bench.stream.append("snap-1-tail 50 ")
    bench.lost.add("export-0")
    bench.run(loaded)
    assert (loaded.id, loaded.state) == ("snap-1", "complete")
    assert bench.stream == ["snap-1-tail 50 "]


def test_transient_errors_are_retried_with_back_off(bench: Bench, record: Record) -> None:
    bench.errors = [SinkUnreachableError("no answer"), PostgresUnreachableError("no answer")]
    bench.run(record)
    assert record.state == "complete"
    for wait_s, nominal in zip(bench.stopping.waits, (1, 2), strict=True):
        assert 0.8 <= wait_s / nominal <= 1.2


def test_an_unexpected_error_is_retried_four_times(bench: Bench, record: Record) -> None:
    bench.errors = [UnexpectedError("odd") for _ in range(9)]
    bench.run(record)
    assert len(bench.errors) == 4
    assert (record.state, record.error) == ("failed", "odd")
    assert bench.stream == ["snap-1-failed odd"]
    assert bench.released == ["export-0"]
    assert Record.load(bench.folder) == []


def test_progress_resets_the_count_of_unexpected_errors(bench: Bench, record: Record) -> None:
    publish = bench.publish
    failures = iter([True] * 4 + [False] + [True] * 4)

    def failing(job: Any, wave: Wave) -> Published:
        if next(failures, False):
            raise UnexpectedError("odd")
        return publish(job, wave)

    maker: Any = bench.maker()
    maker._publish = failing
    maker.run(record)
    assert record.state == "complete"


def test_a_refusal_fails_the_snapshot_at_once(bench: Bench, record: Record) -> None:
    bench.errors = [PostgresRefusedError("permission denied")]
    bench.run(record)
    assert (record.state, record.error) == ("failed", "permission denied")
    assert bench.stopping.waits == []


def test_a_lost_snapshot_is_replaced(bench: Bench, record: Record, events: list[Any]) -> None:
    bench.stop_after = 1
    bench.run(record)
    (loaded,) = Record.load(bench.folder)
    bench.lost.add("export-0")
    bench.run(loaded)
    assert (loaded.id, loaded.supersedes, loaded.state) == ("snap-1000000", "snap-1", "complete")
    assert bench.stream == ["snap-1000000-tail 50 snap-1"]
    assert loaded.rows == 50
    assert "snapshot.lost" in [event["event"] for event in events]


def test_a_stop_before_the_new_snapshot_keeps_the_request(bench: Bench, record: Record) -> None:
    """GIVEN a lost snapshot WHEN the service stops before it has another THEN it resumes."""
    bench.stop_after = 1
    bench.run(record)
    (loaded,) = Record.load(bench.folder)
    bench.lost.add("export-0")
    maker: Any = bench.maker()
    maker._joined = SimpleNamespace(wait_for_writers=lambda *_: bench.stopping.set())
    maker.run(loaded)
    (waiting,) = Record.load(bench.folder)
    bench.run(waiting)
    assert (waiting.supersedes, waiting.state, waiting.rows) == ("snap-1", "complete", 50)
    assert Record.load(bench.folder) == []


def test_a_snapshot_lost_during_a_wave_is_replaced(bench: Bench, record: Record) -> None:
    publish = bench.publish

    def losing(job: Any, wave: Wave) -> Published:
        if len(bench.waves) == 2:
            bench.lost.add("export-0")
        return publish(job, wave)

    maker: Any = bench.maker()
    maker._publish = losing
    maker.run(record)
    assert (record.supersedes, record.state, record.rows) == ("snap-1", "complete", 50)


def test_another_fingerprint_replaces_the_snapshot(bench: Bench, record: Record) -> None:
    bench.stop_after = 1
    bench.run(record)
    (loaded,) = Record.load(bench.folder)
    bench.fingerprint = "other"
    bench.run(loaded)
    assert (loaded.supersedes, loaded.state) == ("snap-1", "complete")


@pytest.mark.parametrize("head", [True, False])
def test_a_format_that_cannot_be_replaced(bench: Bench, record: Record, head: bool) -> None:
    """GIVEN a lost snapshot WHEN its first message is in the stream THEN it fails, else it starts
    again under the same id."""
    bench.replaceable = False
    bench.stop_after = 1
    bench.run(record)
    assert bench.stream == ["snap-1-head"]
    (loaded,) = Record.load(bench.folder)
    bench.lost.add("export-0")
    if not head:
        bench.stream.clear()
    bench.run(loaded)
    if head:
        assert loaded.state == "failed"
        assert bench.stream == ["snap-1-head", "snap-1-failed snapshot export-0 no longer exists"]
    else:
        assert (loaded.id, loaded.state) == ("snap-1", "complete")
        assert bench.stream == ["snap-1-head", "snap-1-tail 50 "]


def test_a_snapshot_that_ends_before_it_is_read_is_taken_again(
    bench: Bench, record: Record
) -> None:
    """WHEN another session wants to truncate the table right after the snapshot was taken THEN the
    snapshot is taken again."""
    bench.replaceable = False
    bench.lost.add("export-0")
    bench.run(record)
    assert (record.id, record.state) == ("snap-1", "complete")
    assert bench.stopping.waits
    assert bench.released == ["export-0", "export-1"]


def test_a_stream_that_has_lost_the_first_message(bench: Bench, record: Record) -> None:
    bench.replaceable = False
    bench.stop_after = 1
    bench.run(record)
    (loaded,) = Record.load(bench.folder)
    bench.stream.clear()
    bench.run(loaded)
    assert loaded.state == "failed"
    assert "no longer has the first message of snapshot snap-1" in loaded.error


def test_a_snapshot_without_a_bound_is_taken_again(bench: Bench, record: Record) -> None:
    bench.replaceable = False
    bench.bound_errors = [SnapshotLostError("the commit at 0/7 is not visible yet")]
    bench.run(record)
    assert (record.id, record.state) == ("snap-1", "complete")
    assert bench.released == ["export-0", "export-1"]
    assert bench.stream == ["snap-1-head", "snap-1-tail 50 "]


def test_a_snapshot_that_lacks_a_commit_from_before_the_pipeline_is_taken_again(
    bench: Bench, record: Record
) -> None:
    bench.hidden_commits = 2
    bench.run(record)
    assert (record.id, record.state) == ("snap-1", "complete")
    assert bench.released == ["export-0", "export-1", "export-2"]
    assert len(bench.waves) == 3


def test_a_snapshot_of_a_server_that_is_no_longer_the_primary(bench: Bench, record: Record) -> None:
    """WHEN a standby is promoted before the snapshot is complete THEN another snapshot takes its
    place."""
    bench.promoted = True
    bench.run(record)
    assert record.state == "complete"
    assert bench.released == ["export-0", "export-1"]
    assert bench.stream == [f"{record.id}-tail 50 snap-1"]


def test_the_error_is_published_when_the_sink_is_back(
    bench: Bench, record: Record, events: list[Any]
) -> None:
    bench.errors = [PostgresRefusedError("permission denied")]
    bench.send_errors = [SinkUnreachableError("no answer") for _ in range(3)]
    bench.run(record)
    assert record.state == "failed"
    assert bench.stream == ["snap-1-failed permission denied"]
    assert [event["event"] for event in events].count("snapshot.error_not_published") == 3


def test_an_error_that_the_sink_refuses_is_not_published(bench: Bench, record: Record) -> None:
    bench.errors = [PostgresRefusedError("permission denied")]
    bench.send_errors = [SinkRefusedError("no permission")]
    bench.run(record)
    assert (record.state, bench.stream) == ("failed", [])
    assert Record.load(bench.folder) == []


def test_a_stop_before_the_error_is_published_keeps_the_record(
    bench: Bench, record: Record
) -> None:
    bench.send_errors = [SinkUnreachableError("no answer")]
    maker = bench.maker()
    bench.stopping.set()
    maker.give_up(record, PostgresRefusedError("permission denied"))
    assert record.state == "ending"
    assert [each.id for each in Record.load(bench.folder)] == ["snap-1"]

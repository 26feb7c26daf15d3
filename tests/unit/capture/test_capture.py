"""Sessions one after another: which errors are retried, which end capture, with a fake clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from tailrace.capture.capture import Capture, _Sessions
from tailrace.config import load
from tailrace.errors import (
    DiskFullError,
    GapError,
    PostgresRefusedError,
    PostgresUnreachableError,
    SlotBusyError,
    TailraceError,
)
from tailrace.log import retention
from tailrace.log.format.segment import list_segments
from tailrace.log.lease import Lease
from tailrace.log.store import LocalStore
from tailrace.position import ORIGIN
from tests.fix_log import SECOND, TIME, TestLog, transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Sessions:
    """Sessions that run for a time and end with an error, or in order."""

    def __init__(self, clock: Clock, *outcomes: tuple[float | None, TailraceError | None]) -> None:
        self._clock = clock
        self._outcomes = list(outcomes)
        self.opened_at: list[float] = []

    def open(self, _counts: object) -> Sessions:
        self.opened_at.append(self._clock.now)
        runs_s, error = self._outcomes[0]
        if runs_s is None:
            self._outcomes.pop(0)
            assert error is not None
            raise error
        return self

    def run(self, _stopping: Callable[[], bool], *, until: object) -> None:
        runs_s, error = self._outcomes.pop(0)
        self._clock.now += runs_s or 0
        if error is not None:
            raise error

    def end(self) -> None:
        """Nothing to disconnect."""


def run(
    monkeypatch: pytest.MonkeyPatch,
    *outcomes: tuple[float | None, TailraceError | None],
    stopping: Callable[[], bool] = lambda: False,
) -> tuple[Sessions, list[Any]]:
    clock = Clock()
    monkeypatch.setattr("tailrace.capture.capture.time.sleep", clock.sleep)
    sessions = Sessions(clock, *outcomes)
    with structlog.testing.capture_logs() as events:
        capture = Capture(load(None), stopping=stopping, clock=clock)
        capture._run_sessions(cast("Any", sessions), None)
    return sessions, list(events)


LOST = PostgresUnreachableError("the connection was lost")


def test_an_outage_is_retried_with_growing_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, events = run(monkeypatch, (1, LOST), (None, LOST), (None, LOST), (1, None))
    assert len(sessions.opened_at) == 4
    delays = [event["retry_in_s"] for event in events]
    assert 0.1 < delays[0] < delays[1] < delays[2] < 1.1
    assert {(event["event"], event["code"]) for event in events} == {
        ("capture.reconnecting", "UNREACHABLE")
    }


def test_a_long_session_resets_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = run(monkeypatch, (1, LOST), (None, LOST), (60, LOST), (1, None))
    assert events[2]["retry_in_s"] < 0.3


def test_the_first_connection_must_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PostgresUnreachableError):
        run(monkeypatch, (None, LOST))


def test_a_busy_slot_is_waited_for_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, _ = run(monkeypatch, (None, SlotBusyError("is active")), (1, None))
    assert len(sessions.opened_at) == 2


@pytest.mark.parametrize("error", [GapError("gap"), PostgresRefusedError("no")])
def test_errors_that_can_mean_loss_end_capture(
    monkeypatch: pytest.MonkeyPatch, error: TailraceError
) -> None:
    with pytest.raises(type(error)):
        run(monkeypatch, (1, LOST), (1, error))


def test_an_outage_during_shutdown_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])
    sessions, events = run(monkeypatch, (1, LOST), stopping=lambda: next(answers))
    assert (len(sessions.opened_at), events) == (1, [])


class Disk:
    """A flusher and an appender, which record what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def wait(self, _timeout_s: float) -> bool:
        return False

    def finish(self) -> None:
        self.calls.append("finish")

    def rewind(self) -> None:
        self.calls.append("rewind")


def test_a_log_is_rewound_after_the_flusher_has_finished() -> None:
    nothing, disk = cast("Any", None), Disk()
    sessions = _Sessions(
        load(None), "", nothing, nothing, stopping=lambda: False, clock=lambda: 0.0
    )
    sessions._flusher = sessions._appender = cast("Any", disk)
    sessions._drop_open_transaction()
    assert disk.calls == ["finish", "rewind"]


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """The folder of a log with seven segments, which nobody reads. The first one is empty."""
    log = TestLog(segment_bytes=1)
    for number in range(6):
        log.append(transaction(number))
    folder = tmp_path / "log"
    folder.mkdir()
    for name, data in log.store.files().items():
        (folder / name).write_bytes(data)
    return folder


def count(folder: Path) -> int:
    return len(list_segments(LocalStore(folder)))


def test_the_machines_clock_makes_no_segment_old(segments: Path) -> None:
    """GIVEN segments that are minutes old by the server's clock WHEN this machine's clock is years
    ahead THEN retention keeps them, until they are old by the server's clock."""
    nothing, clock = cast("Any", None), Clock()
    config = load(None, {"log": {"path": segments, "keep_hours": 1}})
    sessions = _Sessions(
        config, "", LocalStore(segments), nothing, stopping=lambda: False, clock=clock
    )
    sessions._server_time = (TIME + 600 * SECOND, clock())
    sessions._housekeeping()
    assert count(segments) == 6
    clock.sleep(3601)
    sessions._housekeeping()
    assert count(segments) == 1


def test_a_pin_is_stale_if_nobody_renews_it(segments: Path) -> None:
    """GIVEN pins of hours ago WHEN one of them is renewed until the next look, as after a jump of
    the clock, THEN capture warns of the other one."""
    nothing, store = cast("Any", None), LocalStore(segments)
    config = load(None, {"log": {"path": segments}})
    sessions = _Sessions(config, "", store, nothing, stopping=lambda: False, clock=Clock())
    sessions._server_time = (TIME, 0.0)
    hours_ago = time.time() - 10_000
    for name in ("alive", "gone"):
        retention.pin(store, name, ORIGIN, now=hours_ago)
    with capture_logs() as events:
        sessions._housekeeping()
        assert events == []
        retention.pin(store, "alive", ORIGIN, now=hours_ago + 1)
        sessions._housekeeping()
    assert [(event["event"], event["pin"]) for event in events] == [("log.pin_stale", "gone")]


def housekeeper(segments: Path, **log: object) -> _Sessions:
    """Sessions that are asked for housekeeping only, a day after the last change."""
    config = load(None, {"log": {"path": segments, **log}})
    clock, nothing = Clock(), cast("Any", None)
    sessions = _Sessions(
        config, "", LocalStore(segments), nothing, stopping=lambda: False, clock=clock
    )
    sessions._server_time = (TIME + 86_400 * SECOND, clock())
    return sessions


def test_an_unreadable_pin_stops_retention_and_not_capture(segments: Path) -> None:
    before = count(segments)
    (segments / "pin-reader.json").write_text("{")
    with capture_logs() as events:
        housekeeper(segments, keep_hours=1)._housekeeping()
    assert [(event["event"], event["code"]) for event in events] == [
        ("log.retention_failed", "CORRUPT")
    ]
    assert count(segments) == before


def test_few_segments_are_deleted_at_a_time(
    segments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.capture._MAX_DELETED", 2)
    sessions, before = housekeeper(segments, keep_hours=1), count(segments)
    sessions._housekeeping()
    assert count(segments) == before - 2
    sessions._housekeeping()
    assert count(segments) == before - 4


@pytest.mark.parametrize("keep_bytes", [0, 1 << 30])
def test_a_log_that_is_too_full_to_open_deletes_what_is_expired(
    segments: Path, keep_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the space it tries again at once; a restart would wait."""
    attempts: list[int] = []

    def full(_store: object) -> Lease:
        attempts.append(count(segments))
        raise DiskFullError("no space for the lease")

    monkeypatch.setattr(Lease, "acquire", full)
    config = load(None, {"log": {"path": segments, "keep_bytes": keep_bytes}})
    with pytest.raises(DiskFullError):
        Capture(config, stopping=lambda: False).run()
    assert attempts == [7, 6 if keep_bytes else 1]


def test_a_disk_without_space_for_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_store: object) -> Lease:
        raise DiskFullError("no space for the lease")

    monkeypatch.setattr(Lease, "acquire", full)
    with pytest.raises(DiskFullError):
        Capture(load(None, {"log": {"path": tmp_path / "log"}}), stopping=lambda: False).run()

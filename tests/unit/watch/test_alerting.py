"""When alerts are sent, repeated and recalled: a clock that the test moves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tailrace.config import Alerts
from tailrace.watch.alerting import Alerting, Notice
from tailrace.watch.result import Key, Result, error, healthy, initializing, paused, warning

HOOK = {"webhook": {"url": "https://a.example"}}
OK, BAD, WARN = healthy("disk", "ok"), error("disk", "full"), warning("disk", "fills")


class Clocked:
    """An `Alerting` that is asked at times that the test says."""

    def __init__(self, **settings: Any) -> None:
        given = {"for_s": 10, "repeat_s": 100, "channels": {"hook": HOOK}, **settings}
        self.alerts = Alerts.model_validate(given)
        self.ahead_s = 1e9
        """How far the wall clock is ahead of the monotonic one."""
        ids = map(str, itertools.count(1))
        self.alerting = Alerting(self.alerts, new_id=lambda: next(ids))

    def at(self, now: float, *results: Result, gone: bool = False) -> list[str]:
        """What is sent: kind, severity, channels."""
        found = {result.key: result for result in results}
        time = now + self.ahead_s
        notices = self.alerting.update(found, now, time=time, gone=lambda _: gone)
        return [_shown(each) for each in notices]


def _shown(notice: Notice) -> str:
    return " ".join((notice.kind, notice.alert.severity, *notice.channels))


def test_a_state_must_last() -> None:
    """GIVEN a threshold of ten seconds WHEN a state lasts that long THEN one alert is sent, and
    after the recovery has lasted that long, one recovery."""
    clocked = Clocked()
    assert clocked.at(0, BAD) == clocked.at(9, BAD) == []
    assert clocked.at(10, BAD) == ["firing error hook"]
    assert clocked.at(11, BAD) == clocked.at(12, OK) == clocked.at(21, OK) == []
    assert clocked.at(22, OK) == ["resolved error hook"]
    assert clocked.at(23, OK) == []


def test_a_state_that_comes_and_goes_sends_nothing() -> None:
    clocked = Clocked()
    for now in range(0, 100, 5):
        assert clocked.at(now, BAD if now % 10 else OK) == []


def test_an_alert_that_comes_and_goes_is_sent_once() -> None:
    clocked = Clocked(repeat_s=0)
    clocked.at(0, BAD)
    assert clocked.at(10, BAD) == ["firing error hook"]
    for now in range(15, 100, 5):
        assert clocked.at(now, BAD if now % 10 else OK) == []


def test_final_states_are_sent_at_once() -> None:
    clocked = Clocked()
    final = error("process", "GAP", at_once=True)
    assert clocked.at(0, final) == ["firing error hook"]
    assert clocked.at(1, final) == []


def test_an_alert_that_lasts_is_repeated() -> None:
    clocked = Clocked(channels={"hook": HOOK, "rare": {**HOOK, "repeat_s": 0}})
    clocked.at(0, BAD)
    assert clocked.at(10, BAD) == ["firing error hook rare"]
    assert clocked.at(109, BAD) == []
    assert clocked.at(110, BAD) == ["repeat error hook"]
    assert clocked.at(111, BAD) == []
    assert clocked.at(210, BAD) == ["repeat error hook"]


def test_a_channel_gets_what_is_severe_enough() -> None:
    """GIVEN a channel for errors WHEN a warning becomes an error THEN it learns the error, and the
    recovery goes to all that were told."""
    clocked = Clocked(channels={"all": HOOK, "pager": {**HOOK, "severity": "error"}})
    clocked.at(0, WARN)
    assert clocked.at(10, WARN) == ["firing warning all"]
    assert clocked.at(11, BAD) == clocked.at(20, BAD) == []
    assert clocked.at(21, BAD) == ["firing error all pager"]
    assert clocked.at(22, WARN) == []
    clocked.at(30, OK)
    assert clocked.at(40, OK) == ["resolved error all pager"]


def test_a_recovery_goes_only_where_the_alert_went() -> None:
    clocked = Clocked(channels={"all": HOOK, "pager": {**HOOK, "severity": "error"}})
    clocked.at(0, WARN)
    clocked.at(10, WARN)
    clocked.at(20, OK)
    assert clocked.at(30, OK) == ["resolved warning all"]


@pytest.mark.parametrize("result", [initializing("disk", "?")])
def test_what_is_not_known_changes_nothing(result: Result) -> None:
    clocked = Clocked()
    assert clocked.at(0, result) == clocked.at(100, result) == []
    clocked.at(100, BAD)
    clocked.at(110, BAD)
    assert clocked.at(120, result) == clocked.at(200, result) == []
    assert list(clocked.alerting.firing) == [Key("disk")]


def test_a_pause_ends_an_alert() -> None:
    clocked = Clocked()
    clocked.at(0, BAD)
    clocked.at(10, BAD)
    clocked.at(20, paused("disk", "by an operator"))
    assert clocked.at(30, paused("disk", "by an operator")) == ["resolved error hook"]


def test_a_check_without_a_result_keeps_its_alert() -> None:
    clocked = Clocked()
    clocked.at(0, BAD)
    clocked.at(10, BAD)
    assert clocked.at(100) == []
    assert clocked.at(101, gone=True) == ["resolved error hook"]


def test_what_another_check_explains_is_not_sent() -> None:
    """GIVEN a pipeline that stalls because its process hangs WHEN the process recovers and the
    pipeline does not THEN it has an alert of its own, as late as after any other beginning."""
    clocked = Clocked()
    hang = error("hang", "silent", subject="pipelines")
    stalled = error("progress", "stalled", subject="orders")
    clocked.at(0, hang, stalled)
    assert clocked.at(10, hang, stalled) == ["firing error hook"]
    assert list(clocked.alerting.firing) == [Key("hang", "pipelines")]
    works = healthy("hang", "reports", "pipelines")
    assert clocked.at(11, works, stalled) == []
    assert clocked.at(21, works, stalled) == ["resolved error hook", "firing error hook"]


def test_what_ends_soon_after_its_cause_is_not_sent() -> None:
    clocked = Clocked()
    away, capture = error("source", "away"), error("replication", "no connection")
    back, streams = healthy("source", "answers"), healthy("replication", "streams")
    clocked.at(0, away, capture)
    assert clocked.at(10, away, capture) == ["firing error hook"]
    assert clocked.at(100, back, capture) == clocked.at(105, back, streams) == []
    assert clocked.at(110, back, streams) == ["resolved error hook"]
    assert clocked.at(120, back, streams) == []


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_clock_that_jumps(jump_s: float) -> None:
    """GIVEN a clock that is set while a check becomes bad, and again while it recovers THEN alert
    and recovery are neither early nor late, and the alert began when it did."""
    clocked = Clocked(repeat_s=0)
    clocked.at(0, BAD)
    clocked.ahead_s += jump_s
    assert clocked.at(9, BAD) == []
    assert clocked.at(10, BAD) == ["firing error hook"]
    assert clocked.alerting.firing[Key("disk")].began_at == clocked.ahead_s
    assert clocked.at(20, OK) == []
    clocked.ahead_s -= jump_s
    assert clocked.at(29, OK) == []
    assert clocked.at(30, OK) == ["resolved error hook"]


def test_an_alert_that_becomes_less_severe() -> None:
    """GIVEN an error that has become a warning WHEN it is repeated THEN that says so; as an error
    again it is no news."""
    clocked = Clocked(channels={"all": HOOK, "pager": {**HOOK, "severity": "error"}})
    clocked.at(0, BAD)
    assert clocked.at(10, BAD) == ["firing error all pager"]
    assert clocked.at(20, WARN) == clocked.at(30, WARN) == clocked.at(35, BAD) == []
    assert clocked.at(110, WARN) == ["repeat warning all"]
    assert clocked.at(111, BAD) == ["repeat error pager"]
    assert clocked.at(121, BAD) == []
    clocked.at(122, OK)
    assert clocked.at(132, OK) == ["resolved error all pager"]


def test_a_restart_goes_on_where_it_was() -> None:
    """GIVEN an alert that fires WHEN the watchdog starts again THEN it does not send it again, and
    sends its recovery."""
    clocked = Clocked()
    clocked.at(0, BAD)
    clocked.at(10, BAD)
    again = Clocked()
    again.alerting = Alerting(again.alerts, list(clocked.alerting.firing.values()))
    assert again.at(20, BAD) == []
    again.at(21, OK)
    assert again.at(31, OK) == ["resolved error hook"]


def test_a_channel_that_was_removed_gets_nothing() -> None:
    clocked = Clocked()
    clocked.at(0, BAD)
    clocked.at(10, BAD)
    again = Clocked(channels={"other": HOOK})
    again.alerting = Alerting(again.alerts, list(clocked.alerting.firing.values()))
    again.at(21, OK)
    assert again.at(31, OK) == ["resolved error"]


def test_without_channels_alerts_are_still_known() -> None:
    clocked = Clocked(channels={})
    clocked.at(0, BAD)
    assert clocked.at(10, BAD) == ["firing error"]
    assert list(clocked.alerting.firing) == [Key("disk")]

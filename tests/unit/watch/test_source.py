"""What the watchdog's session remembers of what it has asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.config import Config
from tailrace.position import Lsn
from tailrace.postgres.probe import Observation, Probe
from tailrace.watch.source import SourceWatch

if TYPE_CHECKING:
    import pytest


def test_heartbeats_of_before_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN heartbeats WHEN the server continues at an earlier end of its WAL THEN those after it
    are not waited for: they were lost."""
    ends = iter([Lsn(1000), Lsn(2000), Lsn(500)])
    beats = iter([Lsn(1001), Lsn(2001), Lsn(501)])

    def observe(_self: Probe, **_: str) -> Observation:
        return Observation(
            standby=False, wal_end=next(ends), slot=None, terms={}, publication=None, database="d"
        )

    monkeypatch.setattr(Probe, "observe", observe)
    monkeypatch.setattr(Probe, "beat", lambda _: next(beats))
    config = Config.model_validate({"source": {"dsn": "host=h"}})
    now = iter(range(10))
    watch = SourceWatch(config, heartbeat_s=1, term=lambda: 0, clock=lambda: float(next(now)))
    found = [watch.ask() for _ in range(3)]
    waited = [[int(beat.lsn) for beat in each.beats] for each in found if each is not None]
    assert waited == [[1001], [1001, 2001], [501]]


def test_without_a_term_nothing_is_asked() -> None:
    """GIVEN a disk that has not said yet which term the log has THEN no slot is looked for."""
    config = Config.model_validate({"source": {"dsn": "host=h"}})
    watch = SourceWatch(config, heartbeat_s=1, term=lambda: None, clock=lambda: 0.0)
    assert watch.ask() is None

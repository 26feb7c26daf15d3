"""Trends: samples, their bounds, and what a restart keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.console.trends import FILE, Trends
from tailrace.observe.figures import CaptureFigures, PipelineFigures, SystemFigures
from tailrace.observe.kept import LogFigures

if TYPE_CHECKING:
    from pathlib import Path

SHOP = PipelineFigures(name="shop", lag_s=0.0, latency_ms_p50=10.0)


class Clock:
    """A system whose counters grow by 50 per sample."""

    def __init__(self, data: Path, start: float = 1e9) -> None:
        self.now = start
        self.figures = SystemFigures(pipelines=(SHOP,), log=LogFigures(bytes=5))
        self.trends = Trends(data, lambda: self.figures, clock=lambda: self.now)

    def sample(self, count: int, grown: int = 50) -> None:
        for _ in range(count):
            self.now += 10
            changes = self.figures.capture.changes + grown
            shop = replace(self.figures.pipelines[0], events=changes)
            self.figures = replace(
                self.figures, capture=CaptureFigures(changes=changes), pipelines=(shop,)
            )
            self.trends.sample()

    def values(self, name: str, span: str = "hour") -> list[float | None]:
        return [value for _, value in self.trends.points(span, name)]  # type: ignore[arg-type]


def test_rates_are_what_counters_have_grown(tmp_path: Path) -> None:
    """GIVEN counters WHEN they grow, and when their process restarts THEN rates are per second and
    never negative."""
    clock = Clock(tmp_path)
    clock.sample(3)
    assert clock.values("captured") == [None, 5, 5]
    assert clock.trends.rates == {"captured": 5, "events:shop": 5}
    clock.figures = replace(clock.figures, capture=CaptureFigures())
    clock.sample(1, grown=20)
    assert clock.trends.rates["captured"] == 2


def test_rings_are_bounded(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    clock.sample(1000)
    assert len(clock.values("captured")) == 361
    assert len(clock.values("captured", "day")) == 1000 // 30 + 1
    assert clock.values("lag_s:shop")[-1] == 0
    clock.figures = replace(clock.figures, pipelines=(replace(SHOP, name="other"),))
    clock.sample(400)
    assert clock.values("lag_s:shop") == []
    assert len(clock.values("lag_s:other")) == 361


def test_a_restart_keeps_the_trends(tmp_path: Path) -> None:
    """GIVEN saved trends WHEN the process starts again THEN it has them, and the file stays
    bounded; a damaged file is given up."""
    clock = Clock(tmp_path)
    clock.sample(500)
    clock.trends.save()
    again = Clock(tmp_path, clock.now)
    again.trends.load()
    assert again.values("captured") == clock.values("captured")
    size = (tmp_path / FILE).stat().st_size
    for _ in range(5):
        again.sample(500)
        again.trends.save()
    assert (tmp_path / FILE).stat().st_size < 3 * size
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    third = Clock(tmp_path, again.now)
    third.trends._guarded(third.trends.load)
    assert not (tmp_path / FILE).exists()


def test_a_clock_that_was_set_back_starts_again(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    clock.sample(5)
    clock.now -= 3600
    clock.sample(2)
    assert len(clock.values("log_bytes")) == 2


def test_several_series_as_one(tmp_path: Path) -> None:
    """GIVEN series with unknown values WHEN they are merged THEN each time has the highest or the
    sum of what is known."""
    clock = Clock(tmp_path)
    for lags in ((2.0, 3.0), (None, None), (1.0, None)):
        names = ("a", "b")
        clock.figures = SystemFigures(
            pipelines=tuple(
                PipelineFigures(name=name, lag_s=lag) for name, lag in zip(names, lags, strict=True)
            )
        )
        clock.now += 10
        clock.trends.sample()
    series = ["lag_s:a", "lag_s:b", "lag_s:none"]
    worst = [value for _, value in clock.trends.merged("hour", series, "worst")]
    total = [value for _, value in clock.trends.merged("hour", series, "total")]
    assert (worst, total) == ([3, None, 1], [5, None, 1])
    assert clock.trends.merged("hour", ["none"], "total") == []

"""Trends: figures of the last hour and of the last day, sampled by the HTTP process.

Two rings of samples, 10 s and 5 min apart. In memory a series is an array of floats; the file
`trends.db` keeps one row per sample, so that a restart does not lose the day. It is bounded, and
may be deleted at any time.
"""

from __future__ import annotations

import bisect
import math
import threading
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import orjson
import structlog

from tailrace.errors import TailraceError
from tailrace.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tailrace.observe.figures import SystemFigures

Span = Literal["hour", "day"]
FILE = "trends.db"
_EVERY_S: dict[Span, float] = {"hour": 10.0, "day": 300.0}
_KEPT: dict[Span, int] = {"hour": 361, "day": 289}
_SAVE_S = 60.0
_JITTER_S = 5.0
"""A sample that is earlier by less than this is in time."""


@dataclass(slots=True)
class _Ring:
    """Samples of all series. A series without a value at a time has NaN there."""

    size: int
    times: array[float] = field(default_factory=lambda: array("d"))
    series: dict[str, array[float]] = field(default_factory=dict)

    def add(self, now: float, values: Mapping[str, float]) -> None:
        """Append a sample, and drop the oldest if the ring is full."""
        self.times.append(now)
        for name in values.keys() - self.series.keys():
            self.series[name] = array("f", [math.nan] * (len(self.times) - 1))
        for name, kept in self.series.items():
            kept.append(values.get(name, math.nan))
        if len(self.times) > self.size:
            del self.times[0]
            for name in list(self.series):
                kept = self.series[name]
                del kept[0]
                if math.isnan(kept[0]) and all(map(math.isnan, kept)):
                    del self.series[name]

    def points(self, name: str, since: float) -> list[tuple[float, float | None]]:
        """The samples of a series after a time."""
        kept = self.series.get(name)
        if kept is None:
            return []
        first = bisect.bisect_left(self.times, since)
        return [
            (at, None if math.isnan(value) else value)
            for at, value in zip(self.times[first:], kept[first:], strict=True)
        ]


class _File(SqliteFile):
    """The samples on disk. Losing the last minute in a power cut does no harm."""

    content = "trends"
    schema = (
        'CREATE TABLE samples (span TEXT NOT NULL, at REAL NOT NULL, "values" BLOB NOT NULL, '
        "PRIMARY KEY (span, at)) WITHOUT ROWID;"
    )
    pragmas: ClassVar = ("synchronous = OFF",)


class Trends:
    """The rings. `sample` is called by one thread, `points` by any."""

    def __init__(
        self,
        data: Path,
        read: Callable[[], SystemFigures],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = data / FILE
        self._read = read
        self._clock = clock
        self._rings: dict[Span, _Ring] = {span: _Ring(kept) for span, kept in _KEPT.items()}
        self._lock = threading.Lock()
        self._last: tuple[float, dict[str, int]] | None = None
        self._unsaved: list[tuple[Span, float, bytes]] = []
        self._saved_at = -math.inf
        self.rates: dict[str, float] = {}
        """Changes and events per second since the last sample, by series."""

    def run(self, stop: threading.Event) -> None:
        """Sample until `stop` is set. A full disk costs the trends of the past, nothing else."""
        self._guarded(self.load)
        while True:
            self.sample()
            if self._clock() - self._saved_at >= _SAVE_S:
                self._guarded(self.save)
            if stop.wait(_EVERY_S["hour"]):
                self._guarded(self.save)
                return

    def sample(self) -> None:
        """Add a sample to the rings that are due."""
        now = self._clock()
        figures = self._read()
        values = {**self._rates(figures, now), **_gauges(figures)}
        body = orjson.dumps(values)
        with self._lock:
            for span, ring in self._rings.items():
                due = not ring.times or now - ring.times[-1] >= _EVERY_S[span] - _JITTER_S
                if due or now < ring.times[-1]:
                    if ring.times and now < ring.times[-1]:
                        # The clock was set back.
                        ring.times, ring.series = array("d"), {}
                    ring.add(now, values)
                    self._unsaved.append((span, now, body))

    def points(self, span: Span, name: str) -> list[tuple[float, float | None]]:
        """The samples of a series, oldest first. None where it was unknown."""
        with self._lock:
            return self._rings[span].points(name, self._since(span))

    def merged(
        self, span: Span, names: Sequence[str], how: Literal["worst", "total"]
    ) -> list[tuple[float, float | None]]:
        """The highest value of several series at each time, or their sum."""
        with self._lock:
            ring = self._rings[span]
            first = bisect.bisect_left(ring.times, self._since(span))
            times = ring.times[first:]
            kept = [ring.series[name][first:] for name in names if name in ring.series]
        if not kept:
            return []
        values = np.array(kept)
        known = ~np.isnan(values)
        merged = np.where(known, values, 0).sum(axis=0)
        if how == "worst":
            merged = np.where(known, values, -np.inf).max(axis=0)
        return [
            (at, value if there else None)
            for at, value, there in zip(
                times, merged.tolist(), known.any(axis=0).tolist(), strict=True
            )
        ]

    def _since(self, span: Span) -> float:
        return self._clock() - _EVERY_S[span] * (_KEPT[span] - 1)

    def load(self) -> None:
        """Read what an earlier process has saved."""
        if not self._path.exists():
            return
        now = self._clock()
        with _File(self._path) as file, file.translated(), self._lock:
            for span, ring in self._rings.items():
                rows = file.connection.execute(
                    'SELECT at, "values" FROM samples WHERE span = ? AND at > ? AND at <= ? '
                    "ORDER BY at",
                    (span, now - _EVERY_S[span] * _KEPT[span], now),
                )
                for at, values in rows:
                    ring.add(at, orjson.loads(values))

    def save(self) -> None:
        """Write the new samples, and delete the old ones."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, []
        now = self._saved_at = self._clock()
        with _File(self._path, write=True) as file, file.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", unsaved)
            for span, kept in _KEPT.items():
                connection.execute(
                    "DELETE FROM samples WHERE span = ? AND (at < ? OR at > ?)",
                    (span, now - _EVERY_S[span] * kept, now),
                )

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (TailraceError, OSError, ValueError) as error:
            structlog.get_logger().warning("console.trends_not_kept", reason=str(error))
            self._path.unlink(missing_ok=True)

    def _rates(self, figures: SystemFigures, now: float) -> dict[str, float]:
        """What counters have grown by, per second. A process that restarted counts from zero."""
        counts = {"captured": figures.capture.changes} | {
            f"events:{each.name}": each.events for each in figures.pipelines
        }
        last, self._last = self._last, (now, counts)
        if last is None or now <= last[0]:
            return {}
        before_at, before = last
        self.rates = {
            name: max(count - (known if count >= known else 0), 0) / (now - before_at)
            for name, count in counts.items()
            if (known := before.get(name)) is not None
        }
        return self.rates


def _gauges(figures: SystemFigures) -> dict[str, float]:
    """The values of now that have a trend. What is unknown has no value."""
    found: dict[str, float | None] = {
        "log_bytes": figures.log.bytes,
        "kept_wal_bytes": figures.slot.kept_wal_bytes,
    }
    for each in figures.pipelines:
        found[f"lag_s:{each.name}"] = each.lag_s
        found[f"lag_bytes:{each.name}"] = each.lag_bytes
        found[f"p50:{each.name}"] = each.latency_ms_p50
        found[f"p99:{each.name}"] = each.latency_ms_p99
    return {name: float(value) for name, value in found.items() if value is not None}

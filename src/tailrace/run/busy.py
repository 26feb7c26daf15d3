"""How busy the processes of `tailrace run` are: their CPU time, with that of their descendants.

Descendants come and go: Spark starts and ends workers. So each is measured alone, and the sum of
what they took between two looks is what a process took.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.process import cpu_s, descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOOK_S = 5.0
"""A JVM has a hundred threads, each of which may have started processes."""


@dataclass(slots=True)
class _Meter:
    pid: int | None = None
    before: Mapping[int, float] = field(default_factory=dict)
    total_s: float | None = None
    busy: float | None = None


def cpu_of(pid: int) -> dict[int, float]:
    """The CPU time of a process and of each of its descendants, by process id."""
    found = {each: cpu_s(each) for each in (pid, *descendants(pid))}
    return {each: taken for each, taken in found.items() if taken is not None}


class BusyMeter:
    """CPU time by name of the process, over its restarts. It looks every few seconds."""

    def __init__(self, cpu: Callable[[int], Mapping[int, float]] = cpu_of) -> None:
        self._cpu = cpu
        self._meters: dict[str, _Meter] = {}
        self._looked_at: float | None = None

    def look(self, pids: Mapping[str, int | None], now: float) -> None:
        """Look at these processes, if it is time."""
        passed_s = None if self._looked_at is None else now - self._looked_at
        if passed_s is not None and passed_s < LOOK_S:
            return
        self._looked_at = now
        for name, pid in pids.items():
            self._measure(self._meters.setdefault(name, _Meter()), pid, passed_s)

    def cpu_s(self, name: str) -> float | None:
        """The CPU time so far; None if it is unknown."""
        meter = self._meters.get(name)
        return meter.total_s if meter else None

    def busy(self, name: str) -> float | None:
        """CPU time per second between the last two looks; None if it is unknown."""
        meter = self._meters.get(name)
        return meter.busy if meter else None

    def _measure(self, meter: _Meter, pid: int | None, passed_s: float | None) -> None:
        taken = {} if pid is None else self._cpu(pid)
        meter.busy = None
        if taken:
            # What a process took that has ended since the last look is lost.
            new_s = sum(max(now - meter.before.get(each, 0.0), 0.0) for each, now in taken.items())
            if passed_s is not None and pid == meter.pid:
                meter.busy = round(new_s / passed_s, 3)
            meter.total_s = round((meter.total_s or 0.0) + new_s, 2)
        meter.pid, meter.before = pid, taken

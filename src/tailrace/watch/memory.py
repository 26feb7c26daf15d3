"""How much memory processes and their descendants take, as the kernel counts it (Linux).

Pages that processes share count once (PSS): Spark's workers are forked and share most of theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.process import descendants

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC = Path("/proc")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_KIB = 1024


def used_bytes(pids: Iterable[int]) -> int | None:
    """The memory of processes and of their descendants; None if the kernel does not say."""
    found = [_memory(pid) for pid in {each for pid in pids for each in (pid, *descendants(pid))}]
    known = [each for each in found if each is not None]
    return sum(known) if known else None


def limit_bytes() -> int | None:
    """The memory of the machine, or the limit of the container if it is less."""
    total = _kib(_PROC / "meminfo", "MemTotal:")
    try:
        limit = int(_CGROUP_LIMIT.read_text())
    except (OSError, ValueError):
        return total
    return min(limit, total or limit)


def _memory(pid: int) -> int | None:
    rollup = _kib(_PROC / str(pid) / "smaps_rollup", "Pss:")
    return _kib(_PROC / str(pid) / "status", "VmRSS:") if rollup is None else rollup


def _kib(path: Path, field: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * _KIB
    except (OSError, ValueError, IndexError):
        return None
    return None

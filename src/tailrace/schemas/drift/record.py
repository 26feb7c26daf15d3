"""Recorded drift in the data folder: what pipelines have still to handle, and what `/status` shows.

One file, replaced atomically. Drift is recorded before anything is done about it, so a crash
repeats the work and forgets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Policy = Literal["flag", "backfill", "ignore"]
FOLDER = "silent"
"""The name is part of the format on disk."""
_FILE = "findings"
_MAX_HANDLED = 100


@dataclass(slots=True, kw_only=True)
class RecordedDrift:
    """A change of a table. `pipelines` are those it concerns, with their policies; `waiting` are
    those that have not handled it yet."""

    id: str
    kind: str
    namespace: str
    table: str
    relation_id: int
    subject: str
    detail: str
    hint: str
    lsn: str
    found_at: str
    pipelines: dict[str, Policy]
    waiting: list[str]


@dataclass(slots=True, kw_only=True)
class DriftRecord:
    """The last changes; `counts` are per pipeline and kind, over all runs."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    found: list[RecordedDrift] = field(default_factory=list)

    def add(self, drift: Iterable[RecordedDrift]) -> list[RecordedDrift]:
        """Add what is not recorded yet, and return that."""
        known = {recorded.id for recorded in self.found}
        added = [each for each in drift if each.id not in known]
        for each in added:
            for pipeline in each.pipelines:
                kinds = self.counts.setdefault(pipeline, {})
                kinds[each.kind] = kinds.get(each.kind, 0) + 1
        self.found += added
        waiting = [each for each in self.found[:-_MAX_HANDLED] if each.waiting]
        self.found = [*waiting, *self.found[-_MAX_HANDLED:]]
        return added


# `/status` loads the record every second: the file's adapter is built once per data folder.
@lru_cache(maxsize=16)
def _file(data: Path) -> StateFile[DriftRecord]:
    return StateFile(data / FOLDER / _FILE, DriftRecord)


def load(data: Path) -> DriftRecord:
    """The record of a data folder; empty if there is no file or an invalid one."""
    return _file(data).read_or(DriftRecord())


def save(data: Path, record: DriftRecord) -> None:
    """Replace the record, durably."""
    _file(data).write(record)

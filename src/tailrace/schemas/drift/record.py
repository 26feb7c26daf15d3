"""Findings in the data folder: who has still to be told, and what people may look up.

One file, replaced whole. A finding is in it before anything else is done about it, so a crash
repeats what was to be done and forgets nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter, ValidationError

from tailrace.log.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Policy = Literal["flag", "backfill", "ignore"]
FOLDER = "silent"
_FILE = "findings"
_KEPT = 100


@dataclass(slots=True, kw_only=True)
class Found:
    """A finding and what becomes of it. `pipelines` are those it matters to, with their policies;
    `waiting` are those for which nothing was done yet."""

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
class Findings:
    """All that is remembered; `counts` are by pipeline and kind, for ever."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)

    def add(self, news: Iterable[Found]) -> list[Found]:
        """Take what is not known yet; that."""
        known = {each.id for each in self.found}
        added = [each for each in news if each.id not in known]
        for each in added:
            for pipeline in each.pipelines:
                kinds = self.counts.setdefault(pipeline, {})
                kinds[each.kind] = kinds.get(each.kind, 0) + 1
        self.found += added
        old = [each for each in self.found[:-_KEPT] if each.waiting]
        self.found = [*old, *self.found[-_KEPT:]]
        return added


_ADAPTER = TypeAdapter(Findings)


def load(data: Path) -> Findings:
    """What the data folder has; empty when there is nothing, or nothing that can be read."""
    with contextlib.suppress(OSError, ValidationError):
        return _ADAPTER.validate_json((data / FOLDER / _FILE).read_bytes())
    return Findings()


def save(data: Path, findings: Findings) -> None:
    """Replace the file, durably."""
    LocalStore(data / FOLDER, create=True).write_atomic(_FILE, _ADAPTER.dump_json(findings))

"""The planner: where the next micro-batch ends. Pure: it takes a log and the time, no Spark.

A micro-batch delivers the changes of `(start, position]` and then whole pages of backfills. The
planner decides in this order:

| question                                            | answer                                    |
|-----------------------------------------------------|-------------------------------------------|
| Are parked messages to be delivered again?          | a batch of these only; then one of the log|
| May batches be open everywhere, and no page waits?  | an open batch: its task follows the log   |
| Are there changes after `start`?                    | the log's end, at most the limits         |
| Does a change need a table version without a plan?  | end before it; `ReplanError` if it is the |
|                                                     | first change of the batch                 |
| Is the next page complete at that position?         | deliver it after the changes              |
| May batches be open, and is the rest of the log     | an open batch; not after a page that is   |
| short?                                              | after the last change                     |
| Neither changes nor pages, for 30 s?                | a heartbeat: the same position again      |
| Otherwise                                           | no batch                                  |

Example: the log holds changes at 1, 2, 3 and 4, and change 3 is the first one after `ALTER TABLE`.
From start 0 the batch ends at 2. From start 2 the planner raises `ReplanError`, the pipeline
compiles its expressions for the new version, and the next batch ends at 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import ReplanError
from tailrace.pipeline.expressions.compile import fingerprint
from tailrace.pipeline.source.offset import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tailrace.backfill.spool import Page
    from tailrace.log.format.mark import Mark
    from tailrace.log.reader import Extent
    from tailrace.parking.parking import Release
    from tailrace.pipeline.spec import Spec
    from tailrace.position import Position
    from tailrace.schema import Relation, TypeName

HEARTBEAT_S = 30.0
"""Spark kills Python workers that are idle for a minute, and a new one takes seconds to start."""
UNLIMITED = 1 << 62
OPEN_ROWS = 10_000
"""A batch of more changes is far from the end of the log."""


class PlannedLog(Protocol):
    """What the planner reads of a log."""

    def end(self) -> Mark:
        """The end of the durable log."""

    def timeline(self, end: Mark) -> int:
        """The timeline of PostgreSQL that the log follows at its end."""

    def extent(
        self, after: Position, *, rows: int, size: int, upto: Position | None = None
    ) -> Extent:
        """How far about `rows` changes or `size` bytes after a position reach."""

    def relations(
        self, after: Position, upto: Position | None = None, *, in_force: bool = True
    ) -> Iterator[tuple[Position, Relation, dict[int, TypeName]]]:
        """The table versions in use up to a position, each with the position before its change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The size of a micro-batch: it ends with the first log entry that reaches either limit."""

    rows: int = UNLIMITED
    size_bytes: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVersions:
    """The table versions that a pipeline's expressions are compiled for."""

    wanted: Callable[[Relation], bool]
    fingerprints: frozenset[int]

    @classmethod
    def of(cls, spec: Spec) -> PlannedVersions:
        """The versions that the plan of a pipeline covers."""
        # The decoder, which a query without expressions does not plan with.
        from tailrace.pipeline.frames.frame import wanted_by  # noqa: PLC0415

        return cls(wanted=wanted_by(spec.wanted()), fingerprints=frozenset(spec.relations))

    def uncovered(
        self, log: PlannedLog, after: Position, upto: Position, *, in_force: bool
    ) -> tuple[Position, Relation] | None:
        """The first version in a range that the plan does not cover, and the position before it.

        `in_force`: also look at the versions in force at the start of the range.
        """
        for before, relation, types in log.relations(after, upto, in_force=in_force):
            if self.wanted(relation) and not self.covers(relation, types):
                return before, relation
        return None

    def covers(self, relation: Relation, types: Mapping[int, TypeName]) -> bool:
        """Whether the plan has expressions for this version of a table."""
        return fingerprint(relation, types) in self.fingerprints


class Planner:
    """Plans the micro-batches of one query.

    `history` is what positions of this log belong to. `release` prepares the batch after an offset,
    and returns the parked messages that it delivers, if it may deliver some. `pages` returns the
    pages of backfills after a number, in order. `versions` is None for frames that read any version
    of a table. `opens` tells whether batches may be open, `opens_far` whether far from the end of
    the log, too. `now` and the `now` of `next_end` are of one monotonic clock.
    """

    def __init__(
        self,
        *,
        now: float,
        history: str = "",
        max_page_rows: int = UNLIMITED,
        pages: Callable[[int], Iterable[Page]] = lambda _: (),
        versions: PlannedVersions | None = None,
        release: Callable[[Offset, bool], Release | None] = lambda _start, _may: None,
        opens: bool = False,
        opens_far: bool = False,
    ) -> None:
        self._last_batch_s = now
        self._history = history
        self._max_page_rows = max_page_rows
        self._pages = pages
        self._versions = versions
        self._next_release = release
        self._opens = opens
        self._opens_far = opens_far
        self._checked_versions_in_force = False
        self._released = False
        """Whether the last batch was a release: the log is next."""

    def next_end(
        self, log: PlannedLog, start: Offset, *, limits: Limits, target: Position | None, now: float
    ) -> Offset | None:
        """The end of the micro-batch after `start`; None if there is nothing to do.

        With a `target` (`Trigger.AvailableNow`) no batch goes beyond it and no heartbeat is sent.
        """
        release = self._next_release(start, target is None and not self._released)
        if release is not None:
            self._released, self._last_batch_s = True, now
            return replace(
                start, position=release.last, history=self._history, pages=(), open=False,
                release=release.number,
            )  # fmt: skip
        self._released = False
        # A task that follows the log does not check whether its timeline ended before `start`.
        may_open = self._opens and target is None and not start.timeline
        if may_open and self._opens_far and not any(True for _ in self._pages(start.page)):
            self._last_batch_s = now
            return self._opened(start)
        position, near_end = self._end_in_log(log, start.position, limits, target)
        may_open = may_open and (near_end or self._opens_far)
        mark = log.end()
        pages = self._next_pages(mark, start.page, position, alone=position == start.position)
        following = Offset(
            position=position,
            history=self._history,
            page=start.page,
            opened=start.opened,
            release=start.release,
        )
        if pages:
            # The decoder, which a query without a backfill does not plan with.
            from tailrace.backfill.handover import page_position  # noqa: PLC0415

            last = page_position(pages[-1], position)
            after_changes = last.lsn > mark.position.lsn
            end = replace(
                following,
                position=last,
                page=pages[-1].number,
                pages=tuple(page.number for page in pages),
                timeline=log.timeline(mark) if after_changes else 0,
            )
        elif may_open:
            end = self._opened(start)
        elif position > start.position:
            end = following
        elif target is None and now - self._last_batch_s >= HEARTBEAT_S:
            end = replace(start, heartbeat=start.heartbeat + 1)
        else:
            return None
        self._last_batch_s = now
        return end

    def _opened(self, start: Offset) -> Offset:
        """The open batch after `start`."""
        return Offset(
            position=start.position,
            history=self._history,
            page=start.page,
            opened=start.opened + 1,
            open=True,
            release=start.release,
        )

    def _end_in_log(
        self, log: PlannedLog, after: Position, limits: Limits, target: Position | None
    ) -> tuple[Position, bool]:
        """How far the changes of the batch reach, and whether little follows in the log."""
        if target is None and log.end().position <= after:
            return after, True
        extent = log.extent(after, rows=limits.rows, size=limits.size_bytes, upto=target)
        if extent.upto <= after:
            return after, True
        position = self._end_of_plan(log, after, extent.upto)
        short = extent.rows < min(OPEN_ROWS, limits.rows) and extent.bytes < limits.size_bytes
        return position, short and position == extent.upto

    def _end_of_plan(self, log: PlannedLog, after: Position, upto: Position) -> Position:
        """As far as the plan covers every version of every table."""
        versions = self._versions
        if versions is None:
            return upto
        # The versions in force at the start are checked once; later ones are in the log's entries.
        in_force = not self._checked_versions_in_force
        found = versions.uncovered(log, after, upto, in_force=in_force)
        if found is not None:
            before, relation = found
            if before <= after:
                raise ReplanError(f"{relation.qualified_name} has changed")
            return before
        self._checked_versions_in_force = True
        return upto

    def _next_pages(self, end: Mark, delivered: int, upto: Position, *, alone: bool) -> list[Page]:
        """The pages that may follow the changes up to a position; `end` is the end of the log.

        `alone`: the batch has no changes.
        """
        pages: list[Page] = []
        for page in self._pages(delivered):
            if not due(page, end, upto):
                break
            table = page.table
            if self._versions is not None and not self._versions.covers(
                table.relation, table.types
            ):
                if alone and not pages:
                    raise ReplanError(f"{table.name} is not in the plan")
                break
            pages.append(page)
            if sum(page.rows for page in pages) >= self._max_page_rows:
                break
        return pages


def due(page: Page, end: Mark, upto: Position) -> bool:
    """Whether a page of a backfill may follow the changes up to a position.

    A page is a snapshot of rows as of `page.lsn`. It may be delivered once every change that it
    contains has been: after a position at or beyond that LSN, or at the log's end if capture has
    read up to that LSN and found no more changes.
    """
    nothing_later = end.position <= upto and end.end_lsn >= page.lsn
    return nothing_later or upto.lsn >= page.lsn


def split(
    log: PlannedLog, after: Position, upto: Position, count: int
) -> list[tuple[Position, Position]]:
    """Cut `(after, upto]` into about `count` ranges of equal size, each of whole transactions.

    There are fewer ranges if a transaction is larger than its share, and may be one more, because
    a range ends with the entry that reaches its share.
    """
    total = log.extent(after, rows=UNLIMITED, size=UNLIMITED, upto=upto).bytes
    share = max(total // count, 1)
    ranges = []
    while after < upto:
        end = log.extent(after, rows=UNLIMITED, size=share, upto=upto).upto
        end = upto if end <= after else end
        ranges.append((after, end))
        after = end
    return ranges

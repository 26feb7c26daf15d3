"""Which message of a batch must wait for which, as columns of edges.

A message waits for the one before it of each of its groups (`tailrace.sinks.groups`), which waits
for the one before, and so on. Example, with keys and the whole table (`*`):

    row      0  1  2  3     4  5
    key      a  b  a  a→b   *  a      edges: 0→2 2→3 1→3, 0..3→4, 4→5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.sinks.groups import Groups

    Numbers = NDArray[np.int64]
    Edges = tuple[Numbers, Numbers]
    """Earlier rows, and those that wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followers:
    """Who waits for each row."""

    starts: Numbers
    rows: Numbers
    """The followers of row `n` are `rows[starts[n]:starts[n + 1]]`, once per edge."""

    @classmethod
    def of(cls, edges: Edges, count: int) -> Followers:
        """The followers of so many rows."""
        earlier, later = edges
        order = np.argsort(earlier, kind="stable")
        starts = np.searchsorted(earlier[order], np.arange(count + 1))
        return cls(starts=starts.astype(np.int64), rows=later[order])

    def after(self, rows: Numbers) -> Numbers:
        """The followers of some rows, once per edge."""
        first, counts = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        total = int(counts.sum())
        if not total:
            return self.rows[:0]
        # For each row the numbers from its first follower on.
        offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        followers: Numbers = self.rows[np.repeat(first, counts) + offsets]
        return followers


def edges_of(groups: Groups) -> Edges:
    """The edges between the rows of a batch. A row never waits for a later one."""
    edges = [_between_keys(groups)]
    if groups.whole.any():
        edges += [
            _between_keys_and_table(groups, scope)
            for scope in np.unique(groups.scope[groups.whole]).tolist()
        ]
    earlier, later = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    return earlier, later


def _between_keys(groups: Groups) -> Edges:
    """Rows of one key, and rows without a key of one table, one after another."""
    count = len(groups.own)
    rows = np.arange(count, dtype=np.int64)
    moved = np.flatnonzero(groups.former != groups.own)
    hashes = np.concatenate([groups.own, groups.former[moved]])
    rows = np.concatenate([rows, moved])
    order = np.lexsort((rows, hashes))
    hashes, rows = hashes[order], rows[order]
    same = hashes[1:] == hashes[:-1]
    return rows[:-1][same], rows[1:][same]


def _between_keys_and_table(groups: Groups, scope: int) -> Edges:
    """Rows with a key, the next row of their table without one, and the one before them."""
    within = groups.scope == np.uint64(scope)
    whole = np.flatnonzero(within & groups.whole)
    keyed = np.flatnonzero(within & ~groups.whole)
    following = np.searchsorted(whole, keyed)
    has_next, has_previous = following < len(whole), following > 0
    return (
        np.concatenate([keyed[has_next], whole[following[has_previous] - 1]]),
        np.concatenate([whole[following[has_next]], keyed[has_previous]]),
    )

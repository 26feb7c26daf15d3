"""Groups with a message that is not delivered: later messages of them must wait.

See `tailrace.sinks.groups` for what a group is. A message that waits may tie further groups to the
blocked ones: an update from key 1 to key 2 waits for key 1, and everything of key 2 waits for it.

    blocked: 1      batch: 1, 3, 1→2, 2, 3      waiting: 1, 1→2, 2      blocked: 1, 2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tailrace.decode.hashes import Hashes
    from tailrace.sinks.groups import Groups

    Rows = NDArray[np.bool_]

_NONE = np.empty(0, np.uint64)
_MERGE_AT = 1000


class BlockedGroups:
    """The blocked keys, the tables that they are of, and tables that are blocked as a whole."""

    def __init__(
        self, keys: Hashes = _NONE, scopes: Hashes = _NONE, whole_scopes: Hashes = _NONE
    ) -> None:
        self._keys = _Hashes(keys)
        self._scopes = _Hashes(scopes)
        self._whole_scopes = _Hashes(whole_scopes)

    def __bool__(self) -> bool:
        """Whether any group is blocked."""
        return bool(self._scopes)

    def add(self, groups: Groups) -> None:
        """Block the groups of messages."""
        self._keys.add(groups.own)
        self._keys.add(groups.former)
        self._scopes.add(groups.scope)
        self._whole_scopes.add(groups.scope[groups.whole])

    def hold_back(
        self, groups: Groups, failed: Iterable[int] = (), *, in_steps: bool = False
    ) -> Rows:
        """Which messages of a batch must wait; their groups are blocked from now on.

        `failed` are rows of the batch that are not delivered for a reason of their own. A message
        waits only for earlier ones. A failed one that waits is among the result.

        With `in_steps` the result ends before a message that blocks further groups, if an earlier
        one does not wait: until that has been sent, its groups must not be blocked by a later one.
        """
        waiting, chosen = self._waits(groups), set(failed)
        # Usually nothing is blocked, or keys that are known to be. Only what adds groups to the
        # blocked ones has to be looked at row by row.
        if chosen or (waiting & ~self._known(groups)).any():
            waiting = self._hold_back_in_order(groups, waiting, chosen, in_steps=in_steps)
        self._scopes.add(groups.scope[: len(waiting)][waiting])
        return waiting

    def _hold_back_in_order(
        self, groups: Groups, waiting: Rows, failed: set[int], *, in_steps: bool
    ) -> Rows:
        """The same, for a batch that adds groups. `waiting` are rows that wait anyway."""
        known, some_ready = self._known(groups), False
        keys: set[int] = set()
        scopes: set[int] = set()
        whole_scopes: set[int] = set()
        columns = (groups.own, groups.former, groups.scope, groups.whole, waiting)
        found = waiting.copy()
        for row, (own, former, scope, whole, waits) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            found[row] = (
                waits
                or own in keys
                or former in keys
                or scope in whole_scopes
                or (whole and scope in scopes)
            )
            if in_steps and some_ready and found[row] and not known[row]:
                found = found[:row]
                break
            some_ready = some_ready or not found[row]
            if found[row] or row in failed:
                keys |= {own, former}
                scopes.add(scope)
                whole_scopes |= {scope} if whole else set()
        self._keys.update(keys)
        self._scopes.update(scopes)
        self._whole_scopes.update(whole_scopes)
        return found

    def _known(self, groups: Groups) -> Rows:
        """Which messages have no group that is not blocked."""
        known = self._keys.contains(groups.own) & self._keys.contains(groups.former)
        return known & (~groups.whole | self._whole_scopes.contains(groups.scope))

    def _waits(self, groups: Groups) -> Rows:
        waits: Rows = self._keys.contains(groups.own) | self._keys.contains(groups.former)
        waits |= self._whole_scopes.contains(groups.scope)
        waits |= groups.whole & self._scopes.contains(groups.scope)
        return waits


class _Hashes:
    """A set of hashes: a sorted column that may be large, and a few that were added to it."""

    def __init__(self, hashes: Hashes) -> None:
        self._sorted = np.unique(hashes)
        self._added: set[int] = set()

    def __bool__(self) -> bool:
        return bool(len(self._sorted) or self._added)

    def add(self, hashes: Hashes) -> None:
        self.update(np.unique(hashes).tolist())

    def update(self, hashes: Iterable[int]) -> None:
        self._added.update(hashes)
        if len(self._added) > _MERGE_AT:
            self._sorted = np.union1d(self._sorted, self._column())
            self._added = set()

    def contains(self, hashes: Hashes) -> Rows:
        found: Rows = np.zeros(len(hashes), np.bool_)
        if len(self._sorted):
            at = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
            found |= self._sorted[at] == hashes
        if self._added:
            found |= np.isin(hashes, self._column())
        return found

    def _column(self) -> Hashes:
        return np.fromiter(self._added, np.uint64, len(self._added))

"""Turns of messages: in which no two are of one group, so that a request may be accepted in part.

A destination that answers for each message of a request may refuse one and accept a later one of
the same key. Their order would be lost. So a request takes the messages of one turn only, and the
next message of a key is in a later turn. A message of a turn follows, of its groups, only messages
of earlier turns:

    key     1  2  1  3  1→2  2
    turn    0  0  1  0  2    3

With many keys that change a few times each, requests stay full: every turn has a message of each
key. Messages of a table without a key have a turn of their own each.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.decode.hashes import Hashes
    from tailrace.sinks.groups import Groups

    Turns = NDArray[np.int64]


def turns_of(groups: Groups) -> Turns:
    """The turn of each message."""
    if groups.whole.any() or not np.array_equal(groups.own, groups.former):
        return _turns_of_tied(groups)
    return _occurrences(groups.own)


def _occurrences(keys: Hashes) -> Turns:
    """How often each key was there before."""
    order = np.argsort(keys, kind="stable")
    at = np.arange(len(keys))
    changes = np.flatnonzero(np.diff(keys[order])) + 1
    first = np.zeros(len(keys), np.int64)
    first[changes] = changes
    counts = np.empty(len(keys), np.int64)
    counts[order] = at - np.maximum.accumulate(first)
    return counts


def _turns_of_tied(groups: Groups) -> Turns:
    """The same if some messages tie keys together: changes of a key, and those without a key."""
    after_key: defaultdict[int, int] = defaultdict(int)
    after_scope: defaultdict[int, int] = defaultdict(int)
    after_whole: defaultdict[int, int] = defaultdict(int)
    columns = (groups.own, groups.former, groups.scope, groups.whole)
    turns = []
    for own, former, scope, whole in zip(*(each.tolist() for each in columns), strict=True):
        if whole:
            turn = after_scope[scope]
            after_whole[scope] = turn + 1
        else:
            turn = max(after_key[own], after_key[former], after_whole[scope])
        after_key[own] = after_key[former] = turn + 1
        after_scope[scope] = max(after_scope[scope], turn + 1)
        turns.append(turn)
    return np.array(turns, np.int64)

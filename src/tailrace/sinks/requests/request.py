"""Requests: messages that are sent together, and which requests must follow which."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.message import MESSAGES
from tailrace.sinks.groups import groups_of
from tailrace.sinks.requests.turns import turns_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.sinks.groups import Groups
    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.requests.limits import Limits

_FORGET_EVERY = 10_000
_NO_ROWS = pa.RecordBatch.from_pylist([], schema=MESSAGES)


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """Messages in order, of one destination unless `Limits` say otherwise."""

    rows: pa.RecordBatch
    """Those to send: fewer after an attempt that accepted some."""
    groups: Groups
    size: int | None
    """Bytes of the payloads; None after some messages were removed."""
    rest: list[tuple[pa.RecordBatch, Groups]] = field(default_factory=list)
    """What to send after them, the next one last: parts of what the receiver refused together, and
    messages whose turn has not come."""
    waits_for: set[Request] = field(default_factory=set)
    followers: list[Request] = field(default_factory=list)
    done: bool = False
    attempts: int = 0
    throttled: int = 0
    """How often a part of the destination asked to wait, instead of an attempt."""
    began_s: float = 0.0
    """When it was first sent."""
    accepted_before: int = 0
    """How many messages of all requests had been accepted then, or when its messages were first
    sent together."""
    divided: int = 0
    """How many messages are left of those that were sent together and are sent one by one now."""
    final: list[Outcome] = field(default_factory=list)
    """The outcomes of its messages after the last attempt."""

    def keys(self) -> set[int]:
        """The groups of its messages."""
        return {*self.groups.own.tolist(), *self.groups.former.tolist()}

    def scopes(self) -> set[int]:
        """Their tables."""
        return set(self.groups.scope.tolist())

    def whole_scopes(self) -> set[int]:
        """The tables for which it has a message without a key."""
        scopes, whole = self.groups.scope.tolist(), self.groups.whole.tolist()
        return {scope for scope, alone in zip(scopes, whole, strict=True) if alone}

    def first_place(self) -> tuple[int, int]:
        """The position of its first message."""
        return self.rows["lsn"][0].as_py(), self.rows["ordinal"][0].as_py()

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with some of its messages."""
        self.size = None
        self.rows, self.groups = (
            self.rows.filter(pa.array(rows)),
            self.groups.take(np.flatnonzero(rows)),
        )

    def divide(self) -> None:
        """Send its messages one by one from now on."""
        self.divided = self.rows.num_rows + 1
        self.rest += [
            (self.rows.slice(row, 1), self.groups.slice(row, 1))
            for row in reversed(range(self.rows.num_rows))
        ]
        self.advance()

    def advance(self) -> bool:
        """Continue with the next part; False if there is none."""
        if not self.rest:
            return False
        self.divided = max(self.divided - 1, 0)
        self.rows, self.groups = self.rest.pop()
        self.size, self.attempts, self.throttled = None, 0, 0
        return True

    def release(self) -> list[Request]:
        """It is done; those that no longer wait for anything."""
        self.done, self.rows = True, _NO_ROWS
        followers, self.followers = self.followers, []
        for each in followers:
            each.waits_for.discard(self)
        return [each for each in followers if not each.waits_for]


class Order:
    """The last request of each group, for which the next one waits."""

    def __init__(self) -> None:
        self._of_key: dict[int, Request] = {}
        self._of_scope: defaultdict[int, list[Request]] = defaultdict(list)
        self._of_whole_scope: dict[int, Request] = {}
        self._added = 0

    def add(self, request: Request) -> None:
        """Let a request wait for the earlier ones that it must follow."""
        keys, scopes, whole = request.keys(), request.scopes(), request.whole_scopes()
        earlier = {self._of_key[key] for key in keys if key in self._of_key}
        earlier |= {self._of_whole_scope[each] for each in scopes if each in self._of_whole_scope}
        for scope in whole:
            earlier.update(self._of_scope.pop(scope, ()))
            self._of_whole_scope[scope] = request
        request.waits_for = {each for each in earlier if not each.done}
        for each in request.waits_for:
            each.followers.append(request)
        self._of_key.update(dict.fromkeys(keys, request))
        for scope in scopes:
            self._of_scope[scope].append(request)
        self._added += 1
        if self._added % _FORGET_EVERY == 0:
            self._forget()

    def _forget(self) -> None:
        """Forget requests that have their answers: nothing waits for them."""
        self._of_key = {key: each for key, each in self._of_key.items() if not each.done}
        for scope, requests in self._of_scope.items():
            self._of_scope[scope] = [each for each in requests if not each.done]


def cut(batch: pa.RecordBatch, limits: Limits) -> Iterator[Request]:
    """The requests of a batch.

    What is computed here is computed for the whole batch: numpy and pyarrow give up the interpreter
    lock, and get it back only after the threads that send.
    """
    if not batch.num_rows:
        return
    groups = groups_of(batch)
    runs = np.zeros(batch.num_rows, np.int64)
    if limits.one_destination:
        runs[:] = batch.column("destination").dictionary_encode().indices.to_numpy()
    if limits.distinct and limits.rows > 1:
        batch, groups, runs = _in_turns(batch, groups, runs)
    elif limits.one_key:
        batch, groups, runs = _by_key(batch, groups, runs)
    lengths = pc.binary_length(batch.column("payload")).to_numpy()
    sizes: list[int] = np.cumsum(lengths, dtype=np.int64).tolist()
    at, sent = 0, 0
    for end in [*(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]:
        while at < end:
            most = min(end, at + limits.rows)
            upto = max(bisect_right(sizes, sent + limits.bytes, at, most), at + 1)
            size, sent = sizes[upto - 1] - sent, sizes[upto - 1]
            count = upto - at
            yield Request(rows=batch.slice(at, count), groups=groups.slice(at, count), size=size)
            at = upto


def _in_turns(
    batch: pa.RecordBatch, groups: Groups, destinations: NDArray[np.int64]
) -> tuple[pa.RecordBatch, Groups, NDArray[np.int64]]:
    """The messages by turn and destination, then in order; and a number for each of these."""
    turns = turns_of(groups)
    runs = turns * (destinations.max() + 1) + destinations
    return _sorted(batch, groups, runs)


def _by_key(
    batch: pa.RecordBatch, groups: Groups, destinations: NDArray[np.int64]
) -> tuple[pa.RecordBatch, Groups, NDArray[np.int64]]:
    """The messages by key, in the order of the keys' first messages; and a number for each key and
    destination. They stay where they are if keys are tied, or have several destinations."""
    _, first, key = np.unique(groups.own, return_index=True, return_inverse=True)
    keys = first[key]
    runs = keys * (destinations.max() + 1) + destinations
    tied = groups.whole.any() or not np.array_equal(groups.own, groups.former)
    if tied or not np.array_equal(destinations, destinations[keys]):
        return batch, groups, runs
    return _sorted(batch, groups, runs)


def _sorted(
    batch: pa.RecordBatch, groups: Groups, runs: NDArray[np.int64]
) -> tuple[pa.RecordBatch, Groups, NDArray[np.int64]]:
    order = np.argsort(runs, kind="stable")
    if np.any(np.diff(order) < 0):
        batch, groups, runs = batch.take(pa.array(order)), groups.take(order), runs[order]
    return batch, groups, runs

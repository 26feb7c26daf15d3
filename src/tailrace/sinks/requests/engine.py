"""Several requests at a time, and never two of one key.

A batch of messages is cut into requests for one destination each. A request waits for every
earlier one that has a message of one of its groups (`tailrace.sinks.groups`). So a slow request
holds up its own keys and no others. If a message is not accepted, no later message of its groups is
sent.

The thread of the caller plans everything. The threads of the pool only send.
"""

from __future__ import annotations

import queue
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SinkUnreachableError
from tailrace.message import MESSAGES
from tailrace.sinks.contract import Receipt
from tailrace.sinks.groups import groups_of
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.unaccepted import Unaccepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from tailrace.sinks.groups import Groups
    from tailrace.sinks.outcome import Outcome

    Answer = Mapping[int, Outcome]
    """The rows of a request that were not accepted, and why."""
    Send = Callable[[pa.RecordBatch], Answer]

_UNDECIDED_ROWS = 2048
"""Messages in requests without an answer, beyond which `take` waits."""
_FAILING_KEYS = 3
_FORGET_EVERY = 10_000
_NO_ROWS = pa.RecordBatch.from_pylist([], schema=MESSAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large requests are, and how many are sent at a time."""

    rows: int = 1
    bytes: int = 1 << 20
    """Of payloads. A larger message has a request of its own."""
    concurrency: int = 16


@dataclass(eq=False, slots=True, kw_only=True)
class _Request:
    """Messages of one destination, in order."""

    rows: pa.RecordBatch
    groups: Groups
    waits_for: set[_Request] = field(default_factory=set)
    followers: list[_Request] = field(default_factory=list)
    done: bool = False

    def keys(self) -> set[int]:
        return {*self.groups.own.tolist(), *self.groups.former.tolist()}

    def scopes(self) -> set[int]:
        return set(self.groups.scope.tolist())

    def whole_scopes(self) -> set[int]:
        return set(self.groups.scope[self.groups.whole].tolist())

    def release(self) -> list[_Request]:
        """It is done; those that no longer wait for anything."""
        self.done, self.rows = True, _NO_ROWS
        followers, self.followers = self.followers, []
        for each in followers:
            each.waits_for.discard(self)
        return [each for each in followers if not each.waits_for]


class Requests:
    """Sends messages. `send` is called by several threads."""

    def __init__(self, send: Send, limits: Limits) -> None:
        self._send = send
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.concurrency, thread_name_prefix="requests")
        self._answers: queue.SimpleQueue[tuple[_Request, Answer | BaseException]] = (
            queue.SimpleQueue()
        )
        self._order = _Order()
        self._unaccepted = Unaccepted()
        self._undecided = 0
        self._most_undecided = max(_UNDECIDED_ROWS, 2 * limits.concurrency * limits.rows)
        self._failing: set[int] = set()
        """Keys whose requests failed since one was accepted."""
        self._messages = self._bytes = 0

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has been counted in a receipt."""
        return not (self._undecided or self._messages or self._unaccepted.failures())

    def take(self, batch: pa.RecordBatch) -> None:
        """Send messages. Waits while too many have no answer."""
        for rows, groups in cut(batch, self._limits):
            request = _Request(rows=rows, groups=groups)
            self._undecided += rows.num_rows
            self._order.add(request)
            if not request.waits_for:
                self._start(request)
            while not self._answers.empty() or self._undecided > self._most_undecided:
                self._finish(*self._answers.get())

    def wait(self) -> Receipt:
        """Wait for every answer."""
        while self._undecided:
            self._finish(*self._answers.get())
        receipt = Receipt(
            messages=self._messages, bytes=self._bytes, failures=self._unaccepted.failures()
        )
        self._messages = self._bytes = 0
        self._order, self._unaccepted = _Order(), Unaccepted()
        return receipt

    def close(self) -> None:
        """Send nothing more. Answers to what was sent are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, request: _Request) -> None:
        """Send a request that waits for no other, and those that it held up if it is empty."""
        ready = [request]
        while ready:
            each = ready.pop()
            before = each.rows.num_rows
            each.rows, each.groups = self._unaccepted.hold_back(each.rows, each.groups)
            self._undecided -= before - each.rows.num_rows
            if each.rows.num_rows:
                self._pool.submit(self._run, each)
            else:
                ready += each.release()

    def _run(self, request: _Request) -> None:
        """In a thread of the pool."""
        try:
            self._answers.put((request, self._send(request.rows)))
        except BaseException as error:
            # Whatever it is: without an answer the caller would wait for ever.
            self._answers.put((request, error))

    def _finish(self, request: _Request, answer: Answer | BaseException) -> None:
        if isinstance(answer, BaseException):
            raise answer
        rows = request.rows
        self._undecided -= rows.num_rows
        self._messages += rows.num_rows - len(answer)
        self._bytes += _size(rows) - sum(_size(rows.slice(row, 1)) for row in answer)
        for row, outcome in sorted(answer.items()):
            self._unaccepted.add(rows.slice(row, 1), request.groups.slice(row, 1), outcome)
        self._check_destination(request, answer)
        for follower in request.release():
            self._start(follower)

    def _check_destination(self, request: _Request, answer: Answer) -> None:
        """Raise if requests of several keys in a row were to be tried again, and none accepted: it
        is the destination that fails, not a message."""
        failed = [each for each in answer.values() if each.verdict is not Verdict.REFUSED]
        self._failing = self._failing | request.keys() if failed else set()
        if len(self._failing) >= _FAILING_KEYS:
            raise SinkUnreachableError(f"no message is accepted: {failed[0].reason}")


class _Order:
    """The last request of each group, for which the next one waits."""

    def __init__(self) -> None:
        self._of_key: dict[int, _Request] = {}
        self._of_scope: defaultdict[int, list[_Request]] = defaultdict(list)
        self._of_whole_scope: dict[int, _Request] = {}
        self._added = 0

    def add(self, request: _Request) -> None:
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


def cut(batch: pa.RecordBatch, limits: Limits) -> Iterator[tuple[pa.RecordBatch, Groups]]:
    """The requests of a batch, each with messages of one destination."""
    if not batch.num_rows:
        return
    groups = groups_of(batch)
    sizes = np.cumsum(pc.binary_length(batch.column("payload")).to_numpy(), dtype=np.int64)
    at = 0
    for end in _ends_of_runs(batch.column("destination")):
        while at < end:
            sent = int(sizes[at - 1]) if at else 0
            fits = int(np.searchsorted(sizes, sent + limits.bytes, side="right"))
            count = min(end, at + limits.rows, max(fits, at + 1)) - at
            yield batch.slice(at, count), groups.slice(at, count)
            at += count


def _ends_of_runs(destinations: pa.BinaryArray) -> list[int]:
    """Where another destination follows, and the end."""
    codes: NDArray[np.int32] = destinations.dictionary_encode().indices.to_numpy()
    return [*(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]


def _size(rows: pa.RecordBatch) -> int:
    return int(pc.sum(pc.binary_length(rows.column("payload"))).as_py() or 0)

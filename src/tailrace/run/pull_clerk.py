"""Serves the consumers of one pipeline with a sink `pull`: a thread that owns the store.

What requests ask for waits in an inbox. The clerk takes all of it, carries it out in one
transaction, and answers after the commit: an acknowledgement that is answered is durable, and
thousands of requests share a few syncs of the disk. Requests that wait for messages are served in
turn, when the sink has stored some (`tailrace.sinks.pull.wake`) or when a delivery has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.errors import SinkUnreachableError
from tailrace.sinks.pull.queue import Delivery, Queue, Rules
from tailrace.sinks.pull.wake import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tailrace.sinks.pull.queue import DeliveryId

T = TypeVar("T")

_TURN_S = 0.5
"""How long a turn waits at most, so that the clerk notices a stop."""
_TOKEN_BITS = 63
_COMPACT_AT = 64


@dataclass(slots=True, eq=False)
class _Call:
    """Something to do with the store."""

    work: Callable[[Queue, int], Any]
    patient: bool = False
    """Whether it waits until the result is not empty."""
    future: Future[Any] = field(default_factory=Future)


class Clerk:
    """The store of a pipeline, for requests of an event loop. `run` is the work of its thread."""

    def __init__(
        self,
        path: Path,
        rules: Rules,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path = path
        self._rules = rules
        self._now_ms = now_ms
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._waiting: deque[_Call] = deque()
        self._compact_at = _COMPACT_AT

    async def receive(self, limit: int, *, visibility_ms: int, wait_s: float) -> list[Delivery]:
        """Messages for a consumer; waits for some. A cancelled call gives back what it got."""

        def work(store: Queue, now_ms: int) -> list[Delivery]:
            token = secrets.randbits(_TOKEN_BITS)
            return store.receive(limit, token=token, now_ms=now_ms, visibility_ms=visibility_ms)

        call = _Call(work, patient=wait_s > 0)
        self._inbox.put(call)
        wrapped = asyncio.wrap_future(call.future)
        try:
            if call.patient:
                await asyncio.wait([wrapped], timeout=wait_s)
                if not wrapped.done() and call.future.cancel():
                    return []
            received: list[Delivery] = await wrapped
            return received
        except asyncio.CancelledError:
            if not call.future.cancel():
                call.future.add_done_callback(self._take_back)
            raise

    def _take_back(self, done: Future[list[Delivery]]) -> None:
        with contextlib.suppress(Exception):
            ids = [each.delivery for each in done.result()]
            if ids:
                self._inbox.put(_Call(lambda store, _: store.take_back(ids)))

    async def acknowledge(self, ids: Sequence[DeliveryId]) -> set[DeliveryId]:
        """See `Queue.acknowledge`. Durable when it returns."""
        return await self.call(lambda store, _: store.acknowledge(ids))

    async def reject(self, ids: Sequence[DeliveryId], *, delay_ms: int) -> set[DeliveryId]:
        """See `Queue.reject`."""
        return await self.call(
            lambda store, now_ms: store.reject(ids, now_ms=now_ms, delay_ms=delay_ms)
        )

    async def take_back(self, ids: Sequence[DeliveryId]) -> set[DeliveryId]:
        """See `Queue.take_back`."""
        return await self.call(lambda store, _: store.take_back(ids))

    async def extend(self, ids: Sequence[DeliveryId], *, visibility_ms: int) -> set[DeliveryId]:
        """See `Queue.extend`."""
        return await self.call(
            lambda store, now_ms: store.extend(ids, now_ms=now_ms, visibility_ms=visibility_ms)
        )

    async def call(self, work: Callable[[Queue, int], T]) -> T:
        """Do something with the store, in the next transaction."""
        call = _Call(work)
        self._inbox.put(call)
        result: T = await asyncio.wrap_future(call.future)
        return result

    def run(self, stop: threading.Event) -> None:
        """Serve until the event is set. After an error all requests fail, and `run` may be called
        again."""
        try:
            with Queue(self._path, self._rules) as store, self._watching(stop):
                while not stop.is_set():
                    self._turn(store)
        finally:
            self._fail_all()

    @contextlib.contextmanager
    def _watching(self, stop: threading.Event) -> Any:
        """A thread that notices new messages."""
        ended = threading.Event()
        bell = watch(self._path.parent)

        def work() -> None:
            while not (ended.is_set() or stop.is_set()):
                if bell.wait(_TURN_S) and self._waiting:
                    self._inbox.put(None)

        thread = threading.Thread(target=work, name="pull bell", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _turn(self, store: Queue) -> None:
        found = self._next(self._pause_s(store))
        self._waiting.extend(call for call in found if call is not None and call.patient)
        calls = [call for call in found if call is not None and not call.patient and _begin(call)]
        if not calls and not (self._waiting and (found or self._due(store))):
            return
        answers: list[tuple[_Call, Any]] = []
        try:
            with store.transaction():
                now_ms = self._now_ms()
                store.expire(now_ms=now_ms)
                answers += [(call, call.work(store, now_ms)) for call in calls]
                answers += self._serve_waiting(store, now_ms)
        except BaseException as error:
            for call in {*calls, *(call for call, _ in answers)}:
                call.future.set_exception(error)
            raise
        for call, answer in answers:
            call.future.set_result(answer)

    def _next(self, pause_s: float) -> list[_Call | None]:
        """What has come, None for new messages; waits for it."""
        found: list[_Call | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._inbox.get(timeout=pause_s))
            while True:
                found.append(self._inbox.get_nowait())
        return found

    def _serve_waiting(self, store: Queue, now_ms: int) -> list[tuple[_Call, Any]]:
        """Serve those that wait for messages, in turn, as long as there are messages."""
        served = []
        self._compact()
        while self._waiting:
            call = self._waiting[0]
            if call.future.cancelled():
                self._waiting.popleft()
                continue
            found = call.work(store, now_ms)
            if not found:
                break
            self._waiting.popleft()
            if _begin(call):
                served.append((call, found))
            else:
                store.take_back([each.delivery for each in found])
        return served

    def _compact(self) -> None:
        """Forget requests that no longer wait, when they may be half of all."""
        if len(self._waiting) > self._compact_at:
            self._waiting = deque(each for each in self._waiting if not each.future.cancelled())
            self._compact_at = max(_COMPACT_AT, 2 * len(self._waiting))

    def _pause_s(self, store: Queue) -> float:
        """How long to wait for requests: until a delivery ends that a waiting one could get."""
        if not self._waiting:
            return _TURN_S
        expiry_ms = store.next_expiry_ms()
        if expiry_ms is None:
            return _TURN_S
        return min(max((expiry_ms - self._now_ms()) / 1000, 0.001), _TURN_S)

    def _due(self, store: Queue) -> bool:
        expiry_ms = store.next_expiry_ms()
        return expiry_ms is not None and expiry_ms <= self._now_ms()

    def _fail_all(self) -> None:
        """Fail what waits: nothing serves it now."""
        for call in (*self._waiting, *self._next(0)):
            if call is not None and _begin(call):
                call.future.set_exception(
                    SinkUnreachableError("the store is closed", hint="Send the request again.")
                )
        self._waiting.clear()


def _begin(call: _Call) -> bool:
    """Whether the request still waits. From here on it cannot be cancelled."""
    return call.future.set_running_or_notify_cancel()

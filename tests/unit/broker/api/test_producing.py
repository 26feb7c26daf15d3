"""Produce: memory is charged before a batch is parsed, and requests are queued in order."""

from __future__ import annotations

import asyncio
import threading
import types
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tailrace.broker.api import producing
from tailrace.broker.limits import Limits, MemoryBudget, Reservation
from tailrace.broker.tables import records
from tailrace.broker.tables.catalog import Topic
from tailrace.broker.tables.pending import WriteResult
from tests.integration.broker.raw import batch

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest

    from tailrace.broker.tables.records import Batch

LARGE, SMALL = 5000, 3
TIMEOUT = timedelta(seconds=7)


class Writer:
    """Remembers what is queued, and answers at once."""

    def __init__(self) -> None:
        self.queued: list[int] = []
        self.timeouts_s: list[float] = []

    def put(
        self,
        _topic: Topic,
        _partition: int,
        batch: Batch,
        _data: bytes,
        *,
        memory: Reservation,
        timeout_s: float,
    ) -> asyncio.Future[WriteResult]:
        assert memory.size >= batch.memory_bytes
        self.queued.append(len(batch.records))
        self.timeouts_s.append(timeout_s)
        done: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        done.set_result(WriteResult(offset=0, fresh=True))
        return done


class Bench:
    """A connection of one producer."""

    def __init__(self, memory_bytes: int = 256 << 20) -> None:
        self.writer, self.memory = Writer(), MemoryBudget(memory_bytes)
        topic = Topic(id=1, name="t", uuid=uuid.UUID(int=1), partitions=1, unlogged=False)
        self._broker = types.SimpleNamespace(
            settings=types.SimpleNamespace(max_message_bytes=8 << 20),
            limits=Limits(),
            catalog=types.SimpleNamespace(topics={"t": topic}),
            writer=self.writer,
        )
        self._producing = asyncio.Lock()

    async def produce(self, data: bytes) -> str:
        """The name of the error of the only batch, or `none`."""
        part = types.SimpleNamespace(index=0, records=data)
        call: Any = types.SimpleNamespace(
            broker=self._broker,
            request=types.SimpleNamespace(
                acks=-1,
                transactional_id=None,
                timeout=TIMEOUT,
                topic_data=(types.SimpleNamespace(name="t", partition_data=(part,)),),
            ),
            memory=Reservation(self.memory),
            producing=self._producing,
            may_topic=lambda _operation, _name: True,
        )
        try:
            answer = await producing.produce(call)
        finally:
            call.memory.release()
        assert answer is not None
        name: str = answer["responses"][0]["partition_responses"][0]["error_code"].name
        return name


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_large_batches_are_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, threads = records.parse, []

    def parsed(data: bytes, *, max_bytes: int) -> Batch:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(data, max_bytes=max_bytes)

    monkeypatch.setattr(records, "parse", parsed)

    async def work() -> None:
        bench = Bench()
        assert await bench.produce(batch(*[b""] * LARGE)) == "none"
        assert await bench.produce(batch(*[b""] * SMALL)) == "none"
        assert threads == [False, True]
        assert bench.writer.timeouts_s == [TIMEOUT.total_seconds()] * 2

    run(work())


def test_a_small_batch_does_not_overtake_a_large_one() -> None:
    async def work() -> None:
        bench = Bench()
        sent = [batch(*[b""] * count) for count in (LARGE, SMALL, LARGE + 1, SMALL + 1)]
        await asyncio.gather(*map(bench.produce, sent))
        assert bench.writer.queued == [LARGE, SMALL, LARGE + 1, SMALL + 1]

    run(work())


def test_memory_is_charged_before_a_batch_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a header that claims 5,000 records WHEN the batch is parsed THEN their memory is
    reserved already."""
    used: list[int] = []
    bench_memory: list[MemoryBudget] = []
    parse = records.parse

    def parsed(data: bytes, *, max_bytes: int) -> Batch:
        used.append(bench_memory[0].used)
        return parse(data, max_bytes=max_bytes)

    monkeypatch.setattr(records, "parse", parsed)

    async def work() -> None:
        bench = Bench()
        bench_memory.append(bench.memory)
        assert await bench.produce(batch(*[b""] * LARGE)) == "none"
        assert used[0] >= LARGE * records.RECORD_BYTES
        assert bench.memory.used == 0

    run(work())


def test_a_batch_waits_for_memory_before_it_is_parsed() -> None:
    async def work() -> None:
        bench = Bench(memory_bytes=1 << 20)
        other = await bench.memory.reserve(1 << 20)
        more = Reservation(bench.memory)
        await more.grow(1)  # The one that may exceed the budget.
        waiting = asyncio.create_task(bench.produce(batch(b"v")))
        while not bench.memory.waiting:
            await asyncio.sleep(0)
        assert bench.writer.queued == []
        more.release()
        assert await waiting == "none"
        other.release()
        assert bench.memory.used == 0

    run(work())


def test_too_many_records_are_refused_by_the_header() -> None:
    async def work() -> None:
        bench = Bench()
        data = batch(*[b""] * (records.MAX_RECORDS + 1))
        assert await bench.produce(data) == "message_too_large"
        assert await bench.produce(b"short") == "corrupt_message"
        assert bench.memory.used == 0
        assert bench.writer.queued == []

    run(work())

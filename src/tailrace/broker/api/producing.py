"""Produce, and InitProducerId for idempotent producers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.api.requests import field_or
from tailrace.broker.auth.access import Operation, Resource
from tailrace.broker.tables import records
from tailrace.broker.tables.pending import WriteResult

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import InitProducerId, Produce, ProducePartition
    from tailrace.broker.tables.records import Batch

_ACKS = {-1, 0, 1}
_MAX_EPOCH = 0x7FFE


async def produce(call: Call[Produce]) -> Answer:
    """Write or refuse each batch by itself; the response is sent when all are done."""
    request = call.request
    # Requests wait for the lock in the order in which they arrived, and keep this order.
    async with call.producing:
        queued = [
            (topic, [await _enqueue(call, topic.name, part) for part in topic.partition_data])
            for topic in request.topic_data
        ]
    results = [
        {
            "name": topic.name,
            "partition_responses": [
                _response(part.index, await result)
                for part, result in zip(topic.partition_data, pending, strict=True)
            ],
        }
        for topic, pending in queued
    ]
    return {"responses": results} if request.acks else None


async def _enqueue(
    call: Call[Produce], name: str, part: ProducePartition
) -> asyncio.Future[WriteResult]:
    """Parse a batch and queue it for the writer. Waits for memory, and for a large batch."""
    if not call.may_topic(Operation.WRITE, name):
        return _refused("topic_authorization_failed")
    broker = call.broker
    topic = broker.catalog.topics.get(name)
    if topic is None or not 0 <= part.index < topic.partitions:
        return _refused("unknown_topic_or_partition")
    append_time = topic.config.get("message.timestamp.type") == "LogAppendTime"
    try:
        sent = _checked(call, part.records, broker.settings.max_message_bytes)
        batch = await _parse(call, sent, append_time=append_time)
    except records.BadBatchError as error:
        return _refused(error.kafka_error, str(error))
    # With LogAppendTime the bytes as sent have other timestamps: consumers read the table.
    data = b"" if append_time else sent
    timeout_s = call.request.timeout.total_seconds()
    return broker.writer.put(
        topic, part.index, batch, data, memory=call.memory, timeout_s=timeout_s
    )


async def _parse(call: Call[Produce], data: bytes, *, append_time: bool) -> Batch:
    """The records of a batch. The memory for all that its header claims is reserved first."""
    max_bytes = call.broker.settings.max_message_bytes
    cost = records.cost(data, max_bytes=max_bytes)
    before = call.memory.size
    await call.memory.grow(cost.memory_bytes)
    timestamp = int(time.time() * 1000) if append_time else None
    used = 0
    try:
        # Most batches are small, and parsed at once: a thread costs more than parsing them.
        if cost.large:
            batch = await asyncio.to_thread(_parse_batch, data, max_bytes, timestamp)
        else:
            batch = _parse_batch(data, max_bytes, timestamp)
        used = batch.memory_bytes
    finally:
        call.memory.resize(before + used)
    return batch


def _parse_batch(data: bytes, max_bytes: int, timestamp: int | None) -> Batch:
    batch = records.parse(data, max_bytes=max_bytes)
    if timestamp is not None:
        stamped = tuple((timestamp, *record[1:]) for record in batch.records)
        batch = replace(batch, records=stamped)
    return batch


def _checked(call: Call[Produce], data: bytes | None, max_bytes: int) -> bytes:
    """The bytes of a batch, if they are worth parsing."""
    if call.request.acks not in _ACKS:
        raise records.BadBatchError("", kafka_error="invalid_required_acks")
    if call.request.transactional_id is not None:
        raise records.BadBatchError(
            "transactions are not supported", kafka_error="transactional_id_authorization_failed"
        )
    if not data:
        raise records.BadBatchError("", kafka_error="invalid_record")
    if len(data) > max_bytes:
        raise records.BadBatchError("", kafka_error="message_too_large")
    if call.memory.size > 2 * call.broker.limits.request_bytes:
        raise records.BadBatchError(
            "the request is too large after decompression", kafka_error="message_too_large"
        )
    return bytes(data)


def _refused(error: str, message: str = "") -> asyncio.Future[WriteResult]:
    result: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    result.set_result(WriteResult(error=error, message=message))
    return result


def _response(index: int, result: WriteResult) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": ErrorCode[result.error or "none"],
        "base_offset": result.offset,
        "error_message": result.message or None,
        "record_errors": (),
    }


async def init_producer(call: Call[InitProducerId]) -> Answer:
    """A new producer id, or the next epoch of the given one."""
    request = call.request
    refused = {"producer_id": -1, "producer_epoch": -1}
    if request.transactional_id is not None:
        return refused | {"error_code": ErrorCode.transactional_id_authorization_failed}
    if not _may_write(call):
        return refused | {"error_code": ErrorCode.cluster_authorization_failed}
    producer_id = field_or(lambda: request.producer_id, -1)
    epoch = field_or(lambda: request.producer_epoch, -1)
    if producer_id >= 0 and 0 <= epoch < _MAX_EPOCH:
        return {"producer_id": producer_id, "producer_epoch": epoch + 1}
    async with call.broker.pool.connection() as connection:
        cursor = await connection.execute("SELECT nextval('kafka.producer_ids')")
        (new_id,) = await cursor.fetchone() or (-1,)
    return {"producer_id": new_id, "producer_epoch": 0}


def _may_write(call: Call[InitProducerId]) -> bool:
    """As in Kafka since 2.8: write on any topic implies idempotent writes."""
    return (
        call.user is None
        or call.may_cluster(Operation.IDEMPOTENT_WRITE)
        or call.user.may_any(Operation.WRITE, Resource.TOPIC)
    )

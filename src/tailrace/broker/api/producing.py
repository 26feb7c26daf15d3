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
from tailrace.broker.tables.writer import WriteResult

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import InitProducerId, Produce, ProducePartition

_ACKS = {-1, 0, 1}
_RECORD_OVERHEAD = 200
"""Bytes of memory per parsed record, beside its key and value."""
_MAX_EPOCH = 0x7FFE


async def produce(call: Call[Produce]) -> Answer:
    """Write or refuse each batch by itself; the response is sent when all are done."""
    request = call.request
    # All batches are queued before the first await, so requests keep their order.
    queued = [
        (topic, [_enqueue(call, topic.name, part) for part in topic.partition_data])
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


def _enqueue(call: Call[Produce], name: str, part: ProducePartition) -> asyncio.Future[WriteResult]:
    """Parse a batch and queue it for the writer. Does not wait."""
    if not call.may_topic(Operation.WRITE, name):
        return _refused("topic_authorization_failed")
    broker, max_bytes = call.broker, call.broker.settings.max_message_bytes
    topic = broker.catalog.topics.get(name)
    if topic is None or not 0 <= part.index < topic.partitions:
        return _refused("unknown_topic_or_partition")
    try:
        sent = _checked(call, part.records, max_bytes)
        batch = records.parse(sent, max_bytes=max_bytes)
    except records.BadBatchError as error:
        return _refused(error.kafka_error, str(error))
    call.memory.add(batch.size + _RECORD_OVERHEAD * len(batch.records))
    if topic.config.get("message.timestamp.type") == "LogAppendTime":
        now = int(time.time() * 1000)
        batch = replace(batch, records=tuple((now, *record[1:]) for record in batch.records))
        # The bytes as sent have the producer's timestamps: consumers get them from the table.
        sent = b""
    return broker.writer.put(topic, part.index, batch, sent)


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

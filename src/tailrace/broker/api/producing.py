"""Produce, and ids for idempotent producers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.auth.access import Operation, Resource
from tailrace.broker.tables import records
from tailrace.broker.tables.writer import Written

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call

_ACKS = {-1, 0, 1}
_RECORD_BYTES = 200
"""What a record takes in memory beside its key and value."""


async def produce(call: Call) -> Answer:
    """Every batch is written or refused by itself; the answer comes when all are."""
    request = call.request
    answers = []
    for topic in request.topic_data:
        waiting = [_begin(call, topic.name, each) for each in topic.partition_data]
        answers.append((topic, waiting))
    results = [
        {
            "name": topic.name,
            "partition_responses": [
                _result(each.index, await written)
                for each, written in zip(topic.partition_data, waiting, strict=True)
            ],
        }
        for topic, waiting in answers
    ]
    return {"responses": results} if request.acks else None


def _begin(call: Call, name: str, data: Any) -> asyncio.Future[Written]:
    """Batches are put in line before anything is waited for: the order of requests is kept."""
    if not call.may_topic(Operation.WRITE, name):
        return _refused("topic_authorization_failed")
    broker, most = call.broker, call.broker.settings.most_message_bytes
    topic = broker.catalog.topics.get(name)
    if topic is None or not 0 <= data.index < topic.partitions:
        return _refused("unknown_topic_or_partition")
    try:
        _check(call, data.records, most)
        sent = bytes(data.records)
        batch = records.parse(sent, most_bytes=most)
    except records.BadBatchError as error:
        return _refused(error.kind, str(error))
    call.share.grow(batch.size + _RECORD_BYTES * len(batch.records))
    if topic.config.get("message.timestamp.type") == "LogAppendTime":
        now = int(time.time() * 1000)
        batch = replace(batch, records=tuple((now, *record[1:]) for record in batch.records))
        sent = b""
    return broker.writer.put(topic, data.index, batch, sent)


def _check(call: Call, data: bytes | None, most: int) -> None:
    """An error for what is not even looked into."""
    if call.request.acks not in _ACKS:
        raise records.BadBatchError("", kind="invalid_required_acks")
    if getattr(call.request, "transactional_id", None) is not None:
        raise records.BadBatchError(
            "transactions are not served", kind="transactional_id_authorization_failed"
        )
    if not data:
        raise records.BadBatchError("", kind="invalid_record")
    if len(data) > most:
        raise records.BadBatchError("", kind="message_too_large")
    if call.share.size > 2 * call.broker.settings.limits.request_bytes:
        raise records.BadBatchError(
            "too much in one request, once it is unpacked", kind="message_too_large"
        )


def _refused(error: str, message: str = "") -> asyncio.Future[Written]:
    answer: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
    answer.set_result(Written(error=error, message=message))
    return answer


def _result(index: int, written: Written) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": ErrorCode[written.error or "none"],
        "base_offset": written.offset,
        "error_message": written.message or None,
        "record_errors": (),
    }


async def init_producer(call: Call) -> Answer:
    """A new id, or the next epoch of the one that is told."""
    request = call.request
    nothing = {"producer_id": -1, "producer_epoch": -1}
    if request.transactional_id is not None:
        return nothing | {"error_code": ErrorCode.transactional_id_authorization_failed}
    if not _may_write(call):
        return nothing | {"error_code": ErrorCode.cluster_authorization_failed}
    known, epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if known >= 0 and 0 <= epoch < 0x7FFE:
        return {"producer_id": known, "producer_epoch": epoch + 1}
    async with call.broker.pool.connection() as connection:
        cursor = await connection.execute("SELECT nextval('kafka.producer_ids')")
        (made,) = await cursor.fetchone() or (-1,)
    return {"producer_id": made, "producer_epoch": 0}


def _may_write(call: Call) -> bool:
    """Who may write to some topic may do so once for each record."""
    return (
        call.user is None
        or call.may_cluster(Operation.IDEMPOTENT_WRITE)
        or call.user.may_any(Operation.WRITE, Resource.TOPIC)
    )

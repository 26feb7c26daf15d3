"""Fetch and ListOffsets."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.auth.access import Operation

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.reader import Extent
    from tailrace.broker.tables.writer import Place

_EARLIEST, _LATEST, _NEWEST = -2, -1, -3
_AT = """
SELECT "offset", (date_part('epoch', "timestamp") * 1000)::bigint FROM {table}
WHERE topic_id = %s AND partition_id = %s AND "timestamp" >= to_timestamp(%s / 1000.0)
ORDER BY "offset" LIMIT 1
"""
_LAST = """
SELECT "offset", (date_part('epoch', "timestamp") * 1000)::bigint FROM {table}
WHERE topic_id = %s AND partition_id = %s ORDER BY "timestamp" DESC, "offset" LIMIT 1
"""


async def fetch(call: Call) -> Answer:
    """What there is; if that is less than the client wants, it waits for more, asleep."""
    request, broker = call.request, call.broker
    deadline = time.monotonic() + min(request.max_wait.total_seconds(), 300)
    most = max(0, min(request.max_bytes, broker.settings.limits.fetch_bytes))
    denied = {t.topic for t in request.topics if not call.may_topic(Operation.READ, t.topic)}
    wanted = [
        (
            topic.topic,
            None if topic.topic in denied else broker.catalog.topics.get(topic.topic),
            each,
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    places = {(topic.id, each.partition) for _, topic, each in wanted if topic is not None}
    with broker.signals.watch(places) as arrived:
        while True:
            arrived.clear()
            extents = await broker.reader.extents(places) if places else {}
            found = await _found(call, wanted, extents, most)
            size = sum(len(part["records"]) for _, part in found)
            failed = any(part["error_code"] is not ErrorCode.none for _, part in found)
            left = deadline - time.monotonic()
            if failed or left <= 0 or size >= min(request.min_bytes, most):
                break
            # What is too little is read again: meanwhile it would take memory from others.
            found = [] if size else found
            call.share.release()
            try:
                await asyncio.wait_for(arrived.wait(), left)
            except TimeoutError:
                if not size:
                    break
    broker.tally.fetched_bytes += size
    answers: dict[str, list[dict[str, Any]]] = {}
    for name, part in found:
        if name in denied:
            part["error_code"] = ErrorCode.topic_authorization_failed
        answers.setdefault(name, []).append(part)
    return {
        "responses": [{"topic": name, "partitions": parts} for name, parts in answers.items()],
        "session_id": 0,
    }


async def _found(
    call: Call, wanted: list[tuple[str, Topic | None, Any]], extents: dict[Place, Extent], most: int
) -> list[tuple[str, dict[str, Any]]]:
    """An answer for each partition; the first that has records may fill the response alone."""
    reader, left = call.broker.reader, most
    found, behind = [], []
    for name, topic, each in wanted:
        extent = extents.get((topic.id, each.partition)) if topic is not None else None
        part = _part(each, extent)
        found.append((name, part))
        if topic is not None and extent is not None and _behind(each, extent):
            behind.append((topic, each, part))
    if behind:
        # Memory is for answers that can be sent: one behind others might keep it for ever.
        await call.turn.wait()
        asked = sum(max(0, each.partition_max_bytes) for _, each, _ in behind)
        await call.share.become(min(most, asked))
    for topic, each, part in behind:
        if left > 0:
            size = min(left, each.partition_max_bytes)
            part["records"] = await reader.read(topic, each.partition, each.fetch_offset, size)
            left -= len(part["records"])
    call.share.fit(most - left)
    return found


def _behind(each: Any, extent: Extent) -> bool:
    found: bool = extent.start <= each.fetch_offset < extent.end
    return found


def _part(each: Any, extent: Extent | None) -> dict[str, Any]:
    part = {
        "partition_index": each.partition,
        "error_code": ErrorCode.none,
        "high_watermark": extent.end if extent is not None else -1,
        "last_stable_offset": extent.end if extent is not None else -1,
        "log_start_offset": extent.start if extent is not None else -1,
        "aborted_transactions": None,
        "records": b"",
    }
    if extent is None:
        part["error_code"] = ErrorCode.unknown_topic_or_partition
    elif not extent.start <= each.fetch_offset <= extent.end:
        part["error_code"] = ErrorCode.offset_out_of_range
    return part


async def list_offsets(call: Call) -> Answer:
    """The first offset, the next one, or the first at or after a time."""
    broker = call.broker
    answers = []
    for topic in call.request.topics:
        if call.may_topic(Operation.DESCRIBE, topic.name):
            known = await broker.topic(topic.name)
            parts = [await _offset(call, known, each) for each in topic.partitions]
        else:
            error = ErrorCode.topic_authorization_failed
            parts = [
                {"partition_index": each.partition_index, "error_code": error}
                for each in topic.partitions
            ]
        answers.append({"name": topic.name, "partitions": parts})
    return {"topics": answers}


async def _offset(call: Call, topic: Topic | None, each: Any) -> dict[str, Any]:
    part = {"partition_index": each.partition_index, "error_code": ErrorCode.none}
    reader = call.broker.reader
    extent = await reader.extent(topic, each.partition_index) if topic is not None else None
    if topic is None or extent is None:
        return part | {"error_code": ErrorCode.unknown_topic_or_partition}
    if each.timestamp == _EARLIEST:
        return part | {"offset": extent.start}
    if each.timestamp == _LATEST:
        return part | {"offset": extent.end}
    if each.timestamp < _NEWEST:
        return part | {"error_code": ErrorCode.invalid_request}
    place = (topic.id, each.partition_index)
    query = _LAST if each.timestamp == _NEWEST else _AT
    values = (*place, each.timestamp) if each.timestamp != _NEWEST else place
    async with call.broker.pool.connection() as connection:
        cursor = await connection.execute(query.format(table=topic.table), values)
        row = await cursor.fetchone()
    return part if row is None else part | {"offset": row[0], "timestamp": row[1]}

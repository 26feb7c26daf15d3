"""Fetch and ListOffsets: records and offsets for consumers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.auth.access import Operation

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import (
        Fetch,
        FetchPartition,
        ListOffsets,
        ListOffsetsPartition,
    )
    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pending import PartitionKey
    from tailrace.broker.tables.reader import Extent

_MAX_WAIT_S = 300
_SMALL_RESPONSE = 64 << 10
"""The kernel takes a response of this size, whether the client reads it or not."""
# Kafka's special timestamps of ListOffsets.
_EARLIEST, _LATEST, _MAX_TIMESTAMP = -2, -1, -3
_AT_OR_AFTER = """
SELECT "offset", (date_part('epoch', "timestamp") * 1000)::bigint FROM {table}
WHERE topic_id = %s AND partition_id = %s AND "timestamp" >= to_timestamp(%s / 1000.0)
ORDER BY "offset" LIMIT 1
"""
_WITH_MAX_TIMESTAMP = """
SELECT "offset", (date_part('epoch', "timestamp") * 1000)::bigint FROM {table}
WHERE topic_id = %s AND partition_id = %s ORDER BY "timestamp" DESC, "offset" LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One partition of a Fetch request."""

    name: str
    topic: Topic | None
    """None if the topic is unknown, or the user may not read it."""
    missing: ErrorCode
    """The error if there is no such partition."""
    request: FetchPartition

    @property
    def key(self) -> PartitionKey | None:
        return None if self.topic is None else (self.topic.id, self.request.partition)

    def response(self, extent: Extent | None) -> dict[str, Any]:
        """The response without records."""
        error = ErrorCode.none
        if extent is None:
            error = self.missing
        elif not extent.start <= self.request.fetch_offset <= extent.end:
            error = ErrorCode.offset_out_of_range
        return {
            "partition_index": self.request.partition,
            "error_code": error,
            "high_watermark": extent.end if extent is not None else -1,
            "last_stable_offset": extent.end if extent is not None else -1,
            "log_start_offset": extent.start if extent is not None else -1,
            "aborted_transactions": None,
            "records": b"",
        }


Part = tuple[_Wanted, dict[str, Any]]
"""A partition of the request and its response."""


async def fetch(call: Call[Fetch]) -> Answer:
    """Records from the given offsets on. Waits up to `max_wait` for `min_bytes` of them."""
    max_bytes = max(0, min(call.request.max_bytes, call.broker.limits.fetch_bytes))
    parts = await _read_min_bytes(call, _wanted(call), max_bytes)
    call.broker.tally.fetched_bytes += _size(parts)
    topics: dict[str, list[dict[str, Any]]] = {}
    for wanted, response in parts:
        topics.setdefault(wanted.name, []).append(response)
    return {
        "responses": [{"topic": name, "partitions": each} for name, each in topics.items()],
        "session_id": 0,
    }


def _wanted(call: Call[Fetch]) -> list[_Wanted]:
    wanted = []
    for topic in call.request.topics:
        allowed = call.may_topic(Operation.READ, topic.topic)
        known = call.broker.catalog.topics.get(topic.topic) if allowed else None
        missing = (
            ErrorCode.unknown_topic_or_partition
            if allowed
            else ErrorCode.topic_authorization_failed
        )
        wanted += [_Wanted(topic.topic, known, missing, part) for part in topic.partitions]
    return wanted


async def _read_min_bytes(call: Call[Fetch], wanted: list[_Wanted], max_bytes: int) -> list[Part]:
    """Read until there are `min_bytes`, a partition has an error, or `max_wait` has passed.

    While it waits it holds neither memory nor records: what was too little is read again, because
    meanwhile other clients can use the memory. Producers and NOTIFY wake it.
    """
    broker = call.broker
    min_bytes = min(call.request.min_bytes, max_bytes)
    deadline = time.monotonic() + min(call.request.max_wait.total_seconds(), _MAX_WAIT_S)
    keys = {one.key for one in wanted if one.key is not None}
    with broker.signals.watch(keys) as arrived:
        while True:
            arrived.clear()
            extents = await broker.reader.extents(keys) if keys else {}
            parts = await _read(call, wanted, extents, max_bytes)
            size = _size(parts)
            failed = any(part["error_code"] is not ErrorCode.none for _, part in parts)
            left_s = deadline - time.monotonic()
            if failed or left_s <= 0 or size >= min_bytes:
                return parts
            if size:
                parts = []
            call.memory.release()
            try:
                await asyncio.wait_for(arrived.wait(), left_s)
            except TimeoutError:
                if not size:
                    return parts


async def _read(
    call: Call[Fetch], wanted: list[_Wanted], extents: dict[PartitionKey, Extent], max_bytes: int
) -> list[Part]:
    """A response per partition. The first with records may use all of `max_bytes`."""
    parts: list[Part] = []
    readable: list[tuple[Topic, FetchPartition, dict[str, Any]]] = []
    for one in wanted:
        extent = extents.get(one.key) if one.key is not None else None
        response = one.response(extent)
        parts.append((one, response))
        if one.topic is not None and extent is not None and _has_records(one.request, extent):
            readable.append((one.topic, one.request, response))
    if readable:
        # Memory is reserved only for a response that can be sent now. A response that waits for an
        # earlier one of its connection could hold the memory that the earlier one needs.
        await call.earlier_answered.wait()
        requested = sum(max(0, part.partition_max_bytes) for _, part, _ in readable)
        max_bytes = await _reserve(call, min(max_bytes, requested))
    size = 0
    for topic, part, response in readable:
        wanted_bytes = min(max_bytes - size, max(0, part.partition_max_bytes))
        # As in Kafka: only the first records of a response may exceed the limits.
        if wanted_bytes or not size:
            response["records"] = await _records(call, topic, part, wanted_bytes, first=not size)
            size += len(response["records"])
    call.memory.resize(size)
    return parts


async def _reserve(call: Call[Fetch], size: int) -> int:
    """Reserve the memory of a response; its size.

    While the memory is used up, for example by clients that do not read their responses, a client
    gets a small response instead of having to wait.
    """
    broker, small = call.broker, call.broker.small_response_memory
    if (
        size > _SMALL_RESPONSE
        and broker.response_memory.busy(size)
        and not small.busy(_SMALL_RESPONSE)
    ):
        call.memory.move(small)
        size = _SMALL_RESPONSE
    else:
        call.memory.move(broker.response_memory)
    await call.memory.replace(size)
    return size


async def _records(
    call: Call[Fetch], topic: Topic, part: FetchPartition, max_bytes: int, *, first: bool
) -> bytes:
    """The records of one partition. Their memory is reserved, also if the first is too large."""
    read, where = call.broker.reader.read, (topic, part.partition, part.fetch_offset)
    found = await read(*where, max_bytes, at_least_one=first)
    if len(found) > call.memory.size:
        # It was read without its memory: drop it, wait for the memory, and read it again.
        size = len(found) + call.memory.size
        del found
        call.memory.move(call.broker.response_memory)
        await call.memory.replace(size)
        found = await read(*where, max_bytes, at_least_one=first)
    return found


def _has_records(part: FetchPartition, extent: Extent) -> bool:
    return extent.start <= part.fetch_offset < extent.end


def _size(parts: list[Part]) -> int:
    return sum(len(response["records"]) for _, response in parts)


async def list_offsets(call: Call[ListOffsets]) -> Answer:
    """The first offset, the next offset, or the first one at or after a timestamp."""
    broker, topics = call.broker, []
    await broker.know([topic.name for topic in call.request.topics])
    for topic in call.request.topics:
        if call.may_topic(Operation.DESCRIBE, topic.name):
            known = broker.catalog.topics.get(topic.name)
            keys = {(known.id, part.partition_index) for part in topic.partitions} if known else ()
            extents = await broker.reader.extents(keys) if keys else {}
            parts = [await _offset(call, known, part, extents) for part in topic.partitions]
        else:
            error = ErrorCode.topic_authorization_failed
            parts = [
                {"partition_index": part.partition_index, "error_code": error}
                for part in topic.partitions
            ]
        topics.append({"name": topic.name, "partitions": parts})
    return {"topics": topics}


async def _offset(
    call: Call[ListOffsets],
    topic: Topic | None,
    part: ListOffsetsPartition,
    extents: dict[PartitionKey, Extent],
) -> dict[str, Any]:
    response = {"partition_index": part.partition_index, "error_code": ErrorCode.none}
    extent = extents.get((topic.id, part.partition_index)) if topic is not None else None
    if topic is None or extent is None:
        return response | {"error_code": ErrorCode.unknown_topic_or_partition}
    if part.timestamp == _EARLIEST:
        return response | {"offset": extent.start}
    if part.timestamp == _LATEST:
        return response | {"offset": extent.end}
    if part.timestamp < _MAX_TIMESTAMP:
        return response | {"error_code": ErrorCode.invalid_request}
    query, values = _AT_OR_AFTER, [topic.id, part.partition_index, part.timestamp]
    if part.timestamp == _MAX_TIMESTAMP:
        query, values = _WITH_MAX_TIMESTAMP, values[:2]
    async with call.broker.pool.connection() as connection:
        cursor = await connection.execute(query.format(table=topic.table), values)
        row = await cursor.fetchone()
    return response if row is None else response | {"offset": row[0], "timestamp": row[1]}

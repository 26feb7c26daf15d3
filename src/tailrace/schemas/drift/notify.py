"""The notice of drift to the consumers of a bridge: a message, and an entry in a bucket.

The message is published first and reaches connected clients; the others read the bucket.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
import ormsgpack

from tailrace.encode.shapes.registry import SHAPES
from tailrace.jetstream.bucket import MAX_HISTORY, Bucket, BucketSettings
from tailrace.jetstream.client import connected
from tailrace.jetstream.names import table_key
from tailrace.jetstream.settings import JetStreamSettings

if TYPE_CHECKING:
    from tailrace.config import Pipeline
    from tailrace.schemas.drift.record import Policy, RecordedDrift

BUCKET = "schema_findings"
_SUBJECT = "schema_findings.{key}"


def notify(pipeline: Pipeline, drift: RecordedDrift, policy: Policy) -> None:
    """Notify the consumers of a pipeline, if it is a bridge. At least once."""
    if SHAPES.find(pipeline.shape).schema_documents and isinstance(
        pipeline.sink, JetStreamSettings
    ):
        fields = message(drift, policy)
        as_json = pipeline.format == "json"
        value = orjson.dumps(fields) if as_json else ormsgpack.packb(fields)
        asyncio.run(_publish(pipeline.sink, table_key(drift.namespace, drift.table), value))


def message(drift: RecordedDrift, policy: Policy) -> dict[str, Any]:
    """The content of the message."""
    return {
        "table": drift.table,
        "schema": f"{drift.namespace}.{drift.table}",
        "timestamp": int(datetime.fromisoformat(drift.found_at).timestamp()),
        "kind": drift.kind,
        "subject": drift.subject,
        "detail": drift.detail,
        "lsn": drift.lsn,
        "relation_id": drift.relation_id,
        "policy": policy,
    }


async def _publish(sink: JetStreamSettings, key: str, value: bytes) -> None:
    settings = BucketSettings(
        name=BUCKET,
        description="Changes of tables without row events: the latest ones per table.",
        history=MAX_HISTORY,
        replicas=sink.stream.replicas,
    )
    async with connected(sink) as client:
        await client.publish(_SUBJECT.format(key=key), value)
        await client.flush()
        bucket = await Bucket.open(client, settings)
        await bucket.put(key, value)

"""Telling consumers of a finding: a message, and a bucket for those who did not listen."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any

import nats.js.errors
import orjson
import ormsgpack
from nats.js.api import KeyValueConfig

from tailrace.errors import SinkRefusedError
from tailrace.jetstream.client import bucket_of, connected
from tailrace.jetstream.names import table_key
from tailrace.jetstream.settings import JetStreamSettings

if TYPE_CHECKING:
    from tailrace.config import Pipeline
    from tailrace.schemas.drift.record import Found, Policy

BUCKET = "schema_findings"
_HISTORY = 64
_SUBJECT = "schema_findings.{key}"


def tell(pipeline: Pipeline, found: Found, policy: Policy) -> None:
    """Tell the consumers of a pipeline, if they are those of a bridge; at least once."""
    if pipeline.shape == "bridge" and isinstance(pipeline.sink, JetStreamSettings):
        fields = message(found, policy)
        as_json = pipeline.format == "json"
        value = orjson.dumps(fields) if as_json else ormsgpack.packb(fields)
        asyncio.run(_tell(pipeline.sink, table_key(found.namespace, found.table), value))


def message(found: Found, policy: Policy) -> dict[str, Any]:
    """What consumers are told."""
    return {
        "table": found.table,
        "schema": f"{found.namespace}.{found.table}",
        "timestamp": int(datetime.fromisoformat(found.found_at).timestamp()),
        "kind": found.kind,
        "subject": found.subject,
        "detail": found.detail,
        "lsn": found.lsn,
        "relation_id": found.relation_id,
        "policy": policy,
    }


async def _tell(sink: JetStreamSettings, key: str, value: bytes) -> None:
    settings = KeyValueConfig(
        bucket=BUCKET,
        description="Changes of tables without row events: the latest ones of each.",
        history=_HISTORY,
        replicas=sink.stream.replicas,
    )
    async with connected(sink) as client:
        try:
            await client.publish(_SUBJECT.format(key=key), value)
            await client.flush()
            bucket = await bucket_of(client.jetstream(), settings)
            await bucket.put(key, value)
        except nats.js.errors.ServiceUnavailableError:
            raise
        except nats.js.errors.APIError as error:
            raise SinkRefusedError(f"JetStream says: {error.description}") from error

"""Snapshots on request: a database, a NATS server and the snapshot service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.observe.figure import document
from tests.integration.snapshot.serving import Serving
from tests.jetstream import connected, requested
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nats.aio.client import Client
    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database


class System(Serving):
    """A database, a NATS server and the snapshot service."""

    name = "p"

    def __init__(
        self, spark: SparkSession, database: Database, server: EmbeddedNats, data: Path
    ) -> None:
        super().__init__(database, server, data, spark=spark)
        self.pipeline = {
            "encoding": "json",
            "sink": {"type": "nats", "url": server.url},
            "snapshots": {"chunk_rows": 100, "stretch_bytes": 8192},
        }

    def ask(
        self,
        *tables: str,
        decode: Callable[[bytes], Any] = msgspec.json.decode,
        body: bytes = b"",
    ) -> list[dict[str, Any]]:
        """The replies to requests that are sent together."""
        requests = [(f"snapshot.request.{table}", body) for table in tables]
        return [
            decode(reply.data) for reply in requested(self.server.url, requests, timeout_s=LONG_S)
        ]

    def finished(self) -> dict[str, object]:
        """The last snapshot, when it has finished."""
        wait_for(lambda: self._last()["state"] in {"complete", "failed"}, "the snapshot ends")
        return self._last()

    def _last(self) -> dict[str, object]:
        assert self.service is not None
        return document(self.service.progress()[-1])

    def dictionaries(self) -> dict[str, bytes]:
        """The bucket of dictionaries."""

        async def read(client: Client) -> dict[str, bytes]:
            context = client.jetstream(timeout=60)
            bucket, prefix = await context.key_value("dictionaries"), "$KV.dictionaries."
            info = await context.stream_info("KV_dictionaries", f"{prefix}>")
            keys = [subject.removeprefix(prefix) for subject in info.state.subjects or {}]
            return {key: (await bucket.get(key)).value or b"" for key in keys}

        return connected(self.server.url, read)

    def published(
        self, max_rows: int = 100
    ) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
        """The rows in the stream by snapshot, and the metadata."""
        rows: dict[str, list[dict[str, Any]]] = {}
        metas = []
        seen = set()
        for message in self.received("INIT"):
            assert message.subject not in seen or message.subject.startswith("init.meta.")
            seen.add(message.subject)
            if message.subject.startswith("init.meta."):
                metas.append(message.json)
                continue
            chunk = message.json
            assert message.subject.endswith(f".{chunk['snapshot_id']}.{chunk['chunk']}")
            assert message.id == f"{chunk['snapshot_id']}-{chunk['chunk']}"
            assert 0 < len(chunk["data"]) <= max_rows
            rows.setdefault(chunk["snapshot_id"], []).extend(chunk["data"])
        return rows, metas

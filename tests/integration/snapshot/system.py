"""Snapshots on request: a database, a NATS server and the snapshot service."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import nats

from tailrace import config
from tailrace.observe.figure import document
from tests.fix_pipeline import received
from tests.integration.snapshot.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database


class System(Serving):
    """A database, a NATS server and the snapshot service."""

    def __init__(
        self, spark: SparkSession, database: Database, server: EmbeddedNats, folder: Path
    ) -> None:
        super().__init__(spark)
        self.database = database
        self.server = server
        self.folder = folder
        self.settings: dict[str, Any] = {
            "source": {"dsn": database.dsn, "publication": "pub"},
            "data": str(folder),
            "pipelines": {
                "p": {
                    "encoding": "json",
                    "sink": {"type": "nats", "url": server.url},
                    "snapshots": {
                        "chunk_rows": 100,
                        "stretch_bytes": 8192,
                    },
                }
            },
        }

    def start(self) -> None:
        self.serve(config.Config.model_validate(self.settings), "p")

    def ask(
        self,
        *tables: str,
        decode: Callable[[bytes], Any] = msgspec.json.decode,
        body: bytes = b"",
    ) -> list[dict[str, Any]]:
        """The replies to requests that are sent together."""

        async def request() -> list[bytes]:
            client = await nats.connect(self.server.url)
            try:
                subjects = [f"snapshot.request.{table}" for table in tables]
                deadline = time.monotonic() + 20
                while True:
                    try:
                        requests = [
                            client.request(subject, body, timeout=20) for subject in subjects
                        ]
                        return [answer.data for answer in await asyncio.gather(*requests)]
                    except nats.errors.NoRespondersError:
                        assert time.monotonic() < deadline
                        await asyncio.sleep(0.1)
            finally:
                await client.close()

        return [decode(data) for data in asyncio.run(request())]

    def finished(self) -> dict[str, object]:
        """The last snapshot, when it has finished."""
        assert self.service is not None
        deadline = time.monotonic() + 120
        while True:
            record = document(self.service.progress()[-1])
            if record["state"] in {"complete", "failed"}:
                return record
            assert time.monotonic() < deadline, record
            time.sleep(0.05)

    def dictionaries(self) -> dict[str, bytes]:
        """The bucket of dictionaries."""

        async def read() -> dict[str, bytes]:
            client = await nats.connect(self.server.url)
            try:
                bucket = await client.jetstream().key_value("dictionaries")
                return {key: (await bucket.get(key)).value or b"" for key in await bucket.keys()}
            finally:
                await client.close()

        return asyncio.run(read())

    def published(
        self, max_rows: int = 100
    ) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
        """The rows in the stream by snapshot, and the metadata."""
        rows: dict[str, list[dict[str, Any]]] = {}
        metas = []
        seen = set()
        for message in received(self.server.url, "INIT"):
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

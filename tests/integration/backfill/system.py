"""A running pipeline and its backfill service, in the test process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nats.js.errors import NotFoundError

from tailrace import checkpoint, config
from tailrace.backfill import queue
from tailrace.backfill.order import FINISHED
from tailrace.backfill.service import BackfillService
from tailrace.pipeline.running import Runner
from tests.fix_pipeline import received
from tests.integration.cases.running import Running
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured

_PATIENCE_S = 150.0
Row = dict[str, Any]


class System:
    """A database whose changes go to its own stream, from the pipeline's start."""

    def __init__(
        self, spark: SparkSession, captured: Captured, server: EmbeddedNats, folder: Path
    ) -> None:
        self._spark = spark
        self.captured = captured
        self.database = captured.database
        self.server = server
        self.pipeline: dict[str, Any] = {"backfill": {"page_rows": 100}}
        self._folder = folder
        self._capture: Running | None = None
        self._runner: Runner | None = None
        self.service: BackfillService | None = None

    @property
    def config(self) -> config.Config:
        name = self.database.name
        sink = {
            "type": "nats",
            "url": self.server.url,
            "stream": {"name": f"S{name}", "subjects": [f"{name}.>"]},
            "subject": f"{name}.{{table}}.{{operation}}",
        }
        return config.Config.model_validate(
            {
                "source": {
                    "dsn": self.database.dsn,
                    "slot": self.captured.slot,
                    "publication": self.captured.publication,
                },
                "log": {"path": self.captured.folder},
                "data": self._folder / "data",
                "pipelines": {
                    "test": {"encoding": "json", "start": "latest", **self.pipeline, "sink": sink}
                },
            }
        )

    def start(self) -> None:
        self._capture = Running(self.captured)
        self.start_pipeline()
        self.start_service()

    def start_pipeline(self) -> None:
        self._runner = Runner(self._spark, self.config, "test")
        self._runner.start()
        checkpoints = self.config.data / "checkpoints" / "test"
        wait_for(lambda: checkpoint.start(checkpoints), "the pipeline to start")

    def stop_pipeline(self) -> None:
        if self._runner is not None:
            self._runner.stop()
            self._runner.join(30)
            self._runner = None

    def start_service(self) -> None:
        self.service = BackfillService(self.config, "test")
        self.service.start()

    def stop_service(self) -> None:
        if self.service is not None:
            self.service.stop()
            self.service.join(30)
            self.service = None

    def stop(self) -> None:
        self.stop_service()
        self.stop_pipeline()
        if self._capture is not None:
            self._capture.stop()

    def fill(self, table: str, **settings: Any) -> str:
        return queue.submit(self.config, "test", table, **settings).id

    def record(self, name: str) -> dict[str, Any]:
        return next(each for each in queue.list_backfills(self.config) if each["id"] == name)

    def finished(self, name: str) -> dict[str, Any]:
        """The progress of a backfill when it has finished."""
        deadline = time.monotonic() + _PATIENCE_S
        while (record := self.record(name))["state"] not in FINISHED:
            assert time.monotonic() < deadline, record
            time.sleep(0.05)
        return record

    def delivered(self) -> None:
        """Wait until the stream has every committed change."""
        marker = self.database.query("SELECT pg_current_wal_insert_lsn()")[0][0]
        self.database.execute("CREATE TABLE IF NOT EXISTS marker (id text PRIMARY KEY)")
        self.database.execute("INSERT INTO marker VALUES (%s)", marker)
        subject = f"{self.database.name}.marker.insert"
        wait_for(
            lambda: any(
                message.subject == subject and message.json["data"]["id"] == marker
                for message in received(self.server.url, f"S{self.database.name}")
            ),
            "every change to arrive",
        )

    def messages(self, table: str) -> list[Row]:
        """The messages of a table, in the stream's order."""
        try:
            found = received(self.server.url, f"S{self.database.name}")
        except NotFoundError:
            return []
        return [each.json for each in found if each.subject.split(".")[1] == table]


def replayed(messages: list[Row], key: str = "id") -> dict[Any, Row]:
    """The table as a consumer builds it from the stream alone."""
    rows: dict[Any, Row] = {}
    for message in messages:
        data = message["data"]
        match message["operation"].lower():
            case "read" | "insert":
                rows[data[key]] = data
            case "update":
                rows.pop((message.get("old") or data)[key], None)
                rows[data[key]] = data
            case "delete":
                rows.pop(data[key], None)
            case "truncate":
                rows.clear()
            case other:
                raise AssertionError(other)
    return rows

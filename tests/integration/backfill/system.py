"""A running pipeline and its backfill service, in the test process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nats.js.errors import NotFoundError

from tailrace import checkpoint
from tailrace.backfill import queue
from tailrace.backfill.order import FINISHED
from tailrace.backfill.service import BackfillService
from tailrace.change import Op
from tests import system
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.pipeline.running import Runner
    from tailrace.position import Lsn
    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured

Row = dict[str, Any]


class System(system.System):
    """A database whose changes go to its own stream, from the pipeline's start."""

    def __init__(
        self, spark: SparkSession, captured: Captured, server: EmbeddedNats, folder: Path
    ) -> None:
        super().__init__(captured.database, server, folder / "data", spark=spark, captured=captured)
        self.pipeline = {
            "encoding": "json",
            "start": "latest",
            "backfill": {"page_rows": 100},
            "sink": self.sink(),
        }
        self.service: BackfillService | None = None

    def start(self) -> None:
        """Start everything; the pipeline at `latest`, after the rows that exist already."""
        self.start_capture()
        end = self.captured.server_end()
        wait_for(lambda: self._captured(end), "capture to catch up")
        self.start_pipeline()
        self.start_service()

    def start_pipeline(self) -> Runner:
        runner = super().start_pipeline()
        checkpoints = self.data / "checkpoints" / self.name
        wait_for(lambda: checkpoint.start(checkpoints), "the pipeline to start")
        return runner

    def has_updated(self) -> bool:
        """Whether the log has an UPDATE."""
        if self.captured.end_position() is None:
            return False
        return any(change.op is Op.UPDATE for change in self.captured.changes())

    def _captured(self, end: Lsn) -> bool:
        segments = any(self.captured.folder.glob("*.seg"))
        return segments and self.captured.log.end().end_lsn >= end

    def start_service(self) -> None:
        self.service = BackfillService(self.config, "test")
        self.service.start()

    def stop_service(self) -> None:
        if self.service is not None:
            self.service.stop()
            self.service.join(LONG_S)
            self.service = None

    def stop(self) -> None:
        self.stop_service()
        super().stop()

    def fill(self, table: str, **settings: Any) -> str:
        return queue.submit(self.config, "test", table, **settings).id

    def record(self, name: str) -> dict[str, Any]:
        return next(each for each in queue.list_backfills(self.config) if each["id"] == name)

    def finished(self, name: str) -> dict[str, Any]:
        """The progress of a backfill when it has finished."""
        wait_for(lambda: self.record(name)["state"] in FINISHED, f"the end of {name}")
        return self.record(name)

    def delivered(self) -> None:
        """Wait until the stream has every committed change."""
        marker = self.database.query("SELECT pg_current_wal_insert_lsn()")[0][0]
        self.database.execute("CREATE TABLE IF NOT EXISTS marker (id text PRIMARY KEY)")
        self.database.execute("INSERT INTO marker VALUES (%s)", marker)
        subject = f"{self.database.name}.marker.insert"
        wait_for(
            lambda: any(
                message.subject == subject and message.json["data"]["id"] == marker
                for message in self.received()
            ),
            "every change to arrive",
        )

    def messages(self, table: str) -> list[Row]:
        """The messages of a table, in the stream's order."""
        try:
            found = self.received()
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
                before = rows.pop((message.get("old") or data)[key], {})
                # Large values that it did not modify are not in it.
                rows[data[key]] = before | data
            case "delete":
                rows.pop(data[key], None)
            case "truncate":
                rows.clear()
            case other:
                raise AssertionError(other)
    return rows

"""A source, its log, a pipeline and its sink, made of the product's own parts in one process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from tailrace import config
from tests import jetstream
from tests.integration.cases.running import Running
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.pipeline.running import Runner
    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


class System:
    """Runs what a test starts; `stop` ends all of it.

    A test may change `source`, `log` and `pipeline` before it starts a part. Without `captured`
    there is no capture: such a system serves snapshots of its database only.
    """

    name = "test"
    """Of the pipeline."""

    def __init__(
        self,
        database: Database,
        server: EmbeddedNats,
        data: Path,
        *,
        spark: SparkSession | None = None,
        captured: Captured | None = None,
        pipeline: dict[str, Any] | None = None,
    ) -> None:
        self.database = database
        self.server = server
        self.data = data
        self.spark = spark
        self.pipeline: dict[str, Any] = pipeline or {}
        self.source: dict[str, Any] = {"dsn": database.dsn, "publication": "pub"}
        self.telemetry: dict[str, Any] | None = None
        self.log = data / "log"
        if captured is not None:
            self.captured = captured
            self.source |= {"slot": captured.slot, "publication": captured.publication}
            self.log = captured.folder
        self._capture: Running | None = None
        self._runner: Runner | None = None

    @property
    def config(self) -> config.Config:
        return config.Config.model_validate(
            {
                "source": self.source,
                "log": {"path": self.log},
                "data": self.data,
                "pipelines": {self.name: self.pipeline},
                "telemetry": self.telemetry,
            }
        )

    def sink(self) -> dict[str, Any]:
        """Settings of a sink into a stream that is named after the database."""
        name = self.database.name
        return {
            "type": "nats",
            "url": self.server.url,
            "stream": {"name": f"S{name}", "subjects": [f"{name}.>"]},
            "subject": f"{name}.{{table}}.{{operation}}",
            "timeout_s": LONG_S,
        }

    def start_capture(self) -> None:
        """Capture on a thread."""
        self._capture = Running(self.captured)

    def start_pipeline(self) -> Runner:
        """Run the pipeline in the session of the tests."""
        from tailrace.pipeline.running import Runner  # noqa: PLC0415 - Spark, only where needed

        assert self.spark is not None
        self._runner = Runner(self.spark, self.config, self.name)
        self._runner.start()
        return self._runner

    def stop_pipeline(self) -> None:
        if self._runner is not None:
            self._runner.stop()
            assert self._runner.join(LONG_S), "the pipeline does not stop"
            self._runner.close(time.monotonic() + LONG_S)
            self._runner = None

    def stop(self) -> None:
        """Stop what was started; an error that ended capture is raised."""
        self.stop_pipeline()
        if self._capture is not None:
            capture, self._capture = self._capture, None
            capture.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def received(self, stream: str = "") -> list[jetstream.Received]:
        """Everything in a stream, or in the one that is named after the database."""
        return jetstream.received(self.server.url, stream or f"S{self.database.name}")

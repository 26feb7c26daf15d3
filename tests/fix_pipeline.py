"""Fixtures for pipelines: one NATS server per session, deliveries on request."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.testing import EmbeddedNats
from tests.system import System
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.observe.figures import PipelineFigures
    from tailrace.pipeline.progress import Progress
    from tests.fix_capture import Captured


class Delivery(System):
    """A pipeline of a captured database that runs until it has delivered the log."""

    def __init__(
        self,
        spark: SparkSession,
        captured: Captured,
        server: EmbeddedNats,
        folder: Path,
        **pipeline: Any,
    ) -> None:
        super().__init__(captured.database, server, folder / "data", spark=spark, captured=captured)
        # A pipeline needs nothing of its source but the log.
        self.source = {}
        self.stream = f"S{self.database.name}"
        self.prefix = self.database.name
        sink = pipeline.pop("to", None) or self.sink() | pipeline.pop("sink", {})
        self.pipeline = {"encoding": "json", **pipeline, "sink": sink}

    @contextmanager
    def running(self) -> Iterator[Progress]:
        """The pipeline at work, until the block ends."""
        runner = self.start_pipeline()
        try:
            yield runner.progress
        finally:
            self.stop_pipeline()

    def run(self, timeout_s: float = LONG_S) -> PipelineFigures:
        """Deliver everything the log holds, or end in whatever state it comes to."""
        with self.running() as progress:
            wait_for(
                lambda: (
                    progress.figures.state not in ("starting", "running", "retrying")
                    or progress.figures.position == str(self.captured.log.end().position)
                ),
                progress.current,
                timeout_s,
            )
        return progress.figures


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    """A NATS server, shared: streams are named after a test's database."""
    with EmbeddedNats() as server:
        yield server


@pytest.fixture
def server() -> Iterator[EmbeddedNats]:
    """A NATS server of the test's own."""
    with EmbeddedNats() as running:
        yield running


@pytest.fixture
def deliver(
    spark: SparkSession, nats_server: EmbeddedNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Delivery]:
    """`deliver(captured, **pipeline)` → a `Delivery`, which always waits for its batch to close."""
    monkeypatch.setattr("tailrace.pipeline.running._CLOSE_S", LONG_S)

    def make(captured: Captured, **pipeline: Any) -> Delivery:
        return Delivery(spark, captured, nats_server, tmp_path, **pipeline)

    return make

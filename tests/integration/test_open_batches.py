"""Open batches with a real PostgreSQL, log, Spark and JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nats.js.errors import NotFoundError

from tailrace import checkpoint
from tailrace.log import retention
from tailrace.log.store import LocalStore
from tests.system import System
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.observe.figures import PipelineFigures
    from tailrace.pipeline.running import Runner
    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


class Rig(System):
    """A pipeline over one table."""

    runner: Runner

    def begin(self) -> None:
        self.runner = self.start_pipeline()

    @property
    def figures(self) -> PipelineFigures:
        return self.runner.progress.current()

    @property
    def checkpoint(self) -> Path:
        return self.data / "checkpoints" / self.name

    def insert(self, *numbers: int) -> None:
        for number in numbers:
            self.database.execute("INSERT INTO items VALUES (%s)", number)

    def insert_rows(self, *rows: str) -> None:
        for row in rows:
            self.database.execute(f"INSERT INTO items VALUES {row}")

    def arrived(self, count: int) -> None:
        """Wait until the stream has the rows 1 to `count`, and until the figures say so."""
        wait_for(lambda: self.numbers() == list(range(1, count + 1)), f"{count} messages")

    def numbers(self) -> list[int]:
        try:
            return [message.json["data"]["id"] for message in self.received()]
        except NotFoundError:  # until the first message
            return []


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to close a batch than a pipeline waits for it."""
    monkeypatch.setattr("tailrace.pipeline.running._CLOSE_S", LONG_S)


@pytest.fixture(params=[{}, {"where": "id > 0", "select": ["id"]}], ids=["plain", "sql"])
def stages(request: pytest.FixtureRequest) -> dict[str, object]:
    """The SQL stages of the pipeline."""
    made: dict[str, object] = request.param
    return made


@pytest.fixture
def rig(  # noqa: PLR0917 - fixtures
    stages: dict[str, object],
    spark: SparkSession,
    database: Database,
    capture: Callable[..., Captured],
    nats_server: EmbeddedNats,
    tmp_path: Path,
) -> Iterator[Rig]:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    with Rig(database, nats_server, tmp_path / "data", spark=spark, captured=captured) as made:
        made.pipeline = {"encoding": "json", "sink": made.sink(), "max_open_s": 120} | stages
        made.start_capture()
        yield made


def test_changes_are_delivered_while_the_batch_is_open(rig: Rig) -> None:
    """The figures, the position and the checkpoint follow, though Spark commits nothing."""
    rig.insert(1)
    rig.begin()
    rig.arrived(1)
    for number in range(2, 5):
        rig.insert(number)
        rig.arrived(number)
    wait_for(lambda: rig.figures.events == 4, lambda: rig.figures)
    assert (rig.figures.open, rig.figures.state) == (True, "running")
    assert checkpoint.running(rig.checkpoint) is not None
    end = rig.captured.log.end().position
    wait_for(lambda: rig.figures.position == str(end), lambda: rig.figures)
    assert checkpoint.delivered(rig.checkpoint) == end


def test_the_log_keeps_nothing_that_an_open_batch_has_delivered(rig: Rig) -> None:
    """Also after a power cut the batch begins after what the log may have removed."""
    rig.begin()
    rig.insert(1, 2)
    rig.arrived(2)
    end, store = rig.captured.log.end().position, LocalStore(rig.captured.folder)
    wait_for(lambda: retention.pins(store)[rig.name] == end, "the pin")
    batch = checkpoint.running(rig.checkpoint)
    assert batch is not None
    (checkpoint.open_folder(rig.checkpoint) / "progress").unlink()
    assert checkpoint.open_batches(rig.checkpoint).begin(batch) == end


def test_a_stop_closes_the_batch(rig: Rig) -> None:
    """The next start has nothing to replay."""
    rig.begin()
    rig.insert(1, 2)
    rig.arrived(2)
    end = rig.captured.log.end().position
    rig.stop_pipeline()
    assert checkpoint.running(rig.checkpoint) is None
    assert checkpoint.delivered(rig.checkpoint) == end
    rig.insert(3)
    rig.begin()
    rig.arrived(3)
    wait_for(lambda: rig.figures.events == 1, lambda: rig.figures)
    assert rig.figures.duplicates == 0


@pytest.mark.parametrize("stages", [{}], ids=["plain"])
def test_a_stop_in_a_backlog(rig: Rig) -> None:
    """GIVEN a task that is far from the end of the log WHEN the pipeline stops THEN the batch ends
    where the task is, and the next start continues there."""
    rig.database.execute("ALTER TABLE items ADD note text")
    rig.database.execute(
        "DO $$ BEGIN FOR i IN 0..999 LOOP INSERT INTO items "
        "SELECT i * 100 + g, repeat('x', 100) FROM generate_series(1, 100) g; COMMIT; "
        "END LOOP; END $$"
    )
    # One message at a time, so that there is time to stop.
    rig.pipeline["sink"] = rig.sink() | {"max_outstanding": 1}
    rig.begin()
    wait_for(lambda: rig.figures.events > 0, lambda: rig.figures)
    rig.stop_pipeline()
    stopped = checkpoint.delivered(rig.checkpoint)
    assert checkpoint.running(rig.checkpoint) is None
    assert stopped is not None
    assert stopped < rig.captured.log.end().position
    delivered = rig.figures.events
    rig.pipeline["sink"] = rig.sink()
    rig.begin()
    rig.arrived(100_000)
    wait_for(lambda: delivered + rig.figures.events == 100_000, lambda: rig.figures)
    assert rig.figures.duplicates == 0


def test_batches_follow_one_another(rig: Rig) -> None:
    rig.pipeline["max_open_s"] = 0.5
    rig.begin()
    for number in range(1, 30):
        rig.insert(number)
    rig.arrived(29)
    wait_for(lambda: rig.figures.batches >= 3, lambda: rig.figures)
    rig.insert(30)
    rig.arrived(30)
    wait_for(lambda: rig.figures.events == 30, lambda: rig.figures)
    assert rig.figures.duplicates == 0


def test_an_interrupted_batch_and_settings_without_open_batches(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a batch that was open when its query ended WHEN the pipeline gets two lanes, whose
    batches are closed, THEN it continues after what was delivered."""
    rig.begin()
    rig.insert(1, 2)
    rig.arrived(2)
    end = rig.captured.log.end().position
    wait_for(lambda: checkpoint.delivered(rig.checkpoint) == end, "the progress")
    monkeypatch.setattr(rig.runner, "_close_batch", lambda _: None)
    rig.stop_pipeline()
    assert checkpoint.running(rig.checkpoint) is not None
    rig.pipeline["lanes"] = 2
    rig.begin()
    rig.insert(3)
    rig.arrived(3)
    wait_for(lambda: checkpoint.running(rig.checkpoint) is None, "a closed batch")
    rig.insert(4)
    rig.arrived(4)
    wait_for(lambda: rig.figures.open is False, lambda: rig.figures)


WHERE = pytest.mark.parametrize("stages", [{"where": "id % 2 = 1"}], ids=["where"])


@WHERE
def test_changes_that_a_condition_drops(rig: Rig) -> None:
    """They are not delivered, and the position still moves past them."""
    rig.begin()
    rig.insert(1, 2, 3, 4, 5, 6)
    wait_for(lambda: rig.numbers() == [1, 3, 5], rig.numbers)
    rig.insert(8, 10)
    wait_for(lambda: len(rig.captured.changes()) == 8, "all changes are in the log")
    end = rig.captured.log.end().position
    wait_for(lambda: rig.figures.position == str(end), lambda: rig.figures)
    assert rig.figures.events == 3
    assert checkpoint.delivered(rig.checkpoint) == end


@WHERE
def test_a_table_that_is_altered_while_the_batch_is_open(rig: Rig) -> None:
    """The batch ends before the change of the new version, and the next plan covers it."""
    rig.begin()
    rig.insert(1)
    wait_for(lambda: rig.numbers() == [1], "the first change")
    rig.database.execute("ALTER TABLE items ADD word text DEFAULT 'x'")
    rig.insert_rows("(3, 'a')", "(4, 'b')", "(5, 'c')")
    wait_for(lambda: rig.numbers() == [1, 3, 5], rig.numbers)
    assert [message.json["data"].get("word") for message in rig.received()] == [None, "a", "c"]
    rig.database.execute("CREATE TABLE more (id int PRIMARY KEY)")
    rig.database.execute("INSERT INTO more VALUES (7), (8), (9)")
    wait_for(lambda: rig.numbers() == [1, 3, 5, 7, 9], rig.numbers)
    wait_for(lambda: rig.figures.open, lambda: rig.figures)
    assert rig.figures.state == "running"

"""Resets: what they announce, what they write, and when they refuse."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest
from typer.testing import CliRunner

from tailrace import checkpoint, config
from tailrace.checkpoint import StartRecord
from tailrace.cli import app
from tailrace.control import ControlFile
from tailrace.errors import AlreadyRunningError, ConfigError
from tailrace.log import retention
from tailrace.log.appender import Appender, Layout
from tailrace.log.lease import Lease
from tailrace.log.reader import Earliest, Latest, Log
from tailrace.log.store import LocalStore
from tailrace.pipeline.reset import Plan, plan
from tailrace.pipeline.running import Runner
from tailrace.run import status
from tailrace.run.lock import data_folder_lock
from tailrace.run.reset import carry_out
from tests.fix_log import Session, TestLog, transaction, whole_entry

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.control import MoveAction
    from tailrace.log.start import Start
    from tailrace.position import Position

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TRANSACTIONS = 6


class Folder:
    """A data folder with a log of one change per transaction, and one pipeline."""

    def __init__(self, data: Path, log_id: str = "a1") -> None:
        self.data = data
        self.settings = {
            "data": str(data),
            "log": {"path": str(data / "log")},
            "pipelines": {"shop": {"sink": {"type": "nats", "url": "nats://127.0.0.1:1"}}},
        }
        self.config = config.Config.model_validate(self.settings)
        written = TestLog(LocalStore(data / "log", create=True), log_id=log_id)  # type: ignore[arg-type]
        written.append_all(transaction(number) for number in range(TRANSACTIONS))
        written.close()
        self.log = Log.open(data / "log")
        self.positions = [change.position for change in written.changes()]
        self.checkpoint = checkpoint.folder_of(data, "shop")

    def delivered(self, position: Position, history: str = "a1") -> None:
        """The checkpoint of a pipeline that began with the log."""
        checkpoint.write_start(self.checkpoint, StartRecord(self.log.earliest(), history))
        for kind in ("offsets", "commits"):
            (self.checkpoint / kind).mkdir()
            offset = json.dumps({"position": str(position), "history": history})
            (self.checkpoint / kind / "0").write_text(f"v1\n{{}}\n{offset}")

    def append(self, transactions: int) -> None:
        """More transactions."""
        store, session = LocalStore(self.data / "log"), Session()
        lease = Lease.acquire(store)
        appender = Appender.open(store, lease, Layout())
        assert appender is not None
        for number in range(transactions):
            unit, mark = transaction(TRANSACTIONS + number), appender.mark
            appender.append(whole_entry([unit], session, mark.end_lsn, mark.time))
        appender.close()
        lease.release()

    def plan(self, start: Start) -> Plan:
        return plan(self.config, "shop", start)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_changes_before_the_delivered_position_are_delivered_again(folder: Folder) -> None:
    half = len(folder.positions) // 2
    folder.delivered(folder.positions[half - 1])
    planned = folder.plan(Earliest())
    assert (planned.repeated, planned.skipped) == (half, 0)
    assert planned.ahead == len(folder.positions)


def test_changes_after_the_delivered_position_are_skipped(folder: Folder) -> None:
    half = len(folder.positions) // 2
    folder.delivered(folder.positions[half - 1])
    planned = folder.plan(Latest())
    assert (planned.repeated, planned.skipped) == (0, len(folder.positions) - half)
    assert planned.ahead == 0


def test_positions_of_another_log_are_not_compared(folder: Folder) -> None:
    folder.delivered(folder.positions[-1], history="b2")
    planned = folder.plan(Earliest())
    assert (planned.delivered, planned.repeated, planned.skipped) == (None, 0, 0)


def test_a_reset_moves_the_start_and_the_pin_and_is_recorded(folder: Folder) -> None:
    folder.delivered(folder.positions[-1])
    planned = folder.plan(Earliest())
    entry = carry_out(folder.config, planned, now=NOW)
    assert checkpoint.read_start(folder.checkpoint) == planned.after
    assert checkpoint.delivered(folder.checkpoint) is None
    assert retention.pins(LocalStore(folder.data / "log")) == {"shop": folder.log.earliest()}
    assert "@" in entry.by
    [recorded] = json.loads((folder.data / "resets.json").read_text())
    assert recorded["pipeline"] == "shop"
    assert recorded["delivered"] == str(folder.positions[-1])
    joined = [folder.data / kind / "shop" / "joined" for kind in ("snapshots", "backfills")]
    for file in joined:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    carry_out(folder.config, folder.plan(Latest()), now=NOW)
    assert not any(file.exists() for file in joined)
    assert len(json.loads((folder.data / "resets.json").read_text())) == 2


@pytest.mark.parametrize(
    ("action", "reached", "refusal"),
    [
        ("skip", 11, "is past"),
        ("skip", 3, ""),
        ("rewind", 3, "has not come to"),
        ("rewind", 11, ""),
    ],
)
def test_a_move_that_has_become_the_opposite_is_refused(
    folder: Folder, action: MoveAction, reached: int, refusal: str
) -> None:
    """GIVEN a skip or a rewind that is ordered WHEN the last batch ends on the other side of its
    position before the pipeline is moved THEN nothing is moved, and the file has why."""
    folder.delivered(folder.positions[reached])
    control = ControlFile(folder.data, "shop")
    control.move(action, folder.positions[7], user="ann")
    runner = Runner(cast("Any", None), folder.config, "shop")
    runner._moves = 0
    runner._move_if_requested()
    moved = control.moved()
    assert moved.moves == 1
    assert refusal in moved.refusal
    assert bool(moved.refusal) == bool(refusal)
    start = checkpoint.read_start(folder.checkpoint)
    assert start is not None
    assert (start.position == folder.positions[7]) == (not refusal)


def test_running_pipelines_are_not_reset(folder: Folder) -> None:
    folder.delivered(folder.positions[-1])
    before = checkpoint.read_start(folder.checkpoint)
    planned = folder.plan(Earliest())
    with (
        data_folder_lock(status.folder(folder.data), "pipelines"),
        pytest.raises(AlreadyRunningError, match="`tailrace pipelines` already uses"),
    ):
        carry_out(folder.config, planned, now=NOW)
    assert checkpoint.read_start(folder.checkpoint) == before


def test_an_unknown_pipeline_is_refused(folder: Folder) -> None:
    with pytest.raises(ConfigError, match="there is no pipeline 'shoe'"):
        plan(folder.config, "shoe", Earliest())


def run_command(folder: Folder, *options: str, answer: str = "") -> tuple[int, str]:
    file = folder.data / "tailrace.json"
    file.write_text(json.dumps(folder.settings))
    arguments = ["reset", "shop", "-c", str(file), *options]
    result = CliRunner().invoke(app, arguments, input=answer)
    return result.exit_code, result.output


def test_the_command_shows_what_it_does_and_asks(folder: Folder) -> None:
    folder.delivered(folder.positions[-1])
    count = len(folder.positions)
    code, output = run_command(folder, "--from", "earliest", answer="n\n")
    assert code == 1
    assert f"{count} changes after {folder.log.earliest()} are delivered again." in output
    assert checkpoint.delivered(folder.checkpoint) == folder.positions[-1]
    code, output = run_command(folder, "--from", "earliest", answer="y\n")
    assert code == 0
    assert f"shop starts after {folder.log.earliest()}." in output
    assert checkpoint.delivered(folder.checkpoint) is None


def test_the_command_explains_another_log(folder: Folder) -> None:
    folder.delivered(folder.positions[-1], history="b2")
    code, output = run_command(folder, "--from", "now", "--yes")
    assert code == 0
    assert "belongs to another log" in output

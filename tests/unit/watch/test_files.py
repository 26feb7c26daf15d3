"""What the watchdog reads from files that other processes write, whatever is in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import checkpoint
from tailrace.config import Config
from tailrace.log.format import mark
from tailrace.log.store import LocalStore
from tailrace.position import Lsn, Position
from tailrace.process import descendants
from tailrace.watch import memory
from tailrace.watch.files import FileWatch
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.watch.facts import FileFacts

SINK = {"type": "nats", "url": "nats://127.0.0.1:1"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "status").mkdir()
    return Config.model_validate(
        {
            "data": tmp_path,
            "log": {"path": tmp_path / "log"},
            "pipelines": {"orders": {"sink": SINK}},
        }
    )


def ask(config: Config) -> FileFacts:
    return FileWatch(config).ask()


def write(config: Config, name: str, **content: Any) -> None:
    text = json.dumps({"pid": os.getpid(), **content})
    (config.data / "status" / f"{name}.json").write_text(text)


def test_a_running_system(config: Config) -> None:
    write(
        config, "run", state="running",
        processes={"capture": {"state": "backing-off", "code": "DISK_FULL", "restarts": 3}},
    )  # fmt: skip
    write(config, "capture", state="streaming", bytes=7)
    write(
        config, "pipelines", state="running",
        pipelines={
            "orders": {
                "state": "retrying", "code": "SINK_UNREACHABLE", "position": "0/A.2",
                "last_committed_at": "2026-01-31T12:00:00Z",
                "refused": [{"destination": "users"}],
            }
        },
    )  # fmt: skip
    write(
        config, "replicate", state="replicating", quorum=1, in_quorum=False,
        followers=[{"address": "db2:7432", "connected": True, "state": "streaming"}],
    )  # fmt: skip
    write(config, "follow", state="following", connected=True)
    store = LocalStore(config.log.path, create=True)
    made = mark.Mark(
        sequence=1, offset=0, position=Position(Lsn(20), 1), end_lsn=Lsn(30), time=1_000_000,
        epoch=1,
    )  # fmt: skip
    mark.write(store, made)
    facts = ask(config)
    assert facts.run is not None
    assert facts.run.alive
    assert facts.run.age_s < 60
    [capture] = facts.processes
    assert (capture.name, capture.state, capture.code, capture.restarts) == (
        "capture", "backing-off", "DISK_FULL", 3,
    )  # fmt: skip
    [pipeline] = facts.pipelines
    assert pipeline.position == Position(Lsn(10), 2)
    assert pipeline.committed_at == 1769860800.0
    assert (pipeline.refused, pipeline.parked) == (("users",), 0)
    assert facts.quorum is False
    assert facts.leader_connected is True
    assert facts.log is not None
    assert (facts.log.end, facts.log.committed_at) == (Position(Lsn(20), 1), 946_684_801.0)
    assert facts.term == 0
    assert facts.log_bytes
    assert [each.folder for each in facts.disks] == ["log", "data"]
    assert facts.memory_bytes
    assert facts.memory_limit_bytes


def test_status_files_of_before_a_restart_of_the_machine(config: Config) -> None:
    """GIVEN files whose process ids belong to other processes by now THEN they do not run."""
    write(config, "run", state="running")
    os.utime(config.data / "status" / "run.json", (0, 0))
    run = ask(config).run
    assert run is not None
    assert not run.alive


def test_without_files_everything_is_unknown(config: Config) -> None:
    facts = ask(config)
    assert (facts.run, facts.log, facts.quorum, facts.leader_connected) == (None,) * 4
    assert facts.reports == {}
    assert [each.state for each in facts.pipelines] == [""]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", '{"pid": "x"}', '{"pid": null}', '{"pid": 1', "\x00"]
)
def test_files_that_are_damaged_are_missing(config: Config, content: str) -> None:
    for name in ("run", "capture", "pipelines", "replicate", "follow"):
        (config.data / "status" / f"{name}.json").write_text(content)
    assert ask(config).reports == {}


@pytest.mark.parametrize("value", [None, 7, "x", [], [7], {"x": 7}, True])
def test_values_of_another_type_are_unknown(config: Config, value: object) -> None:
    """GIVEN status files of another release THEN what does not fit is unknown."""
    names = ("state", "processes", "pipelines", "quorum", "in_quorum", "followers", "connected")
    for name in ("run", "capture", "pipelines", "replicate", "follow"):
        write(config, name, **dict.fromkeys(names, value))
    write(config, "pipelines", pipelines={"orders": value})
    assert ask(config).pipelines[0].position is None


def test_a_mark_that_is_damaged(config: Config) -> None:
    store = LocalStore(config.log.path, create=True)
    store.write_atomic("durable", b"x" * 100)
    assert ask(config).log_error == "CORRUPT"


def test_memory_counts_descendants() -> None:
    """GIVEN a process with a child THEN its memory includes the child's."""
    code = "import subprocess, sys; subprocess.run(['cat'], stdin=sys.stdin)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as running:
        wait_for(lambda: len(list(descendants(running.pid))) == 1, "its child to run")
        wait_for(lambda: (memory.used_bytes([running.pid]) or 0) > 1 << 20)
        running.communicate(b"")
    assert memory.used_bytes([running.pid]) is None


def test_what_a_batch_has_written(config: Config) -> None:
    records = checkpoint.open_batches(checkpoint.folder_of(config.data, "orders"))
    assert ask(config).pipelines[0].written == {}
    records.start_query()
    records.note_written(3, Position(Lsn(7), 2))
    assert ask(config).pipelines[0].written == {3: Position(Lsn(7), 2)}
    records.start_query()
    assert ask(config).pipelines[0].written == {}


def test_the_position_before_the_first_batch(config: Config) -> None:
    """GIVEN a process that has not finished a batch THEN the checkpoint says where the pipeline
    is, and before the first one its start."""
    write(config, "pipelines", pipelines={"orders": {"state": "running", "position": ""}})
    assert ask(config).pipelines[0].position is None
    folder = checkpoint.folder_of(config.data, "orders")
    start = Position(Lsn(5), 1)
    checkpoint.write_start(folder, checkpoint.StartRecord(position=start))
    assert ask(config).pipelines[0].position == start
    for path in folder.iterdir():
        path.write_text("{")
    assert ask(config).pipelines[0].position is None

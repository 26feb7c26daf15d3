"""Records of snapshots are read back as they were written, also from files of older versions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from tailrace.position import Lsn
from tailrace.postgres.names import TableName
from tailrace.snapshot.export import Exported
from tailrace.snapshot.service.record import Record
from tailrace.snapshot.table import Stretch
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from pathlib import Path

ITEMS = TableName("public", "Order Items")
SNAPSHOT = Exported(
    name="00000003-1",
    table=ITEMS,
    visibility=Visibility.parse("943:945:943"),
    lsn=Lsn.parse("0/16B3748"),
    taken_at=datetime(2026, 1, 1, 12, tzinfo=UTC),
    since=None,
)


def record() -> Record:
    return Record(
        id="snap-1",
        table=ITEMS,
        requested_at=5.0,
        state="running",
        snapshot=SNAPSHOT,
        stretches=[Stretch(ITEMS, None, 8), Stretch(ITEMS, 8)],
        parallel=2,
        done=1,
        number=4,
        chunks=3,
        rows=30,
        bytes=300,
        last=17,
        fingerprint="json 10 False",
    )


def test_a_record_of_an_older_version(tmp_path: Path) -> None:
    (tmp_path / "snap-1.json").write_text(
        '{"id": "snap-1", "table": {"namespace": "public", "name": "Order Items"}, '
        '"requested_at": 5.0, "form": "rows", "topic": "", "state": "running", "snapshot": '
        '{"name": "00000003-1", "table": "\\"public\\".\\"Order Items\\"", '
        '"visibility": "943:945:943", "lsn": "0/16B3748", '
        '"taken_at": "2026-01-01T12:00:00+00:00", "since": ""}, "stretches": [{"leaf": '
        '{"namespace": "public", "name": "Order Items"}, "first": null, "end": 8}, {"leaf": '
        '{"namespace": "public", "name": "Order Items"}, "first": 8, "end": null}], '
        '"parallel": 2, "done": 1, "number": 4, "chunks": 3, "rows": 30, "bytes": 300, '
        '"last": 17, "fingerprint": "json 10 False", "dictionary": "", "supersedes": "", '
        '"error": "", "begun_at": 0.0, "ended_at": 0.0}'
    )
    assert Record.load(tmp_path) == [record()]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    queued = Record(id="snap-0", table=ITEMS, requested_at=1.0, form="creek", topic="t")
    record().save(tmp_path)
    queued.save(tmp_path)
    assert Record.load(tmp_path) == [queued, record()]
    content = json.loads((tmp_path / "snap-1.json").read_text())
    assert content["snapshot"] == SNAPSHOT.fields()
    assert content["stretches"][0] == {
        "leaf": {"namespace": "public", "name": "Order Items"}, "first": None, "end": 8,
    }  # fmt: skip
    queued.remove(tmp_path)
    queued.remove(tmp_path)
    assert Record.load(tmp_path) == [record()]
    assert Record.load(tmp_path / "missing") == []


def test_invalid_files_are_logged_and_skipped(tmp_path: Path) -> None:
    record().save(tmp_path)
    content = json.loads((tmp_path / "snap-1.json").read_text())
    for number, snapshot in enumerate(({"name": "x"}, 7, {**SNAPSHOT.fields(), "lsn": "x"})):
        invalid = json.dumps(content | {"snapshot": snapshot})
        (tmp_path / f"snap-2{number}.json").write_text(invalid)
    (tmp_path / "snap-3.json").write_text("{")
    with capture_logs() as events:
        assert Record.load(tmp_path) == [record()]
    assert [event["event"] for event in events] == ["snapshot.file_invalid"] * 4


def test_a_restart_under_a_new_id_names_the_old_one(tmp_path: Path) -> None:
    restarted = record()
    restarted.save(tmp_path)
    restarted.restart("snap-2", tmp_path)
    assert Record.load(tmp_path) == [restarted]
    assert (restarted.id, restarted.supersedes) == ("snap-2", "snap-1")
    assert (restarted.snapshot, restarted.stretches, restarted.done) == (None, [], 0)
    assert restarted.requested_at == 5.0
    restarted.restart("snap-2", tmp_path)
    assert (restarted.id, restarted.supersedes) == ("snap-2", "snap-1")


def test_a_crash_during_a_restart_leaves_one_snapshot(tmp_path: Path) -> None:
    restarted = record()
    restarted.restart("snap-2", tmp_path)
    record().save(tmp_path)
    assert Record.load(tmp_path) == [restarted]
    restarted.remove(tmp_path)
    assert Record.load(tmp_path) == []


def test_progress_of_a_record() -> None:
    running = record()
    running.begun_at = 10.0
    assert running.progress(25.0).seconds == 15.0
    assert running.progress(25.0).share == 0.5
    running.ended_at = 12.0
    assert running.progress(25.0).seconds == 2.0
    assert Record(id="a", table=ITEMS, requested_at=1.0).progress(25.0).share == 0.0

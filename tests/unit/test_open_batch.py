"""The records of open batches: written once, durable, and never older than what was delivered."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from tailrace import private
from tailrace.errors import DiskFullError, SinkFencedError
from tailrace.log.store import LocalStore
from tailrace.open_batch import OpenBatch, OpenBatches, OpenProgress
from tailrace.position import Position

if TYPE_CHECKING:
    from pathlib import Path

START, MIDDLE, END = map(Position.parse, ("0/10.2", "0/20.0", "0/30.5"))
BATCH = OpenBatch(7, START)


@pytest.fixture
def records(tmp_path: Path) -> OpenBatches:
    made = OpenBatches(tmp_path / "open")
    made.start_query()
    return made


def test_the_first_end_of_a_batch_counts(records: OpenBatches) -> None:
    assert records.closed(BATCH) is None
    assert records.close(BATCH, MIDDLE) == MIDDLE
    assert records.close(BATCH, END) == MIDDLE
    assert records.closed(BATCH) == MIDDLE


def test_a_batch_is_known_by_its_number_and_its_beginning(records: OpenBatches) -> None:
    records.close(BATCH, MIDDLE)
    assert records.closed(OpenBatch(8, START)) is None
    assert records.closed(OpenBatch(7, MIDDLE)) is None


def test_a_task_begins_after_what_an_earlier_one_delivered(records: OpenBatches) -> None:
    assert records.begin(BATCH) == START
    records.note(BATCH, OpenProgress(reached=str(MIDDLE), messages=3))
    assert records.begin(BATCH) == MIDDLE
    assert records.begin(OpenBatch(8, START)) == START


@pytest.mark.parametrize("content", ["", "\0\0\0", "{", '{"batch": "7@0/10.2"}', '["a"]'])
def test_progress_that_a_power_cut_has_damaged(
    records: OpenBatches, tmp_path: Path, content: str
) -> None:
    """The batch is delivered from its beginning: sinks skip what they hold."""
    (tmp_path / "open" / "progress").write_text(content)
    assert records.progress() is None
    assert records.begin(BATCH) == START


def test_what_is_settled_survives_a_power_cut(records: OpenBatches, tmp_path: Path) -> None:
    noted = OpenProgress(batch=str(BATCH), reached=str(MIDDLE))
    records.settle(noted)
    (tmp_path / "open" / "progress").write_text("")
    assert records.begin(BATCH) == MIDDLE
    assert records.begin(OpenBatch(8, START)) == START
    records.note(BATCH, replace(noted, reached=str(END)))
    assert records.begin(BATCH) == END


def test_a_full_disk_has_space_for_what_is_settled(
    records: OpenBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the log could not remove what is delivered, and the disk would stay full."""
    noted = OpenProgress(batch=str(BATCH), reached=str(MIDDLE))
    records.settle(noted)

    def full(*_: object, **__: object) -> NoReturn:
        raise DiskFullError("cannot write")

    monkeypatch.setattr(LocalStore, "write_atomic", full)
    records.settle(replace(noted, reached=str(END)))
    assert records.begin(BATCH) == END


def test_a_full_disk(records: OpenBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is left as it is, because delivery goes on; what has to be written is DISK_FULL."""
    records.note(BATCH, OpenProgress(reached=str(MIDDLE)))

    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(private, "create_file", full)
    records.note(BATCH, OpenProgress(reached=str(END)))
    assert records.begin(BATCH) == MIDDLE
    with pytest.raises(DiskFullError):
        records.own()
    with pytest.raises(DiskFullError):
        records.close(BATCH, END)


def test_a_task_that_was_replaced_ends(records: OpenBatches, tmp_path: Path) -> None:
    first = records.own()
    records.check_owner(first)
    second = records.own()
    with pytest.raises(SinkFencedError):
        records.check_owner(first)
    records.check_owner(second)
    # A pipeline that was moved has no batch of its earlier position.
    (tmp_path / "open" / "owner").unlink()
    with pytest.raises(SinkFencedError):
        records.check_owner(second)


def test_a_request_to_close_is_for_one_query(records: OpenBatches) -> None:
    assert not records.close_requested
    records.request_close()
    assert records.close_requested
    records.start_query()
    assert not records.close_requested


def test_old_records_are_removed(records: OpenBatches, tmp_path: Path) -> None:
    for number in range(1, 31):
        records.close(OpenBatch(number, START), MIDDLE)
    records.prune(30)
    left = {path.name for path in (tmp_path / "open").iterdir()}
    assert left == {f"closed-{number}@0-10.2" for number in range(10, 31)}


def test_whether_a_note_has_come_further() -> None:
    """A note may only have more attempts that failed: nothing was delivered then."""
    begun = OpenProgress(batch=str(BATCH), reached=str(BATCH.after), failed=3)
    moved = OpenProgress(batch=str(BATCH), reached=str(MIDDLE))
    assert not begun.beyond(None)
    assert moved.beyond(None)
    assert moved.beyond(begun)
    assert not replace(moved, failed=5).beyond(moved)
    following = OpenBatch(BATCH.number + 1, END)
    assert not OpenProgress(batch=str(following), reached=str(END)).beyond(moved)

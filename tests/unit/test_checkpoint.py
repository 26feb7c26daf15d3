"""Checkpoints: where a query resumes, also after a power cut that damaged its newest files."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tailrace import checkpoint
from tailrace.checkpoint import StartRecord
from tailrace.errors import CorruptError, DivergedError
from tailrace.log.format.mark import Mark
from tailrace.open_batch import OpenBatch, OpenBatches, OpenProgress
from tailrace.position import Lsn, Position

KNOWN = Position(Lsn(7))


def write_checkpoint(folder: Path, offsets: dict[int, bool], commits: dict[int, bool]) -> Path:
    """Write a checkpoint: batches by number, and whether their file has its content."""
    for kind, batches in (("offsets", offsets), ("commits", commits)):
        (folder / kind).mkdir()
        for batch, whole in batches.items():
            (folder / kind / str(batch)).write_text(content(kind, batch) if whole else "")
    return folder


def content(kind: str, batch: int) -> str:
    """A file as Spark writes it."""
    if kind == "commits":
        return 'v1\n{"nextBatchWatermarkMs":0}'
    return f'v1\n{{}}\n{{"position":"{Position(Lsn(100 + batch))}"}}'


def batches(folder: Path, kind: str) -> list[int]:
    return sorted(int(path.name) for path in (folder / kind).iterdir())


def not_called() -> NoReturn:
    raise AssertionError("called though the checkpoint has the position")


def test_a_valid_checkpoint_is_not_changed(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, dict.fromkeys((3, 4), True), {3: True})
    assert not checkpoint.repair(folder, not_called)
    assert (batches(folder, "offsets"), batches(folder, "commits")) == ([3, 4], [3])
    assert checkpoint.delivered(folder) == Position(Lsn(103))


def test_an_empty_offset_is_removed(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {3: True, 4: True, 5: False}, {3: True, 4: True, 5: True})
    assert checkpoint.repair(folder, not_called)
    assert (batches(folder, "offsets"), batches(folder, "commits")) == ([3, 4], [3, 4])


def test_a_batch_with_an_empty_commit_is_replayed(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path, dict.fromkeys((3, 4, 5), True), {3: True, 4: False, 5: True}
    )
    assert checkpoint.repair(folder, not_called)
    assert (batches(folder, "offsets"), batches(folder, "commits")) == ([3, 4], [3])


def test_without_any_batch_the_query_starts_at_the_known_position(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, dict.fromkeys((3, 4), False), dict.fromkeys((3, 4), False))
    (folder / "metadata").write_bytes(bytes(45))
    checkpoint.fix_start(folder, lambda: Position(Lsn(1)), history="a1")
    assert checkpoint.repair(folder, lambda: KNOWN)
    assert checkpoint.fix_start(folder, not_called, history="b2") == StartRecord(KNOWN, "a1")
    assert not (folder / "metadata").exists()


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    """Spark refuses to start its first batch if `commits` has any file."""
    folder = write_checkpoint(tmp_path, {0: True}, {})
    for kind in ("offsets", "commits"):
        (folder / kind / ".0.1d44-4bbf.tmp").write_text("v1\n")
    assert not checkpoint.repair(folder, not_called)
    assert (batches(folder, "offsets"), list((folder / "commits").iterdir())) == ([0], [])


@pytest.mark.parametrize("kind", ["offsets", "commits"])
def test_a_torn_file_is_removed(tmp_path: Path, kind: str) -> None:
    for length in range(len(content(kind, 4))):
        folder = tmp_path / str(length)
        folder.mkdir()
        write_checkpoint(folder, {3: True, 4: True}, {3: True, 4: True})
        torn = content(kind, 4)[:length].encode() + bytes(length % 3)
        (folder / kind / "4").write_bytes(torn)
        assert checkpoint.repair(folder, not_called)
        check_readable(folder)
        assert checkpoint.delivered(folder) == Position(Lsn(103))


def test_commits_without_an_offset_are_removed(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {3: True}, {3: True, 4: True})
    assert checkpoint.repair(folder, not_called)
    assert (batches(folder, "offsets"), batches(folder, "commits")) == ([3], [3])


def test_other_damage_is_not_repaired(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {3: True}, {3: True})
    (folder / "offsets" / "3").write_text("spoiled")
    assert not checkpoint.repair(folder, not_called)
    assert (folder / "offsets" / "3").read_text() == "spoiled"


DAMAGE = some.just(1.0) | some.floats(0, 1)


class InterruptedRepairError(Exception):
    """Raised in the middle of a repair."""


@given(
    first=some.integers(0, 3),
    damage=some.lists(some.tuples(DAMAGE, DAMAGE), min_size=2, max_size=6),
    missing=some.sampled_from([(0, 0), (0, 1), (1, 1), (1, 0), (2, 1)]),
    steps=some.integers(0, 8),
)
def test_spark_can_resume_after_any_damage_and_any_interrupted_repair(
    first: int, damage: list[tuple[float, float]], missing: tuple[int, int], steps: int
) -> None:
    """`damage` is the part of each file that is left; `missing` files are the newest ones."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = write_checkpoint(Path(name), {}, {})
        for index, kind in enumerate(("offsets", "commits")):
            for batch, part in enumerate(damage[: len(damage) - missing[index]], first):
                text = content(kind, batch)
                (folder / kind / str(batch)).write_text(text[: int(part[index] * len(text))])
        left = iter(range(steps))
        unlink = Path.unlink

        def interrupted(path: Path) -> None:
            if next(left, None) is None:
                raise InterruptedRepairError
            unlink(path)

        patch.setattr(Path, "unlink", interrupted)
        try:
            checkpoint.repair(folder, lambda: KNOWN)
        except InterruptedRepairError:
            patch.undo()
            checkpoint.repair(folder, lambda: KNOWN)
        check_readable(folder)


def check_readable(folder: Path) -> None:
    """What Spark requires of a checkpoint before it resumes."""
    for kind in ("offsets", "commits"):
        for path in (folder / kind).iterdir():
            assert path.read_text() == content(kind, int(path.name))
    offsets, commits = batches(folder, "offsets"), batches(folder, "commits")
    assert not commits or commits[-1] <= offsets[-1]
    if not offsets:
        assert not commits
    elif offsets[-1] not in commits and offsets[-1]:
        assert offsets[-1] - 1 in offsets
        assert commits[-1:] == [offsets[-1] - 1]
    elif offsets[-1]:
        assert commits[-1] == offsets[-1]


@dataclass(frozen=True)
class FakeLog:
    """The id and the end of a log."""

    id: str
    end_lsn: Lsn

    def durable_end(self) -> Mark:
        return Mark(
            sequence=1, offset=0, position=Position(self.end_lsn), end_lsn=self.end_lsn,
            time=0, epoch=1,
        )  # fmt: skip


def test_a_checkpoint_of_another_log_has_diverged(tmp_path: Path) -> None:
    record = checkpoint.fix_start(tmp_path, lambda: KNOWN, history="a1")
    checkpoint.check_history(tmp_path, record, FakeLog("a1", Lsn(9)))
    with pytest.raises(DivergedError, match="belongs to the log a1, but this log is b2"):
        checkpoint.check_history(tmp_path, record, FakeLog("b2", Lsn(9)))


def test_a_checkpoint_beyond_the_end_of_its_log_has_diverged(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {3: True}, {3: True})
    record = checkpoint.fix_start(folder, lambda: KNOWN, history="a1")
    checkpoint.check_history(folder, record, FakeLog("a1", Lsn(103)))
    with pytest.raises(DivergedError, match=r"is at 0/67\.0, but the log ends at 0/66"):
        checkpoint.check_history(folder, record, FakeLog("a1", Lsn(102)))


def test_a_start_beyond_the_end_of_the_log_is_waited_for(tmp_path: Path) -> None:
    record = checkpoint.fix_start(tmp_path, lambda: KNOWN, history="a1")
    checkpoint.check_history(tmp_path, record, FakeLog("a1", Lsn(1)))


def test_a_reset_begins_a_new_history(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {3: True, 4: True}, {3: True})
    first = checkpoint.fix_start(folder, lambda: Position(Lsn(1)), history="a1")
    again = StartRecord.after_reset("a1", KNOWN)
    checkpoint.reset(folder, again)
    assert checkpoint.delivered(folder) is None
    assert checkpoint.read_start(folder) == again
    assert again.history != first.history
    assert (again.log_id, again.reset, first.reset) == ("a1", True, False)
    assert sorted(path.name for path in folder.iterdir()) == ["tailrace-start"]


def test_an_interrupted_reset_is_finished_by_the_repair(tmp_path: Path) -> None:
    """GIVEN a crash after the start record was written WHEN the pipeline starts THEN no batch of
    the earlier history counts."""
    folder = write_checkpoint(tmp_path, {3: True, 4: True}, {3: True, 4: True})
    checkpoint.write_start(folder, StartRecord.after_reset("a1", KNOWN))
    assert checkpoint.delivered(folder) is None
    checkpoint.repair(folder, not_called)
    assert not (folder / "offsets").exists()
    assert checkpoint.start(folder) == KNOWN


def test_records_without_a_history_are_read(tmp_path: Path) -> None:
    (tmp_path / "tailrace-start").write_text("0/7.0\n")
    assert checkpoint.read_start(tmp_path) == StartRecord(KNOWN)


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"\xff", b"0/1A.x\nid\n", b"tomorrow\n"])
def test_a_damaged_start_record_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tailrace-start").write_bytes(content)
    with pytest.raises(CorruptError, match="tailrace-start is not a start record") as caught:
        checkpoint.read_start(tmp_path)
    assert "tailrace reset" in caught.value.hint


OPEN = OpenBatch(2, Position(Lsn(50)))


def with_open_batch(folder: Path, *, committed: bool) -> OpenBatches:
    """A checkpoint whose second batch is open and begins where the first one ended."""
    write_checkpoint(folder, {0: True, 1: True}, {0: True, 1: True} if committed else {0: True})
    text = f'v1\n{{}}\n{{"position":"{OPEN.after}","opened":{OPEN.number},"open":true}}'
    (folder / "offsets" / "1").write_text(text)
    (folder / "offsets" / "0").write_text(f'v1\n{{}}\n{{"position":"{OPEN.after}"}}')
    records = checkpoint.open_batches(folder)
    records.start_query()
    return records


def test_an_open_batch_ended_where_its_record_says(tmp_path: Path) -> None:
    records = with_open_batch(tmp_path, committed=True)
    with pytest.raises(CorruptError, match="no record of where batch 2@0/32"):
        checkpoint.delivered(tmp_path)
    records.close(OPEN, KNOWN)
    assert checkpoint.delivered(tmp_path) == KNOWN
    assert checkpoint.running(tmp_path) is None


def test_a_running_open_batch_has_delivered_what_it_has_noted(tmp_path: Path) -> None:
    records = with_open_batch(tmp_path, committed=False)
    assert checkpoint.running(tmp_path) == OPEN
    assert checkpoint.delivered(tmp_path) == OPEN.after
    reached = Position(Lsn(60), 3)
    records.note(OPEN, OpenProgress(reached=str(reached)))
    assert checkpoint.delivered(tmp_path) == reached
    records.note(OpenBatch(1, Position(Lsn(10))), OpenProgress(reached="0/FFFF.0"))
    assert checkpoint.delivered(tmp_path) == OPEN.after


def test_records_outlive_the_offsets_of_their_batches(tmp_path: Path) -> None:
    """GIVEN a power cut that removed the offsets of the last two batches, not fsynced by Spark,
    THEN what they have delivered is known, and the log may have removed it."""
    records = with_open_batch(tmp_path, committed=True)
    records.close(OPEN, KNOWN)
    end, reached = Position(Lsn(KNOWN.lsn + 16)), Position(Lsn(KNOWN.lsn + 32))
    records.close(OpenBatch(3, KNOWN), end)
    assert checkpoint.delivered(tmp_path) == end
    records.note(OpenBatch(4, end), OpenProgress(reached=str(reached)))
    assert checkpoint.delivered(tmp_path) == reached


def test_a_reset_forgets_open_batches(tmp_path: Path) -> None:
    records = with_open_batch(tmp_path, committed=False)
    records.note(OPEN, OpenProgress(reached="0/60.0"))
    checkpoint.reset(tmp_path, StartRecord.after_reset("a1", KNOWN))
    assert (checkpoint.running(tmp_path), records.progress()) == (None, None)
    assert checkpoint.delivered(tmp_path) is None

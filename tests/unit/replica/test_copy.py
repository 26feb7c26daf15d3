"""What a copy keeps when it has to cut its log: because of damage, or of another history."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import DiskFullError
from tailrace.log.format import mark as marks
from tailrace.log.format.segment import list_segments
from tailrace.log.store import LocalStore
from tailrace.observe import failpoint
from tailrace.replica import kept
from tailrace.replica.copy import Copy
from tailrace.replica.frames import Data, Marked
from tests.fix_log import TestLog, all_changes, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.log.format.mark import Mark


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[LocalStore]:
    """A log of several segments."""
    store = LocalStore(tmp_path / "leader", create=True)
    log = TestLog(store, segment_bytes=2000, log_id="log-1")  # type: ignore[arg-type]
    for number in range(30):
        log.append(transaction(number))
    log.close()
    assert len(list_segments(store)) > 2
    yield store
    failpoint.configure("")


@pytest.fixture
def copied(tmp_path: Path, leader: LocalStore) -> Copy:
    """A copy of it."""
    made = Copy(LocalStore(tmp_path / "copy", create=True))
    made.open()
    fill(made, leader)
    return made


def mark_of(store: LocalStore) -> Mark:
    found = marks.peek(store)
    assert found is not None
    return found


def fill(copy: Copy, leader: LocalStore, *, visible: Mark | None = None) -> None:
    """Send a copy what it lacks."""
    first = list_segments(leader)[0].sequence
    sequence, offset = (first, 0) if copy.mark is None else copy.mark.place
    copy.begin("log-1", sequence, offset)
    for name in list_segments(leader):
        if name.sequence >= sequence:
            at = offset if name.sequence == sequence else 0
            content = leader.read(name.file, at, 1 << 20)
            if content:
                copy.write(Data(name.sequence, name.base_lsn, at, index=False, content=content))
    copy.publish(Marked(oldest=first, mark=mark_of(leader), visible=visible))


def names_kept(copy: Copy) -> list[str]:
    return sorted(path.name for path in kept.folder_of(copy.store).glob("*"))


def last_file(copy: Copy) -> Path:
    return copy.store.folder / list_segments(copy.store)[-1].file


def flip(path: Path, at: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return bytes(data)


def again(copy: Copy) -> Copy:
    """The copy after a restart."""
    copy.close()
    made = Copy(copy.store)
    made.open()
    return made


def test_what_is_before_the_damage_stays(copied: Copy, leader: LocalStore) -> None:
    """GIVEN a flipped byte in the last segment WHEN the follower starts, without a leader THEN its
    readers have everything before it, and the segment is kept until the copy is whole again."""
    before = all_changes(copied.store)
    path = last_file(copied)
    damaged = flip(path, path.stat().st_size - 10)
    opened = again(copied)
    assert opened.repairs == 1
    left = all_changes(opened.store)
    assert 0 < len(left) < len(before)
    assert left == before[: len(left)]
    assert path.exists(), "the segment has readable transactions"
    assert names_kept(opened) == [f"{path.name}.damaged"]
    assert (kept.folder_of(opened.store) / f"{path.name}.damaged").read_bytes() == damaged
    opened = again(opened)
    assert opened.repairs == 0
    fill(opened, leader)
    assert all_changes(opened.store) == before
    assert names_kept(opened) == []


@pytest.mark.parametrize("at", [0, 30])
def test_a_segment_without_a_readable_start(copied: Copy, leader: LocalStore, at: int) -> None:
    before, path = all_changes(copied.store), last_file(copied)
    damaged = flip(path, at)
    opened = again(copied)
    assert not path.exists()
    assert (kept.folder_of(opened.store) / f"{path.name}.damaged").read_bytes() == damaged
    fill(opened, leader)
    assert (all_changes(opened.store), names_kept(opened)) == (before, [])


def test_a_crash_while_damage_is_cut(copied: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a crash after the cut and before the mark is removed THEN the file still has all."""
    path = last_file(copied)
    damaged = flip(path, path.stat().st_size - 10)
    copied.close()

    def crash(_name: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(copied.store, "remove", crash)
        with pytest.raises(KeyboardInterrupt):
            Copy(copied.store).open()
    opened = again(copied)
    assert opened.mark is not None
    assert (kept.folder_of(opened.store) / f"{path.name}.damaged").read_bytes() == damaged


def test_what_is_cut_is_kept_durably(copied: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN no space for what is cut THEN nothing is cut; the next attempt leaves one file."""
    path, mark = last_file(copied), copied.mark
    content = path.read_bytes()
    assert mark is not None
    offset = mark.offset // 2
    for _ in range(2):
        failpoint.configure("replica.keep=enospc")
        with pytest.raises(DiskFullError):
            copied.cut(mark.sequence, offset)
        assert (path.read_bytes(), names_kept(copied)) == (content, [])
        assert marks.peek(copied.store) == mark
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_bytes() == content))
    copied.cut(mark.sequence, offset)
    assert synced[0], "the file was not durable before the log was cut"
    [name] = names_kept(copied)
    assert name == f"{path.name}.{offset}.{mark.epoch}"
    assert (kept.folder_of(copied.store) / name).read_bytes() == content[offset:]
    assert kept.bytes_kept(copied.store) == len(content) - offset


def test_readers_follow_a_leader_that_no_longer_hides(copied: Copy, leader: LocalStore) -> None:
    """GIVEN `visible: quorum` and later `durable` THEN readers of the copy see all of it."""
    early = marks.peek(leader)
    fill(copied, leader, visible=early)
    assert marks.for_readers(copied.store) == marks.VISIBLE
    opened = again(copied)
    fill(opened, leader)
    assert marks.for_readers(opened.store) == marks.NAME

"""The small state of a leader arrives at its followers, and never before the log that it needs."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkFencedError
from tailrace.replica.adopt import adopt
from tailrace.replica.small_state import folder_of
from tailrace.replicated import Replicated
from tailrace.replicated import folder_of as notes_of
from tests.integration.replica.cluster import Copy, Leading, Runs, Source, arrived, free_port
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "pipeline.orders.tar"


def write(source: Source, path: str, text: str) -> None:
    """A file of the leader's data folder."""
    file = source.store.folder / "data" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def offsets(copy: Copy) -> dict[str, str]:
    """The planned batches in the bundle that a follower has."""
    path = folder_of(copy.data) / ORDERS
    if not path.exists():
        return {}
    with tarfile.open(path) as tar:
        found = [(each.name, tar.extractfile(each)) for each in tar]
        return {
            name.rpartition("/")[2]: file.read().decode()
            for name, file in found
            if file is not None and "/offsets/" in name
        }


def test_followers_have_the_newest_state(tmp_path: Path) -> None:
    """GIVEN pipelines of a leader WHEN their state changes THEN two followers have it, while the
    log goes on; and what is removed goes there, too."""
    source = Source(tmp_path / "leader")
    copies = [Copy(tmp_path / "one"), Copy(tmp_path / "two")]
    write(source, "checkpoints/orders/offsets/1", "first")
    write(source, "checkpoints/other/offsets/1", "first")
    leading = Leading(source.store, *(copy.address for copy in copies))
    wait_for(lambda: all(offsets(copy) == {"1": "first"} for copy in copies))
    for number in range(2, 6):
        source.append()
        write(source, f"checkpoints/orders/offsets/{number}", f"batch {number}")
    wait_for(lambda: all(offsets(copy).get("5") == "batch 5" for copy in copies))
    arrived(source, *copies)
    (source.store.folder / "data/checkpoints/other/offsets/1").unlink()
    (source.store.folder / "data/checkpoints/other/offsets").rmdir()
    (source.store.folder / "data/checkpoints/other").rmdir()
    other = "pipeline.other.tar"
    wait_for(lambda: not any((folder_of(copy.data) / other).exists() for copy in copies))
    figures = leading.leader.figures().followers
    assert all(each.state_bytes > 0 for each in figures)
    wait_for(lambda: not any(each.state_lacking for each in leading.leader.figures().followers))
    for each in (leading, *copies):
        each.end()
        assert each.error is None
    assert adopt(copies[0].data, copies[0].store.folder) == []
    source.close()


def test_a_follower_that_comes_back_gets_what_it_lacks(tmp_path: Path) -> None:
    """GIVEN a follower that was away WHEN it is back THEN it has the state of now."""
    source = Source(tmp_path / "leader")
    copy = Copy(tmp_path / "one")
    write(source, "checkpoints/orders/offsets/1", "first")
    leading = Leading(source.store, copy.address)
    wait_for(lambda: offsets(copy) == {"1": "first"})
    copy.end()
    write(source, "checkpoints/orders/offsets/2", "second")
    source.append()
    again = Copy(tmp_path / "one", copy.port)
    wait_for(lambda: offsets(again) == {"1": "first", "2": "second"})
    arrived(source, again)
    for each in (leading, again):
        each.end()
    source.close()


def test_a_large_bundle_does_not_hold_up_the_log(tmp_path: Path) -> None:
    """GIVEN a bundle of many pieces WHEN the log grows meanwhile THEN both arrive."""
    source = Source(tmp_path / "leader")
    copy = Copy(tmp_path / "one")
    write(source, "checkpoints/orders/offsets/1", "first")
    write(source, "backfills/orders/spool/1.arrow", "x" * (40 << 20))
    leading = Leading(source.store, copy.address)
    for _ in range(20):
        source.append()
    arrived(source, copy)
    wait_for(lambda: offsets(copy) == {"1": "first"})
    for each in (leading, copy):
        each.end()
        assert each.error is None
    source.close()


def test_without_it_only_the_log_is_copied(tmp_path: Path) -> None:
    source = Source(tmp_path / "leader")
    copy = Copy(tmp_path / "one")
    write(source, "checkpoints/orders/offsets/1", "first")
    leading = Leading(source.store, copy.address, state_every_s=0)
    arrived(source, copy)
    holds(lambda: not folder_of(copy.data).exists(), 0.5)
    leading.end()
    copy.end()
    source.close()


def test_a_task_waits_until_followers_have_what_it_parks(tmp_path: Path) -> None:
    """GIVEN mode sync WHEN a task parks a message THEN it goes on only when the follower has it;
    after that, the next one needs no other change to be noticed."""
    source = Source(tmp_path / "leader")
    data = source.store.folder / "data"
    write(source, "checkpoints/orders/offsets/1", "first")
    port = free_port()
    # Rounds are rare: only the request of the task begins one.
    leading = Leading(source.store, f"127.0.0.1:{port}", mode="sync", state_every_s=60.0)
    replicated = Replicated(notes_of(data), "orders")
    for number in range(3):
        write(source, f"parked/orders/parts/{number}.part", "parked")
        task = Runs()
        task.start(replicated.wait, lambda: None)
        if not number:
            holds(lambda: replicated.noted_ns() == 0, 0.5)
            copy = Copy(tmp_path / "one", port)
        task.end()
        assert task.error is None
        with tarfile.open(folder_of(copy.data) / ORDERS) as tar:
            assert f"parked/orders/parts/{number}.part" in tar.getnames()
    task = Runs()
    task.start(replicated.wait, lambda: None)
    task.end()
    for each in (leading, copy):
        each.end()
        assert each.error is None
    source.close()


def test_all_connected_followers_must_have_it(tmp_path: Path) -> None:
    """GIVEN two followers and a quorum of one THEN both have it: either may take over. Without the
    second one, the first is enough."""
    source = Source(tmp_path / "leader")
    write(source, "parked/orders/parts/1.part", "parked")
    one, two = Copy(tmp_path / "one"), Copy(tmp_path / "two")
    leading = Leading(source.store, one.address, two.address, mode="sync", state_every_s=60.0)
    replicated = Replicated(notes_of(source.store.folder / "data"), "orders")
    arrived(source, one, two)
    replicated.wait(lambda: None)
    assert all((folder_of(copy.data) / ORDERS).exists() for copy in (one, two))
    two.end()
    followers = leading.leader.figures().followers
    wait_for(lambda: not all(each.connected for each in leading.leader.figures().followers))
    assert len(followers) == 2
    write(source, "parked/orders/parts/2.part", "parked")
    replicated.wait(lambda: None)
    leading.end()
    one.end()
    source.close()


def test_a_task_that_waits_can_be_replaced(tmp_path: Path) -> None:
    def replaced() -> None:
        raise SinkFencedError("replaced")

    with pytest.raises(SinkFencedError):
        Replicated(tmp_path, "orders").wait(replaced)


def test_a_note_of_another_boot_means_nothing(tmp_path: Path) -> None:
    replicated = Replicated(tmp_path, "orders")
    (tmp_path / "orders").write_text(f"another-boot {2**62}")
    assert replicated.noted_ns() == 0
    replicated.note(5)
    assert replicated.noted_ns() == 5

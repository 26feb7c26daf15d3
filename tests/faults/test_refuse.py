"""What can mean loss stops capture in a named state, with its exit code, and changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.log.appender import Appender, Layout
from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind
from tailrace.log.lease import Lease
from tailrace.log.store import LocalStore
from tailrace.position import Lsn
from tests.faults.disk import mounted
from tests.faults.harness import Rig
from tests.fix_postgres import Database
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

GAP, SLOT_LOST, DIVERGED, DISK_FULL, CORRUPT, FENCED, STORAGE = 10, 11, 12, 13, 14, 15, 17


@pytest.fixture
def used(rig: Rig) -> Rig:
    """A rig that has captured something."""
    insert(rig, 1)
    rig.catch_up()
    return rig


def insert(rig: Rig, number: int, rows: int = 10) -> None:
    rig.database.execute(
        "INSERT INTO ledger SELECT %s, g, %s, repeat('z', 100) FROM generate_series(1, %s) g",
        number,
        rows,
        rows,
    )


def files(rig: Rig) -> dict[str, bytes]:
    """What is the truth on disk; index and lease are made anew at every start."""
    kept = [*rig.log_folder.glob("*.seg"), rig.log_folder / "durable"]
    return {path.name: path.read_bytes() for path in kept}


def refuses(rig: Rig, exit_code: int, code: str) -> None:
    """Capture ends with this state, twice, and leaves the log as it was."""
    before = files(rig)
    for _ in range(2):
        assert rig.start().wait(LONG_S) == exit_code, rig.output()[-3000:]
    assert f"{code}: " in rig.output()
    assert "hint: " in rig.output()
    assert files(rig) == before


def test_slot_dropped(used: Rig) -> None:
    used.database.query("SELECT pg_drop_replication_slot(%s)", used.slot)
    refuses(used, SLOT_LOST, "SLOT_LOST")


def test_slot_dropped_and_made_again(used: Rig) -> None:
    used.database.query("SELECT pg_drop_replication_slot(%s)", used.slot)
    insert(used, 2)
    used.database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", used.slot)
    refuses(used, GAP, "GAP")


def test_slot_advanced_by_hand(used: Rig) -> None:
    insert(used, 2)
    used.database.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", used.slot)
    refuses(used, GAP, "GAP")


def test_log_of_another_database(used: Rig, victim_database: Database, tmp_path: Path) -> None:
    server = victim_database.server
    other = Database(name=server.create_database("other"), server=server)
    try:
        stranger = Rig(other, tmp_path / "stranger")
        stranger.log_folder.symlink_to(used.log_folder)
        assert stranger.start().wait(LONG_S) == DIVERGED
        assert "DIVERGED: the log holds changes of database" in stranger.output()
    finally:
        server.drop_database(other.name)


def test_server_whose_wal_ends_before_the_log_has_diverged(used: Rig) -> None:
    """As after a restore from backup: the log ends where the server's WAL has not been yet."""
    store = LocalStore(used.log_folder)
    lease = Lease.acquire(store)
    appender = Appender.open(store, lease, Layout())
    assert appender is not None
    mark = appender.mark
    ahead = Entry(
        kind=Kind.PROGRESS,
        first=mark.position,
        last=mark.position,
        end_lsn=Lsn(mark.end_lsn + (1 << 40)),
        first_time=mark.time,
        last_time=mark.time,
        offsets=NO_OFFSETS,
        body=b"",
    )
    appender.append(ahead)
    appender.close()
    lease.release()
    refuses(used, DIVERGED, "DIVERGED")


@pytest.mark.parametrize(
    "point", ["log.before-write", "log.before-sync", "store.create", "store.before-rename"]
)
def test_disk_full_at_every_write(used: Rig, point: str) -> None:
    insert(used, 2, rows=5000)
    process = used.start(failpoints=f"{point}=enospc@{3 if point.startswith('log') else 2}")
    assert process.wait(LONG_S) == DISK_FULL, used.output()[-3000:]
    assert "DISK_FULL: " in used.output()
    used.check_acknowledged()
    used.check_log()
    used.catch_up()
    used.check_log(complete=True)


def test_disk_full_for_real(used: Rig) -> None:
    """The kernel refuses in the middle of a write; half an entry stays on disk."""
    insert(used, 2, rows=5000)
    process = used.start(file_bytes=100_000)
    assert process.wait(LONG_S) == DISK_FULL, used.output()[-3000:]
    used.check_acknowledged()
    used.check_log()
    assert used.start(file_bytes=100_000).wait(LONG_S) == DISK_FULL
    used.catch_up()
    used.check_log(complete=True)


def test_disk_full_on_a_small_file_system(rig: Rig) -> None:
    with mounted(rig.log_folder, "512k") as disk:
        insert(rig, 1, rows=20_000)
        assert rig.start().wait(LONG_S) == DISK_FULL, rig.output()[-3000:]
        assert "No space left" in rig.output()
        assert rig.check_log() == 0
        rig.check_acknowledged()
        disk.resize("64m")
        rig.catch_up()
        assert rig.check_log(complete=True) == 20_000


def test_failed_fsync_ends_the_process(used: Rig) -> None:
    insert(used, 2)
    process = used.start(failpoints="log.before-sync=eio@1")
    assert process.wait(LONG_S) == STORAGE, used.output()[-3000:]
    used.catch_up()
    used.check_log(complete=True)


def test_torn_tail_is_cut_off(used: Rig) -> None:
    insert(used, 2)
    assert used.start(failpoints="log.torn-write=kill@1").wait(LONG_S) == -9
    used.check_log()
    used.catch_up()
    used.check_log(complete=True)


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_flipped_byte_in_the_middle(used: Rig, where: float) -> None:
    for number in (2, 3):
        insert(used, number)
        used.catch_up()
    segment = max(used.log_folder.glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[int(len(data) * where)] ^= 0x10
    segment.write_bytes(data)
    refuses(used, CORRUPT, "CORRUPT")


def test_two_captures_on_one_log(used: Rig) -> None:
    first = used.start()
    wait_for(lambda: "capture.streaming" in first.output, "the first to stream")
    second = used.start()
    assert second.wait() == FENCED
    assert f"process {first.pid} " in used.output()
    insert(used, 2)
    used.check_stopped(first)
    used.catch_up()
    used.check_log(complete=True)


def test_a_paused_appender_is_fenced_after_a_takeover(used: Rig) -> None:
    """On shared storage a lock can be lost; the epoch in the lease file still stops the loser."""
    process = used.start()
    wait_for(lambda: "capture.streaming" in process.output, "capture to stream")
    lock = used.log_folder / "lock"
    lock.unlink()
    taken = Lease.acquire(LocalStore(used.log_folder))
    insert(used, 2)
    assert process.wait() == FENCED, used.output()[-3000:]
    taken.release()
    used.catch_up()
    used.check_log(complete=True)


def test_stops_in_order_and_acknowledges(used: Rig) -> None:
    process = used.start()
    insert(used, 2)
    wait_for(lambda: "capture.streaming" in process.output, "capture to stream")
    end = used.server_end()
    wait_for(lambda: used.confirmed() >= end, "the slot to move")
    used.check_stopped(process)
    if "capture.stop_timed_out" not in process.output:
        assert json.loads(used.output().splitlines()[-1])["event"] == "capture.stopped"
    assert used.check_log(complete=True) == 20

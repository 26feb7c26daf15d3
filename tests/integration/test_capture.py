"""`tailrace capture` as a user meets it: when all is well, and what it says when it is not."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.capture.capture import Capture
from tailrace.change import Op
from tailrace.log.format.segment import list_segments, read_header
from tailrace.log.store import LocalStore
from tailrace.log.verify import verify
from tailrace.testing import EmbeddedPostgres
from tests import command
from tests.fix_capture import Captured
from tests.waiting import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_postgres import Database

    MakeCapture = Callable[..., Captured]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command.run("capture", *arguments)


def refused(result: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    assert result.returncode == exit_code, result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr


def test_changes_arrive_in_order_over_two_runs(database: Database, capture: MakeCapture) -> None:
    database.execute(TABLE)
    captured = capture(database)
    database.execute("INSERT INTO t VALUES (1, 'a')")
    database.execute("INSERT INTO t VALUES (2, 'b')")
    first = captured.catch_up()
    database.execute("UPDATE t SET v = 'c' WHERE id = 1")
    database.execute("DELETE FROM t WHERE id = 2")
    second = captured.catch_up()
    assert [change.op for change in first + second] == [
        Op.INSERT,
        Op.INSERT,
        Op.UPDATE,
        Op.DELETE,
    ]
    positions = [change.position for change in captured.changes()]
    assert positions == sorted(set(positions))


def test_heartbeats_are_captured(database: Database, capture: MakeCapture) -> None:
    captured = capture(database, capture={"heartbeat_s": 0.05})
    stop = threading.Event()
    thread = threading.Thread(target=Capture(captured.config, stopping=stop.is_set).run)
    thread.start()
    try:
        wait_for(
            lambda: any(captured.folder.glob("durable")) and len(captured.changes()) >= 3, "beats"
        )
    finally:
        stop.set()
        thread.join()
    beats = [change for change in captured.changes() if change.prefix == "tailrace.heartbeat"]
    assert len(beats) >= 3
    assert all(change.op is Op.MESSAGE and change.xid for change in beats)


def test_message_before_the_first_commit_has_a_time(
    database: Database, capture: MakeCapture
) -> None:
    """It has none of its own on the wire, and takes the server's clock when the log was made."""
    captured = capture(database)
    database.query("SELECT pg_logical_emit_message(false, 'loose', 'x')")
    [message] = captured.catch_up()
    [(early, late)] = database.query("SELECT now() - interval '1 hour', now()")
    assert message.prefix == "loose"
    assert early < message.committed_at <= late


def test_compressed_log_holds_the_same(database: Database, capture: MakeCapture) -> None:
    database.execute(TABLE)
    captured = capture(database, log={"codec": "zstd"})
    database.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g")
    changes = captured.catch_up()
    assert [change.after for change in changes] == [
        (str(number).encode(), b"x" * 500) for number in range(1, 2001)
    ]
    size = sum(file.stat().st_size for file in captured.folder.glob("*.seg"))
    assert size < 2000 * 100


def test_retention_removes_old_segments(database: Database, capture: MakeCapture) -> None:
    database.execute(TABLE)
    settings: dict[str, object] = {"segment_bytes": 20_000, "flush_bytes": 5_000}
    captured = capture(database, log=settings)
    for number in range(40):
        database.execute(f"INSERT INTO t VALUES ({number}, repeat('x', 5000))")
        if number % 10 == 9:
            # What comes at once may be one entry, and so one segment.
            captured.catch_up()
    captured = Captured(database, captured.folder, log=settings | {"keep_bytes": 50_000})
    captured.catch_up()  # every run sweeps at its start
    after = list_segments(LocalStore(captured.folder))
    assert after[0].sequence > 1
    header, _ = read_header(LocalStore(captured.folder), after[0])
    kept = captured.changes()
    assert 0 < len([change for change in kept if change.op is Op.INSERT]) < 40
    assert all(change.position > header.base for change in kept)


def test_server_that_does_not_answer(tmp_path: Path) -> None:
    dsn = "host=127.0.0.1 port=1 dbname=shop password=canary-7f3a"
    result = run("--dsn", dsn, "--log", str(tmp_path / "log"))
    refused(result, 20, "UNREACHABLE: ", "hint: ")
    assert "canary" not in result.stdout + result.stderr


def test_unknown_key(tmp_path: Path) -> None:
    config = tmp_path / "tailrace.yml"
    config.write_text("log: {flush_mss: 5}\n")
    refused(run("-c", str(config)), 2, "log.flush_mss", "flush_ms")


def test_bad_lsn() -> None:
    refused(run("--until", "yesterday"), 2, "BAD_CONFIG: --until", "16/B374D848")


def test_missing_slot(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    result = run("--dsn", database.dsn, "--log", str(tmp_path / "log"))
    refused(result, 22, "replication slot tailrace does not exist", "tailrace init")
    assert not list((tmp_path / "log").glob("*.seg"))
    count = "SELECT count(*) FROM pg_replication_slots WHERE database = %s"
    assert database.query(count, database.name) == [(0,)]


def test_missing_publication(database16: Database, capture: MakeCapture) -> None:
    """On 16: 18 only warns and goes on, which the cases show."""
    database16.execute(TABLE)
    captured = capture(database16)
    database16.execute("DROP PUBLICATION tailrace; INSERT INTO t VALUES (1, 'a')")
    arguments = ("--dsn", database16.dsn, "--slot", captured.slot, "--log", str(captured.folder))
    refused(run(*arguments), 22, "publication", "tailrace init")


def test_role_without_replication(database: Database, capture: MakeCapture) -> None:
    captured = capture(database)
    role = f"plain_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        dsn = database.server.dsn(database.name, user=role)
        result = run("--dsn", dsn, "--slot", captured.slot, "--log", str(captured.folder))
        refused(result, 22, "REFUSED: ", f'ALTER ROLE "{role}" REPLICATION')
    finally:
        database.execute(f"DROP ROLE {role}")


def test_wal_level_replica(tmp_path: Path) -> None:
    with EmbeddedPostgres(18, settings={"wal_level": "replica"}) as server:
        result = run("--dsn", server.dsn(), "--log", str(tmp_path / "log"))
    refused(result, 22, "hint: ")


def test_dropped_tables_are_forgotten_when_capture_connects(
    database: Database, capture: MakeCapture
) -> None:
    captured = capture(database, log={"segment_bytes": 65_536})
    for name in ("stays", "goes"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {name} VALUES (1, 'a')")
    captured.catch_up()
    # Its last change is captured after it was dropped.
    database.execute("UPDATE goes SET v = 'b'")
    database.execute("DROP TABLE goes")
    database.execute("UPDATE stays SET v = 'b'")
    assert [change.op for change in captured.catch_up()] == [Op.UPDATE, Op.UPDATE]
    for _ in range(2):
        database.execute("UPDATE stays SET v = repeat('x', 100000)")
        captured.catch_up()
    log = captured.log
    known = {relation.name for _, relation, _ in log.relations(log.end().position)}
    assert known == {"stays"}
    assert verify(LocalStore(captured.folder)).findings == []

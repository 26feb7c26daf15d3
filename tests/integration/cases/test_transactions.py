"""P31 to P35, P37, P39, P40: transactions in commit order, whole, once; messages and origins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.capture.capture import Capture
from tailrace.change import Op
from tailrace.log.changes import read_changes
from tailrace.log.format.entry import Kind
from tailrace.log.reader import Earliest
from tailrace.position import Lsn
from tests.integration.cases.replay import Replay, inserted, select
from tests.integration.cases.running import confirmed, running, settle, wal_end
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from tailrace.change import Change
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
SMALL = {"flush_bytes": 4096, "segment_bytes": 16384}


def ids(changes: list[Change]) -> list[int]:
    return [int(str(row[0], "ascii")) for row in inserted(changes) if isinstance(row[0], bytes)]


def xid(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(row[0])


def run_until(captured: Captured, until: Lsn) -> Capture:
    """Capture without the marker that `catch_up` commits."""
    capture = Capture(captured.config, stopping=lambda: False)
    capture.run(until=until)
    return capture


def test_p31_order_is_by_commit(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    with db.connect() as a, db.connect() as b:
        a.execute("BEGIN; INSERT INTO t VALUES (1, 'A')")
        b.execute("BEGIN; INSERT INTO t VALUES (2, 'B')")
        xids = [xid(b), xid(a), xid(a)]
        b.execute("COMMIT")
        a.execute("INSERT INTO t VALUES (3, 'A')")
        a.execute("COMMIT")
    changes = captured.catch_up()
    assert ids(changes) == [2, 1, 3]
    assert [change.xid for change in changes] == xids
    assert changes == sorted(changes, key=lambda change: change.position)
    assert [change.committed_at for change in changes] == sorted(
        change.committed_at for change in changes
    )


def test_p31_transaction_open_over_a_restart_comes_whole(db: Database, capture: Capturing) -> None:
    """Its first row lies before what is acknowledged; its commit does not."""
    db.execute(TABLE)
    captured = capture(db)
    with db.connect() as a:
        a.execute("BEGIN; INSERT INTO t VALUES (1, 'A')")
        db.execute("INSERT INTO t VALUES (2, 'B')")
        assert ids(captured.catch_up()) == [2]
        a.execute("INSERT INTO t VALUES (3, 'A')")
        a.execute("COMMIT")
    assert ids(captured.catch_up()) == [1, 3]


def test_p32_transaction_that_begins_where_the_last_one_ended(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    with db.connect() as session:
        session.execute("INSERT INTO t VALUES (1, 'a')")
        end = wal_end(db)
        run_until(captured, end)
        assert captured.log.end().end_lsn >= end
        session.execute("INSERT INTO t VALUES (2, 'b')")
    assert run_until(captured, wal_end(db)).counts.figures.changes == 1
    assert ids(captured.changes()) == [1, 2]


def test_p33_rows_that_share_an_lsn_have_ordinals(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.query("SELECT pg_create_logical_replication_slot('w' || current_database(), 'pgoutput')")
    with db.connect() as session, session.cursor().copy("COPY t FROM STDIN") as copy:
        for number in range(10_000):
            copy.write_row((number, f"row {number}"))
    [(rows, lsns)] = db.query(
        "SELECT count(*), count(DISTINCT lsn) FROM pg_logical_slot_peek_binary_changes("
        "'w' || current_database(), NULL, NULL, 'proto_version', '1', "
        "'publication_names', 'tailrace') WHERE get_byte(data, 0) = ascii('I')"
    )
    assert lsns < rows == 10_000
    changes = captured.catch_up()
    assert [change.position.ordinal for change in changes] == list(range(10_000))
    assert len({change.position.event_id for change in changes}) == 10_000
    assert inserted(changes) == select(db, "SELECT * FROM t ORDER BY id")


def test_p34_the_end_of_the_commit_is_acknowledged(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 100) i")
    end = wal_end(db)
    assert run_until(captured, end).counts.figures.changes == 100
    assert confirmed(captured) == captured.log.end().end_lsn >= end
    assert run_until(captured, end).counts.figures.changes == 0
    assert ids(captured.changes()) == list(range(1, 101))


def test_p34_slot_before_the_end_of_the_log_repeats_nothing(
    db: Database, capture: Capturing
) -> None:
    """PostgreSQL saves a slot's position at checkpoints only: after a crash it is older."""
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'a')")
    older = f"{captured.slot}_behind"
    db.query("SELECT pg_copy_logical_replication_slot(%s::name, %s::name)", captured.slot, older)
    assert ids(captured.catch_up()) == [1]
    db.query("SELECT pg_drop_replication_slot(%s)", captured.slot)
    db.query("SELECT pg_copy_logical_replication_slot(%s::name, %s::name)", older, captured.slot)
    assert confirmed(captured) < captured.log.end().end_lsn
    db.execute("INSERT INTO t VALUES (2, 'b')")
    assert ids(captured.catch_up()) == [2]
    assert confirmed(captured) == captured.log.end().end_lsn


def test_p35_only_what_survives_its_savepoint(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    with db.connect() as session:
        session.execute(
            "BEGIN; INSERT INTO t VALUES (1, 'stays'); SAVEPOINT a; INSERT INTO t VALUES (2, 'no');"
            "SAVEPOINT b; INSERT INTO t VALUES (3, 'no'); ROLLBACK TO a;"
            "INSERT INTO t VALUES (4, 'stays'); RELEASE a; SAVEPOINT c;"
            "INSERT INTO t VALUES (5, 'stays'); RELEASE c"
        )
        top = xid(session)
        session.execute("COMMIT")
    db.execute("BEGIN; INSERT INTO t VALUES (6, 'no'); ROLLBACK")
    changes = captured.catch_up()
    assert ids(changes) == [1, 4, 5]
    assert {change.xid for change in changes} == {top}
    assert [change.position.ordinal for change in changes] == [0, 1, 2]
    Replay().apply(changes).check(db)


@pytest.fixture
def origin(db: Database) -> Iterator[str]:
    """A replication origin; those belong to the server, not to a database."""
    name = f"{db.name} é"
    db.query("SELECT pg_replication_origin_create(%s)", name)
    yield name
    db.query("SELECT pg_replication_origin_drop(%s)", name)


def test_p37_large_transaction_is_whole_in_pieces(
    db: Database, capture: Capturing, origin: str
) -> None:
    """GIVEN a transaction many times larger than an entry, between small ones,
    WHEN it is read from any position, THEN its rows follow each other, each with its origin."""
    db.execute(TABLE)
    captured = capture(db, log=SMALL)
    db.execute("INSERT INTO t VALUES (-1, 'before')")
    with db.connect() as session:
        session.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
        session.execute("INSERT INTO t SELECT i, repeat('x', 40) FROM generate_series(0, 2999) i")
        session.execute("SELECT pg_replication_origin_session_reset()")
    db.execute("INSERT INTO t VALUES (-2, 'after')")
    changes = captured.catch_up()
    assert ids(changes) == [-1, *range(3000), -2]
    large = changes[1:-1]
    assert [change.position.ordinal for change in large] == list(range(3000))
    assert len({(c.position.lsn, c.xid, c.committed_at) for c in large}) == 1
    assert [change.origin for change in changes] == ["", *[origin] * 3000, ""]
    pieces = [e for e in captured.log.read(captured.log.resolve(Earliest())) if not e.begins]
    assert len(pieces) > 3
    assert len(captured.log.segments()) > 3
    for number in range(0, len(changes), 97):
        rest = read_changes(captured.log, changes[number].position)
        assert [c for c in rest if c.relation] == changes[number + 1 :]


def test_p37_origin_that_arrives_after_the_first_piece(
    db: Database, capture: Capturing, origin: str
) -> None:
    """With the smallest flush, BEGIN is handed over before the origin has arrived."""
    db.execute(TABLE)
    captured = capture(db, log={"flush_bytes": 1, "flush_ms": 0})
    with db.connect() as session:
        session.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
        session.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 2000) i")
        session.execute("SELECT pg_replication_origin_session_reset()")
    changes = captured.catch_up()
    assert ids(changes) == list(range(1, 2001))
    assert {change.origin for change in changes} == {origin}


def test_p37_stop_inside_a_large_transaction_leaves_nothing_of_it(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db, log=SMALL)
    db.execute("INSERT INTO t SELECT i, repeat('x', 40) FROM generate_series(0, 19999) i")
    files = captured.folder.glob
    capturing = Capture(
        captured.config, stopping=lambda: sum(file.stat().st_size for file in files("*.seg")) > 9999
    )
    capturing.run()
    assert captured.changes() == []
    assert ids(captured.catch_up()) == list(range(20_000))


def emit(
    db: Database, *messages: tuple[bool, str], inside: str = "", end: str = "COMMIT"
) -> list[Lsn]:
    """Emit messages in one transaction; the LSNs that PostgreSQL says they have."""
    with db.connect() as session:
        session.execute("BEGIN")
        session.execute(inside.encode())
        lsns = []
        for transactional, prefix in messages:
            row = session.execute(
                "SELECT pg_logical_emit_message(%s, %s, %s::bytea)::text",
                (transactional, prefix, prefix.encode() + b"\0\xff"),
            ).fetchone()
            assert row is not None
            lsns.append(Lsn.parse(row[0]))
        session.execute(end.encode())
    return lsns


def test_p39_messages_come_with_and_without_a_transaction(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    emit(db, (True, "in"), (False, "at once"), inside="INSERT INTO t VALUES (1, 'a')")
    emit(db, (True, "never"), (False, "kept"), inside="DELETE FROM t", end="ROLLBACK")
    changes = captured.catch_up()
    assert [(change.op, change.prefix) for change in changes] == [
        (Op.MESSAGE, "at once"),
        (Op.INSERT, ""),
        (Op.MESSAGE, "in"),
        (Op.MESSAGE, "kept"),
    ]
    assert [change.content for change in changes if change.prefix] == [
        b"at once\0\xff",
        b"in\0\xff",
        b"kept\0\xff",
    ]
    assert [change.xid != 0 for change in changes] == [False, True, True, False]
    assert [change.position.ordinal for change in changes] == [0, 0, 1, 0]
    assert changes == sorted(changes, key=lambda change: change.position)


def test_p39_messages_have_ids_of_their_own(db: Database, capture: Capturing) -> None:
    """A message's LSN is where its record ends, and there the commit that follows it stands."""
    db.execute(TABLE)
    captured = capture(db)
    lsns = [
        lsn
        for number in range(50)
        for lsn in emit(
            db,
            (False, "first"),
            (False, "second"),
            inside=f"INSERT INTO t VALUES ({number}, 'a'), (-1 - {number}, 'b')",
        )
    ]
    changes = captured.catch_up()
    rows = [change for change in changes if change.op is Op.INSERT]
    assert {row.position.lsn for row in rows} & set(lsns)
    assert len(rows) == 100
    assert len(changes) == 200
    assert len({change.position.event_id for change in changes}) == 200
    assert changes == sorted(changes, key=lambda change: change.position)
    assert captured.changes(changes[77].position)[: len(changes) - 78] == changes[78:]
    Replay().apply(changes).check(db)


def test_p39_message_does_not_hide_the_commit_that_follows_it(
    database: Database, capture: Capturing
) -> None:
    """GIVEN a message that is captured while its transaction is open,
    WHEN the transaction commits at the very LSN of the message, THEN its rows come."""
    database.execute(TABLE)
    captured = capture(database)
    captured.catch_up()
    with database.connect() as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1, 'a')")
        session.execute("SELECT pg_logical_emit_message(false, 'm', 'x', flush => true)")
        with running(captured):
            wait_for(lambda: captured.changes()[-1].prefix == "m", "the message is captured")
        session.execute("COMMIT")
    assert ids(captured.catch_up()) == [1]


def test_p39_message_from_the_middle_does_not_move_past_open_transactions(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    with db.connect() as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1, 'a')")
        emit(db, (False, "in between"), end="ROLLBACK")
        assert [change.prefix for change in captured.catch_up()] == ["in between"]
        session.execute("INSERT INTO t VALUES (2, 'b')")
        session.execute("COMMIT")
    assert ids(captured.catch_up()) == [1, 2]


def test_p39_messages_can_be_left_out(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db, capture={"messages": False})
    emit(db, (True, "in"), (False, "out"), inside="INSERT INTO t VALUES (1, 'a')")
    assert ids(captured.catch_up()) == [1]
    assert ids(captured.changes()) == [1]


def test_p39_heartbeat_is_a_message(database: Database, capture: Capturing) -> None:
    captured = capture(database, capture={"heartbeat_s": 0.05})
    captured.catch_up()

    def beats() -> int:
        return sum(change.prefix == "tailrace.heartbeat" for change in captured.changes())

    with running(captured):
        wait_for(lambda: beats() >= 3, "three heartbeats")
        settle(captured)
    assert len({change.position for change in captured.changes()}) == len(captured.changes())


def test_p40_origin_holds_for_its_transaction(
    db: Database, capture: Capturing, origin: str
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'here')")
    with db.connect() as session:
        session.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
        session.execute("INSERT INTO t VALUES (2, 'there'), (3, 'there'); TRUNCATE t")
        session.execute("SELECT pg_logical_emit_message(true, 'm', '')")
        session.execute("SELECT pg_replication_origin_session_reset()")
        session.execute("INSERT INTO t VALUES (4, 'here')")
    changes = captured.catch_up()
    assert [change.origin for change in changes] == ["", *[origin] * 4, ""]
    entries = [*captured.log.read(captured.log.resolve(Earliest()))][1:]
    assert {entry.kind for entry in entries} == {Kind.TRANSACTIONS}

"""P46, P47, P49 to P53, P58, P59: what is published, and what the slot remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.capture.capture import Capture
from tailrace.capture.replication import Replication
from tailrace.change import ABSENT
from tailrace.errors import GapError, PostgresRefusedError, SlotLostError
from tailrace.position import Lsn
from tailrace.testing import EmbeddedPostgres
from tests.fix_postgres import Database
from tests.integration.cases.replay import Replay, images, inserted, relation_of, select
from tests.integration.cases.running import (
    confirmed,
    running,
    settle,
    slot_of,
    wal_end,
    walsender_pid,
)
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured

    Capturing = Callable[..., Captured]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text);"


def test_p46_row_filter_makes_inserts_and_deletes_of_updates(
    db: Database, capture: Capturing
) -> None:
    db.execute(
        "CREATE TABLE f (id int PRIMARY KEY, st text); ALTER TABLE f REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION tailrace FOR TABLE f WHERE (st = 'open')"
    )
    captured = capture(db)
    db.execute("INSERT INTO f VALUES (1, 'open'), (2, 'closed'), (3, NULL)")
    db.execute("UPDATE f SET st = 'closed' WHERE id = 1")
    db.execute("UPDATE f SET st = 'open' WHERE id = 2")
    db.execute("UPDATE f SET id = 4 WHERE id = 2; DELETE FROM f WHERE id IN (1, 3)")
    changes = captured.catch_up()
    assert images(changes) == [
        ("insert", None, (b"1", b"open")),
        ("delete", (b"1", b"open"), None),
        ("insert", None, (b"2", b"open")),
        ("update", (b"2", b"open"), (b"4", b"open")),
    ]
    rows = Replay().apply(changes).rows[relation_of(changes[0]).oid]
    assert rows == select(db, "SELECT * FROM f WHERE st = 'open'")


def test_p46_filter_outside_the_identity_refuses_the_application(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE + "CREATE PUBLICATION tailrace FOR TABLE t WHERE (v = 'open')")
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'open'), (2, 'closed')")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        db.execute("UPDATE t SET v = 'open'")
    assert inserted(captured.catch_up()) == [(b"1", b"open")]


def test_p47_column_list_hides_columns_and_not_updates(db: Database, capture: Capturing) -> None:
    """Another publication with another list does not matter: a slot reads one of them."""
    db.execute(
        "CREATE TABLE c (id int PRIMARY KEY, shown text, secret text);"
        "CREATE PUBLICATION tailrace FOR TABLE c (id, shown);"
        "CREATE PUBLICATION other FOR TABLE c (id, secret)"
    )
    captured = capture(db)
    db.execute("INSERT INTO c VALUES (1, 's', 'hidden')")
    db.execute("UPDATE c SET secret = 'hidden still'")
    db.execute("DELETE FROM c")
    changes = captured.catch_up()
    assert images(changes) == [
        ("insert", None, (b"1", b"s")),
        ("update", None, (b"1", b"s")),
        ("delete", (b"1", ABSENT), None),
    ]
    assert [column.name for column in relation_of(changes[0]).columns] == ["id", "shown"]
    assert not any(b"hidden" in file.read_bytes() for file in captured.folder.glob("*.seg"))


def refused(captured: Captured) -> PostgresRefusedError:
    with pytest.raises(
        PostgresRefusedError, match=f"publication .*{captured.publication}"
    ) as caught:
        captured.catch_up()
    assert "publication" in caught.value.hint.lower()
    return caught.value


def test_p49_publication_younger_than_the_changes_is_refused(
    db: Database, capture: Capturing
) -> None:
    """16 ends the stream with an error, 18 warns and skips: both are the same to us."""
    db.execute(TABLE)
    captured = capture(db)
    db.execute("DROP PUBLICATION tailrace; INSERT INTO t VALUES (1, 'unreadable')")
    db.execute("CREATE PUBLICATION tailrace FOR TABLE t; INSERT INTO t VALUES (2, 'later')")
    before = confirmed(captured)
    for _ in range(2):
        refused(captured)
        assert captured.changes() == []
        assert confirmed(captured) == before


def test_p49_missing_publication_is_refused_before_there_is_a_log(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("DROP PUBLICATION tailrace")
    refused(captured)
    assert not list(captured.folder.glob("*.seg"))
    db.execute("CREATE PUBLICATION tailrace FOR TABLE t; INSERT INTO t VALUES (1, 'a')")
    assert inserted(captured.catch_up()) == [(b"1", b"a")]


def test_p50_changes_before_the_publication_was_dropped_still_come(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    db.execute("INSERT INTO t VALUES (1, 'readable')")
    db.execute(
        "BEGIN; INSERT INTO t VALUES (2, 'no'); DROP PUBLICATION tailrace; "
        "INSERT INTO t VALUES (3, 'no'); COMMIT"
    )
    db.execute("CREATE PUBLICATION tailrace FOR TABLE t; INSERT INTO t VALUES (4, 'later')")
    for _ in range(2):
        refused(captured)
        assert inserted(captured.changes()) == [(b"1", b"readable")]
        assert confirmed(captured) <= captured.log.end().end_lsn


def test_p50_publication_dropped_under_a_running_capture(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    captured.catch_up()
    with running(captured) as capturing:
        db.execute("INSERT INTO t VALUES (1, 'a')")
        settle(captured)
        db.execute("DROP PUBLICATION tailrace; INSERT INTO t VALUES (2, 'b')")
        dropped = wal_end(db)
        assert isinstance(capturing.failure(), PostgresRefusedError)
    assert confirmed(captured) <= captured.log.end().end_lsn < dropped
    assert inserted([c for c in captured.changes() if c.relation]) == [(b"1", b"a")]


def test_p51_a_log_that_ends_before_the_slot_is_a_gap(db: Database, capture: Capturing) -> None:
    """GIVEN a slot that was advanced by hand, WHEN capture starts, THEN it refuses."""
    db.execute(TABLE)
    captured = capture(db)
    captured.catch_up()
    end = captured.log.end()
    db.execute("INSERT INTO t VALUES (1, 'skipped')")
    db.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", captured.slot)
    for _ in range(2):
        with pytest.raises(GapError, match=captured.slot) as caught:
            captured.catch_up()
        assert (caught.value.exit_code, caught.value.code) == (10, "GAP")
        assert captured.log.end() == end


def test_p52_slot_read_by_another_client_is_a_gap(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    captured.catch_up()
    db.execute("INSERT INTO t VALUES (1, 'taken')")
    db.query(
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'tailrace')",
        captured.slot,
    )
    with pytest.raises(GapError):
        captured.catch_up()


def test_p53_what_we_acknowledge_never_goes_back(
    db: Database, capture: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several sessions, and never ahead of what is durable."""
    db.execute(TABLE)
    captured = capture(db)
    sent: list[Lsn] = []
    send = Replication.send_status

    def spy(
        self: Replication, *, written: Lsn, flushed: Lsn, reply_requested: bool = False
    ) -> None:
        assert flushed <= captured.log.end().end_lsn
        assert flushed <= written
        sent.append(flushed)
        send(self, written=written, flushed=flushed, reply_requested=reply_requested)

    monkeypatch.setattr(Replication, "send_status", spy)
    seen = [confirmed(captured)]
    for session in range(3):
        for number in range(10):
            db.execute(f"INSERT INTO t VALUES ({session * 10 + number}, 'a')")
        captured.catch_up()
        seen.append(confirmed(captured))
    assert len(sent) >= 3
    assert sent == sorted(sent)
    assert seen == sorted(set(seen))
    assert seen[-1] == sent[-1] == captured.log.end().end_lsn


def test_p58_lost_slot_is_a_state_of_its_own(capture: Capturing) -> None:
    settings = {
        "max_slot_wal_keep_size": "1MB",
        "min_wal_size": "32MB",
        "max_wal_size": "32MB",
    }
    with EmbeddedPostgres(18, settings=settings) as server:
        db = Database(name=server.create_database("test"), server=server)
        db.execute(TABLE)
        captured = capture(db)
        db.execute("INSERT INTO t VALUES (1, 'safe')")
        captured.catch_up()
        end = captured.log.end()

        def lost() -> bool:
            db.query(
                "SELECT pg_logical_emit_message(true, '', repeat('x', 100000)), pg_switch_wal()"
            )
            db.execute("CHECKPOINT")
            return bool(slot_of(captured)["wal_status"] == "lost")

        wait_for(lost, "PostgreSQL gives the slot up")
        assert slot_of(captured)["restart_lsn"] is None
        for _ in range(2):
            with pytest.raises(SlotLostError, match=captured.slot) as caught:
                captured.catch_up()
            assert (caught.value.exit_code, caught.value.code) == (11, "SLOT_LOST")
            assert "snapshot" in caught.value.hint
        assert captured.log.end() == end


def test_p59_dropped_slot_is_never_made_again_by_capture(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    captured.catch_up()
    db.query("SELECT pg_drop_replication_slot(%s)", captured.slot)
    with pytest.raises(SlotLostError, match=captured.slot):
        captured.catch_up()
    assert db.query("SELECT FROM pg_replication_slots WHERE slot_name = %s", captured.slot) == []


@pytest.mark.parametrize("meanwhile", ["", "INSERT INTO t VALUES (1, 'lost')"])
def test_p59_slot_dropped_and_created_again_is_a_gap(
    db: Database, capture: Capturing, meanwhile: str
) -> None:
    """Even if nothing was written in between: making a slot moves it past the log."""
    db.execute(TABLE)
    captured = capture(db)
    captured.catch_up()
    db.query("SELECT pg_drop_replication_slot(%s)", captured.slot)
    db.execute(meanwhile)
    captured.create_slot()
    with pytest.raises(GapError):
        captured.catch_up()


def test_p59_slot_dropped_under_a_running_capture(db: Database, capture: Capturing) -> None:
    db.execute(TABLE)
    captured = capture(db)
    captured.catch_up()
    with running(captured) as capturing:
        settle(captured)  # It has streamed: a first session that fails is another error.

        def dropped() -> bool:
            db.query("SELECT pg_terminate_backend(%s)", walsender_pid(captured))
            try:
                db.query("SELECT pg_drop_replication_slot(%s)", captured.slot)
            except psycopg.errors.ObjectInUse:
                return False
            return True

        wait_for(dropped, "the slot is dropped between two sessions")
        assert isinstance(capturing.failure(), SlotLostError)


def test_p59_a_first_start_without_a_slot_leaves_no_log(db: Database, capture: Capturing) -> None:
    captured = capture(db)
    db.query("SELECT pg_drop_replication_slot(%s)", captured.slot)
    with pytest.raises(PostgresRefusedError, match=captured.slot):
        Capture(captured.config, stopping=lambda: False).run()
    assert not list(captured.folder.glob("*.seg"))


def test_the_slot_is_free_after_an_orderly_end(db: Database, capture: Capturing) -> None:
    """GIVEN a stream WHEN it ends in order THEN the server has released the slot, which
    other commands may then use or drop."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = capture(db)
    start = captured.log.end().end_lsn if any(captured.folder.glob("*.seg")) else Lsn(0)
    for _ in range(20):
        stream = Replication.connect(db.socket_dsn, timeout_s=60, stopping=lambda: False)
        stream.start(captured.slot, captured.publication, start, messages=False)
        stream.finish(timeout_s=60)
        assert db.query(
            "SELECT active FROM pg_replication_slots WHERE slot_name = %s", captured.slot
        ) == [(False,)]

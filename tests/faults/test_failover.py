"""Failovers under load: a standby is promoted, and capture continues with it by itself.

The new primary is the oracle: in the end its table and the log hold the same rows, each once. With
synchronous commits that is every row that was acknowledged to a writer. Without, the writer may
lose its last rows together with the old primary, and the log must not have them either.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace import config
from tailrace.capture.capture import Capture
from tailrace.errors import DivergedError, PostgresUnreachableError, TakenOverError
from tailrace.log.changes import read_changes
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.log.verify import verify
from tailrace.postgres.catalog import read_lsn, read_timeline
from tailrace.postgres.slot import create_slot
from tailrace.replica.takeover import take_over
from tailrace.snapshot.timeline import check_timeline
from tailrace.testing import EmbeddedPostgres
from tailrace.testing.postgres import PRIMARY
from tests.faults import soak
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.position import Lsn

pytestmark = pytest.mark.long

ROUNDS = 10
DATABASE = "postgres"


class Writer(threading.Thread):
    """Inserts numbers, one transaction each, at whichever server accepts writes."""

    def __init__(self, dsn: str, numbers: Iterator[int]) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._numbers = numbers
        self.stopping = threading.Event()
        self.acknowledged: list[int] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection,
            ):
                while not self.stopping.is_set():
                    number = next(self._numbers)
                    connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
                    self.acknowledged.append(number)
            time.sleep(0.01)


class Cluster:
    """A primary and a standby; after a failover the next standby is a copy of the new primary."""

    def __init__(self, owned: contextlib.ExitStack, *, synchronous: bool) -> None:
        self._owned = owned
        self._synchronous = synchronous
        self._names = (f"standby_{number}" for number in itertools.count())
        self.primary = owned.enter_context(EmbeddedPostgres(18, settings=PRIMARY))
        self.standby = self._next_standby()

    def _next_standby(self) -> EmbeddedPostgres:
        copy = self.primary.standby(next(self._names), synchronous=self._synchronous)
        self._owned.callback(copy.destroy)
        return copy

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()
        self.primary = self.standby

    def add_standby(self) -> None:
        self.standby = self._next_standby()

    def dsn(self, *servers: EmbeddedPostgres) -> str:
        """Of whichever of the servers is the primary."""
        ports = ",".join(str(server.port) for server in servers)
        hosts = ",".join("127.0.0.1" for _ in servers)
        return (
            f"host={hosts} port={ports} user=postgres dbname={DATABASE} "
            "target_session_attrs=read-write"
        )


@contextlib.contextmanager
def capturing(settings: config.Config) -> Iterator[list[BaseException]]:
    """Capture on a thread; the errors that have ended it."""
    stopping = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            Capture(settings, stopping=stopping.is_set).run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    finally:
        stopping.set()
        thread.join()


def logged(folder: Path) -> list[int]:
    log = Log.open(folder)
    changes = read_changes(log, log.earliest(), log.end().position)
    return [int(change.after[0]) for change in changes if change.after]  # type: ignore[arg-type]


def rows(server: EmbeddedPostgres) -> list[int]:
    with server.connect(DATABASE) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM numbers ORDER BY n")]


def synchronised(cluster: Cluster, slot: str = "cdc") -> bool:
    """Whether the standby has the slot and may use it after a promotion.

    It may once the primary's slot has passed a list of running transactions, which PostgreSQL logs
    every 15 s. The standby's worker sleeps for up to 30 s; a reload wakes it.
    """
    with cluster.primary.connect() as connection:
        connection.execute("SELECT pg_log_standby_snapshot()")
    with cluster.standby.connect() as connection:
        connection.execute("SELECT pg_reload_conf()")
        query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"
        return (True,) in connection.execute(query, (slot,)).fetchall()


def fail_over_repeatedly(log: Path, rounds: int, *, synchronous: bool) -> None:
    """Each time the log must hold every row of the new primary once, in order."""
    numbers = itertools.count()
    with contextlib.ExitStack() as owned:
        cluster = Cluster(owned, synchronous=synchronous)
        prepare(cluster.primary)
        for last in range(rounds - 1, -1, -1):
            acknowledged = fail_over_under_load(cluster, log, numbers)
            held = rows(cluster.primary)
            assert logged(log) == held
            if synchronous:
                assert acknowledged <= set(held)
            print(f"{len(held)} rows, {len(acknowledged - set(held))} lost by the primary")
            if last:
                cluster.add_standby()
    assert verify(LocalStore(log)).findings == []
    headers = [Log.open(log).header(name) for name in Log.open(log).segments()]
    assert {each.identity.timeline for each in headers} == set(range(1, rounds + 2))
    assert len({each.log_id for each in headers}) == 1


@pytest.mark.parametrize("synchronous", [True, False])
def test_capture_continues_with_the_new_primary(tmp_path: Path, synchronous: bool) -> None:
    """GIVEN a primary under load with a standby that synchronises slots WHEN the primary is killed
    and the standby promoted, again and again THEN the log has every row of the last primary once,
    in order, and is one log."""
    fail_over_repeatedly(tmp_path / "log", ROUNDS, synchronous=synchronous)


@pytest.mark.soak
@pytest.mark.parametrize("synchronous", [True, False])
def test_capture_continues_with_the_new_primary_for_long(tmp_path: Path, synchronous: bool) -> None:
    fail_over_repeatedly(tmp_path / "log", soak.rounds(every=25), synchronous=synchronous)


def fail_over_under_load(cluster: Cluster, log: Path, numbers: Iterator[int]) -> set[int]:
    """Promote the standby while rows are written and captured; the numbers that were committed."""
    dsn = cluster.dsn(cluster.primary, cluster.standby)
    writer = Writer(dsn, numbers)
    with capturing(settings(dsn, log)) as errors:
        writer.start()
        wait_for(lambda: len(writer.acknowledged) > 200, "the load")
        wait_for(lambda: synchronised(cluster), "the slot on the standby")
        cluster.fail_over()
        before = len(writer.acknowledged)
        wait_for(lambda: len(writer.acknowledged) > before + 200, "the load to go on")
        writer.stopping.set()
        writer.join()
        count = len(rows(cluster.primary))
        wait_for(lambda: errors or len(logged(log)) >= count, "the log")
        assert errors == []
    return set(writer.acknowledged)


def test_the_slot_of_a_takeover_survives_a_failover(tmp_path: Path) -> None:
    """GIVEN a log that another machine has taken over WHEN the primary fails THEN the new leader
    continues with the promoted standby, which also fences the old leader."""
    old, new = tmp_path / "old", tmp_path / "new"
    with contextlib.ExitStack() as owned:
        cluster = Cluster(owned, synchronous=True)
        prepare(cluster.primary)
        dsn = cluster.dsn(cluster.primary, cluster.standby)
        insert(cluster.primary, 1)
        with capturing(settings(dsn, old)):
            wait_for(lambda: any(old.glob("*.seg")) and logged(old) == [1], "the leader")
        shutil.copytree(old, new)
        insert(cluster.primary, 2)
        assert take_over(settings(dsn, new), LocalStore(new)).warnings == ()
        with capturing(settings(dsn, new)) as errors:
            wait_for(lambda: synchronised(cluster, "cdc_e1"), "the slot on the standby")
            cluster.fail_over()
            insert(cluster.primary, 3)
            wait_for(lambda: errors or logged(new) == [1, 2, 3], "the new leader")
            assert errors == []
        with cluster.primary.connect() as connection:
            slots = connection.execute("SELECT slot_name::text FROM pg_replication_slots")
            assert [name for (name,) in slots if name.startswith("cdc")] == ["cdc_e1"]
        with pytest.raises(TakenOverError):
            Capture(settings(dsn, old), stopping=lambda: False).run()


def insert(server: EmbeddedPostgres, number: int) -> None:
    with server.connect(DATABASE) as connection:
        connection.execute("INSERT INTO numbers VALUES (%s)", (number,))


def prepare(primary: EmbeddedPostgres) -> None:
    with primary.connect(DATABASE) as connection:
        connection.execute("CREATE TABLE numbers (n int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        create_slot(connection, "cdc")


def settings(dsn: str, log: Path) -> config.Config:
    return config.load(None, {"source": {"dsn": dsn, "slot": "cdc"}, "log": {"path": log}})


def cut_off(standby: EmbeddedPostgres, primary: psycopg.Connection) -> None:
    """From here on the standby receives nothing, and capture does not wait for it."""
    with standby.connect() as connection:
        connection.execute("ALTER SYSTEM SET primary_conninfo TO ''")
        connection.execute("SELECT pg_reload_conf()")
    query = b"SELECT FROM pg_stat_replication WHERE application_name LIKE 'standby%'"
    wait_for(lambda: not primary.execute(query).fetchall(), "the standby to be cut off")
    primary.execute("ALTER SYSTEM RESET synchronized_standby_slots")
    primary.execute("SELECT pg_reload_conf()")


def reach(log: Log, lsn: Lsn, errors: list[BaseException]) -> None:
    """Wait until the log has reached an LSN; fail if capture does."""

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return not errors

    assert log.wait_for_lsn(lsn, wait), errors


def test_rows_that_only_the_old_primary_has_do_not_count(tmp_path: Path) -> None:
    """GIVEN rows that were read on a primary and that its standby lacks WHEN the standby is
    promoted and the log passes their LSN THEN the session that read them is on another timeline."""
    folder = tmp_path / "log"
    with contextlib.ExitStack() as owned:
        cluster = Cluster(owned, synchronous=False)
        old, new = cluster.primary, cluster.standby
        prepare(old)
        session = owned.enter_context(old.connect(DATABASE))
        with capturing(settings(cluster.dsn(old), folder)) as errors:
            session.execute("INSERT INTO numbers VALUES (1)")
            wait_for(lambda: synchronised(cluster), "the slot on the standby")
            wait_for(lambda: rows(new) == [1], "the row on the standby")
            log = Log.open(folder)
            reach(log, read_lsn(session), errors)
            check_timeline(session, log)
        cut_off(new, session)
        session.execute("INSERT INTO numbers VALUES (2)")
        lsn = read_lsn(session)
        with new.connect(DATABASE) as standby:
            assert read_timeline(standby) is None
        new.promote()
        primary = owned.enter_context(new.connect(DATABASE))
        with capturing(settings(cluster.dsn(new), folder)) as errors:
            primary.execute("INSERT INTO numbers SELECT generate_series(10, 5000)")
            assert read_lsn(primary) > lsn
            reach(log, lsn, errors)
            with pytest.raises(PostgresUnreachableError, match="timeline 1, the log is on timelin"):
                check_timeline(session, log)
            check_timeline(primary, log)
        # A server that has restarted may have lost commits, on the same timeline.
        new.kill()
        with pytest.raises(PostgresUnreachableError):
            check_timeline(primary, log)


def test_changes_that_the_new_primary_never_received_are_reported(tmp_path: Path) -> None:
    """GIVEN an asynchronous standby that lags, and a primary that does not wait for it WHEN it is
    promoted THEN capture stops with DIVERGED: the log has changes that the database has lost."""
    with contextlib.ExitStack() as owned:
        cluster = Cluster(owned, synchronous=False)
        prepare(cluster.primary)
        dsn = cluster.dsn(cluster.primary, cluster.standby)
        with capturing(settings(dsn, tmp_path / "log")) as errors:
            with cluster.primary.connect(DATABASE) as connection:
                connection.execute("INSERT INTO numbers VALUES (1)")
                wait_for(lambda: synchronised(cluster), "the slot on the standby")
                wait_for(lambda: rows(cluster.standby) == [1], "the row on the standby")
                cut_off(cluster.standby, connection)
                connection.execute("INSERT INTO numbers VALUES (2)")
            wait_for(lambda: 2 in logged(tmp_path / "log"), "the lost row in the log")
            cluster.fail_over()
            wait_for(lambda: errors, "capture to stop")
        assert isinstance(errors[0], DivergedError)
        assert "never received" in str(errors[0])
        assert rows(cluster.primary) == [1]

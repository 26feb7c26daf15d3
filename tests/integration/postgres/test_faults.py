"""Servers that die, refuse or block: what passes by itself, and what a person must correct."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.postgres.sink_type import SINK
from tailrace.testing import TcpProxy
from tests.fix_postgres import Database
from tests.integration.postgres.bench import Bench, batch, change, delivered, messages, numbered
from tests.unit.sinks.rows import position
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.testing import EmbeddedPostgres

BATCH = 60
BATCHES = 6


def test_a_server_is_killed_in_the_middle_of_a_batch(brittle: EmbeddedPostgres) -> None:
    """GIVEN a server that dies between write and flush, and once before a write WHEN it is back
    THEN each message is there once."""
    bench = Bench(Database(name=brittle.create_database("faults"), server=brittle))
    sink, number, failures = bench.sink(), 0, 0
    while number < BATCHES:
        start = number * BATCH
        try:
            sink.open(position(start - 1) if start else ORIGIN)
            if (number, failures) == (4, 1):
                brittle.kill()
            sink.write(batch(range(start, start + BATCH)))
            if (number, failures) == (2, 0):
                brittle.kill()
            sink.flush()
            number += 1
        except SinkUnreachableError:
            failures += 1
            with pytest.raises(SinkUnreachableError):
                sink.open(ORIGIN)
            brittle.start()
    sink.close()
    assert failures == 2
    assert bench.ids() == numbered(range(BATCH * BATCHES))


def test_a_connection_that_is_ended_by_an_administrator(bench: Bench) -> None:
    with bench.opened() as sink:
        sink.write(batch(range(10)))
        bench.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'tailrace p'"
        )
        with pytest.raises(SinkUnreachableError):
            sink.flush()
        sink.open(ORIGIN)
        assert delivered(sink, batch(range(10))).messages == 10
    assert bench.ids() == numbered(range(10))


def test_a_server_that_stops_answering_is_unreachable(bench: Bench) -> None:
    """GIVEN a server that holds its connections open and says nothing THEN the sink does not wait
    for ever; WHEN the server answers again THEN each message is there once."""
    with TcpProxy("127.0.0.1", bench.database.server.port) as proxy:
        dsn = f"{bench.database.dsn} port={proxy.port}"
        with bench.opened(dsn=dsn, statement_timeout_s=1, connect_timeout_s=2) as sink:
            sink.write(batch(range(10)))
            proxy.black_hole()
            with pytest.raises(SinkUnreachableError, match="no answer within 3 s"):
                sink.flush()
            proxy.heal()
            sink.open(ORIGIN)
            assert delivered(sink, batch(range(10))).messages == 10
    assert bench.ids() == numbered(range(10))


def test_a_read_only_database_is_unreachable(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(5)))
    name = bench.database.name
    bench.database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only TO on")
    with pytest.raises(SinkUnreachableError, match="read-only") as caught:
        bench.sink().open(ORIGIN)
    assert "target_session_attrs=read-write" in caught.value.hint


def test_a_lock_that_is_held_for_too_long(bench: Bench) -> None:
    bench.database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    with bench.opened(mode="tables", statement_timeout_s=1) as sink:
        with bench.database.connect() as other:
            other.autocommit = False
            other.execute("LOCK TABLE items")
            with pytest.raises(SinkUnreachableError, match="statement timeout") as caught:
                sink.write(messages([change("insert", {"id": 1})]))
            assert "statement_timeout_s" in caught.value.hint
        sink.open(ORIGIN)
        assert delivered(sink, messages([change("insert", {"id": 1})])).messages == 1


def test_lanes_that_deadlock_try_again(bench: Bench) -> None:
    bench.database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    rows = [{"id": n, "name": "x"} for n in (1, 2)]
    with (
        bench.opened(mode="tables", lane=0, lanes=2) as sink,
        bench.database.connect() as other,
    ):
        delivered(sink, messages([change("insert", row) for row in rows]))
        other.autocommit = False
        other.execute("SET deadlock_timeout TO '1h'")
        other.execute("UPDATE items SET name = 'y' WHERE id = 2")
        sink.write(messages([change("update", rows[0])], start=2))
        pid = other.info.backend_pid
        waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        blocked = threading.Thread(
            target=lambda: other.execute("UPDATE items SET name = 'y' WHERE id = 1")
        )
        blocked.start()
        wait_for(lambda: bench.database.query(waits, pid), "the other transaction")
        with pytest.raises(SinkUnreachableError, match="deadlock"):
            sink.write(messages([change("update", rows[1])], start=3))
        blocked.join()
        other.rollback()
        sink.open(position(1))
        again = [change("update", row) for row in rows]
        assert delivered(sink, messages(again, start=2)).messages == 2


@pytest.fixture
def guest(bench: Bench) -> Iterator[str]:
    """A role that may do nothing but log in."""
    name = f"guest_{bench.database.name}"
    bench.database.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    bench.database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def refusal(bench: Bench, **given: Any) -> SinkError:
    with pytest.raises(SinkError) as caught:
        bench.sink(**given).open(ORIGIN)
    return caught.value


def test_a_role_without_permissions_is_refused(bench: Bench, guest: str) -> None:
    dsn = bench.database.server.dsn(bench.database.name, user=guest)
    error = refusal(bench, dsn=dsn)
    assert isinstance(error, SinkRefusedError)
    assert "permission denied for database" in str(error)
    assert "permissions that docs/guides/postgres.md lists" in error.hint
    found = [each.severity.value for each in SINK.check(bench.sink(dsn=dsn)._settings)]
    assert found == ["ok", "error", "error"]


def test_the_permissions_of_the_guide_suffice(bench: Bench, guest: str) -> None:
    bench.database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    for statement in (
        f"GRANT CREATE, TEMPORARY ON DATABASE {bench.database.name} TO {guest}",
        f"GRANT USAGE, CREATE ON SCHEMA public TO {guest}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON items TO {guest}",
    ):
        bench.database.execute(statement)
    dsn = bench.database.server.dsn(bench.database.name, user=guest)
    with bench.opened(dsn=dsn) as sink:
        delivered(sink, batch(range(5)))
    other = Bench(bench.database, "tables")
    with other.opened(dsn=dsn, mode="tables") as sink:
        row = {"id": 1}
        rows = [change("insert", row), change("delete", before=row), change("insert", row)]
        assert delivered(sink, messages(rows)).messages == 3


@pytest.mark.parametrize(
    ("dsn", "kind", "reason"),
    [
        ("dbname=missing", SinkRefusedError, 'database "missing" does not exist'),
        ("user=nobody", SinkRefusedError, 'role "nobody" does not exist'),
        ("port=1", SinkUnreachableError, "onnection refused"),
        ("nonsense=1", SinkRefusedError, "`dsn` of the sink: invalid connection option"),
    ],
)
def test_logins_that_fail(bench: Bench, dsn: str, kind: type[SinkError], reason: str) -> None:
    error = refusal(bench, dsn=f"{bench.database.dsn} {dsn}")
    assert type(error) is kind
    assert reason in str(error)
    assert "source.dsn" not in f"{error} {error.hint}"


def test_a_wrong_password_is_refused_and_never_shown(brittle: EmbeddedPostgres) -> None:
    with brittle.connect() as connection:
        connection.execute("CREATE ROLE careful LOGIN PASSWORD 'right-one'")
    hba = brittle.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("host all careful all scram-sha-256\n" + before)
    with brittle.connect() as connection:
        connection.execute("SELECT pg_reload_conf()")
    dsn = brittle.dsn(user="careful")
    bench = Bench(Database(name="postgres", server=brittle))

    def reloaded() -> bool:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            return True
        return False

    wait_for(reloaded, "the server to ask for passwords")
    error = refusal(bench, dsn=dsn, password="wrong-one")
    assert isinstance(error, SinkRefusedError)
    assert "password authentication failed" in str(error)
    assert "wrong-one" not in f"{error} {error.hint} {error.__cause__} {bench.made[0]._settings!r}"
    SINK.probe(bench.sink(dsn=dsn, password="right-one")._settings, name="p")
    hba.write_text(before)


def test_a_password_is_not_sent_unencrypted(bench: Bench) -> None:
    error = refusal(bench, dsn="host=db.example user=a", password="secret-word")
    assert isinstance(error, SinkRefusedError)
    assert "unencrypted" in str(error)
    assert "sslmode=verify-full" in error.hint
    assert "secret-word" not in str(error)

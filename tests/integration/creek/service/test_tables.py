"""The SQL API: tables join and leave while a producer runs; privileges and errors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import errors

from tailrace.creek.sql import find, install, installed
from tailrace.log.format.entry import Kind
from tailrace.log.reader import Earliest
from tailrace.position import Lsn
from tailrace.postgres.connection import connect
from tests.integration.cases.running import running, settle
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database
    from tests.integration.creek.service.service import Service

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2))"
ADD = "SELECT _creek.add_table('tailrace', 'public.orders')"
REMOVE = "SELECT _creek.remove_table('tailrace', 'public.orders')"


def members(database: Database) -> list[str]:
    sql = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'tailrace' ORDER BY 1"
    return [str(name) for (name,) in database.query(sql)]


def commit_of(captured: Captured) -> list[Lsn]:
    """The commits in the log that say a table has come or gone."""
    return [change.position.lsn for change in captured.changes() if change.prefix == "creek.tables"]


@pytest.fixture(params=["", "16", pytest.param("15", marks=pytest.mark.long)])
def either(request: pytest.FixtureRequest) -> Database:
    """A database with the API, on each major version."""
    database: Database = request.getfixturevalue(f"database{request.param}")
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE users")
    with connect(database.dsn) as connection:
        assert not installed(connection)
        install(connection)
        assert installed(connection)
        install(connection)
    return database


def test_tables_join_and_leave(either: Database) -> None:
    either.execute(ORDERS)
    for _ in range(2):
        either.execute(ADD)
        assert members(either) == ["orders", "users"]
    for _ in range(2):
        either.execute(REMOVE)
        assert members(either) == ["users"]


@pytest.mark.parametrize(
    "parameters", ["pub text, _tbl regclass", 'publication text, "table" regclass']
)
def test_the_api_replaces_that_of_another_producer(database: Database, parameters: str) -> None:
    """GIVEN a database in which Creek ran, or an earlier release of Tailrace
    WHEN the API is installed
    THEN it replaces the functions, and the stored schemas stay."""
    database.execute(
        "CREATE SCHEMA _creek; CREATE TABLE _creek.avro_schemas (fingerprint text PRIMARY KEY,"
        " schema text, source text, at timestamptz DEFAULT now());"
        "INSERT INTO _creek.avro_schemas VALUES ('AAAAAAAAAAA=', '{}', 'public.users')"
    )
    for name in ("add_table", "remove_table"):
        database.execute(
            f"CREATE FUNCTION _creek.{name}({parameters}) RETURNS void LANGUAGE sql AS ''"
        )
    database.execute(
        f"{ORDERS}; CREATE TABLE users (id int PRIMARY KEY);"
        "CREATE PUBLICATION tailrace FOR TABLE users"
    )
    with connect(database.dsn) as connection:
        assert not installed(connection)
        install(connection)
        assert installed(connection)
        assert find(connection, "AAAAAAAAAAA=") is not None
    database.execute(ADD)
    assert members(database) == ["orders", "users"]
    # Creek creates its functions at every start, and can do so again.
    database.execute(
        "CREATE OR REPLACE FUNCTION _creek.add_table(pub text, _tbl regclass) RETURNS void"
        " LANGUAGE sql AS ''"
    )


@pytest.mark.usefixtures("patient_log")
def test_a_running_producer_publishes_a_new_table(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """The LSN is that of the commit: the log has what was written after it, and no more."""
    database = captured.database
    served = serve(captured)
    served.eventually_published("users")
    captured.catch_up()
    with running(captured):
        database.execute(f"{ORDERS}; INSERT INTO orders VALUES (1, 1)")
        database.execute(ADD)
        database.execute("INSERT INTO orders VALUES (2, 2)")
        [message] = served.eventually_published("orders")
        settle(captured)
        assert message["lsn"] == str(commit_of(captured)[0])
        found = [change for change in captured.changes() if change.relation is not None]
        assert [change.after for change in found] == [(b"2", b"2.00")]
        assert all(change.position.lsn > Lsn.parse(message["lsn"]) for change in found)
        assert served.schema(message["fingerprint"]) is not None
        database.execute(REMOVE)
        database.execute("INSERT INTO orders VALUES (3, 3); INSERT INTO users VALUES (1)")
        settle(captured)
    tables = [str(change.relation.name) for change in captured.changes() if change.relation]
    assert tables == ["orders", "users"]


def test_a_table_that_joined_while_the_producer_was_stopped(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    database = captured.database
    served = serve(captured)
    captured.catch_up()
    served.eventually_published("users")
    wait_for((served.config.data / "creek" / "creek.tables").exists, "the list is kept")
    served.stop()
    database.execute(ORDERS)
    database.execute(ADD)
    captured.catch_up()
    served.start()
    [message] = served.eventually_published("orders")
    assert message["lsn"] == str(commit_of(captured)[-1])


def test_a_table_that_joined_by_plain_sql(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """Without the message of the function, the LSN is that of the catalog read."""
    database = captured.database
    served = serve(captured)
    served.eventually_published("users")
    database.execute(ORDERS)
    [(before,)] = database.query("SELECT pg_current_wal_insert_lsn()::text")
    database.execute("ALTER PUBLICATION tailrace ADD TABLE orders")
    [message] = served.eventually_published("orders")
    [(after,)] = database.query("SELECT pg_current_wal_insert_lsn()::text")
    assert Lsn.parse(before) < Lsn.parse(message["lsn"]) <= Lsn.parse(after)


def test_a_table_that_joined_with_a_large_transaction(
    shop: Database,
    capture: Callable[..., Captured],
    serve: Callable[..., Service],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its commit is found in whichever piece of the transaction the message is."""
    monkeypatch.setattr("tailrace.creek.members._MAX_LOG_LAG_S", LONG_S)
    captured = capture(shop, log={"flush_bytes": 2000, "segment_bytes": 20_000})
    served = serve(captured)
    served.eventually_published("users")
    captured.catch_up()
    many = "INSERT INTO users SELECT g, repeat('x', 200) FROM generate_series(%s, %s) g"
    shop.execute(ORDERS)
    shop.execute(f"BEGIN; {many % (1, 500)}; {ADD}; {many % (501, 1000)}; COMMIT")
    changes = captured.catch_up()
    kinds = [entry.kind for entry in captured.log.read(captured.log.resolve(Earliest()))]
    assert kinds.count(Kind.FRAGMENT) > 2
    [message] = served.eventually_published("orders")
    assert {message["lsn"]} == {str(change.position.lsn) for change in changes}


@pytest.mark.usefixtures("patient_log")
def test_no_change_after_the_announced_lsn_is_missing(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """Writers do not stop for it, and a transaction is open all the while."""
    database = captured.database
    served = serve(captured)
    served.eventually_published("users")
    captured.catch_up()
    database.execute(
        "CREATE TABLE orders (id serial PRIMARY KEY, at pg_lsn DEFAULT pg_current_wal_insert_lsn())"
    )
    stop = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            while not stop.is_set():
                connection.execute("INSERT INTO orders DEFAULT VALUES")
                connection.execute("INSERT INTO users SELECT coalesce(max(id), 0) + 1 FROM users")

    writer = threading.Thread(target=write)
    with running(captured), database.connect() as connection:
        writer.start()
        try:
            with connection.transaction():
                before = connection.execute("INSERT INTO orders DEFAULT VALUES RETURNING id::text")
                early = {name for (name,) in before.fetchall()}
                database.execute(ADD)
                connection.execute("INSERT INTO orders DEFAULT VALUES")
            [message] = served.eventually_published("orders")
        finally:
            stop.set()
            writer.join()
        settle(captured)
    later = database.query("SELECT id::text FROM orders WHERE at > %s", message["lsn"])
    rows: dict[str, list[str]] = {"orders": [], "users": []}
    for change in captured.changes():
        if change.relation is not None and change.after is not None:
            assert isinstance(change.after[0], bytes)
            rows[change.relation.name].append(change.after[0].decode())
    expected = {name for (name,) in later}
    # What the open transaction wrote before may be there or not, as PostgreSQL likes. So may a row
    # whose default was computed before the commit that added the table, and written after it.
    assert expected - early <= set(rows["orders"])
    assert all(
        change.position.lsn > Lsn.parse(message["lsn"])
        for change in captured.changes()
        if change.relation is not None and change.relation.name == "orders"
    )
    assert len(rows["orders"]) == len(set(rows["orders"]))
    assert rows["users"] == [str(number) for number in range(1, len(rows["users"]) + 1)]
    assert database.query("SELECT count(*) FROM users") == [(len(rows["users"]),)]


@pytest.mark.usefixtures("patient_log")
def test_many_tables_at_once(captured: Captured, serve: Callable[..., Service]) -> None:
    served = serve(captured)
    served.eventually_published("users")
    captured.catch_up()
    with running(captured):
        for number in range(20):
            captured.database.execute(
                f"CREATE TABLE t{number} (id int PRIMARY KEY);"
                f"SELECT _creek.add_table('tailrace', 't{number}')"
            )
        found = [served.eventually_published(f"t{number}") for number in range(20)]
        settle(captured)
    assert [message["lsn"] for [message] in found] == [*map(str, commit_of(captured))]


@pytest.mark.usefixtures("patient_log")
def test_a_table_that_joins_again_has_another_lsn(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    database = captured.database
    served = serve(captured)
    served.eventually_published("users")
    captured.catch_up()
    database.execute(ORDERS)
    with running(captured):
        database.execute(ADD)
        served.eventually_published("orders")
        database.execute(REMOVE)
        database.execute(ADD)
        messages = served.eventually_published("orders", lambda found: len(found) == 2)
        settle(captured)
    first, _, second = commit_of(captured)
    assert [message["lsn"] for message in messages] == [str(first), str(second)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("add_table('nothing', 'users')", errors.UndefinedObject),
        ("remove_table('nothing', 'users')", errors.UndefinedObject),
        ("add_table('tailrace', 'nothing')", errors.UndefinedTable),
        ("add_table('tailrace', 'no_key')", errors.ObjectNotInPrerequisiteState),
        ("add_table('tailrace', 'parted')", errors.ObjectNotInPrerequisiteState),
        ("add_table('tailrace', 'seen')", errors.InvalidParameterValue),
        ("add_table('everything', 'users')", errors.ObjectNotInPrerequisiteState),
        ("remove_table('everything', 'users')", errors.ObjectNotInPrerequisiteState),
    ],
)
def test_invalid_calls_are_refused(either: Database, call: str, error: type[psycopg.Error]) -> None:
    either.execute(
        "CREATE TABLE no_key (v int); CREATE VIEW seen AS SELECT 1;"
        "CREATE TABLE parted (v int) PARTITION BY LIST (v);"
        "CREATE TABLE part PARTITION OF parted DEFAULT;"
        "CREATE PUBLICATION everything FOR ALL TABLES"
    )
    with pytest.raises(error):
        either.execute(f"SELECT _creek.{call}")
    assert members(either) == ["users"]


def test_names_are_quoted(either: Database) -> None:
    either.execute(
        'CREATE SCHEMA "my.schema";'
        'CREATE TABLE "my.schema"."users; DROP TABLE users" ("id" int PRIMARY KEY);'
        'CREATE PUBLICATION "odd ""publication"" FOR ALL TABLES"'
    )
    table = '"my.schema"."users; DROP TABLE users"'
    publication = 'odd "publication" FOR ALL TABLES'
    for function, count in (("add_table", 1), ("remove_table", 0)):
        either.query(f"SELECT _creek.{function}(%s, %s)", publication, table)
        rows = either.query(
            "SELECT tablename FROM pg_publication_tables WHERE pubname = %s", publication
        )
        assert rows == [("users; DROP TABLE users",)] * count


@pytest.fixture
def role(either: Database) -> Iterator[str]:
    name = f"producer_{either.name}"
    either.execute(f"CREATE ROLE {name} LOGIN REPLICATION")
    yield name
    either.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def run_as(database: Database, role: str, sql: str) -> None:
    with psycopg.connect(database.server.dsn(database.name, user=role), autocommit=True) as line:
        line.execute(sql.encode())


def test_the_functions_grant_no_privileges(either: Database, role: str) -> None:
    """A role may use it once it is granted, and still alter only what it owns."""
    either.execute(f"{ORDERS}; GRANT ALL ON orders TO {role}")
    for sql in (ADD, REMOVE, "SELECT FROM _creek.avro_schemas"):
        with pytest.raises(errors.InsufficientPrivilege, match="schema _creek"):
            run_as(either, role, sql)
    with connect(either.dsn) as connection:
        install(connection, role=role)
    run_as(either, role, "SELECT FROM _creek.avro_schemas")
    for sql in ("DELETE FROM _creek.avro_schemas", "DROP TABLE _creek.avro_schemas"):
        with pytest.raises(errors.InsufficientPrivilege):
            run_as(either, role, sql)
    with pytest.raises(errors.InsufficientPrivilege, match="must be owner of publication"):
        run_as(either, role, ADD)
    either.execute(f"GRANT CREATE ON DATABASE {either.name} TO {role}")
    either.execute(f"ALTER PUBLICATION tailrace OWNER TO {role}")
    with pytest.raises(errors.InsufficientPrivilege, match="must be owner of table orders"):
        run_as(either, role, ADD)
    either.execute(f"ALTER TABLE orders OWNER TO {role}")
    run_as(either, role, ADD)
    assert members(either) == ["orders", "users"]


def test_a_search_path_changes_nothing(either: Database) -> None:
    """Objects of the caller's with the names of the system's are not used."""
    either.execute(ORDERS)
    either.execute(
        "CREATE SCHEMA trap;"
        "CREATE FUNCTION trap.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS "
        "$$ SELECT 'DROP TABLE public.users' $$;"
        "CREATE TABLE trap.pg_publication_rel (prpubid oid, prrelid oid)"
    )
    either.execute(f"SET search_path TO trap, public, pg_catalog; {ADD}")
    assert members(either) == ["orders", "users"]

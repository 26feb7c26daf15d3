"""`tailrace init`: publication and slot on real servers, and everything it must refuse."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.config import Config, load
from tailrace.errors import (
    ConfigError,
    PostgresRefusedError,
    PostgresUnreachableError,
    SlotBusyError,
    SlotLostError,
    TailraceError,
)
from tailrace.postgres.bootstrap import initialise, log_exists, setup_sql
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName, quote_ident
from tailrace.postgres.preflight import Severity, run
from tailrace.postgres.publication import create_publication, read_publication
from tailrace.postgres.slot import create_slot, drop_slot, open_transactions, read_slot
from tailrace.testing import EmbeddedPostgres
from tests import command
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing.postgres import Major
    from tests.fix_postgres import Database

ORDERS = TableName("public", "orders")


@pytest.fixture(params=["", "16", pytest.param("15", marks=pytest.mark.long)])
def shop(request: pytest.FixtureRequest) -> Database:
    """A database with one table, on each major version."""
    database: Database = request.getfixturevalue(f"database{request.param}")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return database


@pytest.fixture
def shop18(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return database


def settings(database: Database, tmp_path: Path, **source: str) -> Config:
    names = {"dsn": database.dsn, "slot": database.name, "publication": "shop"}
    return load(None, {"source": names | source, "log": {"path": tmp_path / "log"}})


def cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return command.run(*arguments, env={"PATH": "", "COLUMNS": "200"} | (env or {}))


def test_init_makes_publication_then_slot(shop: Database, tmp_path: Path) -> None:
    config = settings(shop, tmp_path)
    with connect(shop.dsn) as connection:
        made = initialise(connection, config, tables=[ORDERS])
        assert made.publication_created
        assert made.slot_created
        assert [entry.table for entry in made.publication.tables] == [ORDERS]
        assert made.publication.via_root
        assert not made.publication.all_tables
        assert made.publication.unpublished_operations == ()
        assert made.slot.plugin == "pgoutput"
        assert made.slot.database == shop.name
        assert made.slot.confirmed_flush_lsn is not None
        assert not made.slot.two_phase
        assert not made.slot.lost
        assert made.slot.failover is (shop.server.major >= 17)


def test_init_can_be_run_again(shop18: Database, tmp_path: Path) -> None:
    config = settings(shop18, tmp_path)
    with connect(shop18.dsn) as connection:
        first = initialise(connection, config, tables=[ORDERS])
        again = initialise(connection, config, tables=[ORDERS])
        without = initialise(connection, config)
    assert not again.publication_created
    assert not again.slot_created
    assert not without.slot_created
    assert again.slot.confirmed_flush_lsn == first.slot.confirmed_flush_lsn


@pytest.mark.parametrize("file", ["0000000001-0000000000000000.seg", "durable"])
def test_no_slot_is_made_where_a_log_exists(shop18: Database, tmp_path: Path, file: str) -> None:
    config = settings(shop18, tmp_path)
    config.log.path.mkdir()
    assert not log_exists(config.log.path)
    (config.log.path / file).touch()
    with connect(shop18.dsn) as connection:
        with pytest.raises(SlotLostError, match="is missing, but a log exists"):
            initialise(connection, config, tables=[ORDERS])
        assert read_slot(connection, config.source.slot) is None
        assert read_publication(connection, "shop") is None


def test_a_log_beside_its_slot_is_fine(shop18: Database, tmp_path: Path) -> None:
    config = settings(shop18, tmp_path)
    with connect(shop18.dsn) as connection:
        initialise(connection, config, tables=[ORDERS])
        config.log.path.mkdir()
        (config.log.path / "durable").touch()
        assert not initialise(connection, config, tables=[ORDERS]).slot_created


def test_tables_or_all_but_not_neither(shop18: Database, tmp_path: Path) -> None:
    with (
        connect(shop18.dsn) as connection,
        pytest.raises(ConfigError, match="either tables or --all-tables"),
    ):
        initialise(connection, settings(shop18, tmp_path))


def test_all_tables_only_when_asked(shop18: Database, tmp_path: Path) -> None:
    with connect(shop18.dsn) as connection:
        made = initialise(connection, settings(shop18, tmp_path), all_tables=True)
    assert made.publication.all_tables


def test_a_missing_table_is_named(shop18: Database, tmp_path: Path) -> None:
    config = settings(shop18, tmp_path)
    with (
        connect(shop18.dsn) as connection,
        pytest.raises(PostgresRefusedError, match=r"public\.nothing"),
    ):
        initialise(connection, config, tables=[ORDERS, TableName("public", "nothing")])


@pytest.mark.parametrize("everything", [False, True])
def test_a_table_without_identity_is_refused(
    shop18: Database, tmp_path: Path, everything: bool
) -> None:
    shop18.execute('CREATE TABLE "No Key" (v int)')
    tables = [] if everything else [TableName("public", "No Key")]
    with connect(shop18.dsn) as connection:
        with pytest.raises(
            PostgresRefusedError, match="refuse the application's own UPDATE"
        ) as caught:
            initialise(connection, settings(shop18, tmp_path), tables=tables, all_tables=everything)
        assert 'ALTER TABLE public."No Key" REPLICA IDENTITY FULL;' in caught.value.hint
        assert read_publication(connection, "shop") is None


def test_a_leaf_without_identity_is_found(shop18: Database, tmp_path: Path) -> None:
    shop18.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);"
        "ALTER TABLE p2 REPLICA IDENTITY NOTHING"
    )
    with (
        connect(shop18.dsn) as connection,
        pytest.raises(PostgresRefusedError, match=r"public\.p2$"),
    ):
        initialise(connection, settings(shop18, tmp_path), tables=[TableName("public", "p")])


def test_other_tables_than_the_publication_has(shop18: Database, tmp_path: Path) -> None:
    shop18.execute("CREATE TABLE late (id int PRIMARY KEY)")
    config = settings(shop18, tmp_path)
    with connect(shop18.dsn) as connection:
        initialise(connection, config, tables=[ORDERS])
        with pytest.raises(PostgresRefusedError, match=r"without public\.late") as caught:
            initialise(connection, config, tables=[ORDERS, TableName("public", "late")])
        assert caught.value.hint == 'ALTER PUBLICATION "shop" ADD TABLE "public"."late";'
        with pytest.raises(PostgresRefusedError, match="is not FOR ALL TABLES"):
            initialise(connection, config, all_tables=True)


def test_a_slot_older_than_its_publication(shop18: Database, tmp_path: Path) -> None:
    config = settings(shop18, tmp_path)
    with connect(shop18.dsn) as connection:
        create_slot(connection, config.source.slot)
        with pytest.raises(PostgresRefusedError, match="older than its publication") as caught:
            initialise(connection, config, tables=[ORDERS])
    assert "pg_drop_replication_slot" in caught.value.hint


def test_odd_names(shop18: Database, tmp_path: Path) -> None:
    odd = TableName("Sch.éma *>", 'a "quoted"; DROP TABLE orders; --\n')
    shop18.execute(f"CREATE SCHEMA {quote_ident(odd.namespace)}")
    shop18.execute(f"CREATE TABLE {odd.quoted} (id int PRIMARY KEY)")
    config = settings(shop18, tmp_path, publication="Odd 'pub\"; --")
    with connect(shop18.dsn) as connection:
        made = initialise(connection, config, tables=[odd, ORDERS])
        findings = run(connection, config)
    assert {entry.table for entry in made.publication.tables} == {odd, ORDERS}
    assert not [finding for finding in findings if finding.severity is Severity.ERROR]


def test_column_lists_and_row_filters_are_read(shop: Database) -> None:
    shop.execute("CREATE PUBLICATION p FOR TABLE orders (id) WHERE (id > 5)")
    shop.execute("CREATE PUBLICATION q FOR TABLE orders WITH (publish = 'insert')")
    with connect(shop.dsn) as connection:
        filtered = read_publication(connection, "p")
        plain = read_publication(connection, "q")
    assert filtered is not None
    (listed,) = filtered.tables
    assert listed.columns == ("id",)
    assert listed.row_filter == "(id > 5)"
    assert plain is not None
    assert plain.tables[0].columns is None
    assert plain.tables[0].row_filter is None
    assert plain.unpublished_operations == ("update", "delete", "truncate")


def test_an_open_transaction_blocks_the_slot_and_is_named(shop18: Database, tmp_path: Path) -> None:
    config = settings(shop18, tmp_path)
    with psycopg.connect(shop18.dsn, application_name="the-blocker") as blocker:
        blocker.execute("INSERT INTO orders VALUES (1, 'secret text')")
        pid = blocker.info.backend_pid
        with connect(shop18.dsn) as connection:
            with pytest.raises(PostgresRefusedError, match=r"not created within 0\.2 s") as caught:
                initialise(connection, config, tables=[ORDERS], slot_timeout_s=0.2)
            assert f"pid {pid} (the-blocker, open for" in str(caught.value)
            assert f"pg_terminate_backend({pid});" in caught.value.hint
            assert "secret text" not in str(caught.value)
            assert read_slot(connection, config.source.slot) is None
            assert pid in [open_.pid for open_ in open_transactions(connection)]
            blocker.rollback()
            assert initialise(connection, config, tables=[ORDERS]).slot_created


def test_the_blocker_is_named_for_a_role_that_sees_little(shop18: Database) -> None:
    role = f"little_{shop18.name}"
    shop18.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        with psycopg.connect(shop18.dsn) as blocker:
            blocker.execute("INSERT INTO orders VALUES (1)")
            dsn = shop18.server.dsn(shop18.name, user=role)
            with (
                connect(dsn) as connection,
                pytest.raises(PostgresRefusedError, match=f"pid {blocker.info.backend_pid}"),
            ):
                create_slot(connection, shop18.name, timeout_s=0.2)
            blocker.rollback()
    finally:
        shop18.execute(f"DROP ROLE {role}")


def test_a_slot_can_be_dropped_unless_it_is_read(shop18: Database) -> None:
    with connect(shop18.dsn) as connection:
        create_publication(connection, "shop", tables=[ORDERS])
        create_slot(connection, shop18.name, failover=False)
        state = read_slot(connection, shop18.name)
        assert state is not None
        assert not state.failover
        with contextlib.closing(_reading(shop18)):
            with pytest.raises(SlotBusyError):
                drop_slot(connection, shop18.name)
            busy = read_slot(connection, shop18.name)
            assert busy is not None
            assert busy.active_pid is not None
        _drop_when_free(connection, shop18.name)
        with pytest.raises(SlotLostError):
            drop_slot(connection, shop18.name)
        create_slot(connection, shop18.name)
        with pytest.raises(PostgresRefusedError, match="already exists"):
            create_slot(connection, shop18.name)


def _reading(database: Database) -> psycopg.Connection:
    connection = psycopg.connect(f"{database.dsn} replication=database", autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute(
            f"START_REPLICATION SLOT {database.name} LOGICAL 0/0 "
            "(proto_version '1', publication_names 'shop')".encode()
        )
    return connection


def _drop_when_free(connection: psycopg.Connection, name: str) -> None:
    def dropped() -> bool:
        try:
            drop_slot(connection, name)
        except SlotBusyError:
            return False
        return True

    wait_for(dropped, "the slot to be free")


def test_a_role_without_replication_is_refused(shop18: Database, tmp_path: Path) -> None:
    role = f"plain_{shop18.name}"
    shop18.execute(f"CREATE ROLE {role} LOGIN; CREATE PUBLICATION shop FOR TABLE orders")
    try:
        dsn = shop18.server.dsn(shop18.name, user=role)
        config = settings(shop18, tmp_path, dsn=dsn)
        with connect(dsn) as connection, pytest.raises(PostgresRefusedError) as caught:
            initialise(connection, config)
        assert "permission denied to use replication slots" in str(caught.value)
        assert caught.value.hint == f'ALTER ROLE "{role}" REPLICATION;'
    finally:
        shop18.execute(f"DROP ROLE {role}")


@pytest.fixture(scope="module")
def replica_level() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={"wal_level": "replica"}) as server:
        yield server


def test_wal_level_replica_is_refused_before_anything_is_made(
    replica_level: EmbeddedPostgres, tmp_path: Path
) -> None:
    name = replica_level.create_database("shop")
    config = load(None, {"log": {"path": tmp_path}})
    with connect(replica_level.dsn(name)) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        with pytest.raises(
            PostgresRefusedError, match="wal_level must be logical, got replica"
        ) as caught:
            initialise(connection, config, tables=[ORDERS])
        assert "ALTER SYSTEM SET wal_level = logical;" in caught.value.hint
        assert read_publication(connection, "tailrace") is None
        with pytest.raises(PostgresRefusedError) as raw:
            create_slot(connection, "direct")
        assert "ALTER SYSTEM SET wal_level = logical;" in raw.value.hint
        findings = run(connection, config)
    (level,) = [finding for finding in findings if finding.check == "wal-level"]
    assert level.severity is Severity.ERROR
    assert level.fix.startswith("ALTER SYSTEM SET wal_level = logical;")


@pytest.mark.parametrize("major", [18, 16, pytest.param(15, marks=pytest.mark.long)])
@pytest.mark.parametrize("everything", [False, True])
def test_the_printed_script_runs_and_leaves_nothing_to_complain_about(
    major: Major, everything: bool, tmp_path: Path
) -> None:
    if not EmbeddedPostgres.installed(major):
        pytest.skip(f"PostgreSQL {major} is not installed")
    with EmbeddedPostgres(major) as server:
        name = server.create_database("shop")
        with server.connect(name) as connection:
            connection.execute('CREATE SCHEMA "Sales"')
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY); ")
            connection.execute('CREATE TABLE "Sales"."Items" (id int PRIMARY KEY)')
        tables = [] if everything else [ORDERS, TableName("Sales", "Items")]
        role = 'cdc "role"'
        config = load(None, {"log": {"path": tmp_path / "log"}})
        script = tmp_path / "setup.sql"
        script.write_text(setup_sql(config, tables=tables, all_tables=everything, role=role))
        done = subprocess.run(
            [
                str(server.binary("psql")),
                f"--dbname={server.dsn(name)}",
                "--no-psqlrc",
                "--set=ON_ERROR_STOP=1",
                "--file=-",
            ],
            input=script.read_text(),
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

        with connect(f"host=127.0.0.1 port={server.port} dbname={name} user='{role}'") as own:
            grave = [
                finding
                for finding in run(own, config)
                if finding.severity in {Severity.ERROR, Severity.WARNING}
            ]
            slot = read_slot(own, "tailrace")
            assert [finding.check for finding in grave] == (
                ["publication-all-tables"] if everything else []
            )
            assert slot is not None
            assert slot.failover is (major >= 17)
            assert own.execute('SELECT * FROM "Sales"."Items"').fetchall() == []
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                own.execute("INSERT INTO orders VALUES (1)")
            assert not initialise(own, config, tables=tables).slot_created


def test_print_sql_needs_no_server_and_names_the_dsns_user() -> None:
    done = cli(
        "init",
        "--print-sql",
        "--table=orders",
        '--table=sales."Big Items"',
        "--dsn=postgresql://cdc:canary-pw@nowhere.invalid/shop",
        "--publication=p",
        "--slot=s",
    )
    assert done.returncode == 0, done.stderr
    assert 'CREATE ROLE "cdc" WITH LOGIN REPLICATION;' in done.stdout
    assert 'FOR TABLE "public"."orders", "sales"."Big Items"' in done.stdout
    assert "pg_create_logical_replication_slot('s', 'pgoutput', failover => true)" in done.stdout
    assert "canary-pw" not in done.stdout + done.stderr
    role = cli("init", "--print-sql", "--all-tables", "--role=other")
    assert 'CREATE ROLE "other"' in role.stdout
    assert "FOR ALL TABLES" in role.stdout


def test_the_command_creates_both_and_reports_it(shop18: Database, tmp_path: Path) -> None:
    arguments = ["init", "--table=orders", f"--slot={shop18.name}", f"--log={tmp_path}"]
    env = {"TAILRACE_DSN": shop18.dsn}
    first = cli(*arguments, env=env)
    assert first.returncode == 0, first.stderr
    assert "publication tailrace: created, 1 table\n" in first.stdout
    assert f"slot {shop18.name}: created, at " in first.stdout
    again = cli(*arguments, env=env)
    assert again.returncode == 0
    assert f"slot {shop18.name}: already exists" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--table=a.b.c"], 2, "BAD_CONFIG: invalid table name 'a.b.c'"),
        (
            ["--table=orders", "--all-tables", "--print-sql"],
            2,
            "BAD_CONFIG: either tables or --all-tables",
        ),
        (["--print-sql"], 2, "BAD_CONFIG: either tables or --all-tables"),
        (["--slot=My-Slot"], 2, "BAD_CONFIG: settings: source.slot"),
        (["--config=gone.yml"], 2, "BAD_CONFIG: cannot read gone.yml"),
        (["--dsn=host=127.0.0.1 port=1"], 20, "UNREACHABLE: "),
        (["--dsn=hostt=127.0.0.1"], 2, "BAD_CONFIG: source.dsn: "),
    ],
)
def test_bad_input_is_one_line_and_a_hint(arguments: list[str], code: int, words: str) -> None:
    done = cli("init", *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_are_not_read_as_markup() -> None:
    done = cli("init", "--print-sql", "--table=[bold]x[/bold].y.z")
    assert "invalid table name '[bold]x[/bold].y.z'" in done.stderr


def test_the_version_is_printed() -> None:
    assert cli("--version").stdout.startswith("tailrace ")


@pytest.mark.parametrize("user", ["canary", "nobody"])
def test_a_wrong_password_is_never_shown(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedPostgres() as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE canary LOGIN PASSWORD 'right'")
        hba = server.data / "pg_hba.conf"
        hba.write_text("local all all trust\nhost all all all scram-sha-256\n")
        with server.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        monkeypatch.delenv("PGPASSWORD", raising=False)
        where = f"127.0.0.1:{server.port}/postgres"
        for dsn in (
            f"postgresql://{user}:can%40ry%2Fpw@{where}",
            f"host=127.0.0.1 port={server.port} user={user} password='can@ry/pw'",
        ):
            with pytest.raises(TailraceError) as caught:
                connect(dsn)
            assert isinstance(caught.value, PostgresRefusedError)
            assert "password authentication failed" in str(caught.value)
            shown = [repr(caught.value), str(caught.value.__cause__), caught.value.hint]
            done = cli("doctor", f"--dsn={dsn}")
            assert done.returncode == 22
            for text in [*shown, done.stdout, done.stderr]:
                assert "ry/pw" not in text
                assert "ry%2Fpw" not in text
        missing = cli("doctor", f"--dsn=postgresql://canary@{where}")
        assert "no password supplied" in missing.stderr


def test_a_server_that_goes_away_is_unreachable(tmp_path: Path) -> None:
    with EmbeddedPostgres() as server:
        connection = connect(server.dsn())
        server.kill()
        with pytest.raises(PostgresUnreachableError):
            initialise(connection, load(None, {"log": {"path": tmp_path}}), tables=[ORDERS])
        connection.close()

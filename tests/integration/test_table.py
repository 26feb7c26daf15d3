"""`tailrace table`: what joins and leaves, what may not, and a running engine that takes it up."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import nats
import nats.errors
import nats.js.errors
import pytest
import yaml
from typer.testing import CliRunner, Result

from tailrace.backfill.queue import list_backfills
from tailrace.cli import app
from tailrace.config import Config, load
from tailrace.errors import ExpressionError, PostgresRefusedError
from tailrace.postgres.connection import connect
from tailrace.postgres.joining import Writer, wait_for_writers
from tailrace.postgres.membership import join, leave
from tailrace.postgres.names import TableName
from tailrace.postgres.publication import read_publication
from tailrace.testing import EmbeddedNats
from tests.command import Service, run
from tests.jetstream import received
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.fix_postgres import Database

ORDERS = TableName("public", "orders")
TABLES = """
CREATE TABLE users (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, total numeric, note text);
CREATE TABLE keyless (a int);
CREATE TABLE identified (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, price money);
CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY);
CREATE VIEW seen AS SELECT 1 AS id;
CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE SCHEMA whole; CREATE TABLE whole.part (id int PRIMARY KEY);
"""


@pytest.fixture(params=["", "16", pytest.param("15", marks=pytest.mark.long)])
def shop(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(f"database{request.param}")
    database.execute(TABLES)
    database.execute(
        "CREATE PUBLICATION tailrace FOR TABLE users, p WITH (publish_via_partition_root = true)"
    )
    return database


@pytest.fixture
def settings(shop: Database, tmp_path: Path) -> Config:
    return load(None, {"source": {"dsn": shop.dsn}, "log": {"path": tmp_path / "log"}})


def joined(settings: Config, table: str, columns: Sequence[str] = (), where: str = "") -> bool:
    with connect(settings.source.dsn.get_secret_value()) as connection:
        name = TableName.parse(table)
        return join(connection, settings, name, columns=columns, where=where).changed


def left(settings: Config, table: str) -> bool:
    with connect(settings.source.dsn.get_secret_value()) as connection:
        return leave(connection, settings, TableName.parse(table)).changed


def members(database: Database) -> dict[str, tuple[object, object]]:
    with connect(database.dsn) as connection:
        state = read_publication(connection, "tailrace")
    assert state is not None
    return {str(each.table): (each.columns, each.row_filter) for each in state.tables}


def test_join_and_leave(shop: Database, settings: Config) -> None:
    assert joined(settings, "orders")
    assert not joined(settings, "orders")
    assert set(members(shop)) == {"public.users", "public.p", "public.orders"}
    assert left(settings, "orders")
    assert not left(settings, "orders")
    assert set(members(shop)) == {"public.users", "public.p"}


def test_columns_and_rows(shop: Database, settings: Config) -> None:
    assert joined(settings, "orders", ["id", "total"], "id > 1000")
    assert members(shop)["public.orders"] == (("id", "total"), "(id > 1000)")
    assert not joined(settings, "orders", ["total", "id"])
    with pytest.raises(PostgresRefusedError) as refusal:
        joined(settings, "orders", ["id"])
    assert 'ADD TABLE "public"."orders" ("id"); COMMIT;' in refusal.value.hint


def test_findings_of_doctor_come_along(shop: Database, settings: Config) -> None:
    with connect(shop.dsn) as connection:
        change = join(connection, settings, TableName.parse("identified"))
    assert [finding.check for finding in change.findings] == ["table-money"]


REFUSED: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("keyless", (), "", "no replica identity"),
    ("orders", ("total",), "", "would refuse the application's own writes"),
    ("orders", (), "total > 5", "would refuse the application's own writes"),
    ("orders", (), "id > 1), TABLE keyless WHERE (a > 1", "must be one condition"),
    ("orders", (), "true); DROP TABLE users; SELECT (1", "multiple commands"),
    ("orders", (), "no_such_column > 5", "no_such_column"),
    ("missing", (), "", "table public.missing does not exist"),
    ("seen", (), "", "is not a table"),
    ("scratch", (), "", "unlogged"),
    ("p1", (), "", "a partition of public.p"),
)


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_may_not_join(
    shop: Database, settings: Config, case: tuple[str, tuple[str, ...], str, str]
) -> None:
    table, columns, where, reason = case
    before = members(shop)
    with pytest.raises(PostgresRefusedError, match=reason):
        joined(settings, table, columns, where)
    assert members(shop) == before
    shop.execute("UPDATE orders SET total = 1; UPDATE keyless SET a = 1")


def test_publications_that_hold_more_than_tables(shop: Database, settings: Config) -> None:
    shop.execute("ALTER PUBLICATION tailrace ADD TABLES IN SCHEMA whole")
    assert not joined(settings, "whole.part")
    with pytest.raises(PostgresRefusedError, match="all tables of schema whole"):
        left(settings, "whole.part")
    shop.execute("DROP PUBLICATION tailrace")
    with pytest.raises(PostgresRefusedError, match="does not exist in this database"):
        joined(settings, "orders")
    shop.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    assert not joined(settings, "orders")
    with pytest.raises(PostgresRefusedError, match="FOR ALL TABLES"):
        joined(settings, "orders", ["id"])
    with pytest.raises(PostgresRefusedError, match="FOR ALL TABLES"):
        left(settings, "orders")


def test_the_hint_for_a_role_that_owns_nothing_is_the_sql(shop: Database, settings: Config) -> None:
    role = f"plain_{shop.name}"
    shop.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        dsn = shop.server.dsn(shop.name, user=role)
        theirs = load(None, {"source": {"dsn": dsn}, "log": {"path": settings.log.path}})
        with pytest.raises(PostgresRefusedError, match=f"role {role} may not alter") as refusal:
            joined(theirs, "orders")
        statement = 'ALTER PUBLICATION "tailrace" ADD TABLE "public"."orders";'
        assert statement in refusal.value.hint
        with pytest.raises(PostgresRefusedError) as refusal:
            left(theirs, "users")
        assert 'DROP TABLE "public"."users";' in refusal.value.hint
        shop.execute(statement)
        assert not joined(theirs, "orders")
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_writers_are_waited_for_by_name(shop: Database) -> None:
    """GIVEN an open transaction that writes WHEN writers are waited for THEN it is named."""
    said: list[list[Writer]] = []
    reported = threading.Event()

    def say(left: list[Writer]) -> None:
        said.append(left)
        reported.set()

    writer, waiter = shop.connect(), shop.connect()
    with writer, waiter:
        pid = writer.info.backend_pid
        writer.execute("SET application_name TO 'importer'; BEGIN; INSERT INTO orders VALUES (1)")
        thread = threading.Thread(
            target=wait_for_writers, args=(waiter, ORDERS, threading.Event(), say)
        )
        thread.start()
        assert reported.wait(LONG_S)
        with shop.connect() as later:
            later.execute("BEGIN; INSERT INTO orders VALUES (2)")
            writer.execute("COMMIT")
            thread.join(LONG_S)
            assert not thread.is_alive()
    [[found]] = said[:1]
    assert (found.pid, found.application) == (pid, "importer")
    assert str(found).startswith(f"pid {pid} (importer, writing for ")


@pytest.fixture
def commanded(shop: Database, tmp_path: Path) -> Callable[..., Result]:
    """The command, with a pipeline for tables that have a total and one for the others."""
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    tables = ["public.*", "!public.identified"]
    content = {
        "source": {"dsn": shop.dsn},
        "data": str(tmp_path / "data"),
        "pipelines": {
            "large": {"tables": tables, "where": "total > 5", "sink": sink},
            "other": {"tables": ["*.*", "!*.orders", "!*.keyless"], "sink": sink},
        },
    }
    file = tmp_path / "tailrace.yml"
    file.write_text(yaml.safe_dump(content))

    def run(verb: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["table", verb, str(file), *arguments])

    return run


def test_the_command(shop: Database, commanded: Callable[..., Result]) -> None:
    done = commanded("add", "orders", "--columns", 'id,"total"', "--where", "id > 7")
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            "public.orders added to publication tailrace",
            "pipelines that select it: large",
            "existing rows are not in the stream: take a snapshot, or use --backfill",
        ],
    )
    assert members(shop)["public.orders"] == (("id", "total"), "(id > 7)")
    assert "is already in" in commanded("add", "orders").output
    assert (
        commanded("remove", "orders").output == "public.orders removed from publication tailrace\n"
    )
    assert "is not in" in commanded("remove", "orders").output
    odd = commanded("add", "orders", "--columns", 'id "total"')
    assert "must be a list of column names" in str(odd.exception)


def test_a_table_that_would_stop_a_pipeline_does_not_join(
    shop: Database, commanded: Callable[..., Result]
) -> None:
    shop.execute("CREATE TABLE plain (id int PRIMARY KEY)")
    done = commanded("add", "plain")
    assert isinstance(done.exception, ExpressionError)
    assert "public.plain" not in members(shop)
    assert "pipelines that select it: other" in commanded("add", "identified").output


def test_a_backfill_is_queued_after_open_writers_end(
    shop: Database, commanded: Callable[..., Result], tmp_path: Path
) -> None:
    assert "backfill fill-" in commanded("add", "orders", "--backfill").output
    [order] = list_backfills(load(tmp_path / "tailrace.yml", {}))
    assert (order["pipeline"], order["table"]) == ("large", "public.orders")


class Engine(Service):
    """A `tailrace run` process with two pipelines, one of them with SQL stages."""

    def __init__(self, folder: Path, database: Database, server: EmbeddedNats) -> None:
        self.database = database
        self.url = server.url
        self.file = folder / "tailrace.yml"
        stream = {"name": "SQL", "subjects": ["sql.>"]}
        sql_sink = {"stream": stream, "subject": "sql.{table}.{operation}"}
        sink = {"type": "nats", "url": server.url}
        content = {
            "source": {"dsn": database.dsn, "slot": database.name[-63:]},
            "log": {"path": str(folder / "data" / "log")},
            "data": str(folder / "data"),
            "http": {"port": 0},
            "pipelines": {
                "plain": {"tables": ["public.*"], "sink": sink, "snapshots": {}},
                "sql": {"tables": ["public.*"], "where": "op <> 'delete'", "sink": sink | sql_sink},
            },
        }
        self.file.write_text(yaml.safe_dump(content))
        super().__init__("run", self.file, folder=folder)

    def command(self, *arguments: str) -> str:
        done = run(*arguments, env={"COLUMNS": "200"}, timeout_s=LONG_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stored(self, stream: str, subject: str) -> list[dict[str, Any]]:
        try:
            found = received(self.url, stream)
        except nats.js.errors.NotFoundError:
            return []
        return [message.msgpack for message in found if message.subject == subject]

    def document(self, key: str) -> dict[str, Any] | None:
        async def read() -> bytes | None:
            client = await nats.connect(self.url)
            try:
                bucket = await client.jetstream(timeout=60).key_value("schemas")
                return (await bucket.get(key)).value
            except nats.js.errors.NotFoundError:
                return None
            finally:
                await client.close()

        value = asyncio.run(read())
        return msgspec.msgpack.decode(value) if value else None

    def snapshot(self, table: str) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            client = await nats.connect(self.url)
            try:
                over = await client.subscribe(f"init.meta.{table}")
                await client.request(f"snapshot.request.{table}", b"", timeout=LONG_S)
                found: dict[str, Any] = msgspec.msgpack.decode((await over.next_msg(120)).data)
                return found
            finally:
                await client.close()

        return asyncio.run(ask())


@pytest.fixture
def engine(tmp_path: Path, database: Database) -> Iterator[Engine]:
    database.execute(TABLES)
    database.execute("CREATE PUBLICATION tailrace FOR TABLE users")
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name[-63:])
    with EmbeddedNats() as server:
        started = Engine(tmp_path, database, server).start()
        try:
            yield started
        finally:
            started.stop(LONG_S)


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_running_engine_takes_a_table_up(engine: Engine) -> None:
    """GIVEN a running engine WHEN a table joins and leaves THEN nothing is started again, and
    changes, schema documents and snapshots of the table are there."""
    database = engine.database
    database.execute("INSERT INTO users VALUES (1, 'Ada')")
    engine.wait_until(lambda: engine.stored("CDC", "cdc.users.insert"))
    engine.wait_until(lambda: engine.stored("SQL", "sql.users.insert"))
    database.execute("INSERT INTO orders VALUES (1, 10, 'before')")

    said = engine.command("table", "add", str(engine.file), "orders")
    assert "public.orders added to publication tailrace" in said
    assert "pipelines that select it: plain, sql" in said

    # Before any change of it there is a document.
    engine.wait_until(lambda: engine.document("orders"))
    database.execute("INSERT INTO orders VALUES (2, 20, 'after')")
    for stream, subject in (("CDC", "cdc.orders.insert"), ("SQL", "sql.orders.insert")):
        engine.wait_until(partial(engine.stored, stream, subject))
        assert [each["data"]["id"] for each in engine.stored(stream, subject)] == [2]
    assert engine.snapshot("orders")["row_count"] == 2

    engine.command("table", "remove", str(engine.file), "orders")
    database.execute("INSERT INTO orders VALUES (3, 30, 'later')")
    database.execute("INSERT INTO users VALUES (2, 'Bob')")
    engine.wait_until(lambda: len(engine.stored("CDC", "cdc.users.insert")) == 2)
    assert [each["data"]["id"] for each in engine.stored("CDC", "cdc.orders.insert")] == [2]

    state = json.loads((engine.folder / "data" / "status" / "run.json").read_bytes())
    assert {name: each["restarts"] for name, each in state["processes"].items()} == {
        "capture": 0,
        "pipelines": 0,
        "serve": 0,
    }

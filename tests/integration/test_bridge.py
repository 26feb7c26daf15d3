"""`tailrace bridge`: the settings it writes, its first start, its schema documents, its lines."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import orjson
import ormsgpack
import pytest
from psycopg.conninfo import conninfo_to_dict

from tailrace import config
from tailrace.capture.bootstrap import initialise, log_exists
from tailrace.capture.connection import connect
from tailrace.engine import bridge, schemas
from tailrace.engine.serving import METRICS_S
from tailrace.errors import ConfigError, RefusedError, SinkUnreachableError, SlotLostError
from tailrace.log.store import LocalStore
from tailrace.observe.metrics import CaptureFigures, Figures, SlotFigures, metrics_line
from tailrace.position import Lsn
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

METRICS = re.compile(
    r"METRICS uptime=\d+ wal_messages=\d+ cdc_events=\d+ lsn=[0-9a-f]+/[0-9a-f]+ connected=[01] "
    r"reconnects=\d+ nats_reconnects=\d+ lag_bytes=\d+ slot_active=[01]"
)


def made(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> config.Config:
    """The settings of a bridge in an environment, through the file."""
    for name in list(os.environ):
        if name.startswith(("PG", "NATS_", "POSTGRES_", "TAILRACE_")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given: dict[str, Any] = {
        "slot": "my_slot",
        "publication": "my_pub",
        "port": 9090,
        "as_json": False,
        "data": tmp_path,
    }
    content = bridge.settings(os.environ, **given | more)
    return config.load(bridge.write(content, tmp_path))


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(tmp_path, {}, monkeypatch)
    assert conninfo_to_dict(found.source.dsn.get_secret_value()) == {
        "host": "localhost",
        "port": "5432",
        "dbname": "postgres",
    }
    assert (found.source.slot, found.source.publication) == ("my_slot", "my_pub")
    assert found.data == tmp_path
    assert found.log.path == tmp_path / "log"
    assert found.http.port == 9090
    [(name, pipeline)] = found.pipelines.items()
    assert (name, pipeline.shape, pipeline.encoding) == ("bridge", "bridge", "msgpack")
    assert pipeline.sink.url == "nats://localhost:4222"
    assert pipeline.sink.stream.name == "CDC"
    assert pipeline.sink.stream.subjects == ("cdc.>",)
    assert pipeline.sink.subject == "cdc.{table}.{operation}"
    assert pipeline.sink.user == ""


def test_every_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = "s'e c${r}e\\t:@/"
    environment = {
        "PG_HOST": "db.example",
        "PG_PORT": "5433",
        "PG_DB": "my ${shop}",
        "POSTGRES_BRIDGE_USER": "bridge_reader",
        "POSTGRES_BRIDGE_PASSWORD": odd,
        "NATS_HOST": "::1",
        "NATS_PORT": "4333",
        "NATS_BRIDGE_USER": "bridge_user",
        "NATS_BRIDGE_PASSWORD": odd,
    }
    found = made(tmp_path, environment, monkeypatch, port=9091, as_json=True)
    assert conninfo_to_dict(found.source.dsn.get_secret_value()) == {
        "host": "db.example",
        "port": "5433",
        "dbname": "my ${shop}",
        "user": "bridge_reader",
    }
    [pipeline] = found.pipelines.values()
    assert pipeline.encoding == "json"
    assert pipeline.sink.url == "nats://[::1]:4333"
    assert pipeline.sink.user == "bridge_user"
    assert pipeline.sink.password.get_secret_value() == odd
    assert bridge.secrets(environment) == {"PGPASSWORD": odd}
    assert bridge.secrets({}) == {}


def test_no_secret_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "POSTGRES_BRIDGE_PASSWORD": "canary-1",
        "NATS_BRIDGE_PASSWORD": "canary-2",
        "NATS_URL": "nats://user:canary-3@one:4222,nats://two:4222",
    }
    found = made(tmp_path, environment, monkeypatch)
    [pipeline] = found.pipelines.values()
    assert pipeline.sink.url == environment["NATS_URL"]
    assert "canary" not in (tmp_path / bridge.FILE).read_text()
    assert stat.S_IMODE((tmp_path / bridge.FILE).stat().st_mode) & 0o022 == 0


@pytest.mark.parametrize("port", ["x", "0", "65536", "-1", "5432 ", "٣"])
def test_a_port_is_a_number(port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PG_PORT", "NATS_PORT"):
        with pytest.raises(ConfigError, match=name):
            made(tmp_path, {name: port}, monkeypatch)


@pytest.fixture
def settings(tmp_path: Path, database: Database) -> config.Config:
    source = {"dsn": database.socket_dsn, "slot": database.name[-63:], "publication": "my_pub"}
    return config.load(None, {"source": source, "log": {"path": tmp_path / "log"}})


def slots(database: Database) -> int:
    sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    return int(database.query(sql)[0][0])


def test_the_publication_must_exist(settings: config.Config, database: Database) -> None:
    with pytest.raises(RefusedError, match="my_pub") as caught:
        bridge.prepare(settings)
    assert 'CREATE PUBLICATION "my_pub" FOR TABLE' in caught.value.hint
    assert slots(database) == 0


def test_the_slot_is_made_once(settings: config.Config, database: Database) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    bridge.prepare(settings)
    bridge.prepare(settings)
    assert slots(database) == 1


def test_no_slot_is_made_where_a_log_is(settings: config.Config, database: Database) -> None:
    database.execute("CREATE PUBLICATION my_pub")
    settings.log.path.mkdir()
    (settings.log.path / "durable").touch()
    assert log_exists(settings.log.path)
    bridge.prepare(settings)
    assert slots(database) == 0


def test_a_lost_slot_is_not_taken(settings: config.Config, database: Database) -> None:
    """Another run has made the log between our look and the slot's creation."""
    database.execute("CREATE PUBLICATION my_pub")
    settings.log.path.mkdir()
    (settings.log.path / "durable").touch()
    with (
        connect(database.socket_dsn) as connection,
        pytest.raises(SlotLostError, match="there is a log"),
    ):
        initialise(connection, settings)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as started:
        yield started


class Documents:
    """A publisher and the other side of it: the bucket and the messages."""

    def __init__(self, settings: config.Config, url: str, encoding: str, *tables: str) -> None:
        pipeline = {
            "encoding": encoding,
            "tables": tables or ("*.*",),
            "sink": {"type": "nats", "url": url},
        }
        whole = settings.model_dump() | {"pipelines": {"bridge": pipeline}}
        self.config = config.Config.model_validate(whole)
        [self.publisher] = schemas.publishers(self.config)
        self.url = url
        self.decode = ormsgpack.unpackb if encoding == "msgpack" else orjson.loads

    def bucket(self) -> dict[str, list[Any]]:
        """Every key's values, oldest first."""

        async def read() -> dict[str, list[Any]]:
            client = await nats.connect(self.url)
            try:
                bucket = await client.jetstream().key_value(schemas.BUCKET)
                return {
                    key: [self.decode(entry.value or b"") for entry in await bucket.history(key)]
                    for key in await bucket.keys()
                }
            finally:
                await client.close()

        return asyncio.run(read())

    def listening(self, act: Callable[[], object]) -> list[tuple[str, Any]]:
        """What is said on `schema.>` while something is done."""

        async def listen() -> list[tuple[str, Any]]:
            client = await nats.connect(self.url)
            try:
                heard = await client.subscribe("schema.>")
                await client.flush()
                await asyncio.to_thread(act)
                await client.flush()
                found = []
                while heard.pending_msgs:
                    message = await heard.next_msg()
                    found.append((message.subject, self.decode(message.data)))
                return found
            finally:
                await client.close()

        return asyncio.run(listen())


@pytest.fixture
def empty(server: EmbeddedNats) -> EmbeddedNats:
    async def clear() -> None:
        client = await nats.connect(server.url)
        for stream in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(stream.config.name or "")
        await client.close()

    asyncio.run(clear())
    return server


USERS = """
CREATE TABLE users (
    id serial PRIMARY KEY, name varchar(20) NOT NULL, email text, tags text[],
    price numeric(10, 2) DEFAULT 1.5, doubled numeric GENERATED ALWAYS AS (price * 2) STORED
)
"""


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_documents_have_the_bridges_fields(
    encoding: str, settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute(USERS)
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    documents = Documents(settings, empty.url, encoding)
    assert documents.publisher.publish() == ["users"]
    [[document]] = documents.bucket().values()
    assert isinstance(document.pop("timestamp"), int)
    assert document == {
        "table": "users",
        "schema": "public.users",
        "columns": [
            _column("id", 1, "integer", False, "nextval('users_id_seq'::regclass)"),
            _column("name", 2, "character varying", False),
            _column("email", 3, "text", True),
            _column("tags", 4, "text[]", True),
            _column("price", 5, "numeric", True, "1.5"),
        ],
    }


def _column(
    name: str, position: int, data_type: str, nullable: bool, default: str | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "position": position,
        "data_type": data_type,
        "is_nullable": nullable,
        "column_default": default,
    }


def test_a_change_is_stored_and_said_and_no_change_is_not(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    documents = Documents(settings, empty.url, "msgpack")
    [(subject, first)] = documents.listening(documents.publisher.publish)
    assert subject == "schema.users"
    assert documents.listening(documents.publisher.publish) == []
    database.execute("ALTER TABLE users ADD COLUMN name text")
    [(subject, second)] = documents.listening(documents.publisher.publish)
    assert [column["name"] for column in second["columns"]] == ["id", "name"]
    assert documents.bucket() == {"users": [first, second]}


def test_tables_of_other_schemas_and_odd_names(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute("CREATE SCHEMA sales")
    for table in ("users", "sales.users", '"sales.users"', '"Größe *"'):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR ALL TABLES")
    documents = Documents(settings, empty.url, "json")
    documents.publisher.publish()
    found = {key: values[-1]["schema"] for key, values in documents.bucket().items()}
    assert found == {
        "users": "public.users",
        "sales.users": "sales.users",
        "sales=2Eusers": "public.sales.users",
        "Gr=C3=B6=C3=9Fe=20=2A": "public.Größe *",
    }


def test_only_the_pipelines_tables_and_columns(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text, secret text)")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users (id, name), orders")
    documents = Documents(settings, empty.url, "json", "public.*", "!public.orders")
    documents.publisher.publish()
    [(key, [document])] = documents.bucket().items()
    assert key == "users"
    assert [column["name"] for column in document["columns"]] == ["id", "name"]


def test_a_bucket_that_is_there_is_taken_as_it_is(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    async def make() -> None:
        client = await nats.connect(empty.url)
        bucket = await client.jetstream().create_key_value(bucket=schemas.BUCKET, history=3)
        await bucket.put("users", b"\xc1 not a document")
        await client.close()

    asyncio.run(make())
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    assert Documents(settings, empty.url, "msgpack").publisher.publish() == ["users"]


def test_a_nats_that_is_away(settings: config.Config, database: Database) -> None:
    database.execute("CREATE PUBLICATION my_pub")
    documents = Documents(settings, "nats://127.0.0.1:1", "json")
    with pytest.raises(SinkUnreachableError):
        documents.publisher.publish()


def test_the_log_tells_of_changes(
    database: Database, capture: Callable[..., Captured], tmp_path: Path
) -> None:
    """A relation that is only stated again, in a new session, is no change."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    captured.catch_up()
    watch = schemas.Watch(LocalStore(captured.folder))
    assert not watch.changed()
    expected = []
    for statement, news in (
        ("INSERT INTO users VALUES (1)", True),
        ("INSERT INTO users VALUES (2)", False),
        ("ALTER TABLE users ADD COLUMN name text", False),
        ("INSERT INTO users VALUES (3, 'x')", True),
        ("ALTER TABLE users ALTER COLUMN name SET DEFAULT 'y'", False),
        ("INSERT INTO users VALUES (4)", False),
    ):
        database.execute(statement)
        captured.catch_up()
        expected.append((statement, news))
        assert watch.changed() == news, expected
        assert not watch.changed()


def test_the_log_is_followed_over_segments(
    database: Database, capture: Callable[..., Captured]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, v text)")
    settings = {"segment_bytes": 4000, "flush_bytes": 1000}
    captured = capture(database, log=settings)
    captured.catch_up()
    watch = schemas.Watch(LocalStore(captured.folder))
    watch.changed()
    for number in range(20):
        database.execute(f"INSERT INTO users VALUES ({number}, repeat('x', 1000))")
    captured.catch_up()
    assert len(captured.log.segments()) > 3
    assert watch.changed()
    for number in range(20, 40):
        database.execute(f"INSERT INTO users VALUES ({number}, repeat('x', 1000))")
    captured.catch_up()
    assert not watch.changed()


def test_documents_follow_a_running_capture(
    database: Database, capture: Callable[..., Captured], empty: EmbeddedNats
) -> None:
    """GIVEN a published table WHEN it gains a column and a row THEN the bucket has the column."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    captured.catch_up()
    documents = Documents(captured.config, empty.url, "msgpack")
    stop = threading.Event()
    thread = threading.Thread(target=schemas.run, args=(documents.config, stop))
    thread.start()
    try:
        _wait_for(lambda: documents.bucket().get("users"))
        database.execute("ALTER TABLE users ADD COLUMN name text")
        database.execute("INSERT INTO users VALUES (1, 'x')")
        captured.catch_up()
        _wait_for(lambda: len(documents.bucket()["users"]) == 2)
    finally:
        stop.set()
        thread.join()
    assert [column["name"] for column in documents.bucket()["users"][-1]["columns"]] == [
        "id",
        "name",
    ]


def _wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except (nats.errors.Error, nats.js.errors.Error, KeyError):
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_metrics_line_is_what_parsers_expect() -> None:
    figures = Figures(
        version="1",
        uptime_s=15.7,
        capture=CaptureFigures(connected=True, messages=2, acknowledged=Lsn.parse("0/183F680")),
        slot=SlotFigures(active=True, kept_wal_bytes=51608),
    )
    line = metrics_line(figures)
    assert METRICS.fullmatch(line)
    assert line == (
        "METRICS uptime=15 wal_messages=2 cdc_events=0 lsn=0/183f680 connected=1 reconnects=0 "
        "nats_reconnects=0 lag_bytes=51608 slot_active=1"
    )
    assert METRICS_S == 15


def test_the_line_is_printed_on_stdout(settings: config.Config, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tailrace import config\n"
        "from tailrace.engine import serving\n"
        "from tailrace.observe import logs\n"
        "logs.configure()\n"
        "serving.METRICS_S = 0.05\n"
        "settings = config.Config.model_validate(\n"
        "    {'source': {'dsn': sys.argv[1]}, 'data': sys.argv[2], 'http': {'port': 0}})\n"
        "serving.run_serve(settings, metrics_lines=True)\n"
    )
    dsn = settings.source.dsn.get_secret_value()
    process = subprocess.Popen(
        [sys.executable, "-c", program, dsn, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert METRICS.fullmatch(line.strip().removeprefix("info(bridge): "))
    assert line.startswith("info(bridge): METRICS uptime=")


def command(
    tmp_path: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    names = ("PG", "NATS_", "POSTGRES_", "TAILRACE_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(names)}
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "bridge", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean | environment | {"COLUMNS": "200"},
        timeout=90,
    )


def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    result = command(
        tmp_path,
        *("--pub", "my_pub", "--slot", "my_slot"),
        PG_HOST="127.0.0.1",
        PG_PORT="1",
        POSTGRES_BRIDGE_PASSWORD="canary",
    )
    assert result.returncode == 20
    assert "UNREACHABLE: " in result.stderr
    assert "canary" not in result.stdout + result.stderr
    assert (tmp_path / "tailrace-data" / "my_slot" / bridge.FILE).exists()


def test_a_missing_publication_is_told_with_its_sql(tmp_path: Path, database: Database) -> None:
    where = conninfo_to_dict(database.dsn)
    result = command(
        tmp_path,
        *("--pub", "my_pub", "--data", "here", "--zstd"),
        PG_HOST=str(where["host"]),
        PG_PORT=str(where["port"]),
        PG_DB=database.name,
        POSTGRES_BRIDGE_USER=str(where["user"]),
        POSTGRES_BRIDGE_PASSWORD=str(where.get("password", "")),
    )
    assert result.returncode == 22
    assert 'CREATE PUBLICATION "my_pub" FOR TABLE users, orders;' in result.stderr
    assert Path(tmp_path / "here" / bridge.FILE).exists()


def test_the_publication_is_asked_for(tmp_path: Path) -> None:
    result = command(tmp_path, "--slot", "my_slot")
    assert result.returncode == 2
    assert "--pub" in result.stderr
    bad = command(tmp_path, "--slot", "My-Slot", "--pub", "p")
    assert bad.returncode == 2
    assert "source.slot" in bad.stderr

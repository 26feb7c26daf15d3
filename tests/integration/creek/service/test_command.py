"""`tailrace creek`: the settings it writes, its first start and its errors; `init --creek`."""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import structlog

from tailrace import config
from tailrace.creek.sql import installed
from tailrace.errors import ConfigError, PostgresRefusedError
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName
from tailrace.postgres.publication import read_publication
from tailrace.run.presets import creek as preset
from tailrace.run.presets.options import CreekOptions
from tailrace.testing import EmbeddedPostgres
from tests.command import run
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

USERS = TableName("public", "users")
DEFAULTS: dict[str, Any] = {
    "publication": "creek",
    "slot": "creek",
    "namespace": "CREEK",
    "message_timeout": "10s",
    "nats_timeout": "30s",
    "max_pending": 4000,
    "replicas": 1,
    "max_age": "168h",
    "max_bytes": 0,
    "max_messages": 0,
    "host": "127.0.0.1",
    "port": 7779,
}


def command(
    tmp_path: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return run(*arguments, folder=tmp_path, env=environment | {"COLUMNS": "200"}, timeout_s=LONG_S)


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> config.Config:
    """The settings of a producer, through the file."""
    monkeypatch.setenv("PG_URI", "postgres://user:canary-1@db:5432/my${shop}")
    monkeypatch.setenv("NATS_URI", "nats://user:canary-2@one:4222,nats://two:4222")
    options = CreekOptions(**DEFAULTS | {"data": folder} | more)
    assert more or options == CreekOptions(data=folder)
    return config.load(preset.write(options))


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(tmp_path, monkeypatch)
    assert (found.source.slot, found.source.publication) == ("creek", "creek")
    assert found.data == tmp_path
    assert found.log.path == tmp_path / "log"
    assert (found.http.host, found.http.port) == ("127.0.0.1", 7779)
    assert found.capture.progress_s == 10
    [(name, pipeline)] = found.pipelines.items()
    assert (name, pipeline.shape, pipeline.format) == ("creek", "creek", "avro")
    assert pipeline.namespace == "CREEK"
    sink = pipeline.jetstream
    assert (sink.stream.name, sink.stream.subjects) == ("CREEK_wal", ("CREEK.*.wal.>",))
    assert sink.subject == "CREEK.{database}.wal.{schema}.{table}"
    assert (sink.max_outstanding, sink.timeout_s) == (4000, 30)
    assert (sink.stream.max_age_hours, sink.stream.replicas) == (168, 1)
    assert pipeline.snapshots is not None
    assert pipeline.snapshots.request == "CREEK._snapshot"
    stream = pipeline.snapshots.stream
    assert (stream.name, stream.subjects) == ("CREEK_snap", ("CREEK.*.snap.>",))


def test_every_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "publication": "my ${pub}",
        "slot": "my_slot",
        "namespace": "EU",
        "message_timeout": "2.5s",
        "nats_timeout": "1s",
        "max_pending": 7,
        "replicas": 3,
        "max_age": "0",
        "max_bytes": 8,
        "max_messages": 9,
        "host": "::1",
        "hosts": "creek, metrics.internal",
        "port": 0,
    }
    monkeypatch.setenv("TAILRACE_HTTP_TOKEN", "0123456789abcdef")
    found = loaded(tmp_path / "odd ${folder}", monkeypatch, **given)
    assert found.http.hosts == ("creek", "metrics.internal")
    assert found.http.token.get_secret_value() == "0123456789abcdef"
    assert (found.source.slot, found.source.publication) == ("my_slot", "my ${pub}")
    assert found.data == tmp_path / "odd ${folder}"
    [pipeline] = found.pipelines.values()
    stream = pipeline.jetstream.stream
    assert stream.name == "EU_wal"
    assert (stream.max_age_hours, stream.max_bytes, stream.max_messages) == (0, 8, 9)
    assert stream.replicas == 3
    assert (pipeline.jetstream.max_outstanding, pipeline.jetstream.timeout_s) == (7, 1)
    assert pipeline.snapshots is not None
    taken = pipeline.snapshots.stream
    assert (taken.name, taken.max_bytes, taken.replicas) == ("EU_snap", 0, 3)


def test_no_secret_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(tmp_path, monkeypatch)
    file = tmp_path / preset.FILE
    assert found.source.dsn.get_secret_value() == os.environ["PG_URI"]
    assert found.pipelines["creek"].jetstream.url.get_secret_value() == os.environ["NATS_URI"]
    assert "canary" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0


@pytest.fixture
def settings(tmp_path: Path, database: Database) -> config.Config:
    source = {"dsn": database.dsn, "slot": database.name[-63:], "publication": "creek"}
    return config.load(None, {"source": source, "log": {"path": tmp_path / "log"}})


def slots(database: Database) -> int:
    sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    return int(database.query(sql)[0][0])


def test_the_first_start_creates_everything(settings: config.Config, database: Database) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    made = preset.prepare(settings, [USERS])
    assert made is not None
    assert made.slot_created
    with connect(database.dsn) as connection:
        assert installed(connection)
        publication = read_publication(connection, "creek")
    assert publication is not None
    assert publication.via_root
    assert [each.table for each in publication.tables] == [USERS]
    again = preset.prepare(settings, [USERS])
    assert again is not None
    assert not again.slot_created


def test_removed_tables_are_only_logged(settings: config.Config, database: Database) -> None:
    database.execute('CREATE TABLE users (id int PRIMARY KEY); CREATE TABLE "O\'s" (id int)')
    preset.prepare(settings, [USERS])
    for begun in (False, True):
        if begun:
            settings.log.path.mkdir()
            (settings.log.path / "durable").touch()
        with structlog.testing.capture_logs() as logged:
            preset.prepare(settings, [USERS, TableName("public", "O's")])
        [line] = [each for each in logged if each["event"] == "creek.table_not_published"]
        assert line["table"] == "public.O's"
        assert line["fix"] == """SELECT _creek.add_table('creek', '"public"."O''s"');"""


def test_a_later_start_does_not_need_the_database(
    settings: config.Config, database: Database
) -> None:
    settings.log.path.mkdir()
    (settings.log.path / "durable").touch()
    away = settings.source.model_copy(
        update={"dsn": type(settings.source.dsn)("host=127.0.0.1 port=1")}
    )
    assert preset.prepare(settings.model_copy(update={"source": away}), [USERS]) is None
    assert slots(database) == 0


def test_no_publication_and_no_tables(settings: config.Config, database: Database) -> None:
    with pytest.raises(ConfigError, match="PG_TABLES is empty"):
        preset.prepare(settings, [])
    assert slots(database) == 0


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = f"producer_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN REPLICATION")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_role_without_privileges_gets_the_command_for_a_dba(
    settings: config.Config, database: Database, role: str, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    lesser = database.server.dsn(database.name, user=role)
    source = settings.source.model_copy(update={"dsn": type(settings.source.dsn)(lesser)})
    weak = settings.model_copy(update={"source": source})
    with pytest.raises(PostgresRefusedError, match=role) as caught:
        preset.prepare(weak, [USERS])
    assert "tailrace init --creek" in caught.value.hint
    assert slots(database) == 0
    result = command(
        tmp_path,
        *("init", "--creek", "--dsn", database.dsn, "--role", role, "--table", "users"),
        *("--publication", "creek", "--slot", settings.source.slot),
    )
    assert result.returncode == 0, result.stderr
    assert "schema _creek: created" in result.stdout
    assert "then tailrace creek" in result.stdout
    made = preset.prepare(weak, [USERS])
    assert made is not None
    with psycopg.connect(lesser, autocommit=True) as connection:
        connection.execute("INSERT INTO _creek.avro_schemas VALUES ('a', 'b', 'c')")
        connection.execute("UPDATE _creek.avro_schemas SET schema = 'd'")


def test_the_printed_script_runs(tmp_path: Path) -> None:
    """It alters settings of the server, so it has one of its own."""
    with EmbeddedPostgres(16) as server:
        name = server.create_database("shop")
        with server.connect(name) as connection:
            connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
        script = command(
            tmp_path,
            *("init", "--creek", "--print-sql", "--role", 'the "role"', "--table", "users"),
            *("--publication", "creek", "--slot", "creek"),
        )
        assert script.returncode == 0, script.stderr
        done = subprocess.run(
            [
                str(server.binary("psql")),
                f"--dbname={server.dsn(name)}",
                "--no-psqlrc",
                "--set=ON_ERROR_STOP=1",
                "--file=-",
            ],
            input=script.stdout,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        with connect(f"host=127.0.0.1 port={server.port} dbname={name} user='the \"role\"'") as own:
            assert installed(own)
            own.execute("INSERT INTO _creek.avro_schemas VALUES ('a', 'b', 'c')")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "PG_MESSAGE_TIMEOUT",
            "ten",
            "(PG_MESSAGE_TIMEOUT): must be a duration such as 10s, got 'ten'",
        ),
        (
            "PG_MESSAGE_TIMEOUT",
            "0",
            "(PG_MESSAGE_TIMEOUT): must be a duration of at least 1ms, got '0'",
        ),
        ("NATS_TIMEOUT", "30", "(NATS_TIMEOUT): must be a duration such as 10s, got '30'"),
        (
            "NATS_RETENTION_MAX_AGE",
            "1w",
            "(NATS_RETENTION_MAX_AGE): must be a duration such as 10s",
        ),
        ("NATS_RETENTION_MAX_MSGS", "-1", "NATS_RETENTION_MAX_MSGS"),
        ("NATS_RETENTION_POLICY", "interest", "(NATS_RETENTION_POLICY): must be limits"),
        ("NATS_MAX_PENDING", "0", "NATS_MAX_PENDING"),
        ("NATS_REPLICAS", "9", "NATS_REPLICAS"),
        ("PROMETHEUS_PORT", "x", "PROMETHEUS_PORT"),
        ("LOG_LEVEL", "loud", "(LOG_LEVEL): must be one of"),
        ("PG_TABLES", "a.b.c", "invalid table name 'a.b.c'"),
        ("NATS_NAMESPACE", "a.b", "pipelines.creek.namespace"),
        ("PG_PUBLICATION_SLOT", "My-Slot", "source.slot"),
        ("PG_URI", "postgres://[", "source.dsn"),
    ],
)
def test_invalid_values(tmp_path: Path, variable: str, value: str, message: str) -> None:
    given = {"PG_URI": "postgres://u:canary@127.0.0.1:1/shop", "PG_TABLES": "users"}
    result = command(tmp_path, "creek", **given | {variable: value})
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "canary" not in result.stdout + result.stderr


def test_the_database_is_required(tmp_path: Path) -> None:
    result = command(tmp_path, "creek")
    assert result.returncode == 2
    assert "PG_URI is not set" in result.stderr


def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    result = command(tmp_path, "creek", PG_URI="postgres://u:canary@127.0.0.1:1/shop")
    assert result.returncode == 20
    assert "UNREACHABLE: " in result.stderr
    assert "canary" not in result.stdout + result.stderr
    file = tmp_path / "tailrace-data" / "creek" / preset.FILE
    assert "canary" not in file.read_text()


def test_options_take_precedence_over_variables(tmp_path: Path) -> None:
    result = command(
        tmp_path,
        *("creek", "--pg-uri", "postgres://u:canary@127.0.0.1:1/shop", "--slot", "one"),
        *("--nats-uri", "nats://u:canary@localhost", "--data", "here"),
        PG_URI="postgres://",
        PG_PUBLICATION_SLOT="two",
    )
    assert result.returncode == 20
    assert "slot: one" in (tmp_path / "here" / preset.FILE).read_text()
    assert "canary" not in (tmp_path / "here" / preset.FILE).read_text() + result.stderr

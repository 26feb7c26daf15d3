"""`tailrace bridge`: the settings it writes, its first start, its output and its errors."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tailrace import config
from tailrace.errors import ConfigError, PostgresRefusedError, SlotLostError
from tailrace.observe.bridge import metrics_line
from tailrace.observe.figures import CaptureFigures, SystemFigures
from tailrace.observe.kept import SlotFigures
from tailrace.position import Lsn
from tailrace.postgres.bootstrap import initialise, log_exists
from tailrace.postgres.connection import connect
from tailrace.run.presets import bridge
from tailrace.run.presets.options import BridgeOptions
from tailrace.run.serving import METRICS_S
from tests.command import run
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tests.fix_postgres import Database


METRICS = re.compile(
    r"METRICS uptime=\d+ wal_messages=\d+ cdc_events=\d+ lsn=[0-9a-f]+/[0-9a-f]+ connected=[01] "
    r"reconnects=\d+ nats_reconnects=\d+ lag_bytes=\d+ slot_active=[01]"
)


def loaded(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> config.Config:
    """The settings of a bridge in an environment, through the file."""
    for name in list(os.environ):
        if name.startswith(("PG", "NATS_", "POSTGRES_", "TAILRACE_")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = BridgeOptions(slot="my_slot", pub="my_pub", data=tmp_path, **more)
    content = bridge.settings(options, os.environ)
    return config.load(bridge.write(content, tmp_path))


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(tmp_path, {}, monkeypatch)
    assert conninfo_to_dict(found.source.dsn.get_secret_value()) == {
        "host": "localhost",
        "port": "5432",
        "dbname": "postgres",
    }
    assert (found.source.slot, found.source.publication) == ("my_slot", "my_pub")
    assert found.data == tmp_path
    assert found.log.path == tmp_path / "log"
    assert (found.http.host, found.http.port, found.http.hosts) == ("127.0.0.1", 9090, ())
    [(name, pipeline)] = found.pipelines.items()
    assert (name, pipeline.shape, pipeline.encoding) == ("bridge", "bridge", "msgpack")
    assert pipeline.jetstream.url.get_secret_value() == "nats://localhost:4222"
    assert pipeline.jetstream.stream.name == "CDC"
    assert pipeline.jetstream.stream.subjects == ("cdc.>",)
    assert pipeline.jetstream.subject == "cdc.{table}.{operation}"
    assert pipeline.jetstream.user == ""
    assert pipeline.snapshots is not None
    assert pipeline.snapshots.compression == "none"
    assert (pipeline.snapshots.stream.name, pipeline.snapshots.stream.max_age_hours) == (
        "INIT",
        168,
    )


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
    found = loaded(tmp_path, environment, monkeypatch, port=9091, as_json=True, zstd=True)
    assert conninfo_to_dict(found.source.dsn.get_secret_value()) == {
        "host": "db.example",
        "port": "5433",
        "dbname": "my ${shop}",
        "user": "bridge_reader",
    }
    [pipeline] = found.pipelines.values()
    assert pipeline.encoding == "json"
    assert pipeline.snapshots is not None
    assert pipeline.snapshots.compression == "zstd"
    assert pipeline.jetstream.url.get_secret_value() == "nats://[::1]:4333"
    assert pipeline.jetstream.user == "bridge_user"
    assert pipeline.jetstream.password.get_secret_value() == odd
    assert bridge.secrets(environment) == {"PGPASSWORD": odd}
    assert bridge.secrets({}) == {}


def test_the_address_of_the_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a Prometheus in another container WHEN it scrapes the bridge by its name THEN the
    settings allow it."""
    found = loaded(tmp_path, {}, monkeypatch, host="0.0.0.0", hosts="bridge, metrics.${example}")
    assert found.http.host == "0.0.0.0"
    assert found.http.hosts == ("bridge", "metrics.${example}")


def test_no_secret_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "POSTGRES_BRIDGE_PASSWORD": "canary-1",
        "NATS_BRIDGE_PASSWORD": "canary-2",
        "NATS_URL": "nats://user:canary-3@one:4222,nats://two:4222",
    }
    found = loaded(tmp_path, environment, monkeypatch)
    [pipeline] = found.pipelines.values()
    assert pipeline.jetstream.url.get_secret_value() == environment["NATS_URL"]
    assert "canary" not in (tmp_path / bridge.FILE).read_text()
    assert stat.S_IMODE((tmp_path / bridge.FILE).stat().st_mode) & 0o022 == 0


@pytest.mark.parametrize("port", ["x", "0", "65536", "-1", "5432 ", "٣"])
def test_invalid_ports(port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PG_PORT", "NATS_PORT"):
        with pytest.raises(ConfigError, match=name):
            loaded(tmp_path, {name: port}, monkeypatch)


def slots(database: Database) -> int:
    sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    return int(database.query(sql)[0][0])


def test_the_publication_must_exist(settings: config.Config, database: Database) -> None:
    with pytest.raises(PostgresRefusedError, match="my_pub") as caught:
        bridge.prepare(settings)
    assert 'CREATE PUBLICATION "my_pub" FOR TABLE' in caught.value.hint
    assert slots(database) == 0


def test_the_slot_is_created_once(settings: config.Config, database: Database) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    bridge.prepare(settings)
    bridge.prepare(settings)
    assert slots(database) == 1


def test_no_slot_is_created_if_there_is_a_log(settings: config.Config, database: Database) -> None:
    database.execute("CREATE PUBLICATION my_pub")
    settings.log.path.mkdir()
    (settings.log.path / "durable").touch()
    assert log_exists(settings.log.path)
    bridge.prepare(settings)
    assert slots(database) == 0


def test_a_log_without_its_slot_is_refused(settings: config.Config, database: Database) -> None:
    """Another run has created the log between the check and the creation of the slot."""
    database.execute("CREATE PUBLICATION my_pub")
    settings.log.path.mkdir()
    (settings.log.path / "durable").touch()
    with (
        connect(database.socket_dsn) as connection,
        pytest.raises(SlotLostError, match="but a log exists in"),
    ):
        initialise(connection, settings)


def test_the_format_of_the_metrics_line() -> None:
    figures = SystemFigures(
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
        "from tailrace.run import serving\n"
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
        assert process.wait(LONG_S) == 0
    assert METRICS.fullmatch(line.strip().removeprefix("info(bridge): "))
    assert line.startswith("info(bridge): METRICS uptime=")


def command(
    tmp_path: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = environment | {"COLUMNS": "200"}
    return run("bridge", *arguments, folder=tmp_path, env=variables, timeout_s=LONG_S)


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


def test_the_error_for_a_missing_publication_has_its_sql(
    tmp_path: Path, database: Database
) -> None:
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


def test_the_publication_is_required(tmp_path: Path) -> None:
    result = command(tmp_path, "--slot", "my_slot")
    assert result.returncode == 2
    assert "--pub" in result.stderr
    bad = command(tmp_path, "--slot", "My-Slot", "--pub", "p")
    assert bad.returncode == 2
    assert "source.slot" in bad.stderr

"""What `docs/security.md` states, checked on a running system: its sockets, its files, its command
lines, its output, and none of them has a password."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import psycopg
import pytest
import yaml

from tailrace.testing import EmbeddedKafka, EmbeddedNats, EmbeddedPostgres
from tailrace.testing.process import free_port
from tests import http
from tests.command import Service
from tests.jetstream import received
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.fix_postgres import Database

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PASSWORDS = {
    "SHOP_PASSWORD": "canary-of-postgresql",
    "NATS_PASSWORD": "canary-of-nats",
    "ALERT_TOKEN": "canary-of-alerts",
}
SPARK_SECRET = "canary-of-spark"
ROW = "canary-of-a-row"
ROWS = 50
ENDPOINTS = (
    *("/status", "/metrics", "/ready", "/health", "/health/checks", "/backfills"),
    "/streams/info",
)


_LABELS = "SELECT id, 'x' AS text FROM unnest($1::bigint[]) AS id"


class System(Service):
    """`tailrace run` with a pipeline to NATS, passwords in both addresses, and a folder of its own
    for temporary files."""

    def __init__(self, folder: Path, database: Database, server: EmbeddedNats) -> None:
        # Spark has Unix sockets in its temporary folder, so the path must be short.
        self.data, self.temporary = folder / "data", Path(tempfile.mkdtemp(prefix="tr-"))
        self.url = f"http://127.0.0.1:{free_port()}"
        where = f"127.0.0.1:{database.server.port}/{database.name}"
        settings = {
            "source": {
                "dsn": f"postgresql://postgres:${{SHOP_PASSWORD}}@{where}",
                "slot": database.name[-63:],
            },
            "log": {"path": "data/log"},
            "data": "data",
            "http": {"port": int(self.url.rpartition(":")[2])},
            # A check that warns, and a channel that does not accept it.
            "alerts": {
                "for_s": 0,
                "disk_free_percent": 100,
                "channels": {"hook": {"webhook": {"url": "http://127.0.0.1:1/${ALERT_TOKEN}"}}},
            },
            "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": SPARK_SECRET}},
            "pipelines": {
                "orders": {
                    "encoding": "json",
                    "where": "op <> 'delete' AND label.text IS NOT NULL",
                    # The tasks that read the log log in to the source.
                    "enrich": {"label": {"query": _LABELS, "key": "id"}},
                    # Rows go from lane to lane through files of Spark.
                    "lanes": 2,
                    "sink": {
                        "type": "nats",
                        "url": f"nats://tailrace:${{NATS_PASSWORD}}@127.0.0.1:{server.port}",
                    },
                }
            },
        }
        (folder / "tailrace.yml").write_text(yaml.safe_dump(settings))
        java = f"-Djava.io.tmpdir={self.temporary} -XX:-UsePerfData"
        folders = {"TMPDIR": str(self.temporary), "SPARK_LOCAL_DIRS": str(self.temporary)}
        super().__init__(
            *("run", "tailrace.yml"),
            folder=folder,
            # A variable of Python has the command executed as users do, instead of forked.
            env=PASSWORDS | folders | {"JDK_JAVA_OPTIONS": java, "PYTHONUNBUFFERED": "1"},
        )

    def get(self, path: str) -> httpx.Response | None:
        try:
            return http.get(self.url + path, timeout=LONG_S)
        except httpx.TransportError:
            return None

    def events(self) -> int:
        answer = self.get("/status")
        body: dict[str, Any] = answer.json() if answer else {}
        return int(body.get("pipelines", {}).get("orders", {}).get("events", 0))

    @property
    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.pid)
        return [own, *own.children(recursive=True)]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    """NATS with a login."""
    login = f"user: tailrace, password: {PASSWORDS['NATS_PASSWORD']}"
    with EmbeddedNats(config=f"authorization {{ {login} }}") as started:
        yield started


@pytest.fixture
def system(database: Database, server: EmbeddedNats, tmp_path: Path) -> Iterator[System]:
    """A system that has delivered rows."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE orders")
    slot = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    database.query(slot, database.name[-63:])
    umask = os.umask(0o022)
    with System(tmp_path, database, server) as started:
        started.start()
        os.umask(umask)
        database.execute(f"INSERT INTO orders SELECT g, '{ROW}' FROM generate_series(1, {ROWS}) g")
        started.wait_until(lambda: started.events() >= ROWS, "delivery", timeout_s=300)
        yield started
        started.stop()
    shutil.rmtree(started.temporary, ignore_errors=True)


def command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return "\n".join(process.cmdline())
    return ""


def is_java(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == "java"
    return False


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """The addresses that a process listens on."""
    with contextlib.suppress(psutil.Error):
        return {
            (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
            for each in process.net_connections(kind="inet")
            if each.status == psutil.CONN_LISTEN
        }
    return set()


def entries(folder: Path) -> Iterator[Path]:
    """Everything in a folder: files, folders and sockets."""
    for root, folders, files in os.walk(folder):
        yield from (Path(root) / name for name in (*folders, *files))


def for_others(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return bool(stat.S_IMODE(mode) & 0o077) and not stat.S_ISLNK(mode)


def contents(*folders: Path) -> dict[str, str]:
    """Every regular file in folders."""
    found = {}
    for folder in folders:
        for path in entries(folder):
            with contextlib.suppress(OSError):
                if path.is_file():
                    found[str(path)] = path.read_bytes().decode("latin-1")
    return found


def test_a_running_system(system: System, server: EmbeddedNats) -> None:
    """GIVEN a pipeline with passwords WHEN it has delivered THEN the document is right about it."""
    login = f"nats://tailrace:{PASSWORDS['NATS_PASSWORD']}@127.0.0.1:{server.port}"
    assert len(received(login, "CDC")) == ROWS
    token = (system.data / "http.token").read_text().strip()
    shown = {path: _body(system, path) for path in ENDPOINTS}
    processes = system.processes
    shown |= {f"process {each.pid}": command_line(each) for each in processes}
    assert any(map(is_java, processes))
    _check_sockets(system, processes)
    _check_environments(processes)
    _check_modes(system)
    wait_for(lambda: _undelivered(system), "an alert that is not delivered")
    stored = contents(system.data, system.temporary)
    assert ROW in "".join(text for path, text in stored.items() if "/log/" in path)
    assert any("/blockmgr-" in path for path in stored), sorted(stored)
    assert system.stop() == 0
    shown["output"] = system.output
    assert shown["output"]
    stored |= contents(system.data, system.temporary)
    _check_modes(system)
    for secret in (*PASSWORDS.values(), SPARK_SECRET, token):
        assert [place for place, text in (shown | stored).items() if secret in text] == (
            [str(system.data / "http.token")] if secret == token else []
        )
    assert [place for place, text in shown.items() if ROW in text] == []


def _undelivered(system: System) -> int:
    channels = json.loads(_body(system, "/health/checks"))["channels"]
    return sum(each["pending"] for each in channels)


def _body(system: System, path: str) -> str:
    def answer() -> httpx.Response | None:
        found = system.get(path)
        return found if found is not None and found.status_code == 200 else None

    found = wait_for(answer, path)
    assert found is not None
    return found.text


def _check_sockets(system: System, processes: list[psutil.Process]) -> None:
    """The HTTP endpoints and Spark's driver listen, on loopback, and nothing else does."""
    endpoints = ("127.0.0.1", int(system.url.rpartition(":")[2]))
    for each in processes:
        found, line = listening(each), command_line(each)
        if "\nserve\n" in line:
            assert found == {endpoints}
        elif is_java(each):
            # RPC, block manager, and PySpark's gateway.
            assert [host for host, _ in found] == ["127.0.0.1"] * 3, found
        else:
            assert found == set(), line


def _check_environments(processes: list[psutil.Process]) -> None:
    """Passwords are in the environment of processes, which the kernel shows to their user only."""
    passed = 0
    for each in processes:
        with contextlib.suppress(OSError, psutil.Error):
            assert not for_others(Path(f"/proc/{each.pid}/environ"))
            passed += PASSWORDS.items() <= each.environ().items()
    assert passed >= 3


def _check_modes(system: System) -> None:
    folders = (system.data, system.temporary)
    assert not any(map(for_others, folders))
    assert [path for folder in folders for path in entries(folder) if for_others(path)] == []


def test_secrets_of_spark_reach_the_session_and_no_command_line() -> None:
    program = (
        "import contextlib, psutil, tailrace\n"
        f"spark = tailrace.session('local[1]', spark__authenticate__secret='{SPARK_SECRET}')\n"
        "print(spark.sparkContext.getConf().get('spark.authenticate.secret'))\n"
        "for each in psutil.Process().children(recursive=True):\n"
        "    with contextlib.suppress(psutil.Error):\n"
        "        print(each.name(), *each.cmdline())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, *commands = done.stdout.splitlines()
    assert first == SPARK_SECRET
    assert any(line.startswith("java ") for line in commands)
    assert SPARK_SECRET not in "".join(commands)


def test_pysparks_gateway_needs_a_token(spark: SparkSession) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    token, port = gateway.gateway_parameters.auth_token, gateway.gateway_parameters.port
    call = b"c\nz:java.lang.System\nnanoTime\ne\n"
    assert not answer(port, call).startswith(b"!y")
    assert not answer(port, b"A\nanother-token\ne\n").startswith(b"!y")
    assert answer(port, b"A\n%s\ne\n" % token.encode()).startswith(b"!y")


def test_sparks_other_ports_need_a_secret(spark: SparkSession) -> None:
    """Without a login, no message reaches the classes that would deserialize it."""
    conf = dict(spark.sparkContext.getConf().getAll())
    message = b"no login"
    # Spark's frame: its length, the type of a request, an id, the length of the message.
    request = struct.pack(">qBqI", 21 + len(message), 3, 1, len(message)) + message
    said = answer(int(conf["spark.driver.port"]), request)
    assert b"Expected SaslMessage" in said
    assert "spark.authenticate.secret" not in conf


def answer(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            return client.recv(1000)
    return b""


def test_a_plan_of_spark_does_not_show_the_dsn(
    spark: SparkSession, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    dsn = f"{database.dsn} password={PASSWORDS['SHOP_PASSWORD']}"
    frame = spark.read.format("tailrace").option("dsn", dsn).option("table", "public.t").load()
    frame.explain(mode="extended")
    shown = capfd.readouterr()
    assert "Physical Plan" in shown.out
    assert PASSWORDS["SHOP_PASSWORD"] not in shown.out + shown.err


def test_embedded_servers_listen_on_loopback_only(
    postgres: EmbeddedPostgres, server: EmbeddedNats
) -> None:
    with psycopg.connect(postgres.dsn()) as connection:
        assert not connection.info.password
    assert listening(psutil.Process(postgres.process.pid)) == {("127.0.0.1", postgres.port)}
    assert server._process is not None
    assert listening(psutil.Process(server._process.pid)) == {("127.0.0.1", server.port)}
    kafka = EmbeddedKafka(listeners=("SASL_SSL",))
    settings = dict(line.split("=", 1) for line in kafka._properties().split("\n") if "=" in line)
    kafka.destroy()
    addresses = [address.split("//")[1] for address in settings["listeners"].split(",")]
    assert len(addresses) == 3
    assert {address.split(":")[0] for address in addresses} == {"127.0.0.1"}

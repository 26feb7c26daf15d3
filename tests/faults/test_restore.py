"""A restored database: everything that holds positions refuses, and continues after the steps of
docs/guides/restore.md.

The database is recovered to an earlier point in time, or a dump is loaded into a new cluster, while
everything runs. What was committed after that point is in the log, in the stream and in the copies,
and no longer in the database. In the end the copies equal the database.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

import pytest
from confluent_kafka.admin import AdminClient

from tailrace.errors import DivergedError
from tailrace.run import status
from tailrace.testing import EmbeddedKafka, EmbeddedNats, EmbeddedPostgres
from tailrace.testing.postgres import ARCHIVE
from tailrace.testing.process import free_port
from tests.command import run
from tests.faults import soak
from tests.faults.load import KEYS, Load
from tests.faults.mirrors import SqliteCopy
from tests.faults.path import System, serving
from tests.faults.test_shadow import (
    TOPIC,
    Shadowing,
    broker_records,
    kafka_records,
    produce,
    running_broker,
)
from tests.fix_postgres import Database
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_broker import BrokerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

DIVERGED = DivergedError.code
RECORDS = 2000


class Restore(Protocol):
    """A way to restore a database: `save` it, go on, then `load` what was saved."""

    def save(self, database: Database) -> None: ...
    def load(self, database: Database) -> None: ...


class Recovery:
    """Point-in-time recovery from a base backup and archived WAL."""

    def __init__(self) -> None:
        self._points = (f"point_{number}" for number in itertools.count())

    def save(self, database: Database) -> None:
        self._backup = database.server.back_up()
        self._point = next(self._points)
        database.execute(f"CREATE TABLE {self._point} (id int)")
        database.query("SELECT pg_create_restore_point(%s)", self._point)

    def load(self, database: Database) -> None:
        database.server.recover(self._backup, target=self._point)
        database.query(f"SELECT count(*) FROM {self._point}")


class Dump:
    """A dump that is loaded into a new cluster."""

    def save(self, database: Database) -> None:
        self._file = database.server.folder / "dump.sql"
        self._call(database, "pg_dump", f"-f{self._file}")

    def load(self, database: Database) -> None:
        server = database.server
        server.stop()
        shutil.rmtree(server.data)
        # Nothing may connect before the dump is loaded, so the server has another port meanwhile.
        port, server.port = server.port, free_port()
        server.start()
        with server.connect() as connection:
            connection.execute(f"CREATE DATABASE {database.name}".encode())
        self._call(database, "psql", "-q", "-vON_ERROR_STOP=1", f"-f{self._file}")
        server.stop()
        server.port = port
        server.start()

    @staticmethod
    def _call(database: Database, program: str, *options: str) -> None:
        binary = database.server.binary(program)
        subprocess.run(
            [binary, *options, f"-d{database.socket_dsn}"], check=True, stdout=subprocess.DEVNULL
        )


@pytest.fixture(params=[Recovery, Dump])
def restore(request: pytest.FixtureRequest) -> Restore:
    made: Restore = request.param()
    return made


@pytest.fixture
def archived() -> Iterator[Database]:
    """A database on a server of its own that archives its WAL."""
    with EmbeddedPostgres(18, settings=ARCHIVE) as server:
        yield Database(name=server.create_database("shop"), server=server)


@pytest.fixture
def system(archived: Database, server: EmbeddedNats, tmp_path: Path) -> Iterator[System]:
    # The server must forget message ids before a reset publishes them again.
    stream = {"name": "CDC", "subjects": ["cdc.>"], "atomic": True, "duplicate_window_s": 0.1}
    sink = {"type": "nats", "url": server.url, "stream": stream, "atomic": "transaction"}
    made = System(archived, tmp_path, {"test": {"shape": "bridge", "snapshots": {}, "sink": sink}})
    yield made
    made.kill()


def is_equal(system: System, copy: SqliteCopy) -> bool:
    with contextlib.suppress(Exception):
        return all(
            copy.rows(table, key) == rows(system.database, table, key)
            for table, key in KEYS.items()
        )
    return False


def is_followed(system: System, copy: SqliteCopy) -> bool:
    """Whether the copy is equal; a mirror that has refused starts again with new snapshots."""
    ended = copy.exit_code
    # It ends by itself if it has refused every table, and for no other reason.
    assert ended is None or (copy.refuses and ended == DivergedError.exit_code), copy.output[-3000:]
    if copy.refuses:
        copy.kill()
        copy.start(fresh=True)
    return is_equal(system, copy)


def difference(system: System, copy: SqliteCopy) -> str:
    """How the copy differs, and what the mirror and the system said."""
    said = f"Mirror:\n{copy.output[-3000:]}\nSystem:\n{system.output()[-6000:]}"
    lines = [f"the copy to be equal. {said}"]
    for table, key in KEYS.items():
        wanted, found = rows(system.database, table, key), copy.rows(table, key)
        missing = [row for row in wanted if row not in found]
        extra = [row for row in found if row not in wanted]
        lines.append(f"{table}: missing {missing[:5]}, extra {extra[:5]}")
    return "\n".join(lines)


def rows(database: Database, table: str, key: tuple[str, ...]) -> list[dict[str, object]]:
    sql = f"SELECT row_to_json(t) FROM {table} t ORDER BY {', '.join(key)}"
    return [row for (row,) in database.query(sql)]


def write(system: System, seed: int, changes: int = 300) -> None:
    """Write for a while, until so many more changes are delivered."""
    before = system.stored("test")
    with Load(system.database, seed=seed):
        wait_for(lambda: system.stored("test") > before + changes, "the load")
    system.settled()


def capture_code(data: Path) -> str:
    """The error code of capture's final state."""
    report = status.read(status.folder(data), "run", status.RunStatus)
    processes = (report.status.processes or {}) if report else {}
    return processes["capture"].code if "capture" in processes else ""


def wait_for_refusal(data: Path, name: str) -> None:
    """Wait until a pipeline has failed with DIVERGED."""

    def refused() -> bool:
        report = status.read(status.folder(data), "pipelines", status.PipelinesStatus)
        pipelines = (report.status.pipelines or {}) if report else {}
        return name in pipelines and pipelines[name].code == DIVERGED

    wait_for(refused, f"pipeline {name} to refuse")


def call(*words: object) -> None:
    done = run(*words, timeout_s=LONG_S)
    assert done.returncode == 0, done.stdout + done.stderr


def restore_repeatedly(system: System, restore: Restore, seed: int, rounds: int) -> None:
    """Restore the database of a system with a pipeline and a mirror, and follow the guide."""
    copy = SqliteCopy(system.pipelines["test"]["sink"]["url"], list(KEYS), system.folder)
    try:
        system.start()
        serving(system)
        copy.start()
        for number in range(rounds):
            write(system, seed + 3 * number)
            restore.save(system.database)
            write(system, seed + 3 * number + 1)
            wait_for(lambda: is_followed(system, copy), lambda: difference(system, copy))
            written = rows(system.database, "account", ("id",))
            restore.load(system.database)
            assert rows(system.database, "account", ("id",)) != written
            continue_after_a_restore(system, copy)
            write(system, seed + 3 * number + 2)
            wait_for(lambda: is_followed(system, copy), lambda: difference(system, copy))
        assert system.stop() == 0
    finally:
        copy.kill()


def continue_after_a_restore(system: System, copy: SqliteCopy) -> None:
    """Everything runs. The steps of the guide: a new log, a reset, and a fresh mirror, each after
    what needs it has refused."""
    settings, log = system.folder / "tailrace.yml", system.data / "log"
    wait_for(lambda: capture_code(system.data) == DIVERGED, "capture to refuse")
    assert system.stop() == 0
    log.rename(log.with_name(f"log.{time.time_ns()}"))
    call("init", "-c", settings)
    system.start()
    wait_for_refusal(system.data, "test")
    copy.check()
    assert system.stop() == 0
    call("reset", "test", "--from", "earliest", "--yes", "-c", settings)
    system.start()
    # The mirror has changes that the database no longer has. It learns so before the next change.
    # If the tables have other OIDs, it may have taken new snapshots before.
    wait_for(
        lambda: copy.refuses or "dropped and created again" in copy.output,
        lambda: f"the mirror to refuse: {copy.output[-3000:]}",
    )


def test_capture_pipelines_and_mirrors_after_a_restore(
    system: System, restore: Restore, seed: int
) -> None:
    """GIVEN a pipeline and a mirror WHEN the database is restored to an earlier state THEN
    capture, the pipeline and the mirror are DIVERGED, and after the documented steps they deliver
    what the database holds."""
    restore_repeatedly(system, restore, seed, 1)


@pytest.mark.soak
def test_capture_pipelines_and_mirrors_after_a_restore_for_long(
    system: System, restore: Restore, seed: int
) -> None:
    restore_repeatedly(system, restore, seed, soak.rounds(every=250))


@pytest.fixture
def kafka(kafka_available: None) -> Iterator[EmbeddedKafka]:
    """With a long session timeout: on a busy machine a short one expires."""
    with EmbeddedKafka(config="broker.session.timeout.ms=300000\n") as started:
        yield started


@pytest.fixture
def broker(archived: Database, tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(archived, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    "restore", [Recovery, pytest.param(Dump, marks=pytest.mark.soak)], indirect=True
)
def test_a_shadow_after_a_restore(
    broker: BrokerProcess, kafka: EmbeddedKafka, tmp_path: Path, restore: Restore
) -> None:
    """GIVEN a shadow of a broker WHEN the broker's database is restored THEN capture, the pipeline
    and the sink are DIVERGED, and after the documented steps Kafka has the broker's records."""
    with Shadowing(broker.database, tmp_path, kafka.bootstrap) as shadow:
        shadow.start()
        produce(broker.bootstrap, range(RECORDS))
        restore.save(broker.database)
        produce(broker.bootstrap, range(RECORDS, 2 * RECORDS))
        verify(shadow, 2 * RECORDS)
        broker.kill()
        restore.load(broker.database)
        broker.start()
        produce(broker.bootstrap, range(5 * RECORDS, 5 * RECORDS + 10))
        wait_for(lambda: capture_code(shadow.data) == DIVERGED, "capture to refuse")
        assert shadow.stop() == 0
        (shadow.data / "log").rename(tmp_path / "log.before")
        shadow.start()
        wait_for_refusal(shadow.data, "shadow")
        assert shadow.stop() == 0
        call("reset", "shadow", "--from", "earliest", "--yes", "-c", shadow.data / "shadow.yml")
        shadow.start()
        wait_for(lambda: "in PostgreSQL than in Kafka" in shadow.output, "the sink")
        assert shadow.stop() == 0
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        admin.delete_topics([TOPIC])[TOPIC].result(LONG_S)
        wait_for(lambda: not exists(admin), "the deletion")
        shadow.start()
        wait_for(lambda: exists(admin), "the topic to be created again")
        verify(shadow, RECORDS + 10)
        assert kafka_records(kafka.bootstrap) == broker_records(broker.database)
        assert shadow.stop() == 0


def exists(admin: AdminClient) -> bool:
    return TOPIC in admin.list_topics(timeout=60).topics


def verify(shadow: Shadowing, records: int) -> None:
    """Wait until Kafka has so many records, the same as the broker."""
    done = shadow.call("verify", "--json", "--wait", str(LONG_S))
    assert done.returncode == 0, done.stdout + done.stderr + shadow.output[-3000:]
    compared = json.loads(done.stdout)
    assert compared["safe"]
    assert sum(each["compared"] for each in compared["partitions"]) == records

"""What clients see after a restore of the database: offsets and sequences move back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tailrace.broker.tables.history import _PRESENT
from tailrace.testing import EmbeddedPostgres
from tailrace.testing.postgres import PRIMARY
from tests.fix_broker import BrokerProcess
from tests.fix_postgres import Database
from tests.integration.broker.clients import Librdkafka
from tests.integration.broker.raw import Raw
from tests.integration.broker.samples import sample_records
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Restorable:
    """A broker whose database can be backed up, and replaced by the backup."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._backup = Database(name=f"{database.name}_backup", server=database.server)
        self.process = BrokerProcess(database, folder)
        self.process.init()
        self.process.start()

    def back_up(self) -> None:
        """A copy of the database as it is now, which is what a dump and its restore give."""
        assert self.process.stop() == 0
        template = f'CREATE DATABASE "{self._backup.name}" TEMPLATE "{self._database.name}"'
        self._database.server.connect().execute(template.encode()).connection.close()
        self.process.start()

    def restore(self) -> None:
        """The broker serves the backup, on the same port."""
        assert self.process.stop() == 0
        port = self.process.port
        self.process = BrokerProcess(self._backup, self._folder, port=port).start()

    def cluster(self) -> str:
        with Raw(self.process.port) as raw:
            return str(raw.ask(3, 9, {"topics": []}).cluster_id)

    def close(self) -> None:
        self.process.kill()
        with contextlib.suppress(psycopg.Error):
            self._database.server.drop_database(self._backup.name)


@pytest.fixture
def restorable(database: Database, tmp_path: Path) -> Iterator[Restorable]:
    made = Restorable(database, tmp_path)
    made.process.database.query("SELECT kafka.create_topic('t', 1, '{\"retention.ms\": \"-1\"}')")
    yield made
    made.close()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_consumer_after_the_end_starts_as_its_policy_says(
    restorable: Restorable, reset: str
) -> None:
    """GIVEN a consumer at an offset that the restored topic does not have THEN it gets
    OFFSET_OUT_OF_RANGE, and goes on where auto.offset.reset says; the cluster id is another one."""
    client = Librdkafka(restorable.process.bootstrap)
    client.produce("t", sample_records(10))
    restorable.back_up()
    before = restorable.cluster()
    client.produce("t", sample_records(20, first=10))
    consumer = Consumer(
        {
            "bootstrap.servers": restorable.process.bootstrap,
            "group.id": "g",
            "auto.offset.reset": reset,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("t", 0, 25)])
    assert [read(consumer).offset() for _ in range(5)] == [25, 26, 27, 28, 29]
    restorable.restore()
    assert restorable.cluster() != before
    assert "broker.database_moved" in restorable.process.output
    if reset == "earliest":
        assert read(consumer).offset() == 0
    else:
        # What is written after the consumer has found the new end.
        first = read(consumer, before=lambda: client.produce("t", sample_records(1)))
        assert first.offset() >= 10
    consumer.close()


def read(consumer: Consumer, *, before: Callable[[], object] = lambda: None) -> Any:
    """The next record; `before` is called before each attempt."""
    found: list[Any] = []

    def received() -> bool:
        before()
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message)
        return bool(found)

    wait_for(received, "a record")
    return found[0]


def test_a_group_resumes_from_the_offset_of_the_backup(restorable: Restorable) -> None:
    client = Librdkafka(restorable.process.bootstrap)
    client.produce("t", sample_records(10))
    assert len(client.consume("t", 5, group="g")) >= 5
    client.commit("g", "t", 5)
    restorable.back_up()
    client.commit("g", "t", 10)
    restorable.restore()
    assert client.committed("g", "t") == (5, "")
    assert client.consume("t", 5, group="g") == sample_records(5, first=5)


def test_producers_do_not_mistake_each_other(restorable: Restorable) -> None:
    """GIVEN a producer that got its id after the backup, and goes on after the restore WHEN a new
    producer writes THEN each record of both is written once: they have different ids."""
    restorable.back_up()
    old, failed = producer(restorable)
    for number in range(5):
        old.produce("t", f"lost {number}", partition=0)
        assert old.flush(60) == 0
    restorable.restore()
    new, also_failed = producer(restorable)
    for number in range(10):
        new.produce("t", f"new {number}", partition=0)
        assert new.flush(60) == 0
    for number in range(5):
        old.produce("t", f"old {number}", partition=0)
        assert old.flush(120) == 0
    assert failed == also_failed == []
    rows = restorable.process.database.query('SELECT value FROM kafka.messages ORDER BY "offset"')
    expected = [f"new {n}".encode() for n in range(10)] + [f"old {n}".encode() for n in range(5)]
    assert [row[0] for row in rows] == expected


def test_a_producer_that_the_backup_knows_must_be_restarted(restorable: Restorable) -> None:
    """As with Kafka after it has lost records: the producer knows that its records are missing."""
    old, _ = producer(restorable)
    old.produce("t", "kept", partition=0)
    assert old.flush(60) == 0
    restorable.back_up()
    old.produce("t", "lost", partition=0)
    assert old.flush(60) == 0
    restorable.restore()
    old.produce("t", "after a gap", partition=0)
    with pytest.raises(KafkaException, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        old.flush(120)
    old.purge()
    new, also_failed = producer(restorable)
    new.produce("t", "again", partition=0)
    assert new.flush(60) == 0
    assert also_failed == []
    rows = restorable.process.database.query('SELECT value FROM kafka.messages ORDER BY "offset"')
    assert [row[0] for row in rows] == [b"kept", b"again"]


def producer(restorable: Restorable) -> tuple[Producer, list[str]]:
    failed: list[str] = []
    return Producer(
        {
            "bootstrap.servers": restorable.process.bootstrap,
            "enable.idempotence": True,
            "log_level": 0,
            "on_delivery": lambda error, _: failed.append(str(error)) if error else None,
        }
    ), failed


@pytest.mark.long
def test_a_promoted_standby_is_another_cluster() -> None:
    """As after a restore to a point in time: the server begins a new timeline."""
    with EmbeddedPostgres(18, settings=PRIMARY) as primary, contextlib.ExitStack() as stack:
        standby = primary.standby()
        stack.callback(standby.stop)
        before = Database(name="postgres", server=primary).query(_PRESENT)[0][0]
        standby.promote()
        after = Database(name="postgres", server=standby).query(_PRESENT)[0][0]
    assert before != after
    assert before.split("-")[0] == after.split("-")[0]

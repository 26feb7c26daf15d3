"""Retention of records by size, and expiry of the state of producers and groups."""

from __future__ import annotations

import asyncio
import re
import uuid
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tailrace.broker.broker import install
from tailrace.broker.tables import expiry, retention, segments
from tailrace.broker.tables.catalog import TopicCatalog
from tailrace.broker.tables.pool import Pool
from tests.command import call
from tests.fix_broker import BrokerProcess
from tests.integration.broker.clients import Librdkafka, Record
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.fix_postgres import Database


def with_pool(database: Database, work: Callable[[Pool], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        pool = Pool(database.dsn, 1)
        try:
            return await work(pool)
        finally:
            await pool.close()

    return asyncio.run(run())


async def apply(pool: Pool, name: str) -> None:
    catalog = TopicCatalog()
    async with pool.connection() as connection:
        await catalog.refresh(connection)
    await retention.apply(pool, catalog.topics[name])


class Partition:
    """A topic with one partition and `retention.bytes`, in a database without a broker."""

    def __init__(self, database: Database, max_bytes: int, *, unlogged: bool = False) -> None:
        self.database, self.name = database, f"t-{uuid.uuid4().hex[:8]}"
        self._table = "kafka.unlogged_messages" if unlogged else "kafka.messages"
        asyncio.run(install(database.dsn))
        config = f'{{"retention.bytes": "{max_bytes}", "retention.ms": "-1"}}'
        (self._id,) = database.query(
            "SELECT kafka.create_topic(%s, 1, %s, %s)", self.name, config, unlogged
        )[0]

    def add(self, count: int, size: int = 10) -> None:
        """Append records of `size` bytes."""
        self.database.execute(f"""
            INSERT INTO {self._table} SELECT {self._id}, 0, p.next_offset + n, now(), NULL,
                convert_to(repeat('x', {size}), 'UTF8'), NULL
            FROM kafka.partitions p, generate_series(0, {count} - 1) n WHERE topic_id = {self._id};
            UPDATE kafka.partitions SET next_offset = next_offset + {count}
            WHERE topic_id = {self._id}
        """)

    def trim(self) -> None:
        with_pool(self.database, lambda pool: apply(pool, self.name))

    def offsets(self) -> tuple[int, int, int]:
        """The start of the partition, its first record and the number of its records."""
        ((start, first, count),) = self.database.query(
            f'SELECT p.log_start, min(m."offset"), count(*) FROM kafka.partitions p'
            f" JOIN {self._table} m USING (topic_id) WHERE p.topic_id = %s GROUP BY 1",
            self._id,
        )
        return start, first, count

    def segments(self) -> list[tuple[int, int, int]]:
        return self.database.query(
            "SELECT segment, counted_to, bytes FROM kafka.segments ORDER BY segment"
        )


def test_a_partition_is_trimmed_to_the_byte(database: Database) -> None:
    """GIVEN records over several segments THEN exactly the newest that fit are kept, again and
    again."""
    partition = Partition(database, 150_000)
    partition.add(14_000)
    partition.trim()
    assert partition.segments() == [(0, 10_000, 100_000), (1, 14_000, 40_000)]
    assert partition.offsets() == (0, 0, 14_000)
    for count, first in ((2000, 1000), (500, 1500), (21_500, 23_000), (1, 23_001), (0, 23_001)):
        partition.add(count)
        partition.trim()
        assert partition.offsets() == (first, first, 15_000)
    assert partition.segments() == [(2, 30_000, 100_000), (3, 38_001, 80_010)]
    partition.add(1, size=200_000)
    partition.trim()
    assert partition.database.query("SELECT count(*) FROM kafka.messages") == [(0,)]


def test_every_record_is_counted_once(database: Database) -> None:
    """WHEN nothing was written since THEN the records that were counted are not read again: their
    sizes do not matter."""
    partition = Partition(database, 1000)
    partition.add(20)
    partition.trim()
    database.execute("UPDATE kafka.messages SET value = convert_to(repeat('x', 1000), 'UTF8')")
    partition.trim()
    assert partition.offsets() == (0, 0, 20)


def test_records_that_a_crash_removed_do_not_matter(database: Database) -> None:
    """GIVEN an unlogged topic that lost its records THEN new ones are kept up to the limit."""
    partition = Partition(database, 1000, unlogged=True)
    partition.add(100)
    partition.trim()
    database.execute("TRUNCATE kafka.unlogged_messages")
    partition.add(60)
    partition.trim()
    assert partition.offsets() == (0, 100, 60)
    partition.add(60)
    partition.trim()
    assert partition.offsets() == (120, 120, 100)


def test_deleted_records_are_not_counted(database: Database) -> None:
    """GIVEN records that were deleted before they were counted THEN counting starts after them."""
    partition = Partition(database, 1000)
    partition.add(50)
    database.execute("UPDATE kafka.partitions SET log_start = 40")
    database.execute('DELETE FROM kafka.messages WHERE "offset" < 40')
    partition.trim()
    assert partition.segments() == [(0, 50, 100)]
    assert segments._SEGMENT == 10_000


@pytest.fixture
def short(database: Database, tmp_path: Path) -> BrokerProcess:
    process = BrokerProcess(
        database,
        tmp_path,
        *("--retention-check", "0.1", "--producer-id-expiration", "2", "--offsets-retention", "2"),
    )
    process.init()
    return process


def test_producers_expire_and_go_on(short: BrokerProcess) -> None:
    """GIVEN an idempotent producer that pauses for longer than its state is kept THEN it is
    forgotten, and goes on without an error."""
    with short.start():
        producer = Producer({"bootstrap.servers": short.bootstrap, "enable.idempotence": True})
        failed: list[object] = []

        def write(value: bytes) -> None:
            producer.produce("t", value, on_delivery=lambda error, _: failed.append(error))
            assert producer.flush(60) == 0

        for number in range(3):
            write(b"%d" % number)
        expired = "SELECT count(*) FROM kafka.expired_producers"
        wait_for(lambda: short.database.query(expired) == [(1,)], "the state to expire")
        write(b"3")
        write(b"4")
        assert failed == [None] * 5
        rows = short.database.query('SELECT value FROM kafka.messages ORDER BY "offset"')
        assert rows == [(b"%d" % number,) for number in range(5)]
        assert short.stop() == 0


def test_offsets_of_groups_without_members_expire(short: BrokerProcess) -> None:
    """GIVEN two groups that commit nothing more, one of which has a member THEN only the other
    one's offsets expire."""
    with short.start():
        client = Librdkafka(short.bootstrap)
        client.produce("t", [Record(value=b"v")])
        alive = Consumer(
            {
                "bootstrap.servers": short.bootstrap,
                "group.id": "alive",
                "enable.auto.commit": False,
            }
        )
        alive.subscribe(["t"])
        wait_for(lambda: (alive.poll(0.1), alive.assignment())[1], "a share")
        alive.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        client.commit("gone", "t", 1)
        groups = "SELECT group_id FROM kafka.consumer_offsets ORDER BY 1"
        wait_for(
            lambda: (alive.poll(0), short.database.query(groups))[1] == [("alive",)],
            "the offsets to expire",
        )
        assert client.committed("gone", "t") is None
        aged = "SELECT now() - committed_at > interval '5 seconds' FROM kafka.consumer_offsets"
        wait_for(lambda: (alive.poll(0), short.database.query(aged))[1] == [(True,)], "some time")
        alive.close()
        wait_for(lambda: short.database.query(groups) == [], "the offsets to expire")
        assert short.stop() == 0


def test_more_rows_than_a_transaction_deletes_expire(database: Database) -> None:
    asyncio.run(install(database.dsn))
    database.execute("""
        SELECT kafka.create_topic('t');
        INSERT INTO kafka.producers
        SELECT n, 1, 0, 0, '[]', now() - interval '2 days' FROM generate_series(1, 25000) n;
        INSERT INTO kafka.producers VALUES (30000, 1, 0, 0, '[]', now());
        INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition_id, "offset", active_at)
        SELECT 'g' || n, 1, 0, 0, now() - interval '9 days' FROM generate_series(1, 25000) n
    """)
    day = 86_400.0
    assert with_pool(database, lambda pool: expiry.expire_producers(pool, day)) == 25_000
    assert database.query("SELECT producer_id FROM kafka.producers") == [(30_000,)]
    assert database.query("SELECT * FROM kafka.expired_producers") == [(25_000,)]
    assert with_pool(database, lambda pool: expiry.expire_producers(pool, day)) == 0
    active = ["g1", "g2"]
    found = with_pool(database, lambda pool: expiry.expire_offsets(pool, 7 * day, active))
    assert found == 24_998
    touched = "SELECT group_id, now() - active_at < interval '1 hour' FROM kafka.consumer_offsets"
    assert sorted(database.query(touched)) == [("g1", True), ("g2", True)]


def test_tables_of_an_older_version_are_upgraded(database: Database, tmp_path: Path) -> None:
    """GIVEN tables with data as earlier versions created them THEN the broker names the command,
    which keeps offsets for as long as those that are committed now. Retention counts the records
    that are there, and a producer goes on."""
    script = resources.files("tailrace.broker.tables").joinpath("schema.sql").read_text()
    for new in (
        r"CREATE TABLE IF NOT EXISTS kafka\.expired_producers .*?;",
        r"ALTER TABLE kafka\.consumer_offsets\s+ADD COLUMN IF NOT EXISTS active_at .*?;",
        r"CREATE TABLE IF NOT EXISTS kafka\.segments .*?;",
        r"CREATE TABLE IF NOT EXISTS kafka\.clusters .*?;",
        r"CREATE UNLOGGED TABLE IF NOT EXISTS kafka\.groups .*?;",
    ):
        script, count = re.subn(new, "", script, flags=re.DOTALL)
        assert count == 1
    database.execute(script)
    database.execute("""
        SELECT kafka.create_topic('t', 1, '{"retention.bytes": "20"}');
        SELECT kafka.produce('t', NULL, 'four' || n) FROM generate_series(1, 9) n;
        INSERT INTO kafka.consumer_offsets VALUES ('g', 1, 0, 5);
        INSERT INTO kafka.producers VALUES (1000, 1, 0, 0, '[[0, 8, 0]]')
    """)
    refused = call("broker", "--dsn", database.dsn, "--listen", "127.0.0.1:0")
    assert refused.returncode != 0
    assert "tailrace broker --init" in refused.stderr
    process = BrokerProcess(database, tmp_path, "--retention-check", "0.1")
    process.init()
    with process.start():
        assert Librdkafka(process.bootstrap).committed("g", "t") == (5, "")
        kept = 'SELECT min("offset"), count(*) FROM kafka.messages'
        wait_for(lambda: database.query(kept) == [(5, 4)], "retention")
        assert database.query("SELECT count(*) FROM kafka.producers") == [(1,)]
        assert process.stop() == 0

"""Limits of requests: bombs, large batches, and many names, groups or topics at once."""

from __future__ import annotations

import gzip
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import cramjam
import psutil
import pytest
from crc32c import crc32c

from tailrace.broker.limits import Limits
from tests.integration.broker.embedded import MB, EmbeddedBroker, topic
from tests.integration.broker.raw import Raw, batch, fetch, join, produce, response
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_broker import BrokerProcess
    from tests.fix_postgres import Database


def packed(codec: int, body: bytes, count: int = 1) -> bytes:
    """A record batch with any codec and body."""
    rest = struct.pack(">hiqqqhii", codec, count - 1, 0, 0, -1, -1, -1, count) + body
    return struct.pack(">qiib", 0, len(rest) + 9, 0, 2) + struct.pack(">I", crc32c(rest)) + rest


BOMBS: dict[str, tuple[int, Callable[[bytes], Any]]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, cramjam.snappy.compress_raw),
    "lz4": (3, cramjam.lz4.compress),
    "zstd": (4, cramjam.zstd.compress),
}


@pytest.mark.parametrize("codec", BOMBS)
def test_decompression_bombs_are_refused(broker: BrokerProcess, codec: str) -> None:
    """Half a gigabyte, compressed as far as the codec can."""
    number, compress = BOMBS[codec]
    bomb = packed(number, bytes(memoryview(compress(bytes(512 * MB)))))
    assert len(bomb) < 60 * MB
    name = topic(broker.database, broker.port)
    process = psutil.Process(broker.pid)
    before, most = process.memory_info().rss, 0
    with Raw(broker.port) as raw:
        raw.send(0, 9, produce(name, bomb))
        answering = threading.Thread(target=raw.receive)
        answering.start()
        while answering.is_alive():
            most = max(most, process.memory_info().rss)
            time.sleep(0.001)
        found = raw.ask(0, 9, produce(name, bomb)).responses[0].partition_responses[0]
        assert found.error_code.name == "message_too_large"
        assert raw.ask(3, 9, {"topics": []}).brokers
    assert most - before < 160 * MB


def test_many_small_bombs_in_a_request_are_refused(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """The limit of a request holds for all of its batches together."""
    served = inside(Limits(request_bytes=8 * MB))
    name = topic(database, served.port)
    # Empty records of seven bytes each, which take much more memory.
    record = bytes((12, 0, 0, 0, 1, 1, 0))
    bomb = packed(1, gzip.compress(record * 100_000), 100_000)
    with Raw(served.port) as raw:
        answer = raw.ask(0, 9, produce(name, *[bomb] * 20)).responses[0]
    codes = [part.error_code.name for part in answer.partition_responses]
    assert codes.count("message_too_large") == 19
    wait_for(lambda: not served.broker.memory.used, "its memory")


def test_a_repeated_topic_is_described_once(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    served = inside(Limits())
    database.query("SELECT kafka.create_topic('wide', 1000)")
    with Raw(served.port) as raw:
        found = raw.ask(3, 9, {"topics": [{"name": "wide"}] * 10_000})
    assert [len(each.partitions) for each in found.topics] == [1000]


def test_a_batch_of_too_many_records_is_refused(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """12 KB of gzip, which used to take ten seconds of the event loop and 775 MB."""
    served = inside(Limits())
    name = topic(database, served.port)
    record = bytes((12, 0, 0, 0, 1, 1, 0))
    bomb = packed(1, gzip.compress(record * 1_190_000), 1_190_000)
    assert len(bomb) < 64 << 10
    with Raw(served.port) as raw:
        found = raw.ask(0, 9, produce(name, bomb)).responses[0].partition_responses[0]
    assert found.error_code.name == "message_too_large"
    assert "max is 100,000" in found.error_message


def test_a_large_batch_is_written(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """As many records as are allowed, parsed in a thread: in order with those before and after."""
    served = inside(Limits())
    name = topic(database, served.port)
    values = [b"%d" % number for number in range(100_000)]
    with Raw(served.port) as raw:
        for each in (batch(b"before"), batch(*values), batch(b"after")):
            raw.send(0, 9, produce(name, each))
        offsets = [
            response(raw.receive(), 0, 9).responses[0].partition_responses[0].base_offset
            for _ in range(3)
        ]
    assert offsets == [0, 1, 100_001]
    rows = database.query('SELECT value FROM kafka.messages ORDER BY "offset"')
    assert [row[0] for row in rows] == [b"before", *values, b"after"]


def fetch_all(name: str, partitions: int, *, max_bytes: int) -> dict[str, Any]:
    """A Fetch request for many partitions, each with its own limit."""
    values = fetch(name)
    parts = [
        {"partition": number, "fetch_offset": 0, "partition_max_bytes": max_bytes}
        for number in range(partitions)
    ]
    return values | {"topics": [{"topic": name, "partitions": parts}], "max_bytes": 100 * MB}


@pytest.mark.parametrize("from_table", [False, True])
def test_only_the_first_records_of_a_response_exceed_the_limits(
    inside: Callable[[Limits], EmbeddedBroker], database: Database, from_table: bool
) -> None:
    """GIVEN batches of a megabyte in 20 partitions WHEN a client fetches one byte of each THEN it
    gets one batch, as from Kafka, and the memory of this batch is reserved."""
    served = inside(Limits(memory_bytes=MB // 2, fetch_bytes=64 * MB))
    name = topic(database, served.port, 20)
    with Raw(served.port) as raw:
        for number in range(20):
            values = produce(name, batch(bytes(MB)))
            values["topic_data"][0]["partition_data"][0]["index"] = number
            assert not raw.ask(0, 9, values).responses[0].partition_responses[0].error_code
        if from_table:
            served.broker.tails.clear()
        found = raw.ask(1, 11, fetch_all(name, 20, max_bytes=1)).responses[0].partitions
        assert [len(part.records) > MB for part in found] == [True] + [False] * 19
        assert {len(part.records) for part in found[1:]} == {0}
        found = raw.ask(1, 11, fetch_all(name, 20, max_bytes=2 * MB)).responses[0].partitions
        assert all(len(part.records) > MB for part in found)


def test_members_of_groups_have_a_part_of_the_memory(
    inside: Callable[[Limits], EmbeddedBroker],
) -> None:
    served = inside(Limits(memory_bytes=16 * MB))
    with Raw(served.port) as raw:
        assert raw.ask(11, 3, join("g", bytes(2 * MB))).error_code.name == "group_max_size_reached"
        codes = [
            raw.ask(11, 3, join(f"g{number}", bytes(1_000_000))).error_code.name
            for number in range(8)
        ]
        assert codes == ["none"] * 4 + ["group_max_size_reached"] * 4
        assert 4_000_000 < served.broker.memory.kept <= 4 * MB
        described = raw.ask(15, 5, {"groups": ["g0", "g1", "g0"]}).groups
        assert [group.group_id for group in described] == ["g0", "g1"]
        assert [len(group.members[0].member_metadata) for group in described] == [1_000_000] * 2


def test_many_names_are_looked_up_at_once(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """GIVEN requests for 10,000 groups or topics that do not exist THEN each takes a handful of
    queries, not one per name."""
    served = inside(Limits())
    taken = 0
    connection = served.broker.pool.connection

    def counted() -> Any:
        nonlocal taken
        taken += 1
        return connection()

    served.broker.pool.connection = counted
    names = [f"n{number}" for number in range(10_000)]
    database.execute("SELECT kafka.create_topic('n7')")
    with Raw(served.port) as raw:
        groups = raw.ask(15, 5, {"groups": names}).groups
        assert {group.group_state for group in groups} == {"Dead"}
        assert [group.group_id for group in groups] == names
        deleted = raw.ask(42, 2, {"groups_names": names}).results
        assert {each.error_code.name for each in deleted} == {"group_id_not_found"}
        values = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
        topics = raw.ask(3, 9, values).topics
        assert [each.name for each in topics if not each.error_code] == ["n7"]
        part = {"partition_index": 0, "timestamp": -1}
        listed = raw.ask(
            2, 1, {"replica_id": -1, "topics": [{"name": n, "partitions": [part]} for n in names]}
        )
        assert len(listed.topics) == len(names)
    assert taken < 20


def test_a_metadata_request_creates_some_topics(
    inside: Callable[[Limits], EmbeddedBroker],
) -> None:
    """The rest is unknown for now: clients ask again."""
    served = inside(Limits())
    values = {
        "topics": [{"name": f"n{number}"} for number in range(250)],
        "allow_auto_topic_creation": True,
    }
    with Raw(served.port) as raw:
        known = [
            sum(not each.error_code for each in raw.ask(3, 9, values).topics) for _ in range(4)
        ]
    assert known == [100, 200, 250, 250]

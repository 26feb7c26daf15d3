"""Redis Cluster: several masters, each with its share of the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from redis.crc import key_slot

from tailrace.errors import SinkFencedError, SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.testing import EmbeddedRedis, EmbeddedRedisCluster
from tests.integration.redis.bench import Bench, send
from tests.unit.sinks.rows import message_id, payload, position, with_column
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

STREAMS = 8


@pytest.fixture
def bench(redis_cluster: EmbeddedRedisCluster) -> Bench:
    return Bench(redis_cluster.url, cluster=True)


@pytest.fixture
def client(redis_cluster: EmbeddedRedisCluster) -> Iterator[redis.RedisCluster]:
    with redis.RedisCluster(host="127.0.0.1", port=redis_cluster.servers[0].port) as made:
        yield made


def spread(bench: Bench, numbers: range) -> pa.RecordBatch:
    """Messages of several streams, which are on several servers."""
    names = [f"{bench.name}.{number % STREAMS}".encode() for number in numbers]
    return with_column(bench.rows(numbers), "destination", list(names))


def held(client: redis.RedisCluster, bench: Bench) -> list[list[bytes]]:
    """The ids in each stream."""
    streams = [f"{bench.name}.{at}" for at in range(STREAMS)]
    return [[fields[b"id"] for _, fields in client.xrange(name)] for name in streams]


def expected(count: int) -> list[list[bytes]]:
    return [[message_id(n) for n in range(at, count, STREAMS)] for at in range(STREAMS)]


@pytest.mark.parametrize("ids", ["auto", "position"])
def test_each_stream_has_each_message_once(
    bench: Bench, client: redis.RedisCluster, ids: str
) -> None:
    with bench.opened(ids=ids) as sink:
        assert send(sink, spread(bench, range(100))).messages == 100
    with bench.opened(ids=ids) as sink:
        receipt = send(sink, spread(bench, range(50, 150)))
    assert (receipt.messages, receipt.duplicates) == (50, 50)
    assert held(client, bench) == expected(150)


def test_a_zombie_is_fenced_per_stream(bench: Bench, client: redis.RedisCluster) -> None:
    with bench.opened() as zombie:
        send(zombie, spread(bench, range(50)))
        with bench.opened() as sink:
            send(sink, spread(bench, range(60)))
            zombie.write(spread(bench, range(50, 60)))
            with pytest.raises(SinkFencedError):
                zombie.flush()
    assert held(client, bench) == expected(60)


def test_hash_tags(bench: Bench, client: redis.RedisCluster) -> None:
    names: list[bytes | None] = [f"a{{{bench.name}}}".encode(), f"b{{{bench.name}}}".encode()]
    batch = with_column(bench.rows(range(4)), "destination", names * 2)
    with bench.opened() as sink:
        assert send(sink, batch).messages == 4
    with bench.opened() as sink:
        assert send(sink, batch).duplicates == 4
        wrong = with_column(bench.rows(range(4, 5)), "destination", [b"a}b"])
        assert "hash tag" in sink.inspect(wrong)[0].reason
    assert [client.xlen(name) for name in names] == [2, 2]


def test_the_latest_state(bench: Bench, client: redis.RedisCluster) -> None:
    with bench.opened(mode="string", expire_s=100, batch_rows=7) as sink:
        assert send(sink, bench.keyed(range(100))).messages == 100
        later = with_column(bench.keyed(range(3)), "destination", [b"DEL " + bench.destination] * 3)
        send(sink, later)
    values = [client.get(f"{bench.name}:{number}") for number in range(100)]
    assert values == [None] * 3 + [payload(number) for number in range(3, 100)]
    assert 0 < client.ttl(f"{bench.name}:7") <= 100


def test_published_messages_are_published_once(bench: Bench) -> None:
    """The position is on one of the servers, which passes messages on to all."""
    first = redis.Redis(port=int(bench.url.split(",")[0].rpartition(":")[2]))
    with first, first.pubsub() as listener:
        listener.subscribe(bench.name)
        wait_for(lambda: listener.get_message(timeout=1), "the subscription")
        assert bench.deliver(range(5), mode="publish").messages == 5
        assert bench.deliver(range(6), mode="publish").duplicates == 5
        found = [wait_for(lambda: listener.get_message(timeout=1), "a message") for _ in range(6)]
    assert [each["data"] for each in found] == [payload(n) for n in range(6)]


def test_a_slot_that_moves(redis_available: None) -> None:
    """GIVEN an open sink WHEN a slot moves to another server THEN the next attempt finds it."""
    with EmbeddedRedisCluster() as servers:
        bench = Bench(servers.url, cluster=True)
        # With a prefix that is a hash tag, positions have the slot of the name.
        tagged = f"{{{bench.name}}}.x".encode()
        batch = with_column(bench.rows(range(20)), "destination", [tagged] * 20)
        with (
            bench.opened() as sink,
            redis.RedisCluster(host="127.0.0.1", port=servers.servers[0].port) as client,
        ):
            slot = client.keyslot(tagged)
            owner = client.get_node_from_key(tagged).port
            target = next(each for each in servers.servers if each.port != owner)
            name = target.command("CLUSTER MYID").split()[1]
            for server in servers.servers:
                server.command(f"CLUSTER SETSLOT {slot} NODE {name}")
            with pytest.raises(SinkUnreachableError, match=r"MOVED|\d+ 127\.0\.0\.1"):
                send(sink, batch)
            sink.open(ORIGIN)
            assert send(sink, batch).messages == 20
            assert client.xlen(tagged) == 20


def test_a_node_that_restarts(redis_available: None) -> None:
    with EmbeddedRedisCluster() as servers:
        bench = Bench(servers.url, cluster=True)
        with bench.opened() as sink:
            send(sink, spread(bench, range(100)))
            servers.servers[1].kill()
            with pytest.raises(SinkUnreachableError):
                send(sink, spread(bench, range(100, 200)))
            servers.servers[1].start()
            wait_for(
                lambda: all(
                    "cluster_state:ok" in s.command("CLUSTER INFO") for s in servers.servers
                ),
                "the cluster",
            )
            sink.open(position(99))
            receipt = send(sink, spread(bench, range(100, 200)))
            assert receipt.messages + receipt.duplicates == 100
        with redis.RedisCluster(host="127.0.0.1", port=servers.servers[0].port) as client:
            assert held(client, bench) == expected(200)


def test_the_rights_that_the_guide_lists_are_sufficient(
    redis_cluster: EmbeddedRedisCluster,
) -> None:
    bench = Bench(redis_cluster.url, cluster=True, user="few", password="few")
    rights = "+ping +client|setname +eval +hmget +hset +hgetall +type +xadd +cluster|slots +command"
    for server in redis_cluster.servers:
        server.command(f"ACL SETUSER few on >few ~tailrace:positions:* ~{bench.name}* {rights}")
    assert bench.send(spread(bench, range(20))).messages == 20
    with pytest.raises(SinkRefusedError) as caught:
        bench.deliver(range(3), password="s3cret")
    assert "s3cret" not in str(caught.value)


def test_the_setting_must_fit_the_server(
    redis_server: EmbeddedRedis, redis_cluster: EmbeddedRedisCluster
) -> None:
    with pytest.raises(SinkRefusedError) as caught:
        Bench(redis_server.url, cluster=True).deliver(range(3))
    assert "luster" in str(caught.value)
    bench = Bench(redis_cluster.servers[0].url)
    while key_slot(bench.position_key.encode()) < 16384 // 3:
        # The first third of the slots is on this very server.
        bench = Bench(bench.url)
    with pytest.raises(SinkRefusedError) as caught:
        bench.deliver(range(3))
    assert "cluster: true" in caught.value.hint

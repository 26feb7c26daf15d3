"""Each message once, whatever dies: messages and the position that they reach are one script."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.errors import (
    ConfigError,
    DivergedError,
    SinkFencedError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane, Receipt
from tailrace.sinks.redis.sink_type import SINK
from tailrace.testing import EmbeddedRedis, TcpProxy
from tests.integration.redis.bench import Bench, send
from tests.unit.sinks.rows import position, with_column, write
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.redis.sink import Redis


@pytest.fixture
def bench(redis_server: EmbeddedRedis) -> Bench:
    return Bench(redis_server.url)


@pytest.fixture
def server(redis_available: None) -> Iterator[EmbeddedRedis]:
    """A server of the test's own."""
    with EmbeddedRedis() as made:
        yield made


def test_delivered_messages_are_skipped_with_any_older_checkpoint(bench: Bench) -> None:
    bench.deliver(range(100))
    for after in (ORIGIN, position(40), position(99)):
        assert bench.deliver(range(50, 100), after) == Receipt(duplicates=50)
    receipt = bench.deliver(range(41, 150), position(40))
    assert (receipt.messages, receipt.duplicates) == (50, 59)
    assert bench.numbers() == list(range(150))


@pytest.mark.parametrize("least", [100, 8000])
def test_a_process_that_is_killed(bench: Bench, least: int) -> None:
    """GIVEN a process that is killed while it writes WHEN its work is done again from the start
    THEN no message is missing and none is there twice."""
    command = [sys.executable, "-m", "tests.integration.redis.dying", bench.url, bench.name]
    with subprocess.Popen(command) as process, bench.client() as client:
        wait_for(lambda: client.xlen(bench.name) > least, "messages")
        process.send_signal(signal.SIGKILL)
        process.wait()
    # Redis may still run the scripts that it has received.
    there = len(bench.numbers())
    receipt = bench.deliver(range(there + 2000))
    assert receipt.duplicates >= there
    assert receipt.messages == there + 2000 - receipt.duplicates
    assert bench.numbers() == list(range(there + 2000))


def test_a_connection_that_is_lost_while_scripts_run(redis_server: EmbeddedRedis) -> None:
    """GIVEN scripts without answers WHEN the connection is lost THEN each counts once."""
    bench = Bench(redis_server.url)
    count, lost = 3000, 0
    with TcpProxy("127.0.0.1", redis_server.port) as proxy:
        far = Bench(f"redis://127.0.0.1:{proxy.port}", bench.name, batch_rows=20)
        for cut in range(8):
            with far.opened() as sink:
                timer = threading.Timer(0.01 * cut, proxy.cut)
                timer.start()
                with contextlib.suppress(SinkUnreachableError):
                    write_many(sink, far, count)
                timer.join()
                lost += len(bench.numbers()) < count
    assert lost
    bench.deliver(range(count))
    assert bench.numbers() == list(range(count))


def test_a_server_that_is_killed_while_it_writes(server: EmbeddedRedis) -> None:
    """With `appendfsync always`, what Redis has confirmed is there after its restart."""
    bench = Bench(server.url, batch_rows=10)
    flushed = 0
    for _ in range(3):
        with bench.opened(position(flushed - 1) if flushed else ORIGIN) as sink:
            killer = threading.Timer(0.1, server.kill)
            killer.start()
            with contextlib.suppress(SinkUnreachableError):
                while True:
                    send(sink, bench.rows(range(flushed, flushed + 30)))
                    flushed += 30
        killer.join()
        server.start()
        assert bench.numbers()[:flushed] == list(range(flushed))
    bench.deliver(range(flushed, flushed + 30), position(flushed - 1))
    assert bench.numbers() == list(range(flushed + 30))


def test_a_sink_survives_a_restart_between_batches(server: EmbeddedRedis) -> None:
    bench = Bench(server.url)
    with bench.opened() as sink:
        send(sink, bench.rows(range(10)))
        server.restart()
        sink.open(position(9))
        assert send(sink, bench.rows(range(10, 20))).messages == 10
    assert bench.numbers() == list(range(20))


@pytest.mark.parametrize("mode", ["stream", "string", "publish"])
def test_a_zombie_is_fenced(bench: Bench, mode: str) -> None:
    def batch(numbers: range) -> pa.RecordBatch:
        return with_column(bench.rows(numbers), "key", [b"%d" % number for number in numbers])

    with bench.opened(mode=mode) as zombie:
        send(zombie, batch(range(5)))
        with bench.opened(mode=mode) as sink:
            zombie.write(batch(range(5, 10)))
            with pytest.raises(SinkFencedError) as caught:
                zombie.flush()
            assert "another process" in caught.value.hint
            assert send(sink, batch(range(10))).duplicates == 5
    if mode == "stream":
        assert bench.numbers() == list(range(10))


def test_a_zombie_that_keeps_writing_is_fenced(bench: Bench) -> None:
    with bench.opened(batch_rows=10) as zombie, bench.opened():
        with pytest.raises(SinkFencedError):
            write_many(zombie, bench)
        with pytest.raises(SinkUnreachableError, match="not open"):
            zombie.flush()
    assert bench.numbers() == []


def write_many(sink: Redis, bench: Bench, count: int = 10_000) -> None:
    for start in range(0, count, 50):
        write(sink, bench.rows(range(start, start + 50)))
    sink.flush()


def test_a_lane_may_move_between_workers(bench: Bench) -> None:
    with bench.opened() as one, bench.opened() as other:
        done = 0
        for sink in (one, other, one, one, other, other, one):
            sink.open(position(done - 1) if done else ORIGIN)
            assert send(sink, bench.rows(range(done, done + 20))).messages == 20
            done += 20
    assert bench.numbers() == list(range(140))


def test_positions_of_another_history_are_refused_until_a_reset(bench: Bench) -> None:
    bench.deliver(range(100), history="old")
    with bench.opened(history="old") as owner:
        with pytest.raises(DivergedError, match="in the log old, but this log is new"):
            bench.sink(history="new").open(ORIGIN)
        # The refused sink has not taken the lane over.
        assert send(owner, bench.rows(range(100, 110))).messages == 10
    assert bench.deliver(range(10), history="new+1").messages == 10
    assert bench.deliver(range(12), history="new+1").duplicates == 10


def test_each_lane_has_its_own_position(bench: Bench) -> None:
    even, odd = range(0, 100, 2), range(1, 100, 2)
    bench.deliver(even, lane=0, lanes=2)
    assert bench.deliver(even, lane=0, lanes=2).duplicates == 50
    assert bench.deliver(odd, lane=1, lanes=2).duplicates == 0
    assert sorted(bench.numbers()) == list(range(100))


def test_a_replay_with_other_messages_in_a_lane_is_refused(bench: Bench) -> None:
    bench.deliver(range(0, 50, 2), lane=0, lanes=2)
    with pytest.raises(SinkRefusedError, match="the replayed batch has other messages"):
        bench.deliver(range(60), lane=0, lanes=2)
    assert bench.numbers() == list(range(0, 50, 2))


def test_a_lane_that_stored_a_part_of_a_batch_continues(bench: Bench) -> None:
    """GIVEN a lane whose batch was cut off between two scripts THEN the replay sends the rest."""
    bench.deliver(range(0, 20, 2), lane=0, lanes=2)
    receipt = bench.deliver(range(0, 50, 2), lane=0, lanes=2, batch_rows=7)
    assert (receipt.messages, receipt.duplicates) == (15, 10)
    assert bench.deliver(range(0, 50, 2), lane=0, lanes=2).duplicates == 25
    assert bench.numbers() == list(range(0, 50, 2))


def test_the_number_of_lanes_may_change_only_between_batches(bench: Bench) -> None:
    bench.deliver(range(2, 30, 3), lane=2, lanes=3)
    with pytest.raises(SinkRefusedError, match="lane 2 of 3"):
        bench.sink().open(ORIGIN)
    assert bench.deliver(range(30, 40), position(29), lane=4, lanes=5).messages == 10


def test_positions_as_ids_need_one_lane(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="single lane"):
        SINK.open(bench.settings(ids="position"), Lane(pipeline="p", lanes=2))
    SINK.open(bench.settings(), Lane(pipeline="p", lanes=2))


def test_with_positions_as_ids_redis_refuses_what_it_has(bench: Bench) -> None:
    """GIVEN a position that was deleted THEN no entry is there twice."""
    bench.deliver(range(100), ids="position")
    with bench.client() as client:
        client.delete(bench.position_key)
    receipt = bench.deliver(range(50, 120), position(49), ids="position")
    assert (receipt.messages, receipt.duplicates) == (20, 50)
    assert bench.numbers() == list(range(120))


def test_an_entry_that_redis_cannot_take_is_not_lost_silently(bench: Bench) -> None:
    """GIVEN a stream with later entries of another history THEN the pipeline stops."""
    bench.deliver(range(100, 200), ids="position", history="old")
    with pytest.raises(DivergedError, match="does not take entry") as caught:
        bench.deliver(range(100), ids="position", history="new+1")
    assert "ids: auto" in caught.value.hint
    other = with_column(bench.rows(range(100, 101)), "payload", [b"other"])
    with (
        bench.opened(ids="position", history="new+1") as sink,
        pytest.raises(DivergedError, match="does not take entry"),
    ):
        send(sink, other)
    assert bench.numbers() == list(range(100, 200))


def test_a_position_that_is_deleted_meanwhile(bench: Bench) -> None:
    with bench.opened() as sink, bench.client() as client:
        send(sink, bench.rows(range(5)))
        client.delete(bench.position_key)
        with pytest.raises(SinkUnreachableError, match="no longer holds the position"):
            send(sink, bench.rows(range(5, 10)))
        assert bench.numbers() == list(range(5))
    assert bench.deliver(range(5, 10), position(4)).messages == 5


@pytest.mark.parametrize("mode", ["stream", "string", "publish"])
def test_a_full_server_takes_all_of_a_script_or_nothing(server: EmbeddedRedis, mode: str) -> None:
    """GIVEN a server at `maxmemory` THEN nothing is stored; WHEN it has space THEN all is."""
    bench = Bench(server.url, mode=mode)
    batch = with_column(bench.rows(range(20), size=1000), "key", [b"k"] * 20)
    batch = with_column(batch, "destination", [b"DEL x", *[bench.destination] * 19])
    with bench.client() as client, client.pubsub() as listener:
        listener.subscribe(bench.name)
        wait_for(lambda: listener.get_message(timeout=1), "the subscription")
        with bench.opened() as sink:
            assert sink.inspect(batch) == {}
            client.config_set("maxmemory", 1)
            sink.write(batch)
            with pytest.raises(SinkFullError, match=r"OOM|memory"):
                sink.flush()
        assert not client.exists(bench.name)
        assert listener.get_message(timeout=0.05) is None
        client.config_set("maxmemory", 0)
        with bench.opened() as sink:
            assert send(sink, batch).messages == 20


def test_a_replica_is_not_written_to(server: EmbeddedRedis) -> None:
    bench = Bench(server.url)
    with bench.opened() as sink, bench.client() as client:
        send(sink, bench.rows(range(5)))
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(SinkUnreachableError, match="read only replica"):
            send(sink, bench.rows(range(5, 10)))
        with pytest.raises(SinkUnreachableError):
            bench.sink().open(ORIGIN)
        client.replicaof("NO", "ONE")
    assert bench.deliver(range(10)).messages == 5
    assert bench.numbers() == list(range(10))


def test_waiting_for_replicas(server: EmbeddedRedis) -> None:
    bench = Bench(server.url)
    with pytest.raises(SinkUnreachableError, match="0 of 1 replicas"):
        bench.deliver(range(10), wait_replicas=1, timeout_s=4)
    with EmbeddedRedis(replicaof=f"127.0.0.1 {server.port}") as replica:
        wait_for(lambda: "master_link_status:up" in replica.command("INFO replication"), "the link")
        # All was skipped: the replica must have it nevertheless.
        assert bench.deliver(range(10), wait_replicas=1).duplicates == 10
        assert Bench(replica.url, bench.name).numbers() == list(range(10))


def test_waiting_for_the_append_only_file(server: EmbeddedRedis) -> None:
    bench = Bench(server.url, wait_aof=True)
    with bench.client() as client:
        version = str(client.info("server")["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < (7, 2):
        with pytest.raises(SinkRefusedError, match="WAITAOF"):
            bench.deliver(range(10))
    else:
        assert bench.deliver(range(10)).messages == 10


def test_scripts_that_are_not_cached(bench: Bench) -> None:
    with bench.opened() as sink, bench.client() as client:
        send(sink, bench.rows(range(5)))
        client.script_flush()
        send(sink, bench.rows(range(5, 10)))
    assert bench.numbers() == list(range(10))


def test_the_largest_positions(bench: Bench) -> None:
    """Ids and positions beyond the numbers of Lua."""
    batch = bench.rows(range(2))
    for name, values in (("lsn", [2**64 - 2] * 2), ("ordinal", [2**62 + 1, 2**62 + 2])):
        at = MESSAGES.get_field_index(name)
        batch = batch.set_column(at, MESSAGES.field(at), pa.array(values, pa.uint64()))
    with bench.opened(ids="position") as sink:
        send(sink, batch)
    with bench.opened(ids="position") as sink:
        assert send(sink, batch).duplicates == 2
    expected = [b"%d-%d" % (2**64 - 2, 2**62 + 1), b"%d-%d" % (2**64 - 2, 2**62 + 2)]
    assert [entry for entry, _ in bench.entries()] == expected

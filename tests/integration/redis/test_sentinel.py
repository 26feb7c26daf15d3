"""Sentinel: the sink finds the master, also after a failover."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkUnreachableError
from tailrace.testing import EmbeddedRedis
from tests.integration.redis.bench import Bench, send
from tests.unit.sinks.rows import position
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tailrace.sinks.redis.sink import Redis

CONFIG = """\
sentinel monitor main 127.0.0.1 {port} 1
sentinel down-after-milliseconds main 400
sentinel failover-timeout main 2000
"""


def test_a_failover(redis_available: None) -> None:
    """GIVEN messages that the replica has confirmed WHEN the master dies THEN the sink continues
    on the replica, and no message is missing or there twice."""
    with (
        EmbeddedRedis() as master,
        EmbeddedRedis(replicaof=f"127.0.0.1 {master.port}") as replica,
        EmbeddedRedis(config=CONFIG.format(port=master.port), sentinel=True) as sentinel,
    ):
        bench = Bench(sentinel.url, sentinel_master="main")
        wait_for(
            lambda: "num-slaves\r\n$1\r\n1" in sentinel.command("SENTINEL MASTER main"),
            "the replica",
        )
        with bench.opened(wait_replicas=1) as sink:
            send(sink, bench.rows(range(100)))
            sink.write(bench.rows(range(100, 200)))
            master.kill()
            with pytest.raises(SinkUnreachableError):
                sink.flush()
        sink = bench.sink()
        wait_for(lambda: opens(sink), "the failover")
        receipt = send(sink, bench.rows(range(100, 300)))
        sink.close()
        assert receipt.messages + receipt.duplicates == 200
        assert Bench(replica.url, bench.name).numbers() == list(range(300))


def opens(sink: Redis) -> bool:
    try:
        sink.open(position(99))
    except SinkUnreachableError:
        return False
    return True


def test_an_unknown_master(redis_available: None) -> None:
    with EmbeddedRedis(sentinel=True) as sentinel:
        bench = Bench(sentinel.url, sentinel_master="other", sentinel_password="s3cret")
        with pytest.raises(SinkUnreachableError, match="No master found for 'other'") as caught:
            bench.deliver(range(3))
        assert "s3cret" not in str(caught.value)

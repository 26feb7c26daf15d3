"""Mutated requests of every kind and version, each on a connection of its own.

The broker closes that connection or answers; it lives, does not grow, and serves others as before.
Before and during a login as well, and nobody gets in by accident.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tailrace.broker.api import API_VERSIONS, APIS, LOGIN
from tests.chance import examples
from tests.fix_broker import BrokerProcess
from tests.fuzz.mutate import Mutator
from tests.integration.broker.clients import Librdkafka, Login
from tests.integration.broker.raw import Raw, request
from tests.integration.broker.samples import create_topic, sample_records
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = pytest.mark.fuzz

FRAMES = int(os.environ.get("TAILRACE_FUZZ") or examples(40))
TOGETHER = 64
GROWTH_MB = 64
SOON = timedelta(milliseconds=1)


def batch() -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for number in range(3):
        builder.append(number, 1_700_000_000_000, b"key", b"value", [("h", b"1")])
    return bytes(builder.build())


MEMBER = {"group_id": "fuzz", "generation_id": 1, "member_id": "m"}
VALUES: dict[int, dict[str, Any]] = {
    0: {
        "transactional_id": None, "acks": 1, "timeout": SOON,
        "topic_data": [{"name": "fuzz", "partition_data": [{"index": 0, "records": batch()}]}],
    },
    1: {
        "replica_id": -1, "max_wait": SOON, "min_bytes": 1, "isolation_level": 0,
        "topics": [{
            "topic": "fuzz",
            "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}],
        }],
        "forgotten_topics_data": [],
    },
    2: {
        "replica_id": -1, "isolation_level": 0,
        "topics": [{"name": "fuzz", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    },
    3: {
        "topics": [{"name": "fuzz", "topic_id": None}],
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    },
    8: MEMBER | {
        "topics": [{"name": "fuzz", "partitions": [
            {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""},
        ]}],
        "retention_time": SOON,
    },
    9: {"group_id": "fuzz", "topics": [{"name": "fuzz", "partition_indexes": (0,)}]},
    10: {"key": "fuzz"},
    11: MEMBER | {
        "session_timeout": timedelta(seconds=6), "rebalance_timeout": timedelta(seconds=6),
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"\0\1"}],
    },
    12: MEMBER,
    13: MEMBER | {"members": [{"member_id": "m"}]},
    14: MEMBER | {"assignments": [{"member_id": "m", "assignment": b"\0"}]},
    15: {"groups": ("fuzz",), "include_authorized_operations": False},
    16: {},
    17: {"mechanism": "SCRAM-SHA-256"},
    19: {
        "topics": [{
            "name": "fuzz-made", "num_partitions": 1, "replication_factor": 1, "assignments": [],
            "configs": [{"name": "retention.ms", "value": "1"}],
        }],
    },
    20: {"topic_names": ("fuzz-made",), "timeout": SOON},
    21: {
        "topics": [{"name": "fuzz", "partitions": [{"partition_index": 0, "offset": 1}]}],
        "timeout": SOON,
    },
    22: {"transactional_id": None, "transaction_timeout": SOON},
    32: {"resources": [
        {"resource_type": 2, "resource_name": "fuzz", "configuration_keys": ("retention.ms",)},
    ]},
    33: {
        "resources": [{"resource_type": 2, "resource_name": "fuzz", "configs": [
            {"name": "retention.ms", "value": "1"},
        ]}],
        "validate_only": False,
    },
    36: {"auth_bytes": b"n,,n=ann,r=abc"},
    37: {
        "topics": [{"name": "fuzz", "count": 2, "assignments": None}],
        "timeout": SOON, "validate_only": False,
    },
    42: {"groups_names": ("fuzz",)},
    44: {
        "resources": [{"resource_type": 2, "resource_name": "fuzz", "configs": [
            {"name": "retention.ms", "config_operation": 0, "value": "1"},
        ]}],
        "validate_only": False,
    },
}  # fmt: skip


def corpus() -> list[bytes]:
    return [
        request(api.key, version, VALUES[api.key])
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ]


@pytest.fixture
def process(database: Database, tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(database, tmp_path)
    made.init()
    made.start()
    yield made
    assert made.stop() == 0


def send(port: int, frame: bytes) -> bytes:
    """What the broker says to a frame before the connection is over."""
    with socket.create_connection(("127.0.0.1", port), LONG_S) as link:
        found = b""
        # The broker may have closed the connection of a malformed frame already.
        with contextlib.suppress(OSError):
            link.sendall(struct.pack(">i", len(frame)) + frame)
            link.shutdown(socket.SHUT_WR)
            while piece := link.recv(65536):
                found += piece
        return found


def test_every_request_is_understood(process: BrokerProcess) -> None:
    """The corpus is what it should be: nothing in it is malformed."""
    create_topic(process.bootstrap, 1)
    for frame in corpus():
        send(process.port, frame)
    said = process.output
    assert "broker.malformed_request" not in said
    assert "broker.connection_failed" not in said


@pytest.mark.timeout(7200)
def test_mutated_requests(process: BrokerProcess) -> None:
    calm = create_topic(process.bootstrap)
    client = Librdkafka(process.bootstrap)
    frames = Mutator(corpus(), seed=1)
    broker = psutil.Process(process.pid)
    before = 0.0
    # In parallel: some connections wait for a response, or for being closed.
    with ThreadPoolExecutor(TOGETHER) as pool:
        for part in range(10):
            sent = islice(frames, FRAMES // 10)
            assert sum(1 for _ in pool.map(partial(send, process.port), sent)) == FRAMES // 10
            before = before or broker.memory_info().rss / 2**20
            assert client.produce(calm, sample_records(1, first=part)) == [part]
    assert client.consume(calm, 10) == sample_records(10)
    after = broker.memory_info().rss / 2**20
    assert after < before + GROWTH_MB
    assert "broker.connection_failed" not in process.output


def login() -> list[bytes]:
    """What a client sends before it is let in, and what it might send instead."""
    first = b"n,,n=ann,r=fyko+d2lbbFgONRv9qkxdawL"
    final = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawLabc,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    tokens = (first, final, b"\0ann\0secret", b"", b"n,a=ann,n=ann,r=x", b"y,,n=a=2Cn,r=x")
    frames = [request(36, version, {"auth_bytes": token}) for token in tokens for version in (0, 2)]
    mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "GSSAPI", "")
    return [
        *frames,
        *(request(17, version, {"mechanism": each}) for each in mechanisms for version in (0, 1)),
        *(request(API_VERSIONS, version, {"client_software_name": "x"}) for version in (0, 2)),
    ]


@pytest.mark.timeout(7200)
def test_mutated_logins(process: BrokerProcess) -> None:
    """Two requests at a time: a token is valid after a handshake only."""
    process.account("user", "add", "ann", "--superuser", password="secret")
    calm = "calm"
    process.database.query('SELECT kafka.create_topic(%s, 1, \'{"retention.ms": "-1"}\')', calm)
    client = Librdkafka(process.bootstrap, Login(user="ann", password="secret"))
    assert client.produce(calm, sample_records(1)) == [0]
    handshake = [request(17, 1, {"mechanism": "SCRAM-SHA-256"})]
    mutated = Mutator(login(), seed=1)
    others = Mutator(corpus(), seed=2)
    metadata = request(3, 9, {"topics": None})
    broker = psutil.Process(process.pid)
    before = 0.0
    for number in range(FRAMES):
        frames = [next(mutated) if number % 3 else next(others)]
        said = b""
        with Raw(process.port) as raw, contextlib.suppress(OSError):
            for frame in (*handshake, *frames, metadata):
                raw.link.sendall(struct.pack(">i", len(frame)) + frame)
            raw.link.shutdown(socket.SHUT_WR)
            # The response to a failed login is delayed; only some iterations wait for it.
            raw.link.settimeout(5 if number % 50 == 0 else 0.01)
            while piece := raw.link.recv(65536):
                said += piece
        assert calm.encode() not in said
        if number == FRAMES // 10:
            before = broker.memory_info().rss / 2**20
    assert client.consume(calm, 1) == sample_records(1)
    assert broker.memory_info().rss / 2**20 < before + GROWTH_MB
    assert "broker.connection_failed" not in process.output


def test_nothing_is_answered_before_the_login(process: BrokerProcess) -> None:
    process.account("user", "add", "ann", "--superuser", password="secret")
    for frame in corpus():
        (api,) = struct.unpack_from(">h", frame)
        if api not in LOGIN:
            assert send(process.port, frame) == b""
    assert "broker.connection_failed" not in process.output

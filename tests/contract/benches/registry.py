"""Every bench by its name. A sink joins the contract suites with a line here."""

from __future__ import annotations

import uuid
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import s3fs

from tailrace.testing import EmbeddedNats
from tests.contract.benches.brokers import KafkaBench, NatsBench, RabbitMQBench
from tests.contract.benches.case import EXEMPT
from tests.contract.benches.databases import PostgresBench, PullBench, RedisBench, SearchBench
from tests.contract.benches.files import FileBench, S3Bench
from tests.contract.benches.services import (
    AwsBench,
    HttpArrayBench,
    HttpBench,
    PubSubBench,
    Receiver,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from _pytest.mark import ParameterSet

    from tailrace.testing import EmbeddedRedis, EmbeddedRedisCluster
    from tests.contract.benches.bench import Bench
    from tests.contract.benches.case import Case
    from tests.fix_aws import MotoServer
    from tests.fix_s3 import S3Server
    from tests.pubsub import PubSubServer


@contextmanager
def nats_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    del request
    with EmbeddedNats() as server:
        yield NatsBench(server)


@contextmanager
def kafka_bench(request: pytest.FixtureRequest, *, transactional: bool) -> Iterator[Bench]:
    yield KafkaBench(request.getfixturevalue("kafka_server"), transactional=transactional)


@contextmanager
def http_bench(
    request: pytest.FixtureRequest, kind: type[HttpBench | HttpArrayBench]
) -> Iterator[Bench]:
    del request
    with Receiver() as receiver:
        yield kind(receiver)


@contextmanager
def redis_bench(request: pytest.FixtureRequest, **keys: Any) -> Iterator[Bench]:
    server: EmbeddedRedis = request.getfixturevalue("redis_server")
    yield RedisBench(server.url, [server], **keys)


@contextmanager
def redis_cluster_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    cluster: EmbeddedRedisCluster = request.getfixturevalue("redis_cluster")
    yield RedisBench(cluster.url, cluster.servers, cluster=True)


@contextmanager
def rabbitmq_bench(request: pytest.FixtureRequest, queue_type: str) -> Iterator[Bench]:
    yield RabbitMQBench(request.getfixturevalue("rabbitmq_server"), queue_type)


@contextmanager
def postgres_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield PostgresBench(request.getfixturevalue("copy"))


@contextmanager
def search_bench(request: pytest.FixtureRequest, kind: str) -> Iterator[Bench]:
    yield SearchBench(request.getfixturevalue(f"{kind}_server"), kind)


@contextmanager
def file_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield FileBench(str(request.getfixturevalue("tmp_path") / "files"), fences=True)


@contextmanager
def memory_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    del request
    yield FileBench(f"memory://{uuid.uuid4().hex}", fences=True)


@contextmanager
def s3_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    server: S3Server = request.getfixturevalue("s3_server")
    with pytest.MonkeyPatch.context() as patch:
        # The library does not try again, which takes seconds.
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        yield S3Bench(server, uuid.uuid4().hex)


@contextmanager
def aws_bench(
    request: pytest.FixtureRequest, *, kind: str, suffix: str = "", **keys: Any
) -> Iterator[Bench]:
    server: MotoServer = request.getfixturevalue("moto_server")
    aws = request.getfixturevalue("aws")
    with closing(AwsBench(kind, aws, server.port, suffix=suffix, **keys)) as bench:
        yield bench


@contextmanager
def pubsub_bench(request: pytest.FixtureRequest, *, ordering: bool) -> Iterator[Bench]:
    server: PubSubServer = request.getfixturevalue("pubsub")
    yield PubSubBench(request.getfixturevalue("topics"), server.port, ordering=ordering)


@contextmanager
def pull_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield PullBench(request.getfixturevalue("tmp_path") / "pull")


BENCHES: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Bench]]] = {
    "nats": nats_bench,
    "kafka": partial(kafka_bench, transactional=False),
    "kafka-transactional": partial(kafka_bench, transactional=True),
    "http": partial(http_bench, kind=HttpBench),
    "redis": redis_bench,
    "redis-position": partial(redis_bench, ids="position"),
    "redis-cluster": redis_cluster_bench,
    "rabbitmq": partial(rabbitmq_bench, queue_type="classic"),
    "rabbitmq-quorum": partial(rabbitmq_bench, queue_type="quorum"),
    "postgres": postgres_bench,
    "opensearch": partial(search_bench, kind="opensearch"),
    "elasticsearch": partial(search_bench, kind="elasticsearch"),
    "file": file_bench,
    "file-memory": memory_bench,
    "file-s3": s3_bench,
    "sqs": partial(aws_bench, kind="sqs", queue="{table}"),
    "sqs-fifo": partial(aws_bench, kind="sqs", queue="{table}.fifo", suffix=".fifo"),
    "sns": partial(aws_bench, kind="sns", topic="arn:{table}"),
    "sns-fifo": partial(aws_bench, kind="sns", topic="arn:{table}", suffix=".fifo"),
    "kinesis": partial(aws_bench, kind="kinesis", stream="{table}"),
    "eventbridge": partial(aws_bench, kind="eventbridge"),
    "pubsub": partial(pubsub_bench, ordering=True),
    "pubsub-unordered": partial(pubsub_bench, ordering=False),
    "pull": pull_bench,
}
"""Sinks under their name or `name-variant`. They take messages of any bytes."""

OF_DOCUMENTS: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Bench]]] = {
    "http-array": partial(http_bench, kind=HttpArrayBench),
}
"""Variants that take JSON only."""

ALL = BENCHES | OF_DOCUMENTS
_HEAVY = {
    "kafka-transactional", "redis-cluster", "rabbitmq-quorum", "opensearch", "elasticsearch",
    "sqs-fifo", "sns", "sns-fifo", "pubsub-unordered",
}  # fmt: skip
"""Benches whose server takes long to start or to answer, and variants that cost much."""


def names(chosen: Iterable[str] = BENCHES) -> list[ParameterSet]:
    """Benches as the parameters of a fixture."""
    return [pytest.param(name, marks=pytest.mark.long if name in _HEAVY else ()) for name in chosen]


def benches(case: Case, *, exempt: bool = False) -> list[ParameterSet]:
    """The names of the benches that can have a case, or of those that cannot."""
    return names(name for name in ALL if (name in EXEMPT[case]) is exempt)

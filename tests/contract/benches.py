"""How to create each sink that takes messages, and to read what it delivered without its code."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import amqp
import fsspec
import nats
import pyarrow.parquet as pq
import redis
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from tailrace.headers import loaded
from tailrace.sinks.contract import Lane
from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.file.sink_type import SINK as FILES
from tailrace.sinks.http.settings import HttpSink
from tailrace.sinks.http.sink import Http
from tailrace.sinks.kafka.settings import KafkaSink
from tailrace.sinks.kafka.sink import Kafka
from tailrace.sinks.nats.settings import NatsSink
from tailrace.sinks.nats.sink import JetStream
from tailrace.sinks.postgres.settings import PostgresSink
from tailrace.sinks.postgres.sink import Postgres
from tailrace.sinks.pull.database import in_folder
from tailrace.sinks.pull.queue import Queue, Rules
from tailrace.sinks.pull.settings import PullSink
from tailrace.sinks.pull.sink import Pull
from tailrace.sinks.rabbitmq.settings import RabbitMQSink
from tailrace.sinks.rabbitmq.sink import RabbitMQ
from tailrace.sinks.redis.settings import RedisSink
from tailrace.sinks.redis.sink import Redis
from tailrace.sinks.registry import SINKS
from tailrace.testing import EmbeddedNats, HttpReceiver
from tests import topics
from tests.integration.kafka.reading import Bench as Topic
from tests.unit.sinks.rows import message_id
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pytest

    from tailrace.sinks.contract import Sink
    from tailrace.testing import (
        EmbeddedElasticsearch,
        EmbeddedKafka,
        EmbeddedOpenSearch,
        EmbeddedRabbitMQ,
        EmbeddedRedis,
        EmbeddedRedisCluster,
    )
    from tests.fix_aws import Aws
    from tests.fix_postgres import Database
    from tests.fix_s3 import S3Server
    from tests.pubsub import Topics

TOO_LARGE = 11_000_000
"""The size of a payload that no sink accepts with its default settings."""
Delivered = tuple[bytes, bytes, bytes]
"""Destination, id, payload."""


class Bench(ABC):
    """A real destination, and sinks for it."""

    prefix: str
    """What all destinations begin with."""

    def place(self, table: str = "orders") -> bytes:
        """The destination of a table's messages."""
        return f"{self.prefix}.{table}.insert".encode()

    @abstractmethod
    def make(self) -> Sink:
        """A new sink, not opened."""

    @abstractmethod
    def delivered(self) -> list[Delivered]:
        """What the destination holds, in its order."""

    def headers(self) -> list[dict[str, str]]:
        """The headers of what it holds, with names in lower case, if its messages have any."""
        raise NotImplementedError


class NatsBench(Bench):
    prefix = "cdc"

    def __init__(self, url: str) -> None:
        self._url = url
        self._headers: list[dict[str, str]] = []

    def make(self) -> Sink:
        settings = NatsSink(type="nats", url=SecretStr(self._url), timeout_s=LONG_S)
        return JetStream(settings, Lane(pipeline="contract"))

    def delivered(self) -> list[Delivered]:
        return asyncio.run(self._read())

    async def _read(self) -> list[Delivered]:
        client = await nats.connect(self._url)
        js = client.jetstream(timeout=60)
        found = []
        state = (await js.stream_info("CDC")).state
        for sequence in range(state.first_seq, state.last_seq + 1) if state.messages else ():
            message = await js.get_msg("CDC", sequence)
            assert message.subject is not None
            name = (message.headers or {})["Nats-Msg-Id"]
            found.append((message.subject.encode(), name.encode(), message.data or b""))
            self._headers.append(_lower((message.headers or {}).items()))
        await client.close()
        return found

    def headers(self) -> list[dict[str, str]]:
        self._headers = []
        self.delivered()
        return self._headers


class KafkaBench(Bench):
    def __init__(self, bootstrap: str, *, transactional: bool) -> None:
        self.prefix = f"c{uuid.uuid4().hex[:8]}"
        self._bootstrap = bootstrap
        self._transactional = transactional

    def make(self) -> Sink:
        settings = KafkaSink(
            type="kafka",
            bootstrap=self._bootstrap,
            transactional=self._transactional,
            timeout_s=LONG_S,
        )
        return Kafka(settings, Lane(pipeline=self.prefix))

    def delivered(self) -> list[Delivered]:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        topics = sorted(
            topic
            for topic in admin.list_topics(timeout=60).topics
            if topic.startswith(f"{self.prefix}.")
        )
        return [
            (topic.encode(), found.id.encode(), found.value)
            for topic in topics
            for found in Topic(self._bootstrap, topic).held()
        ]

    def headers(self) -> list[dict[str, str]]:
        found = []
        for each in topics.messages(self._bootstrap, f"{self.prefix}.orders.insert"):
            pairs: Any = each.headers()
            found.append(_lower((name, value.decode()) for name, value in pairs))
        return found


class HttpBench(Bench):
    prefix = "/cdc"

    def __init__(self, receiver: HttpReceiver) -> None:
        self._receiver = receiver

    def make(self) -> Sink:
        settings = {"type": "http", "url": self._receiver.url, "allow_private": True}
        return Http(HttpSink.model_validate(settings), Lane(pipeline="contract"))

    def delivered(self) -> list[Delivered]:
        requests = self._receiver.requests
        return [(each.path.encode(), each.id.encode(), each.body) for each in requests]

    def headers(self) -> list[dict[str, str]]:
        return [dict(each.headers) for each in self._receiver.requests]


class RedisBench(Bench):
    def __init__(self, url: str, servers: list[EmbeddedRedis], **keys: Any) -> None:
        self.prefix = f"r{uuid.uuid4().hex[:8]}"
        self._url = url
        self._servers = servers
        self._keys = keys

    def make(self) -> Sink:
        given = {"type": "redis", "url": self._url, "timeout_s": LONG_S, **self._keys}
        return Redis(RedisSink.model_validate(given), Lane(pipeline=self.prefix))

    def delivered(self) -> list[Delivered]:
        found: dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]] = {}
        for server in self._servers:
            with redis.Redis(port=server.port) as client:
                for key in client.keys(f"{self.prefix}.*"):
                    found[key] = client.xrange(key)
        return [
            (stream, fields[b"id"], fields[b"payload"])
            for stream, entries in sorted(found.items())
            for _, fields in entries
        ]


class RabbitMQBench(Bench):
    """One queue gets everything, in the order of arrival."""

    def __init__(self, server: EmbeddedRabbitMQ, queue_type: str) -> None:
        self._exchange = f"c{uuid.uuid4().hex[:8]}"
        self.prefix = f"{self._exchange}/cdc"
        self._server = server
        self._found: list[Delivered] = []
        self._headers: list[dict[str, str]] = []
        with self._client() as client:
            channel = client.channel()
            channel.exchange_declare(self._exchange, "topic", durable=True, auto_delete=False)
            arguments = {"x-queue-type": queue_type}
            channel.queue_declare(
                self._exchange, durable=True, auto_delete=False, arguments=arguments
            )
            channel.queue_bind(self._exchange, self._exchange, "#")

    def _client(self) -> amqp.Connection:
        return amqp.Connection(f"127.0.0.1:{self._server.port}", login_method="PLAIN")

    def make(self) -> Sink:
        given = {"type": "rabbitmq", "url": self._server.url, "timeout_s": LONG_S}
        settings = RabbitMQSink.model_validate({**given, "declare": "none"})
        return RabbitMQ(settings, Lane(pipeline=self._exchange))

    def delivered(self) -> list[Delivered]:
        with self._client() as client:
            channel = client.channel()
            channel.auto_decode = False
            while (found := channel.basic_get(self._exchange, no_ack=True)) is not None:
                place = f"{self._exchange}/{found.delivery_info['routing_key']}"
                name = found.properties["message_id"]
                self._found.append((place.encode(), name.encode(), found.body or b""))
                self._headers.append(_lower(found.properties["application_headers"].items()))
        return self._found

    def headers(self) -> list[dict[str, str]]:
        self.delivered()
        return self._headers


class PostgresBench(Bench):
    prefix = "cdc"

    def __init__(self, database: Database) -> None:
        self._database = database

    def make(self) -> Sink:
        # JSON types refuse what is not JSON.
        settings = {"type": "postgres", "dsn": self._database.dsn, "payload": "bytea"}
        return Postgres(PostgresSink.model_validate(settings), Lane(pipeline="contract"))

    def delivered(self) -> list[Delivered]:
        if self._database.query("SELECT to_regclass('wal_events')") == [(None,)]:
            return []
        rows = self._database.query(
            "SELECT destination, id, payload FROM wal_events ORDER BY commit_lsn, commit_idx"
        )
        return [(destination.encode(), name.encode(), body) for destination, name, body in rows]


class FileBench(Bench):
    prefix = "cdc"

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options

    def make(self) -> Sink:
        settings = {"type": "file", "url": self._url, "options": self._options}
        return FILES.open(FileSink.model_validate(settings), Lane(pipeline="contract"))

    def delivered(self) -> list[Delivered]:
        files, root = fsspec.url_to_fs(self._url, **self._options, use_listings_cache=False)
        found: list[Delivered] = []
        for path in sorted(files.find(root)):
            if path.endswith(".parquet"):
                table = pq.read_table(io.BytesIO(files.cat_file(path)))
                assert path.removeprefix(f"{root}/").startswith(table["destination"][0].as_py())
                names = [name.encode() for name in table["id"].to_pylist()]
                folders = [name.encode() for name in table["destination"].to_pylist()]
                found += zip(folders, names, table["payload"].to_pylist(), strict=True)
        return found


class AwsBench(Bench):
    """Destinations of one service, which are created when they are named."""

    def __init__(self, kind: str, aws: Aws, *, suffix: str = "", **keys: Any) -> None:
        self._kind = kind
        self._aws = aws
        self._name = aws.unused("c")
        self._suffix = suffix
        self._keys = keys
        self._places: dict[str, bytes] = {}
        self._received: dict[str, list[Delivered]] = defaultdict(list)

    def place(self, table: str = "orders") -> bytes:
        name = f"{self._name}-{table}{self._suffix}"
        if name not in self._places:
            self._places[name] = self._create(name).encode()
        return self._places[name]

    def _create(self, name: str) -> str:
        match self._kind:
            case "sqs":
                return self._aws.queue(name)
            case "sns":
                return self._aws.topic(name)
            case "kinesis":
                self._aws.stream(name)
                return name
            case _:
                self._aws.bus(name)
                return f"{name} an insert"

    def make(self) -> Sink:
        kind = SINKS.find(self._kind)
        given = {"type": self._kind, "timeout_s": LONG_S, **self._aws.keys, **self._keys}
        return kind.open(kind.settings.model_validate(given), Lane(pipeline="contract"))

    def delivered(self) -> list[Delivered]:
        for name, destination in self._places.items():
            found = self._records(name) if self._kind == "kinesis" else self._messages(name)
            self._received[name] += [(destination, *each) for each in found]
        return [each for name in self._places for each in self._received[name]]

    def headers(self) -> list[dict[str, str]]:
        return [
            _lower((at, of["StringValue"]) for at, of in each["MessageAttributes"].items())
            for name in self._places
            for each in self._aws.received(name)
        ]

    def _messages(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        for each in self._aws.received(name):
            if self._kind == "eventbridge":
                event = json.loads(each["Body"])
                assert event["detail"]["encoding"] == "base64"
                yield event["resources"][0].encode(), base64.b64decode(event["detail"]["payload"])
                continue
            values = {at: of["StringValue"] for at, of in each["MessageAttributes"].items()}
            encoded = values.get("encoding") == "base64"
            body = base64.b64decode(each["Body"]) if encoded else each["Body"].encode()
            yield values["id"].encode(), body

    def _records(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Records have no ids: the tests' payloads begin with the number of the message."""
        records = self._aws.records(name)
        for each in records[len(self._received[name]) :]:
            number = each["Data"].partition(b"\r")[0]
            yield message_id(int(number)) if number.isdigit() else b"", each["Data"]


class PubSubBench(Bench):
    """Topics, which are created when they are named."""

    def __init__(self, topics: Topics, **keys: Any) -> None:
        self._topics = topics
        self._settings = {"type": "pubsub", "topic": "{table}", **topics.keys, **keys}
        self._name = topics.unused("c")
        self._received: dict[str, list[Delivered]] = {}

    def place(self, table: str = "orders") -> bytes:
        name = f"{self._name}.{table}"
        if name not in self._received:
            self._received[self._topics.create(name)] = []
        return name.encode()

    def make(self) -> Sink:
        kind = SINKS.find("pubsub")
        settings = kind.settings.model_validate({"timeout_s": LONG_S, **self._settings})
        return kind.open(settings, Lane(pipeline="contract"))

    def delivered(self) -> list[Delivered]:
        for name, found in self._received.items():
            for each in self._topics.received(name):
                assert each.attributes["destination"] == name
                found.append((name.encode(), each.attributes["id"].encode(), each.data))
        return [each for found in self._received.values() for each in found]

    def headers(self) -> list[dict[str, str]]:
        return [
            _lower(each.attributes.items())
            for name in self._received
            for each in self._topics.received(name)
        ]


class SearchBench(Bench):
    """Any bytes need `payload: binary`; an index with one shard has an order."""

    def __init__(self, server: EmbeddedOpenSearch | EmbeddedElasticsearch, kind: str) -> None:
        self.prefix = f"{kind[0]}{uuid.uuid4().hex[:8]}"
        self._server = server
        self._type = SINKS.find(kind)

    def make(self) -> Sink:
        given = {"type": self._type.name, "url": self._server.url, "timeout_s": LONG_S}
        append = {"mode": "append", "payload": "binary", "histories": f"{self.prefix}-histories"}
        settings = self._type.settings.model_validate({**given, **append})
        return self._type.open(settings, Lane(pipeline=self.prefix))

    def delivered(self) -> list[Delivered]:
        return [
            (index.encode(), document["id"].encode(), base64.b64decode(document["payload"]))
            for index in sorted(self._server.call("GET", f"/{self.prefix}.*/_settings"))
            for document in self._server.documents(index).values()
        ]


class PullBench(Bench):
    prefix = "cdc"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: list[Delivered] = []
        self._headers: list[dict[str, str]] = []

    def make(self) -> Sink:
        settings = PullSink.model_validate({"type": "pull"})
        return Pull(settings, Lane(pipeline="contract", folder=self._folder))

    def delivered(self) -> list[Delivered]:
        """What consumers have received, who acknowledge everything."""
        rules = Rules(max_out=10_000, max_deliveries=0, max_bytes=2**30)
        with Queue(in_folder(self._folder), rules) as queue:
            while found := self._receive(queue):
                self._found += found
        return self._found

    def headers(self) -> list[dict[str, str]]:
        self.delivered()
        return self._headers

    def _receive(self, queue: Queue) -> list[Delivered]:
        with queue.transaction():
            found = queue.receive(7, token=1, now_ms=0, visibility_ms=1)
            queue.acknowledge([each.delivery for each in found])
        self._headers += [_lower(loaded(each.headers).items()) for each in found]
        return [(each.destination.encode(), each.id.encode(), each.payload) for each in found]


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


@contextmanager
def nats_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    del request
    with EmbeddedNats() as server:
        yield NatsBench(server.url)


@contextmanager
def kafka_bench(request: pytest.FixtureRequest, *, transactional: bool) -> Iterator[Bench]:
    kafka: EmbeddedKafka = request.getfixturevalue("kafka_server")
    yield KafkaBench(kafka.bootstrap, transactional=transactional)


@contextmanager
def http_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    del request
    with HttpReceiver() as receiver:
        yield HttpBench(receiver)


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
    yield FileBench(str(request.getfixturevalue("tmp_path") / "files"))


@contextmanager
def memory_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    del request
    yield FileBench(f"memory://{uuid.uuid4().hex}")


@contextmanager
def s3_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    server: S3Server = request.getfixturevalue("s3_server")
    yield FileBench(f"s3://{server.bucket}/{uuid.uuid4().hex}", **server.options)


@contextmanager
def aws_bench(
    request: pytest.FixtureRequest, *, kind: str, suffix: str = "", **keys: Any
) -> Iterator[Bench]:
    yield AwsBench(kind, request.getfixturevalue("aws"), suffix=suffix, **keys)


@contextmanager
def pubsub_bench(request: pytest.FixtureRequest, *, ordering: bool) -> Iterator[Bench]:
    yield PubSubBench(request.getfixturevalue("topics"), ordering=ordering)


@contextmanager
def pull_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield PullBench(request.getfixturevalue("tmp_path") / "pull")


BENCHES: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Bench]]] = {
    "nats": nats_bench,
    "kafka": partial(kafka_bench, transactional=False),
    "kafka-transactional": partial(kafka_bench, transactional=True),
    "http": http_bench,
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
"""A sink joins the suite with a line here, under its name or `name-variant`."""

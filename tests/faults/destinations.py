"""Servers that a pipeline delivers to, which fail: for a moment, for good, and by dying."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import amqp
import nats
import psycopg
import redis

from tailrace.jetstream.client import close
from tailrace.testing import (
    EmbeddedNats,
    EmbeddedPostgres,
    EmbeddedRabbitMQ,
    EmbeddedRedis,
    HttpReceiver,
    HttpRequest,
    HttpResponse,
)
from tailrace.testing.proxy import TcpProxy
from tests.faults.aws_services import AwsServices
from tests.faults.destination import Destination, changes
from tests.faults.kafka_topics import KafkaTopics, KafkaTransactions
from tests.faults.path import sink
from tests.faults.proxied import Proxied
from tests.faults.pubsub_topics import PubSubTopics

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.destination import Change

_EVENTS = """
CREATE TABLE events_{} (
    pipeline text, id text, commit_lsn bigint, commit_idx bigint, destination text, key text,
    committed_at timestamptz, payload jsonb, arrived bigserial,
    CONSTRAINT empty CHECK (payload #>> '{{after,note}}' = '')
)
"""
TOO_LARGE = {"max_message_bytes": 2000}


class Webhooks(Destination):
    """Answers 10 % of requests with a transient failure or not at all. Half of the changes that it
    refuses for good it refuses as if they might be accepted later."""

    repeats_per_fault = 16

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._rng = random.Random(seed)
        self._accepting = threading.Lock()
        self._accepted: dict[str, list[Change]] = defaultdict(list)
        self._healed = False
        self._receiver = _Receiver(self._answer)
        self._proxy = TcpProxy("127.0.0.1", self._receiver.port)

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        del healed
        url = f"http://127.0.0.1:{self._proxy.port}"
        return {"type": "http", "url": url, "path": f"/{name}", "allow_private": True}

    def accepted(self, name: str) -> list[Change]:
        return list(self._accepted[f"/{name}"])

    def crash(self) -> bool:
        """Lose all connections, with the answers on them."""
        self._proxy.cut()
        return True

    def heal(self) -> None:
        self._healed = True

    def _answer(self, request: HttpRequest) -> HttpResponse:
        row = json.loads(request.body)["after"]
        with self._accepting:
            chance = 1.0 if self._healed else self._rng.random()
            if chance < 0.02:
                return HttpResponse(status=0)
            if chance < 0.10:
                return HttpResponse(status=503)
            if row["note"] and not self._healed:
                return HttpResponse(status=503 if row["n"] % 2 else 422, body=b"no")
            self._accepted[request.path].append((row["id"], row["n"]))
        return HttpResponse()

    def __enter__(self) -> Destination:
        self._receiver.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.close()
        self._receiver.__exit__()


class _Receiver(HttpReceiver):
    def keep(self, request: HttpRequest) -> None:
        """Nothing: the answers are enough."""


class RedisStreams(Proxied[EmbeddedRedis]):
    """One stream per pipeline. Messages are too large for the sink until it is healed."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, EmbeddedRedis())

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        url = f"redis://127.0.0.1:{self.port}"
        return {"type": "redis", "url": url, "name": name, **({} if healed else TOO_LARGE)}

    def accepted(self, name: str) -> list[Change]:
        with redis.Redis(port=self.server.port) as client:
            return changes(fields[b"payload"] for _, fields in client.xrange(name))


class PostgresEvents(Proxied[EmbeddedPostgres]):
    """One table per pipeline, with a constraint that refuses messages until it is healed."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, EmbeddedPostgres(18))
        self._names: list[str] = []

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        if not healed:
            self._names.append(name)
        dsn = f"postgresql://postgres@127.0.0.1:{self.port}/{self._database}"
        return {"type": "postgres", "dsn": dsn, "events": f"events_{name}"}

    def prepare(self) -> None:
        with self._connect() as connection:
            for name in self._names:
                connection.execute(_EVENTS.format(name))

    def accepted(self, name: str) -> list[Change]:
        # A lane has one transaction at a time, and numbers its rows in their order.
        query = f"SELECT payload::text FROM events_{name} ORDER BY arrived"
        with self._connect() as connection:
            return changes(row[0] for row in connection.execute(query))

    def heal(self) -> None:
        with self._connect() as connection:
            for name in self._names:
                connection.execute(f"ALTER TABLE events_{name} DROP CONSTRAINT empty")

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.server.dsn(self._database), autocommit=True)

    def __enter__(self) -> Destination:
        super().__enter__()
        self._database = self.server.create_database("copy")
        return self


class Files(Destination):
    """JSON Lines in a folder per pipeline. Messages are too large until it is healed."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._folder = folder / "files"

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        return {
            "type": "file",
            "url": str(self._folder / name),
            "format": "jsonl",
            "compression": "gzip",
            "roll_s": 1,
            **({} if healed else TOO_LARGE),
        }

    def accepted(self, name: str) -> list[Change]:
        # Names sort by position, and files of a lane do not overlap.
        files = sorted((self._folder / name / "public" / "counters").glob("*.jsonl.gz"))
        return changes(line for file in files for line in gzip.open(file))


class Streams(Proxied[EmbeddedNats]):
    """A JetStream stream per pipeline. Messages are too large for it until it is healed."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, EmbeddedNats(data=folder / "jetstream"))
        self._names: list[str] = []

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        if not healed:
            self._names.append(name)
        return sink(f"nats://127.0.0.1:{self.port}", name)

    def prepare(self) -> None:
        asyncio.run(self._limit(2000))

    def heal(self) -> None:
        asyncio.run(self._limit(-1))

    async def _limit(self, size: int) -> None:
        client = await nats.connect(self.server.url)
        try:
            for name in self._names:
                info = await client.jetstream().stream_info(name)
                info.config.max_msg_size = size
                await client.jetstream().update_stream(info.config)
        finally:
            await close(client)

    def accepted(self, name: str) -> list[Change]:
        return changes(asyncio.run(self._payloads(name)))

    async def _payloads(self, name: str) -> list[bytes]:
        client = await nats.connect(self.server.url)
        try:
            jetstream = client.jetstream()
            count = (await jetstream.stream_info(name)).state.messages
            subscription = await jetstream.subscribe(f"{name}.>", ordered_consumer=True)
            return [(await subscription.next_msg(60)).data for _ in range(count)]
        finally:
            await close(client)


class Queues(Proxied[EmbeddedRabbitMQ]):
    """A quorum queue per pipeline. Messages are too large for the sink until it is healed."""

    repeats_per_fault = 200

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, EmbeddedRabbitMQ())
        self._received: dict[str, list[Change]] = defaultdict(list)
        self._cuts = 0

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        return {
            "type": "rabbitmq",
            "url": f"amqp://127.0.0.1:{self.port}",
            "exchange": name,
            "routing_key": "{table}",
            "max_outstanding": self.repeats_per_fault,
            "timeout_s": 20,
            **({} if healed else TOO_LARGE),
        }

    def allowed_repeats(self, faults: int, lanes: int) -> int:
        """Each connection that is lost has messages in flight."""
        return super().allowed_repeats(faults + self._cuts, lanes)

    def accepted(self, name: str) -> list[Change]:
        # Not while the server dies: what it has sent is gone.
        with amqp.Connection(f"127.0.0.1:{self.server.port}", login_method="PLAIN") as client:
            channel = client.channel()
            while (message := channel.basic_get(f"{name}.counters", no_ack=True)) is not None:
                self._received[name] += changes([message.body])
        return list(self._received[name])

    def disturb(self) -> None:
        self._cuts += 1
        super().disturb()


DESTINATIONS: dict[str, type[Destination]] = {
    "http": Webhooks,
    "redis": RedisStreams,
    "postgres": PostgresEvents,
    "file": Files,
    "nats": Streams,
    "rabbitmq": Queues,
    "aws": AwsServices,
    "pubsub": PubSubTopics,
    "kafka": KafkaTopics,
    "kafka-transactional": KafkaTransactions,
}
